package redlock

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

// A call is what one round needs: the operation, and the buffers into which its commands are
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
//	acquire           the lock's keys               Unlock; core.sendRelease, if it has failed and keys can be there
//	extend, adopt,    keys that last longer         Unlock; renewer.lose, if the lock is over (extension.mustUndo);
//	recheck                                         the next attempt of the Mutex (renewer.loseUnseen)
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
//	intend            an intent                     wait.withdraw, unless all that were asked have said no
//	enter             an entry, and a notice        globalQueues.leave, which takes both; the predecessor's notice
//	                                                goes with its entry, or ends by itself
//	renewal of one    an entry's life               globalQueues.leave: it ends the life, too
//	look              the promise to notify         nothing: no subscription is notified
//	revoke            the lock's tombstones         the release of the lock that was revoked; if its holder never
//	                                                comes, each ends when the key would have ended. Where the
//	                                                token is gone, a revoke does nothing
//
// A master that does not know a script says so, and is then sent its text. The text could come after the round
// that undoes it. So an acquire and an extend have a lease of their hold, and intend and enter have the lease of
// their call (core.doUndoable). The text is not sent once the lease has ended. A repair is sent as text. The other rounds have no effect once they are undone.
type call struct {
	op             mux.Op
	one            [1]*mux.Op // op, as the argument of Post; see roundCore.post
	request        kind.Request
	token          []byte        // of the lock
	ttl            time.Duration // how long the lock is to live
	fence          uint64        // of the lock; in an acquire, the hint
	leaseEpoch     uint64        // in an acquire, the epoch of its lease; 0 without
	waited         time.Duration // in an acquire, for how long its Lock has waited
	failures       int           // see Event.Failures
	held           time.Duration // in a release, for how long the lock was held; 0 if that is not known
	slot           int           // in an acquire of a slotted kind, the slot that it is to take
	relies         bool          // in an acquire of a slotted kind: it relies on an agreement
	untaken        bool          // in a release: the attempt has not taken the lock
	agreementEpoch uint64        // ... and the epoch of the agreements when it began
	about          about         // for the Observers
	kept           []mux.Vote    // of an acquire that has met a split (Mutex.resolve)
	roundLease     roundLease    // see core.doUndoable
	sets           quorum.Sets   // of an acquire
}

// about is what Observers are told of the lock of a round.
type about struct {
	ttl     time.Duration
	holders int
	keys    []string
}

func aboutLock(s *spec) about {
	a := about{s.term.TTL, s.slots(), nil}
	if s.reader {
		a.holders = 0
	}
	if s.slotted == nil {
		a.keys = s.queueNames
	}
	return a
}

// A roundLease is the lease of a round that is under way. Its number is odd meanwhile, and no two rounds have the
// same number.
type roundLease struct{ n atomic.Uint64 }

// Holds is for the mux: see mux.Lease.
func (l *roundLease) Holds(epoch uint64, _ time.Duration) bool { return l.n.Load() == epoch }

// prepare makes the operation a new one, with the request. It keeps the memory of the votes.
func (k *call) prepare(timeout time.Duration) {
	op, r := &k.op, &k.request
	op.Command, op.Fallback, op.Replies, op.Verdict = r.Command, r.Fallback, r.Replies, r.Judge
	op.Dialects, op.Lease, op.Epoch = r.Dialects[:], nil, 0
	op.Timeout = timeout
	op.All, op.Thorough, op.Lead, op.Keep, op.KeepNo, op.Persist = false, false, false, false, false, 0
	op.Only, op.Quorum, op.OnDecided, op.Awaited, op.Patient = 0, 0, nil, false, false
	op.Suspect, op.Unless, op.Grace = 0, mux.Sent{}, 0
}

// grant returns the lock that the round is about. It is valid until the request is encoded. It allocates nothing.
func (k *call) grant(s *spec) kind.Grant {
	g := kind.Grant{Key: s.onMasters(), Token: k.token, TTL: k.ttl, Fence: k.fence, Waited: k.waited, Relies: k.relies, Untaken: k.untaken}
	if s.slotted != nil {
		name := s.slotted.AppendKey(k.request.Name[:0], k.token)
		k.request.Name, g.Key = name, unsafe.String(unsafe.SliceData(name), len(name))
	}
	return g
}

// acquire makes the call an attempt to take the lock, under a fresh token. hint is the least fence that it asks
// for; 0 without a fence.
func (k *call) acquire(s *spec, owner string, hint uint64) {
	k.token, k.fence, k.leaseEpoch, k.ttl = appendToken(k.token[:0], owner), hint, 0, s.life()
	k.about = aboutLock(s)
	if s.slotted != nil {
		k.token = s.slotted.Mark(k.token, k.slot)
	}
	k.request.Reset()
	s.kind.Acquire(&k.request, k.grant(s))
	k.prepare(s.timeout)
}

// hint encodes the acquire again with another hint, for masters that are asked again.
func (k *call) hint(s *spec, hint uint64) {
	k.fence = hint
	k.request.Reset()
	s.kind.Acquire(&k.request, k.grant(s))
	k.op.Command, k.op.Fallback = k.request.Command, k.request.Fallback
}

// raise makes the call, which was an acquire or an extend, one that raises the counters to the fence.
func (k *call) raise(s *spec, fence uint64) {
	k.fence = fence
	k.request.Reset()
	s.numbers.Raise(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Thorough = true
}

// mend makes the call one that sets the counters of the masters far back to the lock's fence, where they are too
// far ahead.
func (k *call) mend(s *spec, token []byte, fence uint64, far mux.Set) {
	k.token, k.fence = append(k.token[:0], token...), fence
	k.request.Reset()
	s.numbers.Mend(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Only, k.op.Quorum = far, 1
}

// extend makes the call an extend of the lock that has the token and the fence. It is thorough: if there is no
// quorum, only all votes together can tell whether the lock is lost.
func (k *call) extend(s *spec, token []byte, fence uint64, ttl time.Duration) {
	k.token, k.fence, k.ttl = append(k.token[:0], token...), fence, ttl
	k.about = aboutLock(s)
	k.request.Reset()
	s.kind.Extend(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Thorough, k.op.KeepNo = true, true
}

// repair makes the call one that sets a lock again on masters where it is gone.
func (k *call) repair(s *spec, token []byte, fence uint64, ttl time.Duration, on mux.Set) {
	k.token, k.fence, k.ttl = append(k.token[:0], token...), fence, ttl
	k.request.Reset()
	s.kind.Repair(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Only, k.op.Quorum, k.op.All, k.op.Patient = on, 1, true, true
}

// asText has every master sent the text of the script, if it is a script: a master that does not know the script would be
// sent the text behind what has followed.
func (k *call) asText() {
	if !k.isText() {
		k.op.Command = k.op.Fallback
	}
}

func (k *call) isText() bool {
	return len(k.op.Fallback) == 0 || unsafe.SliceData(k.op.Command) == unsafe.SliceData(k.op.Fallback)
}

// pass makes the call one that asks for the number of the lock's next holder, and extends the lock unless ttl is 0. It
// is thorough, as an extend is.
func (k *call) pass(s *spec, token []byte, hint uint64, ttl time.Duration) {
	k.token, k.fence, k.ttl = append(k.token[:0], token...), hint, ttl
	k.request.Reset()
	s.kind.(kind.Passing).Pass(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Thorough, k.op.KeepNo = true, true
}

// release makes the call a release of the lock that has the token. A master that is away gets it when it is back,
// within the lock's life: after that the lock is gone anyway. It is thorough, as an extend is.
func (k *call) release(s *spec, token []byte) {
	k.linger(s, token, 0, false)
}

// linger is release, but leaves the lock on the masters for the rest, if rest is above 0. over says that nobody works
// under it any more.
func (k *call) linger(s *spec, token []byte, rest time.Duration, over bool) {
	k.token, k.ttl = append(k.token[:0], token...), rest
	k.request.Reset()
	if rest > 0 {
		g := k.grant(s)
		g.Over = over
		s.lingers.Linger(&k.request, g)
	} else {
		s.kind.Release(&k.request, k.grant(s))
	}
	k.prepare(s.timeout)
	k.op.Persist, k.op.Thorough, k.op.KeepNo = s.life(), true, true
}

// intend makes the call one that asks whether readers hold the lock, and leaves a writer's intent if they do.
func (k *call) intend(s *spec, intending kind.Intending, token []byte, timeout time.Duration) {
	k.request.Reset()
	intending.Intend(&k.request, s.onMasters(), token)
	k.prepare(timeout)
}

// withdraw makes the call one that takes the intent away. It is persistent, so that it also goes out while the
// client is being closed.
func (k *call) withdraw(s *spec, intending kind.Intending, token []byte) {
	k.request.Reset()
	intending.Withdraw(&k.request, s.onMasters(), token)
	k.prepare(s.timeout)
	k.op.Persist = kind.IntentLife
}

// agrees makes the call one that asks whether the masters know of no other number of slots.
func (k *call) agrees(s *spec) {
	k.request.Reset()
	s.slotted.Agrees(&k.request)
	k.prepare(s.timeout)
}

// read makes the call one that reads whether the masters have the lock with that token. It is thorough, as a release
// is.
func (k *call) read(s *spec, token []byte) {
	k.token, k.ttl = append(k.token[:0], token...), 0
	k.request.Reset()
	s.kind.(kind.Readable).Read(&k.request, k.grant(s))
	k.prepare(s.timeout)
	k.op.Thorough, k.op.KeepNo = true, true
}

// revoke makes the call one that revokes the lock on a key.
func (k *call) revoke(key string, shared bool, token, reason string, timeout time.Duration) {
	k.token = append(k.token[:0], token...)
	k.request.Reset()
	kind.Revoke(&k.request, key, shared, token, kind.Tombstone(token, reason))
	k.prepare(timeout)
	k.op.Thorough = true
}

// look makes the call one that reads whether the lock is held, and for how long.
func (k *call) look(s *spec, timeout time.Duration) {
	k.request.Reset()
	s.kind.Look(&k.request, s.onMasters())
	k.prepare(timeout)
	k.op.All, k.op.Keep = true, s.slotted != nil
}

// explainRefusals puts into the errors of the votes what the user lacks, where that is why they have failed. Some
// servers do not name a command that a script may not call.
func (k *call) explainRefusals() {
	for i := range k.op.Votes {
		reply, ok := k.op.Votes[i].Err.(*mux.ReplyError)
		if !ok || reply.Code != "NOPERM" {
			continue
		}
		sent := k.request.Command
		if len(k.request.Fallback) > 0 { // which has a script's text
			sent = k.request.Fallback
		}
		if lacks := rights.Explain(reply.Message, sent); lacks != "" {
			k.op.Votes[i].Err = &mux.ReplyError{Code: reply.Code, Message: reply.Message + " (" + lacks + ")"}
		}
	}
}

// ask makes the call one of a script that only reads. If it is tracked, the masters are to notify of the next change of
// what it reads. They promise that for one command, so the script's text is sent.
func (k *call) ask(s script.Script, judge mux.VerdictFunc, timeout time.Duration, tracked bool, keys []string, args ...string) {
	k.token = k.token[:0]
	r := &k.request
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
	k.prepare(timeout)
	k.op.All, k.op.Keep = true, true
}

const tokenBytes = 20 // of randomness

// appendToken appends a fresh token: an owner, if there is one, a slash, and 160 random bits.
// Every attempt has a new one, so that a late answer or a late release of one attempt can never
// concern another.
func appendToken(dst []byte, owner string) []byte {
	var raw [tokenBytes]byte
	rand.Read(raw[:]) // never fails
	if owner != "" {
		dst = append(append(dst, owner...), '/')
	}
	return base64.RawURLEncoding.AppendEncode(dst, raw[:])
}
