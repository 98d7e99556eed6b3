package redlock

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/held"
)

// Stats is a snapshot of what a client has done and of how its masters are. It counts since Open
// or New.
type Stats struct {
	Acquired   uint64        // locks taken, on the masters or from a holder of this client (Config.Handovers)
	AcquireP99 time.Duration // 99 % of the rounds that took a lock were not longer; at most an eighth too high
	Held       uint64        // attempts that failed because another held the lock; a Lock can make none, or many
	NoQuorum   uint64        // ... because too few masters answered: worth an alert

	Released      uint64 // locks released, confirmed by a quorum
	ReleaseFailed uint64 // releases that no quorum has confirmed, or whose lock had been lost, and not revoked

	Renewals         uint64 // sent by KeepAlive
	RenewalsFailed   uint64 // ... and without success, but for those that found a revocation
	RenewalsNotified uint64 // ... at once, as masters had notified of a change of the key

	Lost    uint64 // contexts of KeepAlive that ended because the lock was lost, or Close has left it to its TTL: worth an alert
	Revoked uint64 // ... because the lock was revoked, which Lost does not count

	FenceRaised uint64 // locks that took a second round to agree on their fence ([WithFence])

	Waiting int // goroutines that wait in Lock
	Kept    int // KeepAlives that renew a lock; a lock can have several

	EventsDropped uint64 // left out, as an Observer was too slow; each counts once for each such Observer
	EventsWaiting int    // that an Observer is being told, or still to be told: of the slowest one

	// Masters are in the order of Config.Masters. Locks need a majority of them to be up: both of two, three of four.
	Masters []MasterStats

	more behind.Stats
}

// snapshot returns the counts, with those of the locks.
func (s *stats) snapshot(h *held.Counts) Stats {
	return Stats{
		Acquired:         s.acquired.Load(),
		AcquireP99:       s.acquire.p99(),
		Held:             s.held.Load(),
		NoQuorum:         s.noQuorum.Load(),
		Released:         h.Released.Load(),
		ReleaseFailed:    h.ReleaseFailed.Load(),
		Renewals:         h.Renewals.Load(),
		RenewalsFailed:   h.RenewalsFailed.Load(),
		RenewalsNotified: h.RenewalsNotified.Load(),
		Lost:             h.Lost.Load(),
		Revoked:          h.Revoked.Load(),
		FenceRaised:      h.Raised.Load(),
		Waiting:          int(s.waiting.Load()),
		more: behind.Stats{
			Expired:      s.expired.Load(),
			Cancelled:    s.cancelled.Load(),
			WokenFree:    s.wokenFree.Load(),
			WokenHeld:    s.wokenHeld.Load(),
			WokenExpiry:  s.wokenExpiry.Load(),
			WokenLocal:   s.wokenLocal.Load(),
			WokenPoll:    s.wokenPoll.Load(),
			Extended:     h.Extended.Load(),
			SecondTaken:  h.SecondTaken.Load(),
			SecondTime:   time.Duration(h.SecondTime.Load()),
			SecondFailed: h.SecondFailed.Load(),
		},
	}
}

type stats struct {
	acquired, held, noQuorum, expired atomic.Uint64
	cancelled                         atomic.Uint64
	wokenFree, wokenHeld, wokenExpiry atomic.Uint64
	wokenLocal, wokenPoll             atomic.Uint64
	waiting                           atomic.Int64
	acquire                           histogram
}

// countWake counts why a wait has ended. countNotified counts wakeFree, once the attempt has
// shown whether the key was free.
func (s *stats) countWake(why string) {
	switch why {
	case wakeFree:
	case wakeExpiry:
		s.wokenExpiry.Add(1)
	case wakePoll:
		s.wokenPoll.Add(1)
	default:
		s.wokenLocal.Add(1)
	}
}

// countNotified counts an attempt that was made because the masters had notified of a change. They do not say
// whether the key was freed, or only renewed.
func (s *stats) countNotified(e *RoundError) {
	switch {
	case e == nil || slices.ContainsFunc(e.Votes, func(v Vote) bool { return v.Verdict == votedYes }):
		s.wokenFree.Add(1)
	case e.reason == ErrHeld:
		s.wokenHeld.Add(1)
	}
}

// countAttempt counts how an attempt went; e is how it failed, if it did.
func (s *stats) countAttempt(e *RoundError, took time.Duration) {
	switch {
	case e == nil:
		s.acquired.Add(1)
		s.acquire.add(took)
	case e.reason == ErrHeld:
		s.held.Add(1)
	case e.reason == ErrNoQuorum:
		s.noQuorum.Add(1)
	case e.reason == ErrExpired:
		s.expired.Add(1)
	case e.reason == nil:
		s.cancelled.Add(1)
	}
}

// A histogram counts durations in buckets whose width is an eighth of their
// lower bound, without a lock.
type histogram struct {
	buckets [(64 - 3) * 8]atomic.Uint64
}

func (h *histogram) add(d time.Duration) { h.buckets[bucketOf(d)].Add(1) }

func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 8 {
		return int(v)
	}
	shift := bits.Len64(v) - 4
	return (shift+1)*8 + int(v>>shift&7)
}

// bucketEnd returns the largest duration in a bucket.
func bucketEnd(i int) time.Duration {
	if i < 8 {
		return time.Duration(i)
	}
	return time.Duration(uint64(8+i%8+1)<<(i/8-1) - 1)
}

// p99 is an upper bound of 99 % of the durations.
func (h *histogram) p99() time.Duration {
	var counts [len(h.buckets)]uint64
	all := uint64(0)
	for i := range h.buckets {
		counts[i] = h.buckets[i].Load()
		all += counts[i]
	}
	nth := (all*99 + 99) / 100
	for i, n := range counts {
		if 0 < nth && nth <= n {
			return bucketEnd(i)
		}
		nth -= n
	}
	return 0
}
