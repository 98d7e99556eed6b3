package redlock

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/redburst/redburst/mux"
)

// A sleeper is how a goroutine waits for what the masters push, or for others of its process. It sleeps
// in the mux, and reads the pushes itself, unless somebody else drives. Whatever wakes it is noted
// somewhere else first: it looks there, and sleeps again if it finds nothing.
type sleeper struct {
	core  *core
	op    mux.Op        // without a command
	one   [1]*mux.Op    // op, as the argument of Post
	inMux atomic.Bool   // the op is posted, or about to be
	woken chan struct{} // capacity 1: something has come
}

func newSleeper(c *core) sleeper { return sleeper{core: c, woken: make(chan struct{}, 1)} }

// ended makes the mux's error that of a Lock.
func ended(err error) error {
	if errors.Is(err, mux.ErrClosed) {
		return ErrClosed
	}
	return err
}

// wake wakes the goroutine, now or when it is about to sleep. The lock of the mux must not be held.
func (s *sleeper) wake() {
	if s.setWoken() {
		s.core.rounds.Forget(&s.op)
	}
}

// wakeInHook is wake for the hooks, which are called with the mux locked.
func (s *sleeper) wakeInHook() {
	if s.setWoken() {
		s.core.rounds.ForgetInHook(&s.op)
	}
}

// mark is wake for a goroutine that is not in the mux. It reports whether it may be there.
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

// sleep returns when somebody has woken the goroutine, or with the error of a context or a client that
// has ended.
func (s *sleeper) sleep(ctx context.Context) error {
	r := s.core.rounds
	s.inMux.Store(true) // if the context panics it remains so, which costs no more than a lock
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
