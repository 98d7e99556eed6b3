package redlock

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
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

// A core is what all parts of a client share: the masters, the clock, the pool of calls, the
// statistics and the Observers. The parts are given the core, and not the Client.
type core struct {
	owner     string // in front of each token; empty for none
	masters   addresses
	rounds    rounds
	now       func() time.Duration // clock.Now; all times are on its clock
	calls     sync.Pool            // of *call
	statePool sync.Pool            // of *masterStates
	notices   notices
	stats     stats
	hints     hints
	agreed    agreements
	events    events
	groups    bool          // sentinels say where a master is, so it can be replaced by another
	shut      chan struct{} // closed when no lock is to be taken any more
	closed    chan struct{} // closed by Close, after shut
}

// isShut reports whether no lock is to be taken any more: Shutdown or Close has begun.
func (c *core) isShut() bool {
	select {
	case <-c.shut:
		return true
	default:
		return false
	}
}

func (c *core) takeCall() *call { return c.calls.Get().(*call) }

func (c *core) putCall(k *call) {
	k.failures, k.held, k.relies, k.untaken = 0, 0, false, false // only some rounds set these
	c.calls.Put(k)
}

// doUndoable makes a round that another round may undo. Once it has returned, a master that does not know the
// script is not sent the text, as the text could come after the round that undoes it.
func (c *core) doUndoable(ctx context.Context, k *call) error {
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

func (c *core) takeStates() *masterStates {
	r, _ := c.statePool.Get().(*masterStates)
	if r == nil {
		r = new(masterStates)
	}
	r.states = c.rounds.AppendMasters(r.states[:0])
	return r
}

// notifying returns the masters that are up and can notify of changes.
func (c *core) notifying() (masters mux.Set) {
	r := c.takeStates()
	defer c.putStates(r)
	for i := range r.states {
		if canNotify(&r.states[i]) {
			masters = masters.With(i)
		}
	}
	return masters
}

func (c *core) putStates(r *masterStates) { c.statePool.Put(r) }

// reachedAll reports whether the call, an attempt, was sent to every master that is connected. It is false if a
// master is in quarantine: that was not asked, and can vote soon.
func (c *core) reachedAll(k *call) bool {
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
func (c *core) sendRelease(s *spec, token []byte, rest time.Duration) {
	k := c.takeCall()
	defer c.putCall(k)
	k.linger(s, token, rest, false)
	k.op.Dialects = nil
	k.asText()
	c.rounds.Send(&k.op)
}

// hear asks the mux what became of the sets that are owed.
func (c *core) hear(s *quorum.Sets) {
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
func (c *core) beginRound(s *quorum.Sets, k *call) quorum.Trust {
	c.hear(s)
	k.op.Suspect, k.op.Unless = s.Doubted()
	return s.Begin()
}

// judge has the yes of suspects count for nothing, before a round is judged that began with that trust.
func (c *core) judge(s *quorum.Sets, t quorum.Trust, k *call) {
	c.hear(s)
	quorum.Discount(k.op.Votes, s.SuspectSince(t))
}

// repair has masters set a lock again after the round k. It returns the call, which is posted. The lock is valid, and
// whoever calls it guards its sets.
func (c *core) repair(s *spec, of *quorum.Sets, k *call, on mux.Set) (posted *call) {
	p := c.takeCall()
	p.repair(s, k.token, k.fence, k.ttl, on)
	c.rounds.Post(p.one[:]...)
	of.Sent(p.op.Asked, p.op.Started, c.now())
	return p
}

// forget ends a repair that nobody waits for.
func (c *core) forget(repair *call) {
	if repair != nil {
		c.rounds.Forget(&repair.op)
		c.putCall(repair)
	}
}

// sendUndo sends the release after an attempt that has failed. had says that it had the lock for a moment, so that this
// can have been revoked.
func (c *core) sendUndo(s *spec, token []byte, had bool) {
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
func (c *core) shortTimeout(timeout, least time.Duration) time.Duration {
	return min(timeout, max(4*c.rounds.RTT(), least))
}

// failure makes the error of a round. err is the mux's, and reason is what the votes say. If a context has ended
// the round, the caller adds that with blame.
func (c *core) failure(op Op, key string, k *call, err, reason error) *RoundError {
	e := unasked(op, key, reason, "")
	if e.cut = err != nil; err == mux.ErrTimeout {
		e.limit = k.op.Timeout
	}
	if reason == quorum.ErrUndecided {
		e.reason = nil
	}
	if errors.Is(err, mux.ErrClosed) {
		e.reason = ErrClosed
		return e
	}
	k.explainRefusals()
	e.Votes = appendVotes(make([]Vote, 0, len(c.masters)), c.masters, k.op.Votes, k.token)
	if reason == ErrNotHeld {
		e.noteRevoked(k.op.Votes, k.token)
		e.noteNoLock(k.op.Votes)
	}
	return e
}

// noteRevoked notes whether a master has the lock's tombstone. It notes that the lock is gone because it was revoked, if so
// many masters have it that nobody has a quorum without them. If fewer have it, the others may have lost the lock, and
// another may have had it. Or a majority has it, some of which say nothing now.
func (e *RoundError) noteRevoked(votes []mux.Vote, token []byte) {
	var reasons []string
	for i := range votes {
		v := &votes[i]
		if v.Verdict != VerdictNo {
			continue
		}
		why, ok := kind.RevokedIn(v.Reply, token)
		if !ok {
			continue
		}
		e.tombstone = true
		reasons = append(reasons, why)
	}
	if len(reasons) > len(votes)-quorum.Majority(len(votes)) {
		e.under, e.WhyRevoked = ErrRevoked, census.MostSaid(reasons)
	}
}

// noteNoLock notes that another's key is in the lock's place, if so many masters say so that nobody has a quorum.
func (e *RoundError) noteNoLock(votes []mux.Vote) {
	others := 0
	for i := range votes {
		if votes[i].Verdict == VerdictNo && kind.NoLockIn(votes[i].Reply) {
			others++
		}
	}
	if others > len(votes)-quorum.Majority(len(votes)) {
		e.note = census.Holder{}.NoLock()
	}
}

// entombed reports whether a master has the lock's tombstone, so that it may have been revoked.
func (e *RoundError) entombed() bool { return e != nil && (e.tombstone || e.revoked()) }

// observeRound tells the Observers of a round. left is what is left of the lock's validity. e is the round's error;
// nil if it succeeded.
func (c *core) observeRound(ctx context.Context, op Op, key string, k *call, left time.Duration, e *RoundError) {
	ev := c.events.begin(ctx, EventRound, key)
	if ev == nil {
		return
	}
	ev.Op, ev.Asked, ev.Started, ev.Took = op, len(c.masters), k.op.Started, k.op.Decided-k.op.Started
	ev.Held, ev.Failures, ev.TTL, ev.Fence, ev.Holders, ev.Keys = k.held, k.failures, k.about.ttl, k.fence, k.about.holders, k.about.keys
	ev.token = append(ev.token, k.token...)
	if ev.Started != 0 {
		ev.Boot = k.op.Decided
	}
	if e == nil {
		ev.Votes, ev.Validity = appendVotes(ev.Votes, c.masters, k.op.Votes, k.token), left
	} else if ev.Votes, ev.Err = append(ev.Votes, e.Votes...), e; op == OpLock {
		ev.Fence = 0 // it is a hint
	}
	c.events.end(ev)
}

// observeLetGo tells the Observers that a holder lets go of its lock.
func (c *core) observeLetGo(key string, token []byte, givenBack bool) {
	if ev := c.events.begin(context.Background(), EventLetGo, key); ev != nil {
		ev.GivenBack, ev.token = givenBack, append(ev.token, token...)
		c.events.end(ev)
	}
}

// learn takes the numbers in the votes of an acquire, so that the next hints are above them.
func (c *core) learn(votes []mux.Vote) {
	most := int64(0)
	for i := range votes {
		most = max(most, votes[i].Int, -votes[i].Int)
	}
	if most > 0 {
		c.hints.saw(uint64(most))
	}
}

// unbelieved finds the votes that have failed because a counter is too far ahead of the wall clock, or is no number. It puts
// that into the votes' errors. It returns the masters that can be mended, and what to say of all.
func (c *core) unbelieved(votes []mux.Vote) (far mux.Set, why string) {
	for i := range votes {
		v := &votes[i]
		if v.Verdict != VerdictFailed {
			continue
		}
		text := ""
		switch reply, said := v.Err.(*mux.ReplyError); {
		case said && reply.Code == "WRONGTYPE": // a script says that of a counter alone
			text, why = "a key of another type", noNumber
		case v.Int <= 0:
			continue
		default:
			far = far.With(i)
			text = farText(uint64(v.Int), c.hints.now())
			if uint64(v.Int) >= quorum.MaxFence {
				why = noNumber
			}
			why = cmp.Or(why, tooFarAhead)
		}
		v.Err = &mux.ReplyError{Code: "NOFENCE", Message: "NOFENCE its counter is " + text}
	}
	return far, why
}

// mend sets the counters of the masters far back to the fence of the lock that was just taken. It does nothing for
// a reader's lock. It waits for no answer.
func (c *core) mend(s *spec, k *call, far mux.Set) {
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
func (c *core) agreeOnFence(ctx context.Context, s *spec, k *call) (again bool, err error) {
	fence, agreed := quorum.Common(k.op.Votes, quorum.Majority(len(c.masters)))
	if agreed {
		k.fence = fence
		return false, nil
	}
	if fence == 0 { // all counters are lost
		fence = c.hints.next()
	}
	c.stats.raised.Add(1)
	started, suspect, unless := k.op.Started, k.op.Suspect, k.op.Unless
	k.raise(s, fence)
	k.op.Suspect, k.op.Unless = suspect, unless
	err = c.rounds.Do(ctx, &k.op)
	k.op.Started = started
	return true, err
}
