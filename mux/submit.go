package mux

import (
	"context"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

const maxCommand = 2 << 20 // bytes of an operation's command and fallback together

// Do submits an operation and waits for its decision. It returns nil if the masters
// decided: the votes tell how, and why. Otherwise the votes are those cast
// until then, and the error is one of:
//
//   - [ErrTimeout]: Op.Timeout has passed.
//   - ctx.Err(): the context has ended. If it had ended before the call, nothing was written.
//   - [ErrClosed]: the Mux was closed or drained.
//   - [ErrTooLong]: the command is too long; nothing was written.
//   - [ErrForgotten]: another goroutine has called Forget.
//   - an error of the system, if it can wait for no sockets any more.
//
// If too few masters can be asked for a quorum, the operation is decided at once and nothing is
// written, unless Op.All is set or the operation persists.
func (m *Mux) Do(ctx context.Context, op *Op) error {
	done, err := ctx.Done(), ctx.Err()
	now := clock.Now()
	m.lock()
	if err != nil {
		m.admit(op, now)
		m.decide(op, now, err)
		m.mu.Unlock()
		return err
	}
	m.start(op, now, true)
	return m.wait(ctx, done, op)
}

// Post submits operations in one burst and does not wait for their decisions. Each must
// be followed by one Wait, or by Forget, unless it has OnDecided.
func (m *Mux) Post(ops ...*Op) {
	now := clock.Now()
	m.lock()
	awaited := true
	for _, op := range ops {
		if ours := m.start(op, now, true); !ours || !op.Awaited {
			awaited = false
		}
	}
	if awaited {
		m.armFor(tickEvery) // its Wait may be slow to come: the context is asked first, and may block
	} else {
		m.push()
	}
	m.catchUp()
	m.mu.Unlock()
}

// Wait waits for the decision of an operation that was posted, and returns what Do does.
// The Op can be reused after it, even if the context has panicked. Wait panics if the Op was
// never posted.
func (m *Mux) Wait(ctx context.Context, op *Op) error {
	done := m.doneOf(ctx, op)
	m.lock()
	if op.quorum == 0 {
		m.mu.Unlock()
		panic("mux: Wait for an Op that was not posted")
	}
	return m.wait(ctx, done, op)
}

// doneOf asks a context for its channel, and forgets the operation if that panics. It
// takes mu then.
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

// Forget ends an operation that was posted and is not decided: its Wait, now or later,
// returns ErrForgotten. It does nothing to any other operation.
func (m *Mux) Forget(op *Op) {
	m.lock()
	awaited := op.Awaited // before: one that is told of its end may be another's then
	m.ForgetInHook(op)
	if awaited {
		m.push()
	}
	m.mu.Unlock()
}

// ForgetInHook is [Mux.Forget] for what is called with the Mux locked: a hook of the [Config], or a
// function of an [Op] other than OnDecided, which is called while operations are gone through. Nobody else may call it.
func (m *Mux) ForgetInHook(op *Op) {
	if op.pending {
		m.decide(op, clock.Now(), ErrForgotten)
	}
}

// Send submits an operation that nobody waits for. The Op may be reused at once, and its
// results are not set. If the Mux is closed or the command too long, the operation is
// dropped.
func (m *Mux) Send(op *Op) {
	now := clock.Now()
	m.lock()
	m.start(op, now, false)
	m.push()
	m.catchUp()
	m.mu.Unlock()
}

// admit makes an operation a pending one that has no votes. If it is pending already,
// admit panics, without mu.
func (m *Mux) admit(op *Op, now time.Duration) {
	if op.pending {
		m.mu.Unlock()
		panic("mux: an Op was submitted again before it was waited for")
	}
	n := len(m.slots)
	if len(op.Command) == 0 {
		n = 0
	}
	if cap(op.Votes) < n {
		op.Votes = make([]Vote, n)
	}
	op.Votes = op.Votes[:n]
	clear(op.Votes)
	op.Started, op.Decided, op.err = now, 0, nil
	op.Asked, op.yes, op.open = 0, 0, n
	op.waiting, op.drive, op.decided = false, false, false // a panic may have left them
	op.looks = 0
	if op.Only != 0 {
		op.open = (op.Only & (1<<n - 1)).Len()
	}
	op.quorum = op.Quorum
	if op.quorum <= 0 {
		op.quorum = m.majority
	}
	op.deadline = 0
	op.pending = true
	m.active = m.active || len(op.Command) > 0
	op.in = &m.ops
	if n == 0 && op.Timeout <= 0 {
		op.in = &m.listeners
	}
	op.in.push(op)
}

// start submits an operation: it is queued to every master that is up, and the others'
// votes are cast. If it is not wanted, nobody waits for it: its replies will all be
// stragglers.
//
// It reports whether the operation is the caller's still. One that has OnDecided is not, if it was
// decided at once: whoever was told may have given it to another goroutine.
func (m *Mux) start(op *Op, now time.Duration, wanted bool) (ours bool) {
	told := wanted && op.OnDecided != nil
	refusal := m.refusal(op)
	if wanted {
		m.admit(op, now)
		if refusal != nil {
			m.decide(op, now, refusal)
		} else if op.Timeout > 0 {
			m.expireOp(op, clock.Forever)
		}
	}
	if refusal != nil {
		return !told
	}
	m.woken = max(0, m.woken-1) // whoever it is: somebody has come back
	switch {
	case len(op.Command) == 0: // it only waits
	case wanted && m.cannotWin(op, now):
		m.loseAtOnce(op, now)
	default:
		m.queue(op, now, wanted)
	}
	return !told || op.pending // which is guarded by mu, whoever has the rest
}

// refusal says why an operation is not taken, whatever the masters are like now; nil if
// it is taken.
func (m *Mux) refusal(op *Op) error {
	switch {
	case m.closed || m.draining && op.Persist <= 0:
		return ErrClosed
	case len(op.Command)+len(op.Fallback) > maxCommand:
		return ErrTooLong
	}
	for _, d := range op.Dialects {
		if len(d.Command)+len(op.Fallback) > maxCommand {
			return ErrTooLong
		}
	}
	return nil
}

// commandFor is what a master is sent whose server has these commands, and which of them it needs.
func (op *Op) commandFor(has conn.Commands) (command []byte, needs conn.Commands) {
	for i := range op.Dialects {
		if d := &op.Dialects[i]; len(d.Command) > 0 && has&d.Needs == d.Needs {
			return d.Command, d.Needs
		}
	}
	return op.Command, 0
}

// cannotWin reports whether an operation need not be written, because too few masters can
// be asked for a quorum.
func (m *Mux) cannotWin(op *Op, now time.Duration) bool {
	return !op.All && op.Persist <= 0 && m.available(op, now) < op.quorum
}

// loseAtOnce decides an operation that cannot win. Nothing is written, so nothing need be undone.
func (m *Mux) loseAtOnce(op *Op, now time.Duration) {
	for i := range m.slots {
		if err := m.slots[i].unavailable(now); err != nil && op.asks(i) {
			m.cast(op, i, VerdictFailed, err)
		}
	}
	m.decide(op, now, nil)
}

// queue offers an operation to every master that it asks, and decides it if the votes
// that this casts do.
func (m *Mux) queue(op *Op, now time.Duration, wanted bool) {
	f := m.takeFlight(op, now)
	if wanted {
		op.f, f.op = f, op
	}
	f.refs++ // ours, while we go through the slots
	for i := range m.slots {
		if op.asks(i) {
			m.offer(i, op, f, now)
		}
	}
	m.unref(f)
	m.wakeDriver(clock.After(now, m.cfg.StallTime)) // it may have gone to sleep when nothing was owed
	if wanted && op.pending {
		m.settle(op, now)
	}
	if wanted && m.hurries(op) {
		m.hurry(op, now)
	}
}

// offer queues an operation to a master. If the master cannot be asked, its vote is cast
// as a failed one, and a persistent operation becomes a debt; only one that may not vote is
// sent a persistent operation all the same, and is not listened to.
func (m *Mux) offer(i int, op *Op, f *flight, now time.Duration) {
	s := &m.slots[i]
	err := s.unavailable(now)
	if err != nil {
		m.cast(f.op, i, VerdictFailed, err)
		if f.until == 0 {
			return
		}
		if barred := err == error(s.quarantineErr) || err == ErrUnconfirmed; !barred {
			m.addDebt(i, f, now)
			return
		}
	}
	if f.op != nil {
		op.Asked = op.Asked.With(i)
	}
	command, needs := op.commandFor(s.known.Commands)
	m.write(i, command)
	s.owed.push(owed{f: f, sent: now, left: f.replies, voted: err != nil, needs: needs})
	f.refs++
}

// available counts the masters that an operation can be written to now.
func (m *Mux) available(op *Op, now time.Duration) int {
	n := 0
	for i := range m.slots {
		if op.asks(i) && m.slots[i].unavailable(now) == nil {
			n++
		}
	}
	return n
}
