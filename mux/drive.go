package mux

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

const (
	// A driver cannot wait for its context and for the sockets at once. It checks the context
	// every millisecond. After 16 checks it pays for a callback that wakes it. So short
	// operations allocate nothing, and long ones do not keep checking. An operation that only
	// waits is a long one.
	ctxCheckEvery = time.Millisecond
	maxCtxChecks  = 16

	// While that many operations wait for replies, callers do not write what they have queued while the
	// driver is parked. It writes that when the next replies come, or after holdFor at the latest. So more
	// commands share a write. Measured with 256 callers at five masters, it leaves half to three quarters
	// of the writes, and three quarters of the time. Masters 1 ms and 5 ms away lose nothing by it.
	crowd   = 16
	holdFor = time.Millisecond

	slowYield  = 200 * time.Microsecond // a yield above this is not repeated for noYieldFor
	callerTime = 20 * time.Microsecond  // ... but with half a crowd, each caller that it lets run may take this besides
	noYieldFor = 100 * time.Millisecond
)

// wait parks or drives until the operation is decided. It lets mu go, and returns
// without it. A context may be of any kind and take locks of its own, so its
// methods are never called under mu.
func (m *Mux) wait(ctx context.Context, done <-chan struct{}, op *Op) error {
	if op.pending {
		m.awaitDecision(ctx, done, op)
	} else {
		m.push() // it was decided at once, and yet some masters are to be told
		m.mu.Unlock()
	}
	if op.err == errContext {
		return ctx.Err()
	}
	return op.err
}

// errContext stands for the error of the caller's context, until the context is asked for
// it, without mu.
var errContext = errors.New("mux: context ended")

// awaitDecision drives, or waits for the signal while another drives, until the operation is decided.
// It lets mu go, and returns without it.
func (m *Mux) awaitDecision(ctx context.Context, done <-chan struct{}, op *Op) {
	if op.wake == nil {
		op.wake = make(chan bool, 1)
	}
	var stop func() bool         // of the context's callback; nil while there is none
	long := len(op.Command) == 0 // it is to have one before it drives
	op.waiting = true
	for op.pending {
		if op.drive || !m.driving && !(m.aside && op.stepsAside()) {
			m.unwatch(op)
			if done != nil && stop == nil && long {
				stop = m.wakeAfter(ctx, op)
				continue // everything may have changed without mu
			}
			op.drive, m.driving = false, true
			long = m.drive(done, stop != nil, op)
			continue
		}
		if m.dirty != 0 && !m.flushing && m.parked && !m.holding {
			m.flush()
			continue
		}
		var ended <-chan struct{}
		if !m.watch(op, done) {
			ended = done
		}
		m.mu.Unlock()
		if ended == nil { // a plain receive takes half the time of a select
			if <-op.wake {
				stopWaking(stop)
				return
			}
			m.mu.Lock()
			continue
		}
		select {
		case decided := <-op.wake:
			if decided {
				stopWaking(stop)
				return
			}
			m.mu.Lock()
		case <-ended:
			m.mu.Lock()
			if op.pending {
				m.decide(op, clock.Now(), errContext)
			}
		}
	}
	m.leave(op)
	m.mu.Unlock()
	stopWaking(stop)
}

// leave ends the waiting for an operation that is decided. It lets mu go.
func (m *Mux) leave(op *Op) {
	op.waiting = false
	select {
	case <-op.wake:
	default:
	}
	if op.drive { // the drive was given to us when we did not need it any more
		op.drive = false
		m.releaseDrive()
	}
}

// watch has whoever drives look at the context of an operation whose caller waits, and reports whether it
// will. It does so in a crowd, where it hardly ever parks for longer than ctxCheckEvery, and for maxCtxChecks.
func (m *Mux) watch(op *Op, done <-chan struct{}) bool {
	if done == nil || !m.driving || !m.crowded() || op.looks >= maxCtxChecks || len(op.Command) == 0 {
		return false
	}
	if op.done != nil {
		return true
	}
	op.done = done
	if m.watched++; m.watched == 1 {
		m.watchAt = op.Started + ctxCheckEvery
		m.wakeDriver(m.watchAt)
	}
	return true
}

// unwatch ends the watch of an operation's context, if there is one.
func (m *Mux) unwatch(op *Op) {
	if op.done != nil {
		op.done = nil
		m.watched--
	}
}

// lookAtContexts ends the operations whose contexts have ended, of those that are watched. The callers of those
// that take long watch them themselves from then on.
func (m *Mux) lookAtContexts(now time.Duration) {
	if m.watched == 0 || now < m.watchAt {
		return
	}
	m.watchAt = now + ctxCheckEvery
	for op := m.ops.first; op != nil; {
		next := op.next
		if op.done != nil {
			select {
			case <-op.done:
				m.decide(op, now, errContext)
			default:
				if op.looks++; op.looks == maxCtxChecks {
					m.unwatch(op)
					op.signal(false)
				}
			}
		}
		op = next
	}
}

// drive serves everybody until our own operation is decided. The caller holds the
// drive, which is put down on return. wakes says that the end of our context wakes us; if it does not, and the operation
// takes long, drive returns true before it is decided. It lets mu go.
func (m *Mux) drive(done <-chan struct{}, wakes bool, op *Op) (long bool) {
	m.driver = op
	lazy := op.stepsAside()
	if lazy {
		m.active = false
	}
	ctxChecks := 0
	for op.pending {
		if m.dirty != 0 && !m.flushing {
			m.coalesce()
			m.flush()
			if !op.pending {
				break
			}
		}
		if done != nil && !wakes && ctxChecks == maxCtxChecks {
			long = true
			break
		}
		until := m.nextEvent()
		if m.dirty != 0 && !m.flushing {
			until = 0 // more was queued while we wrote: read what is there, then write on
		}
		if done != nil {
			select {
			case <-done:
				m.decide(op, clock.Now(), errContext)
				continue
			default:
			}
			if !wakes {
				until = min(until, max(m.clock, op.Started)+ctxCheckEvery)
			}
		}
		if m.watched > 0 {
			until = min(until, m.watchAt)
		}
		if m.crowded() {
			until = min(until, m.clock+m.holdFor)
			m.holding = true
		}
		if !m.pass(until, op) && ctxChecks < maxCtxChecks {
			ctxChecks++
		}
		m.holding = false
		if lazy && m.active { // a caller that drives itself need not be woken
			m.aside = true
			break
		}
	}
	m.driver = nil
	m.releaseDrive()
	return long
}

// wakeAfter has the end of a context wake whoever drives. A context may block when it is called, so the drive is put down
// before: nobody else waits for it. If the context panics, the operation is forgotten. It lets mu go.
func (m *Mux) wakeAfter(ctx context.Context, op *Op) (stop func() bool) {
	op.waiting = false // it is not given the drive
	if op.drive {
		op.drive = false
		m.releaseDrive()
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		if op.waiting = stop != nil; op.waiting {
			return
		}
		m.ForgetInHook(op)
		m.leave(op)
		m.mu.Unlock()
	}()
	return context.AfterFunc(ctx, m.poll.Wake)
}

// stopWaking undoes wakeAfter, for an operation that is decided. stop may be nil. No lock is held.
func stopWaking(stop func() bool) {
	if stop != nil {
		stop()
	}
}

// coalesce yields to callers that were just answered and have submitted nothing since. Most of
// them bring their next command, which goes into this burst. Measured with 32 callers at five
// masters, it leaves a third of the writes and two thirds of the time. A lone caller never
// waits here for anybody. The flush is held, so that the others leave the writing to us.
//
// Another processor may take us up at once, before most of them had their turn. So it yields again as long as some of
// them come in between. With 32 callers that leaves three quarters of the writes.
//
// If all processors are busy with something else, a yield takes a time slice and not a
// microsecond. Then there is no yield for a while. What many callers take themselves does not count:
// without the yield, a crowd of them makes half as many writes again.
//
// It lets mu go.
func (m *Mux) coalesce() {
	if m.woken == 0 {
		return
	}
	limit := slowYield
	if m.woken >= crowd/2 {
		limit += time.Duration(m.woken) * callerTime
	}
	now := clock.Now()
	if now < m.noYieldBefore {
		m.woken = 0
		return
	}
	m.flushing = true
	for before := 0; m.woken > 0 && m.woken != before; {
		before = m.woken
		m.mu.Unlock()
		runtime.Gosched()
		m.mu.Lock()
		if done := clock.Now(); done-now > limit {
			m.noYieldBefore = done + noYieldFor
			break
		}
	}
	m.woken, m.flushing = 0, false
}

// nextEvent returns how long the driver may wait for the sockets, as a time on clock.Now's
// clock.
func (m *Mux) nextEvent() time.Duration {
	until := clock.Forever
	if m.expiry != 0 {
		until = m.expiry
	}
	if m.retryAt != 0 {
		until = min(until, m.retryAt)
	}
	for i := range m.slots {
		if s := &m.slots[i]; s.owed.len() > 0 {
			until = min(until, m.silenceDeadline(s))
		}
	}
	return until
}

// pass waits for the sockets until a time, not at all if that is zero, and serves those that
// are ready. It stops when mine, which may be nil, is decided. It reports whether anything
// was ready. The caller holds the drive. It lets mu go.
func (m *Mux) pass(until time.Duration, mine *Op) bool {
	before := m.clock
	m.endWindows()
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
		// The poller is closed, or the system fails: nobody can be served any more.
		m.decideAll(err, each)
		return false
	}
	// A system call, so once for all that is ready.
	m.clock = clock.Now()
	m.heedSuspension(m.clock)
	for _, ev := range events {
		// A caller that is decided waits for no more replies, unless a crowd does. But no master is called silent
		// as long as something of it is unread.
		if mine == nil || mine.pending || m.crowded() || m.silenceDue(slotOf(ev.ID), before) {
			m.serve(ev)
		}
	}
	if mine == nil || mine.pending {
		m.expireDue(m.clock)
		m.retry(m.clock)
	}
	m.lookAtContexts(m.clock)
	m.checkSilence(before)
	return len(events) > 0
}

// crowded reports whether many operations wait for replies. Then it is cheaper to serve all than to let another
// driver ask again what is ready.
func (m *Mux) crowded() bool { return m.ops.n >= crowd }

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
		case op.deadline <= now && m.leadsOn(op, now):
		case op.deadline <= now && op.decided:
			m.decide(op, now, nil)
		case op.deadline <= now:
			for i := range op.Votes {
				if v := &op.Votes[i]; op.Asked.Has(i) && v.Verdict == VerdictPending && m.slots[i].withheld {
					v.Err = errWithheld
				}
			}
			m.decide(op, now, ErrTimeout)
		case m.expiry == 0 || op.deadline < m.expiry:
			m.expiry = op.deadline
		}
		op = next
	}
}

// serve reads one connection and matches the replies. It lets mu go.
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
		m.lose(i, err)
	}
}

// releaseDrive puts the drive down: it gives it to the caller that has waited longest for replies,
// or else to one that only waits, or else to nobody. It lets mu go.
func (m *Mux) releaseDrive() {
	m.driving = false
	if m.closed {
		m.released.Broadcast()
		return
	}
	for _, l := range [...]*ops{&m.ops, &m.listeners} {
		for op := l.first; op != nil; op = op.next {
			if op.waiting && !(m.aside && op.stepsAside()) {
				m.driving, op.drive = true, true
				op.signal(false)
				return
			}
		}
	}
	m.push()
}

// expireBy makes sure that the driver expires operations at d at the latest.
func (m *Mux) expireBy(d time.Duration) {
	if m.expiry == 0 || d < m.expiry {
		m.expiry = d
	}
	m.wakeDriver(d)
}

// wakeDriver wakes a driver that is parked until after d.
func (m *Mux) wakeDriver(d time.Duration) {
	if m.parked && d < m.until {
		m.poll.Wake()
	}
}
