package redlocktest

import (
	"errors"
	"time"
)

// WithClocks gives each redis-server a wall clock of its own, which [Masters.Jump] and
// [Masters.Drift] set off. By it Redis expires keys, and answers TIME. Everything else goes
// by the right time: the monotonic clock, by which Redis measures its own work, sleeps and
// timers, the times of files, and the clocks of this process.
//
// A library that is preloaded into the server does it. So this needs Linux, a C compiler
// (cc, or the one that the environment variable CC names) and a server that is linked
// dynamically. [ClocksAvailable] says whether the first two are there. Where they are not,
// [Start] skips the test, or fails it with CI=true. Embedded masters and [Groups] have no
// such clocks.
func WithClocks() Option {
	return func(o *options) { o.clocks = true }
}

// ClocksAvailable returns nil if this machine has what [WithClocks] needs, or an error that
// says what is missing.
func ClocksAvailable() error {
	_, err := compiler()
	return err
}

// Jump sets the wall clock of master i forward by d at once, or back if d is below 0. A jump
// forward is the end of the keys whose TTL is shorter. A restart does not undo it.
func (m *Masters) Jump(i int, d time.Duration) {
	m.helper()
	m.clock(i, "set the clock of", func(c *clock) error { return c.jump(d) })
}

// Drift makes the wall clock of master i gain this share on ours from now on: with 0.05 it
// runs 5 % fast, with -0.05 it is slow, and with 0 it runs as ours does, and what it has
// gained remains. A share is rounded to millionths, and above -1. A restart does not undo it.
func (m *Masters) Drift(i int, share float64) {
	m.helper()
	m.clock(i, "make drift the clock of", func(c *clock) error { return c.drift(share) })
}

func (m *Masters) clock(i int, op string, change func(*clock) error) {
	m.helper()
	s, ok := m.masters[i].(*server)
	if !ok || s.clock == nil {
		m.must(i, op, errNoClock)
		return
	}
	m.must(i, op, change(s.clock))
}

var errNoClock = errors.New("it has no clock of its own: start redis-servers with WithClocks")
