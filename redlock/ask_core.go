package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// rounds are the methods of a mux.Mux that a client needs.
type rounds interface {
	Do(ctx context.Context, op *mux.Op) error
	Post(ops ...*mux.Op)
	Wait(ctx context.Context, op *mux.Op) error
	Send(op *mux.Op)
	Forget(op *mux.Op)
	ForgetInHook(op *mux.Op)
	Heard(of mux.Sent) (answered, soon, never mux.Set)
	Leading(of mux.Set) int
	RTT() time.Duration
	Masters() []mux.State
	AppendMasters(dst []mux.State) []mux.State
	Drain()
	Close() error
}

// minShortTimeout is the least timeout of a question that a Lock asks while it waits (see shortTimeout).
const minShortTimeout = 5 * time.Millisecond

// An roundCore is what all rounds of a client share: the masters, the calls, and what is known for the next rounds. It knows
// nothing of errors, statistics and Observers.
type roundCore struct {
	rounds    rounds
	calls     sync.Pool // of *call
	statePool sync.Pool // of *masterStates
	hints     hints
	agreed    agreements
}

func (c *roundCore) init(fenceMemory time.Duration) {
	c.calls.New = func() any { return new(call) }
	c.agreed.init()
	c.hints.init(fenceMemory)
}

func (c *roundCore) takeCall() *call { return c.calls.Get().(*call) }

func (c *roundCore) putCall(k *call) {
	k.failures, k.held, k.relies, k.untaken = 0, 0, false, false // only some rounds set these
	c.calls.Put(k)
}

// post posts a call.
func (c *roundCore) post(k *call) {
	k.one[0] = &k.op
	c.rounds.Post(k.one[:]...)
}

// doUndoable makes a round that another round may undo. Once it has returned, a master that does not know the
// script is not sent the text, as the text could come after the round that undoes it.
func (c *roundCore) doUndoable(ctx context.Context, k *call) error {
	k.beginUndoable()
	defer k.endUndoable()
	return c.rounds.Do(ctx, &k.op)
}

func (k *call) beginUndoable() {
	k.op.Lease, k.op.Epoch = &k.roundLease, k.roundLease.n.Add(1)
}

func (k *call) endUndoable() { k.roundLease.n.Add(1) }

// masterStates are the masters' states at a moment. Waiters ask for them again and again, so they are
// pooled.
type masterStates struct{ states []mux.State }

func (c *roundCore) takeStates() *masterStates {
	r, _ := c.statePool.Get().(*masterStates)
	if r == nil {
		r = new(masterStates)
	}
	r.states = c.rounds.AppendMasters(r.states[:0])
	return r
}

// notifying returns the masters that are up and can notify of changes.
func (c *roundCore) notifying() (masters mux.Set) {
	r := c.takeStates()
	defer c.putStates(r)
	for i := range r.states {
		if canNotify(&r.states[i]) {
			masters = masters.With(i)
		}
	}
	return masters
}

func (c *roundCore) putStates(r *masterStates) { c.statePool.Put(r) }

// reachedAll reports whether the call, an attempt, was sent to every master that is connected. It is false if a
// master is in quarantine: that was not asked, and can vote soon.
func (c *roundCore) reachedAll(k *call) bool {
	r := c.takeStates()
	defer c.putStates(r)
	for i := range r.states {
		switch r.states[i].Phase {
		case mux.Quarantined:
			return false
		case mux.Up:
			if !k.op.Asked.Has(i) {
				return false
			}
		}
	}
	return true
}

// sendRelease sends a release of the lock that has the token to all masters, and waits for no answer. If rest is
// above 0, it leaves the lock on the masters for the rest. The lock is over, so it may be revoked. A native command
// knows no tombstone, and the script would come after the caller's next attempt. So the script is sent at once.
func (c *roundCore) sendRelease(s *spec, token []byte, rest time.Duration) {
	k := c.takeCall()
	defer c.putCall(k)
	k.linger(s, token, rest, false)
	k.op.Dialects = nil
	k.asText()
	c.rounds.Send(&k.op)
}

// hear asks the mux what became of the sets that are owed.
func (c *roundCore) hear(s *quorum.Sets) {
	open, lost := s.Asks()
	if open.To|lost.To == 0 {
		return
	}
	answered, soon, never := c.rounds.Heard(open)
	if lost.To != 0 {
		renewed, _, _ := c.rounds.Heard(lost)
		answered |= renewed
	}
	s.Heard(answered, soon, never)
}

// beginRound begins a round about a lock with those sets, which is encoded.
func (c *roundCore) beginRound(s *quorum.Sets, k *call) quorum.Trust {
	c.hear(s)
	k.op.Suspect, k.op.Unless = s.Doubted()
	return s.Begin()
}

// judge has the yes of suspects count for nothing, before a round is judged that began with that trust.
func (c *roundCore) judge(s *quorum.Sets, t quorum.Trust, k *call) {
	c.hear(s)
	quorum.Discount(k.op.Votes, s.SuspectSince(t))
}

// repair has masters set a lock again after the round k. It returns the call, which is posted. The lock is valid, and
// whoever calls it guards its sets.
func (c *roundCore) repair(s *spec, of *quorum.Sets, k *call, on mux.Set, now func() time.Duration) (posted *call) {
	p := c.takeCall()
	p.repair(s, k.token, k.fence, k.ttl, on)
	c.post(p)
	of.Sent(p.op.Asked, p.op.Started, now())
	return p
}

// forget ends a repair that nobody waits for.
func (c *roundCore) forget(repair *call) {
	if repair != nil {
		c.rounds.Forget(&repair.op)
		c.putCall(repair)
	}
}

// sendUndo sends the release after an attempt that has failed. had says that it had the lock for a moment, so that this
// can have been revoked.
func (c *roundCore) sendUndo(s *spec, token []byte, had bool) {
	if had {
		c.sendRelease(s, token, 0)
		return
	}
	k := c.takeCall()
	defer c.putCall(k)
	k.untaken = true
	k.release(s, token)
	k.asText()
	c.rounds.Send(&k.op)
}

// shortTimeout returns the timeout of a question whose answer helps but is not needed: four round trips or least,
// whichever is longer, but never more than timeout.
func (c *roundCore) shortTimeout(timeout, least time.Duration) time.Duration {
	return min(timeout, max(4*c.rounds.RTT(), least))
}

// mend sets the counters of the masters far back to the fence of the lock that was just taken. It does nothing for
// a reader's lock. It waits for no answer.
func (c *roundCore) mend(s *spec, k *call, far mux.Set) {
	if far == 0 || s.reader {
		return
	}
	m := c.takeCall()
	defer c.putCall(m)
	m.mend(s, k.token, k.fence, far)
	c.rounds.Send(&m.op)
}

// agreeOnFence follows a round in which a quorum has said yes, each master with its number. It sets the call's
// fence. If the quorum does not have the fence in common, it makes a second round, which raises the counters to
// it. Then again is true, the call's votes are those of the second round, and err is the mux's. The start of the
// round stays that of the first.
func (c *roundCore) agreeOnFence(ctx context.Context, s *spec, k *call) (again bool, err error) {
	fence, agreed := quorum.Common(k.op.Votes, quorum.Majority(len(k.op.Votes)))
	if agreed {
		k.fence = fence
		return false, nil
	}
	if fence == 0 { // all counters are lost
		fence = c.hints.next()
	}
	started, suspect, unless := k.op.Started, k.op.Suspect, k.op.Unless
	k.raise(s, fence)
	k.op.Suspect, k.op.Unless = suspect, unless
	err = c.rounds.Do(ctx, &k.op)
	k.op.Started = started
	return true, err
}

// canNotify reports whether a master is up and can notify of changes.
func canNotify(s *mux.State) bool { return s.Phase == mux.Up && s.Server.Tracking }
