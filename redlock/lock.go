package redlock

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// Lock takes the lock, and waits for it until ctx is done.
//
// Callers of one client that wait for the same key wait in a local queue. Only the head of that
// queue contends with other processes. When the lock is unlocked in this client, the head of the
// queue has it at once, or tries at once (Config.Handovers). docs/how-it-works.md says how
// Lock waits.
//
// Locks are not reentrant. If ctx is derived from the context of a lock on the same key (that of
// Do, Acquire, Lead or KeepAlive, of this client), and that lock is still held, Lock would wait for its own
// caller. It fails at once with ErrHeld, and the error says so. A reader within a reader gets the
// lock, but waits if a writer has come in between. A permit within a permit gets one, as long as
// ctx does not belong to all of them. A Lock with any other context waits, also in the goroutine
// that holds the lock.
//
// Lock keeps trying while too few masters answer, as they may be back before ctx is done. It
// returns at once if so many masters refuse this client (NOPERM, NOAUTH, WRONGPASS, NOFENCE,
// NOSHARED) that no quorum is possible: a person has to change something first. If others have
// another number of permits (PERMITS), Lock tells the Observer of the attempt that has found that
// out, and waits until they are gone.
//
// The error is a *RoundError. It says why the lock could not be taken, as far as that is known
// (ErrHeld, ErrNoQuorum), and wraps the context's error. If ctx ran out of time while the lock is
// held, Lock asks the masters who holds it, for at most 50 ms, or four round trips if that is
// longer. RoundError.HeldBy and HeldFor have the answer. If ctx was cancelled, Lock returns at
// once.
func (m *Mutex) Lock(ctx context.Context) error { return m.lockUntil(ctx, ctx, nil) }

// lockUntil is Lock, but if the options bound it, it waits only until waiting ends, which ends with ctx. That does not cut
// an attempt short.
func (m *Mutex) lockUntil(ctx, waiting context.Context, o *options) error {
	mustContext(ctx)
	m.mustClient()
	return asError(m.lock(ctx, waiting, o))
}

// outOfTime returns what the caller of a Lock is told that has waited for as long as the options allow: the error without
// that of the context, whose end is no news to the caller, or how one more attempt has gone. The options are nil if
// nothing but ctx bounds the Lock.
func (m *Mutex) outOfTime(ctx context.Context, o *options, e *RoundError) *RoundError {
	if o == nil || e == nil || e.ended == nil {
		return e
	}
	reason, last := e.reason, *e      // the Observers may read e
	if err := ctx.Err(); err != nil { // perhaps it has ended after the bound
		return last.endedBy(ctx, err)
	}
	switch {
	case e.reason == nil && e.detail == secondPending: // the second lock was held: had its system failed, the wait for it would have ended
		reason = ErrHeld
	case e.reason == nil, e.reason == ErrHeld && !e.named && e.detail != heldByUs: // no attempt was finished, or perhaps nobody has it
		return m.tryLock(ctx)
	}
	last.reason, last.ended, last.cause, last.late = reason, nil, nil, fmt.Sprintf("waited for %v", o.wait)
	return &last
}

// lock is lockUntil. If others have another number of permits, it leaves the queues until they agree.
func (m *Mutex) lock(ctx, waiting context.Context, o *options) (e *RoundError) {
	c := m.client
	if err := waiting.Err(); err != nil {
		return m.outOfTime(ctx, o, unasked(opLock, m.spec().Key, nil, "").endedBy(waiting, err))
	}
	if c.isShut() {
		return unasked(opLock, m.spec().Key, ErrClosed, "")
	}
	if e := m.heldWithin(ctx); e != nil {
		return e
	}
	call, _ := c.waits.Get().(*wait)
	if call == nil {
		call = new(wait)
	}
	call.mutex = m
	defer call.cleanUp()
	if m.turn != nil {
		err := call.takeTurn(ctx, waiting)
		last := m.turn.failure.Load() // of the Lock that is ahead
		if err == nil {
			defer m.turn.pass()
			if m.hold.Taken(c.now) {
				call.begins(ctx)
				err = m.untilUnlocked(waiting)
			}
		}
		if err != nil {
			if m.hold.Taken(c.now) {
				last = byItself(m.spec().Key)
			}
			e = m.waitError(waiting, err, last, nil, false, nil)
		}
	}
	for e == nil {
		e = call.queued(ctx, waiting, o)
		if e == nil || e.final() || !m.standsAside(e) || e.ended != nil || o != nil && waiting.Err() != nil {
			break
		}
		call.again()
		call.begins(ctx)
		until := m.untilAgreed
		if e.detail == heldByItself { // a TryLock was faster, or an Extend of a lock that was handed over
			until = m.untilUnlocked
		}
		if err := until(waiting); err != nil {
			e = m.outOfTime(ctx, o, m.waitError(waiting, err, e, nil, false, nil))
			break
		}
		e = nil
	}
	call.acquired = e == nil // perhaps by that one more attempt
	call.finish(waiting, e)
	call.acquired = false // the caller knows that it is taken
	return e
}

// queued tries and waits in the queues. It also returns if others have another number of permits.
func (w *wait) queued(ctx, waiting context.Context, o *options) *RoundError {
	m, c := w.mutex, w.mutex.client
	waiter, first, clear := c.localQueues.Join(m.spec())
	w.waiter = waiter
	w.next.mutex, w.next.waitsSecond, w.next.leads = m, true, o != nil // else it may as well wait for a holder
	// A newcomer to a contended key looks first. Otherwise the client that has released the lock
	// would always overtake the waiters that were notified of the release.
	try := (first || m.spec().Reader && clear) && !(c.looks.Contended(c.now(), m.spec().Names()...) && c.looks.Tracked())
	w.settleFirst = first && !try && !w.usesGlobalQueue() // else the queue has the order
	e, err := w.lock(ctx, waiting, try, first)
	if e = w.end(waiting, e, err); err == nil { // it is the attempt's, and was told
		return e
	}
	return m.outOfTime(ctx, o, e)
}

// takeTurn waits until the Locks of this Mutex that came before have ended.
func (w *wait) takeTurn(ctx, waiting context.Context) error {
	select {
	case w.mutex.turn.taken <- struct{}{}:
		return nil
	default:
	}
	w.begins(ctx)
	select {
	case w.mutex.turn.taken <- struct{}{}:
		return nil
	case <-waiting.Done():
		return cmp.Or(waiting.Err(), context.Canceled) // that of a context which is used again says nothing
	case <-w.mutex.client.shut:
		return ErrClosed
	}
}

// untilUnlocked waits until the Mutex has no lock.
func (m *Mutex) untilUnlocked(ctx context.Context) error {
	const pause = 10 * time.Millisecond
	c := m.client
	for m.hold.Taken(c.now) {
		if err := c.pause(ctx, pause, c.shut, ErrClosed); err != nil {
			return err
		}
	}
	return nil
}

// untilAgreed waits until a quorum of the masters knows of no other number of permits. It is in
// no queue: clients with the right number need not wait for it. It only asks. An attempt would
// leave its own number on masters that lack the others', and would keep it there, in the way of
// those clients.
func (m *Mutex) untilAgreed(ctx context.Context) error {
	c := m.client
	k := c.round.Take()
	defer c.round.Put(k)
	for {
		if err := c.pause(ctx, kind.AgreedPause+rand.N(kind.AgreedPause), c.shut, ErrClosed); err != nil {
			return err
		}
		k.Agrees(m.spec())
		switch err := c.round.Mux.Do(ctx, &k.Op); {
		case err == nil && quorum.Count(k.Op.Votes, nil).Yes >= quorum.Majority(len(c.masters)):
			return nil
		case err != nil && err != mux.ErrTimeout:
			return ended(err)
		}
	}
}
