package tracking

import (
	"context"
	"sync/atomic"

	"github.com/redburst/redburst/mux"
)

// A sleeper lets a goroutine wait for the masters' pushes, or for other goroutines of its process. The goroutine
// sleeps in the mux, and reads the pushes itself unless another goroutine does. What wakes it is noted elsewhere
// first: the goroutine looks there, and sleeps again if it finds nothing.
type sleeper struct {
	registry *Registry
	op       mux.Op        // without a command
	one      [1]*mux.Op    // op, as the argument of Post
	inMux    atomic.Bool   // the op is posted, or about to be
	woken    chan struct{} // capacity 1: full if the goroutine was woken since it last slept
}

func newSleeper(r *Registry) sleeper { return sleeper{registry: r, woken: make(chan struct{}, 1)} }

// Wake wakes the goroutine, now or when it is about to sleep. The lock of the mux must not be held.
func (s *sleeper) Wake() {
	if s.setWoken() {
		s.registry.core.Mux.Forget(&s.op)
	}
}

// wakeInHook is Wake for the hooks, which are called with the mux locked.
func (s *sleeper) wakeInHook() {
	if s.setWoken() {
		s.registry.core.Mux.ForgetInHook(&s.op)
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

// Clear forgets that it was woken.
func (s *sleeper) Clear() {
	select {
	case <-s.woken:
	default:
	}
}

// Sleep returns nil when the goroutine was woken. Otherwise it returns the error of a context that has ended, or
// mux.ErrClosed.
func (s *sleeper) Sleep(ctx context.Context) error {
	m := s.registry.core.Mux
	s.inMux.Store(true) // it stays true if the context panics; then each wake takes the lock of the mux in vain
	s.one[0] = &s.op
	m.Post(s.one[:]...)
	select {
	case <-s.woken: // before it was posted, or just now
		m.Forget(&s.op)
	default:
	}
	err := m.Wait(ctx, &s.op)
	s.inMux.Store(false)
	if err != mux.ErrForgotten {
		return err
	}
	s.Clear()
	return nil
}

// Woken has something once the goroutine is woken, for one that sleeps outside the mux. Only the goroutine itself receives.
func (s *sleeper) Woken() <-chan struct{} { return s.woken }
