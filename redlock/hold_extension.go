package redlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redburst/redburst/mux"
)

// An extension is one round that gives a lock its full TTL again. Extend, the renewal and the recheck all use it,
// so that one rule says how an extension is posted and judged. The callers decide when to ask, whether to ask
// again, and whom to tell.
type extension struct {
	core *core
	hold *hold
	call *call
}

// encode encodes the round if the lock is held, and reports whether it is. hold.mu is held.
func (x *extension) encode() bool {
	if x.hold.state(x.core.now()) != stateHeld {
		return false
	}
	x.fill(true)
	return true
}

// fill encodes the round. restore says whether a master that lacks the lock is to set it again. The round pins the
// hold: whoever has it encoded unpins the hold when all that comes of the round is done. hold.mu is held.
func (x *extension) fill(restore bool) {
	h, k := x.hold, x.call
	h.pins++
	h.noteWrite()
	held := restore
	restore = restore && !h.relay.confirms()
	k.extend(&h.spec, h.token(), h.fence, max(h.term.ttl, h.lingerTime(x.core.now)), restore)
	if held {
		k.op.Lease, k.op.Epoch = &h.lease, h.lease.epoch.Load()
	}
	if h.doubt == nil {
		h.doubt = new(doubt)
	}
	h.doubt.begin()
	k.doubt, k.op.OnEnd, k.op.OnLate = h.doubt, k.onEnd, k.onLate
}

// post encodes the round and posts it if the lock is held, and reports whether it is. It posts under hold.mu, so an
// Unlock that takes the token away sends its release later.
func (x *extension) post() bool {
	x.hold.mu.Lock()
	defer x.hold.mu.Unlock()
	if !x.encode() {
		return false
	}
	x.core.rounds.Post(x.call.one[:]...)
	return true
}

// postFirst is post, but also extends a lock that was handed over. No master sets such a lock again, as this process
// does not know whether it is valid. postFirst returns the lock's state, and has posted the round if that is
// held or handed over.
func (x *extension) postFirst() state {
	h := x.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state(x.core.now())
	if s == stateHeld || s == stateHandedOver {
		x.fill(s == stateHeld)
		x.core.rounds.Post(x.call.one[:]...)
	}
	return s
}

// complete judges the round. err is the mux's. If the round has succeeded and prolong is set, complete moves the end
// of the validity. It returns what is left of the validity, or why the lock was not extended: ErrNotHeld,
// ErrExpired, ErrNoQuorum, ErrClosed, errUndecided, or errUnlocked.
//
// Other rounds may have extended the lock further meanwhile. So complete goes by the lock as it is now, and
// not as it was when the round was posted. It does not revive a lock that is over.
func (x *extension) complete(err error, prolong bool) (left time.Duration, reason error) {
	if errors.Is(err, mux.ErrClosed) { // whatever the votes say, nothing can be sent any more
		return 0, ErrClosed
	}
	h, op := x.hold, &x.call.op
	h.mu.Lock()
	defer h.mu.Unlock()
	now := x.core.now()
	until := h.term.until(op.Started)
	limit := h.until
	if limit == 0 { // the validity of a lock that was handed over is not known
		limit = until
	}
	reason = count(op.Votes, err).extended(now, until, limit)
	if h.has(x.call.token) && h.doubt.lost() { // an earlier round has found that, perhaps after it had ended
		reason = ErrNotHeld
	}
	switch s := h.state(now); {
	case reason != nil && reason != ErrExpired:
		return 0, reason
	case !h.has(x.call.token):
		return 0, errUnlocked
	case s == stateLost: // the keys that this round has set again are about to be released
		return 0, ErrNotHeld
	case reason == ErrExpired && s != stateHeld: // if it is held, another round has extended it further
		return 0, ErrExpired
	}
	if prolong {
		h.prolong(until)
		h.fence = cmp.Or(h.fence, x.call.fence) // a fence never changes: it may have been used
	}
	return h.left(now), nil
}

// observe tells the Observers of the round. left and e are as in core.observeRound.
func (x *extension) observe(ctx context.Context, op Op, left time.Duration, e *RoundError) {
	if e != nil && e.reason == ErrNotHeld {
		x.call.failures = 0
		if x.hold.noteLossTold(x.call.token) {
			x.call.failures = 1
		}
	}
	x.core.observeRound(ctx, op, x.hold.key, x.call, left, e)
}

// errUnlocked is the result of an extension whose lock was unlocked meanwhile.
var errUnlocked = errors.New("redlock: unlocked meanwhile")

// mustUndo reports whether a round that has failed for that reason must be undone, because its lock is over. Either
// the round has found that out, or the lock has ended meanwhile, and the round may have set some of its keys again.
func (x *extension) mustUndo(reason error) bool {
	if reason == ErrNotHeld || reason == ErrExpired {
		return true
	}
	h := x.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.has(x.call.token) && h.state(x.core.now()).over()
}
