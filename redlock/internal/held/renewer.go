package held

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
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

const (
	burstSize  = 256  // the most renewals that are sent in one burst
	maxSending = 4096 // no burst is sent while so many renewals are under way

	// Each of these divides a TTL.
	earliness  = 48 // a lock is renewed earlier than Term.Due by at most this part, to share a burst with others
	retryAfter = 24 // a renewal that failed is tried again after this part, or up to twice as much
)

// A renewer keeps the locks of a client alive. One heap holds the next event of each KeepAlive, by time, and one
// timer is set to the first event. So nothing runs while nothing is due, but for a look at the clock each second (LongestSleep).
//
// The timer's goroutine has the contexts end whose deadline has passed. It sends the renewals that are due in one
// burst, together with those that are almost due, and waits for the answers itself. The timer is set again before
// the burst is sent, so later events run in the timer's next goroutine. So a majority that hangs delays no
// deadline, and a lock with a long round timeout delays no lock with a short one. While a renewal is under way, the
// KeepAlive's next event is its deadline.
//
// The renewer cancels contexts outside all locks (the lock order is in inside.go).
// A renewal is posted under mu. A release is posted only after the lock's KeepAlives were removed under mu. So no
// renewal is sent after a release.
type renewer struct {
	core    *Core
	running sync.WaitGroup // the timer's goroutines, and the next one while the timer is set; those that end contexts

	mu      sync.Mutex
	heap    keepAliveHeap
	ready   []*KeepAlive // to be renewed, in this order; their next event is the deadline
	sending int          // renewals under way
	timer   *time.Timer
	asking  []*KeepAlive // the masters are to be asked to notify of changes
	shut    bool         // contexts have ended, and locks are renewed nevertheless
	closed  bool
	pool    sync.Pool // of *burst

	subscriptions tracking.KeptLocks
}

// A burst is a number of renewals that are sent together.
type burst struct {
	renewals  []renewal
	repaired  []repaired
	ops       []*mux.Op
	quiet     *mux.Op   // that comes first; nil for none. Nobody waits for it
	questions []*mux.Op // that follow; nor for them
	all       []*mux.Op // the argument of Post, if there is more than ops
}

// A renewal is the extension of a lock that is kept alive.
type renewal struct {
	extension
	keepAlive    *KeepAlive
	subscription *heldSubscription // of the lock; nil without
	reason       mux.Set           // masters that have notified of a change, if it is sent for that
	confirms     bool              // it is sent because a repair was answered
}

// A repaired is a lock that was repaired after a renewal.
type repaired struct {
	keepAlive *KeepAlive
	call      *round.Call
}

// kept returns the number of live KeepAlives.
func (r *renewer) kept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heap)
}

// addTo is Locks.KeepAlive. awaitsSecond is set for a lock whose second lock is still to be taken.
func (r *renewer) addTo(ctx context.Context, h *Lock, by string, awaitsSecond bool) *KeepAlive {
	k := &KeepAlive{renewer: r, hold: h, by: by, awaitsSecond: awaitsSecond, index: -1, lifetimeEnd: clock.Forever, askAt: clock.Forever}
	k.parent, k.cancel = context.WithCancelCause(ctx)
	r.mu.Lock()
	h.mu.Lock()
	now := r.core.Now()
	k.until.Store(int64(h.until))
	switch {
	case r.closed:
		k.setEnd(EndClosed)
	case h.state(now) != stateHeld || h.awaitsSecond() != awaitsSecond:
		k.setEnd(EndNotHeld)
	default:
		k.fence, k.backing = h.fence, h.backing
		k.lease, k.epoch = &h.lease, h.lease.epoch.Load()
		if h.lifetime > 0 && !awaitsSecond {
			k.lifetimeEnd = clock.After(cmp.Or(h.takenAt, now), h.lifetime) // counts from now if the lock was handed over
		}
		k.sibling, h.keepAlives = h.keepAlives, k
		if h.spec.Notifiable() {
			k.askAt = max(askFrom(cmp.Or(h.takenAt, now)), now)
		}
		r.schedule(k)
		heap.Push(&r.heap, k)
		r.arm(now)
	}
	why := k.why // read under mu: the renewer may set it later
	if why == nil && r.shut {
		why = r.shutDown(h)
	}
	h.mu.Unlock()
	r.mu.Unlock()
	if why != nil {
		k.cancel(why)
	}
	return k
}

// schedule sets the next event of a KeepAlive whose lock is valid.
func (r *renewer) schedule(k *KeepAlive) {
	until := time.Duration(k.until.Load())
	k.renewAt = clock.Forever
	if until < k.lifetimeEnd {
		k.renewAt = k.hold.spec.Term.Due(until)
	}
	r.heedPending(k)
	k.setNext()
}

// heedPending has the lock renewed because of a change of which masters have notified while a renewal was under way.
func (r *renewer) heedPending(k *KeepAlive) {
	if s := k.subscription; s != nil && s.wantedAt != 0 {
		k.renewAt = min(k.renewAt, max(s.wantedAt, s.notUntil))
	}
}

// move moves a KeepAlive in the heap after its times have changed.
func (r *renewer) move(k *KeepAlive) {
	k.setNext()
	heap.Fix(&r.heap, k.index)
}

// remove takes a KeepAlive out of the heap and out of its hold, and notes why. It returns false if the KeepAlive was
// over already. r.mu is held.
func (r *renewer) remove(k *KeepAlive, why End) bool {
	if k.index < 0 {
		return false
	}
	heap.Remove(&r.heap, k.index)
	k.setEnd(why)
	if k.lost() { // counted before the context is done, which users can see
		if k.revoked() { // that is no loss: an operator meant it, and need not be told
			r.core.counts.Revoked.Add(1)
		} else {
			r.core.counts.Lost.Add(1)
		}
	}
	other := k.hold.removeKeepAlive(k)
	if k.subscription == nil {
		return true
	}
	r.subscriptions.Remove(&k.subscription.KeptLock)
	if other != nil { // it asks now
		other.askAt = 0
		r.move(other)
	}
	return true
}

// finish cancels the contexts of KeepAlives that the caller has removed. It cancels all of them before it tells the
// Observers of any.
func (r *renewer) finish(over []*KeepAlive) {
	cancelAll(over)
	for _, k := range over {
		if k.lost() {
			r.core.Teller.Lost(k, k.hold.spec.Key, k.token, k.why)
		}
	}
}

// cancelAll cancels the contexts of KeepAlives. It cancels all of them even if a parent, a user's context, panics or blocks.
func cancelAll(over []*KeepAlive) {
	switch len(over) {
	case 0:
		return
	case 1:
		over[0].cancel(over[0].why)
		return
	}
	ended := make(chan any, len(over)) // what each has panicked with; nil for nothing
	for _, k := range over {
		go func() {
			defer func() { ended <- recover() }()
			k.cancel(k.why)
		}()
	}
	var panicked any
	for range over {
		if p := <-ended; p != nil {
			panicked = p
		}
	}
	if panicked != nil {
		panic(panicked)
	}
}

func (r *renewer) stop(k *KeepAlive) {
	r.mu.Lock()
	r.remove(k, 0)
	r.arm(r.core.Now())
	r.mu.Unlock()
	k.cancel(k.why)
}

// expire ends a KeepAlive whose deadline has passed, if the deadline has not moved since.
func (r *renewer) expire(k *KeepAlive) {
	var over []*KeepAlive
	r.mu.Lock()
	now := r.core.Now()
	if k.index >= 0 && now < k.deadline() && !k.backing.lost() {
		r.mu.Unlock()
		return
	}
	if k.index >= 0 && r.remove(k, k.end(now)) {
		over = append(over, k)
		r.arm(now)
	}
	r.mu.Unlock()
	// Another goroutine may have removed it, and not cancelled it yet. Our caller must find the context
	// ended all the same.
	k.cancel(k.why)
	r.finish(over)
}

// removeUnlocked removes the KeepAlives of a lock that was unlocked. It sends no renewal of theirs afterwards. The
// caller finishes them.
func (r *renewer) removeUnlocked(keeps *KeepAlive) (over []*KeepAlive) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removeAll(keeps, func(*KeepAlive) End { return 0 })
}

// lose notes that the lock with that token is lost, and ends its KeepAlives. failure is the error of the round that
// has found this out; nil without one. lose releases what the round may have set again on some masters. It releases
// nothing of a lock that was valid and has a tombstone, however few masters show one: perhaps a majority has it. The
// tombstones keep the others out until the holder has let go.
func (r *renewer) lose(h *Lock, token []byte, failure Failure) {
	r.noteLost(h, token, failure, false)()
}

// noteLost is lose, but leaves it to the function that it returns to call contexts, to tell the Observers, and to release.
// Who judges other locks too does not call that function, but has a goroutine do so: a context may block.
//
// unseen is set for a holder that did not ask. It may have read Remaining, and rely on that without
// another look; or it may have passed the lock on, by its token. So the lock is left on the masters, where it keeps the others
// out. The holder's Unlock releases it, or its next attempt, or its TTL ends it.
func (r *renewer) noteLost(h *Lock, token []byte, failure Failure, unseen bool) (tell func()) {
	var rest time.Duration
	stays := false
	over := r.removeLost(h, token, failure, func() *KeepAlive {
		now := r.core.Now()
		rest = h.lingerTime(r.core.Now) // a lost lock lingers, too, where the masters still have it
		stays = h.noteStays(token, now, unseen || failure != nil && failure.Entombed()) || unseen
		if failure != nil && failure.Revoked() && h.has(token) {
			h.told |= toldRevoked
		}
		return h.lose(token, now)
	})
	return func() {
		func() {
			if !stays {
				defer r.core.Round.SendRelease(&h.spec, token, rest) // also if a context panics
			}
			cancelAll(over) // before the release, after which another can take the lock
		}()
		r.finish(over)
	}
}

// giveBack empties the hold, if that has the lock with that token, and ends its KeepAlives. It releases the lock, or
// lets it linger for the rest if rest is above 0. failure is the error of the round that is the reason; nil
// without one.
func (r *renewer) giveBack(h *Lock, token []byte, rest time.Duration, failure Failure) {
	var second *backing
	var in *relay
	untold := false
	over := r.removeLost(h, token, failure, func() (keeps *KeepAlive) {
		if h.has(token) {
			untold, in = h.told&toldGone == 0, h.relay
			keeps, second = h.reset()
		}
		return keeps
	})
	defer in.giveBack(r.core, &h.spec, token, rest) // also if a context panics
	defer second.unlockNoWait()
	if untold {
		defer r.core.Teller.LetGo(h.spec.Key, token, true)
	}
	r.finish(over)
}

// removeLost removes the KeepAlives of a hold whose lock, with that token, is lost. It calls end under h.mu, which ends the lock and
// returns its KeepAlives. failure is the error of the round that has found the loss; if it is nil, the
// KeepAlives report their own last renewal. The caller finishes the KeepAlives.
func (r *renewer) removeLost(h *Lock, token []byte, failure Failure, end func() *KeepAlive) (over []*KeepAlive) {
	// With mu held no renewal is encoded and not yet posted. Otherwise an Unlock, which would find no KeepAlives,
	// could send its release in between.
	r.mu.Lock()
	defer r.mu.Unlock()
	h.mu.Lock()
	keeps := end()
	h.mu.Unlock()
	now := r.core.Now()
	return r.removeAll(keeps, func(k *KeepAlive) End {
		own := slices.Clone(token)
		if k.token = &own; failure != nil {
			k.failure = failure
		}
		return k.end(now)
	})
}

// removeAll removes KeepAlives that were taken from their hold, and returns those that were not over yet. r.mu is
// held.
func (r *renewer) removeAll(keeps *KeepAlive, why func(*KeepAlive) End) (over []*KeepAlive) {
	if keeps == nil {
		return nil
	}
	for k := keeps; k != nil; k = k.sibling {
		if r.remove(k, why(k)) {
			over = append(over, k)
		}
	}
	r.arm(r.core.Now())
	return over
}

// shutDown is why a context ends whose lock is kept nevertheless.
func (r *renewer) shutDown(h *Lock) error {
	return r.core.Teller.Ended(h.spec.Key, EndShutdown, nil, nil)
}

// shutdown ends the contexts of all KeepAlives, and goes on renewing their locks. Who waits for a second lock gives the
// lock on the masters back.
func (r *renewer) shutdown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = true
	for _, k := range r.heap {
		why := r.shutDown(k.hold)
		r.running.Go(func() { k.cancel(why) }) // each by itself: it may block
	}
}

// close ends all KeepAlives, and gives those of the holds back whose second lock is still to be taken. The mux ends the burst
// that is under way.
func (r *renewer) close(holds []*Lock) {
	r.mu.Lock()
	r.closed = true
	var over []*KeepAlive
	for len(r.heap) > 0 {
		k := r.heap[0]
		r.remove(k, EndClosed)
		over = append(over, k)
	}
	r.arm(0)
	r.mu.Unlock()
	defer r.finish(over)
	for _, h := range holds { // whoever waits for a second lock may be too late to release the lock
		r.giveBackPending(h)
	}
}

// giveBackPending gives back the lock of a hold, if its second lock is still to be taken.
func (r *renewer) giveBackPending(h *Lock) {
	h.mu.Lock()
	pending, token := h.awaitsSecond(), slices.Clone(h.token())
	h.mu.Unlock()
	if pending {
		r.giveBack(h, token, 0, nil)
	}
}

// arm sets the timer to the next event, or earlier (see LongestSleep). A timer that is set counts as one of running. r.mu is held.
func (r *renewer) arm(now time.Duration) {
	var d time.Duration
	switch {
	case r.closed || len(r.heap) == 0:
		if r.timer != nil && r.timer.Stop() {
			r.running.Done()
		}
		return
	case len(r.ready) == 0 || r.sending >= maxSending:
		d = min(max(0, r.heap[0].next-now), defaults.LongestSleep)
	}
	if r.timer == nil {
		r.running.Add(1)
		r.timer = time.AfterFunc(d, r.run)
	} else if !r.timer.Reset(d) {
		r.running.Add(1)
	}
}

// run is the timer's goroutine. It serves what is due.
func (r *renewer) run() {
	defer r.running.Done()
	for b := r.nextBurst(); b != nil; b = r.nextBurst() {
		// All rounds were posted at the same time. Those with the shortest timeout are completed first, so
		// that none waits for longer than its own timeout.
		slices.SortFunc(b.renewals, func(x, y renewal) int { return cmp.Compare(x.call.Op.Timeout, y.call.Op.Timeout) })
		for _, x := range b.renewals {
			if repair := r.complete(x, r.core.Round.Mux.Wait(context.Background(), &x.call.Op)); repair != nil {
				b.repaired = append(b.repaired, repaired{x.keepAlive, repair})
			}
			r.core.Round.Put(x.call)
		}
		r.mu.Lock()
		r.sending -= len(b.ops)
		r.mu.Unlock()
		for _, x := range b.repaired {
			r.core.Round.Mux.Wait(context.Background(), &x.call.Op)
			if quorum.SaidYes(x.call.Op.Votes) != 0 {
				r.confirm(x.keepAlive)
			} else { // the repair has ended what the masters had promised, though another's set has come before it
				r.askAgain(x.keepAlive.hold)
			}
			r.core.Round.Put(x.call)
		}
		clear(b.renewals)
		clear(b.repaired)
		b.renewals, b.repaired, b.ops = b.renewals[:0], b.repaired[:0], b.ops[:0]
		r.pool.Put(b)
	}
}

// nextBurst serves the events that are due, and posts a burst. It returns the burst; nil if there is nothing to
// post.
func (r *renewer) nextBurst() *burst {
	r.mu.Lock()
	now := r.core.Now()
	over := r.advance(now)
	b := r.makeBurst(now)
	r.arm(now) // before the burst is sent: the deadlines do not depend on it
	if b != nil {
		r.sending += len(b.ops)
		r.core.counts.Renewals.Add(uint64(len(b.ops)))
		r.post(b)
	}
	r.askOnly(now)
	r.mu.Unlock()
	for i := range over { // each by itself: a context may block when it is called, and the next one, or the burst, waits for nobody
		r.running.Go(func() { r.finish(over[i : i+1]) })
	}
	return b
}

// post posts a burst, and the questions with it.
func (r *renewer) post(b *burst) {
	all := b.ops
	if len(b.questions) > 0 {
		b.all = b.all[:0]
		if b.quiet != nil {
			b.all = append(b.all, b.quiet)
		}
		b.all = append(append(b.all, b.ops...), b.questions...)
		all = b.all
	}
	r.core.Round.Mux.Post(all...)
	if b.quiet != nil {
		r.core.Round.Mux.Forget(b.quiet)
	}
	for _, op := range b.questions {
		r.core.Round.Mux.Forget(op)
	}
	clear(b.all)
	clear(b.questions)
	b.quiet, b.questions = nil, b.questions[:0]
}

// advance serves the events of the heap that are due. It returns the KeepAlives that are over, and makes those ready
// that are to be renewed.
func (r *renewer) advance(now time.Duration) (over []*KeepAlive) {
	sharing := false // one is ready, so others can share its burst
	for len(r.heap) > 0 {
		k := r.heap[0]
		deadline := k.deadline()
		switch {
		case k.parent.Err() != nil && !r.shut: // its parent has ended
			r.remove(k, 0)
			continue
		case now >= deadline:
			r.remove(k, k.end(now))
			over = append(over, k)
			continue
		case now < k.next && !(sharing && k.canShare(now)):
			return over
		}
		switch {
		case k.next == k.renewAt:
			k.renewAt = clock.Forever
			r.ready = append(r.ready, k)
			sharing = true
		case now >= k.askAt:
			k.askAt = clock.Forever
			r.asking = append(r.asking, k)
		}
		r.move(k) // its deadline may have moved on, too
	}
	return over
}

// makeBurst makes a burst of KeepAlives that are ready; nil if none is, or if too many renewals are under way.
func (r *renewer) makeBurst(now time.Duration) *burst {
	if len(r.ready) == 0 || r.sending >= maxSending {
		return nil
	}
	b, _ := r.pool.Get().(*burst)
	if b == nil {
		b = new(burst)
	}
	n := 0
	qs := r.subscriptions.Questions(false)
	for _, k := range r.ready {
		if len(b.ops) == burstSize {
			break
		}
		n++
		x := renewal{extension: extension{core: r.core, hold: k.hold, call: r.core.Round.Take()}, keepAlive: k, confirms: k.confirms}
		k.confirms = false
		h := k.hold
		h.mu.Lock()
		ours := h.hasKeepAlive(k)
		if s := h.subscription(); ours && s != nil {
			if s.begin(now) {
				x.reason = s.Changed()
				r.core.counts.RenewalsNotified.Add(1)
			}
			x.subscription = s
		}
		if ours = ours && x.encode(); ours {
			r.ask(&qs, k, now)
		}
		h.mu.Unlock()
		if !ours { // it is over, or about to be
			r.core.Round.Put(x.call)
			continue
		}
		x.call.Op.Patient = true
		b.renewals = append(b.renewals, x)
		b.ops = append(b.ops, &x.call.Op)
	}
	r.ready = slices.Delete(r.ready, 0, n)
	b.questions, b.quiet = qs.AppendOps(b.questions, len(b.ops))
	if len(b.ops) == 0 {
		r.pool.Put(b)
		return nil
	}
	return b
}

// confirm has a lock renewed at once whose repair was answered: from then on the yes of those that were repaired counts. So
// a lock outlives that one master after the other loses it, even if the next one does long before a third of its TTL.
func (r *renewer) confirm(k *KeepAlive) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.index < 0 {
		return
	}
	k.confirms = true
	if k.renewAt == clock.Forever { // a renewal is under way, and the next one is set when it is complete
		return
	}
	now := r.core.Now()
	k.renewAt = min(k.renewAt, now)
	r.move(k)
	r.arm(now)
}

// complete takes the result of a renewal. It returns a repair that follows it, for whoever waits for it; nil if there is
// none, or if nobody need wait: a renewal that confirms one is not followed by another that does, as the master may lose
// each key that it is given.
func (r *renewer) complete(x renewal, err error) (repair *round.Call) {
	k, h := x.keepAlive, x.hold
	defer h.Unpin()
	r.mu.Lock()
	now := r.core.Now()
	left, repair, reason := x.complete(err, k.index >= 0) // a KeepAlive that is over extends nothing
	if x.confirms {
		r.core.Round.Forget(repair)
		repair = nil
	}
	var e Failure
	if reason != nil && reason != errUnlocked {
		e = r.core.Teller.Failure(OpRenew, h.spec.Key, x.call, err, reason)
		if !e.Revoked() {
			r.core.counts.RenewalsFailed.Add(1)
		}
	}
	x.call.Failures = int(k.failures)
	if k.failures++; e == nil {
		k.failures = 0
	}
	if k.index >= 0 {
		k.failure = e
		if x.reason != 0 {
			x.subscription.end(x.reason, x.call.Op.Votes)
		}
		if e == nil {
			r.schedule(k)
			if k.confirms {
				k.renewAt = min(k.renewAt, now)
			}
		} else {
			pause := h.spec.Term.TTL / retryAfter
			k.renewAt = now + pause + rand.N(pause)
			r.heedPending(k)
		}
		r.move(k)
		r.arm(now)
	}
	stopped := k.index < 0 && k.ended == 0
	r.mu.Unlock()
	var tell func()
	if e != nil && (reason == quorum.ErrNotHeld || !stopped && x.mustUndo(reason)) {
		tell = r.noteLost(h, slices.Clone(x.call.Token), e, false)
	}
	if x.confirms {
		r.askAgain(h)
	}
	x.observe(k, OpRenew, left, e)
	if tell != nil {
		r.running.Go(tell) // a context may block when it is called, and the burst waits for nobody
	}
	return repair
}

// ask adds the lock of k to the questions, unless it is not yet to be asked for. r.mu and Lock.mu are held.
func (r *renewer) ask(qs *tracking.Questions, k *KeepAlive, now time.Duration) {
	h := k.hold
	s := h.subscription()
	switch {
	case !h.spec.Notifiable() || s == nil && k.askAt != clock.Forever && now < k.askAt || qs.Able == 0:
		return
	case s == nil:
		s = &heldSubscription{keepAlive: k, pause: tracking.NotifyPause}
		k.subscription = s
		r.subscriptions.Add(&s.KeptLock, s, h.spec.KeysOf(h.token()))
	}
	s.keepAlive.askAt = clock.Forever
	qs.Add(&s.KeptLock, h.token())
}

// askOnly sends the questions that follow no renewal.
func (r *renewer) askOnly(now time.Duration) {
	if len(r.asking) == 0 {
		return
	}
	qs := r.subscriptions.Questions(true)
	for i, k := range r.asking {
		r.asking[i] = nil
		h := k.hold
		h.mu.Lock()
		if k.index >= 0 && h.hasKeepAlive(k) && h.state(now) == stateHeld {
			r.ask(&qs, k, now)
		}
		h.mu.Unlock()
	}
	r.asking = r.asking[:0]
	all, _ := qs.AppendOps(nil, 0)
	for _, op := range all {
		r.core.Round.Mux.Send(op)
	}
}

// heed has locks renewed whose keys another has changed. connected says that all locks are to be asked for again, as a
// master was connected anew.
func (r *renewer) heed(changes []tracking.Change, connected bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.core.Now()
	spread := time.Duration(len(r.heap)) * spreadEach
	for _, c := range changes {
		s := c.Of.(*heldSubscription)
		k := s.keepAlive
		if k.index < 0 || k.subscription != s {
			continue
		}
		at := now
		if !c.Urgent {
			at += gatherFor
		}
		if c.All {
			at += rand.N(spread)
		}
		at = max(at, s.notUntil)
		if s.wantedAt == 0 || at < s.wantedAt {
			s.wantedAt = at
		}
		if k.renewAt != clock.Forever { // otherwise a renewal is under way, and the next one is set when it is complete
			k.renewAt = min(k.renewAt, s.wantedAt)
			r.move(k)
		}
	}
	if connected {
		for _, k := range r.heap {
			if k.subscription != nil {
				k.askAt = min(k.askAt, askFrom(now)+rand.N(spread))
				k.setNext()
			}
		}
		heap.Init(&r.heap)
	}
	r.arm(now)
}

// askAgain has the masters asked to notify of changes of a lock, after another own write than a renewal.
func (r *renewer) askAgain(h *Lock) {
	h.mu.Lock()
	s := h.subscription()
	h.mu.Unlock()
	if s == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := s.keepAlive; k.index >= 0 {
		now := r.core.Now()
		k.askAt = min(k.askAt, askFrom(now))
		r.move(k)
		r.arm(now)
	}
}

// keepAliveHeap is a heap by next, for container/heap.
type keepAliveHeap []*KeepAlive

func (h keepAliveHeap) Len() int           { return len(h) }
func (h keepAliveHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h keepAliveHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *keepAliveHeap) Push(x any) {
	k := x.(*KeepAlive)
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
