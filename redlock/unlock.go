package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/round"
)

// Unlock releases the lock. The release goes to every master, whatever becomes of ctx: ctx bounds
// only the wait for the answers. A master that cannot be reached gets the release when it is
// back, or its key ends with the TTL. Afterwards the Mutex is unlocked, whatever Unlock returns,
// and its KeepAlives have ended.
//
// If another caller of this client waits for the lock, Unlock may hand it over instead of deleting
// the key (Config.Handovers). The results are the same: nil says that a quorum still had the key
// in a round that began after the call. Unlocks that come close together share a round, so Unlock
// can take two round trips. Such a round may only read the key. So a master that has become a
// replica meanwhile, which would refuse to delete the key, still counts if it has the key.
//
//	what the masters say                  returned
//	anything, and it was known to be lost ErrNotHeld
//	a quorum deleted the key, or has it   nil: the lock was held until now
//	so many had not got it any more
//	that no quorum can have had it        ErrNotHeld
//	neither, and its validity had ended
//	before Unlock was called              ErrNotHeld
//	neither, and ctx ended before         the context's error
//	neither, and it was still valid       ErrNoQuorum
//	not asked: the Mutex is unlocked      ErrNotHeld
//	not asked: the client is closed       ErrClosed
//
// With [WithSecond], Unlock returns ErrSecond in place of nil if the second lock's system has not
// confirmed. With [WithMinHold] it leaves the key until its least time has passed, instead of
// deleting it. The results are the same: nil says that a quorum still had the key. UnlockNow
// deletes it.
//
// After ErrNotHeld, another may have held the lock before Unlock was called, and exclusion may
// have been broken. If the error wraps ErrRevoked, too, the lock was revoked ([Client.Revoke]),
// and nobody else has held it. After ErrNoQuorum or the context's error it is not known whether the
// lock is free. Nor is it known whether another has held it, if a master has said no (Votes). The
// error is a *RoundError.
func (m *Mutex) Unlock(ctx context.Context) error {
	defer mustContext(ctx) // last: the lock is released all the same
	m.mustClient()
	if e := m.unlock(ctx, true); e != nil {
		return e
	}
	return nil
}

// UnlockNow is Unlock, but leaves nothing on the masters if the Mutex was made with
// [WithMinHold]: the next contender finds the lock free. It is for work that has failed.
func (m *Mutex) UnlockNow(ctx context.Context) error {
	defer mustContext(ctx) // last: the lock is released all the same
	m.mustClient()
	if e := m.unlock(ctx, false); e != nil {
		return e
	}
	return nil
}

// Release is Unlock, but waits for no master: it writes the release to all of them, or hands the
// lock over to a waiter of this client, and returns.
// So a lock costs one round trip instead of two. Use it when you can ignore Unlock's result.
//
// There is one connection to each master, and commands keep their order on it. So the next
// attempt of this process, on any Mutex, finds the lock free, unless another contender was
// faster. A master that is away gets the release when it is back, unless the client is closed by
// then. Close waits up to 100 ms for a release on its way to a connected master, as with Unlock.
//
// Each [Observer] is told what the masters say, with a context that never ends. [Stats] counts it
// (Released, ReleaseFailed). Both happen when the answers are read: by the next operation of the
// client, or within 25 ms. Event.Took lasts until then.
//
// Release needs the right to EVAL where the server has no command of its own for a release
// (DELEX, DELIFEQ). If the server has one, and the user may not call it, the first release on
// each connection finds that out, and the next attempt can overtake that release. Package conn
// says which rights there are.
//
// It returns an error that wraps ErrNotHeld if the Mutex is unlocked, or if its validity has
// ended by our own clock, and ErrClosed if the client is closed. With [WithSecond] it does not
// wait for the second lock either, and which of the two is free first is not known.
func (m *Mutex) Release() error {
	c := m.mustClient()
	r := c.releases.take()
	closed := false
	select {
	case <-c.closed:
		closed = true
	default:
	}
	c.busy.Add(1) // before Shutdown finds the lock let go of
	defer c.busy.Add(-1)
	r.lingers = true
	was := m.postRelease(endedContext, r)
	switch {
	case was == stateUnlocked:
		c.releases.put(r)
		return unasked(opUnlock, m.spec.Key, ErrNotHeld, "not locked")
	case closed:
		return unasked(opUnlock, m.spec.Key, ErrClosed, "")
	case was.over():
		return unasked(opUnlock, m.spec.Key, ErrNotHeld, "its validity had ended")
	}
	return nil
}

// unlock releases the lock and waits for the masters. linger says that they keep it for its least
// time.
func (m *Mutex) unlock(ctx context.Context, linger bool) *RoundError {
	c := m.client
	c.busy.Add(1) // before Shutdown finds the lock let go of
	r := c.releases.take()
	kept := false
	defer func() {
		c.busy.Add(-1)
		if !kept {
			c.releases.put(r)
		}
	}()
	r.lingers, r.awaited = linger, true
	if m.postRelease(ctx, r) == stateUnlocked {
		return unasked(opUnlock, m.spec.Key, ErrNotHeld, "not locked")
	}
	var err error
	if r.shared {
		kept = true // while it is in the relay, also if the context panics
		err, kept = r.await(ctx)
	} else {
		err = c.round.Mux.Wait(ctx, &r.Op)
	}
	if err != nil && !r.shared && !r.IsText() { // it was sent by its hash, and not every master has answered
		c.round.SendRelease(&m.spec, r.Token, r.TTL)
	}
	e := r.complete(err)
	if e != nil {
		e.blame(ctx, err)
	}
	c.observeRound(ctx, opUnlock, m.spec.Key, &r.Call, 0, e)
	return e
}

// postRelease unlocks the Mutex and returns the state before. It hands the lock over to a waiter of this client, or
// posts the release. ctx is for the second lock.
func (m *Mutex) postRelease(ctx context.Context, r *release) (was state) {
	c := m.client
	switches, stays := c.rechecker.settled()
	c.rechecker.remove(&m.hold) // a lock that is installed from now on is added again
	m.mu.Lock()
	now := c.now()
	was = m.state(now)
	if was == stateUnlocked {
		m.mu.Unlock()
		return was
	}
	awaited := r.awaited // if it is false, r belongs to the pool once it is posted
	since, until, in := m.takenAt, m.until, m.relay
	stays = stays && m.stays(now)
	var held, rest time.Duration
	if since != 0 {
		held = now - since
	}
	if r.lingers {
		rest = m.lingerTime(c.now)
	}
	r.Token = append(r.Token[:0], m.token()...)
	r.key, r.was, r.Held, r.Fence, r.Failures, r.About = m.spec.Key, was, held, m.fence, 0, round.AboutLock(&m.spec)
	if m.told&toldLoss != 0 {
		r.Failures = 1
	}
	_, slot, _ := kind.CutSlot(r.Token)
	r.Sets = *m.memory()
	untold := m.told&toldGone == 0
	keeps, second := m.reset()
	m.mu.Unlock()
	if keeps != nil || second != nil || c.events.observed() {
		over := c.renewer.removeUnlocked(keeps)
		finished := false
		defer func() {
			if !finished { // a context has panicked: the release goes out nevertheless
				defer m.notifyReleased(slot, rest)
				defer in.giveBack(&c.core, &m.spec, r.Token, rest)
				second.unlockNoWait()
			}
		}()
		func() {
			if untold {
				defer c.observeLetGo(r.key, r.Token, false)
			}
			c.renewer.finish(over)
		}()
		if second != nil {
			r.secondErr = second.unlockWithin(ctx, until-now)
			r.secondLost = errors.Is(r.secondErr, ErrNotHeld)
			if !awaited && !r.secondLost && errors.Is(r.secondErr, context.Canceled) {
				r.secondErr = nil // the second lock was not waited for
			}
			second = nil
		}
		finished = true
	}

	if !stays || !m.handOver(in, r, until, switches) {
		if in == nil || !in.end(r) {
			m.post(r, rest)
		}
		// From here on a local waiter's attempt follows the release on every connection, so it need
		// not wait for the answers.
		m.notifyReleased(slot, rest)
	}
	if since != 0 {
		c.looks.NoteReleased(now, since, m.spec.Names()...)
	}
	return was
}

// post posts the release, which has the token.
func (m *Mutex) post(r *release, rest time.Duration) {
	r.Linger(&m.spec, r.Token, rest, true)
	if r.was == stateLost { // see sendRelease
		r.Op.Dialects = nil
	}
	r.Op.Suspect, r.Op.Unless = r.Sets.Doubted()
	r.Op.Awaited = r.awaited
	if !r.awaited { // then it belongs to the pool once it is posted
		r.Op.OnDecided = r.onDecided
	}
	if !r.awaited || !m.client.localQueues.Empty(m.spec.Names()) {
		r.AsText() // others do not wait for the answers
	}
	m.client.round.Post(&r.Call)
}

// handOver gives the lock, which was taken out of the hold, to the next waiter of this client, if it can. It reports
// whether it has. in is the lock's relay; nil if it is in none.
func (m *Mutex) handOver(in *relay, r *release, until time.Duration, switches uint64) bool {
	c := m.client
	if c.localQueues.Empty(m.spec.Names()) || !c.enter() {
		return false
	}
	defer c.attempts.RUnlock()
	return c.localQueues.HandOver(&m.spec, func(handovers int) (yes, again bool) {
		switch most := c.cfg.Handovers; {
		case most < 0:
			return in == nil || !in.wearsOut(), false
		case in == nil:
			return handovers < most, false
		default:
			return in.goesOn(handovers, most)
		}
	}, func() *line.Given {
		if in == nil {
			in = c.relays.begin(&m.spec, r.Token)
		}
		if !in.give(r, until, switches) {
			return nil
		}
		return &in.handed
	})
}

// notifyReleased notifies the queues that the lock is free, unless it lingers. Then the head
// looks when the linger is over.
func (m *Mutex) notifyReleased(slot int, rest time.Duration) {
	if rest == 0 {
		m.client.localQueues.Released(slot, m.spec.Names()...)
	}
}
