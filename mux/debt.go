package mux

import (
	"time"

	"github.com/redburst/redburst/conn/clock"
)

const (
	maxDebts     = 1 << 14 // debts that are kept for a master; beyond that, the oldest are dropped
	maxDebtBytes = 8 << 20 // ... and the bytes of their commands

	// A master that answers a persistent operation with an error that passes, such as BUSY
	// or NOREPLICAS, is sent it again after this time.
	retryEvery = 500 * time.Millisecond
)

// debts are the persistent operations that a master is to be sent, oldest first. They are
// bounded by their number and by the bytes of their commands.
type debts struct {
	ring[*flight]
	bytes int
}

func (d *debts) push(f *flight) {
	d.ring.push(f)
	d.bytes += len(f.text)
}

func (d *debts) pop() *flight {
	f := d.ring.pop()
	d.bytes -= len(f.text)
	return f
}

// full reports whether there is no room for another.
func (d *debts) full(f *flight) bool {
	return d.len() >= maxDebts || d.bytes+len(f.text) > maxDebtBytes
}

// addDebt keeps a persistent operation for delivery after the next connect. If there are
// too many, the oldest are dropped for it.
func (m *Mux) addDebt(i int, f *flight, now time.Duration) {
	s := &m.slots[i]
	for s.debts.len() > 0 && !s.wants(*s.debts.front(), now) {
		m.unref(s.debts.pop())
	}
	for s.debts.full(f) {
		if s.lateCommands { // the oldest debts undo what it may still do: the new one is dropped
			return
		}
		m.unref(s.debts.pop())
	}
	f.refs++
	s.debts.push(f)
}

// addDebts moves flights to the debts.
func (m *Mux) addDebts(i int, from *debts, now time.Duration) {
	for from.len() > 0 {
		f := from.pop()
		m.addDebt(i, f, now)
		m.unref(f)
	}
}

// payDebts queues the debts to a master: before anything else after a connect, and as soon
// as there is room after a backlog.
func (m *Mux) payDebts(i int, now time.Duration) {
	s := &m.slots[i]
	for s.debts.len() > 0 && s.owed.len() < maxOwed && s.unsent() < maxQueued {
		f := s.debts.pop()
		if !s.wants(f, now) {
			m.unref(f)
			continue
		}
		// The master may have done just now what this undoes, and that lasts as long from
		// here. It is prolonged once only: a master whose connection breaks again and again
		// is not owed it for ever.
		if f.until <= now && !f.extended.Has(i) {
			f.extended = f.extended.With(i)
			f.until = clock.After(now, f.persist)
		}
		o := owed{f: f, sent: now, left: 1, final: true, voted: true}
		if f.bare {
			o.left = f.replies
		}
		m.write(i, f.text)
		s.owed.push(o)
	}
	if s.debts.len() == 0 {
		s.lateCommands = false
	}
}

// wants reports whether a persistent operation is still of use to a master that has not
// had it. After its time it is of none, unless the master may have done only then what the
// operation undoes: a master that was frozen executes, when it thaws, the commands that a
// connection given up long ago has left in its buffers. It does so before it serves a new
// connection.
func (s *slot) wants(f *flight, now time.Duration) bool {
	return f.until > now || s.lateCommands && f.until != 0
}

// sendLater keeps a persistent operation that a master has refused for a moment, to be
// sent again.
func (m *Mux) sendLater(i int, f *flight, now time.Duration) {
	s := &m.slots[i]
	if s.refused.full(f) {
		return
	}
	f.refs++
	s.refused.push(f)
	if m.retryAt == 0 {
		m.retryAt = clock.After(now, retryEvery)
	}
}

// retry sends again, as debts, what masters have refused for a moment, if it is time.
func (m *Mux) retry(now time.Duration) {
	if m.retryAt == 0 || now < m.retryAt {
		return
	}
	m.retryAt = 0
	for i := range m.slots {
		s := &m.slots[i]
		m.addDebts(i, &s.refused, now)
		if s.link != nil && s.debts.len() > 0 {
			m.payDebts(i, now)
		}
	}
}
