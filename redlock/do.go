package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/internal/held"
)

// FenceFrom returns the fence of the lock whose context this is: the context that Do's function
// gets, or Acquire's or KeepAlive's, or one derived from either. It is 0 if the lock has none ([WithFence]),
// and for any other context. If one lock is taken inside another, the inner one counts.
func FenceFrom(ctx context.Context) uint64 { return held.FenceFrom(ctx) }

// Do holds the lock while fn runs. It waits for the lock as [Mutex.Lock] does, for as long as
// [WithWait] says or until ctx ends, and keeps it alive as [Mutex.KeepAlive] does. It releases
// the lock after fn has returned or panicked, even if ctx has ended, but not if the client is
// closed.
//
// The context that fn gets ends with ctx, and no later than the moment when the lock stops being
// provably ours. Then its cause is ErrLost. fn should return when its context ends: another may
// have the lock, or wait for this holder to let go of a lock that was revoked ([Client.Revoke]).
//
// A Do within fn, with that context and the same key, fails at once with ErrHeld: locks are not
// reentrant (see Lock).
//
// With [WithMinHold] the lock stays for a while if fn returned nil.
//
// Do returns the error of taking the lock, or that of fn. If the lock was lost while fn ran, the
// error wraps ErrLost too, even if fn returned nil, and even if only the release has found the
// loss. If the maximum lifetime has passed, the error wraps ErrMaxLifetime in the same way. If the
// release finds no quorum, and a master says that it has lost the key, the error wraps ErrNoQuorum:
// another may have had the lock. A release that masters only fail to confirm is no error: the key
// ends with its TTL.
func (c *Client) Do(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context) error, opts ...Option) (err error) {
	mustContext(ctx)
	m, o, err := c.newMutex(key, ttl, opts)
	if err == nil && fn == nil { // after the lock was taken is too late
		err = m.refused(errors.New("Do is given no function: it is nil"))
	}
	if err != nil {
		return err
	}
	k, err := m.take(ctx, &o, "Do")
	if err != nil {
		return err
	}
	stay := false // the work is done
	defer func() { err = m.end(ctx, k, err, stay) }()
	err = fn(k)
	stay = err == nil
	return err
}

// Acquire takes the lock, and keeps it alive until release is called. It is for work that is no function of its
// own; [Client.Do] cannot be left without a release. It waits for the lock as Do does. The context that it returns is
// that of Do's function: work must end when it ends.
//
//	held, release, err := client.Acquire(ctx, "lock:orders:42", 10*time.Second)
//	if err != nil {
//		return err
//	}
//	defer release() // also if the work panics
//	...
//	return release()
//
// release ends the context and releases the lock, as [Mutex.Unlock] does, with [WithMinHold], too, whatever has become of
// the work. It returns what Do would return of a function without an error: nil, or an error that wraps ErrLost or
// ErrMaxLifetime, or ErrNoQuorum if another may have had the lock. Called again, it returns the same, and does nothing.
// [Client.Shutdown] waits for it.
//
// If the lock cannot be had, Acquire returns ctx as it was, and no release.
func (c *Client) Acquire(ctx context.Context, key string, ttl time.Duration, opts ...Option) (held context.Context, release func() error, err error) {
	mustContext(ctx)
	m, o, err := c.newMutex(key, ttl, opts)
	if err != nil {
		return ctx, nil, err
	}
	k, err := m.take(ctx, &o, "Acquire")
	if err != nil {
		return ctx, nil, err
	}
	return k, sync.OnceValue(func() error { return m.end(ctx, k, nil, true) }), nil
}

// take takes the lock for a Do or an Acquire, and keeps it alive. Then end is to be called.
func (m *Mutex) take(ctx context.Context, o *options, by string) (k *held.KeepAlive, err error) {
	if err := m.lockWithin(ctx, o); err != nil {
		return nil, err
	}
	c, kept := m.client, false
	c.busy.Add(1) // while the lock is held: Shutdown knows of one or the other
	defer func() {
		if !kept { // also if a context panics
			err = m.end(ctx, nil, err, false)
		}
	}()
	k = c.held.KeepAlive(ctx, &m.hold, by)
	ended := k.Err()
	if ended == nil {
		kept = true
		return k, nil
	}
	switch why := k.Why(); {
	case why != nil:
		return nil, why
	case ctx.Err() == nil && c.isShut():
		return nil, unasked(opLock, m.spec().Key, ErrClosed, "")
	}
	return nil, unasked(opLock, m.spec().Key, nil, "").endedBy(ctx, ended)
}

// end releases the lock, and ends its KeepAlive, k, if it has one. err is how the work has ended: end adds what has become of
// the lock. The cause of the context of the work is not asked: it can be that of another lock, in which this one was taken.
func (m *Mutex) end(ctx context.Context, k *held.KeepAlive, err error, stay bool) error {
	defer m.client.busy.Add(-1)
	released := false
	defer func() {
		if !released { // a context has panicked
			m.unlock(held.EndedContext, false)
		}
	}()
	var why error
	if k != nil {
		why = k.Why()
	}
	released = true
	e := m.unlock(context.WithoutCancel(ctx), stay)
	for _, end := range [...]error{ErrLost, ErrMaxLifetime} {
		if errors.Is(why, end) && !errors.Is(err, end) {
			err = errors.Join(err, why)
		}
	}
	switch {
	case e == nil, errors.Is(err, ErrLost):
	case e.reason == ErrNotHeld:
		lost := *e
		if lost.reason = ErrLost; !e.revoked() {
			lost.under = ErrNotHeld
		}
		err = errors.Join(err, &lost)
	case e.reason == ErrNoQuorum && slices.ContainsFunc(e.Votes, func(v Vote) bool { return v.Verdict == votedNo }):
		err = errors.Join(err, e)
	}
	return err
}

// lockWithin is Lock, but waits no longer than the options allow.
func (m *Mutex) lockWithin(ctx context.Context, o *options) error {
	if !o.bounded {
		return m.Lock(ctx)
	}
	waiting, cancel := context.WithTimeout(ctx, o.wait)
	unknown := false // the lock is taken, and nobody knows of it
	defer func() {
		if unknown { // ctx has panicked, as waiting was taken from it
			m.unlock(held.EndedContext, false)
		}
	}()
	defer func() {
		cancel()
		unknown = false
	}()
	err := m.lockUntil(ctx, waiting, o)
	unknown = err == nil
	return err
}
