package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
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
has ended. It renews the lock while the command runs, so the TTL can be shorter
than the command takes: it is how long others wait if this machine dies.

If the lock is lost (the masters were flushed, or no majority could be reached
until its validity had passed), run ends the command and all that it has
started: by SIGTERM at once, and by SIGKILL after --grace.

--wait covers waiting for the lock and for enough masters. A minority of the
masters may be down; run does not mention it. If a master can never serve as it
is configured (a replica, a node of a cluster, a wrong password), run says so
once on stderr and goes on without it.

A master that was started less than --restart-guard ago may have forgotten
locks. It does not vote until that time has passed; a longer --wait outlasts it.
The guard is the --ttl by default: give the longest TTL that anybody uses on
these masters. Masters that persist every write before they answer (appendonly
yes, appendfsync always) vote at once.

REDLOCK_FENCE in the command's environment is a number that is greater than that
of every earlier run under this KEY. Give it to what the command writes to: if
that refuses a number lower than one it has seen, a run that was paused for
longer than its lock was valid does no harm. The masters keep it in {KEY}:fence.
A user who may not use that key gets no number, and run says so; with --fence it
fails instead.

Three flags make it another kind of lock. They do not go together.

  --also KEY   a lock on several keys, all or none. It excludes whoever holds
               one of them. Its fence is greater than that of every earlier run
               under any of them. The order means nothing. At most 64 keys.
  --shared     a reader: any number of readers hold the lock together, or one
               run without --shared alone. A run that waits for readers goes
               before readers that come later. Needs Redis 5 or later.
  --permits N  one of N permits, so that N runs go on at a time. Everybody must
               give the same N. REDLOCK_PERMIT is the number of the permit, from
               1 to N: no two runs have the same one at a time.

A reader's fence lies between those of the writers before and after it. A run
with a permit has none.

The command has the stdin, stdout and stderr of run, a process group of its own,
and REDLOCK_KEY and REDLOCK_TOKEN in its environment, too. run passes signals on
to it. If a signal ends the command, the processes that it leaves behind have
--grace to end before they are killed, and the lock is kept until then. If the
command exits normally, its background processes continue without the lock.
Ctrl-C and Ctrl-Z work as usual, but a suspended command loses its lock after
the TTL, and is ended when it is resumed.

If redlock itself is killed (SIGKILL), Linux kills the command, but not the
processes that it has started: they can go on after the TTL, without the lock.

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
  redlock run --also disk-b disk-a -- ./copy.sh        # both disks, or neither
  redlock run --shared catalogue -- ./export.sh        # beside other readers
  redlock run --permits 4 gpu -- ./train.sh            # up to four at a time
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
			if err := r.checkKind(cmd.Flags().Changed("permits")); err != nil {
				return err
			}
			r.numbered = r.fence || !cmd.Flags().Changed("fence") && r.permits == 0
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
	flags.DurationVar(&r.lifetime, "max-lifetime", 0, "end the command and give the lock up after this time (default: never)")
	flags.DurationVar(&r.restartGuard, "restart-guard", 0, "the longest TTL that anybody uses on these masters: one that was started less than this ago does not vote; 0 turns that off (default: the --ttl)")
	flags.BoolVar(&r.fence, "fence", false, "fail if there can be no REDLOCK_FENCE; --fence=false asks for none (default: it is left out with --permits, and where the user may not use its key)")
	flags.StringArrayVar(&r.also, "also", nil, "lock this `KEY`, too, all or none; can be repeated")
	flags.BoolVar(&r.shared, "shared", false, "share the lock with other readers, which exclude a run without --shared")
	flags.IntVar(&r.permits, "permits", 0, "let `N` hold the lock at a time, 1 to 1000")
	flags.StringVar(&r.owner, "owner", "", "`name` under which others see who holds the lock (default: redlock-run@host:pid)")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "say on stderr when the lock is taken and released")
	cmd.MarkFlagsMutuallyExclusive("wait", "no-wait")
	return cmd
}

// A runner runs a command under a lock.
type runner struct {
	fleet    fleet
	ttl      time.Duration
	wait     time.Duration // for the lock, and for a majority of the masters
	left     time.Duration // of wait
	grace    time.Duration
	lifetime time.Duration
	owner    string

	restartGuard time.Duration

	also    []string // further keys
	shared  bool
	permits int // 0 for a lock that has none

	fence    bool // REDLOCK_FENCE is required
	numbered bool // ... or at least wanted

	heldStatus int
	verbose    bool

	masters []string // of the fleet
	connect conn.Options
	mutex   *redlock.Mutex
	name    string // of the lock, as the user reads it
	witness witness
	signals chan os.Signal
}

// guard makes our TTL the restart guard, unless one was given. Each run is a new client,
// which has not seen whether a master was restarted: without the guard it would count the
// votes of those that have forgotten a lock.
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

// checkKind checks what kind of lock the flags ask for. The library does, too, but only when
// the masters are connected, and it does not know the flags.
func (r *runner) checkKind(permits bool) error {
	if permits {
		if err := checkPermits(r.permits); err != nil {
			return err
		}
	}
	switch {
	case slices.Contains(r.also, ""):
		return usageError("", "a KEY of --also is empty")
	case permits && r.shared:
		return usageError("", "--permits and --shared do not go together: a lock with permits has no readers")
	case permits && len(r.also) > 0:
		return usageError("", "--permits and --also do not go together: permits are those of one key")
	case permits && r.fence:
		return usageError("leave --fence out", "--permits and --fence do not go together: a lock with permits has no fence")
	case r.shared && len(r.also) > 0:
		return usageError("", "--shared and --also do not go together: a shared lock is one on one key")
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
	// From here on we release the lock before a signal ends us.
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
	r.name, r.mutex = key, client.NewMutex(key, r.ttl, r.options()...)
	err = r.interruptible(r.take)
	if r.numbered && !r.fence && refused(err, userRefused) {
		r.numbered = false
		r.mutex = client.NewMutex(key, r.ttl, r.options()...)
		if err = r.interruptible(r.take); !refused(err, userRefused) {
			counter := "the key {" + key + "}:fence"
			if len(r.also) > 0 {
				counter = "{KEY}:fence of each key"
			}
			complain("the command gets no REDLOCK_FENCE: the user may not use "+counter,
				"let it (ACL SETUSER … ~{…}:fence), or ask for none with --fence=false")
		}
	}
	if err != nil {
		return r.notTaken(key, err)
	}
	r.witness.taken(client.Stats().Masters)
	token := r.mutex.Token()
	r.name = r.nameOf(key, token)
	r.note("%s is ours, as %s", r.name, ownerText(redlock.Holder{Token: token}))

	held, stop := r.mutex.KeepAlive(context.Background())
	defer stop()
	p, err := startProcess(path, argv, r.environment(key, token), func() bool { return held.Err() == nil }, r.signals)
	if err != nil {
		r.release()
		return &failure{exitNoExec, fmt.Errorf("%s: %w", argv[0], err), ""}
	}
	end := r.supervise(p, held)
	lost, still := context.Cause(held), r.mutex.Remaining() > 0
	if err := r.release(); lost == nil && errors.Is(err, redlock.ErrNotHeld) {
		lost = err // which only the release has found out
	}
	masters := client.Stats().Masters
	client.Close() // then the witness has seen everything
	switch {
	case lost != nil:
		return &failure{exitLost, fmt.Errorf("the lock was lost before the command ended, with status %d: %w", end.status, lost),
			r.witness.aftermath(lost, still, masters)}
	case end.last != nil:
		end.last()
	}
	return exitWith(end.status)
}

// environment returns the environment of the command. What a run around this one has set is not
// in it: that is of another lock.
func (r *runner) environment(key, token string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "REDLOCK_FENCE=") || strings.HasPrefix(v, "REDLOCK_PERMIT=")
	})
	env = append(env, "REDLOCK_KEY="+key, "REDLOCK_TOKEN="+token)
	if fence := r.mutex.Fence(); fence != 0 {
		env = append(env, fmt.Sprint("REDLOCK_FENCE=", fence))
	}
	if r.permits > 0 {
		env = append(env, "REDLOCK_PERMIT="+permitOf(token))
	}
	return env
}

// permitOf returns the permit that a token is for: that of the third of four ends in ".3.4".
func permitOf(token string) string {
	parts := strings.Split(token, ".")
	return parts[max(0, len(parts)-2)]
}

// nameOf says what a lock is that was taken under a token.
func (r *runner) nameOf(key, token string) string {
	switch {
	case r.permits > 0:
		return fmt.Sprintf("permit %s of %s", permitOf(token), key)
	case r.shared:
		return key + ", shared,"
	case len(r.also) > 0:
		return fmt.Sprintf("%s with %s", key, strings.Join(r.also, ", "))
	}
	return key
}

// open connects to a majority of the masters. While too few answer it tries again, for as
// long as wait allows; it leaves in left what remains of that.
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
		case lacking != nil && undecided(err): // the last try was cut short
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

// lookPath finds the program, before the lock is taken for it.
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

func (r *runner) options() (opts []redlock.Option) {
	if r.lifetime > 0 {
		opts = append(opts, redlock.WithMaxLifetime(r.lifetime))
	}
	if r.numbered {
		opts = append(opts, redlock.WithFence())
	}
	if len(r.also) > 0 {
		opts = append(opts, redlock.WithKeys(r.also...))
	}
	if r.shared {
		opts = append(opts, redlock.WithShared())
	}
	if r.permits > 0 {
		opts = append(opts, redlock.WithPermits(r.permits))
	}
	return opts
}

// What masters say that refuse us until somebody changes something.
const (
	userRefused      = "NOPERM"
	permitsDisagreed = "PERMITS"
)

// refused reports whether so many masters refuse us with one of the codes that there is no
// quorum. Then Lock does not wait.
func refused(err error, codes ...string) bool {
	var round *redlock.RoundError
	if !errors.As(err, &round) || !errors.Is(err, redlock.ErrNoQuorum) {
		return false
	}
	n := 0
	for _, v := range round.Votes {
		var reply *mux.ReplyError
		if errors.As(v.Err, &reply) && slices.Contains(codes, reply.Code) {
			n++
		}
	}
	return 2*n >= len(round.Votes)
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

// interruptible calls f with a context that a signal ends. If a signal came, it releases
// a lock that f has taken, and the error is a signalled.
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

// notTaken makes a failure of the error that kept us from taking the lock.
func (r *runner) notTaken(key string, err error) error {
	var (
		s     signalled
		round *redlock.RoundError
	)
	switch {
	case errors.As(err, &s):
		return &failure{status: statusOf(s.Signal)}
	case refused(err, permitsDisagreed):
		return usageError("everybody must give the same --permits; to change it, end all runs, and wait for their TTL and two minutes",
			"%w", err)
	case errors.Is(err, redlock.ErrHeld):
		who, remedy := r.others(key)
		return &failure{r.heldStatus, errors.New(who), remedy}
	case undecided(err):
		return &failure{exitNoQuorum, fmt.Errorf("no answer within %v: %w", r.wait, err), doctorRemedy}
	case inQuarantine(err):
		return &failure{exitNoQuorum, err, "a longer --wait outlasts that; masters that persist every write (appendfsync always) vote at once"}
	case errors.As(err, &round), errors.Is(err, conn.ErrRefused):
		return &failure{exitNoQuorum, err, doctorRemedy}
	}
	return usageError("", "%w", err) // no master was asked: the key or the TTL is wrong
}

// undecided reports whether the wait was over before a round was decided.
func undecided(err error) bool {
	var round *redlock.RoundError // a master's own timeout is not meant
	return errors.As(err, &round) && errors.Is(round, context.DeadlineExceeded) &&
		!errors.Is(round, redlock.ErrNoQuorum) && !errors.Is(round, redlock.ErrHeld) && !errors.Is(round, redlock.ErrExpired)
}

// others says what others hold, and who they are. It asks as status does, which needs no more than
// the permission to read the key.
func (r *runner) others(key string) (what, who string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if r.permits > 0 {
		return r.otherPermits(ctx, key)
	}
	s := newStanding(key, holders(ctx, r.masters, r.connect, key))
	for _, also := range r.also {
		if s.state == held {
			break
		}
		s = newStanding(also, holders(ctx, r.masters, r.connect, also))
	}
	if what = fmt.Sprintf("%q is held by another", s.key); s.state != held && len(r.also) > 0 {
		what = fmt.Sprintf("%q, or a key beside it, is held by another", key)
	}
	switch {
	case s.state == unknown:
		return what, "nobody knows by whom: " + s.tooFew()
	case s.state == free:
		return what, "by nobody for long: others try to take it, or it was just released"
	case r.shared && s.sharing > 0:
		return what, fmt.Sprintf("by %s: a run without --shared waits for them, and goes first", s.holder())
	case s.left() < 0:
		return what, fmt.Sprintf("by %s, %s", s.holder(), leftText(s.left()))
	}
	return what, fmt.Sprintf("by %s, %s unless it is renewed", s.holder(), leftText(s.left()))
}

func (r *runner) otherPermits(ctx context.Context, key string) (what, who string) {
	a := newAllotment(key, r.permits, permits(ctx, r.masters, r.connect, key, r.permits))
	what = fmt.Sprintf("none of %s of %q is free", plural(r.permits, "permit"), key)
	switch a.state {
	case unknown:
		return what, "nobody knows who holds them: " + a.tooFew()
	case free:
		return what, "not for long: others try to take them, or one was just released"
	}
	return what, a.holder() + " unless it is renewed"
}

// supervise returns when the command has ended. It ends it if the lock is lost.
func (r *runner) supervise(p *process, held context.Context) (end result) {
	var (
		lost   = held.Done()    // nil once that is known
		asked  time.Time        // when somebody last asked it to end
		over   bool             // it has ended, but perhaps not all that it has started
		killed bool             // all of it was killed
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
			// If the signal was long ago, it was not meant to end the command: SIGHUP
			// often means to reload.
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

// release releases the lock. Masters that are not reached let it expire.
func (r *runner) release() error {
	err := r.mutex.Unlock(context.Background())
	switch {
	case err == nil:
		r.note("%s is released", r.name)
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
