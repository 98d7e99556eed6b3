package redlock

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/resp"
)

// subscriptions are what this client's waiters wait for on the masters. When the head of a queue was refused, it
// reads the key on every master, and asks to be notified of the next change (CLIENT TRACKING, OPTIN). Then it
// parks in the mux. While nothing else is in flight, it is the parked driver there, or another waiter is. The
// driver reads the masters' invalidations itself, and tries at once: no other goroutine has to wake it.
//
// A waiter subscribes before it reads the key, so no change is lost. A change before the read is in the answer. A
// change after it is pushed, and the push follows the answer on the same connection.
type subscriptions struct {
	core   *core
	quorum int

	views sync.Pool // of *view

	mu    sync.Mutex // the hooks take it under the lock of the mux; no other lock is taken under it
	byKey map[string]*subscription

	// These are found by a hash of the key. Two keys may share them: they only decide whether a Lock looks
	// before it tries.
	seed    maphash.Seed
	refused [256]atomic.Int64 // when a key of that hash was last refused
	streaks [256]streak
}

// A streak is a time in which this client has had a lock almost without a break, and has not looked whether other
// processes wait. If the client is nearer to the masters than they are, it is faster each time, and does not notice
// them.
type streak struct{ since, until atomic.Int64 }

// A subscription is one waiter's.
type subscription struct {
	sleeper

	given  atomic.Pointer[relay] // that it was given the lock of, and has not taken over; set under its shard's mu
	askMu  sync.Mutex            // under it only the lock of the mux is taken
	asking *mux.Op               // that it waits for, unless it is given a lock; nil if it waits for none

	// Guarded by subscriptions.mu.
	notified  bool      // threshold was reached since the waiter last asked
	threshold int       // the waiter is notified when that many masters are in changed or untracked
	changed   []mux.Set // for each slot: the masters where it was free when it was read, or has changed since
	untracked mux.Set   // masters that will not notify: they did not answer, cannot notify, or were disconnected
}

const (
	contendedFor = time.Second      // how long a key that was refused counts as contended
	lookInterval = 10 * time.Second // how long a waiter relies on notifications: from this to twice this
	expirySlack  = time.Millisecond
	slotTimeout  = 20 * time.Microsecond // what each slot adds to the timeout of a look

	streakGap   = 200 * time.Millisecond // a streak ends when this client leaves the lock alone for longer
	streakMax   = 250 * time.Millisecond // how long a streak may be
	streakTrips = 100                    // ... or that many round trips, if they take longer: its end costs about three
)

func (ss *subscriptions) init(c *core, masters int) {
	ss.core, ss.quorum = c, quorum.Majority(masters)
	ss.byKey, ss.seed = map[string]*subscription{}, maphash.MakeSeed()
}

func newSubscription(c *core) *subscription { return &subscription{sleeper: newSleeper(c)} }

// hurry wakes a waiter that was given a lock. If it waits for answers of the masters, it needs them no more.
func (sub *subscription) hurry() {
	defer sub.wake()
	sub.askMu.Lock()
	defer sub.askMu.Unlock()
	if sub.asking != nil {
		sub.core.rounds.Forget(sub.asking)
	}
}

// ask is core.doUndoable, but returns mux.ErrForgotten if the waiter is given a lock. sub is nil for a caller that is no
// waiter.
func (sub *subscription) ask(ctx context.Context, c *core, k *call) error {
	if sub == nil {
		return c.doUndoable(ctx, k)
	}
	k.op.Votes = k.op.Votes[:0]
	if err := ctx.Err(); err != nil {
		return err
	}
	k.beginUndoable()
	defer k.endUndoable()
	if !sub.post(c, k) {
		return mux.ErrForgotten
	}
	defer sub.asked()
	return c.rounds.Wait(ctx, &k.op)
}

// post posts a question, unless the waiter was given a lock. Who gives it one later finds the question posted.
func (sub *subscription) post(c *core, k *call) bool {
	sub.askMu.Lock()
	defer sub.askMu.Unlock()
	if in := sub.given.Load(); in != nil && !in.counting.Load() {
		return false
	}
	k.op.Awaited = true
	c.rounds.Post(k.one[:]...)
	sub.asking = &k.op
	return true
}

func (sub *subscription) asked() {
	sub.askMu.Lock()
	sub.asking = nil
	sub.askMu.Unlock()
}

// add subscribes a waiter to the names of a lock. It forgets what the subscription knew. The waiter is notified when
// as many masters as threshold have changed, in one slot, or will not notify.
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

// note adds masters where a slot is free or may be free, and masters that will not notify. It reports whether all of
// them together reach the threshold. Then the waiter must look, as the missing master may be one that does not
// notify. ss.mu is held.
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

// free returns any slot that is free, or may be free, on a majority. majority is false if there is none.
func (ss *subscriptions) free(sub *subscription) (slot int, majority bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	n := len(sub.changed)
	for i, from := 0, randomSlot(n); i < n; i++ {
		slot := (from + i) % n
		if sub.changed[slot].Len() >= ss.quorum {
			return slot, true
		}
	}
	return 0, false
}

// randomSlot returns a random number below n.
func randomSlot(n int) int {
	if n <= 1 {
		return 0
	}
	return rand.IntN(n)
}

// notify notes that the threshold was reached, and wakes the waiter. The hooks call it, with subscriptions.mu held.
func (sub *subscription) notify() {
	sub.notified = true
	sub.wakeInHook()
}

// takeNotified reports whether a waiter was notified since it last asked, or since it subscribed if that was later.
func (ss *subscriptions) takeNotified(sub *subscription) (notified bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	notified, sub.notified = sub.notified, false
	return notified
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

// disconnected notes that a master was disconnected, so it will not notify as it has promised.
func (ss *subscriptions) disconnected(master int) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, sub := range ss.byKey {
		if ss.noteAll(sub, 0, 1<<master) {
			sub.notify()
		}
	}
}
