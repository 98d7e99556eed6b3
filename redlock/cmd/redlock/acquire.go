package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/census"
)

// An acquirer takes a lock, as its flags say, and releases it.
type acquirer struct {
	given    mastersFlags
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

	record   string           // file of the flight record
	recorder *flight.Recorder // nil without

	masterSet // at the start; see inForce
	reader    reader
	keyring   *keyring // nil if no file can change
	mutex     *redlock.Mutex
	name      string // of the lock, as the user reads it
	monitor   monitor
	signals   chan os.Signal
}

// permitOf returns the permit that a token is for: that of the third of four ends in ".3.4".
func permitOf(token string) string {
	parts := strings.Split(token, ".")
	return parts[max(0, len(parts)-2)]
}

// nameOf says what a lock is that was taken under a token.
func (r *acquirer) nameOf(key, token string) string {
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
func (r *acquirer) acquire(key string) (*redlock.Client, error) {
	client, err := r.connectAll(key)
	if err != nil {
		return nil, err
	}
	if err := r.acquireWith(client, key); err != nil {
		r.close(client)
		return nil, r.notTaken(key, err)
	}
	r.monitor.acquired(client.Stats().Masters)
	token := r.mutex.Token()
	r.name = r.nameOf(key, token)
	r.note("%s is ours, as %s", r.name, ownerText(census.Holder{Token: redlock.NewSecret(token)}))
	return client, nil
}

// connectAll connects to the masters.
func (r *acquirer) connectAll(key string) (client *redlock.Client, err error) {
	r.monitor.verbose, r.monitor.watched = r.verbose, !r.quiet && isTerminal(os.Stderr)
	r.monitor.others = func() (what, who string) { return r.others(key) }
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
	r.monitor.opened(client.Stats().Masters)
	r.opened(client)
	return client, nil
}

// close closes the client. That its connections end is no failure of the masters.
func (r *acquirer) close(client *redlock.Client) {
	r.monitor.silence()
	if r.keyring != nil {
		r.keyring.end()
	}
	client.Close()
	if r.recorder != nil {
		r.recorder.Close()
	}
}

// startRecord makes the client one that is recorded, if that is asked for. What the environment asks for is no reason not
// to take the lock.
func (r *acquirer) startRecord(cfg redlock.Config) (_ redlock.Config, err error) {
	file, given := r.record, r.record != ""
	if !given {
		file = os.Getenv("REDLOCK_FLIGHT")
	}
	if file == "" {
		return cfg, nil
	}
	if r.recorder, err = flight.New(flight.Options{File: file}); err == nil {
		return r.recorder.Attach(cfg)
	}
	asks := "--flight"
	if !given {
		asks = "REDLOCK_FLIGHT"
	}
	complain("nothing is recorded, as "+asks+" asks for: "+strings.TrimPrefix(err.Error(), "flight: "), "")
	return cfg, nil
}

func (r *acquirer) acquireWith(client *redlock.Client, key string) error {
	if err := client.CheckMutex(key, r.ttl, r.options()...); err != nil {
		return err
	}
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

// open connects to a majority of the masters. While too few answer it tries again, for as
// long as wait allows; it leaves in left what remains of that.
func (r *acquirer) open(ctx context.Context, cfg redlock.Config) (*redlock.Client, error) {
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
		r.monitor.lacks(lacking, r.left)
		select {
		case <-time.After(min(reopenEvery, r.left)):
		case <-ctx.Done():
		}
	}
}

// reopenEvery is the pause between two tries to reach a majority.
const reopenEvery = 200 * time.Millisecond

// config reads the flags and files.
func (r *acquirer) config() (_ redlock.Config, err error) {
	if r.masterSet, err = r.given.masterSet(); err != nil {
		return redlock.Config{}, err
	}
	if r.keyring = newKeyring(&r.given, r.masterSet); r.keyring != nil {
		r.keyring.note = r.note
		r.connect.Credentials = r.keyring.credentials
	}
	cfg := r.clientConfig(r.command)
	cfg.Owner, cfg.RestartGuard, cfg.Observers = r.owner, r.restartGuard, []redlock.Observer{r.monitor.told}
	if cfg.Durable = r.durable && r.restartGuard > 0; r.durable && !cfg.Durable && r.given.flags.Changed("durable") {
		return cfg, usageError("leave --restart-guard 0 out, and it is the --ttl", "--durable needs a --restart-guard: masters that are new, or have a new disk, must not vote before that has passed")
	}
	return r.startRecord(cfg)
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
func (r *acquirer) take(ctx context.Context) error {
	if r.wait <= 0 {
		return r.mutex.TryLock(ctx)
	}
	r.monitor.setWait(r.left)
	ctx, cancel := context.WithTimeoutCause(ctx, r.left, fmt.Errorf("--wait %v is over", r.wait))
	defer cancel()
	return r.mutex.Lock(ctx)
}

// interruptible calls f with a context that a signal ends. If a signal came, it releases
// a lock that f has taken, and the error is a signalled.
func (r *acquirer) interruptible(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	for {
		select {
		case s := <-r.signals:
			if r.rereads(s) {
				continue
			}
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
func (r *acquirer) notTaken(key string, err error) error {
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
		return &failure{exitNoQuorum, err, "a longer --wait outlasts that; masters that persist every write (appendfsync always) and were restarted with their disks need not wait: say so with --durable"}
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

// release releases the lock, or leaves it for its least hold. Masters that are not reached let it
// expire.
func (r *acquirer) release(stay bool) error {
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

func (r *acquirer) note(format string, args ...any) {
	if r.verbose {
		complain(fmt.Sprintf(format, args...), "")
	}
}

// variables are what one who has the lock can use it with.
func (r *acquirer) variables(token string, fence uint64) (all []string) {
	if token != "" {
		all = append(all, tokenVariable+"="+token)
	}
	if fence != 0 {
		all = append(all, fmt.Sprint("REDLOCK_FENCE=", fence))
	}
	if r.permits > 0 {
		all = append(all, "REDLOCK_PERMIT="+permitOf(token))
	}
	return all
}
