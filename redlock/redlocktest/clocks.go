package redlocktest

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// WithClocks gives each redis-server a wall clock of its own, which [Masters.Jump] and
// [Masters.Drift] set off. By it Redis expires keys, and answers TIME. Everything else goes
// by the right time: the monotonic clock, by which Redis measures its own work, sleeps and
// timers, the times of files, and the clocks of this process.
//
// A library that is preloaded into the server does it. So this needs Linux, a C compiler
// (cc, or the one that the environment variable CC names) and a server that is linked
// dynamically. [Available] says whether a compiler is there. Where they are not,
// [Start] skips the test, or fails it with CI=true. Embedded masters and [Groups] have no
// such clocks.
func WithClocks() Option {
	return func(o *options) { o.clocks = true }
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

// The layout of the file that tells the preloaded library what to say, after what says that
// it is there: a number, and then the settings, of which the number names one. See
// preload/clock.c.
const (
	settings     = 64
	settingBytes = 3 * 8
	currentAt    = 8
	settingsAt   = 16
)

// A clock is a server's wall clock.
type clock struct {
	preload

	mu      sync.Mutex
	current int64
	since   int64 // nanoseconds since 1970: when the current setting began
	offset  int64 // ... and by how many nanoseconds it was ahead then
	ppm     int64 // ... and what it gains, in millionths
}

// newClock makes a clock that is right, whose file is in dir.
func newClock(library, dir string) (*clock, error) {
	p, err := newPreload("clock", library, dir, settingsAt+settings*settingBytes)
	return &clock{preload: p}, err
}

func (c *clock) jump(d time.Duration) error {
	return c.set(func() { c.offset += int64(d) })
}

func (c *clock) drift(share float64) error {
	if !(share > -1 && share <= 1000) {
		return fmt.Errorf("a share of %v: it must be above -1, and 1000 at most", share)
	}
	return c.set(func() { c.ppm = int64(math.Round(share * 1e6)) })
}

// readPause is longer than any server goes without reading its wall clock when it is asked for
// something: Valkey has read it once in a millisecond since 9.1, and counts on from there by its
// monotonic clock.
const readPause = 2 * time.Millisecond

// set changes the setting. What the clock has gained until now remains. The new setting is
// written before it is named. So a server that reads the clock meanwhile sees one of both. When set
// returns, whatever the server is asked goes by the new one.
func (c *clock) set(change func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().UnixNano()
	c.offset += (now - c.since) / 1000 * c.ppm / 1000
	c.since = now
	change()
	c.current++
	err := c.tell(
		write{settingsAt + c.current%settings*settingBytes, []int64{c.since, c.offset, c.ppm}},
		write{currentAt, []int64{c.current}},
	)
	time.Sleep(readPause)
	return err
}
