package mux

import (
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// A flight is what the Mux keeps of an operation while any master owes a reply to it or
// any slot owes its delivery. It outlives the Op, which its caller may have reused by then.
type flight struct {
	op       *Op // nil once it is decided, or if nobody waits: its replies are stragglers
	refs     int // owed replies plus debts
	verdict  VerdictFunc
	onReply  func(master int, v resp.Value) // Op.OnReply
	replies  int                            // to the command
	text     []byte                         // own copy of the fallback, or else of the command if that is to be delivered as a debt
	asked    bool                           // by [Mux.ask]: each reply is told
	bare     bool                           // there is no fallback: the text, if there is one, is the command
	lease    Lease                          // of the fallback; nil if it may be sent at any time
	term     uint64                         // ... and its term
	until    time.Duration                  // it is of use until then; 0 if it is not persistent
	persist  time.Duration                  // Op.Persist
	extended Set                            // the masters for which until was put off

	slab *slab   // that it is one of
	next *flight // of those of its slab that are free
}

// takeFlight makes the flight of an operation.
func (m *Mux) takeFlight(op *Op, now time.Duration) *flight {
	f := m.flights.take()
	f.verdict, f.onReply = op.Verdict, op.OnReply
	f.replies, f.asked = max(1, op.Replies), false
	f.lease, f.term = op.Lease, op.Epoch
	f.until, f.extended = 0, 0
	text := op.Fallback
	f.bare = len(text) == 0
	if op.Persist > 0 {
		f.until, f.persist = clock.After(now, op.Persist), op.Persist
		if f.bare {
			text = op.Command
		}
	}
	if cap(f.text) < len(text) {
		f.text = f.slab.room(len(text))
	}
	f.text = append(f.text[:0], text...)
	return f
}

// unref drops a reference to a flight. After the last it is free, and can be another's. Its operation may be under way
// still, if votes are withheld.
func (m *Mux) unref(f *flight) {
	if f.refs--; f.refs == 0 {
		if f.op != nil {
			f.op.f = nil
		}
		m.flights.give(f)
	}
}
