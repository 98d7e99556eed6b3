package held

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// A release is the round that releases a lock, or shares a round of its relay.
type release struct {
	round.Call
	of         *releases
	spec       *round.Spec
	lingers    bool  // the lock is left on the masters for its least time
	awaited    bool  // a caller waits for its decision; if not, the caller has no right to it once it is posted
	was        State // of the hold, when the release began
	secondErr  error // how the release of the second lock failed; nil if it did not
	secondLost bool  // secondErr wraps quorum.ErrNotHeld. Found out early: with the Mux locked, foreign errors are not called

	in       *relay        // that the lock is in, or is to be in if it is given on; nil for none
	until    time.Duration // end of the lock's validity
	switches uint64        // of groups, before the lock left the list of the rechecks

	shared bool          // it shares a round of its relay, and sends none; likewise
	result chan error    // capacity 1: what the mux said of the shared round
	left   atomic.Uint32 // of a shared release that is awaited: 0, or who was first to leave the other

	onDecided func(error) // completed, made once
}

// What release.left says.
const (
	leftByCaller uint32 = 1 + iota // its context has ended, and the round is forgotten for it
	leftByRound                    // the result is there, or about to be
)

// share gives the release the result of the round that it shares. lost says that the lock was known to be lost by
// then. From here on it belongs to the caller, or to the pool.
func (r *release) share(op *mux.Op, err error, lost bool) {
	if r.awaited && !r.left.CompareAndSwap(0, leftByRound) {
		return // the caller has kept it
	}
	r.Op.Votes = append(r.Op.Votes[:0], op.Votes...)
	r.Op.Started, r.Op.Decided, r.Op.Asked, r.Op.Timeout = op.Started, op.Decided, op.Asked, op.Timeout
	for i := range r.Op.Votes {
		switch v := &r.Op.Votes[i]; {
		case v.Verdict == mux.VerdictNo:
			v.Reply = v.Reply.Clone() // the memory is the round's
		case v.Verdict == mux.VerdictFailed && v.Int > 0: // it has the lock, and a counter that is not believed
			v.Verdict = mux.VerdictYes
		}
	}
	if lost {
		r.was = stateLost
	}
	if r.awaited {
		r.result <- err
	} else {
		r.completed(err)
	}
}

// await waits for the round that the release shares, until the context ends. It returns what the mux said, or the
// context's error. Then kept says that the release must not be used again.
func (r *release) await(ctx context.Context) (err error, kept bool) {
	select {
	case err = <-r.result:
		return err, false
	case <-ctx.Done():
	}
	if !r.left.CompareAndSwap(0, leftByCaller) {
		return <-r.result, false
	}
	now := r.of.core.Now()
	r.Op.Votes, r.Op.Started, r.Op.Decided = make([]mux.Vote, r.of.core.Masters), now, now
	return ctx.Err(), true
}

// complete judges the votes. err is the mux's. It returns how the release has failed; nil if it did not.
func (r *release) complete(err error) Failure {
	c := r.of.core
	reason := quorum.Count(r.Op.Votes, err).Released(r.was.Over(), r.was == stateLost)
	switch {
	case r.secondLost:
		reason = quorum.ErrNotHeld
	case r.secondErr != nil && reason == nil:
		reason = ErrSecond
	}
	if reason == nil {
		c.counts.Released.Add(1)
		return nil
	}
	f := c.Teller.Failure(OpUnlock, r.spec.Key, &r.Call, err, reason)
	if f.Revoked() {
		return f
	}
	c.counts.ReleaseFailed.Add(1)
	if r.secondErr != nil {
		f.Second(r.secondErr)
	}
	return f
}

// completed takes the decision of a release that is not awaited. The Mux is locked.
func (r *release) completed(err error) {
	f := r.complete(err)
	r.of.core.Teller.Round(context.Background(), OpUnlock, r.spec.Key, &r.Call, 0, f)
	r.of.put(r)
}

// releases are all releases of a client.
type releases struct {
	core   *Core
	relays *relays
	pool   sync.Pool // of *release
}

func (all *releases) take() *release {
	r, _ := all.pool.Get().(*release)
	if r == nil {
		r = &release{of: all, result: make(chan error, 1)}
		r.onDecided = r.completed
	}
	return r
}

func (all *releases) put(r *release) {
	r.Reset()
	r.secondErr, r.secondLost, r.lingers, r.awaited, r.shared = nil, false, false, false, false
	r.spec, r.was, r.in, r.until, r.switches = nil, Unlocked, nil, 0, 0
	r.left.Store(0)
	all.pool.Put(r)
}

// Unlock releases the lock, or hands it over, and waits for the masters until ctx ends. linger says that they keep it for its
// least time. It returns the state in which the lock was: if that is Unlocked, nothing is done. f is how the release has
// failed; nil if it did not.
func (ls *Locks) Unlock(ctx context.Context, h *Lock, linger bool) (was State, f Failure) {
	c := &ls.core
	r := ls.releases.take()
	kept := false
	defer func() {
		if !kept {
			ls.releases.put(r)
		}
	}()
	r.lingers, r.awaited = linger, true
	if was = ls.release(ctx, h, r); was == Unlocked {
		return was, nil
	}
	var err error
	if r.shared {
		kept = true // while it is in the relay, also if the context panics
		err, kept = r.await(ctx)
	} else {
		err = c.Round.Mux.Wait(ctx, &r.Op)
	}
	if f = r.complete(err); f != nil {
		if linger && h.spec.MinHold > 0 && f.Revoked() { // found out too late: all is to stay for the least time, in either form
			c.Round.SendRelease(&h.spec, r.Token, 0)
			c.Round.SendRelease(&h.spec, append([]byte(kind.LeftMark), r.Token...), 0)
		}
		f.Blame(ctx, err)
	}
	c.Teller.Round(ctx, OpUnlock, h.spec.Key, &r.Call, 0, f)
	return was, f
}

// Release is Unlock, but waits for nothing. It returns the state in which the lock was. The release goes out unless that is
// Unlocked.
func (ls *Locks) Release(h *Lock) (was State) {
	r := ls.releases.take()
	r.lingers = true
	if was = ls.release(EndedContext, h, r); was == Unlocked {
		ls.releases.put(r)
	}
	return was
}

// release empties the hold and returns the state before. It hands the lock over to a waiter of this client, or
// posts the release. ctx is for the second lock.
func (ls *Locks) release(ctx context.Context, h *Lock, r *release) (was State) {
	c := &ls.core
	switches, stays := ls.rechecker.settled()
	ls.rechecker.remove(h) // a lock that is installed from now on is added again
	h.mu.Lock()
	now := c.Now()
	was = h.state(now)
	if was == Unlocked {
		h.mu.Unlock()
		return was
	}
	awaited := r.awaited // if it is false, r belongs to the pool once it is posted
	since, until, in := h.takenAt, h.until, h.relay
	stays = stays && h.stays(now)
	var held, rest time.Duration
	if since != 0 {
		held = now - since
	}
	if r.lingers {
		rest = h.restTime(c.Now)
	}
	r.Token = append(r.Token[:0], h.token()...)
	r.spec, r.was, r.Held, r.Fence, r.About = &h.spec, was, held, h.fence, round.AboutLock(&h.spec)
	if h.told&toldLoss != 0 {
		r.Failures = 1
	}
	_, slot, _ := kind.CutSlot(r.Token)
	r.Sets = *h.memory()
	untold := h.told&toldGone == 0
	keeps, second := h.reset()
	h.mu.Unlock()
	if keeps != nil || second != nil || c.Teller.Observed() {
		over := ls.renewer.removeUnlocked(keeps)
		finished := false
		defer func() {
			if !finished { // a context has panicked: the release goes out nevertheless
				defer ls.notifyReleased(h, slot, rest)
				defer in.giveBack(c, &h.spec, r.Token, rest)
				second.unlockNoWait()
			}
		}()
		func() {
			if untold {
				defer c.Teller.LetGo(h.spec.Key, r.Token, false)
			}
			ls.renewer.finish(over)
		}()
		if second != nil {
			r.secondErr = second.unlockWithin(ctx, until-now)
			r.secondLost = errors.Is(r.secondErr, quorum.ErrNotHeld)
			if !awaited && !r.secondLost && errors.Is(r.secondErr, context.Canceled) {
				r.secondErr = nil // the second lock was not waited for
			}
			second = nil
		}
		finished = true
	}

	r.in, r.until, r.switches = in, until, switches
	if !stays || !c.Queues.HandOver(r.spec, r) {
		if in == nil || !in.end(r) {
			r.post(rest)
		}
		// From here on a local waiter's attempt follows the release on every connection, so it need
		// not wait for the answers.
		ls.notifyReleased(h, slot, rest)
	}
	if since != 0 {
		c.Queues.NoteReleased(now, since, h.spec.Names())
	}
	return was
}

// post posts the release, which has the token.
func (r *release) post(rest time.Duration) {
	c, s := r.of.core, r.spec
	r.Linger(s, r.Token, rest, true)
	if r.was == stateLost { // see round.Core.SendRelease
		r.Op.Dialects = nil
	}
	r.Op.Suspect, r.Op.Unless = r.Sets.Doubted()
	r.Op.Awaited = r.awaited
	if !r.awaited { // then it belongs to the pool once it is posted
		r.Op.OnDecided = r.onDecided
	}
	c.Round.Post(&r.Call)
}

// GoesOn is for the queues: see Giver. The lock is in no hold.
func (r *release) GoesOn(handovers int) (yes, again bool) {
	switch most := r.of.core.Handovers; {
	case most < 0:
		return r.in == nil || !r.in.wearsOut(), false
	case r.in == nil:
		return handovers < most, false
	default:
		return r.in.goesOn(handovers, most)
	}
}

// Give is for the queues. If it gives the lock, nobody uses the release any more but its relay, and who waits for it.
func (r *release) Give() *line.Given {
	in := r.in
	if in == nil {
		in = r.of.relays.begin(r.spec, r.Token)
	}
	if !in.give(r, r.until, r.switches) {
		return nil
	}
	return &in.handed
}

// notifyReleased notifies the queues that the lock is free, unless it lingers. Then the head
// looks when the linger is over.
func (ls *Locks) notifyReleased(h *Lock, slot int, rest time.Duration) {
	if rest == 0 {
		ls.core.Queues.Released(slot, h.spec.Names())
	}
}
