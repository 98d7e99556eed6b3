package redlock

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn/clock"
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

func (ss *subscriptions) contention(key string) (refused *atomic.Int64, s *streak) {
	i := maphash.String(ss.seed, key) % uint64(len(ss.refused))
	return &ss.refused[i], &ss.streaks[i]
}

// noteRefused marks the keys of a lock as contended. contended reports whether one of them is, or
// has had a streak that is too long. Whoever wants a contended key looks before trying: so those who were
// notified of its release come first, and a holder that takes the lock again and again does not starve
// the others.
func (ss *subscriptions) noteRefused(now time.Duration, keys ...string) {
	for _, key := range keys {
		at, _ := ss.contention(key)
		at.Store(int64(now))
	}
}

// noteReleased keeps a key contended that was contended when it was taken, at since.
func (ss *subscriptions) noteReleased(now, since time.Duration, keys ...string) {
	for _, key := range keys {
		at, s := ss.contention(key)
		if time.Duration(at.Load()) >= since {
			at.Store(int64(now))
		}
		s.until.Store(int64(now))
	}
}

func (ss *subscriptions) contended(now time.Duration, keys ...string) bool {
	for _, key := range keys {
		at, s := ss.contention(key)
		if at := time.Duration(at.Load()); at != 0 && now-at < contendedFor || ss.overlong(s, now) {
			return true
		}
	}
	return false
}

// overlong reports whether a streak has lasted too long, and begins another. One is over when those who wait
// have had the time to take the lock.
func (ss *subscriptions) overlong(s *streak, now time.Duration) (yes bool) {
	if now-time.Duration(s.until.Load()) <= streakGap {
		long := now - time.Duration(s.since.Load())
		if long <= streakMax || long <= streakTrips*ss.core.rounds.RTT() {
			return false
		}
		yes = true
	}
	s.since.Store(int64(now))
	return yes
}

// lookResult is what looking at a key has shown.
type lookResult struct {
	free       bool          // a majority of the masters can be had now
	willNotify bool          // no majority can be had before one of them notifies
	held       bool          // it is another's on so many
	at         time.Duration // when the TTLs of so many will have passed; clock.Forever if never
	slot       int           // ... of this slot, the first of all
}

// A slotView is what the masters say of a key, or of a slot.
type slotView struct {
	free   mux.Set
	no     int           // on so many it is another's
	silent bool          // some have not answered
	at     time.Duration // when the TTLs of so many will have passed that it is free; clock.Forever if never
}

// A view is what all masters say, of a key or of all slots. It is pooled.
type view struct {
	slots     []slotView
	untracked mux.Set         // masters that will not notify of a change
	ends      []time.Duration // for each slot, when it is free on each master
}

func (ss *subscriptions) takeView() *view {
	v, _ := ss.views.Get().(*view)
	if v == nil {
		v = new(view)
	}
	return v
}

func (ss *subscriptions) putView(v *view) { ss.views.Put(v) }

// look reads the key, or all slots, on all masters, and asks them to notify of the next change. The
// waiter has subscribed before.
func (ss *subscriptions) look(ctx context.Context, s *spec, sub *subscription) (lookResult, error) {
	all := ss.takeView()
	defer ss.putView(all)
	if err := ss.read(ctx, s, all, ss.core.shortTimeout(s.timeout, minShortTimeout+time.Duration(s.slots())*slotTimeout)); err != nil {
		return lookResult{}, err
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	p := lookResult{willNotify: true, held: true, at: clock.Forever}
	for slot, seen := range all.slots {
		if ss.note(sub, slot, seen.free, all.untracked) {
			p.willNotify = false
		}
		p.free = p.free || sub.changed[slot].Len() >= ss.quorum
		p.held = p.held && seen.no >= ss.quorum
		if seen.at < p.at {
			p.at, p.slot = seen.at, slot
		}
	}
	return p, nil
}

// find looks for a slot that is free on a majority, any of those that are. Its first look has a short
// timeout. A second one waits longer, if the masters that have not answered by then could have changed the result.
func (ss *subscriptions) find(ctx context.Context, s *spec) (slot int, found bool) {
	view := ss.takeView()
	defer ss.putView(view)
	short := ss.core.shortTimeout(s.timeout, minShortTimeout+time.Duration(s.slots())*slotTimeout)
	for _, timeout := range [...]time.Duration{short, s.timeout} {
		if ss.read(ctx, s, view, timeout) != nil {
			return 0, false
		}
		all, open := view.slots, false
		for i, from := 0, randomSlot(len(all)); i < len(all); i++ {
			slot := (from + i) % len(all)
			if all[slot].free.Len() >= ss.quorum {
				return slot, true
			}
			open = open || all[slot].silent && all[slot].no <= len(ss.core.masters)-ss.quorum
		}
		if !open {
			break
		}
	}
	return 0, false
}

// read reads the key, or all slots, on all masters.
func (ss *subscriptions) read(ctx context.Context, s *spec, into *view, timeout time.Duration) error {
	c := ss.core
	k := c.takeCall()
	defer c.putCall(k)
	k.look(s, timeout)
	err := c.rounds.Do(ctx, &k.op)
	if err != nil && err != mux.ErrTimeout {
		return err
	}
	now := c.now()
	r := c.takeStates()
	defer c.putStates(r)
	n, slots := len(k.op.Votes), s.slots()
	into.slots = slices.Grow(into.slots[:0], slots)[:slots]
	clear(into.slots)
	into.untracked = 0
	into.ends = slices.Grow(into.ends[:0], n*slots)[:n*slots] // all of them are set
	for i := range k.op.Votes {
		v := &k.op.Votes[i]
		answered := v.Verdict == VerdictYes || v.Verdict == VerdictNo
		if !answered || !canNotify(&r.states[i]) {
			into.untracked = into.untracked.With(i)
		}
		it := v.Reply.Elems()
		for slot := range into.slots {
			seen, ttl, known := &into.slots[slot], v.Int, answered
			if s.slotted != nil {
				elem, more := it.Next()
				n, ok := elem.Int()
				ttl, known = n, answered && more && ok
			}
			end := clock.Forever
			switch {
			case known && ttl == -2:
				seen.free = seen.free.With(i)
				end = now
			case known:
				seen.no++
				if ttl >= 0 {
					end = clock.After(clock.After(now, milliseconds(ttl)), expirySlack)
				}
			}
			seen.silent = seen.silent || !known
			into.ends[slot*n+i] = end
		}
		v.Reply = resp.Value{}
	}
	for slot := range into.slots {
		of := into.ends[slot*n : (slot+1)*n]
		slices.Sort(of)
		into.slots[slot].at = of[ss.quorum-1]
	}
	return nil
}

// tracked reports whether so many masters are up and can notify of changes that no
// majority can become free without one of them.
func (ss *subscriptions) tracked() bool {
	r := ss.core.takeStates()
	defer ss.core.putStates(r)
	n := 0
	for i := range r.states {
		if canNotify(&r.states[i]) {
			n++
		}
	}
	return n > len(r.states)-ss.quorum
}

// canNotify reports whether a master is up and can notify of changes.
func canNotify(s *mux.State) bool { return s.Phase == mux.Up && s.Server.Tracking }
