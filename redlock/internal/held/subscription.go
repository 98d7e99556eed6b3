package held

import (
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

// A heldSubscription is what a lock that is kept alive has subscribed to: see tracking.KeptLocks. renewer.mu guards the rest.
//
// # Storms
//
// A lock is renewed at most once in tracking.NotifyPause for this reason. The pause doubles, up to the time between two
// renewals, while masters notify of nothing that the renewal finds: two processes may keep one token alive, or a
// master's table of promises is full (tracking-table-max-keys), so that each promise ends another. When all keys of a
// master have changed (FLUSHALL), the renewals are spread.
type heldSubscription struct {
	tracking.KeptLock
	keepAlive *KeepAlive    // that has asked
	wantedAt  time.Duration // when the lock is to be renewed because of a change; 0 if there was none
	notUntil  time.Duration // ... but not before then
	pause     time.Duration // between two such renewals
}

const (
	notifyAfter = 100 * time.Millisecond // for how long a lock is held before the masters are asked to notify
	notifyGrid  = 10 * time.Millisecond  // so that questions share a burst

	// After the first notification the others are waited for, unless no quorum may be left. If some masters have
	// lost the key because all are losing it, a renewal in between would set it again on those.
	gatherFor = 20 * time.Millisecond

	spreadEach = 100 * time.Microsecond // for each lock, when all are to be renewed or asked for
)

// askFrom returns when the masters may be asked to notify of changes of a lock that was taken then.
func askFrom(takenAt time.Duration) time.Duration {
	return (takenAt + notifyAfter + notifyGrid - 1).Truncate(notifyGrid)
}

// begin notes that a renewal is about to be posted, and reports whether what masters have notified of is its reason.
func (s *heldSubscription) begin(now time.Duration) (notified bool) {
	if notified = s.wantedAt != 0 && now >= s.wantedAt; notified {
		if now-s.notUntil >= s.pause { // there was no change for a while
			s.pause = tracking.NotifyPause
		}
		s.notUntil = now + s.pause
	}
	s.wantedAt = 0
	return notified
}

// end notes the votes of a renewal for that reason. The pause grows if a master has notified and had the lock all the
// same.
func (s *heldSubscription) end(reason mux.Set, votes []mux.Vote) {
	yes, no := false, false
	for i := range votes {
		if reason.Has(i) {
			yes = yes || votes[i].Verdict == mux.VerdictYes
			no = no || votes[i].Verdict == mux.VerdictNo
		}
	}
	switch {
	case no:
		s.pause = tracking.NotifyPause
	case yes:
		s.notUntil += s.pause
		s.pause = min(2*s.pause, s.keepAlive.hold.spec.Term.TTL/quorum.RenewAfter)
	}
}
