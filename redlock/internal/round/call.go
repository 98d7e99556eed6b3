package round

import (
	"crypto/rand"
	"encoding/base64"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// A Call is what one round needs: the operation, and the buffers into which its commands are
// encoded. Calls are pooled by the core and not owned by a Mutex, so a lock that is only held is
// small.
//
// # Stragglers
//
// A round can be decided, or its context can end, before all masters have answered. The other masters
// carry out the command all the same. A later round undoes what they leave: it goes to every master that was
// asked. One connection keeps the order of commands, and if a connection breaks, what is persistent becomes
// a debt.
//
//	round             what a straggler leaves       what undoes it
//	acquire           the lock's keys               Unlock; Core.SendUndo, if it has failed and keys can be there
//	extend, adopt,    keys that last longer         Unlock; renewer.lose, if the lock is over (extension.mustUndo);
//	recheck                                         the next attempt of the Mutex (renewer.noteLost)
//	repair            the lock's keys               likewise; and their yes does not count (internal/quorum/suspect.go)
//	raise, a counter  a counter that is higher      nothing: it must not go down. Where the token is gone, a
//	                                                raise does nothing
//	pass              the same, and the keys' TTL   the same; the release of its last holder
//	extend of a       keys that last longer         the release of its last holder; renewer.lose, if the lock is lost
//	relay
//	read              nothing                       nothing
//	mend              nothing                       nothing: where the token is gone, it does nothing
//	mark of permits   {key}:permits                 nothing: it ends by itself, and all agree on what it says
//	release, linger   nothing                       nothing: a linger only shortens
//	intend            an intent                     wait.withdraw, unless all that were asked have said no; it ends in 3 s if Close is faster
//	enter             an entry, and a notice        GlobalQueues.Leave, which takes both; the predecessor's notice
//	                                                goes with its entry, or ends by itself
//	renewal of one    an entry's life               GlobalQueues.Leave: it ends the life, too
//	look              the promise to notify         nothing: no subscription is notified
//	revoke            the lock's tombstones         the release of the lock that was revoked; if its holder never
//	                                                comes, each ends when the key would have ended. Where the
//	                                                token is gone, a revoke does nothing
//
// A master that does not know a script says so, and is then sent its text. The text could come after the round
// that undoes it. So an acquire and an extend have a lease of their hold, and intend and enter have the lease of
// their call (Core.DoUndoable). The text is not sent once the lease has ended. A repair is sent as text. The other rounds have no effect once they are undone.
type Call struct {
	Op             mux.Op
	one            [1]*mux.Op // op, as the argument of Post; see Core.Post
	Request        kind.Request
	Token          []byte        // of the lock
	TTL            time.Duration // how long the lock is to live
	Fence          uint64        // of the lock; in an acquire, the hint
	LeaseEpoch     uint64        // in an acquire, the epoch of its lease; 0 without
	Waited         time.Duration // in an acquire, for how long its Lock has waited
	Failures       int           // see Event.Failures
	Held           time.Duration // in a release, for how long the lock was held; 0 if that is not known
	Slot           int           // in an acquire of a slotted kind, the slot that it is to take
	Relies         bool          // in an acquire of a slotted kind: it relies on an agreement
	AgreementEpoch uint64        // ... and the epoch of the agreements when it began
	untaken        bool          // in a release: the attempt has not taken the lock
	About          About         // for the Observers
	Kept           []mux.Vote    // of an acquire that has met a split (Mutex.resolve)
	roundLease     roundLease    // see Core.DoUndoable
	Sets           quorum.Sets   // of an acquire
}

// About is what Observers are told of the lock of a round.
type About struct {
	TTL     time.Duration
	Holders int
	Keys    []string
}

// AboutLock returns what they are told of a lock.
func AboutLock(s *Spec) About {
	a := About{s.Term.TTL, s.Slots(), nil}
	if s.Reader {
		a.Holders = 0
	}
	if s.Slotted == nil {
		a.Keys = s.QueueNames
	}
	return a
}

// A roundLease is the lease of a round that is under way. Its number is odd meanwhile, and no two rounds have the
// same number.
type roundLease struct{ n atomic.Uint64 }

// Holds is for the mux: see mux.Lease.
func (l *roundLease) Holds(epoch uint64, _ time.Duration) bool { return l.n.Load() == epoch }

// Reset makes the call as a new one before another has it from a pool. It keeps memory, and the number of its lease. The
// operation is made new by Prepare.
func (k *Call) Reset() {
	k.Request.Reset()
	k.Token, k.Kept, k.About, k.Sets = k.Token[:0], k.Kept[:0], About{}, quorum.Sets{}
	k.TTL, k.Fence, k.LeaseEpoch, k.Waited, k.Failures, k.Held = 0, 0, 0, 0, 0, 0
	k.Slot, k.Relies, k.untaken, k.AgreementEpoch = 0, false, false, 0
}

// Prepare makes the operation a new one, with the request. It keeps the memory of the votes.
func (k *Call) Prepare(timeout time.Duration) {
	op, r := &k.Op, &k.Request
	op.Command, op.Fallback, op.Replies, op.Verdict = r.Command, r.Fallback, r.Replies, r.Judge
	op.Dialects, op.Lease, op.Epoch = r.Dialects[:], nil, 0
	op.Timeout = timeout
	op.All, op.Thorough, op.Lead, op.Keep, op.KeepNo, op.Persist = false, false, false, false, false, 0
	op.Only, op.Quorum, op.OnDecided, op.Awaited, op.Patient = 0, 0, nil, false, false
	op.Suspect, op.Unless, op.Grace = 0, mux.Sent{}, 0
}

// Grant returns the lock that the round is about. It is valid until the request is encoded. It allocates nothing.
func (k *Call) Grant(s *Spec) kind.Grant {
	g := kind.Grant{Key: s.OnMasters(), Token: k.Token, TTL: k.TTL, Fence: k.Fence, Waited: k.Waited, Relies: k.Relies, Untaken: k.untaken}
	if s.Slotted != nil {
		name := s.Slotted.AppendKey(k.Request.Name[:0], k.Token)
		k.Request.Name, g.Key = name, unsafe.String(unsafe.SliceData(name), len(name))
	}
	return g
}

// Acquire makes the call an attempt to take the lock, under a fresh token. hint is the least fence that it asks
// for; 0 without a fence.
func (k *Call) Acquire(s *Spec, owner string, hint uint64) {
	k.Token, k.Fence, k.LeaseEpoch, k.TTL = AppendToken(k.Token[:0], owner), hint, 0, s.Life()
	k.About = AboutLock(s)
	if s.Slotted != nil {
		k.Token = s.Slotted.Mark(k.Token, k.Slot)
	}
	k.Request.Reset()
	s.Kind.Acquire(&k.Request, k.Grant(s))
	k.Prepare(s.Timeout)
}

// Hint encodes the acquire again with another hint, for masters that are asked again.
func (k *Call) Hint(s *Spec, hint uint64) {
	k.Fence = hint
	k.Request.Reset()
	s.Kind.Acquire(&k.Request, k.Grant(s))
	k.Op.Command, k.Op.Fallback = k.Request.Command, k.Request.Fallback
}

// Raise makes the call, which was an acquire or an extend, one that raises the counters to the fence.
func (k *Call) Raise(s *Spec, fence uint64) {
	k.Fence = fence
	k.Request.Reset()
	s.Numbers.Raise(&k.Request, k.Grant(s))
	k.Prepare(s.Timeout)
	k.Op.Thorough = true
}

// mend makes the call one that sets the counters of the masters far back to the lock's fence, where they are too
// far ahead.
func (k *Call) mend(s *Spec, token []byte, fence uint64, far mux.Set) {
	k.Token, k.Fence = append(k.Token[:0], token...), fence
	k.Request.Reset()
	s.Numbers.Mend(&k.Request, k.Grant(s))
	k.Prepare(s.Timeout)
	k.Op.Only, k.Op.Quorum = far, 1
}

// Extend makes the call an extend of the lock that has the token and the fence. It is thorough: if there is no
// quorum, only all votes together can tell whether the lock is lost.
func (k *Call) Extend(s *Spec, token []byte, fence uint64, ttl time.Duration) {
	k.Token, k.Fence, k.TTL = append(k.Token[:0], token...), fence, ttl
	k.About = AboutLock(s)
	k.Request.Reset()
	s.Kind.Extend(&k.Request, k.Grant(s))
	k.Prepare(s.Timeout)
	k.Op.Thorough, k.Op.KeepNo = true, true
}

// Repair makes the call one that sets a lock again on masters where it is gone.
func (k *Call) Repair(s *Spec, token []byte, fence uint64, ttl time.Duration, on mux.Set) {
	k.Token, k.Fence, k.TTL = append(k.Token[:0], token...), fence, ttl
	k.Request.Reset()
	s.Kind.Repair(&k.Request, k.Grant(s))
	k.Prepare(s.Timeout)
	k.Op.Only, k.Op.Quorum, k.Op.All, k.Op.Patient = on, 1, true, true
}

// Pass makes the call one that asks for the number of the lock's next holder, and extends the lock unless ttl is 0. It
// is thorough, as an extend is.
func (k *Call) Pass(s *Spec, token []byte, hint uint64, ttl time.Duration) {
	k.Token, k.Fence, k.TTL = append(k.Token[:0], token...), hint, ttl
	k.Request.Reset()
	s.Kind.(kind.Passing).Pass(&k.Request, k.Grant(s))
	k.Prepare(s.Timeout)
	k.Op.Thorough, k.Op.KeepNo = true, true
}

// Release makes the call a release of the lock that has the token. A master that is away gets it when it is back,
// within the lock's life: after that the lock is gone anyway. It is thorough, as an extend is.
func (k *Call) Release(s *Spec, token []byte) {
	k.Linger(s, token, 0, false)
}

// Linger is release, but leaves the lock on the masters for the rest, if rest is above 0. over says that nobody works
// under it any more.
func (k *Call) Linger(s *Spec, token []byte, rest time.Duration, over bool) {
	k.Token, k.TTL = append(k.Token[:0], token...), rest
	k.Request.Reset()
	if rest > 0 {
		g := k.Grant(s)
		g.Over = over
		s.Lingers.Linger(&k.Request, g)
	} else {
		s.Kind.Release(&k.Request, k.Grant(s))
	}
	k.Prepare(s.Timeout)
	k.Op.Persist, k.Op.Thorough, k.Op.KeepNo = s.Life(), true, true
}

// Intend makes the call one that asks whether readers hold the lock, and leaves a writer's intent if they do.
func (k *Call) Intend(s *Spec, intending kind.Intending, token []byte, timeout time.Duration) {
	k.Request.Reset()
	intending.Intend(&k.Request, s.OnMasters(), token)
	k.Prepare(timeout)
}

// Withdraw makes the call one that takes the intent away. It is persistent, so that it also goes out while the
// client is being closed.
func (k *Call) Withdraw(s *Spec, intending kind.Intending, token []byte) {
	k.Request.Reset()
	intending.Withdraw(&k.Request, s.OnMasters(), token)
	k.Prepare(s.Timeout)
	k.Op.Persist = kind.IntentLife
}

// Agrees makes the call one that asks whether the masters know of no other number of slots.
func (k *Call) Agrees(s *Spec) {
	k.Request.Reset()
	s.Slotted.Agrees(&k.Request)
	k.Prepare(s.Timeout)
}

// Read makes the call one that reads whether the masters have the lock with that token. It is thorough, as a release
// is.
func (k *Call) Read(s *Spec, token []byte) {
	k.Token, k.TTL = append(k.Token[:0], token...), 0
	k.Request.Reset()
	s.Kind.(kind.Readable).Read(&k.Request, k.Grant(s))
	k.Prepare(s.Timeout)
	k.Op.Thorough, k.Op.KeepNo = true, true
}

// Revoke makes the call one that revokes the lock on a key.
func (k *Call) Revoke(key string, shared bool, token, reason string, timeout time.Duration) {
	k.Token = append(k.Token[:0], token...)
	k.Request.Reset()
	kind.Revoke(&k.Request, key, shared, token, kind.Tombstone(token, reason))
	k.Prepare(timeout)
	k.Op.Thorough = true
}

// Look makes the call one that reads whether the lock is held, and for how long.
func (k *Call) Look(s *Spec, timeout time.Duration) {
	k.Request.Reset()
	s.Kind.Look(&k.Request, s.OnMasters())
	k.Prepare(timeout)
	k.Op.All, k.Op.Keep = true, s.Slotted != nil
}

// ExplainRefusals puts into the errors of the votes what the user lacks, where that is why they have failed. Some
// servers do not name a command that a script may not call.
func (k *Call) ExplainRefusals() {
	for i := range k.Op.Votes {
		reply, ok := k.Op.Votes[i].Err.(*mux.ReplyError)
		if !ok || reply.Code != "NOPERM" {
			continue
		}
		sent := k.Request.Command
		if len(k.Request.Fallback) > 0 { // which has a script's text
			sent = k.Request.Fallback
		}
		if lacks := rights.Explain(reply.Message, sent); lacks != "" {
			k.Op.Votes[i].Err = &mux.ReplyError{Code: reply.Code, Message: reply.Message + " (" + lacks + ")"}
		}
	}
}

// Ask makes the call one of a script that only reads. If it is tracked, the masters are to notify of the next change of
// what it reads. They promise that for one command, so the script's text is sent.
func (k *Call) Ask(s script.Script, judge mux.VerdictFunc, timeout time.Duration, tracked bool, keys []string, args ...string) {
	k.Token = k.Token[:0]
	r := &k.Request
	r.Reset()
	r.Judge = judge
	appendArgs := func(dst []byte) []byte {
		for _, arg := range args {
			dst = resp.AppendBulkString(dst, arg)
		}
		return dst
	}
	if tracked {
		r.Tracked()
		r.Text(s, len(args), appendArgs, keys...)
	} else {
		r.Call(s, len(args), appendArgs, keys...)
	}
	k.Prepare(timeout)
	k.Op.All, k.Op.Keep = true, true
}

// TokenBytes is how many random bytes a token has.
const TokenBytes = 20

// AppendToken appends a fresh token: an owner, if there is one, a slash, and 160 random bits.
// Every attempt has a new one, so that a late answer or a late release of one attempt can never
// concern another.
func AppendToken(dst []byte, owner string) []byte {
	var raw [TokenBytes]byte
	rand.Read(raw[:]) // never fails
	if owner != "" {
		dst = append(append(dst, owner...), '/')
	}
	return base64.RawURLEncoding.AppendEncode(dst, raw[:])
}
