package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/spf13/cobra"
)

func newRun() *cobra.Command {
	var r runner
	var noWait bool
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG]...",
		Short: "Run a command while holding a lock",
		Long: `run takes the lock, runs the command, and releases the lock when the command
has ended. Meanwhile it renews the lock, so the TTL need not be as long as the
command: it is how long others wait if this machine dies.

If the lock is lost (the masters were flushed, or a majority could not be
reached until the lock's validity had passed), the command is ended at once:
it gets SIGTERM, and SIGKILL after --grace, with all that it has started.
--wait is for the lock, and for a majority of masters that can be asked. A
minority that is down is passed over in silence. Of one that can never serve as
it is configured (a replica, a node of a cluster, a wrong password) run says so
on stderr, once, and goes on.

A master that was started less than --restart-guard ago may have forgotten
locks, so it does not vote before that has passed, and a --wait that is long
enough outlasts it. The guard is the --ttl unless you give it: give the longest
TTL that anybody uses on these masters. Masters that persist every write before
they answer (appendonly yes, appendfsync always) vote at once.

The command has our stdin, stdout and stderr, a process group of its own, and
in its environment REDLOCK_KEY and REDLOCK_TOKEN. It gets the signals that we
get. If one of them has ended it, what it had started and left behind has
--grace until it is killed, and until then the lock is kept; what a command
leaves behind that ends by itself runs on without the lock. Ctrl-C and Ctrl-Z
work as usual, but a suspended command loses its lock after the TTL, and is
ended when it is resumed.

If redlock itself is killed (SIGKILL), Linux kills the command too, but not what
that has started: such a part of it can go on after the TTL, without the lock.

Exit status: that of the command, 128+n if signal n ended it, or
   64  wrong usage
   96  the lock was held by another for the whole --wait (-E sets another)
   97  too few masters answered, or none of them within --wait
   98  the lock was lost while the command ran
  126  the command cannot be executed
  127  there is no such command
` + mastersHelp,
		Example: `  redlock run nightly-report -- ./report.sh --all
  redlock run --no-wait migrate -- sh -c './migrate && ./verify'
  */5 * * * *  redlock run -n -E 0 cleanup -- /usr/local/bin/cleanup   # crontab
  redlock run --ttl 30s --wait 5m deploy -- make deploy
  redlock run shell -- bash                            # hold it by hand`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 || cmd.ArgsLenAtDash() == 0:
				return usageError("usage: "+cmd.UseLine(), "the KEY is missing")
			case len(args) == 1:
				return usageError("usage: "+cmd.UseLine(), "the COMMAND is missing")
			case args[0] == "":
				return usageError("", "the KEY is empty")
			case cmd.ArgsLenAtDash() > 1:
				return usageError("usage: "+cmd.UseLine(),
					"%d words before the --, where only the KEY is expected", cmd.ArgsLenAtDash())
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp // the KEY
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if noWait {
				r.wait = 0
			}
			switch {
			case r.heldStatus < 0 || r.heldStatus > 255:
				return usageError("", "-E %d is no exit status: those are 0 to 255", r.heldStatus)
			case min(r.wait, r.grace, r.lifetime, r.restartGuard) < 0:
				return usageError("", "--wait, --grace, --max-lifetime and --restart-guard cannot be below zero")
			}
			if err := r.guard(cmd.Flags().Changed("restart-guard")); err != nil {
				return err
			}
			return r.run(args[0], args[1:])
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError("flags of the command itself stand behind a --: "+cmd.UseLine(), "%w", err)
	})
	r.fleet.register(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&r.ttl, "ttl", 10*time.Second, "how long the lock outlives us if we die; it is renewed every third of it")
	flags.DurationVarP(&r.wait, "wait", "w", 30*time.Second, "how long to wait for the lock; 0 means not at all")
	flags.BoolVarP(&noWait, "no-wait", "n", false, "do not wait for the lock, as --wait 0")
	flags.IntVarP(&r.heldStatus, "conflict-exit-code", "E", exitHeld, "exit `status` if the lock is held by another")
	flags.DurationVar(&r.grace, "grace", 10*time.Second, "how long the command may take from SIGTERM to SIGKILL when the lock is lost")
	flags.DurationVar(&r.lifetime, "max-lifetime", 0, "give the lock up, and end the command, after this time (default: never)")
	flags.DurationVar(&r.restartGuard, "restart-guard", 0, "the longest TTL that anybody uses: do not listen to a master that was started less than this ago; 0 turns that off (default: the --ttl)")
	flags.StringVar(&r.owner, "owner", "", "`name` under which others see who holds the lock (default: redlock-run@host:pid)")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "say on stderr when the lock is taken and released")
	cmd.MarkFlagsMutuallyExclusive("wait", "no-wait")
	return cmd
}

// A runner runs a command under a lock.
type runner struct {
	fleet    fleet
	ttl      time.Duration
	wait     time.Duration // for the lock, and a majority
	left     time.Duration // ... of that
	grace    time.Duration
	lifetime time.Duration
	owner    string

	restartGuard time.Duration

	heldStatus int
	verbose    bool

	masters []string // of the fleet
	connect conn.Options
	mutex   *redlock.Mutex
	witness witness
	signals chan os.Signal
}

// guard makes the restart guard that of our own TTL, unless one was given. Each run is a
// new client, which knows no master from before: without the guard it would believe those
// that have forgotten a lock.
func (r *runner) guard(given bool) error {
	switch {
	case !given:
		r.restartGuard = max(r.ttl, 0)
	case 0 < r.restartGuard && r.restartGuard < r.ttl:
		return usageError("leave it out, and it is the --ttl; or give the longest TTL of all; or 0, which turns it off",
			"--restart-guard %v is below the --ttl of %v: a master that was started %v ago may have forgotten a lock of %v",
			r.restartGuard, r.ttl, r.restartGuard, r.ttl)
	}
	return nil
}

func (r *runner) run(key string, argv []string) error {
	path, err := lookPath(argv[0])
	if err != nil {
		return err
	}
	cfg, err := r.config()
	if err != nil {
		return err
	}
	// From here on no signal ends us without the lock being released.
	r.signals = make(chan os.Signal, 16)
	signal.Notify(r.signals, passedOn()...)

	var client *redlock.Client
	err = r.interruptible(func(ctx context.Context) (err error) {
		client, err = r.open(ctx, cfg)
		return err
	})
	if err != nil {
		return r.notTaken(key, err)
	}
	defer client.Close()
	r.witness.opened(client.Stats().Masters)
	r.mutex = client.NewMutex(key, r.ttl, r.options()...)
	if err := r.interruptible(r.take); err != nil {
		return r.notTaken(key, err)
	}
	r.witness.taken(client.Stats().Masters)
	r.note("%s is ours, as %s", key, ownerText(redlock.Holder{Token: r.mutex.Token()}))

	held, stop := r.mutex.KeepAlive(context.Background())
	defer stop()
	env := append(os.Environ(), "REDLOCK_KEY="+key, "REDLOCK_TOKEN="+r.mutex.Token())
	p, err := startProcess(path, argv, env, func() bool { return held.Err() == nil }, r.signals)
	if err != nil {
		r.release()
		return &failure{exitNoExec, fmt.Errorf("%s: %w", argv[0], err), ""}
	}
	end := r.supervise(p, held)
	lost, still := context.Cause(held), r.mutex.Remaining() > 0
	if err := r.release(); lost == nil && errors.Is(err, redlock.ErrNotHeld) {
		lost = err // found out only now
	}
	masters := client.Stats().Masters
	client.Close() // then the witness has been told of all that was
	switch {
	case lost != nil:
		return &failure{exitLost, fmt.Errorf("the lock was lost before the command ended, with status %d: %w", end.status, lost),
			r.witness.aftermath(lost, still, masters)}
	case end.last != nil:
		end.last()
	}
	return exitWith(end.status)
}

// open connects, and tries again for as long as there is to wait if too few masters
// answer; what it took to do so is waited no more.
func (r *runner) open(ctx context.Context, cfg redlock.Config) (*redlock.Client, error) {
	r.left = r.wait
	began := time.Now()
	var lacking error // why the last try has failed
	for {
		limit, cancel := ctx, func() {}
		if lacking != nil {
			limit, cancel = context.WithTimeout(ctx, r.left)
		}
		client, err := redlock.Open(limit, cfg)
		cancel()
		switch {
		case err == nil, ctx.Err() != nil:
			return client, err
		case errors.Is(err, redlock.ErrNoQuorum):
			lacking = err
		case lacking != nil && undecided(err): // it learnt nothing new
			return nil, lacking
		default: // trying again is of no use
			return nil, err
		}
		if r.left -= time.Since(began); r.left <= 0 {
			return nil, lacking
		}
		began = time.Now()
		r.witness.lacks(lacking, r.left)
		select {
		case <-time.After(min(reopenEvery, r.left)):
		case <-ctx.Done():
		}
	}
}

// reopenEvery is the pause between two tries to reach a majority.
const reopenEvery = 200 * time.Millisecond

// exitWith is nil for 0.
func exitWith(status int) error {
	if status == 0 {
		return nil
	}
	return &failure{status: status}
}

// lookPath finds the program, before anything is locked for it.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", &failure{exitNoFile, fmt.Errorf("%s: command not found", name), ""}
	}
	return "", &failure{exitNoExec, fmt.Errorf("%s: cannot be executed: %w", name, err), ""}
}

// config reads the fleet's flags and files.
func (r *runner) config() (_ redlock.Config, err error) {
	if r.masters, err = r.fleet.addresses(); err != nil {
		return redlock.Config{}, err
	}
	if r.connect, err = r.fleet.options(); err != nil {
		return redlock.Config{}, err
	}
	opt := &r.connect
	return redlock.Config{
		Masters: r.masters, Username: opt.Username, Password: opt.Password, TLS: opt.TLS, DialTimeout: opt.DialTimeout,
		ClientName: "redlock-run", Owner: r.owner, RestartGuard: r.restartGuard, Observer: r.witness.observer(),
	}, nil
}

func (r *runner) options() []redlock.Option {
	if r.lifetime > 0 {
		return []redlock.Option{redlock.WithMaxLifetime(r.lifetime)}
	}
	return nil
}

// take takes the lock.
func (r *runner) take(ctx context.Context) error {
	if r.wait <= 0 {
		return r.mutex.TryLock(ctx)
	}
	r.witness.waits(r.left)
	ctx, cancel := context.WithTimeoutCause(ctx, r.left, fmt.Errorf("--wait %v is over", r.wait))
	defer cancel()
	return r.mutex.Lock(ctx)
}

// A signalled is the cause of a wait that a signal ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "ended by signal: " + s.String() }

// interruptible calls f with a context that a signal ends. If one came, all that
// f did is undone, and the error is a signalled.
func (r *runner) interruptible(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	for {
		select {
		case s := <-r.signals:
			if asksToEnd(s) {
				cancel(signalled{s})
			}
		case err := <-done:
			var s signalled
			if !errors.As(context.Cause(ctx), &s) {
				return err
			}
			if r.mutex != nil && err == nil {
				r.release()
			}
			return s
		}
	}
}

// notTaken says why there is no lock.
func (r *runner) notTaken(key string, err error) error {
	var (
		s     signalled
		round *redlock.RoundError
	)
	switch {
	case errors.As(err, &s):
		return &failure{status: statusOf(s.Signal)}
	case errors.Is(err, redlock.ErrHeld):
		return &failure{r.heldStatus, fmt.Errorf("%q is held by another", key), r.holderText(key)}
	case undecided(err):
		return &failure{exitNoQuorum, fmt.Errorf("no answer within %v: %w", r.wait, err), doctorRemedy}
	case inQuarantine(err):
		return &failure{exitNoQuorum, err, "a longer --wait outlasts that; masters that persist every write (appendfsync always) vote at once"}
	case errors.As(err, &round), errors.Is(err, conn.ErrRefused):
		return &failure{exitNoQuorum, err, doctorRemedy}
	}
	return usageError("", "%w", err) // no master was asked
}

// undecided reports whether a wait was over before anything was known of the lock.
func undecided(err error) bool {
	var round *redlock.RoundError // a master's own timeout is not meant
	return errors.As(err, &round) && errors.Is(round, context.DeadlineExceeded) &&
		!errors.Is(round, redlock.ErrNoQuorum) && !errors.Is(round, redlock.ErrHeld) && !errors.Is(round, redlock.ErrExpired)
}

// holderText says who is in our way. It asks as status does: who may read a key may ask.
func (r *runner) holderText(key string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	switch s := newStanding(key, holders(ctx, r.masters, r.connect, key)); {
	case s.state == unknown:
		return "nobody knows by whom: " + s.tooFew()
	case s.state == free:
		return "by nobody for long: others try to take it, or it was just released"
	case s.left < 0:
		return fmt.Sprintf("by %s, %s", ownerText(s.leader), leftText(s.left))
	default:
		return fmt.Sprintf("by %s, %s unless it is renewed", ownerText(s.leader), leftText(s.left))
	}
}

// supervise returns when the command has ended. It ends it if the lock is lost.
func (r *runner) supervise(p *process, held context.Context) (end result) {
	var (
		lost   = held.Done()    // nil once that is known
		asked  time.Time        // when somebody last asked it to end
		over   bool             // it has ended, but perhaps not all that it started
		killed bool             // ... which has, too
		kill   <-chan time.Time // when the grace is over
		look   <-chan time.Time // when to look again whether all is over
	)
	ticks := time.NewTicker(10 * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case s := <-r.signals:
			if asksToEnd(s) {
				asked = time.Now()
			}
			r.check(p.pass(s))
		case <-lost:
			lost = nil
			complain("the lock is lost: ending the command", "")
			r.check(p.terminate())
			kill = time.After(r.grace)
		case <-kill:
			r.check(p.kill())
			if killed = true; over {
				return end
			}
		case end = <-p.ended:
			// A signal of long ago was no wish to end, but to reload, say.
			if lost != nil && time.Since(asked) > r.grace || killed || p.gone() {
				return end
			}
			over, look = true, ticks.C
			if kill == nil {
				kill = time.After(r.grace)
			}
		case <-look:
			if p.gone() {
				return end
			}
		}
	}
}

// check says if a signal could not be sent: the command runs as another user.
func (r *runner) check(err error) {
	if err != nil {
		complain(fmt.Sprintf("the command cannot be sent a signal: %v", err), "")
	}
}

// release releases the lock. The masters that do not hear of it let it expire.
func (r *runner) release() error {
	err := r.mutex.Unlock(context.Background())
	switch {
	case err == nil:
		r.note("%s is released", r.mutex.Key())
	case errors.Is(err, redlock.ErrNoQuorum):
		complain(err.Error(), fmt.Sprintf("the lock is free after its TTL, within %v", r.ttl))
	}
	return err
}

func (r *runner) note(format string, args ...any) {
	if r.verbose {
		complain(fmt.Sprintf(format, args...), "")
	}
}
