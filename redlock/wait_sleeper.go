package redlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
)

// A sleeper lets a goroutine wait for the masters' pushes, or for other goroutines of its process. The goroutine
// sleeps in the mux, and reads the pushes itself unless another goroutine does. What wakes it is noted elsewhere
// first: the goroutine looks there, and sleeps again if it finds nothing.
type sleeper struct {
	core  *core
	op    mux.Op        // without a command
	one   [1]*mux.Op    // op, as the argument of Post
	inMux atomic.Bool   // the op is posted, or about to be
	woken chan struct{} // capacity 1: full if the goroutine was woken since it last slept
}

func newSleeper(c *core) sleeper { return sleeper{core: c, woken: make(chan struct{}, 1)} }

// ended turns the mux's error into that of a Lock.
func ended(err error) error {
	if errors.Is(err, mux.ErrClosed) {
		return ErrClosed
	}
	return err
}

// wake wakes the goroutine, now or when it is about to sleep. The lock of the mux must not be held.
func (s *sleeper) wake() {
	if s.setWoken() {
		s.core.round.Mux.Forget(&s.op)
	}
}

// wakeInHook is wake for the hooks, which are called with the mux locked.
func (s *sleeper) wakeInHook() {
	if s.setWoken() {
		s.core.round.Mux.ForgetInHook(&s.op)
	}
}

// setWoken wakes the goroutine if it is not in the mux. It reports whether it may be in the mux.
func (s *sleeper) setWoken() (in bool) {
	select {
	case s.woken <- struct{}{}:
	default:
	}
	return s.inMux.Load()
}

// clear forgets that it was woken.
func (s *sleeper) clear() {
	select {
	case <-s.woken:
	default:
	}
}

// sleep returns nil when the goroutine was woken. Otherwise it returns the error of a context that has ended, or
// ErrClosed.
func (s *sleeper) sleep(ctx context.Context) error {
	r := s.core.round.Mux
	s.inMux.Store(true) // it stays true if the context panics; then each wake takes the lock of the mux in vain
	s.one[0] = &s.op
	r.Post(s.one[:]...)
	select {
	case <-s.woken: // before it was posted, or just now
		r.Forget(&s.op)
	default:
	}
	err := r.Wait(ctx, &s.op)
	s.inMux.Store(false)
	if err != mux.ErrForgotten {
		return ended(err)
	}
	s.clear()
	return nil
}

// A listener sleeps until enough masters have notified it.
type listener struct {
	sleeper
	subscription

	// Guarded by notices.mu.
	notified bool
	bySlot   []mux.Set // see hearer.changed; maybe of more slots
}

func (l *listener) init(c *core) { l.sleeper, l.hearer = newSleeper(c), l }

func (l *listener) told(enough, _ bool) {
	if enough {
		l.notified = true
		l.wakeInHook()
	}
}

func (l *listener) changed(slot int) *mux.Set {
	if slot == len(l.bySlot) { // a subscription begins with the first, and ends with the last
		l.bySlot = append(l.bySlot, 0)
	}
	return &l.bySlot[slot]
}

// listen subscribes to keys. It forgets what it was notified of: the masters are asked next.
func (l *listener) listen(slots, threshold int, keys ...string) {
	l.core.notices.add(&l.subscription, slots, threshold, keys...)
	l.takeNotified()
}

// end ends the subscription, if there is one.
func (l *listener) end() {
	if l.listens() {
		l.core.notices.mu.Lock()
		l.core.notices.remove(&l.subscription)
		l.core.notices.mu.Unlock()
	}
}

// listens reports whether it is subscribed, and listensTo whether it is to that key alone. The listener itself may ask.
func (l *listener) listens() bool { return len(l.interests) > 0 }

func (l *listener) listensTo(key []byte) bool {
	return len(l.interests) == 1 && l.interests[0].key == string(key)
}

// takeNotified reports whether it was notified since it last asked, or since it subscribed if that was later.
func (l *listener) takeNotified() (notified bool) {
	l.core.notices.mu.Lock()
	defer l.core.notices.mu.Unlock()
	notified, l.notified = l.notified, false
	return notified
}

// A restraint keeps back who is notified again and again of nothing. Masters do that when their table of promises is
// full (tracking-table-max-keys): each promise ends another, and whoever asks anew ends the next. The first few such
// notices are acted on at once, since one may be due to a change that was undone. The zero value is ready for use.
type restraint struct {
	vain  int           // notices in a row that told of nothing, less twice those that did
	acted time.Duration // when the latest notice was acted on, or will be
}

// notifyPause is the least pause between two things that are done because of notices.
const notifyPause = 50 * time.Millisecond

const (
	maxVainNotices = 8               // after so many, notices are acted on with a pause
	noticePauseMax = 8 * notifyPause // the longest; longer ago is another row
)

// due returns when to act on a notice that has come now.
func (r *restraint) due(now time.Duration) time.Duration {
	if now-r.acted > 2*noticePauseMax {
		r.vain = 0
	}
	if r.doubts() {
		now = max(now, r.acted+min(notifyPause<<(r.vain-maxVainNotices), noticePauseMax))
	}
	r.acted = now
	return now
}

// doubts reports whether a notice is likely to tell of nothing.
func (r *restraint) doubts() bool { return r.vain >= maxVainNotices }

// learn learns whether the latest notice told of a change. One that did among many that did not ends no row: those who
// renew their locks because of such notices change them.
func (r *restraint) learn(changed bool) {
	if changed {
		r.vain = max(0, r.vain-2)
	} else {
		r.vain = min(r.vain+1, 2*maxVainNotices)
	}
}
