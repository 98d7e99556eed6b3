//go:build !linux

package clock

import "time"

// start lies a second back, so that the clock is always above zero.
var start = time.Now().Add(-time.Second)

// Now is the clock of everything that this module measures: the time since an arbitrary start.
// On this system it is Go's monotonic clock, which may stop while the machine is suspended; on
// Linux it is CLOCK_BOOTTIME, which does not. It never jumps with the wall clock, and it means
// nothing to another process. It is always above zero.
func Now() time.Duration { return time.Since(start) }
