package mux

import (
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

// An Op is one command to all masters. The caller sets the fields of the first group,
// submits the Op with [Mux.Do], or with [Mux.Post] and [Mux.Wait], and reads the results.
// One goroutine at a time may use it. It can be reused once it was decided, whatever
// replies masters still owe to it; reusing it saves every allocation. To submit an Op that
// was not decided yet is a mistake, and panics.
type Op struct {
	// Command is one or more encoded commands, the same for each master. It is copied when
	// the Op is submitted. Together with the Fallback it may have 2 MiB, and so may each of
	// the Dialects. An Op without a Command asks nothing and has no Votes. It only waits until
	// its timeout, its context or Forget ends it, and reads pushes meanwhile.
	Command []byte
	// Replies is the number of replies that a master gives to the Command; zero means one.
	// The last one gets a verdict, those before it are skipped.
	Replies int
	// Dialects are commands that say the same in other words. A master is sent the first of
	// them whose needs its server meets, and the Command if there is none. They are copied,
	// too. Each draws as many replies as the Command, and Verdict is called for them alike.
	Dialects []Dialect
	// Fallback is one command. A master whose verdict was VerdictAgain is sent it, at most
	// once.
	Fallback []byte
	// Lease, if set, says whether the Fallback may still be sent. If the Lease has ended, a
	// master whose verdict was VerdictAgain has voted no, or has failed if its reply was an error.
	Lease Lease
	// Epoch is what the Lease is asked about.
	Epoch uint64
	// Verdict says what each master's (last) reply means. If it is nil, each master's vote is
	// VerdictFailed.
	Verdict VerdictFunc
	// Only is the set of masters to ask; the empty set means all. The others' votes stay
	// pending.
	Only Set
	// Suspect is the set of masters whose yes counts for nothing: it makes a failed vote, with
	// [ErrSuspect] and without an integer. A no of theirs is a no.
	Suspect Set
	// Unless has such masters, too, but for those that have answered soon what they were sent by
	// then, as [Mux.Heard] says it: it is judged when they vote. What was sent must have been
	// submitted before this Op.
	Unless Sent
	// Quorum is the number of yes votes that decides; zero means a majority of all masters,
	// whatever Only is.
	Quorum int
	// All has the operation wait for every master's vote, whatever the votes are.
	All bool
	// Thorough has the operation wait for every master's vote once a quorum of yes has become
	// impossible, instead of deciding at once. So the votes of all say why.
	Thorough bool
	// Grace has an operation that a quorum of yes has decided wait for the other votes, for at most
	// so long. It is no failure if they do not come.
	Grace time.Duration
	// Lead has an operation that a quorum of yes has become impossible for wait for the vote of the
	// master that comes first (see [Mux.Leading]) of those that were asked and can vote. It waits for
	// max(4 [Mux.RTT], 50 ms, 2 round trips of that master), from when it was asked or owes a reply
	// since. It is no failure if the vote does not come: then the next master is the first. If the
	// first has said yes, it waits for the others as long.
	Lead bool
	// Timeout bounds the operation, from its start; zero means that only the context does.
	Timeout time.Duration
	// Persist, if positive, makes the operation persistent: if a master is down, or its
	// connection ends before it has replied, the operation becomes a debt. A debt is delivered
	// first thing after the reconnect, for up to Persist after the start. It is delivered even
	// later if the old connection left commands that a frozen master may still execute. Persist
	// then begins anew with that delivery, once for each master. After BUSY, NOREPLICAS or
	// another error that passes, the operation is sent again. If there is a Fallback, that is
	// delivered, since a script may be gone by then. The operation must be idempotent. Its votes
	// are those cast until its decision: a delivery casts none.
	Persist time.Duration
	// OnDecided, if set, is called once, when the operation is decided, with what Wait would
	// have returned. Nobody may Wait for such an operation. The Votes hold what has been cast by
	// then. OnDecided is called with the Mux locked, at the latest by Close: it must neither
	// block nor call the Mux. The Op can be reused from then on. It must have a Command. The
	// replies are read by whoever drives next, or within 25 ms.
	OnDecided func(err error)
	// OnReply, if set, is called with each master's (last) reply, also if that comes after the
	// decision: in the order in which the master has sent it among its pushes. The value borrows
	// the connection's buffer and is valid during the call. It is called with the Mux locked, as
	// the hooks of the [Config] are. If it panics, the vote has failed. A reply that is too long is not told.
	OnReply func(master int, v resp.Value)
	// Awaited says that a Wait follows the Post at once. Then Post leaves the writing to it, for 25 ms at most. The
	// Wait also writes what other callers have submitted by then.
	Awaited bool
	// Patient says that whoever waits for the operation is in no hurry, so that Config.BusyPoll is not
	// for it. A patient Op without a Command does not drive while others are under way: pushes are
	// read by their callers then, or within 25 ms.
	Patient bool
	// Keep stores a clone of each (last) reply in its vote. The memory is the Op's, and is
	// reused with it.
	Keep bool
	// KeepNo is Keep for the replies whose verdict is VerdictNo, if they are neither integers nor
	// longer than 16 KiB. So an Op whose replies are mostly integers costs nothing for it.
	KeepNo bool

	// Votes has one entry for each master, in the order of Config.Masters. It is valid from
	// the return of Do or Wait until the Op is submitted again.
	Votes []Vote
	// Started is when the operation was submitted, before its first byte was written, and
	// Decided is when it was decided; both on the clock of [clock.Now].
	Started, Decided time.Duration
	// Asked is the set of masters that the operation was queued to, whatever became of it
	// there. If it is empty, nothing was written, and nothing will be unless the operation
	// persists.
	Asked Set

	// Guarded by Mux.mu from submission to decision.
	f          *flight
	kept       [][]byte        // memory for the votes' replies
	yes, open  int             // votes: yes so far, and still pending
	quorum     int             // Quorum, or the majority
	pending    bool            // submitted and not decided
	decided    bool            // and it waits for other votes until the deadline, by Grace or Lead
	waiting    bool            // its caller is in Wait
	hurried    bool            // it counts in Mux.hurried
	drive      bool            // its caller was given the drive
	err        error           // what Do or Wait returns
	deadline   time.Duration   // from Timeout; 0 if there is none
	in         *ops            // Mux.ops or Mux.listeners
	prev, next *Op             // ... linked there
	wake       chan bool       // takes one signal; made when its caller first waits
	done       <-chan struct{} // of its caller's context, if whoever drives looks at it
	looks      uint8           // ... how often that was
}

// A Dialect is a command for masters whose server has certain commands.
type Dialect struct {
	Needs   conn.Commands // all of them
	Command []byte        // encoded; if it is empty, the Op's Command is sent
}

// A Lease says whether something may still be done. It is for an [Op] that must not be repeated
// once another Op has undone it: the Lease ends before that other one is submitted, so no
// repetition is written after it.
type Lease interface {
	// Holds reports whether the epoch that the lease was in when the Op was submitted
	// ([Op.Epoch]) goes on at now, on the clock of [clock.Now]. It is called with the Mux locked:
	// it must neither block nor call the Mux.
	Holds(epoch uint64, now time.Duration) bool
}

// signal wakes the Op's caller. At most one signal is outstanding. If it says that the operation is decided, the
// caller has the Op for itself. If it does not, the caller reads all of the Op's state under mu, as more may have
// happened since.
func (op *Op) signal(decided bool) {
	if decided {
		op.waiting = false
	}
	select {
	case op.wake <- decided:
	default:
		op.waiting = true
	}
}

// How many bytes are kept for the reply of a master, at least and at most.
const (
	minReply = 64
	maxReply = 4 << 10

	maxNo = 16 << 10 // bytes of a reply that Op.KeepNo keeps
)

// stepsAside reports whether it is an operation that only listens, and drives only while nobody else would.
func (op *Op) stepsAside() bool { return op.Patient && len(op.Command) == 0 }

// memory returns memory for a reply of a master that has n bytes.
func (op *Op) memory(i, n int) []byte {
	if n > maxReply {
		return nil
	}
	if len(op.kept) < len(op.Votes) {
		op.kept = make([][]byte, len(op.Votes))
	}
	if cap(op.kept[i]) < n {
		op.kept[i] = make([]byte, max(n, minReply))
	}
	return op.kept[i]
}

// asks reports whether a master is to be asked.
func (op *Op) asks(i int) bool { return op.Only == 0 || op.Only.Has(i) }

// ops is a list of operations, linked through them.
type ops struct {
	first, last *Op
	n           int
}

func (l *ops) push(op *Op) {
	l.n++
	op.prev, op.next = l.last, nil
	if l.last == nil {
		l.first = op
	} else {
		l.last.next = op
	}
	l.last = op
}

func (l *ops) remove(op *Op) {
	l.n--
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
