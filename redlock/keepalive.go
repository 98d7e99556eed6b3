package redlock

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
)

const (
	burstSize  = 256  // renewals that are sent in one burst
	maxSending = 4096 // renewals under way at a time

	// maxLead bounds how much earlier than at the end of the validity a
	// context ends: by about the time slice that the runtime may take, when
	// every processor is busy, to run the timer.
	maxLead = 10 * time.Millisecond

	// The parts of a TTL after which a lock is renewed, by which it may be
	// renewed earlier to share a burst with others, and after which (to twice
	// of which) a renewal that failed is tried again.
	renewAfter = 3
	earliness  = 48
	retryAfter = 24
)

// milliseconds is what a master says of a TTL.
func milliseconds(n int64) time.Duration {
	if n > int64(conn.Forever/time.Millisecond) {
		return conn.Forever
	}
	return time.Duration(n) * time.Millisecond
}

// KeepAlive renews the lock, every third of its TTL, until stop is called, the
// lock is released or lost, ctx is done, or the maximum lifetime has passed
// ([WithMaxLifetime]). It returns at once.
//
// The context it returns is done then. If the lock was lost, that is no later
// than the end of its validity by our clock, and the cause (context.Cause) is a
// *RoundError that wraps ErrLost and says how the last renewal failed: at once
// if a renewal finds that the masters no longer have the key, and otherwise at
// that end, until when renewals are retried. Err and Done look at the clock
// themselves, so that they do not depend on a timer that comes late; the
// contexts derived from it do.
//
// stop ends the renewal and the context, and leaves the lock to its TTL (which begins
// anew if a group of sentinels switches to another master before it has passed). A lock
// that was lost should be unlocked nevertheless, so that nothing of it is left
// on any master. If the lock is not held, or handed over and not extended yet,
// the context is done from the beginning.
func (m *Mutex) KeepAlive(ctx context.Context) (held context.Context, stop func()) {
	k := m.client.renewer.add(ctx, m)
	return k, k.stop
}

// A keep is one KeepAlive, and its context.
type keep struct {
	context.Context // ends with cancel; contexts derived from k hang on it
	cancel          context.CancelCauseFunc
	mutex           *Mutex
	until           atomic.Int64  // end of the lock's validity
	end             time.Duration // of its lifetime

	// Guarded by renewer.mu.
	index  int           // in the heap; -1 once it is over
	next   time.Duration // when it has to be looked at
	due    bool          // ... because it is to be renewed then
	failed *RoundError   // the last renewal; nil if that succeeded
	why    error         // why it is over; nil if the lock was not lost

	sibling *keep // the next of mutex.keeps; guarded by Mutex.mu
}

// deadline is when the context ends if nothing else happens.
func (k *keep) deadline() time.Duration {
	lead := min(k.mutex.term.ttl/20, maxLead)
	return min(time.Duration(k.until.Load()), k.end) - lead
}

// Done and Err end the context if its deadline has passed, whatever the timer
// thinks: it may be late, and on Linux it does not count suspended time.
func (k *keep) Done() <-chan struct{} {
	k.look()
	return k.Context.Done()
}

func (k *keep) Err() error {
	k.look()
	return k.Context.Err()
}

func (k *keep) look() {
	c := k.mutex.client
	if k.Context.Err() == nil && c.now() >= k.deadline() {
		c.renewer.expire(k)
	}
}

func (k *keep) stop() { k.mutex.client.renewer.stop(k) }

// lost makes the cause of a loss.
func (k *keep) lost(now time.Duration) error {
	e := &RoundError{Op: opRenew, Key: k.mutex.key, reason: ErrLost}
	switch {
	case now >= k.deadline() && k.end < time.Duration(k.until.Load()):
		e.under = errLifetime
	case k.failed != nil:
		e.under, e.Votes = k.failed.reason, k.failed.Votes
	default:
		e.note = "its validity ended before a renewal was answered"
	}
	return e
}

// A renewer keeps the locks of a client alive. All that is to happen is in one
// heap, by the time of the next event of each lock, and one timer stands at its
// head; so nothing runs while nothing is due. The timer's goroutine ends the
// contexts whose deadline has passed and sends the renewals that are due in one
// burst, together with those that are almost due. It waits for the answers
// itself; the timer has been set again before the burst is sent, so what is due
// meanwhile runs in the timer's next goroutine. So a majority that hangs holds
// up no deadline, and a lock with a long round timeout none with a short one.
// While a renewal is under way, the lock's next event is its deadline.
//
// Lock order: renewer.mu, then Mutex.mu, then the locks of the mux and of the
// lines. Contexts are cancelled, and the Observer is called, outside all of
// them. A renewal is posted under renewer.mu, and whoever posts a release has
// been under it since the Mutex's keeps were taken away, or finds them there:
// no renewal is sent after a release.
type renewer struct {
	client *Client
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
	calls []*call
	ops   []*mux.Op
}

// kept returns how many locks are kept alive.
func (r *renewer) kept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heap)
}

func (r *renewer) add(ctx context.Context, m *Mutex) *keep {
	k := &keep{mutex: m, index: -1, end: conn.Forever}
	k.Context, k.cancel = context.WithCancelCause(ctx)
	over := true
	r.mu.Lock()
	m.mu.Lock()
	now := r.client.now()
	k.until.Store(int64(m.until))
	switch {
	case r.closed:
		k.why = &RoundError{Op: opRenew, Key: m.key, reason: ErrLost, under: ErrClosed}
	case m.until <= now:
		k.why = &RoundError{Op: opRenew, Key: m.key, reason: ErrLost, under: ErrNotHeld}
	default:
		over = false
		if m.lifetime > 0 {
			k.end = conn.After(cmp.Or(m.since, now), m.lifetime) // a lock that was handed over counts from now
		}
		k.sibling, m.keeps = m.keeps, k
		r.schedule(k)
		heap.Push(&r.heap, k)
		r.arm(now)
	}
	m.mu.Unlock()
	r.mu.Unlock()
	if over {
		k.cancel(k.why)
	}
	return k
}

// schedule sets the next event of a lock that is valid.
func (r *renewer) schedule(k *keep) {
	until := time.Duration(k.until.Load())
	k.due = until < k.end
	k.next = k.deadline()
	if k.due {
		k.next = min(k.next, k.mutex.term.started(until)+k.mutex.term.ttl/renewAfter)
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
	if why != nil { // counted before anybody can see the context done
		r.client.stats.lost.Add(1)
	}
	m := k.mutex
	m.mu.Lock()
	for at := &m.keeps; *at != nil; at = &(*at).sibling {
		if *at == k {
			*at = k.sibling
			break
		}
	}
	m.mu.Unlock()
	return true
}

// Format prints what the context is of, and nothing that changes meanwhile.
func (k *keep) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v.KeepAlive{%s}", k.Context, quoted(k.mutex.key))
}

// finish cancels the contexts of keeps that were removed by the caller: all of them before
// the Observer is told of any, as it may panic.
func (r *renewer) finish(over []*keep) {
	cancelAll(over)
	for _, k := range over {
		if k.why != nil {
			r.client.observe.lost(k, k.mutex.key, k.why)
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
	r.arm(r.client.now())
	r.mu.Unlock()
	k.cancel(k.why)
}

// expire ends a keep whose deadline has passed, if it has not moved since.
func (r *renewer) expire(k *keep) {
	var over []*keep
	r.mu.Lock()
	now := r.client.now()
	if k.index >= 0 && now < k.deadline() {
		r.mu.Unlock()
		return
	}
	if k.index >= 0 && r.remove(k, k.lost(now)) {
		over = append(over, k)
		r.arm(now)
	}
	r.mu.Unlock()
	// If another has removed it, and not cancelled it yet, it must not look
	// alive to our caller.
	k.cancel(k.why)
	r.finish(over)
}

// end takes keeps out that were taken from their Mutex because it was unlocked. From then
// on no renewal of theirs is sent. Their contexts are left to finish. r.mu is held.
func (r *renewer) end(keeps *keep) (over []*keep) {
	return r.takeOut(keeps, func(*keep) error { return nil })
}

// lose does the same for keeps whose lock is lost. Last is how the last round on it has
// failed, if one has, other than the keep's own.
func (r *renewer) lose(keeps *keep, last *RoundError) (over []*keep) {
	now := r.client.now()
	return r.takeOut(keeps, func(k *keep) error {
		if last != nil {
			k.failed = last
		}
		return k.lost(now)
	})
}

func (r *renewer) takeOut(keeps *keep, why func(*keep) error) (over []*keep) {
	if keeps == nil {
		return nil
	}
	for k := keeps; k != nil; k = k.sibling {
		if r.remove(k, why(k)) {
			over = append(over, k)
		}
	}
	r.arm(r.client.now())
	return over
}

// close ends all keeps. The burst under way is ended by the mux.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	var over []*keep
	for len(r.heap) > 0 {
		k := r.heap[0]
		r.remove(k, &RoundError{Op: opRenew, Key: k.mutex.key, reason: ErrLost, under: ErrClosed})
		over = append(over, k)
	}
	r.arm(0)
	r.mu.Unlock()
	r.finish(over)
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
		slices.SortFunc(b.calls, func(x, y *call) int { return cmp.Compare(x.op.Timeout, y.op.Timeout) })
		for _, c := range b.calls {
			r.landed(c, r.client.rounds.Wait(context.Background(), &c.op))
			r.client.putCall(c)
		}
		r.mu.Lock()
		r.sending -= len(b.ops)
		r.mu.Unlock()
		clear(b.calls)
		b.calls, b.ops = b.calls[:0], b.ops[:0]
		r.pool.Put(b)
	}
}

// take serves the events that have come, and returns a burst that was posted;
// nil if there is none to post.
func (r *renewer) take() *burst {
	r.mu.Lock()
	now := r.client.now()
	over := r.advance(now)
	b := r.load()
	r.arm(now) // before the burst is sent: its deadlines are armed whatever it does
	if b != nil {
		r.sending += len(b.ops)
		r.client.stats.renewals.Add(uint64(len(b.ops)))
		r.client.rounds.Post(b.ops...)
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
			r.remove(k, k.lost(now))
			over = append(over, k)
			continue
		case now < k.next && !(sharing && k.due && now >= k.next-k.mutex.term.ttl/earliness):
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
		c := r.client.takeCall()
		m := k.mutex
		m.mu.Lock()
		ours := m.keeping(k) && m.until > r.client.now()
		c.token = append(c.token[:0], m.token...)
		m.mu.Unlock()
		if !ours { // over meanwhile, or about to be
			r.client.putCall(c)
			continue
		}
		c.extend(m, c.token, true)
		c.keep = k
		b.calls = append(b.calls, c)
		b.ops = append(b.ops, &c.op)
	}
	r.ready = slices.Delete(r.ready, 0, n)
	if len(b.ops) == 0 {
		r.pool.Put(b)
		return nil
	}
	return b
}

// landed takes the result of a renewal.
func (r *renewer) landed(c *call, err error) {
	k := c.keep
	m := k.mutex
	t := count(c.op.Votes, err)
	until := m.term.until(c.op.Started)
	r.mu.Lock()
	now := r.client.now()
	var e *RoundError
	if reason := t.extended(now, until, k.deadline()); reason != nil {
		e = m.failed(opRenew, c, err, reason)
		r.client.stats.renewalsFailed.Add(1)
	}
	if k.index >= 0 { // otherwise it is over, whatever was learnt
		k.failed = e
		if e == nil {
			m.prolong(c.token, until, now)
			r.schedule(k)
		} else {
			k.due = true
			pause := m.term.ttl / retryAfter
			k.next = min(now+pause+rand.N(pause), k.deadline())
		}
		heap.Fix(&r.heap, k.index)
		r.arm(now)
	}
	stopped := k.index < 0 && k.why == nil
	r.mu.Unlock()
	took := c.op.Decided - c.op.Started
	switch {
	case e == nil:
	case e.reason == ErrNotHeld:
		m.lost(c, now, e)
	case !stopped && m.end(c.token, 0) <= now:
		m.lost(c, now, e) // it came so late that it may have set keys again of a lock that is over
	}
	m.observe(k, opRenew, c, took, until-now, e)
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
