package redlock

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// contention returns when a key was last refused, and its streak. Keys with the same hash share both.
func (ss *subscriptions) contention(key string) (refused *atomic.Int64, s *streak) {
	i := maphash.String(ss.seed, key) % uint64(len(ss.refused))
	return &ss.refused[i], &ss.streaks[i]
}

// noteRefused marks the keys of a lock as contended for a while. A Lock looks at a contended key before it tries. So
// waiters that were notified of the key's release come first, and a holder that takes the lock again and again
// does not starve the others.
func (ss *subscriptions) noteRefused(now time.Duration, keys ...string) {
	for _, key := range keys {
		at, _ := ss.contention(key)
		at.Store(int64(now))
	}
}

// noteReleased notes that a lock was released, which was taken at since. A key that was marked as contended
// meanwhile stays so for another while.
func (ss *subscriptions) noteReleased(now, since time.Duration, keys ...string) {
	for _, key := range keys {
		at, s := ss.contention(key)
		if time.Duration(at.Load()) >= since {
			at.Store(int64(now))
		}
		s.until.Store(int64(now))
	}
}

// contended reports whether one of the keys is contended, or has had a streak that is too long.
func (ss *subscriptions) contended(now time.Duration, keys ...string) bool {
	for _, key := range keys {
		at, s := ss.contention(key)
		if at := time.Duration(at.Load()); at != 0 && now-at < contendedFor || ss.overlong(s, now) {
			return true
		}
	}
	return false
}

// overlong reports whether a streak has lasted too long. Then it begins another. It also begins another if waiters
// have had the time to take the lock, which ends a streak.
func (ss *subscriptions) overlong(s *streak, now time.Duration) (yes bool) {
	if now-time.Duration(s.until.Load()) <= streakGap {
		long := now - time.Duration(s.since.Load())
		if long <= streakMax || long <= streakTrips*ss.core.round.Mux.RTT() {
			return false
		}
		yes = true
	}
	s.since.Store(int64(now))
	return yes
}
