package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn"
)

// dial connects a master and hands the connection over; it ends then, or when
// the master may vote, or when the Mux is closed. One runs for each slot without a
// link.
func (m *Mux) dial(i int, pause time.Duration) {
	defer m.wg.Done()
	for {
		if pause > 0 {
			select {
			case <-time.After(rand.N(pause)):
			case <-m.ctx.Done():
				return
			}
		}
		m.mu.Lock()
		s := &m.slots[i]
		moved, addr := s.moved, s.addr.WithHint(s.lastPlace())
		m.mu.Unlock()
		c, err := conn.Dial(m.ctx, addr, m.cfg.Conn)
		if m.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		pause = min(max(2*pause, m.cfg.BackoffMin), m.cfg.BackoffMax)
		if err == nil {
			err = m.install(i, c, pause, moved)
			if err == nil {
				m.outlast(i)
				return
			}
			c.Close()
		}
		m.mu.Lock()
		if !m.closed {
			phase := Down
			switch {
			case errors.Is(err, conn.ErrRefused):
				phase = Refused
			case s.state.Phase == Stalled:
				phase = Stalled // it accepts, but it still says nothing
			}
			if errors.Is(err, conn.ErrNotMaster) {
				s.wasReplica()
			}
			m.setPhase(i, phase, err)
		}
		m.mu.Unlock()
	}
}

// lastPlace is where a group's master was last, as far as is known: where most sentinels
// have said, or where it was connected. It is empty if the master there has said itself that
// it is none any more.
func (s *slot) lastPlace() string {
	switch {
	case s.moved != "":
		return s.moved
	case s.via != "":
		return ""
	}
	return s.known.Endpoint
}

// wasReplica notes that a master with a fixed place has said that it is a replica, be it
// before it was ever connected. When it is a master again it has another's data, and counts
// as restarted (Config.Quarantine).
func (s *slot) wasReplica() {
	if s.addr.Group() == "" {
		s.known.Role = "replica"
	}
}

// install puts a connection into its slot. What is owed to the master is the
// first thing written to it. Moved is what was known of its place as the dial began: if
// a sentinel has named another meanwhile, the connection is not taken.
func (m *Mux) install(i int, c *conn.Conn, pause time.Duration, moved string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	s := &m.slots[i]
	server := c.Server()
	if s.moved != moved && s.moved != server.Endpoint {
		return m.fault(i, fmt.Errorf("%w: %s, and not %s", ErrSwitched, s.moved, server.Endpoint))
	}
	for j := range m.slots {
		o := &m.slots[j]
		if o.link == nil {
			continue
		}
		remedy := "give each master once: a server that votes twice breaks the majority"
		switch other := o.state.Server.RunID; {
		case server.RunID != "" && other != "":
			if server.RunID != other {
				continue
			}
		case c.RemoteAddr() != o.link.c.RemoteAddr():
			continue
		default:
			remedy += "; if it is another, let the user run INFO, which tells them apart"
		}
		return &conn.Error{Master: s.addr.String(), Op: "handshake", Err: fmt.Errorf("%w: %w", ErrDuplicate, &conn.RefusedError{
			Reason: fmt.Sprintf("it is the same server as %s", o.addr),
			Remedy: remedy,
		})}
	}
	s.state.Connects++
	l := &link{c: c, id: m.nextID(i), gone: make(chan struct{})}
	if err := m.poll.Add(c, l.id, conn.Readable); err != nil {
		return err
	}
	if err := m.watch.Add(c, l.id, conn.Hangup); err != nil {
		m.poll.Remove(c)
		return err
	}
	since := conn.Now()
	switched := s.addr.Group() != "" && s.known.Endpoint != "" && s.via == "" &&
		(s.known.Endpoint != server.Endpoint || s.known.ReplID != server.ReplID)
	if err := guard(func() { m.greet(i, server, since) }); err != nil {
		m.poll.Remove(c)
		m.watch.Remove(c)
		return m.fault(i, err)
	}
	s.link, s.remote, s.since, s.pause = l, c.RemoteAddr(), since, pause
	s.state.Server, s.moved = server, ""
	if s.since < s.barred {
		m.setPhase(i, Quarantined, s.why)
	} else {
		m.setPhase(i, Up, nil)
	}
	if switched { // and nobody has told us
		m.tellSwitch(i)
	}
	if s.debts.len() == 0 {
		s.unsure = false
	} else {
		m.payDebts(i, s.since)
		m.rouse(conn.After(s.since, m.cfg.StallTime))
		m.push()
	}
	return nil
}

// greet calls the hooks for a new connection. It bars a master that may have forgotten
// locks from voting; a bar that stands is never shortened. mu is held.
func (m *Mux) greet(i int, server conn.Server, since time.Duration) {
	s := &m.slots[i]
	before := s.known
	if s.via != "" && before.Endpoint == server.Endpoint {
		before.Endpoint = s.via // it was the master, another was, and now it is again
	}
	if m.cfg.Quarantine != nil {
		d, why, doubt := m.cfg.Quarantine(i, before, server)
		if doubt {
			s.doubt, s.reason = since, why
		}
		m.bar(i, since, d, why)
	}
	s.via = ""
	if server.Endpoint == s.known.Endpoint { // it may not say who it is this time
		server.RunID = cmp.Or(server.RunID, s.known.RunID)
		server.ReplID = cmp.Or(server.ReplID, s.known.ReplID)
	}
	s.known = server
}

// bar has a master not vote for d from a moment on, unless that is so already. mu is
// held.
func (m *Mux) bar(i int, from, d time.Duration, why string) {
	s := &m.slots[i]
	if until := conn.After(from, d); d > 0 && until > s.barred {
		s.barred = until
		s.why = &QuarantineError{Reason: why, Until: time.Now().Add(until - conn.Now())}
	}
}

// Doubt makes the quarantine of every master that was in doubt when it was connected
// last for d from then on, if it was less, and even if it is over.
func (m *Mux) Doubt(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.slots {
		s := &m.slots[i]
		if s.doubt == 0 || m.closed {
			continue
		}
		m.bar(i, s.doubt, d, s.reason)
		if s.link == nil || conn.Now() >= s.barred {
			continue
		}
		was := s.state.Phase
		m.setPhase(i, Quarantined, s.why)
		if was == Up {
			m.wg.Go(func() { m.outlast(i) })
		}
	}
}

// outlast waits until a master that is barred may vote, and says so; or until its
// connection has ended.
func (m *Mux) outlast(i int) {
	s := &m.slots[i]
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := s.link; l != nil && s.link == l && s.state.Phase == Quarantined; {
		left := s.barred - conn.Now()
		if left <= 0 {
			m.setPhase(i, Up, nil)
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

// follow drops the connection to a master that is its group's no more, as more than half of
// the sentinels say. Where the new master is, is checked when it is connected. If there is
// no connection, it is remembered for the next one. A master that they only call otherwise
// than before has not moved.
func (m *Mux) follow(i int) {
	s := &m.slots[i]
	conn.FollowGroup(m.ctx, s.addr, m.cfg.Conn, func(to string) {
		m.mu.Lock()
		known, remote := s.known.Endpoint, s.remote
		m.mu.Unlock()
		if known != "" && to != known && m.leadsTo(to, remote) {
			to = known
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case m.closed:
		case s.link == nil:
			s.moved = to
			if s.known.Endpoint != "" && to != s.known.Endpoint && s.via == "" {
				s.via = to
				m.tellSwitch(i)
			}
		case to != s.known.Endpoint:
			s.moved, s.pause = to, 0
			m.replaced(i, fmt.Errorf("%w: %s, and not %s", ErrSwitched, to, s.known.Endpoint), to)
		}
	})
}

// leadsTo looks up whether a place has that address. It is called without mu.
func (m *Mux) leadsTo(to, remote string) bool {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Conn.DialTimeout)
	defer cancel()
	return conn.LeadsTo(ctx, to, remote)
}

// replaced drops the connection to a master that another has taken the place of. mu is
// held.
func (m *Mux) replaced(i int, why error, by string) {
	m.slots[i].via = by
	m.drop(i, m.fault(i, why))
	m.tellSwitch(i)
}

// demote drops the connection to a master that says that it is a replica. mu is held.
func (m *Mux) demote(i int) {
	s := &m.slots[i]
	if s.addr.Group() != "" {
		m.replaced(i, fmt.Errorf("%w: it says that it is a replica", ErrSwitched), "another")
		return
	}
	s.wasReplica()
	m.drop(i, m.fault(i, ErrDemoted))
}

// tellSwitch calls the hook. mu is held.
func (m *Mux) tellSwitch(i int) {
	if m.cfg.OnSwitch != nil {
		guard(func() { m.cfg.OnSwitch(i) })
	}
}

// sentry waits for connections to hang up. If nobody is driving then, nobody
// would read the end of the connection until the next operation, which would
// find its master gone: so the sentry reads it, and the redial begins at once.
func (m *Mux) sentry() {
	defer m.wg.Done()
	for {
		events, err := m.watch.Wait(conn.Forever)
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
			m.watch.Remove(l.c) // once is enough: it is level-triggered
			m.hangups = m.hangups.With(i)
		}
		if m.hangups != 0 && !m.driving {
			m.driving = true
			for m.hangups != 0 && m.pass(0, nil) {
			}
			m.leave()
		}
		m.mu.Unlock()
	}
}

// onTick is the driver of last resort: it makes one pass over the sockets while
// replies are owed and nobody calls.
func (m *Mux) onTick() {
	defer m.wg.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = false
	if m.closed {
		return
	}
	if m.driving {
		return
	}
	m.driving = true
	if m.dirty != 0 && !m.flushing {
		m.flush()
	}
	m.pass(0, nil)
	m.leave()
}

// arm starts the tick if something is outstanding that somebody has to look
// at: at once, if something is to be written that its caller has left behind.
func (m *Mux) arm() {
	if m.closed || !m.outstanding() {
		return
	}
	d := tickEvery
	if m.dirty != 0 && !m.flushing {
		d = 0
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

// outstanding reports whether replies are owed, or a connection's end is to be
// read, or something is to be sent again. Whatever is queued or kept back is behind
// something that is owed.
func (m *Mux) outstanding() bool {
	if m.dirty != 0 || m.hangups != 0 || m.retryAt != 0 {
		return true
	}
	for i := range m.slots {
		if m.slots[i].owed.len() > 0 {
			return true
		}
	}
	return false
}
