package mux

import "time"

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

func (op *Op) asks(i int) bool { return op.Only == 0 || op.Only.Has(i) }

// ops is a list of operations, linked through them.
type ops struct{ first, last *Op }

func (l *ops) push(op *Op) {
	op.prev, op.next = l.last, nil
	if l.last == nil {
		l.first = op
	} else {
		l.last.next = op
	}
	l.last = op
}

func (l *ops) remove(op *Op) {
	if op.prev == nil {
		l.first = op.next
	} else {
		op.prev.next = op.next
	}
	if op.next == nil {
		l.last = op.prev
	} else {
		op.next.prev = op.prev
	}
	op.prev, op.next = nil, nil
}
