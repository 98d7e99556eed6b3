// Package kind says what each kind of lock is on the masters: what is sent, and how a reply is judged. It is
// pure: it knows no client, no clock and no socket, and it keeps no state of a round. Everything else (rounds,
// validity, renewal, waiting, quarantine, recheck, errors, statistics) is written once, for all kinds, in
// package redlock.
package kind

import (
	"strings"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// A Kind says what a lock is on the masters: what is sent to take it, to extend it, to
// release it and to look at it, and how each reply is judged.
//
// Each method fills in a request about a grant. A kind that has more keys than Grant.Key keeps them itself.
//
// The verdicts of the requests' judges mean:
//
//	Acquire   yes: this master has set the lock;  no: another's lock is in the way
//	Extend    yes: the lock was there, and has its full TTL again;
//	          no, with the integer [Gone]: it is gone, and no other lock is in the way;
//	          no, with its tombstone: it is revoked (see RevokedIn);
//	          no, with another integer: another's is there
//	Repair    yes: it was gone, and has been set again;  no: it is there, or another's is
//	Release   yes: the lock was there, and is gone;  no: it was not there, or its tombstone, which is the reply, was
//	Look      yes: the lock can be taken;  no, with an integer: it cannot be taken for that many
//	          milliseconds; an integer below 0: it is unknown for how long
//
// The verdict on an error is failed, or again if the master does not know a script and is to be sent its text.
//
// A release follows the acquires and extends of a lock on the same connection. It must undo everything that
// these have set under its token, and nothing that is under another token. An extend sets nothing. A repair
// sets what is gone of a lock, only where no other lock is in the way, and never beside its tombstone. Its
// answer decides nothing.
type Kind interface {
	Acquire(r *Request, g Grant)
	Extend(r *Request, g Grant)
	Repair(r *Request, g Grant)
	Release(r *Request, g Grant)
	Look(r *Request, key string)
}

// Gone is the reply to an Extend where the lock is gone, or some of its keys are, and nothing is in the way of a
// repair.
const Gone = -2

// A Grant is the lock that a request is about: one that is taken, or is to be taken.
type Grant struct {
	Key   string // the lock's name: in its queues, for watchers, and in errors
	Token []byte
	TTL   time.Duration
	Fence uint64 // of a numbered kind; 0 if it is not known

	Waited  time.Duration // of an acquire: for how long its Lock has waited
	Over    bool          // of a linger: nobody works under the lock any more
	Relies  bool          // of a slotted kind: there is an agreement, so the request need not look at the mark
	Untaken bool          // of a release: nobody has held the lock, so there is no tombstone
}

// Numbered is a kind that has a fence. Grant.Fence is the hint in an acquire, and the lock's fence in an
// extend, a repair, a raise and a mend. An extend without a fence asks for it. A release needs none.
//
//	Acquire   yes, with the integer f: the lock's number on this master;  no, with -f: the last lock's
//	Extend    without a fence: yes, with f
//	Raise     yes: the lock is there, and the counter is the fence or greater;  no: the lock is not there
//	Mend      yes: the lock is there, and the counter was too far ahead and is now the fence;  no: the
//	          lock is not there, or the counter was not too far ahead
//
// The verdict on a counter that is not believed is failed, with the integer.
type Numbered interface {
	Kind
	Raise(r *Request, g Grant)
	Mend(r *Request, g Grant)
}

// Passing is a numbered kind whose lock can be given to a next holder under the same token. Grant.Fence is the hint.
// If Grant.TTL is 0, a pass does not extend the lock, and notifies nobody who waits for it.
//
//	Pass   yes, with the integer f: the lock was there, it has its TTL again, and f is the next holder's number
//	       on this master, as if the lock had been released and taken;  no: it was not there
type Passing interface {
	Numbered
	Pass(r *Request, g Grant)
}

// Intending is a kind of a writer's lock, which readers exclude. The writer can leave an intent, and then new
// readers are refused. The token is the intent's, and no lock has it.
//
//	Intend     yes: readers hold the lock, and an intent is there;  no: no reader holds the lock
//	Withdraw   takes the intent away, if it has the token
type Intending interface {
	Kind
	Intend(r *Request, key string, token []byte)
	Withdraw(r *Request, key string, token []byte)
}

// Slotted is a kind with several slots, numbered from 1 on. Each slot is a lock by itself, and a holder has
// one of them. The slot is a part of the token, so the kind finds it in every grant. A look reads all slots:
//
//	Look      yes, with an array: the PTTL of each slot
type Slotted interface {
	Kind
	Slots() int
	Mark(token []byte, slot int) []byte // appends the slot to a fresh token
	AppendKey(dst, token []byte) []byte // appends the key of the slot that a token names: in grants it is the key
	Agrees(r *Request)                  // asks whether a master knows of no other number of slots, and changes nothing
}

// Lingering is a kind whose lock can be left on the masters for a while when it is released. A linger never
// makes the lock last longer, so one that comes late, even as a debt, does no harm.
//
//	Linger    yes: the lock was there, and lasts for Grant.TTL at most;  no: it was not there
type Lingering interface {
	Kind
	Linger(r *Request, g Grant)
}

// Readable is a kind whose keys hold the token and nothing else. A read changes nothing.
//
//	Read   yes: all keys hold the token;  no: one of them does not, or, with its tombstone, which is the reply: the
//	       lock is revoked
type Readable interface {
	Kind
	Read(r *Request, g Grant)
}

// A Request is what a round asks of each master, encoded. Its buffers are reused.
type Request struct {
	Command  []byte          // one or more commands
	Replies  int             // how many replies the command draws; 0 means 1. The last is judged
	Fallback []byte          // one command, for a master whose verdict was again; may be empty
	Judge    mux.VerdictFunc // judges each master's reply

	// Dialects say the same as Command, in the native commands of some servers. Each names the commands that
	// a server must have. They may be empty. A request with dialects needs a Fallback.
	Dialects [2]mux.Dialect

	Name []byte // buffer for a key, while it is encoded
}

// Reset empties the request and keeps its memory.
func (r *Request) Reset() {
	r.Command, r.Fallback, r.Replies, r.Judge = r.Command[:0], r.Fallback[:0], 0, nil
	for i := range r.Dialects {
		d := &r.Dialects[i]
		d.Needs, d.Command = 0, d.Command[:0]
	}
}

// Call makes the request a call of a script: by its hash, and by its text where a master does not know the
// hash. args appends n arguments.
func (r *Request) Call(s script.Script, n int, args func(dst []byte) []byte, keys ...string) {
	r.Command = args(s.AppendHash(r.Command, n, keys...))
	r.Fallback = args(s.AppendText(r.Fallback, n, keys...))
}

// CallOn is Call for a script whose keys are byte slices: rest appends the keys and then n arguments.
func (r *Request) CallOn(s script.Script, keys, n int, rest func(dst []byte) []byte) {
	r.Command = rest(s.AppendHead(r.Command, false, keys, n))
	r.Fallback = rest(s.AppendHead(r.Fallback, true, keys, n))
}

// Tracked begins a request of one command that reads: the master promises to notify when one of the keys
// that it reads changes next. A connection without tracking refuses the promise. Then the command only reads.
func (r *Request) Tracked() {
	r.Command = resp.AppendCommand(r.Command, "CLIENT", "CACHING", "YES")
	r.Replies = 2
}

// Text makes the request a call of a script by its text alone, for what is seldom sent, or must not be sent again behind
// what has followed it.
func (r *Request) Text(s script.Script, n int, args func(dst []byte) []byte, keys ...string) {
	r.Command = args(s.AppendText(r.Command, n, keys...))
}

// AppendTokenTTL appends the token and the TTL in ms, the first arguments of most scripts.
func AppendTokenTTL(dst []byte, g Grant) []byte {
	return resp.AppendBulkInt(resp.AppendBulk(dst, g.Token), g.TTL.Milliseconds())
}

// JudgeInt judges a script or a command that returns an integer: 1 is a yes, any other is a no. The error
// that the key holds no string is a no, too.
func JudgeInt(v resp.Value) mux.Verdict {
	if wrongType(v) {
		return mux.VerdictNo
	}
	return judgeNumber(v, 1, 1)
}

// JudgeOne is JudgeInt for a script that checks the key's type itself. So an error about a type is about
// a key beside the lock, and is failed.
func JudgeOne(v resp.Value) mux.Verdict { return judgeNumber(v, 1, 1) }

// judgeNumber judges a script that returns an integer: from least to most is a yes, any other is a no.
func judgeNumber(v resp.Value, least, most int64) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && least <= n && n <= most:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return JudgeError(v)
}

// wrongType reports whether a native command has met a key that holds no string. Such a key is not
// ours. (Our scripts do not fail on such a key.)
func wrongType(v resp.Value) bool {
	return string(v.ErrorCode()) == "WRONGTYPE" ||
		v.IsError() && strings.Contains(string(v.Bytes()), "should be of string type") // DELEX
}

// NoLockIn reports whether a master's no, to an extend, a release or a linger, says that the key holds no string.
func NoLockIn(reply resp.Value) bool { return reply.Is(script.NoLock) || wrongType(reply) }

// JudgeArray judges a script that returns an array: that is a yes.
func JudgeArray(v resp.Value) mux.Verdict {
	if v.Kind() == resp.Array {
		return mux.VerdictYes
	}
	return JudgeError(v)
}

// JudgeError judges an error, or a reply of the wrong type. A tombstone in the place of a number is a no, and so is
// script.NoLock.
func JudgeError(v resp.Value) mux.Verdict {
	switch {
	case string(v.ErrorCode()) == "NOSCRIPT":
		return mux.VerdictAgain
	case isTombstone(v), v.Is(script.NoLock):
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}
