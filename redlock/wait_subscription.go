package redlock

import (
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/resp"
)

// subscriptions are what this client's waiters wait for on the masters. The head of a queue that
// was refused reads the key on every master, and asks to be notified of its next change
// (CLIENT TRACKING, OPTIN). Then it parks in the mux. As long as nothing else is in flight
// it is the parked driver there, or another waiter is. So it reads the masters'
// invalidations itself, and tries at once: no other goroutine has to wake it.
//
// A waiter subscribes before it reads the key, so no change is lost: what was
// before the read is in its answer, what is after it is pushed, in this order on
// one connection.
type subscriptions struct {
	core   *core
	quorum int

	views sync.Pool // of *view

	mu    sync.Mutex // the hooks take it under the lock of the mux; no other is taken under it
	byKey map[string]*subscription

	// When a key of that hash was last refused. Two keys may share an entry:
	// it only decides who looks before trying. So it is with a streak.
	seed    maphash.Seed
	refused [256]atomic.Int64
	streaks [256]streak
}

// A streak is a time in which this client has had a lock but for moments, and has not asked who waits. It
// need not notice them: if it is nearer to the masters, its next attempt is faster than theirs each time.
type streak struct{ since, until atomic.Int64 }

// A subscription is one waiter's.
type subscription struct {
	sleeper

	// Guarded by subscriptions.mu.
	notified  bool      // enough is known
	threshold int       // notify when so many masters have changed or are untracked
	changed   []mux.Set // for each slot: where it was free when it was read, or has changed since
	untracked mux.Set   // masters that will not notify: they did not answer, cannot, or were disconnected
}

const (
	contendedFor = time.Second      // how long a key that was refused counts as contended
	lookInterval = 10 * time.Second // how long a waiter relies on notifications, up to twice that
	expirySlack  = time.Millisecond
	slotTimeout  = 20 * time.Microsecond // more time for a look, for each slot

	streakGap   = 200 * time.Millisecond // how long the lock is left alone when a streak is over
	streakMax   = 250 * time.Millisecond // how long a streak may be
	streakTrips = 100                    // ... or so many round trips, if that is longer: what ends it costs about three
)

func (ss *subscriptions) init(c *core, masters int) {
	ss.core, ss.quorum = c, majority(masters)
	ss.byKey, ss.seed = map[string]*subscription{}, maphash.MakeSeed()
}

func newSubscription(c *core) *subscription { return &subscription{sleeper: newSleeper(c)} }

// add subscribes to the keys of a lock, or to the slots of one that has them: a change
// of any may be what it waits for.
func (ss *subscriptions) add(sub *subscription, slots, threshold int, keys ...string) {
	ss.mu.Lock()
	sub.threshold, sub.notified = threshold, false
	sub.changed, sub.untracked = slices.Grow(sub.changed[:0], slots)[:slots], 0
	clear(sub.changed)
	for _, key := range keys {
		ss.byKey[key] = sub
	}
	ss.mu.Unlock()
}

func (ss *subscriptions) remove(keys ...string) {
	ss.mu.Lock()
	for _, key := range keys {
		delete(ss.byKey, key)
	}
	ss.mu.Unlock()
}

// note adds masters where a slot is, or can be, free, and masters that will not
// notify. It reports whether they can be a majority: then it is time to look, since
// the last that is needed may be one that does not notify.
func (ss *subscriptions) note(sub *subscription, slot int, changed, untracked mux.Set) bool {
	sub.changed[slot] |= changed
	sub.untracked |= untracked
	return (sub.changed[slot] | sub.untracked).Len() >= sub.threshold
}

// noteAll is note for all slots.
func (ss *subscriptions) noteAll(sub *subscription, changed, untracked mux.Set) (majority bool) {
	for slot := range sub.changed {
		majority = ss.note(sub, slot, changed, untracked) || majority
	}
	return majority
}

// free returns a slot that is, or can be, free on a majority, any of those that are, and where;
// 0 and false if there is none.
func (ss *subscriptions) free(sub *subscription) (slot int, likely mux.Set, majority bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	n := len(sub.changed)
	for i, from := 0, randomSlot(n); i < n; i++ {
		slot := (from + i) % n
		if sub.changed[slot].Len() >= ss.quorum {
			return slot, sub.changed[slot], true
		}
	}
	return 0, 0, false
}

// randomSlot returns a number below n.
func randomSlot(n int) int {
	if n <= 1 {
		return 0
	}
	return rand.IntN(n)
}

// notify wakes a waiter, as enough is known. The hooks call it, with subscriptions.mu held.
func (sub *subscription) notify() {
	sub.notified = true
	sub.wakeInHook()
}

// takeNotified reports whether a waiter was notified since it last asked, or since it subscribed.
func (ss *subscriptions) takeNotified(sub *subscription) (notified bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	notified, sub.notified = sub.notified, false
	return notified
}

// invalidated returns the keys that a push says have changed: a list, or null if all have (FLUSHALL).
// Other pushes are not ok.
func invalidated(v resp.Value) (keys resp.Value, ok bool) {
	it := v.Elems()
	kind, _ := it.Next()
	keys, _ = it.Next()
	return keys, string(kind.Bytes()) == "invalidate"
}

// push takes a push of a master.
func (ss *subscriptions) push(master int, v resp.Value) {
	keys, ok := invalidated(v)
	if !ok {
		return
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if keys.IsNull() {
		for _, sub := range ss.byKey {
			if ss.noteAll(sub, 1<<master, 0) {
				sub.notify()
			}
		}
		return
	}
	for it := keys.Elems(); ; {
		key, ok := it.Next()
		if !ok {
			return
		}
		var buf [3]kind.Subject
		for _, to := range kind.AppendSubjects(buf[:0], key.Bytes()) {
			sub := ss.byKey[string(to.Name)]
			if sub != nil && len(sub.changed) == max(1, to.Slots) && ss.note(sub, max(0, to.Slot-1), 1<<master, 0) {
				sub.notify()
			}
		}
	}
}

// disconnected notes that a master will not notify of what it has promised to.
func (ss *subscriptions) disconnected(master int) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, sub := range ss.byKey {
		if ss.noteAll(sub, 0, 1<<master) {
			sub.notify()
		}
	}
}

// canNotify reports whether a master is up and can notify of changes.
func canNotify(s *mux.State) bool { return s.Phase == mux.Up && s.Server.Tracking }
