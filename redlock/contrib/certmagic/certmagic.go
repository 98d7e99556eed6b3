// Package certmagic lets several processes that use [github.com/caddyserver/certmagic] obtain and renew
// certificates one at a time, whatever they store them in.
//
//	import (
//		"github.com/caddyserver/certmagic"
//		redcertmagic "github.com/redburst/redburst/redlock/contrib/certmagic"
//	)
//
//	certmagic.Default.Storage = redcertmagic.WithLocks(storage, client, "lock:certmagic:", 30*time.Second)
//
// All processes need the same storage, and locks on the same masters with the same prefix.
package certmagic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redburst/redburst/redlock"
)

// Storage is a certmagic.Storage whose locks are on the masters.
type Storage struct {
	certmagic.Storage
	client *redlock.Client
	prefix string
	ttl    time.Duration
	opts   []redlock.Option

	mu   sync.Mutex
	held map[string]*held // by the lock's name
}

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// WithLocks returns the storage with other locks: those of the storage itself are not used. The key of a
// lock is the prefix and the lock's name. A lock is kept alive from Lock until Unlock, so the TTL is how
// long others wait if this process dies. The options are those of [redlock.Client.NewMutex];
// WithMaxLifetime ends a lock that is never unlocked.
func WithLocks(storage certmagic.Storage, client *redlock.Client, prefix string, ttl time.Duration, opts ...redlock.Option) *Storage {
	return &Storage{Storage: storage, client: client, prefix: prefix, ttl: ttl, opts: opts, held: map[string]*held{}}
}

// String returns what the wrapped storage says of itself, or its type alone. certmagic logs storages: without a String,
// all fields, and with them passwords.
func (s *Storage) String() string {
	if inner, ok := s.Storage.(fmt.Stringer); ok {
		return inner.String()
	}
	return fmt.Sprintf("%T", s.Storage)
}

// held is a lock from Lock to Unlock, whatever became of it in between.
type held struct {
	mutex *redlock.Mutex
	over  chan struct{} // closed by Unlock

	// Guarded by Storage.mu; nil before it is taken.
	ctx  context.Context // ends with the lock
	stop func()
}

// Lock takes the lock. It waits until it has it or ctx ends. Within this process it also waits for the
// Unlock of a holder whose lock was lost.
func (s *Storage) Lock(ctx context.Context, name string) error {
	h, err := s.new(name)
	if err != nil {
		return err
	}
	for {
		other := s.enter(name, h)
		if other == nil {
			return s.take(ctx, name, h, h.mutex.Lock)
		}
		select {
		case <-other.over:
		case <-ctx.Done():
			return fmt.Errorf("redlock/certmagic: lock %q: held in this process: %w", name, context.Cause(ctx))
		}
	}
}

// TryLock takes the lock if it is free. It reports false and no error if another has it.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	h, err := s.new(name)
	if err != nil {
		return false, err
	}
	if s.enter(name, h) != nil {
		return false, nil
	}
	err = s.take(ctx, name, h, h.mutex.TryLock)
	if errors.Is(err, redlock.ErrHeld) {
		return false, nil
	}
	return err == nil, err
}

// Unlock releases the lock. It returns an error only if there is none: a lock that was lost is released
// already, and one whose masters cannot be reached ends with its TTL.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	h, _ := s.taken(name)
	if h == nil {
		return unknown(name)
	}
	s.leave(name, h)
	_ = h.mutex.Unlock(context.WithoutCancel(ctx))
	return nil
}

// RenewLockLease confirms the lock, which is kept alive for as long as it is needed. If it was lost, it is
// taken again if it is free. Otherwise it fails, and certmagic tries its work again later: by then
// another may have done it. The duration is not used.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	h, lock := s.taken(name)
	if h == nil {
		return unknown(name)
	}
	if lock.Err() == nil {
		return nil
	}
	if err := h.mutex.TryLock(ctx); err != nil {
		return fmt.Errorf("%w; and again: %w", context.Cause(lock), err)
	}
	if !s.keep(ctx, name, h) {
		_ = h.mutex.Unlock(context.WithoutCancel(ctx))
		return unknown(name)
	}
	return nil
}

// taken returns who has the lock in this process, and the context of its lock; nil if nobody has it.
func (s *Storage) taken(name string) (*held, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[name]; h != nil && h.ctx != nil {
		return h, h.ctx
	}
	return nil, nil
}

func (s *Storage) new(name string) (*held, error) {
	if err := s.client.CheckMutex(s.prefix+name, s.ttl, s.opts...); err != nil {
		return nil, fmt.Errorf("redlock/certmagic: %w", err)
	}
	return &held{mutex: s.client.NewMutex(s.prefix+name, s.ttl, s.opts...), over: make(chan struct{})}, nil
}

// enter makes h the one that has the name in this process, or returns who has it.
func (s *Storage) enter(name string, h *held) (other *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other = s.held[name]; other == nil {
		s.held[name] = h
	}
	return other
}

// leave lets the next one in this process have the name.
func (s *Storage) leave(name string, h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.stop != nil {
		h.stop()
	}
	if s.held[name] == h { // and nobody has unlocked it twice
		delete(s.held, name)
		close(h.over)
	}
}

// take takes the lock of h, which has the name.
func (s *Storage) take(ctx context.Context, name string, h *held, lock func(context.Context) error) error {
	if err := lock(ctx); err != nil {
		s.leave(name, h)
		return err
	}
	s.keep(ctx, name, h)
	return nil
}

// keep keeps the lock alive until it is unlocked: certmagic's context may end before. It reports false if
// it was unlocked while it was taken again.
func (s *Storage) keep(ctx context.Context, name string, h *held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[name] != h {
		return false
	}
	if h.stop != nil {
		h.stop()
	}
	h.ctx, h.stop = h.mutex.KeepAlive(context.WithoutCancel(ctx))
	return true
}

func unknown(name string) error { return fmt.Errorf("redlock/certmagic: %q is not locked here", name) }
