package redlock

import (
	"context"
	"errors"
	"slices"
	"time"
)

// secondPending is the note of a Lock that ended while it waited for its second lock.
const secondPending = "its second lock was not taken yet"

// takeSecond takes the second lock of a hold that the masters have just given the lock. It waits for it
// if wait is set. Meanwhile the lock is kept alive, so that those behind it stay away. If the second
// lock is not to be had, the masters have theirs back. The token is that of the caller's lock: the hold may
// have another's by now.
func (r *renewer) takeSecond(ctx context.Context, h *hold, token []byte, wait bool) (e *RoundError) {
	var b *behind
	joined, taken := false, false
	defer func() { // also if a context, or the Second, panics
		if taken {
			return
		}
		defer r.giveBack(h, token, 0, nil)
		if !joined { // or the hold has it
			b.giveUp()
		}
	}()
	k := r.add(ctx, h, true)
	defer k.stop()
	began := r.core.now()
	take := h.second.TryLock
	if wait {
		take = h.second.Lock
	}
	lock, err := take(k, h.key)
	if err == nil {
		b = &behind{lock: lock}
		b.attach()
		joined = r.join(h, token, b)
	}
	switch {
	case joined:
		r.core.stats.second.add(r.core.now() - began)
		k.stop() // before: it asks the caller's context
		taken = true
		return nil
	case ctx.Err() != nil:
		return unasked(opLock, h.key, nil, secondPending).endedBy(ctx, ctx.Err())
	case k.Err() != nil && errors.Is(context.Cause(k), ErrClosed):
		return unasked(opLock, h.key, ErrClosed, "")
	case err == nil || k.Err() != nil:
		e = unasked(opLock, h.key, ErrExpired, "its validity ended before the second lock was taken")
	case errors.Is(err, ErrHeld):
		e = unasked(opLock, h.key, ErrHeld, "the second lock is")
	default:
		e = unasked(opLock, h.key, ErrSecond, "")
		e.under = apart{err}
	}
	r.core.stats.secondFailed.Add(1)
	return e
}

// join makes the second lock the hold's, if that still has the lock with that token.
func (r *renewer) join(h *hold, token []byte, b *behind) bool {
	fence := b.lock.Fence()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := r.core.now()
	if !h.has(token) || !h.half() || h.state(now) != stateHeld || b.lost() {
		return false
	}
	h.behind, h.fence, h.since = b, fence, now
	b.until = h.until
	b.watch = context.AfterFunc(b.ctx, func() { r.secondOver(h, b) })
	b.timer = time.AfterFunc(b.until-now, func() { r.secondOver(h, b) })
	return true
}

// secondOver runs when the second lock ends, or when the last validity that the hold has announced does. It ends both
// locks: what the masters have is released, and so is the second lock. Until then whoever relies on that validity has
// the second lock, even if the masters have lost theirs. Without it, a holder that forgets its lock would keep the
// second one for as long as its process lives.
func (r *renewer) secondOver(h *hold, b *behind) {
	h.mu.Lock()
	if h.behind != b {
		h.mu.Unlock()
		return
	}
	if left := b.until - r.core.now(); left > 0 && !b.lost() {
		b.timer.Reset(left)
		h.mu.Unlock()
		return
	}
	token := slices.Clone(h.token())
	h.mu.Unlock()
	defer r.dismiss(h, b)
	r.lose(h, token, nil) // the KeepAlives know why
}

// dismiss releases the second lock of a hold that is lost, if nobody else has.
func (r *renewer) dismiss(h *hold, b *behind) {
	h.mu.Lock()
	ours := h.behind == b
	if ours {
		h.behind = nil
	}
	h.mu.Unlock()
	if ours {
		b.giveUp()
	}
}
