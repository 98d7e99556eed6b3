// Package defaults has those defaults and bounds of redlock.Config that its command and the rooms need to know, too.
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

const (
	minRoundTimeout = 20 * time.Millisecond
	lowRoundTimeout = 200 * time.Millisecond // the least, where a fifth of the TTL is longer
)

// RoundTimeout is that of redlock.Config.RoundTimeout, for a lock with this TTL.
func RoundTimeout(ttl time.Duration) time.Duration {
	return min(max(ttl/20, min(ttl/5, lowRoundTimeout), minRoundTimeout), MaxRoundTimeout)
}
