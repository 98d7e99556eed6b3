package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/spf13/cobra"
)

// A taker takes a lock, as its flags say, and releases it.
type taker struct {
	fleet    fleet
	ttl      time.Duration
	wait     time.Duration // for the lock, and for a majority of the masters
	left     time.Duration // of wait
	lifetime time.Duration
	owner    string
	command  string // ours: "run"

	restartGuard time.Duration

	also    []string // further keys
	shared  bool
	permits int // 0 for a lock that has none

	fence    bool // REDLOCK_FENCE is required
	numbered bool // ... or at least wanted

	minHold time.Duration // that the lock is left on the masters
	since   time.Time     // when it was taken

	noWait     bool
	heldStatus int
	quiet      bool // it says nothing if the lock is held
	verbose    bool

	masters []string // of the fleet
	connect conn.Options
	mutex   *redlock.Mutex
	name    string // of the lock, as the user reads it
	witness witness
	signals chan os.Signal
}

// forever is a --wait without end.
const forever time.Duration = math.MaxInt64

// A bound is a flag's value: a duration, or forever.
type bound time.Duration

func (b *bound) Set(s string) (err error) {
	if s == "forever" {
		*b = bound(forever)
		return nil
	}
	d, err := time.ParseDuration(s)
	*b = bound(d)
	return err
}

func (b *bound) String() string {
	if d := time.Duration(*b); d != forever {
		return d.String()
	}
	return "forever"
}

func (b *bound) Type() string { return "duration" }

// register adds the flags of all that take a lock.
func (r *taker) register(cmd *cobra.Command) {
	r.command = cmd.Name()
	r.fleet.register(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&r.ttl, "ttl", 10*time.Second, "how long the lock outlives us if we die; it is renewed every third of it")
	flags.DurationVar(&r.restartGuard, "restart-guard", 0, "the longest TTL that anybody uses on these masters: one that was started less than this ago does not vote; 0 turns that off (default: the --ttl)")
	flags.StringVar(&r.owner, "owner", "", "`name` under which others see who holds the lock (default: redlock-"+r.command+"@host:pid)")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "say on stderr what happens to the lock: whom we wait for, when it is taken, not renewed and released, and when a master fails")
}

// registerWait adds the flags of those that can give up.
func (r *taker) registerWait(cmd *cobra.Command) {
	flags := cmd.Flags()
	r.wait = 30 * time.Second
	flags.VarP((*bound)(&r.wait), "wait", "w", "how long to wait for the lock; 0 means not at all, forever without end")
	flags.BoolVarP(&r.noWait, "no-wait", "n", false, "do not wait for the lock, as --wait 0")
	flags.IntVarP(&r.heldStatus, "conflict-exit-code", "E", exitHeld, "exit `status` if the lock is held by another")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing if the lock is held by another, only exit")
	cmd.MarkFlagsMutuallyExclusive("wait", "no-wait")
}

// registerKind adds the flags that say what kind of lock it is.
func (r *taker) registerKind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&r.fence, "fence", false, "fail if there can be no REDLOCK_FENCE; --fence=false asks for none (default: it is left out with --permits, and where the user may not use its key)")
	flags.StringArrayVar(&r.also, "also", nil, "lock this `KEY`, too, all or none; can be repeated")
	flags.BoolVar(&r.shared, "shared", false, "share the lock with other readers, which exclude a run without --shared")
	flags.IntVar(&r.permits, "permits", 0, "let `N` hold the lock at a time, 1 to 1000")
}

// checkFlags checks the flags, and sets those that were left out.
func (r *taker) checkFlags(cmd *cobra.Command) error {
	flags := cmd.Flags()
	if r.noWait {
		r.wait = 0
	}
	switch {
	case r.heldStatus < 0 || r.heldStatus > 255:
		return usageError("", "-E %d is no exit status: those are 0 to 255", r.heldStatus)
	case min(r.wait, r.lifetime, r.restartGuard, r.minHold) < 0:
		return usageError("", "--wait, --min-hold, --max-lifetime and --restart-guard cannot be below zero")
	}
	if err := r.guard(flags.Changed("restart-guard")); err != nil {
		return err
	}
	if err := r.checkKind(flags.Changed("permits")); err != nil {
		return err
	}
	r.numbered = r.fence || !flags.Changed("fence") && r.permits == 0
	return nil
}

// life is for how long the masters have the lock: for the TTL, or for the least hold with the drift of
// their clocks, if that is longer.
func (r *taker) life() time.Duration {
	if r.minHold == 0 {
		return r.ttl
	}
	return max(r.ttl, r.minHold+r.minHold/50+time.Second).Round(time.Millisecond)
}

// guard makes our TTL the restart guard, unless one was given. Each run is a new client,
// which has not seen whether a master was restarted: without the guard it would count the
// votes of those that have forgotten a lock.
func (r *taker) guard(given bool) error {
	switch {
	case !given:
		r.restartGuard = max(r.life(), 0)
	case 0 < r.restartGuard && r.restartGuard < r.ttl:
		return usageError("leave it out, and it is the --ttl; or give the longest TTL of all; or 0, which turns it off",
			"--restart-guard %v is below the --ttl of %v: a master that was started %v ago may have forgotten a lock of %v",
			r.restartGuard, r.ttl, r.restartGuard, r.ttl)
	case 0 < r.restartGuard && r.restartGuard < r.life():
		return usageError("leave it out, and it is the --min-hold, and a little more; or give the longest of all; or 0, which turns it off",
			"--restart-guard %v is too short for a --min-hold of %v: a master that was started %v ago may have forgotten such a lock",
			r.restartGuard, r.minHold, r.restartGuard)
	}
	return nil
}

// checkKind checks what kind of lock the flags ask for. The library does, too, but only when
// the masters are connected, and it does not know the flags.
func (r *taker) checkKind(permits bool) error {
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
	case r.shared && r.minHold > 0:
		return usageError("", "--shared and --min-hold do not go together: readers hold the lock together, and writers wait")
	case r.shared && len(r.also) > 0:
		return usageError("", "--shared and --also do not go together: a shared lock is one on one key")
	}
	return nil
}

// permitOf returns the permit that a token is for: that of the third of four ends in ".3.4".
func permitOf(token string) string {
	parts := strings.Split(token, ".")
	return parts[max(0, len(parts)-2)]
}

// nameOf says what a lock is that was taken under a token.
func (r *taker) nameOf(key, token string) string {
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

// acquire connects to the masters and takes the lock. The client is to be closed.
func (r *taker) acquire(key string) (*redlock.Client, error) {
	client, err := r.connectAll(key)
	if err != nil {
		return nil, err
	}
	if err := r.acquireWith(client, key); err != nil {
		r.close(client)
		return nil, r.notTaken(key, err)
	}
	r.witness.taken(client.Stats().Masters)
	token := r.mutex.Token()
	r.name = r.nameOf(key, token)
	r.note("%s is ours, as %s", r.name, ownerText(redlock.Holder{Token: redlock.NewSecret(token)}))
	return client, nil
}

// connectAll connects to the masters.
func (r *taker) connectAll(key string) (client *redlock.Client, err error) {
	r.witness.verbose = r.verbose
	r.witness.others = func() (what, who string) { return r.others(key) }
	cfg, err := r.config()
	if err != nil {
		return nil, err
	}
	// From here on we release the lock before a signal ends us.
	r.signals = make(chan os.Signal, 16)
	signal.Notify(r.signals, passedOn()...)

	err = r.interruptible(func(ctx context.Context) (err error) {
		client, err = r.open(ctx, cfg)
		return err
	})
	if err != nil {
		return nil, r.notTaken(key, err)
	}
	r.witness.opened(client.Stats().Masters)
	return client, nil
}

// close closes the client. That its connections end is no failure of the masters.
func (r *taker) close(client *redlock.Client) {
	r.witness.silence()
	client.Close()
}

func (r *taker) acquireWith(client *redlock.Client, key string) error {
	r.name, r.mutex = key, client.NewMutex(key, r.ttl, r.options()...)
	if r.wait > 0 && !r.quiet {
		r.warnOfParent(key)
	}
	err := r.interruptible(r.take)
	if r.numbered && !r.fence && refused(err, userRefused) {
		r.numbered = false
		r.mutex = client.NewMutex(key, r.ttl, r.options()...)
		if err = r.interruptible(r.take); !refused(err, userRefused) {
			counter := "the key {" + key + "}:fence"
			if len(r.also) > 0 {
				counter = "{KEY}:fence of each key"
			}
			complain("there is no REDLOCK_FENCE: the user may not use "+counter,
				"let it (ACL SETUSER … ~{…}:fence), or ask for none with --fence=false")
		}
	}
	r.since = time.Now()
	return err
}

// warnOfParent says that we wait for a lock that is held by the redlock that runs us.
func (r *taker) warnOfParent(key string) {
	if os.Getenv(tokenVariable) == "" || r.permits > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, key := range append([]string{key}, r.also...) {
		if s := newStanding(key, holders(ctx, r.masters, r.connect, key)); s.byParent() && !(r.shared && s.sharing > 0) {
			complain(fmt.Sprintf("waiting: %q is held", key), "by "+parentText)
		}
	}
}

const (
	tokenVariable = "REDLOCK_TOKEN"
	parentText    = "the redlock that runs us: it is not free before that command has ended"
)

// byParent reports whether the redlock that runs us holds the lock.
func (s *standing) byParent() bool {
	token := redlock.NewSecret(os.Getenv(tokenVariable))
	if token.IsZero() || s.state != held {
		return false
	}
	return s.leader.Token == token ||
		slices.ContainsFunc(s.readers, func(r claim) bool { return r.Token == token && r.votes >= s.quorum })
}

// open connects to a majority of the masters. While too few answer it tries again, for as
// long as wait allows; it leaves in left what remains of that.
func (r *taker) open(ctx context.Context, cfg redlock.Config) (*redlock.Client, error) {
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
		if r.left != forever {
			r.left -= time.Since(began)
		}
		if r.left <= 0 {
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

// config reads the fleet's flags and files.
func (r *taker) config() (_ redlock.Config, err error) {
	if r.masters, err = r.fleet.addresses(); err != nil {
		return redlock.Config{}, err
	}
	if r.connect, err = r.fleet.options(); err != nil {
		return redlock.Config{}, err
	}
	cfg := clientConfig(r.masters, r.connect, r.command)
	cfg.Owner, cfg.RestartGuard, cfg.Observer = r.owner, r.restartGuard, r.witness.observer()
	return cfg, nil
}

func (r *taker) options() (opts []redlock.Option) {
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
	if r.minHold > 0 {
		opts = append(opts, redlock.WithMinHold(r.minHold))
	}
	return opts
}

// What masters say that refuse us until somebody changes something.
const (
	userRefused      = "NOPERM"
	permitsDisagreed = "PERMITS"
)

// refused reports whether so many masters refuse us with the code that there is no quorum.
func refused(err error, code string) bool {
	var round *redlock.RoundError
	if !errors.As(err, &round) || !errors.Is(err, redlock.ErrNoQuorum) {
		return false
	}
	n := 0
	for _, v := range round.Votes {
		var reply *mux.ReplyError
		if errors.As(v.Err, &reply) && reply.Code == code {
			n++
		}
	}
	return 2*n >= len(round.Votes)
}

// take takes the lock.
func (r *taker) take(ctx context.Context) error {
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
func (r *taker) interruptible(f func(ctx context.Context) error) error {
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
				r.release(false)
			}
			return s
		}
	}
}

// notTaken makes a failure of the error that kept us from taking the lock.
func (r *taker) notTaken(key string, err error) error {
	var (
		s     signalled
		round *redlock.RoundError
	)
	switch {
	case errors.As(err, &s):
		return &failure{status: statusOf(s.Signal)}
	case refused(err, permitsDisagreed):
		return usageError("everybody must give the same --permits; a new one counts when all runs with the old one have ended, and their TTL and two minutes have passed",
			"%w", err)
	case errors.Is(err, redlock.ErrHeld):
		if r.quiet {
			return &failure{status: r.heldStatus}
		}
		who, remedy := r.others(key)
		return &failure{r.heldStatus, errors.New(who), remedy}
	case undecided(err):
		return &failure{exitNoQuorum, fmt.Errorf("no answer within %v: %w", r.wait, err), doctorRemedy}
	case inQuarantine(err):
		return &failure{exitNoQuorum, err, "a longer --wait outlasts that; masters that persist every write (appendfsync always) vote at once: say so with --durable"}
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
func (r *taker) others(key string) (what, who string) {
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
	case s.byParent():
		return what, "by " + parentText
	case s.state == free:
		return what, "by nobody for long: others try to take it, or it was just released"
	case r.shared && s.sharing > 0:
		return what, fmt.Sprintf("by %s: a run without --shared waits for them, and goes first", s.holder())
	case s.left() < 0:
		return what, fmt.Sprintf("by %s, %s", s.holder(), leftText(s.left()))
	}
	return what, fmt.Sprintf("by %s, %s unless it is renewed", s.holder(), leftText(s.left()))
}

func (r *taker) otherPermits(ctx context.Context, key string) (what, who string) {
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

// release releases the lock, or leaves it for its least hold. Masters that are not reached let it
// expire.
func (r *taker) release(stay bool) error {
	unlock := r.mutex.UnlockNow
	if stay {
		unlock = r.mutex.Unlock
	}
	stays := stay && time.Since(r.since) < r.minHold
	err := unlock(context.Background())
	switch {
	case err == nil && stays:
		r.note("%s is left until %v have passed since it was taken", r.name, r.minHold)
	case err == nil:
		r.note("%s is released", r.name)
	case errors.Is(err, redlock.ErrNoQuorum):
		complain(err.Error(), fmt.Sprintf("the lock is free after its TTL, within %v", max(r.ttl, r.minHold)))
	}
	return err
}

func (r *taker) note(format string, args ...any) {
	if r.verbose {
		complain(fmt.Sprintf(format, args...), "")
	}
}
