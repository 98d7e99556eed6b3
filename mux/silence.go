package mux

import (
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// silenceDeadline returns when the silence of a master that owes replies is to be judged. The
// master gets the stall time to answer. Then it is suspected, and gets a quarter more: this
// process may have stood still, before the command was written or before the reply was
// read.
func (m *Mux) silenceDeadline(s *slot) time.Duration {
	if s.suspected != 0 {
		return clock.After(s.suspected, m.cfg.StallTime/4)
	}
	return clock.After(max(s.owed.front().sent, s.lastReply), m.cfg.StallTime)
}

// silenceDue reports whether the silence of a master is to be judged at a time.
func (m *Mux) silenceDue(i int, at time.Duration) bool {
	s := &m.slots[i]
	return s.owed.len() > 0 && at >= m.silenceDeadline(s)
}

// checkSilence resets the connections of masters that owe replies and have sent none in
// time. Whatever else they have sent does not count: a master can push messages without end.
// It judges by a time before the sockets were asked: those of them that were ready then have
// been read. What has come since nobody has seen, however long ago that was.
func (m *Mux) checkSilence(before time.Duration) {
	for i := range m.slots {
		if !m.silenceDue(i, before) {
			continue
		}
		if s := &m.slots[i]; s.suspected == 0 {
			s.suspected = m.clock
		} else {
			m.drop(i, m.masterError(i, ErrStalled))
		}
	}
}
