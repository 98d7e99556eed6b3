package mux

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// owed is a reply that a master owes.
type owed struct {
	f     *flight       // nil if it is the reply to a renewal of the credentials
	sent  time.Duration // when the command was queued, on clock.Now's clock
	first time.Duration // of a fallback: when the command was; 0 otherwise
	left  int           // replies to come, the last one included
	final bool          // VerdictAgain is of no use: this is the fallback, or a delivery
	voted bool          // the master's vote was cast as failed before: a delivery, or it is barred
	needs conn.Commands // of the Dialect that was sent; 0 if it was the Command
}

// match takes the replies that have come on a link.
func (m *Mux) match(i int, l *link) {
	s := &m.slots[i]
	now := m.clock
	m.readBy = 0
	for s.link == l {
		v, err := l.c.Next()
		kind := v.Kind()
		var beyond error
		if err == resp.ErrSkipped {
			kind, beyond, err = l.c.Skipped().Kind, &SkippedError{l.c.Skipped()}, nil
		}
		switch {
		case err == resp.ErrNeedMore:
			m.releaseHeld(i)
			if s.debts.len() > 0 {
				m.payDebts(i, now) // there may be room now
			}
			return
		case err != nil:
			m.drop(i, m.masterError(i, err))
		case kind == resp.Push:
			if beyond != nil { // it is about keys with names that are too long for us
				continue
			}
			if m.cfg.OnPush != nil {
				if err := callHook(func() { m.cfg.OnPush(i, v) }); err != nil {
					m.drop(i, m.masterError(i, err))
				}
			}
			m.judge(now)
		default:
			if err := m.reply(i, v, beyond, now); err != nil {
				m.drop(i, m.masterError(i, err))
				continue
			}
			s.pulse.lived(now - s.idleSince())
			s.lastReply, s.suspected = now, 0
			if s.demoted != nil { // before what it says of itself is heeded
				m.dropDemoted(i)
			}
			if m.answered {
				m.judge(now)
			}
		}
	}
}

// reply matches one reply to the operation it is owed to. It returns an error if the
// connection cannot be trusted any more, or whoever has asked cannot be told. If beyond is set, the reply was too
// long, and v is none.
func (m *Mux) reply(i int, v resp.Value, beyond error, now time.Duration) error {
	s := &m.slots[i]
	c := s.link.c
	if s.owed.len() == 0 {
		return ErrUnexpected
	}
	if now < s.owed.front().sent { // another goroutine has written it since the driver read the clock
		now = clock.Now()
		m.clock = now
	}
	switch o := s.owed.front(); {
	case o.f == nil:
		if beyond != nil || !m.renewalReply(i, v) {
			return ErrUnexpected
		}
		return nil
	case o.left > 1:
		o.left--
		return nil
	}
	o := s.owed.pop()
	f, asked := o.f, o.f.asked
	s.noteRoundTrip(now - o.sent)
	if o.first != 0 {
		s.again--
	}
	s.state.Replies++
	if beyond != nil {
		m.conclude(i, o, VerdictFailed, beyond, v, now)
		if asked { // or who has asked waits for ever
			return beyond
		}
		return nil
	}
	verdict, err := callVerdict(f.verdict, v)
	if verdict == VerdictFailed && o.needs != 0 {
		verdict = s.dialectError(o, v)
	}
	if verdict == VerdictAgain && !o.final && !f.bare {
		// Not by the clock of the pass: the process may have stood still since it was read.
		if f.lease == nil || f.lease.Holds(f.term, clock.Now()) {
			m.fallBack(i, o, now)
			return nil
		}
		if verdict = VerdictNo; v.IsError() { // it says nothing of what the master has
			verdict = VerdictFailed
		}
	}
	var panicked error
	if f.onReply != nil {
		if panicked = callHook(func() { f.onReply(i, v) }); panicked != nil {
			verdict, err = VerdictFailed, panicked
		}
	}
	m.handleErrorReply(i, f, verdict, v, now)
	verdict, err = outcome(c, verdict, err, v)
	m.conclude(i, o, verdict, err, v, now)
	if asked {
		return panicked
	}
	return nil
}

// conclude casts what a reply makes of the master's vote, if anybody waits for it.
func (m *Mux) conclude(i int, o owed, verdict Verdict, err error, v resp.Value, now time.Duration) {
	if f := o.f; f.op == nil || o.voted {
		m.cast(nil, i, verdict, err)
		s := &m.slots[i]
		m.noteStraggler(s, cmp.Or(o.first, o.sent))
	} else {
		m.vote(f.op, i, verdict, err, v, now-o.sent, now)
	}
	m.unref(o.f)
}

// dialectError returns the verdict on an error reply to a dialect: VerdictAgain if the fallback may do
// better.
func (s *slot) dialectError(o owed, v resp.Value) Verdict {
	switch conn.ErrorCode(v) {
	case "NOPERM", "ERR":
		// The server means something else by it, or the user may not call it. The handshake
		// could not see that: servers look at the number of arguments first.
		s.known.Commands &^= o.needs
	case "OOM": // a SET is refused where the memory is full, and a script that sets nothing is not
	default:
		return VerdictFailed
	}
	if o.f.bare {
		return VerdictFailed
	}
	return VerdictAgain
}

// fallBack sends a master the fallback of an operation in place of what it has answered.
func (m *Mux) fallBack(i int, o owed, now time.Duration) {
	m.write(i, o.f.text)
	s := &m.slots[i]
	s.owed.push(owed{f: o.f, sent: now, first: o.sent, left: 1, final: true, voted: o.voted})
	if s.again++; s.again == 1 || o.sent < s.againFrom {
		s.againFrom = o.sent
	}
}

// handleErrorReply does what an error reply asks for besides a vote. If it says that the
// server is not the master now, the connection is to be dropped, and a persistent operation is
// kept for whoever is the master now. If the error will pass, a persistent operation is
// to be sent again. What is kept goes before all that is still owed: it is older.
func (m *Mux) handleErrorReply(i int, f *flight, verdict Verdict, v resp.Value, now time.Duration) {
	s := &m.slots[i]
	demoted := v.IsError() && s.noteDemotion(conn.ErrorCode(v))
	if f.until > now && (demoted || verdict == VerdictFailed && conn.IsTransient(v)) {
		m.sendLater(i, f, now)
	}
}

// outcome is the vote that a reply makes, and the cause of a failed one, given the verdict on it.
func outcome(c *conn.Conn, verdict Verdict, err error, v resp.Value) (Verdict, error) {
	switch {
	case verdict == VerdictYes || verdict == VerdictNo:
		return verdict, err
	case err != nil: // the VerdictFunc has panicked
		return VerdictFailed, err
	case v.IsError():
		return VerdictFailed, &ReplyError{Code: conn.ErrorCode(v), Message: c.ErrorText(v)}
	}
	return VerdictFailed, ErrUnexpected
}

// vote casts the vote that a reply makes and measures the round trip. Only votes are
// measured: a straggler's round trip ends when somebody looks, which says nothing of its
// master.
func (m *Mux) vote(op *Op, i int, verdict Verdict, err error, v resp.Value, rtt, now time.Duration) {
	s := &m.slots[i]
	var doubt error                                                                    // why a yes of this master does not count
	if verdict == VerdictYes || verdict == VerdictFailed && v.Kind() == resp.Integer { // a fence that is not believed
		if doubt = s.unbelieved(now); s.suspects(op, i) {
			doubt = ErrSuspect
		}
		if doubt != nil {
			verdict, err = VerdictFailed, doubt
		}
	}
	if verdict != VerdictYes || !m.withhold(op, i) {
		m.cast(op, i, verdict, err)
	}
	switch {
	case op.OnDecided != nil: // as with a straggler's
	case s.state.RTT == 0:
		s.state.RTT = rtt
	default:
		s.state.RTT += (rtt - s.state.RTT) / 8
	}
	vote := &op.Votes[i]
	vote.RTT = now - op.Started
	if doubt == nil { // a number would say that the master has what it was asked for
		vote.Int, _ = v.Int()
	}
	if op.Keep || op.KeepNo && verdict == VerdictNo && v.Kind() != resp.Integer && len(v.Raw()) <= maxNo {
		vote.Reply = v.CloneTo(op.memory(i, len(v.Raw())))
	}
	m.settle(op, now)
}

// callVerdict calls a VerdictFunc. A panic of it becomes the vote's error, since a caller that
// recovers from it must find the Mux unlocked.
func callVerdict(f VerdictFunc, v resp.Value) (verdict Verdict, err error) {
	defer catchPanic(&err)
	if f == nil {
		return VerdictFailed, nil
	}
	return f(v), nil
}

// callHook calls a hook of the Config, and returns its panic as an error.
func callHook(hook func()) (err error) {
	defer catchPanic(&err)
	hook()
	return nil
}

// catchPanic is deferred: it makes a panic of the user's code an error.
func catchPanic(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("mux: a callback panicked: %v", p)
	}
}
