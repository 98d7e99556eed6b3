package mux

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// held has every Mux whose tick is kept away.
var held sync.Map

// HoldTick keeps the driver of last resort away: only callers drive from now on. One that is about to drive does so first.
func (m *Mux) HoldTick() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := held.LoadOrStore(m, true); ok {
		return
	}
	for m.armed {
		if m.tick.Stop() {
			m.wg.Done()
			break
		}
		m.mu.Unlock()
		runtime.Gosched()
		m.mu.Lock()
	}
	m.armed = true
}

// Tick has the driver of last resort drive now. HoldTick must have kept it away.
func (m *Mux) Tick() {
	held.Delete(m)
	m.wg.Add(1)
	m.onTick()
}

// Books says what the Mux counts otherwise than it is; empty if nothing. Whatever is used again, a slot or an Op, begins
// with what its last use has left.
func (m *Mux) Books() string {
	m.lock()
	defer m.mu.Unlock()
	for i := range m.slots {
		s, again := &m.slots[i], 0
		for k := range s.owed.len() {
			if s.owed.at(k).first != 0 {
				again++
			}
		}
		if s.again != again {
			return fmt.Sprintf("%s owes %d fallbacks, and %d are counted", s.addr, again, s.again)
		}
	}
	n, watched := 0, 0
	for op := m.ops.first; op != nil; op = op.next {
		if n++; op.done != nil {
			watched++
		}
		yes, open := 0, 0
		for i := range op.Votes {
			switch v := &op.Votes[i]; {
			case v.Verdict == VerdictYes:
				yes++
			case v.Verdict == VerdictPending && op.asks(i):
				open++
			}
		}
		if yes != op.yes || open != op.open {
			return fmt.Sprintf("an operation has %d yes and %d open votes, and %d and %d are counted", yes, open, op.yes, op.open)
		}
	}
	if n != m.ops.n || watched != m.watched {
		return fmt.Sprintf("%d operations are under way, of which %d are watched, and %d and %d are counted", n, watched, m.ops.n, m.watched)
	}
	return ""
}

// HoldFor sets for how long a driver may leave commands of a crowd unwritten.
func (m *Mux) HoldFor(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holdFor = d
}

// Holding reports whether the driver is parked and will write what callers queue.
func (m *Mux) Holding() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.parked && m.holding
}

// Crowd is how many operations make one.
const Crowd = crowd

// Suspects reports whether the silence of master i was noticed, and has not ended its connection yet.
func (m *Mux) Suspects(i int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slots[i].suspected != 0
}

// Locked calls f with the Mux locked, as if whoever has the lock stood still.
func (m *Mux) Locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// ParkedFor returns for how long the driver has parked at most, from now on; 0 if none has.
func (m *Mux) ParkedFor() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.parked {
		return 0
	}
	return m.until - clock.Now()
}

// TickArmed reports whether the tick is to come.
func (m *Mux) TickArmed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.armed
}

// Drives reports whether the caller of the operation drives.
func (m *Mux) Drives(op *Op) (yes bool) {
	m.Locked(func() { yes = m.DrivesLocked(op) })
	return yes
}

// DrivesLocked is Drives for what is called with the Mux locked.
func (m *Mux) DrivesLocked(op *Op) bool { return m.driving && m.driver == op }

// Distrust makes the word of a master's cluster as old as that of a process that has stood still.
func Distrust(m *Mux, i int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slots[i].trustedUntil = clock.Now()
}

// QuarantinedUntil returns when a master may vote, on clock.Now's clock.
func QuarantinedUntil(m *Mux, i int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slots[i].quarantinedUntil
}

// Suspend has the alarm be late, as it is after a machine was suspended.
func Suspend(m *Mux) {
	m.lock()
	defer m.mu.Unlock()
	if m.alarm.Stop() {
		m.alarm.Reset(time.Hour)
	}
}

// PingEvery sets after which time an idle connection of a master is sent a PING.
func PingEvery(m *Mux, i int, d time.Duration) {
	m.lock()
	defer m.mu.Unlock()
	m.slots[i].pulse.every = d
	m.setAlarm(clock.Now() + d)
}
