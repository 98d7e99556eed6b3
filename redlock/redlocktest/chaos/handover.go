//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// handsOver says whether a worker that has just taken the lock hands it over. No other Mutex can take one
// over that has a second lock.
func (w *worker) handsOver(l lockable) bool {
	return (l.Kind == plain || l.Kind == shared) && !l.Second && !l.Passed && (w.percent(4) || l.HandedOver && w.percent(80))
}

// handOver has another Mutex take over the lock, which was just taken: at once, or after a while, when
// it may be over. The Mutex that has taken it is never used again. If the lock is taken over, the
// hold goes on with the other one. If not, it ends here.
//
// The claim ends when the other Mutex asks for the lock, unless it gets it: what it finds to be lost, it
// releases.
func (h *hold) handOver() (taken bool) {
	// Of the masters of the majority that has given the lock, one at least must have it still. They
	// have all given it before now.
	latest := clock.Now() + h.lock.life() + h.lock.TTL/20 + 20*time.Millisecond
	delete(h.mutexes, mutexKind{h.lock.String(), h.fenced})
	if h.percent(60) {
		time.Sleep(h.long(h.lock))
	}
	m := h.newMutex(h.lock, h.fenced, redlock.WithToken(h.token))
	h.mutex = m
	h.add(record{Op: opLeave, Hold: h.id})
	// An attempt that is not late may have prolonged the lock, whatever has become of it. So may a recheck, after roaming
	// masters have switched.
	late := clock.Now() > latest && h.Prefix == ""
	for range 3 { // one that is cut short must not bring back what the next one finds
		err := h.takeOver(m, late)
		if err == nil {
			return true
		}
		if errors.Is(err, redlock.ErrNotHeld) {
			break
		}
	}
	if h.percent(70) {
		ctx, cancel := context.WithTimeout(context.Background(), h.upTo(2*time.Second))
		defer cancel()
		h.unlock(ctx)
	}
	return false
}

// takeOver extends a lock that was handed over. If it comes late, none can be there.
func (h *hold) takeOver(m *redlock.Mutex, late bool) error {
	most := 2 * h.lock.TTL
	if h.percent(40) {
		most = time.Millisecond // too short for the answers, mostly
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.upTo(most))
	defer cancel()
	err := m.Extend(ctx)
	r := record{T: clock.Now(), Op: opAdopt, Hold: h.id, Outcome: name(ctx, err)}
	switch left := m.Remaining(); {
	case err == nil && late:
		r.Outcome = revived
	case err == nil && m.Fence() < h.fence:
		r.Outcome = fenceFell
	case err == nil && left > 0:
		r.Until = r.T + left
		h.until = r.Until
	}
	h.add(r)
	return err
}
