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
