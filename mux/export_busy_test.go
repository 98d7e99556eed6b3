package mux

import "time"

// Hurried returns the number of operations for whose replies the driver asks, and until when it does.
func (m *Mux) Hurried() (n int, until time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hurried, m.busyUntil
}

// HurriedInHook is Hurried for what is called with the Mux locked.
func (m *Mux) HurriedInHook() (n int, until time.Duration) { return m.hurried, m.busyUntil }

// AskFor lets the driver ask for longer than a Config can.
func (m *Mux) AskFor(limit time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = newBusyPoll(limit)
}

// Window returns the window that the last decision has left.
func (m *Mux) Window() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy.window
}
