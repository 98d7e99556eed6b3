package redlock

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// A release is the round that releases a lock, or shares a round of its relay.
type release struct {
	round.Call
	of         *releases
	key        string
	lingers    bool  // the lock is left on the masters for its least time
	awaited    bool  // a caller waits for its decision; if not, the caller has no right to it once it is posted
	was        state // of the hold, when the release began
	secondErr  error // how the release of the second lock failed; nil if it did not
	secondLost bool  // secondErr wraps ErrNotHeld. Found out early: with the Mux locked, foreign errors are not called

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
	now := r.of.core.now()
	r.Op.Votes, r.Op.Started, r.Op.Decided = make([]mux.Vote, len(r.of.core.masters)), now, now
	return ctx.Err(), true
}

// complete judges the votes. err is the mux's.
func (r *release) complete(err error) *RoundError {
	c := r.of.core
	reason := quorum.Count(r.Op.Votes, err).Released(r.was.over(), r.was == stateLost)
	switch {
	case r.secondLost:
		reason = ErrNotHeld
	case r.secondErr != nil && reason == nil:
		reason = ErrSecond
	}
	if reason == nil {
		c.stats.released.Add(1)
		return nil
	}
	e := c.failure(opUnlock, r.key, &r.Call, err, reason)
	if e.revoked() {
		return e
	}
	c.stats.releaseFailed.Add(1)
	if r.secondErr != nil {
		e.under = foreignError{r.secondErr}
	}
	return e
}

// completed takes the decision of a release that is not awaited. The Mux is locked.
func (r *release) completed(err error) {
	e := r.complete(err)
	r.of.core.observeRound(context.Background(), opUnlock, r.key, &r.Call, 0, e)
	r.of.put(r)
}

// releases are all releases of a client.
type releases struct {
	core *core
	pool sync.Pool // of *release
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
	r.secondErr, r.secondLost, r.lingers, r.awaited, r.shared = nil, false, false, false, false
	r.left.Store(0)
	all.pool.Put(r)
}
