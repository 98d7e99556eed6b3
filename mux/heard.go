package mux

import (
	"cmp"
	"errors"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// A master can carry out a command long after it was sent: the command waits in the kernel's buffers while the master
// hangs, even behind a connection that was given up. Whoever sends a command twice over, and then asks what is there, may
// meet the late one. So a Mux knows of each master which commands it has not answered, or not soon. It keeps no record
// of single ones: a slot has the times between which commands were sent that were never answered, and likewise of those
// that were answered late. Of either it has the latest span, and the end of those before. What it says is on the safe
// side: a command may be called late because of others that were sent at about the same time.

// A Sent is commands that masters were sent between two times, on the clock of [clock.Now]. First is the [Op.Started]
// of the first. Last is any time after the last was submitted.
type Sent struct {
	To          Set
	First, Last time.Duration
}

// ErrSuspect is the cause of a failed vote of a master that has said yes, and whose yes does not count: see
// [Op.Suspect].
var ErrSuspect = errors.New("mux: its yes does not count: it may be due to a command that came late")

// Heard returns what became of commands. Answered are the masters that have answered them, and those whose process is
// another by now, as INFO says: it will never carry them out. Soon are those of them that have answered within
// X = max(4 RTT, 50 ms), where RTT is the least round trip on the connection that was known when the command was sent. Never are those whose connection has ended
// before. The others owe a reply still.
func (m *Mux) Heard(of Sent) (answered, soon, never Set) {
	m.lock()
	defer m.mu.Unlock()
	for i := range m.slots {
		s := &m.slots[i]
		switch {
		case !of.To.Has(i):
		case s.unanswered.meets(of) && s.process > of.Last:
			answered = answered.With(i)
		case s.unanswered.meets(of):
			never = never.With(i)
		case s.owed.len() > 0 && s.owed.front().sent <= of.Last, s.repeats(of):
		default:
			answered = answered.With(i)
			if !s.late.meets(of) {
				soon = soon.With(i)
			}
		}
	}
	return answered, soon, never
}

// repeats reports whether the master may owe a reply to a fallback of what it was sent.
func (s *slot) repeats(of Sent) bool { return s.again > 0 && s.againFrom <= of.Last }

// suspects reports whether a yes of the master counts for nothing.
func (s *slot) suspects(op *Op, i int) bool {
	if !op.Unless.To.Has(i) {
		return op.Suspect.Has(i)
	}
	// All that it was sent before on this connection it has answered by now.
	of := op.Unless
	return s.unanswered.meets(of) || s.repeats(of) || s.late.meets(of)
}

// A span is the times between which some commands were sent.
type span struct {
	before      time.Duration // those of earlier spans were not sent after that
	first, last time.Duration
}

// begin begins a new span.
func (p *span) begin(at time.Duration) { p.before, p.first, p.last = max(p.before, p.last), at, at }

func (p *span) add(at time.Duration) { p.first, p.last = min(p.first, at), max(p.last, at) }

// meets reports whether a command may be one of those in the span, or in one before.
func (p *span) meets(of Sent) bool {
	return of.First <= p.before || of.First <= p.last && p.first <= of.Last
}

const leastSoon = 50 * time.Millisecond // a lone caller's stragglers are read within 25 ms

// noteRoundTrip notes a round trip on the connection. The first may have met a hiccup: the handshake, which took one at the
// least, bounds it.
func (s *slot) noteRoundTrip(d time.Duration) {
	if s.leastRTT == 0 {
		s.leastRTT, s.leastFrom = cmp.Or(s.state.Server.Within, d), clock.Now()
	}
	s.leastRTT = min(s.leastRTT, d)
}

// noteStraggler notes how long the reply to a command took that was sent then.
func (m *Mux) noteStraggler(s *slot, sent time.Duration) {
	if m.readBy == 0 { // not m.clock: the process may have stood still before it read the reply
		m.readBy = clock.Now()
	}
	soon := leastSoon
	if sent > s.leastFrom {
		soon = max(soon, 4*s.leastRTT)
	}
	switch late := m.readBy-sent > soon; {
	case !late:
		s.wasLate = false
	case s.wasLate:
		s.late.add(sent)
	default:
		s.late.begin(sent)
		s.wasLate = true
	}
}
