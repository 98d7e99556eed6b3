package redlock

import (
	"context"
	"errors"
	"slices"
	"time"
)

// takeSecond takes the second lock for a hold that has just taken the lock on the masters. It waits for the second
// lock if wait is set. Meanwhile it keeps the lock on the masters alive, so that others do not ask the second
// system. If it cannot take the second lock, it releases the lock on the masters. The token is that of the
// caller's lock, as the hold may have another lock by now.
func (r *renewer) takeSecond(ctx context.Context, h *hold, token []byte, wait bool) (e *RoundError) {
	var b *backing
	joined, taken := false, false
	defer func() { // also if a context, or the Second, panics
		if taken {
			return
		}
		defer r.giveBack(h, token, 0, nil)
		if !joined { // otherwise the hold has the second lock, and giveBack releases it
			b.unlockNoWait()
		}
	}()
	k := r.addPending(ctx, h)
	defer k.stop()
	began := r.core.now()
	second := h.spec.Second.(Second)
	take := second.TryLock
	if wait {
		take = second.Lock
	}
	lock, err := take(k, h.spec.Key)
	if err == nil {
		b = &backing{lock: lock}
		b.attach()
		joined = r.setBacking(h, token, b)
	}
	switch {
	case joined:
		r.core.stats.secondTaken.Add(1)
		r.core.stats.secondTime.Add(int64(r.core.now() - began))
		k.stop() // before taken is set: it calls the caller's context, which may panic
		taken = true
		return nil
	case ctx.Err() != nil:
		e = unasked(opLock, h.spec.Key, nil, "its second lock was not taken yet")
		e.detail = secondPending
		return e.endedBy(ctx, ctx.Err())
	case k.Err() != nil && errors.Is(context.Cause(k), ErrClosed):
		return unasked(opLock, h.spec.Key, ErrClosed, "")
	case err == nil || k.Err() != nil:
		e = unasked(opLock, h.spec.Key, ErrExpired, "its validity ended before the second lock was taken")
	case errors.Is(err, ErrHeld):
		e = unasked(opLock, h.spec.Key, ErrHeld, "the second lock is")
		e.detail = heldInSecond
	default:
		e = unasked(opLock, h.spec.Key, ErrSecond, "")
		e.under = foreignError{err}
	}
	r.core.stats.secondFailed.Add(1)
	return e
}

// setBacking gives the hold its second lock, if the hold still has the lock with that token. It reports whether it
// has.
func (r *renewer) setBacking(h *hold, token []byte, b *backing) bool {
	fence := b.lock.Fence()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := r.core.now()
	if !h.has(token) || !h.awaitsSecond() || h.state(now) != stateHeld || b.lost() {
		return false
	}
	h.backing, h.fence, h.takenAt = b, fence, now
	b.until = h.until
	b.unwatch = context.AfterFunc(b.ctx, func() { r.secondOver(h, b) })
	b.timer = time.AfterFunc(b.until-now, func() { r.secondOver(h, b) })
	return true
}

// secondOver runs when the second lock ends, or when the last validity that the hold has announced ends. It releases
// both locks: the one on the masters and the second. Until that moment a holder that relies on the validity
// has the second lock, even if the masters have lost theirs. Without secondOver, a holder that forgets its lock would
// keep the second lock for as long as its process lives.
func (r *renewer) secondOver(h *hold, b *backing) {
	h.mu.Lock()
	if h.backing != b {
		h.mu.Unlock()
		return
	}
	if left := b.until - r.core.now(); left > 0 && !b.lost() {
		b.timer.Reset(left)
		h.mu.Unlock()
		return
	}
	token := slices.Clone(h.token())
	untold := h.keepAlives == nil && h.told&toldGone == 0
	if untold {
		h.told |= toldGone
	}
	h.mu.Unlock()
	defer r.dropBacking(h, b)
	if untold {
		r.core.observeLetGo(h.spec.Key, token, true)
	}
	r.lose(h, token, nil) // the KeepAlives themselves know why
}

// dropBacking releases the second lock of a lock that is lost, unless it was released already.
func (r *renewer) dropBacking(h *hold, b *backing) {
	h.mu.Lock()
	ours := h.backing == b
	if ours {
		h.backing = nil
	}
	h.mu.Unlock()
	if ours {
		b.unlockNoWait()
	}
}
