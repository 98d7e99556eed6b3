package redlock

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// A hold is the lock that a Mutex holds, or that it has held and not released yet.
type hold struct {
	spec
	lifetime time.Duration // after which KeepAlive lets go; 0 if never

	// mu guards what follows. Extends are posted under it, or under the renewer's, so that
	// none is posted after an Unlock has taken the token away.
	mu           sync.Mutex
	tokenText    *[]byte       // of the token; see token
	fence        uint64        // of the lock; 0 if it has none, or it is unknown
	until        time.Duration // end of the validity
	lost         bool          // it is known to be lost
	takenAt      time.Duration // when it was taken; 0 if unknown
	lingersUntil time.Duration // until when the masters have it, though it is released; 0 if that is not known
	keepAlives   *keepAlive    // its live KeepAlives

	backing *backing // the second lock that goes with it; nil without, until that is taken, and once it is lost

	lease        lease // of the lock
	attemptLease lease // of the last attempt, and of the lock that it has taken
}

// A lease is what the mux may know of a hold, without its mutex. A master that lacks the key, or
// does not know a script, is sent a second command: the lease says whether the lock is still
// held, or still being taken. It ends before a release is submitted, so no key is set after that.
// It begins and ends under hold.mu.
type lease struct {
	epoch atomic.Uint64 // a number for each lock, or attempt
	ends  atomic.Int64  // of the lock's validity; 0 if it is over, or unknown
}

// Holds is for the mux: see mux.Lease.
func (l *lease) Holds(epoch uint64, now time.Duration) bool {
	ends := time.Duration(l.ends.Load())
	return ends > now && l.epoch.Load() == epoch
}

// begin makes it the lease of a lock that was just taken, or of an attempt. It returns its epoch.
func (l *lease) begin(ends time.Duration) uint64 {
	l.end()
	epoch := l.epoch.Add(1)
	l.ends.Store(int64(ends))
	return epoch
}

// beginAttempt begins the lease of an attempt, and returns its epoch. Of attempts at the same time, the last one
// has the lease: the masters of the others are sent nothing a second time.
func (h *hold) beginAttempt() (epoch uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attemptLease.begin(clock.Forever)
}

// endAttempt ends an attempt that has not taken the lock. An epoch of 0 is that of no attempt.
func (h *hold) endAttempt(epoch uint64) {
	if epoch == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.attemptLease.epoch.Load() == epoch {
		h.attemptLease.end()
	}
}

func (l *lease) end() { l.ends.Store(0) }

// A state is what there is to know of a hold at some moment:
//
//	state        token   until             gone
//	unlocked     empty   0                 false
//	held         set     later than now    false
//	expired      set     not later         false
//	handed over  set     0, as unknown     false
//	lost         set     when it was found true
//
// A lock that is expired or lost stays so: no extend brings it back. The next attempt to take
// the lock, or Unlock, makes the Mutex unlocked.
type state uint8

const (
	stateUnlocked state = iota
	stateHeld
	stateExpired
	stateHandedOver
	stateLost
)

// state returns the state. mu is held.
func (h *hold) state(now time.Duration) state {
	switch {
	case len(h.token()) == 0:
		return stateUnlocked
	case h.lost || h.backing.lost():
		return stateLost
	case h.until == 0:
		return stateHandedOver
	case h.until > now:
		return stateHeld
	}
	return stateExpired
}

// over reports whether there was a lock, and is none any more.
func (s state) over() bool { return s == stateExpired || s == stateLost }

// handedOverToken returns the token of a lock that was handed over, if several holders can have the lock: then this
// hold can take another beside it. It is nil if there is none.
func (h *hold) handedOverToken() (token []byte) {
	if !h.plural() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state(0) != stateHandedOver {
		return nil
	}
	return slices.Clone(h.token())
}

// token returns the token of the lock: empty if there is none. mu is held. The hold has a pointer to
// it, which package fmt does not follow when it prints the unexported fields of a Mutex.
func (h *hold) token() []byte {
	if h.tokenText == nil { // of a zero Mutex
		return nil
	}
	return *h.tokenText
}

// has reports whether the lock is the one with that token. mu is held.
func (h *hold) has(token []byte) bool { return string(h.token()) == string(token) }

// left returns what is left of the validity: nothing if its end is 0, as the clock is always
// above that. mu is held.
func (h *hold) left(now time.Duration) time.Duration { return max(0, h.until-now) }

// remaining is left, for those who do not hold mu. It looks at the clock only if it must.
func (h *hold) remaining(now func() time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == 0 || h.backing.lost() {
		return 0
	}
	return h.left(now())
}

// taken reports whether no other lock can be taken in its place: it is valid, or the second lock has to stay. It looks
// at the clock only if it must.
func (h *hold) taken(now func() time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == 0 || h.backing.lost() {
		return false
	}
	at := now()
	return h.left(at) > 0 || h.backingMustStay(at)
}

// backingMustStay reports whether the second lock has to stay, though the masters may have lost theirs: a validity
// that Until has returned is not over. One goroutine may rely on that while another uses the same Mutex. So what the
// other does finds the second lock there:
//
//   - A TryLock or Lock that begins then is refused (attempt.once).
//   - One that began before the lock was taken, and succeeds on the masters after they have lost it, neither
//     releases it (clearExpired) nor puts another in its place (install).
//   - Unlock, by any goroutine, releases it, as it releases what any Mutex holds.
//   - Extend and KeepAlive fail. The timer (secondOver) releases it when that validity is over.
//
// While the second lock is still to be taken Until returns nothing, and when it is lost there is nothing
// to keep. mu is held.
func (h *hold) backingMustStay(now time.Duration) bool {
	return h.backing != nil && !h.backing.lost() && h.backing.until > now
}

// lingerTime returns for how long the masters are to have the lock after its release: 0 for not at all.
// When a lock was taken that was handed over is not known here: that counts from the first call. mu is held.
func (h *hold) lingerTime(read func() time.Duration) time.Duration {
	if h.minHold == 0 {
		return 0
	}
	now := read()
	if h.lingersUntil == 0 {
		h.lingersUntil = clock.After(now, h.minHold)
	}
	return max(0, (h.lingersUntil - now + time.Millisecond - 1).Truncate(time.Millisecond))
}

// install makes it the hold of a lock that the call has just taken. It reports false if a later lock
// was installed meanwhile, even one that is over by now. It also does if another attempt has taken a lock
// that several can hold: a hold has one.
func (h *hold) install(k *call, until, now time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until > until || h.keepAlives != nil || h.backing != nil || h.plural() && h.state(now) == stateHeld {
		return false
	}
	*h.tokenText, h.fence = append(h.token()[:0], k.token...), k.fence
	h.until, h.takenAt, h.lost = until, now, false
	h.lingersUntil = clock.After(h.term.started(until), h.minHold)
	h.lease.begin(until)
	if k.leaseEpoch != 0 && h.attemptLease.epoch.Load() == k.leaseEpoch {
		h.attemptLease.ends.Store(int64(until))
	} else { // it is another attempt's, or the former lock's
		h.attemptLease.end()
	}
	return true
}

// prolong moves the end of the validity to until, for the KeepAlives too, unless it is beyond
// that already. mu is held.
func (h *hold) prolong(until time.Duration) {
	h.until = max(until, h.until)
	h.lease.ends.Store(int64(h.until))
	if h.backing != nil {
		h.backing.until = h.until
	}
	for k := h.keepAlives; k != nil; k = k.sibling {
		k.until.Store(int64(h.until))
	}
}

// lose notes that the lock with that token is lost. It returns the KeepAlives, which the caller
// must end. mu is held.
func (h *hold) lose(token []byte, now time.Duration) (keeps *keepAlive) {
	if !h.has(token) {
		return nil
	}
	if h.until == 0 || h.until > now {
		h.until = now
	}
	keeps = h.keepAlives
	h.lost, h.keepAlives = true, nil
	h.lease.end()
	h.attemptLease.end()
	return keeps
}

// reset empties the hold. It returns the KeepAlives, which the caller must end, and the
// second lock, which the caller must release after that. mu is held.
func (h *hold) reset() (keeps *keepAlive, second *backing) {
	keeps, second = h.keepAlives, h.backing
	h.lease.end()
	h.attemptLease.end()
	*h.tokenText, h.fence, h.until, h.takenAt, h.lingersUntil, h.lost, h.keepAlives, h.backing = h.token()[:0], 0, 0, 0, 0, false, nil, nil
	return keeps, second
}

// awaitsSecond reports whether the lock is held on the masters, and its second lock is still to be taken. mu is held.
func (h *hold) awaitsSecond() bool {
	return h.second != nil && h.backing == nil && len(h.token()) > 0 && !h.lost
}

// hasKeepAlive reports whether k keeps the lock alive. mu is held.
func (h *hold) hasKeepAlive(k *keepAlive) bool {
	for at := h.keepAlives; at != nil; at = at.sibling {
		if at == k {
			return true
		}
	}
	return false
}

// removeKeepAlive takes k out of the KeepAlives, if it is there.
func (h *hold) removeKeepAlive(k *keepAlive) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := &h.keepAlives; *at != nil; at = &(*at).sibling {
		if *at == k {
			*at = k.sibling
			return
		}
	}
}
