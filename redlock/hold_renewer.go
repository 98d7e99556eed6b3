package redlock

import (
	"cmp"
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
)

const (
	burstSize  = 256  // renewals that are sent in one burst
	maxSending = 4096 // renewals under way at a time

	// The parts of a TTL after which a lock is renewed, by which it may be
	// renewed earlier to share a burst with others, and after which (to twice
	// of which) a renewal that failed is tried again.
	renewAfter = 3
	earliness  = 48
	retryAfter = 24
)

// A renewer keeps the locks of a client alive. One heap holds the next event of each lock, by
// time, and one timer is set to the first of them. So nothing runs while nothing is due.
//
// The timer's goroutine ends the contexts whose deadline has passed. It sends the renewals that
// are due in one burst, together with those that are almost due. It waits for the answers
// itself. The timer has been set again before the burst is sent, so what is due meanwhile runs
// in the timer's next goroutine. So a majority that hangs delays no deadline, and a lock with
// a long round timeout delays none with a short one. While a renewal is under way, the lock's
// next event is its deadline.
//
// Contexts are cancelled, and the Observer is called, outside all locks (the lock order is in
// the package comment). A renewal is posted under mu. A release is posted only after the lock's
// KeepAlives were removed under mu. So no renewal is sent after a release.
type renewer struct {
	core    *core
	running sync.WaitGroup // goroutines of the timer, those to come included

	mu      sync.Mutex
	heap    keepAliveHeap
	ready   []*keepAlive // to be renewed, in order; their event in the heap is the deadline
	sending int          // renewals under way
	timer   *time.Timer
	closed  bool
	pool    sync.Pool // of *burst
}

// A burst is renewals that are sent together.
type burst struct {
	renewals []renewal
	ops      []*mux.Op
}

// A renewal is the extension of a lock that is kept alive.
type renewal struct {
	extension
	keepAlive *keepAlive
}

// kept returns how many locks are kept alive.
func (r *renewer) kept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heap)
}

// add begins to keep a lock alive. If there is no lock, the context is done.
func (r *renewer) add(ctx context.Context, h *hold) *keepAlive { return r.addTo(ctx, h, false) }

// addPending is add for a lock whose second lock is still to be taken.
func (r *renewer) addPending(ctx context.Context, h *hold) *keepAlive { return r.addTo(ctx, h, true) }

func (r *renewer) addTo(ctx context.Context, h *hold, awaitsSecond bool) *keepAlive {
	k := &keepAlive{renewer: r, hold: h, awaitsSecond: awaitsSecond, index: -1, lifetimeEnd: clock.Forever}
	k.Context, k.cancel = context.WithCancelCause(ctx)
	r.mu.Lock()
	h.mu.Lock()
	now := r.core.now()
	k.until.Store(int64(h.until))
	switch {
	case r.closed:
		k.why = lostTo(h.key, ErrClosed)
	case h.state(now) != stateHeld || h.awaitsSecond() != awaitsSecond:
		k.why = lostTo(h.key, ErrNotHeld)
	default:
		k.fence, k.backing = h.fence, h.backing
		if h.lifetime > 0 && !awaitsSecond {
			k.lifetimeEnd = clock.After(cmp.Or(h.takenAt, now), h.lifetime) // a lock that was handed over counts from now
		}
		k.sibling, h.keepAlives = h.keepAlives, k
		r.schedule(k)
		heap.Push(&r.heap, k)
		r.arm(now)
	}
	over := k.why != nil // if not, the renewer may set it from now on
	h.mu.Unlock()
	r.mu.Unlock()
	if over {
		k.cancel(k.why)
	}
	return k
}

// schedule sets the next event of a lock that is valid.
func (r *renewer) schedule(k *keepAlive) {
	until := time.Duration(k.until.Load())
	k.due = until < k.lifetimeEnd
	k.next = k.deadline()
	if k.due {
		t := k.hold.term
		k.next = min(k.next, t.started(until)+t.ttl/renewAfter)
	}
}

// remove takes a keepAlive out of the heap and out of its hold, with the reason. It returns false if it was
// over already. r.mu is held.
func (r *renewer) remove(k *keepAlive, why error) bool {
	if k.index < 0 {
		return false
	}
	heap.Remove(&r.heap, k.index)
	k.why = why
	if k.lost() { // counted before anybody can see the context done
		r.core.stats.lost.Add(1)
	}
	k.hold.removeKeepAlive(k)
	return true
}

// finish cancels the contexts of keepAlives that the caller has removed: all of them before
// it tells the Observer of any, as that may panic.
func (r *renewer) finish(over []*keepAlive) {
	cancelAll(over)
	for _, k := range over {
		if k.lost() {
			r.core.observe.lost(k, k.hold.key, k.why)
		}
	}
}

// cancelAll cancels the contexts of keepAlives: all of them, also if the parent of one, a context of the
// user's, panics.
func cancelAll(over []*keepAlive) {
	n := 0
	defer func() {
		if n < len(over) {
			cancelAll(over[n:])
		}
	}()
	for n < len(over) {
		k := over[n]
		n++
		k.cancel(k.why)
	}
}

func (r *renewer) stop(k *keepAlive) {
	r.mu.Lock()
	r.remove(k, nil)
	r.arm(r.core.now())
	r.mu.Unlock()
	k.cancel(k.why)
}

// expire ends a keepAlive whose deadline has passed, if the deadline has not moved since.
func (r *renewer) expire(k *keepAlive) {
	var over []*keepAlive
	r.mu.Lock()
	now := r.core.now()
	if k.index >= 0 && now < k.deadline() && !k.backing.lost() {
		r.mu.Unlock()
		return
	}
	if k.index >= 0 && r.remove(k, k.end(now)) {
		over = append(over, k)
		r.arm(now)
	}
	r.mu.Unlock()
	// If another goroutine has removed it, and not cancelled it yet, our caller must see it
	// ended all the same.
	k.cancel(k.why)
	r.finish(over)
}

// removeUnlocked removes the keepAlives of a lock that was unlocked. From then on no renewal of theirs is sent.
// The caller finishes them.
func (r *renewer) removeUnlocked(keeps *keepAlive) (over []*keepAlive) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removeAll(keeps, func(*keepAlive) error { return nil })
}

// lose notes that the lock with that token is lost, by a round that failed like that. It
// releases what the round may have set again on some masters, and ends the KeepAlives.
func (r *renewer) lose(h *hold, token []byte, failure *RoundError) {
	var rest time.Duration
	over := r.removeLost(h, failure, func() *keepAlive {
		now := r.core.now()
		rest = h.lingerTime(r.core.now) // a lost lock lingers, too, where it is still ours
		return h.lose(token, now)
	})
	func() {
		defer r.core.sendRelease(&h.spec, token, rest) // also if a context panics
		cancelAll(over)                                // before the release: another can take the lock from then on
	}()
	r.finish(over)
}

// giveBack empties the hold, if it has the lock with that token, and ends its KeepAlives. It releases
// the lock, or lets it linger for the rest. failure is how the last round on it failed, if that is why.
func (r *renewer) giveBack(h *hold, token []byte, rest time.Duration, failure *RoundError) {
	var second *backing
	over := r.removeLost(h, failure, func() (keeps *keepAlive) {
		if h.has(token) {
			keeps, second = h.reset()
		}
		return keeps
	})
	defer r.core.sendRelease(&h.spec, token, rest) // also if a context panics
	defer second.unlockNoWait()
	r.finish(over)
}

// removeLost removes the keepAlives of a hold whose lock is lost. end is called under h.mu: it
// ends the lock and returns its keepAlives. failure is how the last round on the lock failed, if it did and
// was not a renewal of theirs. The caller finishes the keepAlives.
func (r *renewer) removeLost(h *hold, failure *RoundError, end func() *keepAlive) (over []*keepAlive) {
	// From here on no renewal is about to be posted: an Unlock that finds no KeepAlives must not
	// send its release in between.
	r.mu.Lock()
	defer r.mu.Unlock()
	h.mu.Lock()
	keeps := end()
	h.mu.Unlock()
	now := r.core.now()
	return r.removeAll(keeps, func(k *keepAlive) error {
		if failure != nil {
			k.failure = failure
		}
		return k.end(now)
	})
}

// removeAll removes keepAlives that were taken from their hold. r.mu is held.
func (r *renewer) removeAll(keeps *keepAlive, why func(*keepAlive) error) (over []*keepAlive) {
	if keeps == nil {
		return nil
	}
	for k := keeps; k != nil; k = k.sibling {
		if r.remove(k, why(k)) {
			over = append(over, k)
		}
	}
	r.arm(r.core.now())
	return over
}

// close ends all keepAlives. The mux ends the burst that is under way.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	var over []*keepAlive
	for len(r.heap) > 0 {
		k := r.heap[0]
		r.remove(k, lostTo(k.hold.key, ErrClosed))
		over = append(over, k)
	}
	r.arm(0)
	r.mu.Unlock()
	defer r.finish(over)
	for _, k := range over {
		if k.awaitsSecond { // the goroutine that waits for its second lock may be too late to release it
			r.giveBackPending(k.hold)
		}
	}
}

// giveBackPending gives back a lock whose second lock is still to be taken.
func (r *renewer) giveBackPending(h *hold) {
	h.mu.Lock()
	pending, token := h.awaitsSecond(), slices.Clone(h.token())
	h.mu.Unlock()
	if pending {
		r.giveBack(h, token, 0, nil)
	}
}

// arm sets the timer to the next event. r.mu is held. A timer that is pending counts as one
// of running.
func (r *renewer) arm(now time.Duration) {
	var d time.Duration
	switch {
	case r.closed || len(r.heap) == 0:
		if r.timer != nil && r.timer.Stop() {
			r.running.Done()
		}
		return
	case len(r.ready) == 0 || r.sending >= maxSending:
		d = max(0, r.heap[0].next-now)
	}
	if r.timer == nil {
		r.running.Add(1)
		r.timer = time.AfterFunc(d, r.run)
	} else if !r.timer.Reset(d) {
		r.running.Add(1)
	}
}

// run serves one firing of the timer.
func (r *renewer) run() {
	defer r.running.Done()
	for b := r.nextBurst(); b != nil; b = r.nextBurst() {
		// All were posted at the same time. Those with the shortest timeout
		// come first, so none is kept waiting beyond its own.
		slices.SortFunc(b.renewals, func(x, y renewal) int { return cmp.Compare(x.call.op.Timeout, y.call.op.Timeout) })
		for _, x := range b.renewals {
			r.complete(x, r.core.rounds.Wait(context.Background(), &x.call.op))
			r.core.putCall(x.call)
		}
		r.mu.Lock()
		r.sending -= len(b.ops)
		r.mu.Unlock()
		clear(b.renewals)
		b.renewals, b.ops = b.renewals[:0], b.ops[:0]
		r.pool.Put(b)
	}
}

// nextBurst serves the events that are due, and returns a burst that was posted;
// nil if there is none to post.
func (r *renewer) nextBurst() *burst {
	r.mu.Lock()
	now := r.core.now()
	over := r.advance(now)
	b := r.makeBurst()
	r.arm(now) // before the burst is sent: the deadlines do not depend on it
	if b != nil {
		r.sending += len(b.ops)
		r.core.stats.renewals.Add(uint64(len(b.ops)))
		r.core.rounds.Post(b.ops...)
	}
	r.mu.Unlock()
	r.finish(over)
	return b
}

// advance takes from the heap what is due: it returns those that are over, and
// makes ready those that are to be renewed.
func (r *renewer) advance(now time.Duration) (over []*keepAlive) {
	sharing := false // there is a burst to share
	for len(r.heap) > 0 {
		k := r.heap[0]
		deadline := k.deadline()
		switch {
		case k.Context.Err() != nil: // its parent has ended
			r.remove(k, nil)
			continue
		case now >= deadline:
			r.remove(k, k.end(now))
			over = append(over, k)
			continue
		case now < k.next && !(sharing && k.due && now >= k.next-k.hold.term.ttl/earliness):
			return over
		case k.due:
			k.due = false
			r.ready = append(r.ready, k)
			sharing = true
		}
		k.next = deadline // which may have moved on
		heap.Fix(&r.heap, 0)
	}
	return over
}

// makeBurst makes a burst of what is ready.
func (r *renewer) makeBurst() *burst {
	if len(r.ready) == 0 || r.sending >= maxSending {
		return nil
	}
	b, _ := r.pool.Get().(*burst)
	if b == nil {
		b = new(burst)
	}
	n := 0
	for _, k := range r.ready {
		if len(b.ops) == burstSize {
			break
		}
		n++
		x := renewal{extension{r.core, k.hold, r.core.takeCall()}, k}
		h := k.hold
		h.mu.Lock()
		ours := h.hasKeepAlive(k) && x.encode()
		h.mu.Unlock()
		if !ours { // over meanwhile, or about to be
			r.core.putCall(x.call)
			continue
		}
		b.renewals = append(b.renewals, x)
		b.ops = append(b.ops, &x.call.op)
	}
	r.ready = slices.Delete(r.ready, 0, n)
	if len(b.ops) == 0 {
		r.pool.Put(b)
		return nil
	}
	return b
}

// complete takes the result of a renewal.
func (r *renewer) complete(x renewal, err error) {
	k, h := x.keepAlive, x.hold
	r.mu.Lock()
	now := r.core.now()
	left, reason := x.complete(err, k.index >= 0) // a KeepAlive that is over extends nothing
	var e *RoundError
	if reason != nil && reason != errUnlocked {
		e = r.core.failure(OpRenew, h.key, x.call, err, reason)
		r.core.stats.renewalsFailed.Add(1)
	}
	if k.index >= 0 {
		k.failure = e
		if e == nil {
			r.schedule(k)
		} else {
			k.due = true
			pause := h.term.ttl / retryAfter
			k.next = min(now+pause+rand.N(pause), k.deadline())
		}
		heap.Fix(&r.heap, k.index)
		r.arm(now)
	}
	stopped := k.index < 0 && k.why == nil
	r.mu.Unlock()
	if e != nil && (reason == ErrNotHeld || !stopped && x.mustUndo(reason)) {
		r.lose(h, x.call.token, e)
	}
	r.core.observeRound(k, OpRenew, h.key, x.call, left, e)
}

// keepHeap is a heap by next, for container/heap.
type keepAliveHeap []*keepAlive

func (h keepAliveHeap) Len() int           { return len(h) }
func (h keepAliveHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h keepAliveHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *keepAliveHeap) Push(x any) {
	k := x.(*keepAlive)
	k.index = len(*h)
	*h = append(*h, k)
}

func (h *keepAliveHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.index = -1
	return k
}
