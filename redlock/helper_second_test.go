package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// otherSystem is a Second in memory: a fair lock for each key, with numbers.
type otherSystem struct {
	delay time.Duration // of each answer
	fuse  *fuse         // that TryLock and Lock pass, if set
	late  time.Duration // for which it keeps what it has taken, whatever becomes of the context

	mu       sync.Mutex
	down     error // what it answers
	mute     bool  // it answers nothing
	refusal  error // what it answers to Unlock
	asked    int   // calls of TryLock and Lock
	released int   // calls of Unlock
	last     uint64
	queues   map[string][]*otherLock // the first has the lock
	on       func(what string)       // is told of each call, outside mu
}

type otherLock struct {
	system *otherSystem
	key    string
	fence  uint64
	ctx    context.Context
	lose   context.CancelCauseFunc
	turn   chan struct{}
	over   bool // Unlock was called
}

func newOther(delay time.Duration) *otherSystem {
	return &otherSystem{delay: delay, queues: map[string][]*otherLock{}, on: func(string) {}}
}

func (s *otherSystem) set(change func(s *otherSystem)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *otherSystem) TryLock(ctx context.Context, key string) (SecondLock, error) {
	return s.take(ctx, key, false)
}

func (s *otherSystem) Lock(ctx context.Context, key string) (SecondLock, error) {
	return s.take(ctx, key, true)
}

// answer waits for the answer of a call.
func (s *otherSystem) answer(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.delay):
	}
	s.mu.Lock()
	down, mute := s.down, s.mute
	s.mu.Unlock()
	if mute {
		<-ctx.Done()
		return ctx.Err()
	}
	return down
}

func (s *otherSystem) take(ctx context.Context, key string, wait bool) (SecondLock, error) {
	s.on("take")
	s.set(func(s *otherSystem) { s.asked++ })
	if s.fuse != nil {
		s.fuse.use()
	}
	if err := s.answer(ctx); err != nil {
		return nil, err
	}
	l := &otherLock{system: s, key: key, turn: make(chan struct{})}
	l.ctx, l.lose = context.WithCancelCause(context.Background())
	s.mu.Lock()
	if !wait && len(s.queues[key]) > 0 {
		s.mu.Unlock()
		return nil, fmt.Errorf("other: %w", ErrHeld)
	}
	s.queues[key] = append(s.queues[key], l)
	s.serve(key)
	s.mu.Unlock()
	select {
	case <-l.turn:
	case <-ctx.Done():
		s.remove(l)
		return nil, ctx.Err()
	}
	time.Sleep(s.late)
	if s.fuse != nil {
		defer func() {
			if e := recover(); e != nil {
				s.remove(l)
				panic(e)
			}
		}()
		s.fuse.use()
	}
	return l, nil
}

// serve gives the first of a queue its number. mu is held.
func (s *otherSystem) serve(key string) {
	if q := s.queues[key]; len(q) > 0 && q[0].fence == 0 {
		s.last++
		q[0].fence = s.last + 1000
		close(q[0].turn)
	}
}

// remove takes a lock out, and reports whether it was there.
func (s *otherSystem) remove(l *otherLock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queues[l.key], l)
	if i < 0 {
		return false
	}
	s.queues[l.key] = slices.Delete(s.queues[l.key], i, i+1)
	s.serve(l.key)
	return true
}

// holder returns who has the lock, and how many wait.
func (s *otherSystem) holder(key string) (l *otherLock, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[key]; len(q) > 0 {
		return q[0], len(q) - 1
	}
	return nil, 0
}

// expire ends the session of who has the lock: first its context, then the lock.
func (s *otherSystem) expire(key string) {
	if l, _ := s.holder(key); l != nil {
		l.lose(errSession)
		s.remove(l)
	}
}

var errSession = errors.New("other: the session has expired")

func (l *otherLock) Context() context.Context { return l.ctx }
func (l *otherLock) Fence() uint64            { return l.fence }

func (l *otherLock) Unlock(ctx context.Context) error {
	s := l.system
	s.on("release")
	s.mu.Lock()
	if l.over {
		panic("Unlock was called twice")
	}
	l.over = true
	s.released++
	refusal, mute := s.refusal, s.mute
	s.mu.Unlock()
	l.lose(errors.New("other: released"))
	if mute {
		<-ctx.Done()
		return ctx.Err()
	}
	if refusal != nil {
		return refusal
	}
	if !s.remove(l) {
		return fmt.Errorf("other: %w", ErrNotHeld)
	}
	return nil
}

// nothingLeft requires that neither the masters nor the other system have anything.
func nothingLeft(t *testing.T, r *fakeRounds, s *otherSystem) {
	t.Helper()
	time.Sleep(10 * time.Millisecond) // on the fake clock: what is on its way arrives
	synctest.Wait()
	require.Zero(t, r.keys())
	l, waiting := s.holder("k")
	require.Nil(t, l)
	require.Zero(t, waiting)
}
