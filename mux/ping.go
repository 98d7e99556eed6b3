package mux

import (
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// An idle connection is sent a PING now and then, also one in quarantine: what stands between, and the master itself, cut
// connections that are idle for long, and whoever was cut may have to serve a quarantine anew. A connection that is in
// use is sent none.
//
// If a connection was cut while it was idle, the next is sent twice as many. If that one is cut, too, the limit is known,
// and half of it is the interval. A connection that is cut earlier than it has been idle before was not cut because of
// that: its master was restarted, say.
const (
	pingEvery = 2 * time.Minute // usual limits are 300 s (timeout in redis.conf), 350 s and 10 min (load balancers)
	leastPing = 1500 * time.Millisecond
)

var pingCommand = resp.AppendCommand(nil, "PING")

// A pulse is what is known of how long a connection of a master may be idle.
type pulse struct {
	every time.Duration // after so long it is sent a PING
	held  time.Duration // the longest time that it was idle for since it was last cut, and lived
	cut   bool          // it was cut while it was idle
}

// lived notes that a connection has lived after it was idle for so long.
func (p *pulse) lived(idle time.Duration) { p.held = max(p.held, idle) }

// ended notes that a connection was cut when it had been idle for so long.
func (p *pulse) ended(idle time.Duration) {
	switch {
	case idle < leastPing:
		return
	case idle <= p.held:
	case p.cut:
		p.every = max(leastPing, min(p.every, idle)/2)
	default:
		p.every = max(leastPing, p.every/2)
	}
	p.held, p.cut = 0, true
}

// idleSince is when something was last heard of a master.
func (s *slot) idleSince() time.Duration { return max(s.since, s.lastReply) }

// lose drops a connection that has broken.
func (m *Mux) lose(i int, err error) {
	s := &m.slots[i]
	last := clock.Now()
	if s.owed.len() > 0 {
		last = s.owed.front().sent // that may have shown it
	}
	s.pulse.ended(last - s.idleSince())
	m.drop(i, err)
}

// setAlarm has onAlarm called at a time, if not before.
func (m *Mux) setAlarm(at time.Duration) {
	switch {
	case m.alarmAt == 0:
		m.wg.Add(1)
	case at >= m.alarmAt || !m.alarm.Stop():
		return // it goes soon enough
	}
	m.alarmAt = at
	m.alarm.Reset(at - clock.Now())
}

// heedSuspension has the alarm go at once if it is late, as the machine was suspended: its timer does not count that time.
func (m *Mux) heedSuspension(now time.Duration) {
	if m.alarmAt != 0 && now > m.alarmAt && m.alarm.Stop() {
		m.alarmAt = now
		m.alarm.Reset(0)
	}
}

// onAlarm does what is due: it asks the Keeper for news, ends quarantines and sends PINGs. Each sets the alarm for what is due
// later. It takes mu.
func (m *Mux) onAlarm() {
	defer m.wg.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alarmAt = 0
	if m.closed {
		return
	}
	now := clock.Now()
	m.judgeAgain(now)
	m.endQuarantines(now)
	m.ping(now)
	m.push()
}

// ping sends a PING on the connections that are idle, or nearly so: the masters share a burst. There is at most one on each
// connection in three quarters of its interval.
func (m *Mux) ping(now time.Duration) {
	next := clock.Forever
	for i := range m.slots {
		s := &m.slots[i]
		if s.link == nil {
			continue
		}
		at := s.idleSince() + s.pulse.every
		switch {
		case s.owed.len() > 0: // its silence is watched
			at = now + s.pulse.every
		case at-s.pulse.every/4 <= now:
			m.ask(i, &Op{Command: pingCommand}, now)
			at = now + s.pulse.every
		}
		next = min(next, at)
	}
	if next != clock.Forever {
		m.setAlarm(next - rand.N((next-now)/8+1)) // a fleet that has connected at once need not come at once
	}
}
