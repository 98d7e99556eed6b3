// Package skew sets a process's wall clock off, as far as the lock's hints of the fence go. It is
// for the fault test, whose processes share one machine and so one clock.
package skew

import "time"

// Offset is added to the wall clock. It must be set before a client is made.
var Offset time.Duration
