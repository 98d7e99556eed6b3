package mux

import (
	"time"

	"github.com/redburst/redburst/conn/clock"
)

const (
	tickEvery = 25 * time.Millisecond
	tickReads = 64      // of each master at most, in one tick
	catchUpAt = 1 << 10 // replies owed by a master
)

// watchHangups is the hang-up watcher: it waits for connections to hang up. If nobody drives then,
// nobody would read the end of the connection until the next operation, which would find its master
// gone. So the watcher reads it, and the redial begins at once. It takes mu.
func (m *Mux) watchHangups() {
	defer m.wg.Done()
	for {
		events, err := m.hangupPoll.Wait(clock.Forever)
		m.mu.Lock()
		if m.closed || err != nil {
			m.mu.Unlock()
			return
		}
		for _, ev := range events {
			i := slotOf(ev.ID)
			l := m.slots[i].link
			if l == nil || l.id != ev.ID {
				continue
			}
			m.hangupPoll.Remove(l.c) // once is enough: it is level-triggered
			m.hangups = m.hangups.With(i)
		}
		if m.hangups != 0 && !m.driving {
			m.driving = true
			for m.hangups != 0 && m.pass(0, nil) {
			}
			m.releaseDrive()
		}
		m.mu.Unlock()
	}
}

// onTick is the driver of last resort: it reads what has come if nobody drives. One read would
// not do: pushes can have piled up before the reply that a master owes. It takes mu.
func (m *Mux) onTick() {
	defer m.wg.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = false
	if m.closed {
		return
	}
	if m.driving {
		m.push() // a driver may be parked for long
		return
	}
	m.driving = true
	if m.dirty != 0 && !m.flushing {
		m.flush()
	}
	m.aside, m.active = m.aside && m.active, false
	for reads := 1; m.pass(0, nil) && reads < tickReads && m.dirty == 0 && !m.closed; reads++ {
	}
	m.releaseDrive()
}

// arm arms the tick if something is outstanding: for at once, if something is to be written
// that its caller has left behind.
func (m *Mux) arm() {
	d := tickEvery
	if m.dirty != 0 && !m.flushing {
		d = 0
	}
	m.armFor(d)
}

func (m *Mux) armFor(d time.Duration) {
	if m.closed || !m.outstanding() {
		return
	}
	switch {
	case !m.armed:
		m.armed = true
		m.wg.Add(1)
	case d > 0 || !m.tick.Stop():
		return // it will come soon enough
	}
	m.tick.Reset(d)
}

// outstanding reports whether bytes are to be written, a connection's end is to be read,
// something is to be sent again, a listener has stepped aside, or replies are owed; or an operation is to end in time whose
// vote is withheld. Debts that a backlog keeps back need no case of their own: replies are owed before them.
func (m *Mux) outstanding() bool {
	if m.dirty != 0 || m.hangups != 0 || m.retryAt != 0 || m.aside {
		return true
	}
	for i := range m.slots {
		if s := &m.slots[i]; s.owed.len() > 0 || s.withheld && m.ops.n > 0 && m.expiry != 0 {
			return true
		}
	}
	return false
}

// catchUp makes one pass over the sockets if a master owes many replies and nobody drives:
// the tick alone could not keep up with callers that only Send. It lets mu go.
func (m *Mux) catchUp() {
	if !m.driving && !m.closed && m.owesMuch() {
		m.driving = true
		m.pass(0, nil)
		m.releaseDrive()
	}
}

// owesMuch reports whether a master owes more replies than can wait for the tick.
func (m *Mux) owesMuch() bool {
	for i := range m.slots {
		if m.slots[i].owed.len() > catchUpAt {
			return true
		}
	}
	return false
}
