package mux

import (
	"fmt"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

// owed is a reply that a master owes.
type owed struct {
	f     *flight
	sent  time.Duration // when it was queued
	left  int           // replies to come, the judged one included
	again bool          // the fallback was sent: there is no other
	debt  bool          // a delivery, or to one that is barred: the vote was cast as failed before
}

// match takes the replies that have come on a link.
func (m *Mux) match(i int, l *link) {
	s := &m.slots[i]
	now := conn.Now()
	m.clock = now
	for s.link == l {
		v, err := l.c.Next()
		switch {
		case err == resp.ErrNeedMore:
			if s.debts.len() > 0 {
				m.payDebts(i, now) // there may be room now
			}
			return
		case err != nil:
			m.drop(i, m.fault(i, err))
		case v.Kind() == resp.Push:
			if m.cfg.OnPush != nil {
				if err := guard(func() { m.cfg.OnPush(i, v) }); err != nil {
					m.drop(i, m.fault(i, err))
				}
			}
		case m.reply(i, v, now):
			s.heard, s.suspected = now, 0
			if s.demoted {
				m.demote(i)
			}
		default:
			m.drop(i, m.fault(i, ErrUnexpected))
		}
	}
}

// reply matches one reply to the operation it is owed to. It returns false if
// the connection cannot be trusted any more.
func (m *Mux) reply(i int, v resp.Value, now time.Duration) bool {
	s := &m.slots[i]
	if s.owed.len() == 0 {
		return false
	}
	o := s.owed.front()
	if o.left > 1 {
		o.left--
		return true
	}
	w := s.owed.pop()
	f := w.f
	rtt := now - w.sent
	s.state.Last = rtt
	s.state.Replies++
	verdict, err := judge(f.judge, v)
	if verdict == VerdictAgain && !w.again && len(f.fallback) > 0 {
		s.queued = append(s.queued, f.fallback...)
		s.owed.push(owed{f: f, sent: now, left: 1, again: true, debt: w.debt})
		m.soil(i)
		return true
	}
	if v.IsError() && conn.ErrorCode(v) == "READONLY" {
		s.demoted = true
		if f.until > now {
			m.addDebt(i, f, now) // for who is the master now
		}
	}
	switch {
	case f.until <= now || verdict != VerdictFailed || !conn.IsTransient(v):
	case s.again.full(f):
		s.state.Dropped++
	default:
		f.refs++
		s.again.push(f)
		if m.retryAt == 0 {
			m.retryAt = conn.After(now, retryEvery)
		}
	}
	op := f.op
	if w.debt {
		op = nil
	}
	if verdict != VerdictYes && verdict != VerdictNo {
		verdict = VerdictFailed
		switch {
		case err != nil:
		case v.IsError():
			err = &ReplyError{Code: conn.ErrorCode(v), Message: conn.ErrorText(v)}
		default:
			err = ErrUnexpected
		}
	}
	m.cast(op, i, verdict, err)
	if op == nil {
		s.state.Stragglers++
	} else {
		// A straggler's round trip ends when somebody looks, which says
		// nothing of its master: only votes are measured.
		if s.state.RTT == 0 {
			s.state.RTT = rtt
		} else {
			s.state.RTT += (rtt - s.state.RTT) / 8
		}
		vote := &op.Votes[i]
		vote.RTT = now - op.Started
		vote.Int, _ = v.Int()
		if op.Keep {
			vote.Reply = v.Clone()
		}
		m.settle(op, now)
	}
	m.unref(f)
	return true
}

// judge asks the judge. A caller that survives its panic must find the Mux
// unlocked, so the panic becomes the vote's cause.
func judge(j Judge, v resp.Value) (verdict Verdict, err error) {
	defer survive(&err)
	if j == nil {
		return VerdictFailed, nil
	}
	return j(v), nil
}

// guard calls a hook, likewise.
func guard(hook func()) (err error) {
	defer survive(&err)
	hook()
	return nil
}

func survive(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("mux: a callback panicked: %v", p)
	}
}
