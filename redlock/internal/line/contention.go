package line

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// A streak is a time in which this client has had a lock almost without a break, and has not looked whether other
// processes wait. If the client is nearer to the masters than they are, it is faster each time, and does not notice
// them.
type streak struct{ since, until atomic.Int64 }

const (
	contendedFor = time.Second // how long a key that was refused counts as contended

	streakGap   = 200 * time.Millisecond // a streak ends when this client leaves the lock alone for longer
	streakMax   = 250 * time.Millisecond // how long a streak may be
	streakTrips = 100                    // ... or that many round trips, if they take longer: its end costs about three
)

// contention returns when a key was last refused, and its streak. Keys with the same hash share both.
func (ls *Looks) contention(key string) (refused *atomic.Int64, s *streak) {
	i := maphash.String(ls.seed, key) % uint64(len(ls.refused))
	return &ls.refused[i], &ls.streaks[i]
}

// NoteRefused marks the keys of a lock as contended for a while. A Lock looks at a contended key before it tries. So
// waiters that were notified of the key's release come first, and a holder that takes the lock again and again
// does not starve the others.
func (ls *Looks) NoteRefused(now time.Duration, keys ...string) {
	for _, key := range keys {
		at, _ := ls.contention(key)
		at.Store(int64(now))
	}
}

// NoteOthers notes at that moment whether others wait for a key. If not, whoever was refused is of this client.
func (ls *Looks) NoteOthers(now time.Duration, wait bool, key string) {
	if !wait {
		now = 0
	}
	ls.NoteRefused(now, key)
}

// NoteReleased notes that a lock was released, which was taken at since. A key that was marked as contended
// meanwhile stays so for another while.
func (ls *Looks) NoteReleased(now, since time.Duration, keys ...string) {
	for _, key := range keys {
		at, s := ls.contention(key)
		if time.Duration(at.Load()) >= since {
			at.Store(int64(now))
		}
		s.until.Store(int64(now))
	}
}

// Contended reports whether one of the keys is contended, or has had a streak that is too long.
func (ls *Looks) Contended(now time.Duration, keys ...string) bool {
	for _, key := range keys {
		at, s := ls.contention(key)
		if at := time.Duration(at.Load()); at != 0 && now-at < contendedFor || ls.overlong(s, now) {
			return true
		}
	}
	return false
}

// overlong reports whether a streak has lasted too long. Then it begins another. It also begins another if waiters
// have had the time to take the lock, which ends a streak.
func (ls *Looks) overlong(s *streak, now time.Duration) (yes bool) {
	if now-time.Duration(s.until.Load()) <= streakGap {
		long := now - time.Duration(s.since.Load())
		if long <= streakMax || long <= streakTrips*ls.core.Round.Mux.RTT() {
			return false
		}
		yes = true
	}
	s.since.Store(int64(now))
	return yes
}
