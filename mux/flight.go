package mux

import (
	"time"

	"github.com/redburst/redburst/conn"
)

// How many flights are kept for reuse, and with how many bytes in each of their buffers.
// What an outage has made grow beyond that is given back.
const (
	maxPooled  = 1 << 9
	keepFlight = 2 << 10
)

// A flight is what the Mux keeps of an operation while any master owes a reply to it or
// any slot owes its delivery. It outlives the Op, which its caller may have reused by then.
// Flights are pooled.
type flight struct {
	op       *Op // nil once it is decided, or if nobody waits: its replies are stragglers
	refs     int // owed replies plus debts
	judge    Judge
	replies  int           // to the command
	fallback []byte        // own copy
	lease    Lease         // of the fallback; nil if it may be sent at any time
	term     uint64        // ... and its term
	command  []byte        // own copy of what is delivered as a debt; empty if the fallback is
	until    time.Duration // it is of use until then; 0 if it is not persistent
	persist  time.Duration // Op.Persist
	extended Set           // the masters for which until was put off
	next     *flight       // in the pool
}

// size is the number of bytes that it keeps as a debt.
func (f *flight) size() int { return len(f.fallback) + len(f.command) }

// takeFlight makes the flight of an operation, from the pool if there is one.
func (m *Mux) takeFlight(op *Op, now time.Duration) *flight {
	f := m.pool
	if f == nil {
		f = new(flight)
	} else {
		m.pool = f.next
		m.pooled--
	}
	f.next = nil
	f.judge = op.Judge
	f.replies = max(1, op.Replies)
	f.fallback = append(f.fallback[:0], op.Fallback...)
	f.lease, f.term = op.Lease, op.Term
	f.command = f.command[:0]
	f.until, f.extended = 0, 0
	if op.Persist > 0 {
		f.until, f.persist = conn.After(now, op.Persist), op.Persist
		if len(op.Fallback) == 0 {
			f.command = append(f.command, op.Command...)
		}
	}
	return f
}

// unref drops a reference to a flight. The last puts it back into the pool.
func (m *Mux) unref(f *flight) {
	if f.refs--; f.refs > 0 {
		return
	}
	f.op, f.judge, f.lease = nil, nil, nil
	if m.pooled < maxPooled && cap(f.fallback) <= keepFlight && cap(f.command) <= keepFlight {
		f.next, m.pool = m.pool, f
		m.pooled++
	}
}
