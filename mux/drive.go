package mux

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

const (
	// A driver whose context can end cannot wait for it and for the sockets
	// at once. It looks at the context every millisecond, and once it has
	// waited for 16 of them it pays for a callback that wakes it: so short
	// operations allocate nothing, and long ones do not keep looking.
	lookEvery = time.Millisecond
	maxLooks  = 16

	// A flusher serves this many bursts before it leaves the rest to the
	// driver: one is its own, the second is what others queued meanwhile.
	maxBursts = 2

	slowYield = 200 * time.Microsecond // a yield above this is not repeated for hurryFor
	hurryFor  = 100 * time.Millisecond

	relieveAt = 1 << 10 // replies owed by a master

	keepBuffer = 256 << 10 // an output buffer above this is not kept
)

// Do submits an operation and waits for its decision. It returns nil if the
// masters decided: Op.Won tells how, and the votes tell why. Otherwise the
// error is ErrTimeout, ErrClosed, or ctx.Err(), and the votes are those cast
// until then. If ctx has ended already, nothing is written; if too few masters
// can be asked for a quorum, nothing is written and the decision is immediate
// (but see Op.All and Op.Persist).
func (m *Mux) Do(ctx context.Context, op *Op) error {
	done, err := ctx.Done(), ctx.Err()
	now := conn.Now()
	m.mu.Lock()
	if err != nil {
		m.admit(op, now)
		m.decide(op, now, err)
		m.mu.Unlock()
		return err
	}
	m.start(op, now, true)
	return m.wait(ctx, done, op)
}

// Post submits operations in one burst, without waiting for their decisions.
// Each must be followed by one Wait, or by Forget.
func (m *Mux) Post(ops ...*Op) {
	now := conn.Now()
	m.mu.Lock()
	for _, op := range ops {
		m.start(op, now, true)
	}
	m.push()
	m.relieve()
	m.mu.Unlock()
}

// Wait waits for the decision of an operation that was posted. Its result is
// that of Do. However it is left, by a panic of the context too, the operation is
// not pending any more.
func (m *Mux) Wait(ctx context.Context, op *Op) error {
	done := m.doneOf(ctx, op)
	m.mu.Lock()
	return m.wait(ctx, done, op)
}

// doneOf asks a context for its channel, and forgets the operation if that panics.
func (m *Mux) doneOf(ctx context.Context, op *Op) <-chan struct{} {
	asked := false
	defer func() {
		if !asked {
			m.Forget(op)
		}
	}()
	done := ctx.Done()
	asked = true
	return done
}

// Forget ends an operation that was submitted: its Wait, also one that is under
// way, returns ErrForgotten. It does nothing to an operation that is not pending.
func (m *Mux) Forget(op *Op) {
	m.mu.Lock()
	if op.pending {
		m.decide(op, conn.Now(), ErrForgotten)
	}
	m.mu.Unlock()
}

// Send submits an operation that nobody waits for. The Op may be reused at
// once; its votes are not filled in.
func (m *Mux) Send(op *Op) {
	now := conn.Now()
	m.mu.Lock()
	m.start(op, now, false)
	m.push()
	m.relieve()
	m.mu.Unlock()
}

// push has the queued commands written: by us, unless a driver that is running
// or another flusher will do it. mu is held, and is let go meanwhile.
func (m *Mux) push() {
	if m.dirty != 0 && !m.flushing && (m.parked || !m.driving) {
		m.flush()
	}
	if !m.driving {
		m.arm()
	}
}

// relieve reads what masters have answered if they are owed much and nobody
// waits: the tick alone could not keep up with those who only Send.
func (m *Mux) relieve() {
	if !m.driving && !m.closed && m.owesMuch() {
		m.driving = true
		m.pass(0, nil)
		m.leave()
	}
}

func (m *Mux) owesMuch() bool {
	for i := range m.slots {
		if m.slots[i].owed.len() > relieveAt {
			return true
		}
	}
	return false
}

// wait parks or drives until the operation is decided. mu is held; it is let
// go on return. A context may be of any kind and take locks of its own, so its
// methods are never called under mu.
func (m *Mux) wait(ctx context.Context, done <-chan struct{}, op *Op) error {
	if op.pending {
		m.attend(ctx, done, op)
	}
	err := op.err
	m.mu.Unlock()
	if err == errContext {
		err = ctx.Err()
	}
	return err
}

// errContext stands for the error of the caller's context, which is asked for it
// without the lock.
var errContext = errors.New("mux: context ended")

func (m *Mux) attend(ctx context.Context, done <-chan struct{}, op *Op) {
	if op.wake == nil {
		op.wake = make(chan struct{}, 1)
	}
	op.waiting = true
	for op.pending {
		if op.drive || !m.driving {
			op.drive, m.driving = false, true
			m.drive(ctx, done, op)
			continue
		}
		if m.dirty != 0 && !m.flushing && m.parked {
			m.flush()
			continue
		}
		m.mu.Unlock()
		if done == nil {
			<-op.wake
			m.mu.Lock()
			continue
		}
		select {
		case <-op.wake:
			m.mu.Lock()
		case <-done:
			m.mu.Lock()
			if op.pending {
				m.decide(op, conn.Now(), errContext)
			}
		}
	}
	op.waiting = false
	select {
	case <-op.wake:
	default:
	}
	if op.drive { // it was handed to us when we did not need it any more
		op.drive = false
		m.leave()
	}
}

// drive serves everybody until our own operation is decided. mu and the drive
// are held; the drive is put down on return.
func (m *Mux) drive(ctx context.Context, done <-chan struct{}, op *Op) {
	m.driver = op
	looks := 0
	var stop func() bool
	for op.pending {
		if m.dirty != 0 && !m.flushing {
			m.gather()
			m.flush()
			if !op.pending {
				break
			}
		}
		if done != nil && stop == nil && looks == maxLooks {
			stop = m.wakeAfter(ctx, op)
			continue // much may have changed
		}
		until := m.nextEvent()
		if m.dirty != 0 && !m.flushing {
			until = 0 // more was queued while we wrote: look at the replies, then write on
		}
		if done != nil {
			select {
			case <-done:
				m.decide(op, conn.Now(), errContext)
				continue
			default:
			}
			if stop == nil {
				until = min(until, conn.Now()+lookEvery)
			}
		}
		if !m.pass(until, op) && looks < maxLooks {
			looks++
		}
	}
	m.driver = nil
	m.leave()
	if stop != nil {
		m.mu.Unlock()
		stop()
		m.mu.Lock()
	}
}

// wakeAfter has the end of the driver's context wake it. mu and the drive are held, and
// mu is let go meanwhile. If the context panics, the operation is forgotten and the drive
// put down, so that nobody else waits for the panicking goroutine.
func (m *Mux) wakeAfter(ctx context.Context, op *Op) (stop func() bool) {
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		if stop != nil {
			return
		}
		if op.pending {
			m.decide(op, conn.Now(), ErrForgotten)
		}
		m.driver = nil
		m.leave()
		m.mu.Unlock()
	}()
	return context.AfterFunc(ctx, m.poll.Wake)
}

// gather lets the callers that were just answered run, if they have not been
// back yet: most of them bring their next command, and it rides in this burst.
// Measured with 32 callers at five masters, this is a third of the writes and
// two thirds of the time. A lone caller never gets here with anybody to wait
// for. The flush is held, so that the others leave the writing to us.
//
// Where all processors are busy with something else, a yield takes a time slice
// and not a microsecond: then there is none for a while.
func (m *Mux) gather() {
	if m.woken == 0 {
		return
	}
	m.woken = 0
	now := conn.Now()
	if now < m.hurry {
		return
	}
	m.flushing = true
	m.mu.Unlock()
	runtime.Gosched()
	m.mu.Lock()
	m.flushing = false
	if done := conn.Now(); done-now > slowYield {
		m.hurry = done + hurryFor
	}
}

// nextEvent returns when the driver has to look up at the latest.
func (m *Mux) nextEvent() time.Duration {
	until := conn.Forever
	if m.expiry != 0 {
		until = m.expiry
	}
	if m.retryAt != 0 {
		until = min(until, m.retryAt)
	}
	for i := range m.slots {
		if s := &m.slots[i]; s.owed.len() > 0 {
			until = min(until, m.silentAt(s))
		}
	}
	return until
}

// silentAt returns when the silence of a master that owes replies is to be
// judged. It gets the stall time to answer. Then it is suspected, and gets a
// quarter more: it may be this process that stood still, before the command was
// written or before the reply was read.
func (m *Mux) silentAt(s *slot) time.Duration {
	if s.suspected != 0 {
		return conn.After(s.suspected, m.cfg.StallTime/4)
	}
	return conn.After(max(s.owed.front().sent, s.heard), m.cfg.StallTime)
}

// judgeSilence resets the connections of masters that owe replies and give none.
// Those that have something that was not read yet, the set ready, are not silent.
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

// pass waits for the sockets until the given time, not at all if it is zero,
// and serves those that are ready; it stops when mine (which may be nil) is
// decided. It reports whether anything was ready. mu and the drive are held;
// mu is let go meanwhile.
func (m *Mux) pass(until time.Duration, mine *Op) bool {
	m.parked, m.until = true, until
	m.mu.Unlock()
	var events []conn.Event
	var err error
	if until <= 0 {
		events, err = m.poll.Poll()
	} else {
		events, err = m.poll.Wait(until)
	}
	m.mu.Lock()
	m.parked = false
	if err != nil {
		// The poller is gone, or the system is out of its mind: nobody
		// can be served any more.
		for m.ops.first != nil {
			m.decide(m.ops.first, conn.Now(), err)
		}
		return false
	}
	var ready Set
	for _, ev := range events {
		ready = ready.With(slotOf(ev.ID))
	}
	for _, ev := range events {
		if mine != nil && !mine.pending {
			break
		}
		m.serve(ev)
		ready = ready.Without(slotOf(ev.ID))
	}
	if mine == nil || mine.pending {
		m.clock = conn.Now()
		m.expireDue(m.clock)
		m.retry(m.clock)
	}
	m.judgeSilence(m.clock, ready)
	return len(events) > 0
}

// expireDue decides the operations whose deadline has passed.
func (m *Mux) expireDue(now time.Duration) {
	if m.expiry == 0 || now < m.expiry {
		return
	}
	m.expiry = 0
	for op := m.ops.first; op != nil; {
		next := op.next
		switch {
		case op.deadline == 0:
		case op.deadline <= now:
			m.decide(op, now, ErrTimeout)
		case m.expiry == 0 || op.deadline < m.expiry:
			m.expiry = op.deadline
		}
		op = next
	}
}

// serve reads one connection and matches the replies.
func (m *Mux) serve(ev conn.Event) {
	i := slotOf(ev.ID)
	s := &m.slots[i]
	l := s.link
	if l == nil || l.id != ev.ID {
		return // of a connection that was dropped meanwhile
	}
	if ev.Ready&conn.Writable != 0 {
		m.dirty = m.dirty.With(i)
	}
	if ev.Ready&(conn.Readable|conn.Hangup) == 0 {
		return
	}
	l.pins++
	m.mu.Unlock()
	n, err := l.c.Receive()
	m.mu.Lock()
	l.pins--
	if s.link != l {
		l.close()
		return
	}
	if n > 0 {
		m.match(i, l)
	}
	if err != nil && s.link == l {
		m.drop(i, err)
	}
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

// leave puts the drive down: into the hands of the caller that has waited
// longest, or, if nobody waits, nowhere.
func (m *Mux) leave() {
	m.driving = false
	if m.closed {
		m.calm.Broadcast()
		return
	}
	for op := m.ops.first; op != nil; op = op.next {
		if op.waiting {
			m.driving, op.drive = true, true
			op.signal()
			return
		}
	}
	m.push()
}

// outgoing is what a flusher writes to one master.
type outgoing struct {
	i       int
	l       *link
	buf     []byte // nil to go on with what the connection keeps
	left    int
	flushed bool
	err     error
}

// flush writes what is queued, one write for each master, until nothing is, or
// until it has done its share and a driver is there to go on. mu is held, and
// is let go while it writes.
func (m *Mux) flush() {
	m.flushing = true
	for bursts := 0; m.dirty != 0; bursts++ {
		if bursts >= maxBursts {
			if m.parked {
				m.poll.Wake()
			}
			break
		}
		n := 0
		for i := range m.slots {
			if !m.dirty.Has(i) {
				continue
			}
			s := &m.slots[i]
			o := &m.burst[n]
			n++
			o.i, o.l, o.buf = i, s.link, nil
			if !s.link.blocked {
				o.buf, s.queued, s.spare = s.queued, s.spare[:0], nil
				s.taken = len(o.buf)
			}
			s.link.pins++
		}
		m.dirty = 0
		m.mu.Unlock()
		for k := range m.burst[:n] {
			o := &m.burst[k]
			if o.buf != nil {
				o.flushed, o.err = o.l.c.Send(o.buf)
			} else {
				o.flushed, o.err = o.l.c.Flush()
			}
			o.left = o.l.c.Unsent()
		}
		m.mu.Lock()
		for k := range m.burst[:n] {
			m.sent(&m.burst[k])
		}
	}
	m.flushing = false
	if m.closed {
		m.calm.Broadcast()
	}
}

// sent takes note of what a write has done.
func (m *Mux) sent(o *outgoing) {
	s, l := &m.slots[o.i], o.l
	if o.buf != nil && cap(o.buf) <= keepBuffer {
		s.spare = o.buf[:0]
	}
	o.l, o.buf = nil, nil
	l.pins--
	if s.link != l {
		l.close()
		return
	}
	if o.err != nil {
		m.drop(o.i, o.err)
		return
	}
	s.taken = o.left
	if o.flushed != l.blocked {
		return
	}
	l.blocked = !o.flushed
	want := conn.Readable
	if l.blocked {
		want |= conn.Writable
	} else if len(s.queued) > 0 {
		m.dirty = m.dirty.With(o.i)
	}
	if err := m.poll.Modify(l.c, l.id, want); err != nil {
		m.drop(o.i, err)
	}
}
