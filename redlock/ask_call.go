package redlock

import (
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
)

// A call is what one round needs: the operation and the buffers its commands
// are encoded into. Calls are pooled by the core and not owned by a Mutex, so
// a lock that is only held is small.
//
// # Stragglers
//
// A round can be decided, or its context can end, before all masters have answered. The others do
// what they were asked all the same. On one connection the order is kept, and a connection that breaks
// owes what is persistent. So what is sent later, to every master that was asked, undoes it.
//
//	round             what a straggler leaves       who undoes it
//	acquire           the lock's keys               Unlock; core.sendRelease, if it has failed and keys can be there
//	extend, adopt     the same keys, set again      Unlock; giveBack, if the lock is over (extension.mustUndo)
//	raise, a counter  a counter that is higher      nobody: it must not go down. Where the token is gone, a
//	                                                raise does nothing
//	mend              nothing                       nobody: where the token is gone, it does nothing
//	mark of permits   {key}:permits                 nobody: it ends by itself, and says what all say
//	release, linger   nothing                       nobody: a linger only shortens
//	intend            an intent                     wait.withdraw, unless all that were asked have said no
//	enter             an entry, and a notice        globalQueues.leave, which takes both; the predecessor's notice
//	                                                goes with its entry, or ends by itself
//	renewal of one    an entry's life               globalQueues.leave: it ends the life, too
//	look              the promise to notify         nobody: no subscription is notified
//
// A master that does not know the script is sent its text when it says so. That could be after what
// undoes it. So an acquire and an extend have the lease of their hold, intend and enter that of the call
// (core.doUndoable). The others have no effect once they are undone.
type call struct {
	op             mux.Op
	one            [1]*mux.Op // op, as the argument of Post
	request        kind.Request
	token          []byte        // that the round is for
	ttl            time.Duration // ... and for how long it is to be there
	fence          uint64        // ... and its fence, or the hint for an acquire
	leaseEpoch     uint64        // ... and the epoch of the lease of an acquire; 0 without
	waited         time.Duration // ... and for how long its Lock has waited
	held           time.Duration // ... and for how long it was held, for a release; 0 if that is not known
	slot           int           // ... that an acquire is to take, of a slotted kind
	relies         bool          // ... whose number of slots was agreed to lately
	agreementEpoch uint64        // ... and the epoch of the agreements
	votes          []Vote        // for the Observer
	earlyVotes     []earlyVote   // of an acquire in turn
	order          []int         // ... in which the masters are asked
	key            []byte        // of what is beside a queue, while it is encoded
	asked          int           // masters that were asked, in turn; 0 if all were
	roundLease     roundLease    // see core.doUndoable
}

// A roundLease is that of a round that is under way. It is odd while one is, and never the same again.
type roundLease struct{ n atomic.Uint64 }

// Holds is for the mux: see mux.Lease.
func (l *roundLease) Holds(epoch uint64, _ time.Duration) bool { return l.n.Load() == epoch }

// An earlyVote is that of a master that was asked before the others.
type earlyVote struct {
	master int
	vote   mux.Vote
}

func newCall() any {
	k := new(call)
	k.one[0] = &k.op
	return k
}

// prepare makes the operation a new one with the request. It keeps the votes' memory.
func (k *call) prepare(timeout time.Duration) {
	op, r := &k.op, &k.request
	op.Command, op.Fallback, op.Replies, op.Verdict = r.Command, r.Fallback, r.Replies, r.Judge
	op.Dialects, op.Lease, op.Epoch = r.Dialects[:], nil, 0
	op.Timeout = timeout
	op.All, op.Thorough, op.Keep, op.Persist = false, false, false, 0
	op.Only, op.Quorum, op.OnDecided, op.Awaited = 0, 0, nil, false
}

// grant is the lock that the round is about.
func (k *call) grant(s *spec) kind.Grant {
	return kind.Grant{Key: s.key, Token: k.token, TTL: k.ttl, Fence: k.fence, Waited: k.waited, Relies: k.relies}
}

// acquire makes the call an attempt to take the lock, under a fresh token, with a hint of the
// fence.
func (k *call) acquire(s *spec, owner string, hint uint64) {
	k.token, k.fence, k.leaseEpoch, k.ttl = appendToken(k.token[:0], owner), hint, 0, s.life()
	if s.slotted != nil {
		k.token = s.slotted.Mark(k.token, k.slot)
	}
	k.request.Reset()
	s.kind.Acquire(&k.request, k.grant(s))
	k.prepare(s.timeout)
}

// hint encodes the acquire again, with another hint, for the masters that are still to be asked.
func (k *call) hint(s *spec, hint uint64) {
	k.fence = hint
	k.request.Reset()
	s.kind.Acquire(&k.request, k.grant(s))
	k.op.Command, k.op.Fallback = k.request.Command, k.request.Fallback
}

// raise makes the call, which was an attempt or an extend, one that raises the counters to the
// fence.
func (k *call) raise(s *spec, fence uint64) {
	k.fence = fence
	k.request.Reset()
	s.numbers.Raise(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Thorough = true
}

// mend makes the call one that sets the counters of some masters back to the fence of the lock that has the
// token, if they are too far ahead.
func (k *call) mend(s *spec, token []byte, fence uint64, far mux.Set) {
	k.token, k.fence = append(k.token[:0], token...), fence
	k.request.Reset()
	s.numbers.Mend(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Only, k.op.Quorum = far, 1
}

// extend makes the call an extend of the lock that has the token and the fence. If it fails, only
// all votes can tell whether the lock was lost.
func (k *call) extend(s *spec, token []byte, fence uint64, ttl time.Duration, restore bool) {
	k.token, k.fence, k.ttl = append(k.token[:0], token...), fence, ttl
	k.request.Reset()
	s.kind.Extend(&k.request, k.grant(s), restore)
	k.prepare(s.timeout)
	k.op.Thorough = true
}

// release makes the call a release of the lock that has the token. It is delivered however
// long that takes, within the TTL: after that the lock is gone without it. If it fails, only
// all votes can tell whether the lock was lost.
func (k *call) release(s *spec, token []byte) {
	k.linger(s, token, 0)
}

// linger is release, but leaves a lock that is ours for the rest, if that is above 0.
func (k *call) linger(s *spec, token []byte, rest time.Duration) {
	k.token, k.ttl = append(k.token[:0], token...), rest
	k.request.Reset()
	if rest > 0 {
		s.lingers.Linger(&k.request, k.grant(s))
	} else {
		s.kind.Release(&k.request, k.grant(s))
	}
	k.prepare(s.timeout)
	k.op.Persist, k.op.Thorough = s.life(), true
}

// intend makes the call one that asks whether readers hold the lock, and leaves the intent of a writer.
func (k *call) intend(s *spec, courts kind.Intending, token []byte, timeout time.Duration) {
	k.request.Reset()
	courts.Intend(&k.request, s.key, token)
	k.prepare(timeout)
}

// withdraw makes the call one that takes the intent away, also that of a client that is being closed.
func (k *call) withdraw(s *spec, courts kind.Intending, token []byte) {
	k.request.Reset()
	courts.Withdraw(&k.request, s.key, token)
	k.prepare(s.timeout)
	k.op.Persist = kind.IntentLife
}

// agrees makes the call a question whether the masters know of no other number of slots.
func (k *call) agrees(s *spec) {
	k.request.Reset()
	s.slotted.Agrees(&k.request)
	k.prepare(s.timeout)
}

// look makes the call a read of how long the lock is held.
func (k *call) look(s *spec, timeout time.Duration) {
	k.request.Reset()
	s.kind.Look(&k.request, s.key)
	k.prepare(timeout)
	k.op.All, k.op.Keep = true, s.slotted != nil
}
