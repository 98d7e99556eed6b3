package mux

import (
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// A Verdict says what one master's reply means for an operation.
type Verdict uint8

const (
	// VerdictPending: there is no vote, because no reply came before the decision or because
	// the master was not asked.
	VerdictPending Verdict = iota
	// VerdictYes counts towards the quorum.
	VerdictYes
	// VerdictNo: the master answered, and its answer counts against.
	VerdictNo
	// VerdictFailed: the master could not answer, or answered with an error; the
	// vote's Err says why.
	VerdictFailed
	// VerdictAgain asks for Op.Fallback to be sent to this master, once. Only a
	// [VerdictFunc] returns it; no Vote has it.
	VerdictAgain
)

// String returns the verdict in one word.
func (v Verdict) String() string {
	if int(v) < len(verdicts) {
		return verdicts[v]
	}
	return "invalid"
}

var verdicts = [...]string{VerdictPending: "pending", VerdictYes: "yes", VerdictNo: "no", VerdictFailed: "failed", VerdictAgain: "again"}

// A Vote is one master's part in the decision of an operation.
type Vote struct {
	Verdict Verdict       // never VerdictAgain
	RTT     time.Duration // from the operation's start to the reply; 0 without one
	Int     int64         // the reply, if it was an integer; 0 otherwise
	Err     error         // why the verdict is VerdictFailed, or the vote was withheld until the timeout; nil otherwise
	Reply   resp.Value    // a clone of the reply, if Op.Keep or Op.KeepNo asks for it; valid as long as Op.Votes

	withheld bool // it is a yes, and does not count yet: see Standing
}

// A VerdictFunc says what a reply means. The reply borrows the connection's buffer and is valid
// during the call. The function is called with the Mux locked, so it must neither block nor call
// the Mux. It is called for stragglers too, after the operation's caller has returned. So it
// must look at the reply alone, and touch nothing of the operation's.
//
// It is called for error replies like for any other. The usual verdict on them is VerdictFailed,
// which makes the vote's Err a *[ReplyError]. On other replies VerdictFailed and VerdictPending
// make it [ErrUnexpected]. So does VerdictAgain if the Fallback was sent before, or is empty. If
// the function panics, the panic is the vote's Err.
type VerdictFunc func(reply resp.Value) Verdict

// cast records a vote; op is nil for a straggler's.
func (m *Mux) cast(op *Op, i int, v Verdict, err error) {
	if v == VerdictFailed && err != ErrSuspect { // a suspect has answered
		m.slots[i].state.Failures++
	}
	if op == nil {
		return
	}
	op.Votes[i].Verdict, op.Votes[i].Err = v, err
	op.open--
	if v == VerdictYes {
		op.yes++
	}
}

// settle decides an operation if the votes that were cast do.
func (m *Mux) settle(op *Op, now time.Duration) {
	switch won := op.yes >= op.quorum; {
	case op.open == 0:
	case op.All:
		return
	case won && op.Grace > 0:
		if !op.decided {
			m.waitUntil(op, clock.After(now, op.Grace))
		}
		return
	case !won && (op.Thorough || op.yes+op.open >= op.quorum):
		if op.decided { // a yes was lost in the grace
			op.decided = false
			m.expireOp(op, clock.Forever)
		}
		return
	case !won && op.Lead:
		if until := m.leadUntil(op, now); until != 0 {
			m.waitUntil(op, until)
			return
		}
	}
	m.decide(op, now, nil)
}

// waitUntil has an operation that is decided wait for other votes.
func (m *Mux) waitUntil(op *Op, until time.Duration) {
	op.decided = true
	m.expireOp(op, until)
}

// expireOp has an operation end at a time, or at its timeout if that comes first.
func (m *Mux) expireOp(op *Op, at time.Duration) {
	if op.Timeout > 0 {
		at = min(at, clock.After(op.Started, op.Timeout))
	}
	op.deadline = at
	m.expireBy(at)
}

// each is for decideAll.
func each(*Op) bool { return true }

// decideAll ends all operations that are such with an error.
func (m *Mux) decideAll(err error, are func(op *Op) bool) {
	for _, l := range [...]*ops{&m.ops, &m.listeners} {
		for op := l.first; op != nil; {
			next := op.next
			if are(op) {
				m.decide(op, clock.Now(), err)
			}
			op = next
		}
	}
}

// decide ends an operation, and wakes its caller or calls OnDecided. After that, only its caller may look at
// the operation. Replies that are still owed to it are stragglers from here on.
func (m *Mux) decide(op *Op, now time.Duration, err error) {
	op.in.remove(op)
	op.pending = false
	op.Decided, op.err = now, err
	if f := op.f; f != nil {
		f.op = nil
		op.f = nil
	}
	if op.hurried {
		m.unhurry(op, now)
	}
	m.unwatch(op)
	switch {
	case op.OnDecided != nil:
		op.OnDecided(err) // and nothing after it: the Op may be another's by now
	case op == m.driver && m.parked:
		m.poll.Wake() // another caller's write found the connection broken, or the Mux is closing
	case op.waiting && op != m.driver:
		m.woken++
		op.signal(!op.drive) // one that has the drive must still put it down
	}
}
