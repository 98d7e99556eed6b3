package mux

import (
	"time"

	"github.com/redburst/redburst/conn"
)

// Flights that are kept for reuse, and the bytes of each of their buffers: what an
// outage has made grow is given back.
const (
	maxPooled  = 1 << 12
	keepFlight = 1 << 10
)

// A flight is what the Mux keeps of an operation for as long as any master
// owes it a reply or any slot owes it a delivery; it outlives the Op, which
// its caller may have reused by then. Flights are pooled.
type flight struct {
	op       *Op // nil once decided or abandoned: what comes then is a straggler
	refs     int // owed replies plus debts
	judge    Judge
	replies  int
	fallback []byte        // own copy
	command  []byte        // own copy of what is delivered after a reconnect; empty if the fallback is
	until    time.Duration // until when; 0 if not persistent
	persist  time.Duration // from when to then
	extended Set           // masters for whose sake it was made to last longer
	next     *flight       // in the pool
}

// size is the number of bytes that a debt of it keeps.
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
	f.op, f.judge = nil, nil
	if m.pooled < maxPooled && cap(f.fallback) <= keepFlight && cap(f.command) <= keepFlight {
		f.next, m.pool = m.pool, f
		m.pooled++
	}
}
