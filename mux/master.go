package mux

import (
	"errors"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

// A slot is one master's place. All of it is guarded by Mux.mu.
type slot struct {
	addr   conn.Address
	link   *link  // nil unless the master is up
	queued []byte // not yet taken by the flusher
	spare  []byte // the buffer that queued will be swapped with
	taken  int    // bytes the flusher has, or the connection keeps unsent
	owed   ring[owed]
	debts  debts
	again  debts         // what it has refused for a moment
	unsure bool          // a connection ended that had commands unanswered, and no other has come since
	since  time.Duration // when the link was installed
	heard  time.Duration // when a reply was last matched on it

	suspected time.Duration // when it was found silent for the stall time; 0 if it was not
	pause     time.Duration // before the next dial, doubling while links are short-lived
	state     State

	known   conn.Server      // what it said at its last connection, of which state.Server is the copy that is shown
	barred  time.Duration    // it must not vote until then
	why     *QuarantineError // ... for this reason
	doubt   time.Duration    // when it was last connected in doubt, see Mux.Doubt; 0 if never
	reason  string           // ... for this reason
	remote  string           // the address of its last connection, see conn.Conn.RemoteAddr
	demoted bool             // it says that it is a replica now
	moved   string           // where a sentinel says that the group's master is now, if that is news
	via     string           // who else was the master since known was connected, if anybody
}

// A link is a connection in use. Its pins count the calls that are under way
// on it without mu; it is closed when it is out of its slot and has no pins.
type link struct {
	c       *conn.Conn
	id      uint64 // of its events: generation and slot
	pins    int
	blocked bool // the socket took less than it was given: wait until it is writable
	orderly bool // close it with what it has still to send, instead of a reset

	gone chan struct{} // closed when it is out of its slot
}

// owed is a reply that a master owes.
type owed struct {
	f     *flight
	sent  time.Duration // when it was queued
	left  int           // replies to come, the judged one included
	again bool          // the fallback was sent: there is no other
	debt  bool          // a delivery, or to one that is barred: the vote was cast as failed before
}

// slotOf and idOf map the events' ids: a link's generation above, the slot below.
func slotOf(id uint64) int { return int(id % maxMasters) }

func (m *Mux) nextID(i int) uint64 {
	return m.slots[i].state.Connects*maxMasters + uint64(i)
}

// admit makes an operation a pending one, without a vote.
func (m *Mux) admit(op *Op, now time.Duration) {
	if op.pending {
		m.mu.Unlock()
		panic("mux: an Op was submitted again before it was waited for")
	}
	n := len(m.slots)
	if cap(op.Votes) < n {
		op.Votes = make([]Vote, n)
	}
	op.Votes = op.Votes[:n]
	clear(op.Votes)
	op.Started, op.Decided, op.err = now, 0, nil
	op.Asked, op.yes, op.open = 0, 0, n
	op.waiting, op.drive = false, false // whatever a panic has left
	if op.Only != 0 {
		op.open = (op.Only & firstN(n)).Len()
	}
	op.quorum = op.Quorum
	if op.quorum <= 0 {
		op.quorum = m.majority
	}
	op.deadline = 0
	op.pending = true
	m.ops.push(op)
}

// start submits an operation: it is queued to every master that is up, and
// the others' votes are cast. If it is not wanted, nobody waits for it: its
// replies will all be stragglers. mu is held.
func (m *Mux) start(op *Op, now time.Duration, wanted bool) {
	var refused error
	switch {
	case m.closed || m.draining && op.Persist <= 0:
		refused = ErrClosed
	case len(op.Command)+len(op.Fallback) > maxCommand:
		refused = ErrTooLong
	}
	if wanted {
		m.admit(op, now)
		if refused != nil {
			m.decide(op, now, refused)
		} else if op.Timeout > 0 {
			op.deadline = conn.After(now, op.Timeout)
			m.lookAt(op.deadline)
		}
	}
	if refused != nil {
		return
	}
	m.woken = max(0, m.woken-1) // whoever it is: somebody has come back
	if len(op.Command) == 0 {
		return // it only waits
	}
	if wanted && !op.All && op.Persist <= 0 && m.available(op, now) < op.quorum {
		// It cannot succeed: nothing is written, so nothing need be undone.
		for i := range m.slots {
			if err := m.slots[i].unfit(now); err != nil && op.asks(i) {
				m.cast(op, i, VerdictFailed, err)
			}
		}
		m.decide(op, now, nil)
		return
	}
	f := m.takeFlight(op, now)
	if wanted {
		op.f, f.op = f, op
	}
	f.refs++ // ours, while we go through the slots
	for i := range m.slots {
		if !op.asks(i) {
			continue
		}
		s := &m.slots[i]
		err := s.unfit(now)
		barred := err != nil && err == error(s.why)
		if err != nil && !(barred && f.until != 0) {
			if f.until != 0 {
				m.addDebt(i, f, now)
			}
			m.cast(f.op, i, VerdictFailed, err)
			continue
		}
		if wanted {
			op.Asked = op.Asked.With(i)
		}
		s.queued = append(s.queued, op.Command...)
		s.owed.push(owed{f: f, sent: now, left: f.replies, debt: barred})
		if barred { // it is told, and not listened to
			m.cast(f.op, i, VerdictFailed, err)
		}
		f.refs++
		m.soil(i)
	}
	m.unref(f)
	m.rouse(conn.After(now, m.cfg.StallTime)) // it may have gone to sleep when nothing was owed
	if wanted && op.pending {
		m.settle(op, now)
	}
}

// unfit says why a master is asked nothing now; nil if it is.
func (s *slot) unfit(now time.Duration) error {
	switch {
	case s.link == nil && s.state.Err != nil:
		return s.state.Err
	case s.link == nil:
		return ErrConnecting
	case s.debts.len() > 0, s.owed.len() >= maxOwed, len(s.queued)+s.taken >= maxQueued:
		return ErrBacklog
	case now < s.barred:
		return s.why
	}
	return nil
}

func (op *Op) asks(i int) bool { return op.Only == 0 || op.Only.Has(i) }

func (m *Mux) available(op *Op, now time.Duration) int {
	n := 0
	for i := range m.slots {
		if op.asks(i) && m.slots[i].unfit(now) == nil {
			n++
		}
	}
	return n
}

// soil marks a slot as having something to send, unless its socket is known to
// take nothing now.
func (m *Mux) soil(i int) {
	if !m.slots[i].link.blocked {
		m.dirty = m.dirty.With(i)
	}
}

// lookAt makes sure that the driver looks at deadlines at d at the latest.
func (m *Mux) lookAt(d time.Duration) {
	if m.expiry == 0 || d < m.expiry {
		m.expiry = d
	}
	m.rouse(d)
}

// rouse wakes a driver that would sleep beyond d.
func (m *Mux) rouse(d time.Duration) {
	if m.parked && d < m.until {
		m.poll.Wake()
	}
}

func (m *Mux) takeFlight(op *Op, now time.Duration) *flight {
	f := m.pool
	if f == nil {
		f = new(flight)
	} else {
		m.pool = f.next
		m.pooled--
	}
	f.next = nil
	f.judge = op.Judge
	f.replies = max(1, op.Replies)
	f.fallback = append(f.fallback[:0], op.Fallback...)
	f.debt = f.debt[:0]
	f.until, f.extended = 0, 0
	if op.Persist > 0 {
		f.until, f.persist = conn.After(now, op.Persist), op.Persist
		if len(op.Fallback) == 0 {
			f.debt = append(f.debt, op.Command...)
		}
	}
	return f
}

func (m *Mux) unref(f *flight) {
	if f.refs--; f.refs > 0 {
		return
	}
	f.op, f.judge = nil, nil
	if m.pooled < maxPooled && cap(f.fallback) <= keepFlight && cap(f.debt) <= keepFlight {
		f.next, m.pool = m.pool, f
		m.pooled++
	}
}

// cast records a vote; op is nil for a straggler's.
func (m *Mux) cast(op *Op, i int, v Verdict, err error) {
	if v == VerdictFailed {
		m.slots[i].state.Failures++
	}
	if op == nil {
		return
	}
	op.Votes[i].Verdict, op.Votes[i].Err = v, err
	op.open--
	if v == VerdictYes {
		op.yes++
	}
}

// settle decides an operation if its votes do.
func (m *Mux) settle(op *Op, now time.Duration) {
	if op.open == 0 || !op.All && (op.yes >= op.quorum || !op.Thorough && op.yes+op.open < op.quorum) {
		m.decide(op, now, nil)
	}
}

// decide ends an operation and wakes its caller. What is still owed to it
// belongs to stragglers from here on.
func (m *Mux) decide(op *Op, now time.Duration, err error) {
	m.ops.remove(op)
	op.pending = false
	op.Decided, op.err = now, err
	if op.f != nil {
		op.f.op = nil
		op.f = nil
	}
	switch {
	case op == m.driver && m.parked:
		m.poll.Wake() // a rider's write found the connection broken, or the Mux is closing
	case op.waiting && op != m.driver:
		m.woken++
		op.signal()
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

// retry sends again, as debts, what was refused.
func (m *Mux) retry(now time.Duration) {
	if m.retryAt == 0 || now < m.retryAt {
		return
	}
	m.retryAt = 0
	for i := range m.slots {
		s := &m.slots[i]
		m.addDebts(i, &s.again, now)
		if s.link != nil && s.debts.len() > 0 {
			m.payDebts(i, now)
		}
	}
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

// fault says of a connection's end which master it was.
func (m *Mux) fault(i int, err error) error {
	return &conn.Error{Master: m.slots[i].addr.String(), Op: "read", Err: err}
}

// Debts are persistent operations that a master is to be sent, oldest first. They are
// bounded by number and by the bytes of their commands.
type debts struct {
	ring[*flight]
	bytes int
}

func (d *debts) push(f *flight) {
	d.ring.push(f)
	d.bytes += f.size()
}

func (d *debts) pop() *flight {
	f := d.ring.pop()
	d.bytes -= f.size()
	return f
}

// full reports whether there is no room for another.
func (d *debts) full(f *flight) bool {
	return d.len() >= maxDebts || d.bytes+f.size() > maxDebtBytes
}

// addDebt keeps a persistent operation for delivery after the next connect.
func (m *Mux) addDebt(i int, f *flight, now time.Duration) {
	s := &m.slots[i]
	for s.debts.len() > 0 && !s.wants(*s.debts.front(), now) {
		m.unref(s.debts.pop())
	}
	for s.debts.full(f) {
		s.state.Dropped++
		if s.unsure { // what undoes what it may still do came first
			return
		}
		m.unref(s.debts.pop())
	}
	f.refs++
	s.debts.push(f)
}

// addDebts moves flights to the debts.
func (m *Mux) addDebts(i int, from *debts, now time.Duration) {
	for from.len() > 0 {
		f := from.pop()
		m.addDebt(i, f, now)
		m.unref(f)
	}
}

// payDebts queues what is owed to a master. After a connect that is before
// anything else; after a backlog it is as soon as there is room.
func (m *Mux) payDebts(i int, now time.Duration) {
	s := &m.slots[i]
	for s.debts.len() > 0 && s.owed.len() < maxOwed && len(s.queued)+s.taken < maxQueued {
		f := s.debts.pop()
		if !s.wants(f, now) {
			m.unref(f)
			continue
		}
		// What it undoes was done just now, and lasts as long from here. That is so once:
		// a master that is dropped again and again is not owed it for ever.
		if f.until <= now && !f.extended.Has(i) {
			f.extended = f.extended.With(i)
			f.until = conn.After(now, f.persist)
		}
		o := owed{f: f, sent: now, left: 1, again: true, debt: true}
		if len(f.debt) > 0 {
			s.queued = append(s.queued, f.debt...)
			o.left = f.replies
		} else {
			s.queued = append(s.queued, f.fallback...)
		}
		s.owed.push(o)
		m.soil(i)
	}
	if s.debts.len() == 0 {
		s.unsure = false
	}
}

// wants reports whether an operation that persists is of use to a master that has not
// had it. After its time it is not, unless the master may have done only then what it
// undoes: one that was frozen does, when it thaws, what it finds in the buffers of a
// connection that was given up long ago. It does that before it sees another connection.
func (s *slot) wants(f *flight, now time.Duration) bool {
	return f.until > now || s.unsure && f.until != 0
}

// drop takes a connection out of its slot: what it still owes is failed, what
// persists becomes a debt, and unless the Mux is closing it is dialled anew.
func (m *Mux) drop(i int, err error) {
	s := &m.slots[i]
	l := s.link
	s.link, s.demoted = nil, false
	close(l.gone)
	m.dirty = m.dirty.Without(i)
	m.hangups = m.hangups.Without(i)
	m.poll.Remove(l.c)
	m.watch.Remove(l.c)
	if m.cfg.OnDisconnect != nil {
		if p := guard(func() { m.cfg.OnDisconnect(i) }); p != nil {
			err = errors.Join(err, p)
		}
	}
	phase := Down
	if errors.Is(err, ErrStalled) {
		phase = Stalled
	}
	l.orderly = err == ErrClosed
	m.setPhase(i, phase, err)
	now := conn.Now()
	// Debts that a backlog kept back are younger than what is owed.
	kept := s.debts
	s.debts = debts{}
	owing := s.owed
	s.owed = ring[owed]{}
	if s.queued, s.taken, s.suspected = s.queued[:0], 0, 0; cap(s.queued) > keepBuffer {
		s.queued = nil
	}
	s.unsure = s.unsure || owing.len() > 0
	for owing.len() > 0 {
		o := owing.pop()
		f := o.f
		if s.wants(f, now) {
			m.addDebt(i, f, now)
		}
		if op := f.op; op != nil && !o.debt {
			m.cast(op, i, VerdictFailed, err)
			m.settle(op, now)
		} else {
			m.cast(nil, i, VerdictFailed, err)
		}
		m.unref(f)
	}
	m.addDebts(i, &kept, now)
	m.addDebts(i, &s.again, now)
	l.close()
	if m.closed {
		return
	}
	// A connection that held for a while has earned an immediate redial; one
	// that keeps breaking goes on with its backoff.
	if now-s.since >= m.cfg.BackoffMax {
		s.pause = 0
	}
	m.wg.Add(1)
	go m.dial(i, s.pause)
}

// close closes a link that was dropped, if nobody is using it.
func (l *link) close() {
	if l.pins > 0 {
		return
	}
	if l.orderly {
		l.c.Close()
	} else {
		l.c.Abort()
	}
}
