package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// A Mutex is a lock on one key, or on several ([WithKeys]). [Client.NewMutex] makes it; the
// methods of a zero Mutex panic if they need the masters. Any number of goroutines may use it at
// once, but it is one holder. If two goroutines call Lock on it, the second waits like any other
// contender for the key; with readers, or several permits, it is in no other's way. Unlock releases
// what the Mutex holds, whichever goroutine has taken it. So give each holder a Mutex of its own.
//
// TryLock, Lock, Extend and Unlock on a Mutex that is reused allocate nothing if they succeed and
// the key has at most 512 bytes (several keys together: somewhat less), as no large buffers are
// kept. This is also so while a master hangs, and in a Lock while others of this client contend.
// There are exceptions. Over TLS, crypto/tls allocates when it reads a record. A Lock that waits
// allocates an error for each attempt that is refused, the names of the slots if it is for
// permits, the name of its predecessor in another process, and what the context package needs to
// wake it, if it reads for the others meanwhile.
type Mutex struct {
	hold   held.Lock
	client *Client // see mustClient

	turn *turn // nil where there is one holder, and for a Mutex that its caller alone has
}

// A turn is had by one Lock of a Mutex whose lock others can have, too. The other Locks wait for it outside the queues, in the order
// in which they came: what their own Mutex has is in nobody else's way.
type turn struct {
	taken   chan struct{}              // it has an element while a Lock has the turn
	failure atomic.Pointer[RoundError] // of the last attempt of that Lock
}

// pass ends the turn.
func (t *turn) pass() {
	t.failure.Store(nil)
	<-t.taken
}

// NewMutex returns a lock on a key. It is not taken yet. The TTL is how long the lock outlives a
// holder that has died. It is rounded down to whole milliseconds, of which it has at least 10, must
// exceed the drift, and must not exceed Config.RestartGuard if that is set. A key has 1 to 16,384
// bytes, and none of the names that are kept beside a lock (see the package comment).
//
// NewMutex panics if the key, the TTL or an option is invalid, or if options do not go together. Who
// writes the program writes these, and a lock that is seldom taken would fail only when it is. For
// what comes from elsewhere, [Client.CheckMutex] says it before. [Client.Do], [Client.Acquire] and
// [Client.Lead] return it as an error.
//
// A long TTL has a cost: a master that restarts does not vote until the longest TTL that this
// client has used has passed. A TTL counts as used from its first attempt on.
//
// NewMutex asks the masters nothing. The client keeps nothing of a Mutex that is not held, so you
// can drop it. Reusing one saves only its allocation.
func (c *Client) NewMutex(key string, ttl time.Duration, opts ...Option) *Mutex {
	m, err := c.ownMutex(key, ttl, opts)
	if err != nil {
		panic("redlock: NewMutex: " + strings.TrimPrefix(err.Error(), mutexPrefix))
	}
	return m
}

// CheckMutex returns an error if [Client.NewMutex] would panic. It is for keys, TTLs and options
// that come from a user or a file. It is no *RoundError, as no master was asked.
func (c *Client) CheckMutex(key string, ttl time.Duration, opts ...Option) error {
	_, err := c.ownMutex(key, ttl, opts)
	return err
}

// ownMutex makes a Mutex whose user waits for it by himself.
func (c *Client) ownMutex(key string, ttl time.Duration, opts []Option) (*Mutex, error) {
	m, o, err := c.newMutex(key, ttl, opts)
	if err == nil && o.bounded {
		err = m.refused(errors.New("WithWait is for Client.Do and Client.Acquire: Lock waits until its context ends"))
	}
	if s := m.spec(); s.Reader || s.Slots() > 1 {
		m.turn = &turn{taken: make(chan struct{}, 1)}
	}
	return m, err
}

// newMutex makes a Mutex, and also returns what the options have set, and why it cannot be used.
func (c *Client) newMutex(key string, ttl time.Duration, opts []Option) (*Mutex, options, error) {
	c.check()
	given := ttl
	ttl = ttl.Truncate(time.Millisecond) // which is what the masters count in
	o := chosen(opts)
	both := new(struct {
		Mutex
		token []byte
	})
	m := &both.Mutex
	m.client = c
	spec := m.hold.Init(&both.token, o.lifetime)
	*spec = round.Spec{Kind: kind.Plain{}, Traits: &round.Ordinary, Key: key, Term: quorum.NewTerm(ttl, c.cfg.DriftFactor), Timeout: c.cfg.roundTimeout(ttl)}
	if c.cfg.Prefix != "" {
		spec.Traits = &round.Traits{Prefixed: c.cfg.Prefix + key}
	}
	if 0 < o.minHold && o.minHold <= maxTTL {
		o.minHold += quorum.NewTerm(o.minHold, c.cfg.DriftFactor).Drift + time.Millisecond - 1
		o.minHold = o.minHold.Truncate(time.Millisecond)
	}
	if o.token != "" {
		m.hold.Know(o.token)
	}
	err := o.invalid
	if len(opts) > 0 {
		if e := o.choose(spec, &c.round.Hints); e != nil {
			err = e
		}
		if _, slot, _ := kind.CutSlot(o.token); slot > 0 {
			m.hold.SetNextSlot(slot - 1)
		}
	}
	guard := c.cfg.RestartGuard
	switch {
	case key == "":
		err = checkKey(key)
	case len(spec.OnMasters()) > maxKey:
		err = checkKey(spec.OnMasters())
	case kind.Reserved(spec.OnMasters()):
		err = errReserved
	case ttl > maxTTL:
		err = fmt.Errorf("TTL %v is beyond a hundred years", ttl)
	case o.minHold > maxTTL:
		err = fmt.Errorf("a least hold of %v, clock drift included, is beyond a hundred years", o.minHold)
	case guard > 0 && o.minHold > guard:
		err = fmt.Errorf("a least hold of %v, clock drift included, is above Config.RestartGuard, %v, which is to be the longest of all", o.minHold, guard)
	case guard > 0 && ttl > guard:
		err = fmt.Errorf("TTL %v is above Config.RestartGuard, %v, which is to be the longest of all", ttl, guard)
	case 0 < given && given < time.Microsecond:
		err = fmt.Errorf("TTL %v is too short for a round: is its unit missing, as in %d*time.Second?", given, given)
	case 0 < given && given < time.Millisecond:
		err = fmt.Errorf("TTL %v is too short for a round: is its unit missing, as in %d*time.Millisecond?", given, given)
	case ttl < minTTL:
		err = fmt.Errorf("TTL %v is too short for a round: %v is the least", given, minTTL)
	case spec.Term.Drift >= ttl:
		err = fmt.Errorf("TTL %v leaves nothing after a clock drift of %v", ttl, spec.Term.Drift)
	}
	if err != nil {
		err = m.refused(err)
	}
	return m, o, err
}

const mutexPrefix = "redlock: mutex "

// refused makes the error of a Mutex that cannot be used.
func (m *Mutex) refused(why error) error {
	return fmt.Errorf(mutexPrefix+"%s: %w", kind.Quoted(m.spec().Key), why)
}

// spec returns what never changes once the Mutex is made.
func (m *Mutex) spec() *round.Spec { return m.hold.Spec() }

// mustClient returns the Mutex's client. It panics if the Mutex was not made by NewMutex.
func (m *Mutex) mustClient() *Client {
	if m.client == nil {
		panic("redlock: a zero Mutex cannot be used: make it with Client.NewMutex")
	}
	return m.client
}

// Format prints the key, and not the token, whatever the verb.
func (m *Mutex) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "redlock.Mutex{%s}", kind.Quoted(m.spec().Key))
}

// Key returns the key; if there are several, the one that NewMutex was given.
func (m *Mutex) Key() string { return m.spec().Key }

// Token returns the token under which the masters know the lock. Another process needs it to
// extend or release the lock ([WithToken]). It is empty while the Mutex is unlocked.
//
// Holders of one client that have the lock one after the other can have one token (see
// Config.Handovers). But no later holder has a token that was returned.
func (m *Mutex) Token() string { return m.hold.Token() }

// Fence returns the number of the lock, which is greater than that of every earlier holder of the
// key. The lock has one if the Mutex was made with [WithFence] or [WithSecond]. It remains when
// the lock expires or is lost, so that the resource can refuse what is written under it. It is 0
// while the Mutex is unlocked, and for a lock that was handed over and not extended yet.
func (m *Mutex) Fence() uint64 { return m.hold.Fence() }

// Held reports whether the lock is valid now: whether Remaining is above 0.
func (m *Mutex) Held() bool { return m.Remaining() > 0 }

// Remaining returns how much is left of the lock's validity. For so long the lock is provably held, if
// the masters' clocks keep their promise (see the package comment). It counts time for which the machine is
// suspended. It is 0 if nothing is left, while the Mutex is unlocked, and for a lock that was handed over and
// not extended yet.
func (m *Mutex) Remaining() time.Duration { return m.hold.Remaining(m.mustClient().now) }

// stale makes the error of a successful attempt whose votes are no longer trusted. The note says
// why. If the client was closed meanwhile, nobody could ask again.
func (m *Mutex) stale(k *round.Call, err error, note string) *RoundError {
	if m.client.isShut() {
		return m.client.failure(opLock, m.spec().Key, k, err, ErrClosed)
	}
	e := m.client.failure(opLock, m.spec().Key, k, err, ErrNoQuorum)
	e.note = note
	return e
}

// Extend gives the lock its full TTL again. It succeeds only while the lock is valid by our
// clock. (If the lock was handed over, only the masters' answers count.) It also repairs the
// lock: it corrects a TTL that was changed, and has a master given the key back that has lost it
// by a restart or a flush. Extend does not wait for that, and the yes of such a master counts
// again once a later Extend or renewal has succeeded. Extend waits for four round trips, or 5 ms
// if that is longer, for masters that have not answered when it is decided, so that they are
// repaired, too.
//
// Its error is a *RoundError that wraps
//
//	ErrNotHeld             the lock is lost: its validity had ended, or too many masters have
//	                       lost the key; or it was revoked, and the error wraps ErrRevoked, too
//	ErrExpired             its validity ended during the round
//	ErrNoQuorum            too few masters answered, or too few whose yes counts (rule 3 of the
//	                       package comment): it stays valid for what Remaining says
//	ErrClosed              the client is closed; likewise
//	the context's error    ctx ended before the masters had decided; likewise
func (m *Mutex) Extend(ctx context.Context) error {
	mustContext(ctx)
	m.mustClient()
	return asError(m.extend(ctx))
}

func (m *Mutex) extend(ctx context.Context) *RoundError {
	c := m.client
	if err := ctx.Err(); err != nil {
		return unasked(opExtend, m.spec().Key, nil, "").endedBy(ctx, err)
	}
	if m.hold.CheckSecond() {
		return unasked(opExtend, m.spec().Key, ErrNotHeld, "its second lock is not taken yet")
	}
	c.guard.Use(m.spec().Life()) // if the lock was handed over, this client may not have used its TTL yet
	was, f := c.held.Extend(ctx, &m.hold)
	switch {
	case was == held.Unlocked:
		return unasked(opExtend, m.spec().Key, ErrNotHeld, "not locked")
	case was.Over():
		e := unasked(opExtend, m.spec().Key, ErrNotHeld, "its validity has ended")
		if m.hold.Revoked() {
			e.under, e.note = ErrRevoked, ""
		}
		return e
	}
	return errorOf(f)
}

// KeepAlive renews the lock, every third of its TTL, until stop is called, the lock is released
// or lost, ctx is done, or the maximum lifetime has passed ([WithMaxLifetime]). It returns at
// once.
//
// The context that it returns is done then. If the lock was lost, the context ends no later than
// the lock's validity by our clock, and its cause (context.Cause) is a *RoundError that wraps
// ErrLost and says how the last renewal, or the second lock, failed. It ends at once if a renewal
// finds that the masters no longer have the key. Once the lock was held for 100 ms, the masters
// notify of a change of its key, and that makes a renewal at once (docs/how-it-works.md has the
// locks and masters where this is not so). Otherwise renewals are repeated until the
// validity ends. Err and Done look at the clock themselves, so they do not depend on a timer,
// which can be late. Contexts that are derived from this one do.
//
// stop ends the renewal and cancels the context. The key then expires with its TTL. (A Sentinel
// failover meanwhile gives it its TTL once more.) Unlock even a lock that was lost, so that
// nothing of it is left on any master.
//
// If the lock is not held, or was handed over and is not extended yet, the context is done from
// the beginning.
func (m *Mutex) KeepAlive(ctx context.Context) (held context.Context, stop context.CancelFunc) {
	mustContext(ctx)
	k := m.mustClient().held.KeepAlive(ctx, &m.hold, "")
	return k, k.Stop
}
