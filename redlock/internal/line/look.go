package line

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
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/resp"
)

// Looks are the looks of this client's waiters at keys on the masters, and what the client knows of keys without a look. When
// the head of a queue was refused, it reads the key on every master, and asks to be notified of the next change. Then it
// parks in the mux. While nothing else is in flight, it is the parked driver there, or another waiter is. The driver reads
// the masters' invalidations itself, and tries at once: no other goroutine has to wake it.
type Looks struct {
	core   *Core
	quorum int

	views sync.Pool // of *view

	// These are found by a hash of the key. Two keys may share them: they only decide whether a Lock looks
	// before it tries.
	seed    maphash.Seed
	refused [256]atomic.Int64 // when a key of that hash was last refused
	streaks [256]streak
}

// ExpirySlack is how much later than its TTL a key has ended for sure.
const ExpirySlack = time.Millisecond

const slotTimeout = 20 * time.Microsecond // what each slot adds to the timeout of a look

// Init makes it ready.
func (ls *Looks) Init(c *Core) {
	ls.core, ls.quorum, ls.seed = c, quorum.Majority(c.Masters), maphash.MakeSeed()
	ls.views.New = func() any { return new(view) }
}

// Listen subscribes a waiter to a lock: a majority is to be free.
func (ls *Looks) Listen(w *Waiter, s *round.Spec) { w.Listen(s.Slots(), ls.quorum, s.Names()...) }

// Free returns any slot that is free, or may be free, on a majority. majority is false if there is none.
func (ls *Looks) Free(w *Waiter) (slot int, majority bool) { return w.Changed(ls.quorum) }

// A LookResult is the result of a look, for a waiter.
type LookResult struct {
	Free       bool          // a slot, or the key, is free on a majority of the masters, or has changed there since
	Read       bool          // ... as their answers alone say
	WillNotify bool          // no majority can become free before a master notifies
	Held       bool          // every slot, or the key, is another's on a majority
	At         time.Duration // when the first slot, or the key, will be free on a majority; clock.Forever if never
	Slot       int           // that first slot, counted from 0 on
}

// A slotView is what the masters say of a key, or of a slot.
type slotView struct {
	free mux.Set       // the masters where it is free
	no   int           // the number of masters where it is another's
	at   time.Duration // when its TTLs will have passed on a majority; clock.Forever if never
}

// A view is what the masters say of a key, or of all slots. It is pooled.
type view struct {
	slots     []slotView
	untracked mux.Set         // masters that will not notify of a change
	ends      []time.Duration // for each slot, when it will be free on each master
}

// Look reads the key, or all slots, on all masters, and asks the masters to notify of the next change. The waiter
// must have subscribed before (Listen).
func (ls *Looks) Look(ctx context.Context, s *round.Spec, w *Waiter) (LookResult, error) {
	all := ls.views.Get().(*view)
	defer ls.views.Put(all)
	if err := ls.read(ctx, s, w, all, ls.core.Round.ShortTimeout(s.Timeout, round.MinShortTimeout+time.Duration(s.Slots())*slotTimeout)); err != nil {
		return LookResult{}, err
	}
	p := LookResult{WillNotify: true, Held: true, At: clock.Forever}
	for slot, seen := range all.slots {
		changed, enough := w.Note(slot, seen.free, all.untracked)
		p.WillNotify = p.WillNotify && !enough
		p.Free = p.Free || changed >= ls.quorum
		p.Read = p.Read || seen.free.Len() >= ls.quorum
		p.Held = p.Held && seen.no >= ls.quorum
		if seen.at < p.At {
			p.At, p.Slot = seen.at, slot
		}
	}
	return p, nil
}

// Find looks for a slot that is free on a majority, and returns any such slot. Its first look has a short timeout.
// If answers that have not come by then could change the result, it looks a second time and waits longer. w is nil if the caller is no
// waiter.
func (ls *Looks) Find(ctx context.Context, s *round.Spec, w *Waiter) (slot int, found bool) {
	view := ls.views.Get().(*view)
	defer ls.views.Put(view)
	short := ls.core.Round.ShortTimeout(s.Timeout, round.MinShortTimeout+time.Duration(s.Slots())*slotTimeout)
	for _, timeout := range [...]time.Duration{short, s.Timeout} {
		if ls.read(ctx, s, w, view, timeout) != nil {
			return 0, false
		}
		all, open := view.slots, false
		for i, from := 0, rand.IntN(len(all)); i < len(all); i++ {
			slot := (from + i) % len(all)
			if all[slot].free.Len() >= ls.quorum {
				return slot, true
			}
			open = open || all[slot].no <= ls.core.Masters-ls.quorum
		}
		if !open {
			break
		}
	}
	return 0, false
}

// read reads the key, or all slots, on all masters.
func (ls *Looks) read(ctx context.Context, s *round.Spec, w *Waiter, into *view, timeout time.Duration) error {
	c := ls.core
	k := c.Round.Take()
	defer c.Round.Put(k)
	k.Look(s, timeout)
	var err error
	if w == nil {
		err = c.Round.DoUndoable(ctx, k)
	} else {
		err = w.Ask(ctx, k)
	}
	if err != nil && err != mux.ErrTimeout {
		return err
	}
	now, notifying := c.Now(), c.Round.Notifying()
	n, slots := len(k.Op.Votes), s.Slots()
	into.slots = slices.Grow(into.slots[:0], slots)[:slots]
	clear(into.slots)
	into.untracked = 0
	into.ends = slices.Grow(into.ends[:0], n*slots)[:n*slots] // all of them are set
	for i := range k.Op.Votes {
		v := &k.Op.Votes[i]
		answered := v.Verdict == mux.VerdictYes || v.Verdict == mux.VerdictNo
		if !answered || !notifying.Has(i) {
			into.untracked = into.untracked.With(i)
		}
		it := v.Reply.Elems()
		for slot := range into.slots {
			seen, ttl, known := &into.slots[slot], v.Int, answered
			if s.Slotted != nil {
				elem, _ := it.Next()
				ttl, known = elem.Int()
				known = known && answered
			}
			end := clock.Forever
			switch {
			case known && ttl == -2:
				seen.free = seen.free.With(i)
				end = now
			case known:
				seen.no++
				if ttl >= 0 {
					end = clock.After(clock.After(now, kind.Milliseconds(ttl)), ExpirySlack)
				}
			}
			into.ends[slot*n+i] = end
		}
		v.Reply = resp.Value{}
	}
	for slot := range into.slots {
		of := into.ends[slot*n : (slot+1)*n]
		slices.Sort(of)
		into.slots[slot].at = of[ls.quorum-1]
	}
	return nil
}

// Tracked reports whether enough masters are up and can notify: no majority can become free without one of them.
func (ls *Looks) Tracked() bool {
	return ls.core.Round.Notifying().Len() > ls.core.Masters-ls.quorum
}
