package mux

import (
	"cmp"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// leastLead is the least time that an operation waits for the first master's vote (Op.Lead). A busy machine is that late:
// with 20 ms, one in some thousand contenders had given up when its vote came. If the first master hangs, one operation waits in vain.
const leastLead = 50 * time.Millisecond

// Leading returns the master of a set that comes first in an order that all clients have in common: that of the
// servers' run ids, or of their addresses where INFO does not say these. It returns -1 for the empty set. A master
// that says its run id to some clients only has two places in the order.
func (m *Mux) Leading(of Set) int {
	m.lock()
	defer m.mu.Unlock()
	return m.leading(of)
}

func (m *Mux) leading(of Set) int {
	first, least := -1, ""
	for i := range m.slots {
		if !of.Has(i) {
			continue
		}
		if id := cmp.Or(m.slots[i].state.Server.RunID, m.slots[i].state.Addr); first < 0 || id < least {
			first, least = i, id
		}
	}
	return first
}

// leadUntil returns until when an operation that a quorum of yes has become impossible for waits for votes before it looks
// again, see Op.Lead; 0 if it does not wait. A master that owes a reply for longer than it would be waited for is passed
// over, as it hangs; but what has arrived by now is read before. A process that had no CPU finds all answers late, and at once.
func (m *Mux) leadUntil(op *Op, now time.Duration) (until time.Duration) {
	patience := max(4*m.rtt(), leastLead)
	var yes, no, fresh, late Set
	for i := range m.slots {
		if !op.Asked.Has(i) {
			continue
		}
		switch s := &m.slots[i]; op.Votes[i].Verdict {
		case VerdictYes:
			yes = yes.With(i)
		case VerdictNo:
			no = no.With(i)
		case VerdictPending:
			if by := s.leadBy(op, patience); by > now {
				fresh, until = fresh.With(i), min(cmp.Or(until, by), by)
			} else {
				late = late.With(i)
			}
		}
	}
	if first := m.leading(yes | no | fresh); fresh != 0 && !no.Has(first) {
		return until
	}
	if first := m.leading(yes | no | late); late != 0 && !no.Has(first) {
		return now
	}
	return 0
}

// leadsOn reports whether an operation goes on to wait when a master that it has waited for did not answer in time: another
// that has not answered may be farther away.
func (m *Mux) leadsOn(op *Op, now time.Duration) bool {
	if !op.decided || op.yes >= op.quorum {
		return false
	}
	if until := m.leadUntil(op, now); until > now {
		m.expireOp(op, until)
	}
	return op.deadline > now
}

// leadBy returns until when the master's vote is waited for.
func (s *slot) leadBy(op *Op, patience time.Duration) time.Duration {
	since := op.Started
	if s.owed.len() > 0 {
		since = min(since, s.owed.front().sent)
	}
	return clock.After(since, max(patience, 2*s.leastRTT))
}
