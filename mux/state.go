package mux

import (
	"slices"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

// A Phase says where a master is in the life of its connection. [Phase.String] is its name in one
// word. A later version may add phases.
type Phase uint8

const (
	// Dialing: it was never connected, and no dial has failed yet.
	Dialing Phase = iota
	// Up: it is connected, and is asked. State.Err says so if its credentials could not be
	// renewed; it serves until it ends the connection.
	Up
	// Stalled: it owed replies and sent none for longer than the stall time. Its connection
	// was reset, and it is redialled.
	Stalled
	// Down: its connection has ended or could not be made. It is redialled.
	Down
	// Refused: it can never serve as it is configured. A [conn.RefusedError] says why. It is
	// redialled all the same, since somebody may change that.
	Refused
	// Quarantined: it is connected, but may have forgotten locks. It is sent persistent
	// operations only, and its votes are failed ones.
	Quarantined
)

// String returns the phase in one word.
func (p Phase) String() string {
	if int(p) < len(phases) {
		return phases[p]
	}
	return "invalid"
}

var phases = [...]string{Dialing: "dialing", Up: "up", Stalled: "stalled", Down: "down", Refused: "refused", Quarantined: "quarantined"}

// A State is a snapshot of one master.
type State struct {
	Addr    string        // as by conn.Address.String: no credentials
	Phase   Phase         // where it is in the life of its connection
	Since   time.Duration // when that phase began, on clock.Now's clock
	Changed time.Duration // when the phase or Err changed the last time, likewise
	Err     error         // why it is not Up; if it is Up, why its credentials could not be renewed, or nil
	RTT     time.Duration // smoothed round trip of its votes (gain 1/8, as in RFC 6298); 0 before the first
	Server  conn.Server   // what it said in the latest handshake; zero before the first

	Owed     int    // replies that it owes
	Debts    int    // operations to be delivered after the next connect, or to be sent again
	Connects uint64 // connections made, since New or Open as all that follow
	Replies  uint64 // replies matched, stragglers included
	Failures uint64 // failed votes
	Untold   uint64 // changes that Config.OnState was not told, because it was too slow
}

// Masters returns a snapshot of every master, in the order of Config.Masters. It may be
// called after Close.
func (m *Mux) Masters() []State { return m.AppendMasters(nil) }

// AppendMasters is [Mux.Masters] for callers that ask often: it appends the snapshots to dst, and
// allocates nothing if dst has room.
func (m *Mux) AppendMasters(dst []State) []State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.appendStates(dst)
}

// appendStates appends a snapshot of every master.
func (m *Mux) appendStates(dst []State) []State {
	dst = slices.Grow(dst, len(m.slots))
	for i := range m.slots {
		dst = append(dst, m.slots[i].snapshot())
	}
	return dst
}

// snapshot returns the state that is shown of a master.
func (s *slot) snapshot() State {
	st := s.state
	st.Owed, st.Debts = s.owed.len(), s.debts.len()+s.refused.len()
	return st
}

// Len returns the number of masters, connected or not.
func (m *Mux) Len() int { return len(m.slots) }

// RTT estimates how long a round takes: it is the smoothed round trip of the slowest
// master of the fastest majority. It is 0 before a majority has voted.
func (m *Mux) RTT() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rtt()
}

func (m *Mux) rtt() time.Duration {
	var sorted [maxMasters]time.Duration
	for i := range m.slots {
		d := m.slots[i].state.RTT
		if d == 0 {
			d = clock.Forever // not known to be fast
		}
		j := i
		for ; j > 0 && sorted[j-1] > d; j-- {
			sorted[j] = sorted[j-1]
		}
		sorted[j] = d
	}
	d := sorted[len(m.slots)/2]
	if d == clock.Forever {
		return 0
	}
	return d
}

// setPhase moves a slot to a phase, and has Open, Ready and the notifier told of it.
func (m *Mux) setPhase(i int, p Phase, err error) {
	s := &m.slots[i]
	if s.state.Phase == p && errText(s.state.Err) == errText(err) {
		s.state.Err = err
		return // another dial, or another renewal, went in the same way: no news
	}
	s.state.Changed = clock.Now()
	if s.state.Phase != p {
		s.state.Since = s.state.Changed
	}
	s.state.Phase, s.state.Err = p, err
	m.tellNews()
	if m.cfg.OnState == nil {
		return
	}
	if len(m.stateChanges) == mostChanges {
		m.slots[m.stateChanges[0].master].state.Untold++
		m.stateChanges = slices.Delete(m.stateChanges, 0, 1)
	}
	m.stateChanges = append(m.stateChanges, stateChange{i, s.snapshot()})
	if !m.notifying {
		m.notifying = true
		m.wg.Add(1)
		go m.notify()
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// mostChanges is how many changes may wait for Config.OnState.
const mostChanges = 1024

// A stateChange is a change of a master's state that Config.OnState is to be told.
type stateChange struct {
	master int
	state  State
}

// notify is the notifier: it calls Config.OnState for every change, in order and without mu.
// It takes mu between the calls.
func (m *Mux) notify() {
	defer m.wg.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.stateChanges) > 0 {
		all := m.stateChanges
		m.stateChanges = nil
		m.mu.Unlock()
		for _, n := range all {
			m.cfg.OnState(n.master, n.state)
		}
		m.mu.Lock()
	}
	m.notifying = false
}
