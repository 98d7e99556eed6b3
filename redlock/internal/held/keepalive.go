package held

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// maxMargin bounds how much earlier than the validity a context ends. When every processor is busy, the timer can
// be late by about one time slice of the runtime, which is as long.
const maxMargin = 10 * time.Millisecond

// FenceFrom returns the fence of the lock that a context belongs to; 0 if it has none, or belongs to no lock.
func FenceFrom(ctx context.Context) uint64 {
	if k := keepAliveOf(ctx); k != nil {
		return k.fence
	}
	return 0
}

// TokenFrom returns the token of the lock that a context belongs to; empty if it belongs to none, or the lock was let go of.
func TokenFrom(ctx context.Context) string {
	k := keepAliveOf(ctx)
	if k == nil || k.lease == nil {
		return ""
	}
	h := k.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if k.lease.epoch.Load() != k.epoch { // it has another one by now
		return ""
	}
	h.shown = true
	return string(h.token())
}

// keepAliveKey is the key under which a context has the innermost KeepAlive that it is derived from.
type keepAliveKey struct{}

func keepAliveOf(ctx context.Context) *KeepAlive {
	k, _ := ctx.Value(keepAliveKey{}).(*KeepAlive)
	return k
}

type parent = context.Context

// A KeepAlive keeps a lock alive. It is the context of who works under the lock.
type KeepAlive struct {
	parent      // ends with cancel; contexts derived from k are its children
	cancel      context.CancelCauseFunc
	renewer     *renewer
	hold        *Lock
	until       atomic.Int64  // end of the lock's validity
	fence       uint64        // of the lock; 0 without
	backing     *backing      // its second lock; nil without
	lease       *lease        // of the lock; nil if that was not held
	epoch       uint64        // ... and its epoch
	by          string        // who keeps the lock, if it is not the caller of KeepAlive: "Do", "Acquire" or "Lead"
	lifetimeEnd time.Duration // when it stops renewing the lock; clock.Forever if never

	// Guarded by renewer.mu.
	index        int           // in the heap; -1 once it is over
	next         time.Duration // the time of its next event: the deadline, or one of the next two
	renewAt      time.Duration // when the lock is to be renewed; clock.Forever if not, or while a renewal is under way
	askAt        time.Duration // when the masters are asked to notify of changes; clock.Forever if not
	confirms     bool          // the next renewal is sent because a repair was answered
	awaitsSecond bool          // it keeps the lock alive only until the second one is taken; never changes
	ended        End           // why it is over; 0 if it was stopped
	failures     uint32        // renewals that have failed since one has succeeded
	failure      Failure       // of the last renewal; nil if that succeeded
	why          error         // of its end; nil if it was stopped
	token        *[]byte       // of a lock that is lost; nil if its hold had it no more. Behind a pointer, it is not printed

	sibling *KeepAlive // the next of Lock.keepAlives; guarded by Lock.mu

	subscription *heldSubscription // nil before it has asked; changes under renewer.mu and Lock.mu
}

// deadline returns when the context ends if nothing else ends it.
func (k *KeepAlive) deadline() time.Duration {
	margin := min(k.hold.spec.Term.TTL/20, maxMargin)
	return min(time.Duration(k.until.Load()), k.lifetimeEnd) - margin
}

// setNext sets the time of its next event. renewer.mu is held.
func (k *KeepAlive) setNext() { k.next = min(k.deadline(), k.renewAt, k.askAt) }

// canShare reports whether the renewal that is its next event can be sent now, in the burst of another. One that is sent
// because of a change keeps its time: it is that late so that there are not too many of these.
func (k *KeepAlive) canShare(now time.Duration) bool {
	notified := k.subscription != nil && k.subscription.wantedAt != 0
	return k.next == k.renewAt && !notified && now >= k.next-k.hold.spec.Term.TTL/earliness
}

// Done and Err end the context if its deadline has passed. They do not wait for the timer, as that may be late, and
// does not count suspended time on Linux. They also end the context if the second lock is lost and the
// renewer does not know that yet.
func (k *KeepAlive) Done() <-chan struct{} {
	k.checkDeadline()
	return k.parent.Done()
}

func (k *KeepAlive) Err() error {
	k.checkDeadline()
	return k.parent.Err()
}

// Why returns why it has ended: the lock is lost, its lifetime was over, or the client was closed; nil if it is none of these. The
// cause of the context
// can be that of its parent, which can be another lock's.
func (k *KeepAlive) Why() error {
	if k.Err() == nil { // mostly: the renewer is left alone
		return nil
	}
	k.renewer.mu.Lock()
	defer k.renewer.mu.Unlock()
	return k.why
}

func (k *KeepAlive) checkDeadline() {
	k.backing.checkContext()
	if k.parent.Err() == nil && (k.renewer.core.Now() >= k.deadline() || k.backing.lost()) {
		k.renewer.expire(k)
	}
}

// Value hides the lock whose context is the parent: FenceFrom is to return the fence of this one.
func (k *KeepAlive) Value(key any) any {
	if key == (keepAliveKey{}) {
		return k
	}
	return k.parent.Value(key)
}

// Stop ends the renewal and the context.
func (k *KeepAlive) Stop() { k.renewer.stop(k) }

// An End is why the context of a KeepAlive ends, unless it was stopped or its parent has ended.
type End uint8

// The ends. By all but EndLifetime and EndShutdown the lock counts as lost.
const (
	EndNotHeld  End = 1 + iota // the lock was not held from the beginning
	EndClosed                  // the client was closed: the lock is left to its TTL
	EndShutdown                // the client shuts down: the lock is renewed nevertheless
	EndLifetime                // the maximum lifetime has passed
	EndSecond                  // the second lock was lost
	EndRound                   // a round has found the loss, or the last renewal has failed
	EndValidity                // the validity ended before a renewal was answered
)

// end returns why the context ends: the lock is lost, unless the maximum lifetime has passed.
func (k *KeepAlive) end(now time.Duration) End {
	switch {
	case k.backing.lost():
		return EndSecond
	case now >= k.deadline() && k.lifetimeEnd < time.Duration(k.until.Load()) && !(k.failure != nil && k.failure.Reason() == quorum.ErrNotHeld):
		return EndLifetime
	case k.failure != nil:
		return EndRound
	}
	return EndValidity
}

// setEnd notes why it is over. renewer.mu is held.
func (k *KeepAlive) setEnd(why End) {
	k.ended = why
	if why == 0 {
		return
	}
	var second error
	if why == EndSecond {
		second = k.backing.lossCause()
	}
	k.why = k.renewer.core.Teller.Ended(k.hold.spec.Key, why, k.failure, second)
}

// lost reports whether it is over because the lock was lost.
func (k *KeepAlive) lost() bool { return k.ended != 0 && k.ended != EndLifetime && !k.awaitsSecond }

// revoked reports whether it is over because the lock was revoked.
func (k *KeepAlive) revoked() bool { return k.ended == EndRound && k.failure.Revoked() }

// Format prints the parent's text and the key of the lock, and nothing that changes.
func (k *KeepAlive) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v.KeepAlive{%s}", k.parent, kind.Quoted(k.hold.spec.Key))
}

// InTheWay reports whether a caller would wait for itself: its context is derived from those of locks of this client that
// are in the way of a lock with that spec, and are still held. by says who keeps the first of these; empty for KeepAlive.
// They cannot be released before the caller returns. Readers are not in each other's way, and permits are only if there are
// no more of them; but a Mutex has one lock, and is in its own way. It does not know of locks that the caller has taken
// without their context. It allocates nothing.
func (ls *Locks) InTheWay(ctx context.Context, s *round.Spec) (by string, is bool) {
	innermost, n := keepAliveOf(ctx), 0
	for k := innermost; k != nil; k = keepAliveOf(k.parent) {
		own := &k.hold.spec == s // it has one lock, whatever others can have
		if k.renewer != &ls.renewer || !own && !k.hold.spec.InTheWayOf(s) || k.lease == nil || !k.lease.Holds(k.epoch, ls.core.Now()) {
			continue
		}
		first := innermost // a Mutex has one lock, however many KeepAlives that has
		for first.hold != k.hold {
			first = keepAliveOf(first.parent)
		}
		if first != k {
			continue
		}
		if n++; own || n >= s.Slots() {
			return k.by, true
		}
	}
	return "", false
}
