// Package clock is the clock of everything that this module measures.
package clock

import (
	"math"
	"time"
)

// Forever is the moment that never comes.
const Forever time.Duration = math.MaxInt64

// After is the moment d after now, both on the clock of [Now]. It is [Forever] where the sum
// would overflow.
func After(now, d time.Duration) time.Duration {
	if d > Forever-now {
		return Forever
	}
	return now + d
}
