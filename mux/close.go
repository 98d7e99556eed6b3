package mux

import (
	"time"

	"github.com/redburst/redburst/conn/clock"
)

const closeGrace = 100 * time.Millisecond // how long Close waits for releases under way

// Drain fails pending and future operations with ErrClosed, except persistent ones, so
// that interrupted callers can still send their releases before Close.
func (m *Mux) Drain() {
	m.lock()
	defer m.mu.Unlock()
	m.draining = true
	m.tellNews()
	m.decideAll(ErrClosed, func(op *Op) bool { return op.Persist <= 0 })
}

// Close ends all connections. Callers in Do and Wait, and all that come later, get
// ErrClosed. Persistent operations on their way to connected masters, such as releases,
// are given up to 100 ms to be answered first. One that has OnDecided is not decided before that.
// Close returns nil, when no goroutine, descriptor or timer of the Mux is left. It may be called
// more than once, and each call waits for that.
func (m *Mux) Close() error {
	m.lock()
	if m.closed {
		m.mu.Unlock()
		<-m.closing
		return nil
	}
	m.closed = true
	m.tellNews()
	m.cancel()                                                                                  // nobody dials any more
	m.decideAll(ErrClosed, func(op *Op) bool { return op.Persist <= 0 || op.OnDecided == nil }) // not those that nobody waits for
	for m.driving {
		m.released.Wait()
	}
	m.driving = true // from here on nobody else can drive
	m.awaitPersistent(clock.Now() + closeGrace)
	m.decideAll(ErrClosed, each)
	m.sendHeld()
	for m.flushing {
		m.released.Wait()
	}
	var links []*link
	for i := range m.slots {
		if l := m.slots[i].link; l != nil {
			l.pins++ // closing may take a moment: not under the lock
			links = append(links, l)
			m.drop(i, ErrClosed)
		}
	}
	if m.armed && m.tick.Stop() {
		m.armed = false
		m.wg.Done()
	}
	if m.alarmAt != 0 && m.alarm.Stop() {
		m.wg.Done()
	}
	m.mu.Unlock()

	for _, l := range links {
		l.pins--
		l.close()
	}
	m.hangupPoll.Wake()
	m.wg.Wait()
	m.poll.Close()
	m.hangupPoll.Close()
	close(m.closing)
	return nil
}

// awaitPersistent drives until no master that is up owes a reply to a persistent operation, but
// not beyond a time. The caller holds the drive. It lets mu go.
func (m *Mux) awaitPersistent(until time.Duration) {
	for clock.Now() < until && m.owesPersistent() {
		if m.dirty != 0 && !m.flushing {
			m.flush()
		}
		m.pass(until, nil)
	}
}

// owesPersistent reports whether a master owes a reply to a persistent operation.
func (m *Mux) owesPersistent() bool {
	for i := range m.slots {
		if m.slots[i].owesPersistent() {
			return true
		}
	}
	return false
}

// owesPersistent reports whether the master owes a reply to a persistent operation.
func (s *slot) owesPersistent() bool {
	for k := range s.owed.n {
		if f := s.owed.at(k).f; f != nil && f.until != 0 {
			return true
		}
	}
	return false
}

// sendHeld sends persistent operations that a renewal has held back until the end, and what
// stands before them. That the master still owes a reply does not matter any more, as nobody
// reads what it answers. It lets mu go.
func (m *Mux) sendHeld() {
	for m.flushing {
		m.released.Wait()
	}
	for i := range m.slots {
		if s := &m.slots[i]; s.held != nil && s.owesPersistent() {
			m.writeHeld(i)
		}
	}
	if m.dirty != 0 {
		m.flush()
	}
}
