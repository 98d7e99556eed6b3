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
// time, and one timer stands at its head. So nothing runs while nothing is due.
//
// The timer's goroutine ends the contexts whose deadline has passed. It sends the renewals that
// are due in one burst, together with those that are almost due. It waits for the answers
// itself. The timer has been set again before the burst is sent, so what is due meanwhile runs
// in the timer's next goroutine. So a majority that hangs holds up no deadline, and a lock with
// a long round timeout holds up none with a short one. While a renewal is under way, the lock's
// next event is its deadline.
//
// Contexts are cancelled, and the Observer is called, outside all locks (the lock order is in
// the package comment). A renewal is posted under mu. Whoever posts a release has either been
// under mu since the lock's KeepAlives were taken away, or takes them out under mu itself. So no
// renewal is sent after a release.
type renewer struct {
	core   *core
	flying sync.WaitGroup // goroutines of the timer, those to come included

	mu      sync.Mutex
	heap    keepHeap
	ready   []*keep // to be renewed, in order; their event in the heap is the deadline
	sending int     // renewals under way
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
	keep *keep
}

// kept returns how many locks are kept alive.
func (r *renewer) kept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heap)
}

// add begins to keep a lock alive. If there is none to keep, the context is done. half says that it is
// one whose second lock is still to be taken.
func (r *renewer) add(ctx context.Context, h *hold, half bool) *keep {
	k := &keep{renewer: r, hold: h, half: half, index: -1, lifetimeEnd: clock.Forever}
	k.Context, k.cancel = context.WithCancelCause(ctx)
	r.mu.Lock()
	h.mu.Lock()
	now := r.core.now()
	k.until.Store(int64(h.until))
	switch {
	case r.closed:
		k.why = lostTo(h.key, ErrClosed)
	case h.state(now) != stateHeld || h.half() != half:
		k.why = lostTo(h.key, ErrNotHeld)
	default:
		k.fence, k.behind = h.fence, h.behind
		if h.lifetime > 0 && !half {
			k.lifetimeEnd = clock.After(cmp.Or(h.since, now), h.lifetime) // a lock that was handed over counts from now
		}
		k.sibling, h.keeps = h.keeps, k
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
func (r *renewer) schedule(k *keep) {
	until := time.Duration(k.until.Load())
	k.due = until < k.lifetimeEnd
	k.next = k.deadline()
	if k.due {
		t := k.hold.term
		k.next = min(k.next, t.started(until)+t.ttl/renewAfter)
	}
}

// remove takes a keep out of everything, with the reason; false if it was over
// already. r.mu is held.
func (r *renewer) remove(k *keep, why error) bool {
	if k.index < 0 {
		return false
	}
	heap.Remove(&r.heap, k.index)
	k.why = why
	if k.lost() { // counted before anybody can see the context done
		r.core.stats.lost.Add(1)
	}
	k.hold.unlink(k)
	return true
}

// finish cancels the contexts of keeps that were removed by the caller: all of them before
// the Observer is told of any, as it may panic.
func (r *renewer) finish(over []*keep) {
	cancelAll(over)
	for _, k := range over {
		if k.lost() {
			r.core.observe.lost(k, k.hold.key, k.why)
		}
	}
}

// cancelAll cancels the contexts of keeps, all of them, also if one hangs on a context of the
// user's that panics.
func cancelAll(over []*keep) {
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

func (r *renewer) stop(k *keep) {
	r.mu.Lock()
	r.remove(k, nil)
	r.arm(r.core.now())
	r.mu.Unlock()
	k.cancel(k.why)
}

// expire ends a keep whose deadline has passed, if it has not moved since.
func (r *renewer) expire(k *keep) {
	var over []*keep
	r.mu.Lock()
	now := r.core.now()
	if k.index >= 0 && now < k.deadline() && !k.behind.lost() {
		r.mu.Unlock()
		return
	}
	if k.index >= 0 && r.remove(k, k.end(now)) {
		over = append(over, k)
		r.arm(now)
	}
	r.mu.Unlock()
	// If another has removed it, and not cancelled it yet, it must not look
	// alive to our caller.
	k.cancel(k.why)
	r.finish(over)
}

// retire takes keeps out whose lock was unlocked. From then on no renewal of theirs is sent.
// The caller finishes them.
func (r *renewer) retire(keeps *keep) (over []*keep) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.takeOut(keeps, func(*keep) error { return nil })
}

// lose notes that the lock with that token is lost, by a round that failed like that. It
// releases what the round may have set again on some masters, and ends the KeepAlives.
func (r *renewer) lose(h *hold, token []byte, failure *RoundError) {
	var rest time.Duration
	over := r.takeOutLost(h, failure, func() *keep {
		now := r.core.now()
		rest = h.rest(r.core.now) // whoever gives the lock back decides whether it stays
		return h.lose(token, now)
	})
	func() {
		defer r.core.undo(&h.spec, token, rest) // also if a context panics
		cancelAll(over)                         // before: another can have the lock from then on
	}()
	r.finish(over)
}

// giveBack makes the hold one of no lock, if it has the lock with that token, ends its
// KeepAlives and has the lock released, or stay for the rest. failure is how the last round on it
// failed, if that is why.
func (r *renewer) giveBack(h *hold, token []byte, rest time.Duration, failure *RoundError) {
	var second *behind
	over := r.takeOutLost(h, failure, func() (keeps *keep) {
		if h.has(token) {
			keeps, second = h.reset()
		}
		return keeps
	})
	defer r.core.undo(&h.spec, token, rest) // also if a context panics
	defer second.giveUp()
	r.finish(over)
}

// takeOutLost takes out the keeps of a hold whose lock is lost. end is called under h.mu: it
// ends the lock and returns its keeps. failure is how the last round on the lock failed, if one
// has, other than the keep's own. The caller finishes the keeps.
func (r *renewer) takeOutLost(h *hold, failure *RoundError, end func() *keep) (over []*keep) {
	// From here on no renewal is about to be posted: an Unlock that finds no KeepAlives must not
	// send its release in between.
	r.mu.Lock()
	defer r.mu.Unlock()
	h.mu.Lock()
	keeps := end()
	h.mu.Unlock()
	now := r.core.now()
	return r.takeOut(keeps, func(k *keep) error {
		if failure != nil {
			k.failure = failure
		}
		return k.end(now)
	})
}

// takeOut takes keeps out that were taken from their hold. r.mu is held.
func (r *renewer) takeOut(keeps *keep, why func(*keep) error) (over []*keep) {
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

// close ends all keeps. The burst under way is ended by the mux.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	var over []*keep
	for len(r.heap) > 0 {
		k := r.heap[0]
		r.remove(k, lostTo(k.hold.key, ErrClosed))
		over = append(over, k)
	}
	r.arm(0)
	r.mu.Unlock()
	defer r.finish(over)
	for _, k := range over {
		if k.half { // whoever waits for its second lock may come too late to give it back
			r.abandon(k.hold)
		}
	}
}

// abandon gives a lock back whose second is still to be taken.
func (r *renewer) abandon(h *hold) {
	h.mu.Lock()
	half, token := h.half(), slices.Clone(h.token())
	h.mu.Unlock()
	if half {
		r.giveBack(h, token, 0, nil)
	}
}

// arm sets the timer to the next event. r.mu is held. Each time the timer is
// pending counts as one of flying.
func (r *renewer) arm(now time.Duration) {
	var d time.Duration
	switch {
	case r.closed || len(r.heap) == 0:
		if r.timer != nil && r.timer.Stop() {
			r.flying.Done()
		}
		return
	case len(r.ready) == 0 || r.sending >= maxSending:
		d = max(0, r.heap[0].next-now)
	}
	if r.timer == nil {
		r.flying.Add(1)
		r.timer = time.AfterFunc(d, r.run)
	} else if !r.timer.Reset(d) {
		r.flying.Add(1)
	}
}

// run serves one firing of the timer.
func (r *renewer) run() {
	defer r.flying.Done()
	for b := r.take(); b != nil; b = r.take() {
		// All were posted at the same time. Those with the shortest timeout
		// come first, so none is kept waiting beyond its own.
		slices.SortFunc(b.renewals, func(x, y renewal) int { return cmp.Compare(x.call.op.Timeout, y.call.op.Timeout) })
		for _, x := range b.renewals {
			r.landed(x, r.core.rounds.Wait(context.Background(), &x.call.op))
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

// take serves the events that have come, and returns a burst that was posted;
// nil if there is none to post.
func (r *renewer) take() *burst {
	r.mu.Lock()
	now := r.core.now()
	over := r.advance(now)
	b := r.load()
	r.arm(now) // before the burst is sent: its deadlines are armed whatever it does
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
func (r *renewer) advance(now time.Duration) (over []*keep) {
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

// load makes a burst of what is ready.
func (r *renewer) load() *burst {
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
		ours := h.keeping(k) && x.encode()
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

// landed takes the result of a renewal.
func (r *renewer) landed(x renewal, err error) {
	k, h := x.keep, x.hold
	r.mu.Lock()
	now := r.core.now()
	left, reason := x.land(err, k.index >= 0) // for the sake of a KeepAlive that is over nothing is extended
	var e *RoundError
	if reason != nil && reason != errUnlocked {
		e = r.core.failure(opRenew, h.key, x.call, err, reason)
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
	if e != nil && (reason == ErrNotHeld || !stopped && x.futile(reason)) {
		r.lose(h, x.call.token, e)
	}
	r.core.tell(k, opRenew, h.key, x.call, left, e)
}

// keepHeap is a heap by next, for container/heap.
type keepHeap []*keep

func (h keepHeap) Len() int           { return len(h) }
func (h keepHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h keepHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *keepHeap) Push(x any) {
	k := x.(*keep)
	k.index = len(*h)
	*h = append(*h, k)
}

func (h *keepHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.index = -1
	return k
}
