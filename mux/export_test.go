package mux

// HoldTick keeps the driver of last resort away: only callers drive from now on.
func (m *Mux) HoldTick() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.armed && m.tick.Stop() {
		m.wg.Done()
	}
	m.armed = true
}

// Suspects reports whether the silence of master i was noticed, and is not yet judged.
func (m *Mux) Suspects(i int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slots[i].suspected != 0
}

// Locked calls f with the Mux locked, as if whoever has the lock stood still.
func (m *Mux) Locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}
