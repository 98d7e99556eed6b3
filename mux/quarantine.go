package mux

import (
	"cmp"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

// askQuarantine asks Config.Quarantine about a new connection, and puts the master in quarantine
// accordingly.
func (m *Mux) askQuarantine(i int, server conn.Server, since time.Duration) {
	s := &m.slots[i]
	before := s.known
	if s.interim != "" && before.Endpoint == server.Endpoint {
		before.Endpoint = s.interim // it was the master, then another was, and now it is again
	}
	if m.cfg.Quarantine != nil {
		d, why, extend := m.cfg.Quarantine(i, before, server)
		if extend {
			s.extendFrom, s.extendReason = since, why
		}
		m.quarantine(i, since, d, why)
	}
	s.interim = ""
	if server.Endpoint == s.known.Endpoint { // it may not say who it is this time
		server.RunID = cmp.Or(server.RunID, s.known.RunID)
		server.ReplID = cmp.Or(server.ReplID, s.known.ReplID)
	}
	s.known = server
}

// quarantine makes a master not vote for d from a moment on. It never shortens a quarantine.
func (m *Mux) quarantine(i int, from, d time.Duration, why string) {
	s := &m.slots[i]
	if d > 0 && s.addr.Cluster() { // others may rely on the master before it for so long
		d += conn.SlotTrust
	}
	if until := clock.After(from, d); d > 0 && until > s.quarantinedUntil {
		s.quarantinedUntil = until
		s.quarantineErr = &QuarantineError{Reason: why, Until: time.Now().Add(until - clock.Now())}
	}
}

// ExtendQuarantine makes quarantines last for d after the master's latest connection, even those that
// have ended. It does so for each master whose quarantine may be extended, as [Config.Quarantine]
// has said of that connection. It shortens none.
func (m *Mux) ExtendQuarantine(d time.Duration) {
	m.lock()
	defer m.mu.Unlock()
	for i := range m.slots {
		s := &m.slots[i]
		if s.extendFrom == 0 || m.closed {
			continue
		}
		m.quarantine(i, s.extendFrom, d, s.extendReason)
		if s.link == nil || clock.Now() >= s.quarantinedUntil {
			continue
		}
		was := s.state.Phase
		m.setPhase(i, Quarantined, s.quarantineErr)
		if was == Up {
			m.wg.Go(func() { m.awaitQuarantineEnd(i) })
		}
	}
}

// awaitQuarantineEnd waits until a master in quarantine may vote, and sets its phase then. It ends
// early if the connection does. It takes mu.
func (m *Mux) awaitQuarantineEnd(i int) {
	s := &m.slots[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := s.link; l != nil && s.link == l && s.state.Phase == Quarantined; {
		left := s.quarantinedUntil - clock.Now()
		if left <= 0 {
			m.setPhase(i, Up, l.renewalErr)
			return
		}
		m.mu.Unlock()
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-l.gone:
		case <-m.ctx.Done():
		}
		timer.Stop()
		m.mu.Lock()
		if m.closed {
			return
		}
	}
}
