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
	"github.com/redburst/redburst/resp"
)

// watches is what this client waits for on the masters. The first of a line that
// was refused reads the key on every master, asking to be told of its next change
// (CLIENT TRACKING, OPTIN), and parks in the mux. As long as nothing else is in flight
// it is the parked driver there, or another waiter is. So it reads the masters'
// invalidations itself, and tries at once: no other goroutine has to wake it.
//
// A watch is registered before the key is read, so no change is lost: what was
// before the read is in its answer, what is after it is pushed, in this order on
// one connection.
type watches struct {
	core   *core
	quorum int

	views sync.Pool // of *view

	mu    sync.Mutex // the hooks take it under the lock of the mux; no other is taken under it
	byKey map[string]*watch

	// When a key of that hash was last refused. Two keys may share an entry:
	// it only decides who looks before trying. So it is with a streak.
	seed    maphash.Seed
	refused [256]atomic.Int64
	streaks [256]streak
}

// A streak is a time in which this client has had a lock but for moments, and has not asked who waits. It
// need not notice them: if it is nearer to the masters, its next attempt is faster than theirs each time.
type streak struct{ since, until atomic.Int64 }

// A watch is one waiter's.
type watch struct {
	sleeper

	// Guarded by watches.mu.
	told    bool      // enough has come to be known
	needs   int       // so many masters, which have changed or will not tell, are worth telling
	changed []mux.Set // for each slot: where it was free when it was read, or has changed since
	deaf    mux.Set   // who will not tell: did not answer, cannot, or has been disconnected
}

const (
	refusedFor  = time.Second      // how long a key that was refused counts as contended
	lookAgain   = 10 * time.Second // how long a waiter relies on being told, up to twice that
	expirySlack = time.Millisecond
	slotBrief   = 20 * time.Microsecond // more time for a look, for each slot

	streakGap   = 200 * time.Millisecond // how long the lock is left alone when a streak is over
	streakMax   = 250 * time.Millisecond // how long a streak may be
	streakTrips = 100                    // ... or so many round trips, if that is longer: what ends it costs about three
)

func (ws *watches) init(c *core, masters int) {
	ws.core, ws.quorum = c, majority(masters)
	ws.byKey, ws.seed = map[string]*watch{}, maphash.MakeSeed()
}

func newWatch(c *core) *watch { return &watch{sleeper: newSleeper(c)} }

// add registers a watch for the keys that a lock has, or for the slots of one that has them: a change
// of any may be what it waits for.
func (ws *watches) add(w *watch, slots, needs int, keys ...string) {
	ws.mu.Lock()
	w.needs, w.told = needs, false
	w.changed, w.deaf = slices.Grow(w.changed[:0], slots)[:slots], 0
	clear(w.changed)
	for _, key := range keys {
		ws.byKey[key] = w
	}
	ws.mu.Unlock()
}

func (ws *watches) remove(keys ...string) {
	ws.mu.Lock()
	for _, key := range keys {
		delete(ws.byKey, key)
	}
	ws.mu.Unlock()
}

// note adds masters where a slot is, or can be, free, and masters that will not
// tell. It reports whether they can be a majority: then it is time to look, since
// the last that is needed may be one that does not tell.
func (ws *watches) note(w *watch, slot int, changed, deaf mux.Set) bool {
	w.changed[slot] |= changed
	w.deaf |= deaf
	return (w.changed[slot] | w.deaf).Len() >= w.needs
}

// noteAll is note for all slots.
func (ws *watches) noteAll(w *watch, changed, deaf mux.Set) (majority bool) {
	for slot := range w.changed {
		majority = ws.note(w, slot, changed, deaf) || majority
	}
	return majority
}

// free returns a slot that is, or can be, free on a majority, any of those that are, and where;
// 0 and false if there is none.
func (ws *watches) free(w *watch) (slot int, likely mux.Set, majority bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := len(w.changed)
	for i, from := 0, anyOf(n); i < n; i++ {
		slot := (from + i) % n
		if w.changed[slot].Len() >= ws.quorum {
			return slot, w.changed[slot], true
		}
	}
	return 0, 0, false
}

// anyOf returns a number below n.
func anyOf(n int) int {
	if n <= 1 {
		return 0
	}
	return rand.IntN(n)
}

// tell tells a waiter that enough has come to be known. The hooks call it, with watches.mu held.
func (w *watch) tell() {
	w.told = true
	w.wakeInHook()
}

// told reports whether a waiter was told since it last asked, or since its watch began.
func (ws *watches) told(w *watch) (told bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	told, w.told = w.told, false
	return told
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
func (ws *watches) push(master int, v resp.Value) {
	keys, ok := invalidated(v)
	if !ok {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if keys.IsNull() {
		for _, w := range ws.byKey {
			if ws.noteAll(w, 1<<master, 0) {
				w.tell()
			}
		}
		return
	}
	for it := keys.Elems(); ; {
		key, ok := it.Next()
		if !ok {
			return
		}
		name := key.Bytes()
		if w := ws.byKey[string(name)]; w != nil && ws.note(w, 0, 1<<master, 0) {
			w.tell()
		}
		if w := ws.byKey[string(cutIntentKey(name))]; w != nil && ws.note(w, 0, 1<<master, 0) {
			w.tell() // a reader that waits for a writer's turn
		}
		line, slot, of := cutSlotKey(name)
		if slot == 0 {
			continue
		}
		if w := ws.byKey[string(line)]; w != nil && len(w.changed) == of && ws.note(w, slot-1, 1<<master, 0) {
			w.tell()
		}
	}
}

// disconnected notes that a master will not tell what it has promised to.
func (ws *watches) disconnected(master int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.byKey {
		if ws.noteAll(w, 0, 1<<master) {
			w.tell()
		}
	}
}

func (ws *watches) entry(key string) (refused *atomic.Int64, s *streak) {
	i := maphash.String(ws.seed, key) % uint64(len(ws.refused))
	return &ws.refused[i], &ws.streaks[i]
}

// noteRefused marks the keys of a lock as contended, and contended reports whether one of them is, or
// has had a streak that is too long. Whoever wants a contended key looks before trying: those who were
// told of its release come first then, and a holder that takes the lock again and again does not starve
// the others.
func (ws *watches) noteRefused(now time.Duration, keys ...string) {
	for _, key := range keys {
		at, _ := ws.entry(key)
		at.Store(int64(now))
	}
}

// noteReleased has a key that was contended when it was taken, at since, be so when it is released.
func (ws *watches) noteReleased(now, since time.Duration, keys ...string) {
	for _, key := range keys {
		at, s := ws.entry(key)
		if time.Duration(at.Load()) >= since {
			at.Store(int64(now))
		}
		s.until.Store(int64(now))
	}
}

func (ws *watches) contended(now time.Duration, keys ...string) bool {
	for _, key := range keys {
		at, s := ws.entry(key)
		if at := time.Duration(at.Load()); at != 0 && now-at < refusedFor || ws.overlong(s, now) {
			return true
		}
	}
	return false
}

// overlong reports whether a streak has lasted too long, and begins another. One is over when those who wait
// have had the time to take the lock.
func (ws *watches) overlong(s *streak, now time.Duration) (yes bool) {
	if now-time.Duration(s.until.Load()) <= streakGap {
		long := now - time.Duration(s.since.Load())
		if long <= streakMax || long <= streakTrips*ws.core.rounds.RTT() {
			return false
		}
		yes = true
	}
	s.since.Store(int64(now))
	return yes
}

// prospect is what looking at a key has shown.
type prospect struct {
	free bool          // a majority of the masters can be had now
	told bool          // none can be before one of them tells
	held bool          // it is another's on so many
	at   time.Duration // when the TTLs of so many will have passed; clock.Forever if never
	slot int           // ... of this slot, the first of all
}

// A sight is what the masters say of a key, or of a slot.
type sight struct {
	free   mux.Set
	no     int           // on so many it is another's
	silent bool          // some have not answered
	at     time.Duration // when the TTLs of so many will have passed that it is free; clock.Forever if never
}

// A view is what all masters say, of a key or of all slots. It is pooled.
type view struct {
	slots []sight
	deaf  mux.Set         // who will not tell of a change
	ends  []time.Duration // for each slot, when it is free on each master
}

func (ws *watches) takeView() *view {
	v, _ := ws.views.Get().(*view)
	if v == nil {
		v = new(view)
	}
	return v
}

func (ws *watches) putView(v *view) { ws.views.Put(v) }

// look reads the key, or all slots, on all masters, and has them tell of the next change. The
// watch was registered before.
func (ws *watches) look(ctx context.Context, s *spec, w *watch) (prospect, error) {
	all := ws.takeView()
	defer ws.putView(all)
	if err := ws.read(ctx, s, all, ws.core.brief(s.timeout, minBrief+time.Duration(s.slots())*slotBrief)); err != nil {
		return prospect{}, err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	p := prospect{told: true, held: true, at: clock.Forever}
	for slot, seen := range all.slots {
		if ws.note(w, slot, seen.free, all.deaf) {
			p.told = false
		}
		p.free = p.free || w.changed[slot].Len() >= ws.quorum
		p.held = p.held && seen.no >= ws.quorum
		if seen.at < p.at {
			p.at, p.slot = seen.at, slot
		}
	}
	return p, nil
}

// find looks for a slot that is free on a majority, any of those that are. It takes a brief look
// first, and a patient one if masters that have not answered by then could have made it another.
func (ws *watches) find(ctx context.Context, s *spec) (slot int, found bool) {
	view := ws.takeView()
	defer ws.putView(view)
	brief := ws.core.brief(s.timeout, minBrief+time.Duration(s.slots())*slotBrief)
	for _, timeout := range [...]time.Duration{brief, s.timeout} {
		if ws.read(ctx, s, view, timeout) != nil {
			return 0, false
		}
		all, open := view.slots, false
		for i, from := 0, anyOf(len(all)); i < len(all); i++ {
			slot := (from + i) % len(all)
			if all[slot].free.Len() >= ws.quorum {
				return slot, true
			}
			open = open || all[slot].silent && all[slot].no <= len(ws.core.masters)-ws.quorum
		}
		if !open {
			break
		}
	}
	return 0, false
}

// read reads the key, or all slots, on all masters.
func (ws *watches) read(ctx context.Context, s *spec, into *view, timeout time.Duration) error {
	c := ws.core
	k := c.takeCall()
	defer c.putCall(k)
	k.look(s, timeout)
	err := c.rounds.Do(ctx, &k.op)
	if err != nil && err != mux.ErrTimeout {
		return err
	}
	now := c.now()
	r := c.takeRoster()
	defer c.putRoster(r)
	n, slots := len(k.op.Votes), s.slots()
	into.slots = slices.Grow(into.slots[:0], slots)[:slots]
	clear(into.slots)
	into.deaf = 0
	into.ends = slices.Grow(into.ends[:0], n*slots)[:n*slots] // all of them are set
	for i := range k.op.Votes {
		v := &k.op.Votes[i]
		answered := v.Verdict == VerdictYes || v.Verdict == VerdictNo
		if !answered || !tells(&r.states[i]) {
			into.deaf = into.deaf.With(i)
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
		into.slots[slot].at = of[ws.quorum-1]
	}
	return nil
}

// tracked reports whether so many masters are up and can tell of changes that no
// majority can become free without one of them.
func (ws *watches) tracked() bool {
	r := ws.core.takeRoster()
	defer ws.core.putRoster(r)
	n := 0
	for i := range r.states {
		if tells(&r.states[i]) {
			n++
		}
	}
	return n > len(r.states)-ws.quorum
}

// tells reports whether a master is up and can tell of changes.
func tells(s *mux.State) bool { return s.Phase == mux.Up && s.Server.Tracking }
