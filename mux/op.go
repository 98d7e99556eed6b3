package mux

import (
	"time"

	"github.com/redburst/redburst/resp"
)

// A Verdict is what one master's reply means for an operation.
type Verdict uint8

const (
	// VerdictPending: no reply has been judged, because none came before the
	// decision or because the master was not asked.
	VerdictPending Verdict = iota
	// VerdictYes counts towards the quorum.
	VerdictYes
	// VerdictNo: the master answered, and its answer counts against.
	VerdictNo
	// VerdictFailed: the master could not answer, or answered with an error; the
	// vote's Err says why.
	VerdictFailed
	// VerdictAgain asks for Op.Fallback to be sent to this master, once. It is a
	// judge's word only and never stands in a Vote.
	VerdictAgain
)

// String returns the verdict in one word.
func (v Verdict) String() string {
	switch v {
	case VerdictPending:
		return "pending"
	case VerdictYes:
		return "yes"
	case VerdictNo:
		return "no"
	case VerdictFailed:
		return "failed"
	case VerdictAgain:
		return "again"
	}
	return "invalid"
}

// A Vote is one master's part in the decision of an operation.
type Vote struct {
	Verdict Verdict
	RTT     time.Duration // from the operation's start to the reply; 0 without one
	Int     int64         // the judged reply, if it was an integer
	Err     error         // why the verdict is Failed
	Reply   resp.Value    // a clone of the judged reply, if Op.Keep is set
}

// A Judge says what a reply means. It is called with the Mux locked, so it
// must neither block nor call the Mux, and it is called for stragglers too,
// after the operation's caller has returned: it must be a pure function of
// the reply. Error replies are judged like any other; the usual answer to
// them is Failed. The reply borrows the connection's buffer.
type Judge func(reply resp.Value) Verdict

// An Op is one command to all masters. The caller sets the first group of
// fields, submits it with [Mux.Do], or with [Mux.Post] and [Mux.Wait], and
// reads the results. An Op is used by one goroutine at a time; it can be
// reused as soon as it was decided, whatever replies are still owed to it.
// Reusing an Op makes the path free of allocation.
type Op struct {
	// Command holds one or more encoded commands, the same for each master.
	// It is copied when the Op is submitted, and may have 2 MiB together with the
	// Fallback. An Op without a command asks
	// nothing: it only waits, and reads pushes while it does, until its
	// timeout, its context or Forget ends it.
	Command []byte
	// Replies is the number of replies the Command draws from a master; zero
	// means one. The last is judged, those before it are skipped.
	Replies int
	// Fallback is sent to a master whose verdict was Again, at most once; it
	// draws one reply.
	Fallback []byte
	// Judge is called for each master's (last) reply.
	Judge Judge
	// Only is the set of masters to ask; the empty set means all.
	// The others' votes stay pending.
	Only Set
	// Quorum is the number of yes votes that decides; zero means a majority
	// of all masters.
	Quorum int
	// All waits for every master's vote instead of deciding early.
	All bool
	// Thorough decides early only by a quorum of yes: where that has become
	// impossible it waits for every master's vote, because they say why.
	Thorough bool
	// Timeout bounds the operation from its start; zero means no bound but
	// the context's.
	Timeout time.Duration
	// Persist, if above zero, makes the operation a debt wherever it may not
	// have been applied: at a master that is down, or whose connection ends
	// before its reply has come, it is delivered first thing after the
	// reconnect, until Persist has passed since the start; or even then, if that
	// connection has left commands unanswered, which a master that was frozen may
	// do later than that: then Persist begins anew with the delivery, once for each
	// master. A master that answers with an error that passes, BUSY
	// or NOREPLICAS, is sent it again. The operation must be idempotent. The
	// Fallback is what is delivered, if there is one,
	// since a script may be gone by then.
	Persist time.Duration
	// Keep stores a clone of each judged reply in the votes.
	Keep bool

	// Votes has one entry for each master, in the order of Config.Masters.
	// It is valid after Do or Wait have returned and until the Op is
	// submitted again.
	Votes []Vote
	// Started and Decided are conn.Now before the first byte was written and
	// at the decision.
	Started, Decided time.Duration
	// Asked is the set of masters that it was queued to, whatever became of it there.
	// If it is empty, nothing was written and nothing will be,
	// short of the debts of an operation that persists.
	Asked Set

	// Guarded by Mux.mu from submission to decision.
	f          *flight
	yes, open  int  // votes: yes so far, and still pending
	quorum     int  // Quorum, or the majority
	pending    bool // submitted and not decided
	waiting    bool // its caller is in Wait
	drive      bool // its caller was given the drive
	err        error
	deadline   time.Duration
	prev, next *Op // Mux.ops
	wake       chan struct{}
}

// Count returns the number of votes of each kind. Those pending after the
// decision are votes that came too late or were not asked for.
func (op *Op) Count() (yes, no, failed, pending int) {
	for i := range op.Votes {
		switch op.Votes[i].Verdict {
		case VerdictYes:
			yes++
		case VerdictNo:
			no++
		case VerdictFailed:
			failed++
		default:
			pending++
		}
	}
	return yes, no, failed, pending
}

// Won reports whether a quorum said yes.
func (op *Op) Won() bool { return op.yes >= op.quorum && op.quorum > 0 }

// signal wakes the Op's caller. At most one signal is outstanding: whoever
// takes it looks at all of the Op's state, under mu.
func (op *Op) signal() {
	select {
	case op.wake <- struct{}{}:
	default:
	}
}

// A flight is what the Mux keeps of an operation for as long as any master
// owes it a reply or any slot owes it a delivery; it outlives the Op, which
// its caller may have reused by then. Flights are pooled.
type flight struct {
	op       *Op // nil once decided or abandoned: what comes then is a straggler
	refs     int // owed replies plus debts
	judge    Judge
	replies  int
	fallback []byte        // own copy
	debt     []byte        // what is delivered after a reconnect: own copy, or fallback
	until    time.Duration // until when; 0 if not persistent
	persist  time.Duration // from when to then
	extended Set           // masters for whose sake it was made to last longer
	next     *flight       // in the pool
}

// size is the number of bytes that a debt of it keeps.
func (f *flight) size() int { return len(f.fallback) + len(f.debt) }
