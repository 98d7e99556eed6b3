package mux

import (
	"time"

	"github.com/redburst/redburst/conn"
)

// A Phase is where a master stands in its connection's life.
type Phase uint8

const (
	// Dialing: the first connection has not been made yet.
	Dialing Phase = iota
	// Up: connected; it is asked.
	Up
	// Stalled: it owed a reply for longer than the stall time; its
	// connection was reset and a new one is being dialled.
	Stalled
	// Down: its connection was lost, or could not be made; it is being
	// redialled.
	Down
	// Refused: as it is configured it can never serve (conn.RefusedError says
	// why). It is redialled all the same, since somebody may change that.
	Refused
	// Quarantined: connected, but it may have forgotten locks: it is sent
	// only operations that persist, and its votes are not counted.
	Quarantined
)

// String returns the phase in one word.
func (p Phase) String() string {
	switch p {
	case Dialing:
		return "dialing"
	case Up:
		return "up"
	case Stalled:
		return "stalled"
	case Down:
		return "down"
	case Refused:
		return "refused"
	case Quarantined:
		return "quarantined"
	}
	return "invalid"
}

// A State is a snapshot of one master.
type State struct {
	Address string        // as String of its conn.Address: never with a password
	Phase   Phase         // where it stands
	Since   time.Duration // when that phase began, on conn.Now's clock
	Err     error         // why it is not up; nil if it is, or if no dial has ended yet
	RTT     time.Duration // smoothed round trip of its votes (RFC 6298's 1/8 gain); 0 before the first
	Last    time.Duration // round trip of the last reply, be it a straggler's
	Server  conn.Server   // what the handshake of the last connection said

	Owed       int    // replies outstanding
	Debts      int    // deliveries owed after the next connect, or to be repeated
	Connects   uint64 // connections made
	Replies    uint64 // replies matched, stragglers included
	Stragglers uint64 // replies that came after their operation's decision
	Failures   uint64 // failed votes
	Dropped    uint64 // debts given up because there were too many
}

// Masters returns a snapshot of every master, in the order of Config.Masters.
func (m *Mux) Masters() []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.states()
}

// states returns a snapshot of every master.
func (m *Mux) states() []State {
	all := make([]State, len(m.slots))
	for i := range m.slots {
		all[i] = m.slots[i].snapshot()
	}
	return all
}

// snapshot returns the state that is shown of a master.
func (s *slot) snapshot() State {
	st := s.state
	st.Owed, st.Debts = s.owed.len(), s.debts.len()+s.refused.len()
	return st
}

// Len returns the number of masters.
func (m *Mux) Len() int { return len(m.slots) }

// RTT returns the smoothed round trip of the master that completes a majority
// when all are asked: what a round takes. It is 0 before a majority has voted.
func (m *Mux) RTT() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	var sorted [maxMasters]time.Duration
	for i := range m.slots {
		d := m.slots[i].state.RTT
		if d == 0 {
			d = conn.Forever // not known to be fast
		}
		j := i
		for ; j > 0 && sorted[j-1] > d; j-- {
			sorted[j] = sorted[j-1]
		}
		sorted[j] = d
	}
	d := sorted[len(m.slots)/2]
	if d == conn.Forever {
		return 0
	}
	return d
}

// setPhase moves a slot to a phase and tells the hook.
func (m *Mux) setPhase(i int, p Phase, err error) {
	s := &m.slots[i]
	if s.state.Phase == p && p != Up && errText(s.state.Err) == errText(err) {
		s.state.Err = err
		return // another failed dial: no news
	}
	if s.state.Phase != p {
		s.state.Since = conn.Now()
	}
	s.state.Phase, s.state.Err = p, err
	if m.changed != nil { // Open is waiting for news
		select {
		case m.changed <- struct{}{}:
		default:
		}
	}
	if m.cfg.OnState == nil {
		return
	}
	m.news = append(m.news, news{i, s.snapshot()})
	if !m.telling {
		m.telling = true
		m.wg.Add(1)
		go m.tell()
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type news struct {
	master int
	state  State
}

// tell calls the hook for every change, in order and without mu. It takes mu between
// the calls.
func (m *Mux) tell() {
	defer m.wg.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.news) > 0 {
		all := m.news
		m.news = nil
		m.mu.Unlock()
		for _, n := range all {
			m.cfg.OnState(n.master, n.state)
		}
		m.mu.Lock()
	}
	m.telling = false
}
