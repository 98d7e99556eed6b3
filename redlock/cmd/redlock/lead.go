package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/spf13/cobra"
)

func newLead() *cobra.Command {
	l := leader{runner: runner{endsAll: true}}
	cmd := &cobra.Command{
		Use:   "lead [flags] KEY -- COMMAND [ARG]...",
		Short: "Keep a command running on one host at a time",
		Long: `lead keeps the command running on one of the hosts where it is started with the
same KEY. Each waits until it leads, which is when it has the lock. Then it runs
the command, and renews the lock for as long as that runs.

The command is started again, here or elsewhere:

  when it has ended, with whatever status     another host comes first
  when its host dies                          after the --ttl
  when redlock is ended there                 at once
  when its host is cut off from the masters   after the --ttl. There it is sent
                                              SIGTERM as the --ttl ends, and
                                              SIGKILL after --grace
  after --max-lifetime, if that is given      another host comes first

So give it a command that stays in the foreground. What the command leaves
running when it ends is ended, too, before another host leads: on Linux all that
it has started, elsewhere its process group. The lock is kept until then. Only a
lock that was lost is not: a command that takes time to end then runs beside the
next leader's, for up to --grace. '--grace 0' kills it at once. Otherwise make
it safe by its fence. 'redlock run --help' says what cannot be ended, and what
may go on if redlock itself is killed (SIGKILL).

REDLOCK_FENCE in the command's environment is the term: a number that is greater
than that of every earlier leader. Give it to what the command writes to, which
should refuse a lower one than it has seen. REDLOCK_KEY, REDLOCK_TOKEN and
REDLOCK_MASTERS are there as with run.

'redlock status --watch KEY' shows who leads: the --owner, which can be an
address at which the leader is to be reached.

SIGTERM, Ctrl-C (SIGINT) and SIGQUIT end lead: it passes them on to the command,
kills that after --grace, and releases the lock. Other signals are passed on; a
SIGHUP that ends the command ends lead as well, and so does one while it waits.
But if REDLOCK_MASTERS_FILE names the file with the masters, a SIGHUP has lead
read it again, as with run, and does nothing else. New passwords and
certificates are taken from their files as with run, too.

lead waits for masters without end. Exit status: that of the command that a
signal to lead has ended, 128+n if signal n came while it waited, or
   64  wrong usage
   97  the masters refuse this user, or can never serve
  126  the command cannot be executed
  127  there is no such command
` + mastersHelp,
		Example: `  redlock lead lock:scheduler -- ./scheduler
  redlock lead --ttl 5s --owner "$(hostname):8080" lock:api -- ./api --port 8080
  redlock status --watch lock:scheduler`,
		Args: keyAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			if l.grace < 0 {
				return usageError("", "--grace cannot be below zero")
			}
			if err := l.checkFlags(cmd); err != nil {
				return err
			}
			return l.lead(args[0], args[1:])
		},
	}
	cmd.SetFlagErrorFunc(commandFlagError)
	l.register(cmd)
	l.registerGrace(cmd)
	cmd.Flags().DurationVar(&l.lifetime, "max-lifetime", 0, "end the command after this time, and have another host lead (default: never)")
	return cmd
}

// A leader runs a command whenever it leads.
type leader struct {
	runner
	client *redlock.Client
	key    string
	path   string
	argv   []string
	resign context.CancelCauseFunc // ends the campaign

	mu      sync.Mutex
	leading bool
	hangup  time.Time // when the command was last sent one
	last    *result   // of the command that a signal to us has ended; nil if none has
}

func (l *leader) lead(key string, argv []string) (err error) {
	if l.path, err = lookPath(argv[0]); err != nil {
		return err
	}
	l.key, l.argv, l.wait = key, argv, forever
	if l.client, err = l.connectAll(key); err != nil {
		return err
	}
	defer l.close(l.client)
	l.monitor.setWait(forever)
	l.monitor.acquired(l.client.Stats().Masters)

	all := l.signals
	l.signals = make(chan os.Signal, cap(all)) // those that the command gets
	ctx, resign := context.WithCancelCause(context.Background())
	defer resign(nil)
	l.resign = resign
	done := make(chan error, 1)
	go func() {
		done <- l.client.Lead(ctx, key, l.ttl, func(ctx context.Context) error { return l.whileLeading(ctx, all) })
	}()
	for {
		select {
		case s := <-all:
			l.handleSignal(s)
		case err := <-done:
			return l.outcome(ctx, err)
		}
	}
}

// handleSignal passes a signal on, or ends the campaign, or both.
func (l *leader) handleSignal(s os.Signal) {
	if l.rereads(s) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	hangup := s == syscall.SIGHUP
	if l.leading {
		select {
		case l.signals <- s:
		default: // it gets so many that one more is none
		}
		if hangup {
			l.hangup = time.Now()
		}
	}
	if asksToEnd(s) && !(hangup && l.leading) {
		l.resign(signalled{s})
	}
}

// outcome is the error that lead ends with.
func (l *leader) outcome(ctx context.Context, err error) error {
	var s signalled
	if errors.As(context.Cause(ctx), &s) {
		if l.last == nil {
			return &failure{status: statusOf(s.Signal)}
		}
		if l.last.last != nil {
			l.close(l.client)
			allSaid()
			l.last.last()
		}
		return exitWith(l.last.status)
	}
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return l.notTaken(l.key, err)
}

// whileLeading runs the command while we lead.
func (l *leader) whileLeading(ctx context.Context, signals chan<- os.Signal) error {
	l.setLeading(true)
	defer l.setLeading(false)
	leads := ctx        // its Err looks at the clock
	if l.lifetime > 0 { // not WithMaxLifetime: the lock is kept until the command has ended
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.lifetime, redlock.ErrMaxLifetime)
		defer cancel()
	}
	fence := redlock.FenceFrom(ctx)
	p, err := startProcess(l.path, l.argv, l.environment(l.key, behind.TokenFrom(ctx), fence), func() bool { return leads.Err() == nil && ctx.Err() == nil }, signals)
	switch {
	case err == errOver: // meanwhile
		return nil
	case err != nil:
		return &failure{exitNoExec, fmt.Errorf("%s: %w", l.argv[0], err), ""}
	}
	l.note("%s: we lead, in term %d", l.key, fence)
	end := l.supervise(p, ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	var s signalled
	ended := ctx.Err() != nil // which sets the cause
	switch {
	case errors.As(context.Cause(ctx), &s):
		l.last = &end
	case !ended && !l.hangup.IsZero() && time.Since(l.hangup) <= l.grace:
		l.last = &end
		l.resign(signalled{syscall.SIGHUP})
	case !ended:
		complain(fmt.Sprintf("the command has ended, with status %d: another host comes first", end.status), "")
	}
	l.note("%s: we lead no more", l.key)
	return nil
}

// setLeading notes whether there is a command.
func (l *leader) setLeading(leading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading, l.hangup = leading, time.Time{}
	for len(l.signals) > 0 { // those of the last command
		<-l.signals
	}
}
