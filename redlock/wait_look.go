package redlock

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/resp"
)

// A lookResult is the result of a look, for a waiter.
type lookResult struct {
	free       bool          // a slot, or the key, is free on a majority of the masters, or has changed there since
	read       bool          // ... as their answers alone say
	willNotify bool          // no majority can become free before a master notifies
	held       bool          // every slot, or the key, is another's on a majority
	at         time.Duration // when the first slot, or the key, will be free on a majority; clock.Forever if never
	slot       int           // that first slot, counted from 0 on
}

// A slotView is what the masters say of a key, or of a slot.
type slotView struct {
	free   mux.Set       // the masters where it is free
	no     int           // the number of masters where it is another's
	silent bool          // a master has not answered
	at     time.Duration // when its TTLs will have passed on a majority; clock.Forever if never
}

// A view is what the masters say of a key, or of all slots. It is pooled.
type view struct {
	slots     []slotView
	untracked mux.Set         // masters that will not notify of a change
	ends      []time.Duration // for each slot, when it will be free on each master
}

func (ss *subscriptions) takeView() *view {
	v, _ := ss.views.Get().(*view)
	if v == nil {
		v = new(view)
	}
	return v
}

func (ss *subscriptions) putView(v *view) { ss.views.Put(v) }

// look reads the key, or all slots, on all masters, and asks the masters to notify of the next change. The waiter
// must have subscribed before.
func (ss *subscriptions) look(ctx context.Context, s *round.Spec, sub *waiterSubscription) (lookResult, error) {
	all := ss.takeView()
	defer ss.putView(all)
	if err := ss.read(ctx, s, sub, all, ss.core.round.ShortTimeout(s.Timeout, round.MinShortTimeout+time.Duration(s.Slots())*slotTimeout)); err != nil {
		return lookResult{}, err
	}
	p := lookResult{willNotify: true, held: true, at: clock.Forever}
	for slot, seen := range all.slots {
		changed, enough := sub.Note(slot, seen.free, all.untracked)
		p.willNotify = p.willNotify && !enough
		p.free = p.free || changed >= ss.quorum
		p.read = p.read || seen.free.Len() >= ss.quorum
		p.held = p.held && seen.no >= ss.quorum
		if seen.at < p.at {
			p.at, p.slot = seen.at, slot
		}
	}
	return p, nil
}

// find looks for a slot that is free on a majority, and returns any such slot. Its first look has a short timeout.
// If answers that have not come by then could change the result, it looks a second time and waits longer. sub is the
// waiter's; nil if the caller is none.
func (ss *subscriptions) find(ctx context.Context, s *round.Spec, sub *waiterSubscription) (slot int, found bool) {
	view := ss.takeView()
	defer ss.putView(view)
	short := ss.core.round.ShortTimeout(s.Timeout, round.MinShortTimeout+time.Duration(s.Slots())*slotTimeout)
	for _, timeout := range [...]time.Duration{short, s.Timeout} {
		if ss.read(ctx, s, sub, view, timeout) != nil {
			return 0, false
		}
		all, open := view.slots, false
		for i, from := 0, rand.IntN(len(all)); i < len(all); i++ {
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
func (ss *subscriptions) read(ctx context.Context, s *round.Spec, sub *waiterSubscription, into *view, timeout time.Duration) error {
	c := ss.core
	k := c.round.Take()
	defer c.round.Put(k)
	k.Look(s, timeout)
	err := sub.ask(ctx, c, k)
	if err != nil && err != mux.ErrTimeout {
		return err
	}
	now, notifying := c.now(), c.round.Notifying()
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
					end = clock.After(clock.After(now, kind.Milliseconds(ttl)), expirySlack)
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

// tracked reports whether enough masters are up and can notify: no majority can become free without one of them.
func (ss *subscriptions) tracked() bool {
	return ss.core.round.Notifying().Len() > len(ss.core.masters)-ss.quorum
}
