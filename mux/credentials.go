package mux

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// maxRenewPause bounds the pause before credentials that could not be renewed are renewed
// again. The connection serves meanwhile, so it is not as urgent as a redial.
const maxRenewPause = time.Minute

// authenticator renews the credentials of each connection before they end. The masters take
// turns: the next one's turn begins when the one before has answered, or its connection has
// ended. So if the new credentials are bad, or the master ends connections that renew them,
// it happens to one master at a time. It takes mu.
func (m *Mux) authenticator() {
	for {
		i, l, due := m.nextRenewal()
		timer := time.NewTimer(due - clock.Now())
		select {
		case <-timer.C:
			m.renew(i, l)
		case <-m.renewalAdded: // another may be due earlier
		case <-m.ctx.Done():
		}
		timer.Stop()
		if m.ctx.Err() != nil {
			return
		}
	}
}

// nextRenewal returns the connection whose credentials are to be renewed next, and when.
// It is nil, for ever, if none is. It takes mu.
func (m *Mux) nextRenewal() (i int, l *link, due time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	due = clock.Forever
	for k := range m.slots {
		if link := m.slots[k].link; link != nil && link.renewAt != 0 && link.renewAt < due {
			i, l, due = k, link, link.renewAt
		}
	}
	return i, l, due
}

// scheduleRenewal notes when to renew the credentials of a connection, if they end: when half to
// three quarters of their time have passed. The moment is random, since other clients may have got
// theirs at the same time. If the source returns credentials that have ended, or nearly have, it is
// not asked again at once.
func (m *Mux) scheduleRenewal(l *link, end time.Time) {
	l.renewAt, l.renewPause, l.renewalErr = 0, 0, nil
	if end.IsZero() {
		return
	}
	left := time.Until(end)
	d := left/2 + rand.N(max(left/4, 1))
	l.renewAt = clock.After(clock.Now(), max(d, m.cfg.BackoffMax))
}

// renew asks for new credentials and tells them to a master. If that fails, the connection
// goes on with those that it has, for as long as the master serves it, and the failure is
// shown in the master's state. It takes mu.
func (m *Mux) renew(i int, l *link) {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.Conn.DialTimeout)
	defer cancel()
	m.mu.Lock()
	master := m.slots[i].addr.String()
	m.mu.Unlock()
	c, err := m.cfg.Conn.Credentials(ctx, master)
	if err == nil {
		err = m.reauthenticate(i, l, c)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.slots[i]
	if m.closed || s.link != l {
		return
	}
	if err == nil {
		m.scheduleRenewal(l, c.Until)
	} else {
		l.renewPause = min(max(2*l.renewPause, m.cfg.BackoffMax), max(maxRenewPause, m.cfg.BackoffMax))
		l.renewAt = clock.After(clock.Now(), l.renewPause)
		l.renewalErr = &conn.Error{
			Addr: s.addr.String(), Op: "credentials",
			Err: fmt.Errorf("they could not be renewed: %w", err),
		}
	}
	if s.state.Phase == Up {
		m.setPhase(i, Up, l.renewalErr)
	}
}

// reauthenticate tells a master new credentials and waits for its answer. It returns nil if
// the connection ends first. It takes mu.
func (m *Mux) reauthenticate(i int, l *link, c conn.Credentials) error {
	r := l.c.Renewal(c)
	commands := r.Append(nil)
	if len(commands) == 0 {
		return nil
	}
	renewed := make(chan error, 1)
	m.mu.Lock()
	s := &m.slots[i]
	if m.closed || s.link != l {
		m.mu.Unlock()
		return nil
	}
	now := clock.Now()
	l.renewal, l.renewed = r, renewed
	s.owed.push(owed{sent: now})
	s.held = commands
	m.releaseHeld(i)
	m.wakeDriver(clock.After(now, m.cfg.StallTime))
	m.push()
	m.mu.Unlock()
	select {
	case err := <-renewed:
		return err
	case <-l.gone:
	case <-m.ctx.Done():
	}
	return nil
}

// releaseHeld queues a renewal that was held back, and what came after it, once the master owes
// no reply from before it. See conn.Renewal for why.
func (m *Mux) releaseHeld(i int) {
	s := &m.slots[i]
	if s.held != nil && s.owed.front().f == nil {
		m.writeHeld(i)
	}
}

// writeHeld queues what was held back.
func (m *Mux) writeHeld(i int) {
	s := &m.slots[i]
	commands := s.held
	s.held = nil
	m.write(i, commands)
}

// renewalReply takes a reply to a renewal. It returns false if the connection cannot be
// trusted any more.
func (m *Mux) renewalReply(i int, v resp.Value) bool {
	s := &m.slots[i]
	if s.held != nil {
		return false // it was not written yet
	}
	more, ok := s.link.renewal.Take(v)
	if ok && !more {
		s.owed.pop()
		s.link.renewed <- s.link.renewal.Err()
	}
	return ok
}
