// Package kind says what each kind of lock is on the masters: what is sent, and how a reply is judged. All of
// it is pure: it knows no client, no clock and no socket, and it keeps no state of a round. Everything else
// (rounds, validity, renewal, waiting, quarantine, recheck, errors, statistics) is written once, for all kinds.
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
// Each method fills in a request about a grant. A kind with further keys has them itself.
//
// The judges' verdicts mean:
//
//	Acquire   yes: this master has set the lock;  no: another's lock is in the way
//	Extend    yes: the lock was there, and has its full TTL again;
//	          no, with the integer [Restored]: it was gone, and has been set again;
//	          no, with another integer: it is gone, or another's is there
//	Release   yes: the lock was there, and is gone;  no: it was not there
//	Look      yes: the lock can be taken;  no, with an integer: it cannot for so many
//	          milliseconds; below 0: nobody knows how long
//
// An error reply is failed, or, if the text of a script is to be sent, again.
//
// A release follows an acquire and an extend on the same connection, and it must undo
// whatever these have set, under this token and no other. An extend sets a lock again only
// if restore is set, and only where no other is in the way.
type Kind interface {
	Acquire(r *Request, g Grant)
	Extend(r *Request, g Grant, restore bool)
	Release(r *Request, g Grant)
	Look(r *Request, key string)
}

// Restored is what an Extend replies if the lock was gone and has been set again. It is no yes: the masters
// that still had the lock decide first, and how many had lost it decides whether another can have held it.
const Restored = 2

// A Grant is the lock that a request is about, to be taken or taken.
type Grant struct {
	Key   string // the lock's name: in its queues, for watchers, and in errors
	Token []byte
	TTL   time.Duration
	Fence uint64 // of a numbered kind; 0 if it is not known

	Waited time.Duration // of an acquire: for how long its Lock has waited
	Relies bool          // of a slotted kind: that all agree on the number of slots was found out lately
}

// Numbered is a kind that can have a fence. Grant.Fence is the hint for an acquire, and the lock's
// fence for an extend and a raise; an extend without one asks for it. A release has none.
//
//	Acquire   yes, with the integer f: the lock's number there;  no, with -f: of the last lock
//	Extend    without a fence: yes, with f
//	Raise     yes: the lock is there, and the counter is the fence or greater;  no: it is not there
//	Mend      yes: the lock is there, and the counter, which was too far ahead, is the fence;  no: it is not
//
// A counter that is not believed is failed, with the integer.
type Numbered interface {
	Kind
	Raise(r *Request, g Grant)
	Mend(r *Request, g Grant)
}

// Intending is a kind that shared locks exclude, and that can leave an intent: no new readers are let in then. The
// token is of the intent, and of no lock.
//
//	Intend     yes: readers hold the lock, and an intent is there;  no: they do not
//	Withdraw   takes the intent away, if it has the token
type Intending interface {
	Kind
	Intend(r *Request, key string, token []byte)
	Withdraw(r *Request, key string, token []byte)
}

// Slotted is a kind whose lock is any of several slots, numbered from 1 on, each of which is a lock
// by itself. The slot is a part of the token, so the kind finds it in every grant. A look reads all
// slots:
//
//	Look      yes, with an array: for each slot, what PTTL says of it
type Slotted interface {
	Kind
	Slots() int
	Mark(token []byte, slot int) []byte // appends the slot to a fresh token
	Agrees(r *Request)                  // asks whether a master knows of no other number of slots, and changes nothing
}

// Lingering is a kind whose lock can be left on the masters when it is released, for a rest of its
// time. A linger never makes it last longer: a late one, or a debt, changes nothing any more.
//
//	Linger    yes: the lock was there, and lasts for Grant.TTL at most;  no: it was not there
type Lingering interface {
	Kind
	Linger(r *Request, g Grant)
}

// A Request is what a round asks of each master, encoded. Its buffers are reused.
type Request struct {
	Command  []byte          // one or more commands
	Replies  int             // that the command draws; 0 means 1. The last is judged
	Fallback []byte          // one command, for a master whose reply was judged to be again; may be empty
	Judge    mux.VerdictFunc // of each reply

	// Dialects say what the command says in the words of servers that have a command for it,
	// each for the server that is named. They may be empty, and need a fallback.
	Dialects [2]mux.Dialect
}

// Reset empties the request and keeps its memory.
func (r *Request) Reset() {
	r.Command, r.Fallback, r.Replies, r.Judge = r.Command[:0], r.Fallback[:0], 0, nil
	for i := range r.Dialects {
		d := &r.Dialects[i]
		d.Needs, d.Command = 0, d.Command[:0]
	}
}

// Call makes the request a call of a script: by its hash, and by its text where a master does not
// know that. args appends n arguments.
func (r *Request) Call(s script.Script, n int, args func(dst []byte) []byte, keys ...string) {
	r.Command = args(s.AppendHash(r.Command, n, keys...))
	r.Fallback = args(s.AppendText(r.Fallback, n, keys...))
}

// CallOn is Call for a script whose keys are no strings: rest appends so many keys, and then n
// arguments.
func (r *Request) CallOn(s script.Script, keys, n int, rest func(dst []byte) []byte) {
	r.Command = rest(s.AppendHead(r.Command, false, keys, n))
	r.Fallback = rest(s.AppendHead(r.Fallback, true, keys, n))
}

// Tracked begins a request of one command that reads: the master promises to notify of the next change of
// what it reads. A connection without tracking refuses the promise; then it is only a read.
func (r *Request) Tracked() {
	r.Command = resp.AppendCommand(r.Command, "CLIENT", "CACHING", "YES")
	r.Replies = 2
}

// appendTokenTTL appends the token and the TTL in ms, as most scripts have them.
func appendTokenTTL(dst []byte, g Grant) []byte {
	return resp.AppendBulkInt(resp.AppendBulk(dst, g.Token), g.TTL.Milliseconds())
}

// JudgeInt judges a script or a command that returns an integer: 1 is a yes, any other a no. So is
// a key that does not hold a string.
func JudgeInt(v resp.Value) mux.Verdict {
	if wrongType(v) {
		return mux.VerdictNo
	}
	return judgeNumber(v, 1, 1)
}

// JudgeOne is JudgeInt for a script that looks at the type of the key itself: an error says nothing
// of it, but of what is beside it.
func JudgeOne(v resp.Value) mux.Verdict { return judgeNumber(v, 1, 1) }

// judgeNumber judges a script that returns an integer: from least to most is a yes, any other a no.
func judgeNumber(v resp.Value, least, most int64) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && least <= n && n <= most:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return JudgeError(v)
}

// wrongType reports whether a native command has met a key that holds no string. Then it is not
// ours. (Our scripts do not fail there.)
func wrongType(v resp.Value) bool {
	return string(v.ErrorCode()) == "WRONGTYPE" ||
		v.IsError() && strings.Contains(string(v.Bytes()), "should be of string type") // DELEX
}

// JudgeError judges what is no proper reply.
func JudgeError(v resp.Value) mux.Verdict {
	if string(v.ErrorCode()) == "NOSCRIPT" {
		return mux.VerdictAgain
	}
	return mux.VerdictFailed
}
