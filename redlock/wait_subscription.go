package redlock

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

// subscriptions are what this client's waiters wait for on the masters. When the head of a queue was refused, it
// reads the key on every master, and asks to be notified of the next change. Then it parks in the mux. While nothing
// else is in flight, it is the parked driver there, or another waiter is. The driver reads the masters' invalidations
// itself, and tries at once: no other goroutine has to wake it.
type subscriptions struct {
	core   *core
	quorum int

	views sync.Pool // of *view

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

// A waiterSubscription is one waiter's: to a lock, or to the notice of its predecessor in a global queue.
type waiterSubscription struct {
	tracking.Listener

	core   *core
	given  atomic.Pointer[relay] // that it was given the lock of, and has not taken over; set under its shard's mu
	askMu  sync.Mutex            // under it only the lock of the mux is taken
	asking *mux.Op               // that it waits for, unless it is given a lock; nil if it waits for none
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
	ss.core, ss.quorum, ss.seed = c, quorum.Majority(masters), maphash.MakeSeed()
}

func newSubscription(c *core) *waiterSubscription {
	sub := &waiterSubscription{core: c}
	sub.Init(&c.tracking)
	return sub
}

// hurry wakes a waiter that was given a lock. If it waits for answers of the masters, it needs them no more.
func (sub *waiterSubscription) hurry() {
	defer sub.Wake()
	sub.askMu.Lock()
	defer sub.askMu.Unlock()
	if sub.asking != nil {
		sub.core.round.Mux.Forget(sub.asking)
	}
}

// ask is round.Core.DoUndoable, but returns mux.ErrForgotten if the waiter is given a lock. sub is nil for a caller that is no
// waiter.
func (sub *waiterSubscription) ask(ctx context.Context, c *core, k *round.Call) error {
	if sub == nil {
		return c.round.DoUndoable(ctx, k)
	}
	k.Op.Votes = k.Op.Votes[:0]
	if err := ctx.Err(); err != nil {
		return err
	}
	k.BeginUndoable()
	defer k.EndUndoable()
	if !sub.post(c, k) {
		return mux.ErrForgotten
	}
	defer sub.asked()
	return c.round.Mux.Wait(ctx, &k.Op)
}

// post posts a question, unless the waiter was given a lock. Who gives it one later finds the question posted.
func (sub *waiterSubscription) post(c *core, k *round.Call) bool {
	sub.askMu.Lock()
	defer sub.askMu.Unlock()
	if in := sub.given.Load(); in != nil && !in.counting.Load() {
		return false
	}
	k.Op.Awaited = true
	c.round.Post(k)
	sub.asking = &k.Op
	return true
}

func (sub *waiterSubscription) asked() {
	sub.askMu.Lock()
	sub.asking = nil
	sub.askMu.Unlock()
}
