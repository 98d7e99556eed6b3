package clock

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clockID is CLOCK_BOOTTIME, or CLOCK_MONOTONIC if a sandbox refuses that.
var clockID uintptr = unix.CLOCK_BOOTTIME

func init() {
	if bootTime() == 0 {
		clockID = unix.CLOCK_MONOTONIC
	}
}

// Now is the clock of everything that this module measures: the time since boot. On Linux it
// is CLOCK_BOOTTIME of clock_gettime(2), or at most 10 µs behind it. That clock goes on while the
// machine is suspended. So do the keys on the masters, which expire meanwhile; Go's own monotonic
// clock stops. Elsewhere it is Go's monotonic clock. It never goes back, it never jumps with the wall
// clock, and it means nothing to another process. It is always above zero.
func Now() time.Duration {
	if r := readClocks(); boot.knows(r) {
		return boot.at(r)
	}
	return boot.measure(readClocks, bootTime)
}

// bootTime is a system call. That takes five times as long as to read Go's own clocks, which are in memory.
func bootTime() time.Duration {
	var ts unix.Timespec
	unix.RawSyscall(unix.SYS_CLOCK_GETTIME, clockID, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

// A reading is what Go's own clocks say.
type reading struct {
	monotonic time.Duration // since the process has started, without suspensions; below 0 if there is no monotonic clock
	apart     time.Duration // by how much the wall clock got ahead of it
}

const noMonotonic time.Duration = -1

var started = time.Now()

func readClocks() reading {
	now := time.Now()
	if now == now.Round(0) {
		return reading{monotonic: noMonotonic} // in a bubble of synctest, or after 2157: only the wall clock could be read
	}
	monotonic := now.Sub(started)
	return reading{monotonic, time.Duration(now.UnixNano()-started.UnixNano()) - monotonic}
}

// A bootClock is the clock of boot time, made of Go's clocks and of the lead that boot time has on the monotonic
// clock. Only a suspension changes that lead. The kernel adds the suspension to the wall clock in the same step,
// so the wall clock and the monotonic clock are further apart from then on. If they are as far apart as
// before, the lead is still right. If not, it is measured again; the wall clock was set, or the machine was suspended.
// Somebody may set the wall clock back by just the time of a suspension. So the lead is measured again after a while
// in any case.
type bootClock struct {
	lead  atomic.Int64 // never above the true one, and never lowered: so the clock never goes back
	apart atomic.Int64 // reading.apart when the lead was measured
	until atomic.Int64 // the lead counts until then, on the monotonic clock
}

var boot bootClock

const (
	measureAfter  = 10 * time.Millisecond
	mostApart     = time.Microsecond      // of two readings between which no clock was set, nor the process stopped
	mostTaken     = 10 * time.Microsecond // by a measurement; the lead is too small by less than that
	mostMeasuring = 8                     // measurements in a row: other processes may interrupt one
)

// knows reports whether the lead still counts at a reading.
func (c *bootClock) knows(r reading) bool {
	return near(r.apart, time.Duration(c.apart.Load())) && r.monotonic >= 0 && r.monotonic < time.Duration(c.until.Load())
}

// at is the time of a reading at which the lead counts.
func (c *bootClock) at(r reading) time.Duration { return r.monotonic + time.Duration(c.lead.Load()) }

// measure measures the lead, and returns the time after that.
func (c *bootClock) measure(read func() reading, bootTime func() time.Duration) (now time.Duration) {
	for range mostMeasuring {
		before := read()
		booted := bootTime()
		after := read() // later than bootTime, so that the lead is not above the true one
		if after.monotonic < 0 {
			return booted
		}
		c.raise(booted - after.monotonic)
		now = c.at(after)
		// The machine may have been suspended right after bootTime: then this is not yet the lead.
		if after.monotonic-before.monotonic <= mostTaken && near(before.apart, after.apart) {
			c.until.Store(int64(after.monotonic + measureAfter))
			c.apart.Store(int64(after.apart)) // last: who finds it finds the lead
			break
		}
	}
	return now
}

// raise raises the lead to what was measured, unless it is above that.
func (c *bootClock) raise(lead time.Duration) {
	for was := c.lead.Load(); was < int64(lead) && !c.lead.CompareAndSwap(was, int64(lead)); {
		was = c.lead.Load()
	}
}

func near(a, b time.Duration) bool { return (a - b).Abs() <= mostApart }
