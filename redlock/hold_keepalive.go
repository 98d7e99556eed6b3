package redlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// maxMargin bounds how much earlier than the validity a context ends. When every processor is busy, the timer can
// be late by about one time slice of the runtime, which is as long.
const maxMargin = 10 * time.Millisecond

// fenceKey is the key under which a context has its fence.
type fenceKey struct{}

// keepAliveKey is the key under which a context has the innermost keepAlive that it is derived from.
type keepAliveKey struct{}

func keepAliveOf(ctx context.Context) *keepAlive {
	k, _ := ctx.Value(keepAliveKey{}).(*keepAlive)
	return k
}

// A keepAlive is one KeepAlive, and its context.
type keepAlive struct {
	context.Context // ends with cancel; contexts derived from k are its children
	cancel          context.CancelCauseFunc
	renewer         *renewer
	hold            *hold
	until           atomic.Int64  // end of the lock's validity
	fence           uint64        // of the lock; 0 without
	backing         *backing      // its second lock; nil without
	lease           *lease        // of the lock; nil if that was not held
	epoch           uint64        // ... and its epoch
	by              string        // who keeps the lock, if it is not the caller of KeepAlive: "Do", "Acquire" or "Lead"
	lifetimeEnd     time.Duration // when it stops renewing the lock; clock.Forever if never

	// Guarded by renewer.mu.
	index        int           // in the heap; -1 once it is over
	next         time.Duration // the time of its next event: the deadline, or one of the next two
	renewAt      time.Duration // when the lock is to be renewed; clock.Forever if not, or while a renewal is under way
	askAt        time.Duration // when the masters are asked to notify of changes; clock.Forever if not
	confirms     bool          // the next renewal is sent because a repair was answered
	awaitsSecond bool          // it keeps the lock alive only until the second one is taken; never changes
	failure      *RoundError   // of the last renewal; nil if that succeeded
	failures     int           // renewals that have failed since one has succeeded
	why          error         // why it is over; nil if it was stopped

	sibling *keepAlive // the next of hold.keepAlives; guarded by hold.mu

	subscription *heldSubscription // nil before it has asked; changes under renewer.mu and hold.mu
}

// deadline returns when the context ends if nothing else ends it.
func (k *keepAlive) deadline() time.Duration {
	margin := min(k.hold.spec.Term.TTL/20, maxMargin)
	return min(time.Duration(k.until.Load()), k.lifetimeEnd) - margin
}

// setNext sets the time of its next event. renewer.mu is held.
func (k *keepAlive) setNext() { k.next = min(k.deadline(), k.renewAt, k.askAt) }

// canShare reports whether the renewal that is its next event can be sent now, in the burst of another. One that is sent
// because of a change keeps its time: it is that late so that there are not too many of these.
func (k *keepAlive) canShare(now time.Duration) bool {
	notified := k.subscription != nil && k.subscription.wantedAt != 0
	return k.next == k.renewAt && !notified && now >= k.next-k.hold.spec.Term.TTL/earliness
}

// Done and Err end the context if its deadline has passed. They do not wait for the timer, as that may be late, and
// does not count suspended time on Linux. They also end the context if the second lock is lost and the
// renewer does not know that yet.
func (k *keepAlive) Done() <-chan struct{} {
	k.checkDeadline()
	return k.Context.Done()
}

func (k *keepAlive) Err() error {
	k.checkDeadline()
	return k.Context.Err()
}

func (k *keepAlive) checkDeadline() {
	k.backing.checkContext()
	if k.Context.Err() == nil && (k.renewer.core.now() >= k.deadline() || k.backing.lost()) {
		k.renewer.expire(k)
	}
}

// Value gives FenceFrom the fence of this lock. It hides the fence of another lock, whose context is the parent.
func (k *keepAlive) Value(key any) any {
	switch key {
	case fenceKey{}:
		return k.fence
	case keepAliveKey{}:
		return k
	}
	return k.Context.Value(key)
}

func (k *keepAlive) stop() { k.renewer.stop(k) }

// end returns why the context ends: the lock is lost, unless the maximum lifetime has passed.
func (k *keepAlive) end(now time.Duration) error {
	e := unasked(opRenew, k.hold.spec.Key, ErrLost, "")
	switch {
	case k.backing.lost():
		e.under = k.backing.lossCause()
	case now >= k.deadline() && k.lifetimeEnd < time.Duration(k.until.Load()) && !(k.failure != nil && k.failure.reason == ErrNotHeld):
		e.reason = ErrMaxLifetime
	case k.failure != nil:
		e.under, e.Votes = k.failure.reason, k.failure.Votes
		if k.failure.revoked() {
			e.under, e.WhyRevoked = ErrRevoked, k.failure.WhyRevoked
		}
	default:
		e.note = "its validity ended before a renewal was answered"
	}
	return e
}

// lost reports whether it is over because the lock was lost. It is called under mutexes, so it does not look at
// the errors that why wraps.
func (k *keepAlive) lost() bool {
	e, _ := k.why.(*RoundError)
	return e != nil && !k.awaitsSecond && e.reason != ErrMaxLifetime
}

// Format prints the parent's text and the key of the lock, and nothing that changes.
func (k *keepAlive) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v.KeepAlive{%s}", k.Context, quoted(k.hold.spec.Key))
}
