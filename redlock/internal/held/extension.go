package held

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// An extension is one round that gives a lock its full TTL again. Extend, the renewal and the recheck all use it,
// so that one rule says how an extension is posted and judged. The callers decide when to ask, whether to ask
// again, and whom to tell.
//
// It sets nothing. If it succeeds, it is followed by a repair: the masters that have said that the lock is gone are sent a
// set. So it waits a little for the masters that have not answered when it is decided. Nobody judges what they answer to
// the set. Whoever waits for the answers can have the lock extended once more, so that the
// yes of these masters counts (internal/quorum/suspect.go).
type extension struct {
	core  *Core
	hold  *Lock
	call  *round.Call
	trust quorum.Trust // when it began
	yes   mux.Set      // of a lock that was handed over: who had it, before a second round has raised the counters
}

// encode encodes the round if the lock is held, and reports whether it is. Lock.mu is held.
func (x *extension) encode() bool {
	if x.hold.state(x.core.Now()) != stateHeld {
		return false
	}
	x.fill(true)
	return true
}

// fill encodes the round. held says that the lock is held, and not handed over. The round pins the hold: whoever has it
// encoded unpins the hold when all that comes of the round is done. Lock.mu is held.
func (x *extension) fill(held bool) {
	h, k := x.hold, x.call
	h.pins++
	h.noteWrite()
	k.Extend(&h.spec, h.token(), h.fence, max(h.spec.Term.TTL, h.lingerTime(x.core.Now)))
	if held {
		k.Op.Lease, k.Op.Epoch = &h.lease, h.lease.epoch.Load()
	}
	k.Op.Grace = x.core.Round.ShortTimeout(h.spec.Timeout, round.MinShortTimeout)
	if !held {
		k.Op.Grace = x.core.Round.ShortTimeout(h.spec.Timeout, minFirstGrace)
	}
	x.trust = x.core.Round.BeginRound(h.memory(), k)
}

// minFirstGrace is the least time that the first round of a lock that was handed over waits for those that have not
// answered when it is decided. Their yes counts never if it does not come by then.
const minFirstGrace = 50 * time.Millisecond

// post encodes the round and posts it if the lock is held, and reports whether it is. It posts under Lock.mu, so an
// Unlock that takes the token away sends its release later.
func (x *extension) post() bool {
	x.hold.mu.Lock()
	defer x.hold.mu.Unlock()
	if !x.encode() {
		return false
	}
	x.core.Round.Post(x.call)
	return true
}

// postFirst is post, but also extends a lock that was handed over. No master sets such a lock again, as this process
// does not know whether it is valid. postFirst returns the lock's state, and has posted the round if that is
// held or handed over.
func (x *extension) postFirst() State {
	h := x.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state(x.core.Now())
	if s == stateHeld || s == stateHandedOver {
		x.fill(s == stateHeld)
		x.core.Round.Post(x.call)
	}
	return s
}

// complete judges the round. err is the mux's. If the round has succeeded and prolong is set, complete moves the end
// of the validity, and posts a repair if one is needed. It returns what is left of the validity, or why the lock was not
// extended: quorum.ErrNotHeld, quorum.ErrExpired, quorum.ErrNoQuorum, ErrClosed, errUndecided, or errUnlocked.
//
// Other rounds may have extended the lock further meanwhile. So complete goes by the lock as it is now, and
// not as it was when the round was posted. It does not revive a lock that is over.
func (x *extension) complete(err error, prolong bool) (left time.Duration, repair *round.Call, reason error) {
	if errors.Is(err, mux.ErrClosed) { // whatever the votes say, nothing can be sent any more
		return 0, nil, ErrClosed
	}
	h, op := x.hold, &x.call.Op
	h.mu.Lock()
	defer h.mu.Unlock()
	now := x.core.Now()
	until := h.spec.Term.Until(op.Started)
	limit := h.until
	if limit == 0 { // the validity of a lock that was handed over is not known
		limit = until
	}
	if h.has(x.call.Token) {
		x.core.Round.Judge(h.memory(), x.trust, x.call)
	}
	reason = quorum.Count(op.Votes, err).Extended(now, until, limit)
	switch s := h.state(now); {
	case reason != nil && reason != quorum.ErrExpired:
		return 0, nil, reason
	case !h.has(x.call.Token):
		return 0, nil, errUnlocked
	case s == stateLost:
		return 0, nil, quorum.ErrNotHeld
	case reason == quorum.ErrExpired && s != stateHeld: // if it is held, another round has extended it further
		return 0, nil, quorum.ErrExpired
	}
	if !prolong {
		return h.left(now), nil, nil
	}
	adopted := h.until == 0
	h.prolong(until)
	h.fence = cmp.Or(h.fence, x.call.Fence) // a fence never changes: it may have been used
	memory := h.memory()
	if adopted {
		memory.Adopted(1<<len(op.Votes)-1, cmp.Or(x.yes, quorum.SaidYes(op.Votes)), now)
	} else if reason == nil {
		if on := memory.Succeeded(x.trust, quorum.SaidGone(op.Votes)); on != 0 {
			h.noteWrite()
			repair = x.core.Round.Repair(&h.spec, memory, x.call, on, x.core.Now)
		}
	}
	return h.left(now), repair, nil
}

// observe tells the Observers of the round. left and f are as in Teller.Round.
func (x *extension) observe(ctx context.Context, op string, left time.Duration, f Failure) {
	if f != nil && f.Reason() == quorum.ErrNotHeld {
		x.call.Failures = 0
		if x.hold.noteLossTold(x.call.Token) {
			x.call.Failures = 1
		}
	}
	x.core.Teller.Round(ctx, op, x.hold.spec.Key, x.call, left, f)
}

// errUnlocked is the result of an extension whose lock was unlocked meanwhile.
var errUnlocked = errors.New("redlock: unlocked meanwhile")

// mustUndo reports whether a round that has failed for that reason must be undone, because its lock is over. Either
// the round has found that out, or the lock has ended meanwhile, and the round may have prolonged some of its keys.
func (x *extension) mustUndo(reason error) bool {
	if reason == quorum.ErrNotHeld || reason == quorum.ErrExpired {
		return true
	}
	h := x.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.has(x.call.Token) && h.state(x.core.Now()).Over()
}

// Extend gives a lock its full TTL again. It returns the state in which the lock was: if that is Unlocked or over, the
// masters were not asked. f is how the round has failed; nil if it did not.
func (ls *Locks) Extend(ctx context.Context, h *Lock) (was State, f Failure) {
	c := &ls.core
	x := extension{core: c, hold: h, call: c.Round.Take()}
	k := x.call
	defer c.Round.Put(k)
	switches := ls.Switches()
	was = x.postFirst()
	if was == Unlocked || was.Over() {
		return was, nil
	}
	defer h.Unpin()
	err := c.Round.Mux.Wait(ctx, &k.Op)
	if h.spec.Numbers != nil && was == stateHandedOver && quorum.Count(k.Op.Votes, err).Answered() == nil {
		x.yes = quorum.SaidYes(k.Op.Votes)
		if again, e := c.Round.AgreeOnFence(ctx, &h.spec, k); again {
			c.counts.Raised.Add(1)
			err = e
		}
	}
	unbelieved := ""
	if h.spec.Numbers != nil {
		_, unbelieved = c.Round.Hints.Unbelieved(k.Op.Votes)
	}
	h.CheckSecond()
	left, repair, reason := x.complete(err, true)
	c.Round.Forget(repair)
	ls.renewer.askAgain(h)
	mustUndo := reason != nil && x.mustUndo(reason)
	if reason == errUnlocked { // the release that follows the round undoes it
		reason = quorum.ErrNotHeld
	}
	stale := false
	if reason == nil && was == stateHandedOver {
		ls.rechecker.add(h)                                              // for the next recheck; the last one may have come too early for this lock
		stale = !ls.Survives(context.Background(), h, k.Token, switches) // the lock is relied on: somebody has to know
	}
	switch {
	case stale:
		f = c.Teller.Failure(OpExtend, h.spec.Key, k, err, quorum.ErrNoQuorum)
		f.Note(Replaced)
	case reason != nil:
		f = c.Teller.Failure(OpExtend, h.spec.Key, k, err, reason)
	default:
		c.counts.Extended.Add(1)
	}
	if unbelieved != "" && reason == quorum.ErrNoQuorum {
		f.Note(unbelieved)
	}
	if stale || mustUndo {
		ls.renewer.lose(h, k.Token, f)
	}
	if f != nil {
		f.Blame(ctx, err)
	}
	x.observe(ctx, OpExtend, left, f)
	return was, f
}
