package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var c statusCommand
	cmd := &cobra.Command{
		Use:   "status [flags] KEY...",
		Short: "Show who holds a lock, and for how long",
		Long: `status asks every master who holds the lock, and changes nothing.

The lock is held if one holder has its key on a majority of the masters. On
fewer masters the key is a leftover, or an attempt under way, and the lock is
free. If so few masters answer that it could be either, the state is unknown.

A shared lock is held if one reader is there on a majority of the masters. Each
reader is listed, with what is left of its own time, those with most of it if a
master has more than 1000.

A key that holds anything else is no lock, but blocks it: the lock is shown as
held.

With --permits N status asks who holds each of N permits instead. They are locks
by themselves: the lock as a whole is free if one of them is, and held if none
is. Those that are not listed are free. N must be that of those who use them.

A lock that a --min-hold has left there is shown as such: nobody runs it.

Those who wait in line are listed in their order, with how long they have
waited. A process waits there once, however many of its callers wait. If the
holder has a fence, status also says when the lock was taken, by the holder's
clock.

The name of a holder is a hint: whoever may write the key can write any name.

FENCE is the number of the last lock that was taken with one, also if the key is
free now.

--watch writes a line for each key at once, and another whenever its holder or
fence changes, until a signal ends it. The masters tell of changes. What came
and went within a few milliseconds is left out. It is to find a leader and to
look at locks, and no proof that one is still held. It does not tell readers
apart.

--json writes one object for each key, and with --watch one on each line. That
of a key that is not UTF-8 has it as key_base64, too, as with all commands.
--key-base64 takes such keys, as those of release, revoke and fence do.

Exit status: 0 held, 1 free, 97 unknown, 64 wrong usage, 74 write error. Of
several keys it is 97 if one is unknown, and otherwise 1 if one is free.
` + mastersHelp,
		Example: `  redlock status lock:report
  redlock status --json lock:report | jq -r .owner
  if redlock status -q lock:report; then echo "still running"; fi
  redlock status --watch lock:scheduler lock:backup    # who leads?
  redlock status --permits 4 lock:gpu
  redlock status --permits 4 --json lock:gpu | jq .free
  redlock ls --json | jq -r '.key_base64 // empty' |
    xargs -r redlock status --key-base64               # keys that are not UTF-8`,
		Args: someKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.permitted = cmd.Flags().Changed("permits")
			if c.permitted {
				if err := checkPermits(c.permits); err != nil {
					return err
				}
			}
			if c.watch && (c.permitted || c.quiet) {
				return usageError("", "--watch goes neither with --permits nor with --quiet")
			}
			return c.run(cmd.Context(), args)
		},
	}
	c.given.register(cmd)
	registerKeyBase64(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&c.json, "json", false, "write JSON")
	flags.IntVar(&c.permits, "permits", 0, "ask for the `N` permits of the key, 1 to 1000")
	flags.BoolVar(&c.watch, "watch", false, "go on, and write a line when something changes")
	flags.BoolVarP(&c.quiet, "quiet", "q", false, "write nothing, only exit")
	return cmd
}

// A statusCommand says who holds locks.
type statusCommand struct {
	given     mastersFlags
	json      bool
	permits   int
	permitted bool
	watch     bool
	quiet     bool
}

func (c *statusCommand) run(ctx context.Context, keys []string) error {
	set, err := c.given.masterSet()
	if err != nil {
		return err
	}
	if c.watch {
		return watchAll(ctx, set, keys, c.json)
	}
	all := make([]keyStatus, len(keys))
	var asking sync.WaitGroup
	for i, key := range keys {
		asking.Go(func() {
			if c.permitted {
				a := set.permitStatus(ctx, key, c.permits)
				all[i] = keyStatus{a.lockStatus, a, a.check()}
			} else {
				s := set.lockStatus(ctx, key)
				all[i] = keyStatus{s, s, nil}
			}
		})
	}
	asking.Wait()
	for i, key := range keys {
		if o := all[i]; o.err == nil && o.s.state == free && !isKey(key) && !c.quiet {
			complain(fmt.Sprintf("%q was taken for a key, as status takes no patterns", key), fmt.Sprintf("'redlock ls %s' lists the locks that match it", quoted(key)))
		}
	}
	return c.write(all)
}

// A keyStatus is what the masters say about a key.
type keyStatus struct {
	s   *lockStatus
	r   report // of it
	err error
}

// A report is what status writes.
type report interface {
	write(t *terminal)
	writeJSON(t *terminal)
}

// write writes what is known of each key, and returns what status exits with.
func (c *statusCommand) write(all []keyStatus) (result error) {
	out := newTerminal(os.Stdout)
	var unsure *lockStatus // the first
	for i, o := range all {
		if o.err != nil {
			return o.err
		}
		switch {
		case c.quiet:
		case c.json:
			o.r.writeJSON(out)
		default:
			if i > 0 {
				out.printf("\n")
			}
			o.r.write(out)
		}
		if err := out.failure(); err != nil {
			return err
		}
		switch o.s.state {
		case free:
			result = &failure{status: exitNo}
		case unknown:
			unsure = cmp.Or(unsure, o.s)
		}
	}
	if unsure != nil {
		return unsure.unsure()
	}
	return result
}
