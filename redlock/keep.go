package redlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// maxLead bounds how much earlier than the validity a context ends: by about the time slice
// that the runtime may take, when every processor is busy, to run the timer.
const maxLead = 10 * time.Millisecond

// fenceKey is the key of a context's fence.
type fenceKey struct{}

// A keep is one KeepAlive, and its context.
type keep struct {
	context.Context // ends with cancel; contexts derived from k hang on it
	cancel          context.CancelCauseFunc
	renewer         *renewer
	hold            *hold
	until           atomic.Int64  // end of the lock's validity
	fence           uint64        // of the lock; 0 without
	behind          *behind       // its second lock; nil without
	lifetimeEnd     time.Duration // when it lets go of the lock; clock.Forever if never

	// Guarded by renewer.mu.
	index   int           // in the heap; -1 once it is over
	next    time.Duration // when it has to be looked at
	due     bool          // ... because it is to be renewed then
	half    bool          // it keeps the lock only until the second one is taken; never changes
	failure *RoundError   // of the last renewal; nil if that succeeded
	why     error         // why it is over; nil if somebody has ended it

	sibling *keep // the next of hold.keeps; guarded by hold.mu
}

// deadline is when the context ends if nothing else happens.
func (k *keep) deadline() time.Duration {
	lead := min(k.hold.term.ttl/20, maxLead)
	return min(time.Duration(k.until.Load()), k.lifetimeEnd) - lead
}

// Done and Err end the context if its deadline has passed, whatever the timer
// thinks: it may be late, and on Linux it does not count suspended time. They also end it if the second
// lock is lost, and nobody has been told yet.
func (k *keep) Done() <-chan struct{} {
	k.checkDeadline()
	return k.Context.Done()
}

func (k *keep) Err() error {
	k.checkDeadline()
	return k.Context.Err()
}

func (k *keep) checkDeadline() {
	k.behind.look()
	if k.Context.Err() == nil && (k.renewer.core.now() >= k.deadline() || k.behind.lost()) {
		k.renewer.expire(k)
	}
}

// Value gives FenceFrom the fence, and hides that of another lock around this one.
func (k *keep) Value(key any) any {
	if key == (fenceKey{}) {
		return k.fence
	}
	return k.Context.Value(key)
}

func (k *keep) stop() { k.renewer.stop(k) }

// end makes the cause of its end, which is a loss unless the maximum lifetime has passed.
func (k *keep) end(now time.Duration) error {
	e := unasked(opRenew, k.hold.key, ErrLost, "")
	switch {
	case k.behind.lost():
		e.under = k.behind.why()
	case now >= k.deadline() && k.lifetimeEnd < time.Duration(k.until.Load()) && !(k.failure != nil && k.failure.reason == ErrNotHeld):
		e.reason = ErrMaxLifetime
	case k.failure != nil:
		e.under, e.Votes = k.failure.reason, k.failure.Votes
	default:
		e.note = "its validity ended before a renewal was answered"
	}
	return e
}

// lost reports whether it is over because the lock was lost.
// It is asked under locks, so it looks no deeper.
func (k *keep) lost() bool {
	e, _ := k.why.(*RoundError)
	return e != nil && !k.half && e.reason != ErrMaxLifetime
}

// Format prints what the context is of, and nothing that changes meanwhile.
func (k *keep) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v.KeepAlive{%s}", k.Context, quoted(k.hold.key))
}
