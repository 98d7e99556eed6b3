package redlock

import (
	"cmp"
	"errors"
	"time"

	"github.com/redburst/redburst/mux"
)

// An extension is one round that gives a lock its full TTL again. Extend, the renewal and the
// recheck all go through it, so that there is one rule by which an extension is posted and
// judged. What differs stays with the caller: when it asks, whether it asks again, and whom it
// tells.
type extension struct {
	core *core
	hold *hold
	call *call
}

// encode makes the call the round, if the lock is held. It reports whether it is. hold.mu is
// held.
func (x *extension) encode() bool {
	if x.hold.state(x.core.now()) != stateHeld {
		return false
	}
	x.fill(true)
	return true
}

// fill encodes the round. restore says whether a master that lacks the lock is given it again.
// hold.mu is held.
func (x *extension) fill(restore bool) {
	h, k := x.hold, x.call
	k.extend(&h.spec, h.token(), h.fence, max(h.term.ttl, h.lingerTime(x.core.now)), restore)
	if restore {
		k.op.Lease, k.op.Epoch = &h.lease, h.lease.epoch.Load()
	}
}

// post encodes the round and posts it, under hold.mu: an Unlock that takes the token away
// sends its release later.
func (x *extension) post() bool {
	x.hold.mu.Lock()
	defer x.hold.mu.Unlock()
	if !x.encode() {
		return false
	}
	x.core.rounds.Post(x.call.one[:]...)
	return true
}

// postFirst is post, and also takes a lock that was handed over. That is not set again on a
// master that lacks it, as nobody here knows whether it is valid. It returns the lock's state: a
// round was posted if that is held or handed over.
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

// complete judges the round, of which the mux has returned err. If it is a success, and prolong is set,
// it moves the end of the validity. It returns what is left of the validity, or why the lock
// was not extended: ErrNotHeld, ErrExpired, ErrNoQuorum, ErrClosed, errUndecided, or errUnlocked.
//
// Others may have extended the lock meanwhile, and further. So the clock is compared with the
// lock as it is now, and not as it was when the round was posted. What is over is not revived.
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
	if limit == 0 { // of a lock that was handed over nothing is known
		limit = until
	}
	reason = count(op.Votes, err).extended(now, until, limit)
	switch s := h.state(now); {
	case reason != nil && reason != ErrExpired:
		return 0, reason
	case !h.has(x.call.token):
		return 0, errUnlocked
	case s == stateLost: // what this round has set again is about to be released
		return 0, ErrNotHeld
	case reason == ErrExpired && s != stateHeld: // if it is held, others have extended it further
		return 0, ErrExpired
	}
	if prolong {
		h.prolong(until)
		h.fence = cmp.Or(h.fence, x.call.fence) // a fence that may have been used stays
	}
	return h.left(now), nil
}

// errUnlocked is what an extension has come to whose lock was unlocked meanwhile.
var errUnlocked = errors.New("redlock: unlocked meanwhile")

// mustUndo reports whether a round that has failed for that reason must be undone, because its
// lock is over. Either the round has found that, or it came so late that it may have set keys
// again of a lock that had expired.
func (x *extension) mustUndo(reason error) bool {
	if reason == ErrNotHeld || reason == ErrExpired {
		return true
	}
	h := x.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.has(x.call.token) && h.state(x.core.now()).over()
}
