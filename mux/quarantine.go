package mux

import (
	"errors"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// A Keeper says which masters may vote: not those that may have forgotten what they were told. Its methods are called
// with the Mux locked, as the hooks of the [Config] are.
type Keeper interface {
	// Connected tells of a new connection, made at a time on the clock of [clock.Now]. before is what the master
	// said about itself at its previous connection (the zero Server if there was none), and now what it says at this
	// one. If the master was replaced ([Mux.Replace]), before has nothing but the address of the old one as its
	// Endpoint. The Role of before is "replica" if the master has said in between that it is one.
	Connected(master int, before, now conn.Server, at time.Duration)
	// Answered tells of each reply to what a Standing had it asked, which borrows the connection's buffer. If the
	// connection has ended before, the next that it hears of the master is Connected.
	Answered(master int, reply resp.Value, at time.Duration)
	// News reports whether a Standing may have changed since the last call, also by a push ([Config.OnPush]), or as the time
	// has come that one had given as Again.
	News() bool
	// Standing is asked for each master when there are news. What is to be asked it says once.
	Standing(master int) Standing
}

// A Standing is how far a master is believed. The zero Standing is that of a master that votes.
type Standing struct {
	// Until is the end of a quarantine, on the clock of [clock.Now], and Why what it is for. Until then the master is
	// sent persistent operations only, and its votes fail with a *[QuarantineError].
	Until time.Duration
	Why   string
	// Withheld has no yes of the master count until the Standing is another one: not that of an operation that is
	// under way either. It counts then, or fails.
	Withheld bool
	// Forgot says that the master may have forgotten by now what it has said yes to: no yes of before counts any more, to no
	// operation that is under way. It says so once, of each loss.
	Forgot bool
	// Ask is to be sent to the master on this connection. It draws so many Replies.
	Ask     []byte
	Replies int
	// Again, if not 0, is when News is to be asked again, on the clock of [clock.Now]. It concerns the Keeper as a whole: what
	// it says last counts, of whichever master.
	Again time.Duration
	// Missing, if not empty, is added to the Missing of the master's [conn.Server].
	Missing string
}

// Judge has the Keeper's news heeded at once.
func (m *Mux) Judge() {
	m.lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.judge(clock.Now())
		m.push()
	}
}

// judge heeds the Keeper's news.
func (m *Mux) judge(now time.Duration) {
	m.answered = false
	for m.keeperNews() {
		for i := range m.slots {
			var st Standing
			if err := callHook(func() { st = m.cfg.Keeper.Standing(i) }); err == nil {
				m.stand(i, st, now)
			} else if m.slots[i].link != nil {
				m.drop(i, m.masterError(i, err))
			}
		}
	}
}

// keeperNews reports whether the Keeper has news. If it panics, nobody says how far the masters are believed: all connections end.
func (m *Mux) keeperNews() (news bool) {
	if m.cfg.Keeper == nil {
		return false
	}
	if err := callHook(func() { news = m.cfg.Keeper.News() }); err != nil {
		for i := range m.slots {
			if m.slots[i].link != nil {
				m.drop(i, m.masterError(i, err))
			}
		}
	}
	return news
}

// stand gives a master its standing.
func (m *Mux) stand(i int, st Standing, now time.Duration) {
	s := &m.slots[i]
	s.quarantine(st)
	if st.Missing != "" && s.link != nil {
		s.state.Server.Missing = append(s.state.Server.Missing, st.Missing)
	}
	if st.Forgot {
		m.failYes(i, now)
	}
	if m.againAt = st.Again; st.Again != 0 {
		m.setAlarm(st.Again)
	}
	if s.link == nil {
		return
	}
	if len(st.Ask) > 0 {
		m.askStanding(i, st, now)
	}
	barred := now < s.quarantinedUntil
	switch was := s.state.Phase; {
	case barred:
		m.setPhase(i, Quarantined, s.quarantineErr)
		m.setAlarm(s.quarantinedUntil)
	case was == Quarantined:
		m.setPhase(i, Up, s.link.renewalErr)
	}
	was := s.withheld
	if s.withheld = st.Withheld; s.withheld != was {
		m.tellNews()
	}
	if barred || !s.withheld {
		m.castWithheld(i, s.unbelieved(now), now)
	}
}

// quarantine notes the quarantine of a standing.
func (s *slot) quarantine(st Standing) {
	until := st.Until
	if until > 0 && s.addr.Cluster() { // others may rely on the master before it for so long
		until = clock.After(until, conn.SlotTrust)
	}
	if until != s.quarantinedUntil || s.quarantineErr != nil && s.quarantineErr.Reason != st.Why {
		s.quarantinedUntil = until
		s.quarantineErr = &QuarantineError{Reason: st.Why, Until: time.Now().Add(until - clock.Now())}
	}
}

// unbelieved is why a yes of a master does not count now; nil if it does.
func (s *slot) unbelieved(now time.Duration) error {
	if now < s.quarantinedUntil {
		return s.quarantineErr
	}
	return nil
}

// askStanding sends a master what its standing asks.
func (m *Mux) askStanding(i int, st Standing, now time.Duration) {
	m.ask(i, &Op{Command: st.Ask, Replies: st.Replies, OnReply: func(i int, v resp.Value) {
		m.cfg.Keeper.Answered(i, v, clock.Now()) // not m.clock: the process may have stood still before it read the reply
		m.answered = true
	}}, now)
}

// ask sends a master a command that is nobody's vote, of which each reply is told: one that cannot be, as it is too long, ends
// the connection, and a panic of whoever is told does. The command is sent in quarantine, too.
func (m *Mux) ask(i int, op *Op, now time.Duration) {
	op.Verdict = func(resp.Value) Verdict { return VerdictNo }
	f := m.takeFlight(op, now)
	f.asked = true
	m.write(i, op.Command)
	for range f.replies {
		f.refs++
		m.slots[i].owed.push(owed{f: f, sent: now, left: 1, voted: true})
	}
	m.wakeDriver(clock.After(now, m.cfg.StallTime))
}

// withhold keeps a yes of a master until it is known whether it counts.
func (m *Mux) withhold(op *Op, i int) bool {
	op.Votes[i].withheld = m.slots[i].withheld
	return op.Votes[i].withheld
}

// castWithheld casts the votes of a master that were withheld: as yes, or as failed ones if there is a cause.
func (m *Mux) castWithheld(i int, cause error, now time.Duration) {
	for op := m.ops.first; op != nil; {
		if len(op.Votes) == 0 || !op.Votes[i].withheld {
			op = op.next
			continue
		}
		op.Votes[i].withheld = false
		if cause == nil {
			m.cast(op, i, VerdictYes, nil)
		} else {
			m.cast(op, i, VerdictFailed, cause)
			op.Votes[i].Int, op.Votes[i].Reply = 0, resp.Value{}
		}
		m.settle(op, now)
		op = m.ops.first // whoever was told may have forgotten another
	}
}

// errForgot is the cause of a failed vote of a master that has said yes, and has lost its keys since.
var errForgot = errors.New("mux: it may have forgotten what it has said yes to")

// failYes has each yes fail that a master has said to an operation that is under way, whether it was withheld or not.
func (m *Mux) failYes(i int, now time.Duration) {
	for op := m.ops.first; op != nil; {
		if len(op.Votes) == 0 || !op.Votes[i].withheld && op.Votes[i].Verdict != VerdictYes {
			op = op.next
			continue
		}
		v := &op.Votes[i]
		if !v.withheld {
			op.yes--
			op.open++
		}
		v.withheld = false
		m.cast(op, i, VerdictFailed, errForgot)
		v.Int, v.Reply = 0, resp.Value{}
		m.settle(op, now)
		op = m.ops.first // whoever was told may have forgotten another
	}
}

// endQuarantines sets the phase of each master whose quarantine is over, and the alarm for the others.
func (m *Mux) endQuarantines(now time.Duration) {
	for i := range m.slots {
		switch s := &m.slots[i]; {
		case s.link == nil || s.state.Phase != Quarantined:
		case now < s.quarantinedUntil:
			m.setAlarm(s.quarantinedUntil)
		default:
			m.setPhase(i, Up, s.link.renewalErr)
		}
	}
}

// judgeAgain heeds the news for which the Keeper wanted to be asked now, and sets the alarm if that was for later.
func (m *Mux) judgeAgain(now time.Duration) {
	switch at := m.againAt; {
	case at == 0:
	case now < at:
		m.setAlarm(at)
	default:
		m.againAt = 0
		m.judge(now)
	}
}
