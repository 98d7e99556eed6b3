package mux

import (
	"time"

	"github.com/redburst/redburst/conn"
)

// silentAt returns when the silence of a master that owes replies is to be judged. The
// master gets the stall time to answer. Then it is suspected, and gets a quarter more: this
// process may have stood still, before the command was written or before the reply was
// read.
func (m *Mux) silentAt(s *slot) time.Duration {
	if s.suspected != 0 {
		return conn.After(s.suspected, m.cfg.StallTime/4)
	}
	return conn.After(max(s.owed.front().sent, s.heard), m.cfg.StallTime)
}

// judgeSilence resets the connections of masters that owe replies and have sent none in
// time. The masters in ready are not silent: they have sent something that was not read yet.
func (m *Mux) judgeSilence(now time.Duration, ready Set) {
	for i := range m.slots {
		s := &m.slots[i]
		if s.owed.len() == 0 || ready.Has(i) || now < m.silentAt(s) {
			continue
		}
		if s.suspected == 0 {
			s.suspected = now
		} else {
			m.drop(i, m.fault(i, ErrStalled))
		}
	}
}
