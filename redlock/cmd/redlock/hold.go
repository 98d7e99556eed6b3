package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/redburst/redburst/redlock"
	"github.com/spf13/cobra"
)

func newHold() *cobra.Command {
	var r acquirer
	cmd := &cobra.Command{
		Use:   "hold [flags] KEY",
		Short: "Hold a lock until told to end",
		Long: `hold takes the lock, writes its token and fence, and renews it until a signal
(Ctrl-C, SIGTERM) ends it. Then it releases the lock. It is for a lock that is
to be held by hand, or around something that is no command; otherwise use run.

What it writes once it has the lock are assignments of a shell: REDLOCK_TOKEN,
and REDLOCK_FENCE or REDLOCK_PERMIT if there is one. The token is all that it
takes to release the lock (redlock release).

The flags mean what they mean for run. New passwords and certificates are taken
from their files, and new masters from the file that REDLOCK_MASTERS_FILE names
at a SIGHUP, as with run. Without that variable a SIGHUP ends hold.

Exit status: 0 after a signal, or
   64  wrong usage
   74  the output cannot be written
   96  the lock was held by another for the whole --wait (-E sets another)
   97  too few masters answered, or none of them within --wait
   98  the lock was lost, or revoked
   99  the --max-lifetime was over
  128+n  signal n has ended the wait for the lock
` + mastersHelp,
		Example: `  redlock hold lock:maintenance
  redlock hold --wait forever --max-lifetime 1h lock:maintenance
  redlock hold --permits 4 lock:gpu`,
		Args: keyOnly,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.checkFlags(cmd); err != nil {
				return err
			}
			return r.hold(args[0])
		},
	}
	r.register(cmd)
	r.registerWait(cmd)
	r.registerKind(cmd)
	cmd.Flags().DurationVar(&r.lifetime, "max-lifetime", 0, "give the lock up after this time (default: never)")
	return cmd
}

func (r *acquirer) hold(key string) error {
	client, err := r.acquire(key)
	if err != nil {
		return err
	}
	defer r.close(client)
	held, stop := r.mutex.KeepAlive(context.Background())
	defer stop()
	written := make(chan error, 1)
	variables := r.variables(r.mutex.Token(), r.mutex.Fence())
	go func() { // perhaps nobody reads it
		out := newTerminal(os.Stdout)
		for _, v := range variables {
			name, value, _ := strings.Cut(v, "=")
			out.printf("%s=%s\n", name, quoted(value))
		}
		written <- out.failure()
	}()
	for held.Err() == nil {
		select {
		case <-held.Done():
		case err := <-written:
			if err != nil {
				r.release(false)
				return err
			}
		case s := <-r.signals:
			if r.rereads(s) || !asksToEnd(s) {
				continue
			}
			if err := r.release(false); errors.Is(err, redlock.ErrNotHeld) || errors.Is(err, redlock.ErrRevoked) {
				return ended(err, anotherToo)
			}
			return nil
		}
	}
	lost := context.Cause(held)
	r.release(false)
	if errors.Is(lost, redlock.ErrMaxLifetime) {
		return &failure{exitLifetime, fmt.Errorf("the --max-lifetime of %v is over", r.lifetime), ""}
	}
	return ended(lost, "another may have it by now")
}

// ended says that a lock has ended under its holder. remedy is of a loss: what was revoked nobody else had.
func ended(err error, remedy string) error {
	if errors.Is(err, redlock.ErrRevoked) {
		return &failure{exitLost, fmt.Errorf("the lock was revoked: %w", err), ""}
	}
	return &failure{exitLost, fmt.Errorf("the lock was lost: %w", err), remedy}
}
