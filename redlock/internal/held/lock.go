package held

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// A Lock is a hold: the lock that a Mutex holds, or that it has held and not released yet.
type Lock struct {
	spec     round.Spec
	lifetime time.Duration // after which KeepAlive lets go; 0 if never
	nextSlot atomic.Int32  // if the lock has slots, the one that the next attempt is to take; 0 for any
	listed   int32         // its place in the rechecker's list, from 1 on; 0 if it is not there. Guarded by rechecker.mu

	// mu guards what follows. An extend is posted under it, or under the renewer's mu, so that
	// none is posted after an Unlock has taken the token away.
	mu           sync.Mutex
	tokenText    *[]byte       // of the token; see token
	fence        uint64        // of the lock; 0 if it has none, or if it is unknown
	until        time.Duration // end of the validity
	lost         bool          // it is known to be lost
	told         told          // what the Observers were told, or the holder
	shown        bool          // others may know the token
	pins         int32         // what can still end the lock: its rounds under way, and the attempt that has taken it
	staysUntil   time.Duration // of a lock that is lost: only its holder takes it from the masters before then; see noteStays
	takenAt      time.Duration // when it was taken; 0 if unknown
	relay        *relay        // that it is in; nil if it was not handed over within this process
	lingersUntil time.Duration // until when the masters keep it after its release; 0 if that is not known
	keepAlives   *KeepAlive    // its live KeepAlives

	sets quorum.Sets // of the token, unless it is in a relay; see memory

	backing *backing // the second lock; nil without one, before it is taken, and once it was dropped

	lease        lease // of the lock
	attemptLease lease // of the last attempt, and of the lock that it has taken
}

// told is what the Observers, or the holder, were told of the lock of a hold. A byte has all of it: a kept lock is to be small.
type told uint8

const (
	toldLoss    told = 1 << iota // that it is lost
	toldGone                     // that it is let go of
	toldRevoked                  // that it was revoked
)

// A lease tells the mux about a hold, without the hold's mutex. A master that lacks the key, or does not know a
// script, needs a second command. The mux sends it only if the lease says that the lock is still held, or still
// being taken. The lease ends before a release is submitted, so no key is set after the release. It begins and
// ends under Lock.mu.
type lease struct {
	epoch atomic.Uint64 // a number for each lock, or attempt
	ends  atomic.Int64  // the end of the lock's validity; 0 if the lock is over, or the end is unknown
}

// Holds is for the mux: see mux.Lease.
func (l *lease) Holds(epoch uint64, now time.Duration) bool {
	ends := time.Duration(l.ends.Load())
	return ends > now && l.epoch.Load() == epoch
}

// begin makes it the lease of a lock that was just taken, or of an attempt. It returns the lease's epoch.
func (l *lease) begin(ends time.Duration) uint64 {
	l.end()
	epoch := l.epoch.Add(1)
	l.ends.Store(int64(ends))
	return epoch
}

func (l *lease) end() { l.ends.Store(0) }

// Init makes it a lock that is not held, and returns its spec, which is to be filled. The token is nobody else's. KeepAlives
// let go of the lock after the lifetime, if that is above 0.
func (h *Lock) Init(token *[]byte, lifetime time.Duration) *round.Spec {
	h.tokenText, h.lifetime = token, lifetime
	return &h.spec
}

// Know has the lock known by a token that another process has given.
func (h *Lock) Know(token string) { *h.tokenText, h.shown = []byte(token), true }

// Spec returns what never changes, once the Mutex is made.
func (h *Lock) Spec() *round.Spec { return &h.spec }

// SetNextSlot sets the slot of the next attempt, counted from 0 on. It ignores a slot that the
// lock does not have: a Mutex on the same key with another number of slots has released it.
func (h *Lock) SetNextSlot(slot int) {
	if h.spec.Slotted != nil && slot < h.spec.Slots() {
		h.nextSlot.Store(int32(slot) + 1)
	}
}

// NextSlot returns the slot that the next attempt is to take, counted from 1 on. It is the slot that
// was set, which is the last one if nothing else was found out. If none was set, it is a random
// one.
func (h *Lock) NextSlot() int {
	if h.nextSlot.Load() == 0 {
		h.nextSlot.CompareAndSwap(0, int32(rand.IntN(max(h.spec.Slots(), 1)))+1)
	}
	return int(h.nextSlot.Load())
}

// BeginAttempt begins the lease of an attempt, which the call is. If several attempts are under way, the last
// has the lease. For the others, no master is sent a second command.
func (h *Lock) BeginAttempt(k *round.Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.LeaseEpoch = h.attemptLease.begin(clock.Forever)
	k.Op.Lease, k.Op.Epoch = &h.attemptLease, k.LeaseEpoch
}

// EndAttempt ends the lease of an attempt that has not taken the lock, if it has one.
func (h *Lock) EndAttempt(k *round.Call) {
	if k.LeaseEpoch == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.attemptLease.epoch.Load() == k.LeaseEpoch {
		h.attemptLease.end()
	}
}

// A state is that of a hold at some moment:
//
//	state        token   until             lost
//	unlocked     empty   0                 false
//	held         set     later than now    false
//	expired      set     not later         false
//	handed over  set     0, as unknown     false
//	lost         set     not later         true
//
// A lock that is expired or lost stays so: no extend revives it. The next attempt to take the lock, or
// Unlock, makes the Mutex unlocked. The state is also lost if the second lock is lost.
type State uint8

const (
	Unlocked State = iota // nothing is held
	stateHeld
	stateExpired
	stateHandedOver
	stateLost
)

// state returns the state. mu is held.
func (h *Lock) state(now time.Duration) State {
	switch {
	case len(h.token()) == 0:
		return Unlocked
	case h.lost || h.backing.lost():
		return stateLost
	case h.until == 0:
		return stateHandedOver
	case h.until > now:
		return stateHeld
	}
	return stateExpired
}

// Over reports whether the lock has ended by itself: it has expired or is lost.
func (s State) Over() bool { return s == stateExpired || s == stateLost }

// Revoked reports whether the lock is over because it was revoked, as was found before.
func (h *Lock) Revoked() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told&toldRevoked != 0
}

// Token returns the token of the lock, which others may know from then on; empty if there is none.
func (h *Lock) Token() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shown = true
	return string(h.token())
}

// token returns the token of the lock; empty if there is none. mu is held. The hold has a pointer to the token, as
// package fmt does not follow pointers when it prints the unexported fields of a Mutex.
func (h *Lock) token() []byte {
	if h.tokenText == nil { // of a zero Mutex
		return nil
	}
	return *h.tokenText
}

// has reports whether the lock has that token. mu is held.
func (h *Lock) has(token []byte) bool { return string(h.token()) == string(token) }

// left returns what is left of the validity. That is nothing if until is 0, as the clock is always above 0. mu is
// held.
func (h *Lock) left(now time.Duration) time.Duration { return max(0, h.until-now) }

// Remaining returns what is left of the validity of a lock that is held in both systems. It asks the second lock whether it
// is over. It reads the clock only if it must.
func (h *Lock) Remaining(now func() time.Duration) time.Duration {
	h.CheckSecond()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == 0 || h.awaitsSecond() || h.backing.lost() {
		return 0
	}
	return h.left(now())
}

// Fence returns the number of the lock; 0 if it has none, or if it is unknown.
func (h *Lock) Fence() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fence
}

// CheckSecond makes the second lock check whether it is over, and reports whether it is still to
// be taken.
func (h *Lock) CheckSecond() bool {
	if h.spec.Second == nil {
		return false
	}
	h.mu.Lock()
	b, half := h.backing, h.awaitsSecond()
	h.mu.Unlock()
	b.checkContext()
	return half
}

// remaining is left for callers that do not hold mu. It returns 0 if the second lock is lost. It reads the clock
// only if it must.
func (h *Lock) remaining(now func() time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == 0 || h.backing.lost() {
		return 0
	}
	return h.left(now())
}

// Taken reports whether an attempt must be refused because the hold has a lock: the lock is valid, or its second
// lock must stay. It reads the clock only if it must.
func (h *Lock) Taken(now func() time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == 0 || h.backing.lost() {
		return false
	}
	at := now()
	return h.left(at) > 0 || h.backingMustStay(at)
}

// backingMustStay reports whether the second lock must stay, even if the masters have lost the lock, because a
// validity that Remaining has returned is not over. One goroutine may rely on that validity while another goroutine
// uses the same Mutex:
//
//   - A TryLock or Lock that begins now is refused (Taken).
//   - A TryLock or Lock may have begun before the lock was taken, and may succeed on the masters after they
//     have lost the lock. It neither releases the second lock (ClearExpired) nor replaces it (install).
//   - Unlock, by any goroutine, releases the second lock, as it releases whatever a Mutex holds.
//   - Extend and KeepAlive fail if the masters have lost the lock. The timer (secondOver) releases the second lock
//     when that validity is over.
//
// Before the second lock is taken, Remaining returns 0. Once the second lock is lost, nothing is left to keep.
// mu is held.
func (h *Lock) backingMustStay(now time.Duration) bool {
	return h.backing != nil && !h.backing.lost() && h.backing.until > now
}

// lingerTime returns for how long the masters are to keep the lock after its release; 0 for not at all. It is not
// known when a lock that was handed over was taken. The least time of such a lock counts from the first call of
// lingerTime. mu is held.
func (h *Lock) lingerTime(read func() time.Duration) time.Duration {
	if h.spec.MinHold == 0 {
		return 0
	}
	now := read()
	if h.lingersUntil == 0 {
		h.lingersUntil = clock.After(now, h.spec.MinHold)
	}
	return max(0, (h.lingersUntil - now + time.Millisecond - 1).Truncate(time.Millisecond))
}

// restTime is lingerTime for a holder that lets go: the next one is to have a lock that is known to be revoked. mu is held.
func (h *Lock) restTime(read func() time.Duration) time.Duration {
	if h.told&toldRevoked != 0 {
		return 0
	}
	return h.lingerTime(read)
}

// A former is the lock that a hold had when it got the next one. Some masters may have it still: several can hold the lock,
// and one was handed over; or a quorum has lost it, and another attempt has taken the lock meanwhile.
type former struct {
	token  []byte // nil if the hold had none
	in     *relay // that it was in; nil for none
	untold bool   // the Observers are to hear that it is let go of
}

// replace makes it the hold of a lock with that token, and pins it. ok is false, and nothing is changed, if it has a lock that
// stays: one whose validity ends later, even if it is over by now; one that has KeepAlives or a second lock; or one that is
// held if several can hold the lock, as a hold has one. The caller must give back what the hold had. mu is held.
func (h *Lock) replace(token []byte, until, now time.Duration) (had former, ok bool) {
	if h.until > until || h.keepAlives != nil || h.backing != nil || h.spec.Plural() && h.state(now) == stateHeld {
		return former{}, false
	}
	if len(h.token()) > 0 {
		had = former{slices.Clone(h.token()), h.relay, h.told&toldGone == 0}
	}
	h.empty()
	*h.tokenText, h.until, h.takenAt = append(h.token(), token...), until, now
	h.pins++
	h.lease.begin(until)
	return had, true
}

// giveBack releases the lock, which the hold h has no more. No lock is held.
func (f former) giveBack(c *Core, h *Lock) {
	if f.token == nil {
		return
	}
	if f.untold {
		c.Teller.LetGo(h.spec.Key, f.token, true)
	}
	f.in.giveBack(c, &h.spec, f.token, h.spec.MinHold)
}

// install makes it the hold of a lock that the call has just taken: see replace.
func (h *Lock) install(k *round.Call, until, now time.Duration) (had former, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if had, ok = h.replace(k.Token, until, now); !ok {
		return had, false
	}
	h.fence, h.sets = k.Fence, k.Sets
	h.lingersUntil = clock.After(h.spec.Term.Started(until), h.spec.MinHold)
	if k.LeaseEpoch != 0 && h.attemptLease.epoch.Load() == k.LeaseEpoch {
		h.attemptLease.ends.Store(int64(until))
	} else { // the attempt lease is another attempt's, or the former lock's
		h.attemptLease.end()
	}
	return had, true
}

// receive makes it the hold of a lock that is handed over to it within this process: see replace. The pin stays until whoever
// takes it over has looked whether a group has switched: meanwhile another goroutine can unlock the same Mutex. mu is held,
// and the relay's.
func (h *Lock) receive(r *relay, now time.Duration) (had former, ok bool) {
	if had, ok = h.replace(r.token, r.until, now); ok {
		h.fence, h.relay = r.fence, r
		h.attemptLease.end()
	}
	return had, ok
}

// stays reports whether the lock may stay in this process when it is unlocked. It may not if a round or an attempt can
// still end it, if others may know the token, as what they know must be their holder's own, or if it soon ends. mu is
// held.
func (h *Lock) stays(now time.Duration) bool {
	return h.pins == 0 && !h.shown && h.state(now) == stateHeld && h.spec.CanStay() && h.spec.Fresh(h.until, now)
}

// Unpin ends what pinned the hold.
func (h *Lock) Unpin() {
	h.mu.Lock()
	h.pins--
	h.mu.Unlock()
}

// prolong moves the end of the validity to until, unless it is later already, and tells the KeepAlives and the
// second lock. mu is held.
func (h *Lock) prolong(until time.Duration) {
	h.until = max(until, h.until)
	h.lease.ends.Store(int64(h.until))
	if h.relay != nil {
		h.relay.lease.ends.Store(int64(h.until))
	}
	if h.backing != nil {
		h.backing.until = h.until
	}
	for k := h.keepAlives; k != nil; k = k.sibling {
		k.until.Store(int64(h.until))
	}
}

// lose notes that the lock with that token is lost. The caller must end the KeepAlives that it returns. mu is held.
func (h *Lock) lose(token []byte, now time.Duration) (keeps *KeepAlive) {
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
	if h.relay != nil {
		h.relay.lost.Store(true)
		h.relay.lease.end()
	}
	return keeps
}

// reset empties the hold. The caller must end the KeepAlives that it returns, and then release the second lock. mu
// is held.
func (h *Lock) reset() (keeps *KeepAlive, second *backing) {
	keeps, second = h.keepAlives, h.backing
	h.lease.end()
	h.attemptLease.end()
	h.empty()
	return keeps, second
}

// empty forgets what the hold knows of its lock, but for the leases, and for the pins of those who are still to look at it. It
// keeps the token's memory. mu is held.
func (h *Lock) empty() {
	*h.tokenText, h.fence, h.until, h.takenAt, h.lingersUntil, h.staysUntil = h.token()[:0], 0, 0, 0, 0, 0
	h.lost, h.shown, h.told, h.relay, h.sets, h.keepAlives, h.backing = false, false, 0, nil, quorum.Sets{}, nil, nil
}

// memory returns what is remembered of the token's sets. mu is held.
func (h *Lock) memory() *quorum.Sets {
	if h.relay != nil {
		return &h.relay.sets
	}
	return &h.sets
}

// awaitsSecond reports whether the lock is held on the masters, and its second lock is still to be taken. mu is held.
func (h *Lock) awaitsSecond() bool {
	return h.spec.Second != nil && h.backing == nil && len(h.token()) > 0 && !h.lost
}

// noteStays notes that the lock with that token is about to be lost, though its holder may rely on it for as long as it
// was valid, if stays is set. It reports whether the holder may do so by now: a late round, which does not know it, must
// not release the lock. For how long a lock was valid that was handed over is not known: no longer than its TTL from now
// on. mu is held.
func (h *Lock) noteStays(token []byte, now time.Duration, stays bool) bool {
	if !h.has(token) {
		return stays
	}
	if stays {
		until := h.until
		if until == 0 {
			until = now + h.spec.Term.TTL
		}
		h.staysUntil = max(h.staysUntil, until)
	}
	return now < h.staysUntil
}

// subscription returns what the lock has subscribed to; nil if it has not. mu is held.
func (h *Lock) subscription() *heldSubscription {
	for k := h.keepAlives; k != nil; k = k.sibling {
		if k.subscription != nil {
			return k.subscription
		}
	}
	return nil
}

// noteWrite notes that an own command is about to be posted that writes the keys. mu is held.
func (h *Lock) noteWrite() {
	if s := h.subscription(); s != nil {
		s.Wrote()
	}
}

// hasKeepAlive reports whether k is one of the live KeepAlives. mu is held.
func (h *Lock) hasKeepAlive(k *KeepAlive) bool {
	for at := h.keepAlives; at != nil; at = at.sibling {
		if at == k {
			return true
		}
	}
	return false
}

// noteLossTold notes that the Observers are told of the loss of the lock with that token. It reports whether they
// were told before; if the lock was unlocked meanwhile, that is for the Unlock to tell.
func (h *Lock) noteLossTold(token []byte) (before bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.has(token) { // it may have another lock by now
		return true
	}
	before = h.told&toldLoss != 0
	h.told |= toldLoss
	return before
}

// removeKeepAlive takes k out of the KeepAlives, if it is there, and returns one of the others; nil if there is none. If k
// has lost the lock, the Observers are about to be told.
func (h *Lock) removeKeepAlive(k *KeepAlive) (other *KeepAlive) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k.lost() && k.epoch == h.lease.epoch.Load() {
		h.told |= toldLoss
		if k.token == nil {
			token := slices.Clone(h.token())
			k.token = &token
		}
	}
	for at := &h.keepAlives; *at != nil; at = &(*at).sibling {
		if *at == k {
			*at = k.sibling
			break
		}
	}
	return h.keepAlives
}
