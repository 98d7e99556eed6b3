package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

// A master at its limit takes up connections one after the other, as when a whole fleet connects at once. One that was
// given up costs it as much as another, and the next one stands behind all others. So a dial is patient with a master
// that has taken the connection. When that was not enough, the next dial has more time, and comes later. A master that
// refuses connections, or does not even take them, has no work with them: it is dialled as often as BackoffMax says.
const (
	patience     = 30 * time.Second // the default of conn.Options.Patience: 3,000 clients at 100 handshakes a second
	moreTime     = 2                // how often the time of a dial doubles
	maxDoublings = 5                // ... and the pause before it
)

// leastPause returns the bound of the pause before the next dial, as far as it is because of dials and connections that
// have brought no answer.
func (s *slot) leastPause(cfg *Config) time.Duration {
	if s.silent == 0 {
		return 0
	}
	return cfg.StallTime << min(s.silent-1, maxDoublings)
}

// startDial starts a goroutine that dials a master.
func (m *Mux) startDial(i int, pause time.Duration) {
	s := &m.slots[i]
	s.dialer++
	s.elsewhere = make(chan struct{}, 1)
	number, elsewhere := s.dialer, s.elsewhere
	m.wg.Go(func() { m.dial(i, pause, number, elsewhere) })
}

// dial connects a master and hands the connection over. One dial runs for each slot without a link, until the Mux is closed,
// or the master is replaced. It takes mu.
func (m *Mux) dial(i int, pause time.Duration, number uint64, elsewhere <-chan struct{}) {
	for {
		if pause > 0 {
			select {
			case <-time.After(rand.N(pause)):
			case <-elsewhere: // the pause was due to who had the place before
				pause = 0
			case <-m.ctx.Done():
				return
			}
		}
		m.mu.Lock()
		s := &m.slots[i]
		if s.dialer != number {
			m.mu.Unlock()
			return
		}
		select {
		case <-elsewhere: // this dial goes there
		default:
		}
		moves, addr := s.moves, s.addr.WithHint(s.lastEndpoint()).WithNodes(s.nodes)
		opt := m.cfg.Conn
		opt.ClientName = m.clientName
		opt.DialTimeout <<= min(s.silent, moreTime)
		opt.Patience <<= min(s.silent, moreTime)
		opt.OnPatience = func(at string, err error) { m.dialGoesOn(i, number, moves, at, err) }
		ctx, cancel := context.WithCancel(m.ctx)
		s.dialledAt, s.endDial = "", cancel
		m.mu.Unlock()
		c, err := conn.Dial(ctx, addr, opt)
		ended := ctx.Err() != nil // there is another place to dial
		cancel()
		if m.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil && ended {
			pause = 0
			continue
		}
		pause = min(max(2*pause, m.cfg.BackoffMin), m.cfg.BackoffMax)
		if err == nil {
			err = m.install(i, c, pause, moves, number)
			if err == nil {
				return
			}
			c.Close()
		}
		m.mu.Lock()
		if !m.closed && s.dialer == number {
			phase := Down
			switch {
			case errors.Is(err, conn.ErrRefused):
				phase = Refused
			case s.state.Phase == Stalled:
				phase = Stalled // it may accept, but it does not answer yet
			}
			if errors.Is(err, conn.ErrNotMaster) {
				s.wasReplica()
				s.wasReplaced()
			}
			if errors.Is(err, conn.ErrUnanswered) {
				s.silent++
				pause = max(pause, s.leastPause(&m.cfg))
			}
			m.setPhase(i, phase, err)
		}
		m.mu.Unlock()
	}
}

// dialGoesOn notes that a dial has taken the dial timeout, and goes on: a server has taken the connection. It takes mu.
func (m *Mux) dialGoesOn(i int, number, moves uint64, at string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.slots[i]
	if m.closed || s.dialer != number {
		return
	}
	s.dialledAt = at
	if s.moves != moves && s.moved != at { // the sentinels have named another since the dial began
		s.endDial()
	}
	phase := Down
	if s.state.Phase == Stalled {
		phase = Stalled
	}
	m.setPhase(i, phase, err)
}

// install puts a connection into its slot. The master's debts are the first thing that is
// written to it. moves is how often the sentinels had named another place when the dial began: if
// they have named one meanwhile, a connection to any other is not taken. It takes mu.
func (m *Mux) install(i int, c *conn.Conn, pause time.Duration, moves, number uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	s := &m.slots[i]
	server := c.Server()
	if s.dialer != number {
		return ErrReplaced
	}
	if s.moves != moves && s.moved != server.Endpoint {
		return m.masterError(i, fmt.Errorf("%w: %s, and not %s", ErrSwitched, s.moved, server.Endpoint))
	}
	for j := range m.slots {
		o := &m.slots[j]
		other := o.state.Server.RunID
		if o.link == nil {
			if !o.keeps(server.RunID) || s.known.RunID == server.RunID {
				continue
			}
			other = server.RunID
		}
		remedy := "give each master once: a server that votes twice breaks the majority"
		switch {
		case server.RunID != "" && other != "":
			if server.RunID != other {
				continue
			}
		case c.RemoteAddr() != o.link.c.RemoteAddr():
			continue
		default:
			remedy += "; if it is another, let the user run INFO, which tells them apart"
		}
		return &conn.Error{Addr: s.addr.String(), Op: "handshake", Err: fmt.Errorf("%w: %w", ErrDuplicate, &conn.RefusedError{
			Reason: fmt.Sprintf("it is the same server as %s", o.addr),
			Remedy: remedy,
		})}
	}
	return m.place(i, c, pause)
}

// keeps reports whether a place that has no connection keeps the run id of its server, so that no other place gets it: a
// server could copy that of one that is out of reach, which would be refused then. A place that has led to another server
// since keeps none.
func (s *slot) keeps(run string) bool {
	return run != "" && s.known.RunID == run && !errors.Is(s.state.Err, ErrDuplicate)
}

// place puts a connection into its slot. It lets mu go.
func (m *Mux) place(i int, c *conn.Conn, pause time.Duration) error {
	s := &m.slots[i]
	server := c.Server()
	s.state.Connects++
	l := &link{c: c, id: m.slots[i].state.Connects*maxMasters + uint64(i), gone: make(chan struct{})}
	if err := m.poll.Add(c, l.id, conn.Readable); err != nil {
		return err
	}
	if err := m.hangupPoll.Add(c, l.id, conn.Hangup); err != nil {
		m.poll.Remove(c)
		return err
	}
	since := clock.Now()
	process := s.known.RunID
	switched := s.addr.Group() != "" && s.known.Endpoint != "" && s.interim == "" &&
		(s.known.Endpoint != server.Endpoint || s.known.ReplID != server.ReplID)
	before := s.known
	if s.interim != "" && before.Endpoint == server.Endpoint {
		before.Endpoint = s.interim // it was the master, then another was, and now it is again
	}
	var standing Standing
	if err := callHook(func() {
		if m.cfg.Keeper != nil {
			m.cfg.Keeper.Connected(i, before, server, since)
			standing = m.cfg.Keeper.Standing(i)
		}
	}); err != nil {
		m.poll.Remove(c)
		m.hangupPoll.Remove(c)
		return m.masterError(i, err)
	}
	if process != "" && server.RunID != "" && server.RunID != process {
		s.process = since
	}
	s.link, s.remote, s.since, s.pause = l, c.RemoteAddr(), since, pause
	s.state.Server, s.moved, s.interim = server, "", ""
	if server.Endpoint == s.known.Endpoint { // it may not say who it is this time
		server.RunID = cmp.Or(server.RunID, s.known.RunID)
		server.ReplID = cmp.Or(server.ReplID, s.known.ReplID)
	}
	s.known = server
	if s.addr.Cluster() {
		s.nodes, s.trustedUntil = server.Nodes, clock.After(server.SlotAsked, conn.SlotTrust)
	}
	if m.scheduleRenewal(l, c.CredentialsEnd()); l.renewAt != 0 {
		select {
		case m.renewalAdded <- struct{}{}:
		default:
		}
	}
	if s.quarantine(standing); s.since < s.quarantinedUntil {
		m.setPhase(i, Quarantined, s.quarantineErr)
	} else {
		m.setPhase(i, Up, nil)
	}
	if switched { // and nobody has told us
		m.notifySwitch(i)
	}
	if s.debts.len() == 0 {
		s.lateCommands = false
	} else {
		m.payDebts(i, s.since)
		m.wakeDriver(clock.After(s.since, m.cfg.StallTime))
	}
	m.setAlarm(clock.After(s.since, s.pulse.every))
	m.stand(i, standing, s.since)
	m.judge(s.since)
	m.push()
	return nil
}

// dialsAtOnce is how many calls of a Dialer run at a time for one address. A sentinel or node is asked by several at once;
// of calls that hang, there must not be more with each try.
const dialsAtOnce = 4

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// boundedDialer makes a user's Dialer one that returns when its context ends, and does not panic.
func boundedDialer(dial dialer) dialer {
	type place struct {
		calls chan struct{} // those that run
		users int           // those and the ones that wait
	}
	type result struct {
		c   net.Conn
		err error
	}
	var mu sync.Mutex
	places := map[string]*place{}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		p := places[address]
		if p == nil {
			p = &place{calls: make(chan struct{}, dialsAtOnce)}
			places[address] = p
		}
		p.users++
		mu.Unlock()
		leave := func() {
			mu.Lock()
			defer mu.Unlock()
			if p.users--; p.users == 0 {
				delete(places, address)
			}
		}
		select {
		case p.calls <- struct{}{}:
		case <-ctx.Done():
			leave()
			return nil, fmt.Errorf("the Dialer has not returned from %d calls before: %w", dialsAtOnce, context.Cause(ctx))
		}
		done := make(chan result)
		go func() {
			defer leave()
			defer func() { <-p.calls }()
			var r result
			func() {
				defer catchPanic(&r.err)
				r.c, r.err = dial(ctx, network, address)
			}()
			select {
			case done <- r:
			case <-ctx.Done(): // nobody waits for it
				if r.c != nil {
					r.c.Close()
				}
			}
		}()
		select {
		case r := <-done:
			return r.c, r.err
		case <-ctx.Done():
			return nil, fmt.Errorf("the Dialer has not returned: %w", context.Cause(ctx))
		}
	}
}
