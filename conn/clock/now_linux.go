package clock

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clockID is CLOCK_BOOTTIME, or CLOCK_MONOTONIC if a sandbox refuses that.
var clockID uintptr = unix.CLOCK_BOOTTIME

func init() {
	if Now() == 0 {
		clockID = unix.CLOCK_MONOTONIC
	}
}

// Now is the clock of everything that this module measures: the time since boot. On Linux it
// is CLOCK_BOOTTIME of clock_gettime(2), which goes on while the machine is suspended. So do
// the keys on the masters, which expire meanwhile; Go's own monotonic clock stops. Elsewhere
// it is Go's monotonic clock. It never jumps with the wall clock, and it means nothing to
// another process. It is always above zero.
func Now() time.Duration {
	var ts unix.Timespec
	unix.RawSyscall(unix.SYS_CLOCK_GETTIME, clockID, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}
