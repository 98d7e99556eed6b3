package mux

import (
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// silenceDeadline returns when to look at the silence of a master that owes replies. The master
// has the stall time to answer. Then it is suspected, and has a quarter more: this process may
// have stood still, before the command was written or before the reply was read.
func (m *Mux) silenceDeadline(s *slot) time.Duration {
	if s.suspected != 0 {
		return clock.After(s.suspected, m.cfg.StallTime/4)
	}
	return clock.After(max(s.owed.front().sent, s.lastReply), m.cfg.StallTime)
}

// silenceDue reports whether a master owes replies, and its silence deadline has come at a time.
func (m *Mux) silenceDue(i int, at time.Duration) bool {
	s := &m.slots[i]
	return s.owed.len() > 0 && at >= m.silenceDeadline(s)
}

// checkSilence suspects masters that owe replies and have sent none in time, and then resets their
// connections. Only replies count: a master can push messages without end. before is a time before the
// sockets were asked. What was ready then has been read. What has come since is still unread, however
// long ago that was.
func (m *Mux) checkSilence(before time.Duration) {
	for i := range m.slots {
		if !m.silenceDue(i, before) {
			continue
		}
		if s := &m.slots[i]; s.suspected == 0 {
			s.suspected = m.clock
		} else {
			m.lose(i, m.masterError(i, ErrStalled))
		}
	}
}
