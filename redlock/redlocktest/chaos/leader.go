//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// leads says whether a worker campaigns for a lock, in place of taking it.
func (w *worker) leads(l lockable) bool { return l.Led && w.percent(80) }

// lead campaigns until ctx ends. Each term of office is a hold.
func (w *worker) lead(ctx context.Context, l lockable) {
	owner := fmt.Sprintf("%s/%d", w.Name, w.holds.Add(1))
	asked := clock.Now()
	err := w.lock.Lead(ctx, l.Keys[0], l.TTL, func(office context.Context) error {
		now := clock.Now()
		h := w.begin(&hold{lock: l, alive: office, until: now, fenced: true, fence: redlock.FenceFrom(office)}, asked, now, opLead)
		h.work(w.upTo(2 * time.Second)) // it ends with the office
		w.add(record{Op: opLeave, Hold: h.id})
		if ctx.Err() != nil && !errors.Is(context.Cause(office), redlock.ErrLost) {
			h.cleanUp(owner)
		}
		asked = clock.Now()
		return nil
	}, redlock.WithOwner(owner))
	w.add(record{Op: opLed, Lock: l.String(), Outcome: name(ctx, err)})
}

// cleanUp goes on after the end of the campaign, for longer than the lock lives that is not renewed. It
// records whether any master still had the lock then. Nothing is claimed for this time: the lock may be lost,
// and nobody is told.
func (h *hold) cleanUp(owner string) {
	time.Sleep(h.lock.TTL + h.lock.TTL/4 + h.upTo(h.lock.TTL/2))
	ctx, cancel := context.WithTimeout(context.Background(), h.lock.TTL)
	defer cancel()
	info, _ := h.worker.lock.Holders(ctx, h.lock.Keys[0])
	kept := notKept
	for _, holder := range info.Holders {
		if holder.Owner == owner {
			kept = ok
		}
	}
	if info.Masters-len(info.Silent) > len(h.Masters)/2 {
		h.add(record{Op: opClean, Hold: h.id, Outcome: kept})
	}
}

// leastCleaned is how many leaders must have cleaned up, so that something is wrong if all have lost their locks.
// Some do, when the masters are struck for longer than the TTL.
const leastCleaned = 5

// checkLeaders demands that locks are kept while leaders clean up.
func (c *checker) checkLeaders() {
	if cleaned := c.Outcomes[opClean]; cleaned[ok] == 0 && cleaned[notKept] >= leastCleaned {
		c.violation("%d leaders have cleaned up, and the lock of none was kept meanwhile", cleaned[notKept])
	}
}
