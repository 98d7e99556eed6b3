// Package clock is the clock of everything that this module measures, and of the deadlines that
// it is given. It is not frozen: a minor version may change what it exports.
package clock

import (
	"math"
	"time"
)

// Forever is the moment that never comes.
const Forever time.Duration = math.MaxInt64

// After is the moment d after now, both on the clock of [Now]. It is [Forever] where the sum
// would overflow. A moment before the clock began is below zero.
func After(now, d time.Duration) time.Duration {
	if now > 0 && d > Forever-now {
		return Forever
	}
	return now + d
}
