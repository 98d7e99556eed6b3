package redlock

import (
	"strings"
	"time"
	"unsafe"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A kind says what a lock is on the masters: what is sent to take it, to extend it, to
// release it and to look at it, and how each reply is judged. It knows no client, no clock
// and no socket, and it keeps no state of a round. Everything else (rounds, validity,
// renewal, waiting, quarantine, recheck, errors, statistics) is written once, for all kinds.
//
// Each method fills in a request about a grant. A kind with further keys has them itself.
//
// The judges' verdicts mean:
//
//	acquire   yes: this master has set the lock;  no: another's lock is in the way
//	extend    yes: the lock was there, and has its full TTL again;
//	          no, with the integer [replyRestored]: it was gone, and has been set again;
//	          no, with another integer: it is gone, or another's is there
//	release   yes: the lock was there, and is gone;  no: it was not there
//	look      yes: the lock can be taken;  no, with an integer: it cannot for so many
//	          milliseconds; below 0: nobody knows how long
//
// An error reply is failed, or, if the text of a script is to be sent, again.
//
// A release follows an acquire and an extend on the same connection, and it must undo
// whatever these have set, under this token and no other. An extend sets a lock again only
// if restore is set, and only where no other is in the way.
type kind interface {
	acquire(r *request, g grant)
	extend(r *request, g grant, restore bool)
	release(r *request, g grant)
	look(r *request, key string)
}

// A grant is the lock that a request is about, to be taken or taken.
type grant struct {
	key   string // the lock's name: in its queues, for watchers, and in errors
	token []byte
	ttl   time.Duration
	fence uint64 // of a numbered kind; 0 if it is not known

	waited time.Duration // of an acquire: for how long its Lock has waited
	relies bool          // of a slotted kind: that all agree on the number of slots was found out lately
}

// numbered is a kind that can have a fence. grant.fence is the hint for an acquire, and the lock's
// fence for an extend and a raise; an extend without one asks for it. A release has none.
//
//	acquire   yes, with the integer f: the lock's number there;  no, with -f: of the last lock
//	extend    without a fence: yes, with f
//	raise     yes: the lock is there, and the counter is the fence or greater;  no: it is not there
//	mend      yes: the lock is there, and the counter, which was too far ahead, is the fence;  no: it is not
//
// A counter that is not believed is failed, with the integer.
type numbered interface {
	kind
	raise(r *request, g grant)
	mend(r *request, g grant)
}

// intending is a kind that shared locks exclude, and that can leave an intent: no new readers are let in then. The
// token is of the intent, and of no lock.
//
//	intend     yes: readers hold the lock, and an intent is there;  no: they do not
//	withdraw   takes the intent away, if it has the token
type intending interface {
	kind
	intend(r *request, key string, token []byte)
	withdraw(r *request, key string, token []byte)
}

// slotted is a kind whose lock is any of several slots, numbered from 1 on, each of which is a lock
// by itself. The slot is a part of the token, so the kind finds it in every grant. A look reads all
// slots:
//
//	look      yes, with an array: for each slot, what PTTL says of it
type slotted interface {
	kind
	slots() int
	mark(token []byte, slot int) []byte // appends the slot to a fresh token
	agrees(r *request)                  // asks whether a master knows of no other number of slots, and changes nothing
}

// lingering is a kind whose lock can be left on the masters when it is released, for a rest of its
// time. A linger never makes it last longer: a late one, or a debt, changes nothing any more.
//
//	linger    yes: the lock was there, and lasts for grant.ttl at most;  no: it was not there
type lingering interface {
	kind
	linger(r *request, g grant)
}

// A request is what a round asks of each master, encoded. Its buffers are reused.
type request struct {
	command  []byte          // one or more commands
	replies  int             // that the command draws; 0 means 1. The last is judged
	fallback []byte          // one command, for a master whose reply was judged to be again; may be empty
	judge    mux.VerdictFunc // of each reply

	// dialects say what the command says in the words of servers that have a command for it,
	// each for the server that is named. They may be empty, and need a fallback.
	dialects [2]mux.Dialect
}

// reset empties the request and keeps its memory.
func (r *request) reset() {
	r.command, r.fallback, r.replies, r.judge = r.command[:0], r.fallback[:0], 0, nil
	for i := range r.dialects {
		d := &r.dialects[i]
		d.Needs, d.Command = 0, d.Command[:0]
	}
}

// call makes the request a call of a script: by its hash, and by its text where a master does not
// know that. args appends n arguments.
func (r *request) call(s script, n int, args func(dst []byte) []byte, keys ...string) {
	r.command = args(s.appendHash(r.command, n, keys...))
	r.fallback = args(s.appendText(r.fallback, n, keys...))
}

// callOn is call for a script whose keys are no strings: rest appends so many keys, and then n
// arguments.
func (r *request) callOn(s script, keys, n int, rest func(dst []byte) []byte) {
	r.command = rest(s.appendHead(r.command, false, keys, n))
	r.fallback = rest(s.appendHead(r.fallback, true, keys, n))
}

// tracked begins a request of one command that reads: the master promises to notify of the next change of
// what it reads. A connection without tracking refuses the promise; then it is only a read.
func (r *request) tracked() {
	r.command = resp.AppendCommand(r.command, "CLIENT", "CACHING", "YES")
	r.replies = 2
}

// appendTokenTTL appends the token and the TTL in ms, as most scripts have them.
func appendTokenTTL(dst []byte, g grant) []byte {
	return resp.AppendBulkInt(resp.AppendBulk(dst, g.token), g.ttl.Milliseconds())
}

// spec is what is fixed when a Mutex is made.
type spec struct {
	kind kind
	*traits
	key     string
	term    term
	timeout time.Duration // of a round
}

// traits are how a lock differs from the plain one. It is apart, as most locks share it.
type traits struct {
	numbers    numbered // kind, if the lock has a fence; nil without
	slotted    slotted  // kind, if the lock has slots; nil without
	reader     bool     // it is a reader's: others may have it, too
	queueNames []string // see names; nil if that is the key

	owner string // in its tokens, instead of the client's; empty if that is meant

	lingers lingering     // kind, if the lock is left on the masters when it is released; nil without
	minHold time.Duration // for how long, counted as the validity is; 0 without

	second Second // behind the lock; nil without
}

var ordinary traits

// names returns the names of the queues in which one waits for the lock, sorted: its keys,
// or what those of all its slots have in common. They are also those of its subscription. It allocates
// nothing.
func (s *spec) names() []string {
	if s.queueNames == nil {
		return unsafe.Slice(&s.key, 1)
	}
	return s.queueNames
}

// life is for how long an attempt sets the lock: for the TTL, and for as long as it is to be left.
func (s *spec) life() time.Duration { return max(s.term.ttl, s.minHold) }

// plural reports whether several holders can have the lock at a time.
func (t *traits) plural() bool { return t.reader || t.slotted != nil }

// slots returns the number of locks that the lock can be: one, but of a slotted kind.
func (s *spec) slots() int {
	if s.slotted == nil {
		return 1
	}
	return s.slotted.slots()
}

// judgeInt judges a script or a command that returns an integer: 1 is a yes, any other a no. So is
// a key that does not hold a string.
func judgeInt(v resp.Value) mux.Verdict {
	if wrongType(v) {
		return mux.VerdictNo
	}
	return judgeNumber(v, 1, 1)
}

// judgeOne is judgeInt for a script that looks at the type of the key itself: an error says nothing
// of it, but of what is beside it.
func judgeOne(v resp.Value) mux.Verdict { return judgeNumber(v, 1, 1) }

// judgeNumber judges a script that returns an integer: from least to most is a yes, any other a no.
func judgeNumber(v resp.Value, least, most int64) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && least <= n && n <= most:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return judgeError(v)
}

// wrongType reports whether a native command has met a key that holds no string. Then it is not
// ours. (Our scripts do not fail there.)
func wrongType(v resp.Value) bool {
	return string(v.ErrorCode()) == "WRONGTYPE" ||
		v.IsError() && strings.Contains(string(v.Bytes()), "should be of string type") // DELEX
}

// judgeError judges what is no proper reply.
func judgeError(v resp.Value) mux.Verdict {
	if string(v.ErrorCode()) == "NOSCRIPT" {
		return mux.VerdictAgain
	}
	return mux.VerdictFailed
}
