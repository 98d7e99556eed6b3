package round

import (
	"context"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// Mux has the methods of a mux.Mux that a client needs.
type Mux interface {
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

// MinShortTimeout is the least timeout of a question that a Lock asks while it waits (see Core.ShortTimeout).
const MinShortTimeout = 5 * time.Millisecond

// A Core is what all rounds of a client share: the masters, the calls, and what is known for the next rounds. It knows
// nothing of errors, statistics and Observers.
type Core struct {
	Mux       Mux
	calls     sync.Pool // of *Call
	statePool sync.Pool // of *States
	Hints     Hints
	Agreed    agreements
}

// Init makes the core ready. fenceMemory is for how long counters live.
func (c *Core) Init(fenceMemory time.Duration) {
	c.calls.New = func() any { return new(Call) }
	c.Agreed.init()
	c.Hints.Init(fenceMemory)
}

// Take returns a call of the pool.
func (c *Core) Take() *Call { return c.calls.Get().(*Call) }

// Put puts a call back.
func (c *Core) Put(k *Call) {
	k.Reset()
	c.calls.Put(k)
}

// Post posts a call.
func (c *Core) Post(k *Call) {
	k.one[0] = &k.Op
	c.Mux.Post(k.one[:]...)
}

// DoUndoable makes a round that another round may undo. Once it has returned, a master that does not know the
// script is not sent the text, as the text could come after the round that undoes it.
func (c *Core) DoUndoable(ctx context.Context, k *Call) error {
	k.BeginUndoable()
	defer k.EndUndoable()
	return c.Mux.Do(ctx, &k.Op)
}

// BeginUndoable and EndUndoable are the beginning and the end of DoUndoable, for whoever posts the call.
func (k *Call) BeginUndoable() {
	k.Op.Lease, k.Op.Epoch = &k.roundLease, k.roundLease.n.Add(1)
}

// EndUndoable ends what BeginUndoable has begun.
func (k *Call) EndUndoable() { k.roundLease.n.Add(1) }

// States are the masters' states at a moment. Waiters ask for them again and again, so they are
// pooled.
type States struct{ States []mux.State }

// TakeStates asks for the masters' states.
func (c *Core) TakeStates() *States {
	r, _ := c.statePool.Get().(*States)
	if r == nil {
		r = new(States)
	}
	r.States = c.Mux.AppendMasters(r.States[:0])
	return r
}

// Notifying returns the masters that are up and can notify of changes.
func (c *Core) Notifying() (masters mux.Set) {
	r := c.TakeStates()
	defer c.PutStates(r)
	for i := range r.States {
		if CanNotify(&r.States[i]) {
			masters = masters.With(i)
		}
	}
	return masters
}

// PutStates puts them back.
func (c *Core) PutStates(r *States) { c.statePool.Put(r) }

// ReachedAll reports whether the call, an attempt, was sent to every master that is connected. It is false if a
// master is in quarantine: that was not asked, and can vote soon.
func (c *Core) ReachedAll(k *Call) bool {
	r := c.TakeStates()
	defer c.PutStates(r)
	for i := range r.States {
		switch r.States[i].Phase {
		case mux.Quarantined:
			return false
		case mux.Up:
			if !k.Op.Asked.Has(i) {
				return false
			}
		}
	}
	return true
}

// SendRelease sends a release of the lock that has the token to all masters, and waits for no answer. If rest is
// above 0, it leaves the lock on the masters for the rest. The lock is over, so it may be revoked. A native command
// knows no tombstone, so the script is sent.
func (c *Core) SendRelease(s *Spec, token []byte, rest time.Duration) {
	k := c.Take()
	defer c.Put(k)
	k.Linger(s, token, rest, false)
	k.Op.Dialects = nil
	c.Mux.Send(&k.Op)
}

// hear asks the mux what became of the sets that are owed.
func (c *Core) hear(s *quorum.Sets) {
	open, lost := s.Asks()
	if open.To|lost.To == 0 {
		return
	}
	answered, soon, never := c.Mux.Heard(open)
	if lost.To != 0 {
		renewed, _, _ := c.Mux.Heard(lost)
		answered |= renewed
	}
	s.Heard(answered, soon, never)
}

// BeginRound begins a round about a lock with those sets, which is encoded.
func (c *Core) BeginRound(s *quorum.Sets, k *Call) quorum.Trust {
	c.hear(s)
	k.Op.Suspect, k.Op.Unless = s.Doubted()
	return s.Begin()
}

// Judge has the yes of suspects count for nothing, before a round is judged that began with that trust.
func (c *Core) Judge(s *quorum.Sets, t quorum.Trust, k *Call) {
	c.hear(s)
	quorum.Discount(k.Op.Votes, s.SuspectSince(t))
}

// Repair has masters set a lock again after the round k. It returns the call, which is posted. The lock is valid, and
// whoever calls it guards its sets.
func (c *Core) Repair(s *Spec, of *quorum.Sets, k *Call, on mux.Set, now func() time.Duration) (posted *Call) {
	p := c.Take()
	p.Repair(s, k.Token, k.Fence, k.TTL, on)
	c.Post(p)
	of.Sent(p.Op.Asked, p.Op.Started, now())
	return p
}

// Forget ends a repair that nobody waits for.
func (c *Core) Forget(repair *Call) {
	if repair != nil {
		c.Mux.Forget(&repair.Op)
		c.Put(repair)
	}
}

// SendUndo sends the release after an attempt that has failed. had says that it had the lock for a moment, so that this
// can have been revoked.
func (c *Core) SendUndo(s *Spec, token []byte, had bool) {
	if had {
		c.SendRelease(s, token, 0)
		return
	}
	k := c.Take()
	defer c.Put(k)
	k.untaken = true
	k.Release(s, token)
	c.Mux.Send(&k.Op)
}

// ShortTimeout returns the timeout of a question whose answer helps but is not needed: four round trips or least,
// whichever is longer, but never more than timeout.
func (c *Core) ShortTimeout(timeout, least time.Duration) time.Duration {
	return min(timeout, max(4*c.Mux.RTT(), least))
}

// Mend sets the counters of the masters far back to the fence of the lock that was just taken. It does nothing for
// a reader's lock. It waits for no answer.
func (c *Core) Mend(s *Spec, k *Call, far mux.Set) {
	if far == 0 || s.Reader {
		return
	}
	m := c.Take()
	defer c.Put(m)
	m.mend(s, k.Token, k.Fence, far)
	c.Mux.Send(&m.Op)
}

// AgreeOnFence follows a round in which a quorum has said yes, each master with its number. It sets the call's
// fence. If the quorum does not have the fence in common, it makes a second round, which raises the counters to
// it. Then again is true, the call's votes are those of the second round, and err is the mux's. The start of the
// round stays that of the first.
func (c *Core) AgreeOnFence(ctx context.Context, s *Spec, k *Call) (again bool, err error) {
	fence, agreed := quorum.Common(k.Op.Votes, quorum.Majority(len(k.Op.Votes)))
	if agreed {
		k.Fence = fence
		return false, nil
	}
	if fence == 0 { // all counters are lost
		fence = c.Hints.Next()
	}
	started, suspect, unless := k.Op.Started, k.Op.Suspect, k.Op.Unless
	k.Raise(s, fence)
	k.Op.Suspect, k.Op.Unless = suspect, unless
	err = c.Mux.Do(ctx, &k.Op)
	k.Op.Started = started
	return true, err
}

// CanNotify reports whether a master is up and can notify of changes.
func CanNotify(s *mux.State) bool { return s.Phase == mux.Up && s.Server.Tracking }
