package mux

import (
	"context"
	"fmt"

	"github.com/redburst/redburst/conn"
)

// follow drops the connection to a master when more than half of its group's sentinels name
// another one. Whether that one is the master is checked when it is dialled. If there is no
// connection, the place is remembered for the next dial. A master to which the sentinels
// only give another name or address has not moved. It takes mu.
func (m *Mux) follow(i int) {
	s := &m.slots[i]
	conn.FollowGroup(m.ctx, s.addr, m.cfg.Conn, func(to string) {
		m.mu.Lock()
		known, remote := s.known.Endpoint, s.remote
		m.mu.Unlock()
		if known != "" && to != known && m.resolvesTo(to, remote) {
			to = known
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case m.closed:
		case s.link == nil:
			s.moved = to
			if s.known.Endpoint != "" && to != s.known.Endpoint && s.interim == "" {
				s.interim = to
				m.notifySwitch(i)
			}
		case to != s.known.Endpoint:
			s.moved, s.pause, s.silentLinks = to, 0, 0
			m.dropReplaced(i, fmt.Errorf("%w: %s, and not %s", ErrSwitched, to, s.known.Endpoint), to)
		}
	})
}

// resolvesTo looks up whether a place has that address. It may take as long as a dial, and
// is called without mu.
func (m *Mux) resolvesTo(to, remote string) bool {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Conn.DialTimeout)
	defer cancel()
	return conn.ResolvesTo(ctx, to, remote)
}

// dropReplaced drops the connection to a master whose place another has taken.
func (m *Mux) dropReplaced(i int, why error, by string) {
	m.slots[i].interim = by
	m.drop(i, m.masterError(i, why))
	m.notifySwitch(i)
}

// dropDemoted drops the connection to a master that says that it is a replica.
func (m *Mux) dropDemoted(i int) {
	s := &m.slots[i]
	if s.addr.Group() != "" {
		m.dropReplaced(i, fmt.Errorf("%w: it says that it is a replica", ErrSwitched), "another")
		return
	}
	s.wasReplica()
	m.drop(i, m.masterError(i, ErrDemoted))
}

// notifySwitch calls Config.OnSwitch.
func (m *Mux) notifySwitch(i int) {
	if m.cfg.OnSwitch != nil {
		callHook(func() { m.cfg.OnSwitch(i) })
	}
}

// lastEndpoint is where a group's master was last, as far as is known: the place that most
// sentinels have named, or else that of its last connection. It is empty if the master there
// has itself said that it is a replica now.
func (s *slot) lastEndpoint() string {
	switch {
	case s.moved != "":
		return s.moved
	case s.interim != "":
		return ""
	}
	return s.known.Endpoint
}

// wasReplica notes that a master with a fixed place has said that it is a replica, even if
// it was never connected. When it is a master again, it has another master's data, and
// Config.Quarantine is told so.
func (s *slot) wasReplica() {
	if s.addr.Group() == "" {
		s.known.Role = "replica"
	}
}
