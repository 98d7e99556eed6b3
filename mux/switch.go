package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

// follow drops the connection to a master when more than half of its group's sentinels name
// another one. Whether that one is the master is checked when it is dialled. If there is no
// connection, the place is remembered for the next dial. A master to which the sentinels
// only give another name or address has not moved. It takes mu.
func (m *Mux) follow(i int) {
	s := &m.slots[i]
	if s.addr.Cluster() {
		m.followSlot(i)
		return
	}
	conn.FollowGroup(m.ctx, s.addr, m.cfg.Conn, func(to string) {
		to = m.spelledAsKnown(i, to)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.named(i, to)
	})
}

// spelledAsKnown returns a place as the master at its latest connection had it, if it is the same. It
// takes mu.
func (m *Mux) spelledAsKnown(i int, to string) string {
	s := &m.slots[i]
	m.mu.Lock()
	known, remote := s.known.Endpoint, s.remote
	m.mu.Unlock()
	if known != "" && to != known && m.resolvesTo(to, remote) {
		return known
	}
	return to
}

// named takes note of where a group's master is.
func (m *Mux) named(i int, to string) {
	s := &m.slots[i]
	switch {
	case m.closed:
	case s.link == nil:
		if s.dialledAt != "" && to != s.dialledAt && to != s.moved {
			s.endDial() // otherwise it may wait there for long
		}
		if to != s.moved && to != cmp.Or(s.dialledAt, s.lastEndpoint()) { // what it waits for is another's silence
			s.silent, s.pause = 0, 0
			select {
			case s.elsewhere <- struct{}{}: // it may be about to pause only
			default:
			}
		}
		s.move(to)
		if s.known.Endpoint != "" && to != s.known.Endpoint && s.interim == "" {
			s.interim = to
			m.notifySwitch(i)
		}
	case to != s.known.Endpoint:
		s.move(to)
		s.pause, s.silent = 0, 0
		m.dropReplaced(i, fmt.Errorf("%w: %s, and not %s", ErrSwitched, to, s.known.Endpoint), to)
	}
}

// move notes the place that was named.
func (s *slot) move(to string) {
	if s.moved != to {
		s.moved = to
		s.moves++
	}
}

// followSlot is follow for a slot of a cluster: it drops the connection to its master when more than
// half of the cluster's masters name another one, when they have not confirmed this one for too long,
// or when the slot is on its way to another one.
//
// The last is no switch yet. But keys are in two places until the slot has arrived or its journey
// was given up, and then the master may lack what it had granted. It takes mu.
func (m *Mux) followSlot(i int) {
	s := &m.slots[i]
	conn.FollowSlot(m.ctx, s.addr, m.cfg.Conn, func(o conn.SlotOwner) {
		if o.Endpoint != "" {
			o.Endpoint = m.spelledAsKnown(i, o.Endpoint)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.closed {
			return
		}
		if o.Endpoint != "" {
			s.nodes = o.Nodes
			m.named(i, o.Endpoint)
			m.confirm(i, o)
		}
		switch {
		case s.link == nil:
		case o.Moving && o.Endpoint == s.known.Endpoint:
			m.dropReplaced(i, fmt.Errorf("%w: the slot is on its way to another node", ErrSwitched), "another")
		case clock.Now() >= s.trustedUntil:
			m.drop(i, m.masterError(i, ErrUnconfirmed))
		}
	})
}

// confirm notes that a majority of a cluster's masters has named the master that is connected, and that it has said so
// itself. With another config epoch it was none for a moment since it was connected, and may lack what it had granted.
func (m *Mux) confirm(i int, o conn.SlotOwner) {
	s := &m.slots[i]
	switch epoch := s.known.Epoch; {
	case s.link == nil || o.Endpoint != s.known.Endpoint || o.Confirmed < s.since:
	case o.Epoch == epoch || epoch == "":
		s.trustedUntil = max(s.trustedUntil, clock.After(o.Confirmed, conn.SlotTrust))
		m.tellNews()
	case o.Epoch != "":
		m.dropReplaced(i, fmt.Errorf("%w: the slot may have been another's: its config epoch is %s, and was %s", ErrSwitched, o.Epoch, epoch), "another")
	}
}

// resolvesTo looks up whether a place has that address. It may take as long as a dial, and
// is called without mu. Beside a Dialer nothing is looked up.
func (m *Mux) resolvesTo(to, remote string) bool {
	if m.cfg.Conn.Dialer != nil {
		return to == remote
	}
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

// dropDemoted drops the connection to a master that has said that it is none, or serves nobody now.
func (m *Mux) dropDemoted(i int) {
	s := &m.slots[i]
	switch {
	case s.demoted == errNotServing: // it has forgotten nothing by that, and comes back if it is still the master
		m.drop(i, m.masterError(i, s.demoted))
	case s.addr.Group() != "":
		m.dropReplaced(i, s.demoted, "another")
	default:
		s.wasReplica()
		m.drop(i, m.masterError(i, ErrDemoted))
	}
}

// noteDemotion notes what an error reply says about the server's place: that it is a replica, that
// the slot is another's, or that its cluster does not serve. It reports whether there is such news.
func (s *slot) noteDemotion(code string) bool {
	switch {
	case code == "READONLY":
		s.demoted = errReplica
	case !s.addr.Cluster():
	case code == "MOVED":
		s.demoted = errMoved
	case code == "ASK" || code == "TRYAGAIN":
		s.demoted = errMoving
	case code == "CLUSTERDOWN":
		s.demoted = errNotServing
	}
	return s.demoted != nil
}

var (
	errReplica    = fmt.Errorf("%w: it says that it is a replica", ErrSwitched)
	errMoved      = fmt.Errorf("%w: it says that the slot is another's", ErrSwitched)
	errMoving     = fmt.Errorf("%w: it says that the slot is on its way to another node", ErrSwitched)
	errNotServing = errors.New("mux: it says that its cluster does not serve")
)

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

// wasReplaced notes that a cluster's node has said, when it was dialled, that the slot is another's or
// on its way there. If it is the master at the next connection, it was not in between.
func (s *slot) wasReplaced() {
	if s.addr.Cluster() && s.known.Endpoint != "" && s.interim == "" {
		s.interim = "another"
	}
}

// wasReplica notes that a master with a fixed place has said that it is a replica, even if
// it was never connected. When it is a master again, it has another master's data, and
// The Keeper is told so.
func (s *slot) wasReplica() {
	if s.addr.Group() == "" {
		s.known.Role = "replica"
	}
}
