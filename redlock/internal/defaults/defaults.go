// Package defaults has those defaults and bounds that redlock.Config, its command and the rooms have in common.
package defaults

import "time"

// DriftFactor is that of redlock.Config.DriftFactor.
const DriftFactor = 0.01

// FenceMemory is that of redlock.Config.FenceMemory.
const FenceMemory = 24 * time.Hour

// MaxTTL is the longest TTL of a lock, and memory of a fence: a hundred years.
const MaxTTL = 100 * 365 * 24 * time.Hour

// MaxRoundTimeout is the longest that a round waits.
const MaxRoundTimeout = 500 * time.Millisecond

// LongestSleep is the longest for which a timer is set at whose end a lock is over. A timer does not count the time for which the
// machine is suspended, and a lock does.
const LongestSleep = time.Second

const (
	minRoundTimeout = 20 * time.Millisecond
	lowRoundTimeout = 200 * time.Millisecond // the least, where a fifth of the TTL is longer
)

// RoundTimeout is that of redlock.Config.RoundTimeout, for a lock with this TTL.
func RoundTimeout(ttl time.Duration) time.Duration {
	return min(max(ttl/20, min(ttl/5, lowRoundTimeout), minRoundTimeout), MaxRoundTimeout)
}
