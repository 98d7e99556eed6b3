package mux

import "time"

const maxBusyPoll = 10 * time.Millisecond // a driver that has parked is not later than that

// A busyPoll says for how long the driver asks for the replies to an operation before it parks
// ([Config.BusyPoll]). It learns from each operation how long its decision took. It goes by what it
// is told alone: it reads no clock.
//
// The window is what an operation gets. Replies that come within the limit make it grow, and others
// make it shrink to nothing. So masters that are too far away cost nothing.
//
//	            took    the window             in a trial, whose window is the limit
//	within the limit    doubles                stays
//	beyond it           is a quarter of the    is nothing, and twice as many operations pass
//	                    limit shorter          until the next trial
//
// Without a window, a trial now and then finds out whether replies come in time. What took too long
// while the driver parked does not say that: to park and come back can take longer than the masters do.
type busyPoll struct {
	limit  time.Duration // Config.BusyPoll; 0 for no busy polling
	window time.Duration // at most limit
	trial  bool          // the window is on trial
	rest   int           // operations until the next trial
	pause  int           // ... after a trial that fails
}

const (
	minTrialPause = 16
	maxTrialPause = 4096

	// A window begins with this part of the limit, and loses as much for each operation that takes too
	// long. So one of them among many does not matter.
	windowSteps = 4
)

func newBusyPoll(limit time.Duration) busyPoll {
	return busyPoll{limit: limit, pause: minTrialPause}
}

// next is the window of an operation that begins now.
func (b *busyPoll) next() time.Duration {
	if b.window > 0 || b.limit == 0 {
		return b.window
	}
	if b.rest > 0 {
		b.rest--
		return 0
	}
	b.trial, b.window = true, b.limit
	return b.window
}

// learn learns that the decision of an operation took so long.
func (b *busyPoll) learn(took time.Duration) {
	step := max(1, b.limit/windowSteps)
	switch within := took <= b.limit; {
	case within:
		b.window, b.pause = min(b.limit, max(2*b.window, step)), minTrialPause
	case b.window == 0:
	case b.trial:
		b.window, b.rest, b.pause = 0, b.pause, min(2*b.pause, maxTrialPause)
	default:
		if b.window -= step; b.window < step {
			b.window, b.rest = 0, b.pause
		}
	}
	b.trial = false
}

// hurries reports whether an operation that was submitted is one that the driver asks for.
func (m *Mux) hurries(op *Op) bool {
	return m.busy.limit > 0 && op.pending && op.OnDecided == nil && !op.Patient
}

// hurry has the driver ask for the replies to an operation, in a window that begins now.
func (m *Mux) hurry(op *Op, now time.Duration) {
	op.hurried = true
	m.hurried++
	window := m.busy.next()
	if window == 0 {
		return
	}
	asks := now < m.busyUntil
	m.busyUntil = max(m.busyUntil, now+window)
	m.poll.SetBusy(m.busyUntil)
	if m.parked && !asks {
		m.poll.Wake()
	}
}

// unhurry notes that the operation is decided.
func (m *Mux) unhurry(op *Op, now time.Duration) {
	op.hurried = false
	if m.hurried--; m.hurried == 0 {
		m.park()
	}
	// What was ended early, by its context for example, says nothing.
	if took := now - op.Started; op.err == nil || took > m.busy.limit {
		m.busy.learn(took)
	}
}

// endWindows has the driver park if the windows are over.
func (m *Mux) endWindows() {
	if m.busyUntil != 0 && m.clock >= m.busyUntil {
		m.park()
	}
}

// park has the driver ask no more.
func (m *Mux) park() {
	m.busyUntil = 0
	m.poll.SetBusy(0)
}
