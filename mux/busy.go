package mux

import "time"

const maxBusyPoll = 10 * time.Millisecond // a driver that has parked is not later than that

// A busyPoll says for how long the driver asks for the replies to an operation before it parks
// ([Config.BusyPoll]). It learns from each operation how long its decision took. It goes by what it
// is told alone: it reads no clock.
//
// The window is what an operation gets. It follows twice what operations take, as long as that is within
// the limit. Each that takes longer shrinks it, to nothing if there are more of them. So masters that
// are too far away cost nothing, and one late reply among many does not matter.
//
// Without a window, there is a trial now and then: one operation gets the limit. Each trial that
// fails doubles the number of operations until the next. Trials are needed because a driver that
// parks can be so late that every operation seems to take longer than the limit.
type busyPoll struct {
	limit  time.Duration // Config.BusyPoll; 0 for no busy polling
	window time.Duration // at most limit
	trial  bool          // the window is that of a trial
	rest   int           // operations until the next trial
	pause  int           // ... after the next trial that fails
}

const (
	windowGain = 8 // the window moves by one part of so many

	minTrialPause = 64
	maxTrialPause = 4096
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

// learn learns that the decision of an operation took so long; longer than the limit if there were no replies.
func (b *busyPoll) learn(took time.Duration) {
	switch {
	case took <= b.limit:
		b.window = min(b.limit, max(1, b.window+(2*took-b.window)/windowGain))
		b.pause = minTrialPause
	case b.trial:
		b.window, b.rest = 0, b.pause
		b.pause = min(2*b.pause, maxTrialPause)
	case b.window > 0:
		if b.window = max(0, b.window-max(1, b.limit/windowGain)); b.window == 0 {
			b.rest = b.pause
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
	// Who ended it without the replies did not find them near. That it was forgotten, or that the Mux was
	// closed, says nothing.
	switch op.err {
	case nil:
		m.busy.learn(now - op.Started)
	case ErrTimeout, errContext:
		m.busy.learn(m.busy.limit + 1)
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
