package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// Replace gives the place of a master that is down for good to another one. Both addresses are of
// masters with fixed places, as [conn.ParseAddress] reads them; old is that in the list, and its credentials
// do not matter. The Keeper is told of the newcomer with the old address as the Endpoint of before.
// What the old master was still to be sent is given up. If name is not empty, it is the connections' name from
// then on (conn.Options.ClientName), and the masters that are connected are told it.
//
// Down is what refuses a connection: its machine is up, and nobody listens there ([conn.ErrNoListener]). What
// does not answer may be frozen, or out of our reach alone. Then somebody else has to know that it is shut
// down, and say so by shutDown. That is not believed of a master that answers, or still takes connections.
//
// Replace dials both, and returns nil when the newcomer has the place. An error means that nothing has
// changed. Other calls go on meanwhile. The errors:
//
//   - ErrNotMember: old is not in the list.
//   - ErrDuplicate: new is in the list, or is the same server as another master.
//   - ErrAnswers: the old master is not down.
//   - ErrMayAnswer: whether the old master is down cannot be told, and shutDown is false.
//   - a *[conn.Error]: the newcomer cannot be connected, or can never serve.
//   - ctx.Err(), if ctx has ended, and ErrClosed.
//   - one that says what is wrong with an address.
func (m *Mux) Replace(ctx context.Context, old, new, name string, shutDown bool) error {
	from, err := conn.ParseAddress(old)
	if err != nil {
		return fmt.Errorf("mux: the old master: %w", err)
	}
	to, err := conn.ParseAddress(new)
	if err != nil {
		return fmt.Errorf("mux: the newcomer: %w", err)
	}
	m.lock()
	i, err := m.placeOf(from, to)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	dialling, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	answers := make(chan error, 1)
	go func() { answers <- m.mayAnswer(dialling, from) }()
	opt := m.cfg.Conn
	opt.Patience = 0 // whoever calls wants to know
	if name != "" {
		opt.ClientName = name
	}
	c, err := conn.Dial(dialling, to, opt)
	alive := <-answers
	if !errors.Is(alive, ErrAnswers) && m.serves(dialling, i, from) {
		alive = fmt.Errorf("%w: %s", ErrAnswers, from)
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case m.ctx.Err() != nil:
		err = ErrClosed
	case alive != nil && !(shutDown && errors.Is(alive, ErrMayAnswer)):
		err = alive
	case err == nil:
		err = m.replace(i, from, to, c, name)
	}
	if err != nil {
		if c != nil {
			c.Close()
		}
		return err
	}
	if name != "" {
		m.rename(name)
	}
	return nil
}

// placeOf returns the place of a master that another one may have.
func (m *Mux) placeOf(from, to conn.Address) (i int, err error) {
	i = -1
	for k := range m.slots {
		s := &m.slots[k]
		switch {
		case s.addr.String() == from.String():
			i = k
		case s.addr.Endpoint() == to.Endpoint(), s.addr.Group() != "" && s.known.Endpoint == to.Endpoint():
			return 0, fmt.Errorf("%w: %s has the place of %s already", ErrDuplicate, to, s.addr)
		}
	}
	switch {
	case m.closed || m.draining:
		return 0, ErrClosed
	case i < 0:
		return 0, fmt.Errorf("%w: %s", ErrNotMember, from)
	case from.Group() != "" || to.Group() != "":
		return 0, errors.New("mux: only a master with a fixed place can be replaced by another: a group finds its master by itself")
	case from.Endpoint() == to.Endpoint():
		return 0, fmt.Errorf("%w: %s is the place of %s", ErrDuplicate, to, from)
	}
	return i, nil
}

// mayAnswer dials a place that was a master's. It returns nil if nobody listens there, ErrAnswers if somebody
// takes connections, be it to refuse us, or frozen, and ErrMayAnswer if that cannot be told: nothing comes
// back, or only what may be of somebody in between. The server is shown no credentials. It takes no lock.
func (m *Mux) mayAnswer(ctx context.Context, at conn.Address) error {
	bare, err := conn.ParseAddress(at.String()) // which has no credentials
	if err != nil {
		return err
	}
	c, err := conn.Dial(ctx, bare, conn.Options{TLS: m.cfg.Conn.TLS, Dialer: m.cfg.Conn.Dialer, DialTimeout: m.cfg.Conn.DialTimeout, Wrap: m.cfg.Conn.Wrap})
	if err == nil {
		c.Close()
		return fmt.Errorf("%w: %s", ErrAnswers, at)
	}
	var failed *conn.Error
	switch {
	case errors.Is(err, conn.ErrNoListener):
		return nil
	case errors.As(err, &failed) && (failed.Op == "resolve" || failed.Op == "connect"),
		// What stands in front of a server may accept connections for it when it is down.
		errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w: %s", ErrMayAnswer, unprefixed(err))
	}
	return fmt.Errorf("%w: %s", ErrAnswers, at)
}

// serves reports whether a master still answers on the connection that there is, if any. It may do so although it
// cannot be dialled: its name may lead nowhere by now, or new connections may be refused. It takes mu.
func (m *Mux) serves(ctx context.Context, i int, at conn.Address) bool {
	m.Do(ctx, &Op{
		Command: resp.AppendCommand(nil, "HELLO"), // which each user may call
		Verdict: func(resp.Value) Verdict { return VerdictYes },
		Only:    Set(0).With(i),
		Quorum:  1,
		Timeout: 2 * m.cfg.StallTime, // by then the connection to a silent one has been reset
	})
	m.lock()
	defer m.mu.Unlock()
	s := &m.slots[i]
	return s.link != nil && s.addr.String() == at.String()
}

// replace gives a place to a newcomer that is connected. It takes mu.
func (m *Mux) replace(i int, from, to conn.Address, c *conn.Conn, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch at, err := m.placeOf(from, to); { // another call may have been faster
	case err != nil:
		return err
	case at != i:
		return fmt.Errorf("%w: it has been given another place meanwhile: %s", ErrAnswers, from)
	}
	server := c.Server()
	for k := range m.slots {
		if s := &m.slots[k]; k != i && s.isServer(server, c.RemoteAddr()) {
			return fmt.Errorf("%w: %s is, or was, the server of %s", ErrDuplicate, to, s.addr)
		}
	}
	s := &m.slots[i]
	gone := m.masterError(i, fmt.Errorf("%w: by %s", ErrReplaced, to))
	if s.link != nil {
		m.drop(i, gone)
	} else {
		m.setPhase(i, Down, gone)
	}
	for _, given := range [...]*debts{&s.debts, &s.refused} {
		for given.len() > 0 {
			m.unref(given.pop())
		}
	}
	if name != "" {
		m.clientName = name
	}
	s.addr, s.known, s.remote = to, conn.Server{Endpoint: from.String()}, ""
	s.state = State{Addr: to.String(), Phase: Dialing, Since: clock.Now(), Connects: s.state.Connects}
	s.lateCommands, s.pause, s.silent, s.process, s.pulse = false, 0, 0, clock.Now(), pulse{every: pingEvery}
	s.dialer++ // whoever dials the old one ends
	if s.endDial != nil {
		s.endDial()
	}
	if err := m.place(i, c, 0); err != nil {
		c.Close()
		m.setPhase(i, Down, err)
		m.startDial(i, m.cfg.BackoffMin)
	}
	return nil
}

// isServer reports whether a server is the master of this place, or was at its last connection. So is one
// that was in the master's group, and is a master of its own for a moment: its sentinels make it a replica again.
func (s *slot) isServer(server conn.Server, remote string) bool {
	known := &s.known
	switch {
	case server.RunID != "" && known.RunID != "":
		if server.RunID == known.RunID {
			return true
		}
	case s.remote != "" && s.remote == remote:
		return true
	}
	kin := func(a, b string) bool { return a != "" && a == b }
	return known.Group != "" && (kin(server.ReplID, known.ReplID) || kin(server.ReplID, known.ReplID2) || kin(server.ReplID2, known.ReplID))
}

// rename tells the masters the connections' new name. One that is being dialled under the old name is
// told afterwards. Every user may give a connection a name by HELLO, and a server that does not know it has
// no users. It takes mu.
func (m *Mux) rename(name string) {
	var old, all Set // with RESP2
	m.lock()
	for i := range m.slots {
		all = all.With(i)
		if m.slots[i].known.Proto == 2 {
			old = old.With(i)
		}
	}
	m.mu.Unlock()
	tell := func(which Set, command ...string) {
		if which == 0 { // which would mean all
			return
		}
		m.Send(&Op{
			Command: resp.AppendCommand(nil, command...),
			Verdict: func(resp.Value) Verdict { return VerdictYes }, // it may be refused
			Only:    which,
			Persist: 2 * m.cfg.Conn.DialTimeout,
		})
	}
	tell(all&^old, "HELLO", "3", "SETNAME", name)
	tell(old, "CLIENT", "SETNAME", name)
}
