//go:build !linux

package conn

import "time"

// start lies a second back, so that no reading of the clock is zero.
var start = time.Now().Add(-time.Second)

// Now is the clock of everything that this module measures: a monotonic time, from
// an arbitrary start. On this system it is Go's monotonic clock, which may stop while
// the machine is suspended; on Linux it is CLOCK_BOOTTIME, which does not. It never
// jumps with the wall clock, and it means nothing to another process.
func Now() time.Duration { return time.Since(start) }
