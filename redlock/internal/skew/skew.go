// Package skew sets a process's wall clock off, as far as the lock's hints of the fence go. It is
// for the fault test, whose processes share one machine and so one clock.
package skew

import (
	"sync/atomic"
	"time"
)

var offset atomic.Int64

// Set sets what is added to the wall clock. A client may look at it at any time.
func Set(d time.Duration) { offset.Store(int64(d)) }

// Offset is what is added to the wall clock.
func Offset() time.Duration { return time.Duration(offset.Load()) }
