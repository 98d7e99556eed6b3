package held

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A Second is a lock in another system: see SecondLock in package redlock.
type Second interface {
	Context() context.Context
	Fence() uint64
	Unlock(ctx context.Context) error
}

// A backing is the second lock of a hold that has taken both.
type backing struct {
	lock     Second
	ctx      context.Context // derived from the lock's, of package context: it is asked while mutexes are held
	end      context.CancelFunc
	until    time.Duration // the latest end of the hold's validity that was announced; guarded by Lock.mu
	timer    *time.Timer   // fires when that may have passed
	unwatch  func() bool   // stops watching ctx
	released bool          // it was released; only the goroutine that took it out of its hold uses this
}

// attach asks the lock for its context. That may panic.
func (b *backing) attach() { b.ctx, b.end = context.WithCancel(b.lock.Context()) }

// checkContext makes the lock's own context check whether it is over, and that ends ours. No
// mutex is held, as the context may be of any kind.
func (b *backing) checkContext() {
	if b != nil {
		_ = b.lock.Context().Err()
	}
}

// lost reports whether the second lock was lost. b may be nil.
func (b *backing) lost() bool { return b != nil && b.ctx.Err() != nil }

// lossCause is how the lock was lost, as the other system says. It is asked while mutexes are held.
func (b *backing) lossCause() error { return context.Cause(b.ctx) }

// unlockNoWait releases the lock and does not wait. b may be nil.
func (b *backing) unlockNoWait() {
	if b == nil {
		return
	}
	b.unlock(EndedContext)
}

// EndedContext is a context that has ended.
var EndedContext = func() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}()

// unlockWithin is unlock, but waits for d at most.
func (b *backing) unlockWithin(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return b.unlock(ctx)
}

// unlock releases the lock, once: a context that panics may bring its caller back.
func (b *backing) unlock(ctx context.Context) error {
	if b.released {
		return nil
	}
	b.released = true
	if b.unwatch != nil {
		b.unwatch()
		b.timer.Stop()
	}
	if b.end != nil {
		defer b.end()
	}
	return b.lock.Unlock(ctx)
}

// TakeSecond takes the second lock for a hold that has just taken the lock on the masters: it calls take. Meanwhile it keeps
// the lock on the masters alive, so that others do not ask the second
// system. If it cannot take the second lock, it releases the lock on the masters. The token is that of the
// caller's lock, as the hold may have another lock by now.
//
// If it fails, the reason is ErrClosed, or ErrExpired or ErrHeld of package quorum; or it is ErrSecond, and err is how the
// second system has failed; or it is nil, and err is the context's error.
func (ls *Locks) TakeSecond(ctx context.Context, h *Lock, token []byte, take func(context.Context) (Second, error)) (reason, err error) {
	r := &ls.renewer
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
	k := r.addTo(ctx, h, "", true)
	defer k.Stop()
	began := r.core.Now()
	lock, err := take(k)
	if err == nil {
		b = &backing{lock: lock}
		b.attach()
		joined = r.setBacking(h, token, b)
	}
	switch {
	case joined:
		r.core.counts.SecondTaken.Add(1)
		r.core.counts.SecondTime.Add(int64(r.core.Now() - began))
		k.Stop() // before taken is set: it calls the caller's context, which may panic
		taken = true
		return nil, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case k.Err() != nil && errors.Is(context.Cause(k), ErrClosed):
		return ErrClosed, nil
	case err == nil || k.Err() != nil:
		reason, err = quorum.ErrExpired, nil
	case errors.Is(err, quorum.ErrHeld):
		reason, err = quorum.ErrHeld, nil
	default:
		reason = ErrSecond
	}
	r.core.counts.SecondFailed.Add(1)
	return reason, err
}

// setBacking gives the hold its second lock, if the hold still has the lock with that token. It reports whether it
// has.
func (r *renewer) setBacking(h *Lock, token []byte, b *backing) bool {
	fence := b.lock.Fence()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := r.core.Now()
	if !h.has(token) || !h.awaitsSecond() || h.state(now) != stateHeld || b.lost() {
		return false
	}
	h.backing, h.fence, h.takenAt = b, fence, now
	b.until = h.until
	b.unwatch = context.AfterFunc(b.ctx, func() { r.secondOver(h, b) })
	b.timer = time.AfterFunc(min(b.until-now, defaults.LongestSleep), func() { r.secondOver(h, b) })
	return true
}

// secondOver runs when the second lock ends, or when the last validity that the hold has announced ends. It releases
// both locks: the one on the masters and the second. Until that moment a holder that relies on the validity
// has the second lock, even if the masters have lost theirs. Without secondOver, a holder that forgets its lock would
// keep the second lock for as long as its process lives.
func (r *renewer) secondOver(h *Lock, b *backing) {
	h.mu.Lock()
	if h.backing != b {
		h.mu.Unlock()
		return
	}
	if left := b.until - r.core.Now(); left > 0 && !b.lost() {
		b.timer.Reset(min(left, defaults.LongestSleep))
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
		r.core.Teller.LetGo(h.spec.Key, token, true)
	}
	r.lose(h, token, nil) // the KeepAlives themselves know why
}

// dropBacking releases the second lock of a lock that is lost, unless it was released already.
func (r *renewer) dropBacking(h *Lock, b *backing) {
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
