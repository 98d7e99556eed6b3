package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/redlocktest"
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

func TestTheSecondIsTakenLastAndReleasedFirst(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(20 * time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		var calls []string
		s.on = func(what string) {
			calls = append(calls, what)
			time.Sleep(50 * time.Millisecond) // so that what was sent before has arrived
			require.GreaterOrEqual(t, r.keys(), 3, "the masters have the lock meanwhile")
			require.Zero(t, m.Fence())
			require.Zero(t, m.Until())
			require.Zero(t, m.Remaining())
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			held, stop := m.KeepAlive(t.Context())
			defer stop()
			require.ErrorIs(t, context.Cause(held), ErrLost, "it is not held before both are")
		}
		for i, take := range []func(context.Context) error{m.TryLock, m.Lock} {
			calls = nil
			require.NoError(t, take(t.Context()))
			require.Equal(t, []string{"take"}, calls)
			require.Equal(t, uint64(1001+i), m.Fence())
			require.Positive(t, m.Remaining())
			require.WithinDuration(t, time.Now().Add(ttl), m.Until(), ttl/10)
			require.NoError(t, m.Extend(t.Context()))
			require.Equal(t, uint64(1001+i), m.Fence())
			held, stop := m.KeepAlive(t.Context())
			require.Equal(t, uint64(1001+i), FenceFrom(held))
			time.Sleep(5 * ttl)
			require.NoError(t, held.Err())
			require.NoError(t, m.Unlock(t.Context()))
			require.ErrorIs(t, context.Cause(held), context.Canceled)
			stop()
			require.Equal(t, []string{"take", "release"}, calls)
			nothingLeft(t, r, s)
		}
		require.Equal(t, uint64(2), c.Stats().Second.Count)
		require.Zero(t, c.Stats().SecondFailed)
		require.Zero(t, c.Stats().Lost)
	})
}

func TestNeitherStandsInForTheOther(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))

		s.set(func(s *otherSystem) { s.down = errors.New("other: unavailable") })
		err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrSecond)
		require.ErrorContains(t, err, "other: unavailable")
		require.NotErrorIs(t, err, ErrHeld)
		nothingLeft(t, r, s)

		s.set(func(s *otherSystem) { s.down = fmt.Errorf("other: %w", context.DeadlineExceeded) })
		err = m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrSecond)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "it is not the caller who was out of time")

		s.set(func(s *otherSystem) { s.down = nil })
		l, err := s.TryLock(t.Context(), "k")
		require.NoError(t, err)
		err = m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrHeld)
		require.NotErrorIs(t, err, ErrSecond)
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, uint64(3), c.Stats().SecondFailed)

		r.set(func(m *fakeMaster) { m.down = errors.New("down") }, 0, 1, 2)
		asked := s.asked
		require.ErrorIs(t, m.TryLock(t.Context()), ErrNoQuorum)
		require.Equal(t, asked, s.asked, "it is not asked where the masters do not agree")
		r.set(func(m *fakeMaster) { m.down = nil }, 0, 1, 2)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		nothingLeft(t, r, s)
	})
}

func TestLockGoesOnUntilTheSecondIsBack(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(0)
		s.down = errors.New("other: unavailable")
		m := c.NewMutex("k", ttl, WithSecond(s))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := m.Lock(ctx)
		require.ErrorIs(t, err, ErrSecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, s.asked, 200, "there are pauses")
		require.Greater(t, s.asked, 20)
		nothingLeft(t, r, s)

		time.AfterFunc(10*time.Second, func() { s.set(func(s *otherSystem) { s.down = nil }) })
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		nothingLeft(t, r, s)
		require.Zero(t, c.Stats().Waiting)
	})
}

// Whoever waits is told that an attempt has given the masters' lock back.
func TestAnAttemptThatTheSecondRefusesWakesTheQueue(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(50 * time.Millisecond)
		l, err := s.TryLock(t.Context(), "k")
		require.NoError(t, err)
		tried := make(chan error, 1)
		go func() { tried <- c.NewMutex("k", ttl, WithSecond(s)).TryLock(t.Context()) }()
		time.Sleep(10 * time.Millisecond)
		got := make(chan error, 1)
		go func() { got <- c.NewMutex("k", ttl).Lock(t.Context()) }()
		require.ErrorIs(t, <-tried, ErrHeld)
		require.NoError(t, <-got)
		require.Equal(t, uint64(1), c.Stats().WokenLocal)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// A process whose other system is away does not stand in the way of one that reaches it, and does not
// ask again and again without a pause.
func TestWhoCannotReachTheSecondLeavesTheQueue(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	clients := openedTimes(t, 3, Config{Masters: masters.Addrs()})
	whole, away := newOther(0), newOther(0)
	away.down = errors.New("other: unavailable")
	holder := clients[0].NewMutex("k", time.Minute, WithSecond(whole))
	require.NoError(t, holder.Lock(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- clients[1].NewMutex("k", time.Minute, WithSecond(away)).Lock(ctx) }()
	inLine := func(n string) {
		t.Helper()
		require.Eventually(t, func() bool {
			for i := range 3 {
				if v, err := masters.Do(i, "ZCARD", "{k}:line"); err == nil && fmt.Sprint(v) == n {
					return true
				}
			}
			return false
		}, hanging, time.Millisecond)
	}
	inLine("1")
	second := make(chan error, 1)
	next := clients[2].NewMutex("k", time.Minute, WithSecond(whole))
	go func() { second <- next.Lock(t.Context()) }()
	inLine("2")
	require.NoError(t, holder.Unlock(t.Context()))
	require.NoError(t, conntest.Soon(t, "the lock", second))
	require.NoError(t, next.Unlock(t.Context()))

	asked := func() int {
		away.mu.Lock()
		defer away.mu.Unlock()
		return away.asked
	}
	before := asked()
	require.Eventually(t, func() bool { return asked() >= before+3 }, hanging, time.Millisecond)
	polls := clients[1].Stats().WokenPoll
	require.GreaterOrEqual(t, polls, uint64(2), "it pauses before it asks again")
	cancel()
	err := conntest.Soon(t, "the end", first)
	require.ErrorIs(t, err, ErrSecond)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAHoldWithASecondLockIsNotInstalledOver(t *testing.T) {
	b := &backing{lock: &otherLock{ctx: context.Background()}}
	b.attach()
	h := hold{backing: b}
	defer h.backing.end()
	require.False(t, h.install(&call{token: []byte("t")}, time.Hour, 1), "it would never be released")
}

func TestTheLockIsKeptWhileItWaitsForTheSecond(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		l, err := s.TryLock(t.Context(), "k")
		require.NoError(t, err)
		m := c.NewMutex("k", ttl, WithSecond(s), WithMaxLifetime(ttl))
		got := make(chan error, 1)
		go func() { got <- m.Lock(t.Context()) }()
		time.Sleep(10 * time.Millisecond)
		token := m.Token()
		for range 20 {
			time.Sleep(ttl / 4)
			require.Equal(t, 5, r.holders("k", token))
			require.ErrorIs(t, c.NewMutex("k", ttl, WithSecond(s)).TryLock(t.Context()), ErrHeld)
			require.Zero(t, m.Remaining())
		}
		require.Equal(t, 2, s.asked, "the others have not asked the second")
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, <-got)
		require.Zero(t, c.Stats().Kept)
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		time.Sleep(ttl * 8 / 10)
		require.NoError(t, held.Err(), "its lifetime begins when it is taken")
		time.Sleep(ttl * 3 / 10)
		require.ErrorIs(t, context.Cause(held), ErrMaxLifetime)
		require.NoError(t, m.Unlock(t.Context()))
		nothingLeft(t, r, s)
		require.Zero(t, c.Stats().Lost)
	})
}

func TestALossOfTheSecondIsALoss(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		for round := range 4 {
			require.NoError(t, m.Lock(t.Context()))
			held, stop := m.KeepAlive(t.Context())
			derived, cancel := context.WithCancel(held)
			time.Sleep(2 * ttl)
			require.NoError(t, held.Err())
			released := s.released
			s.expire("k")
			if round%2 == 0 { // whoever looks sees it at once
				require.Error(t, held.Err())
				require.Zero(t, m.Remaining())
				require.False(t, m.Until().After(time.Now()))
			}
			synctest.Wait()
			require.Error(t, derived.Err())
			why := context.Cause(held)
			require.ErrorIs(t, why, ErrLost)
			require.ErrorIs(t, why, ErrSecond)
			require.ErrorIs(t, why, errSession)
			require.NotZero(t, m.Fence(), "what is written under it can be refused")
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.Equal(t, released+1, s.released)
			nothingLeft(t, r, s)
			if round < 2 {
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
			}
			if round == 3 { // whoever takes it again at once finds nothing of it in its way
				require.NoError(t, m.TryLock(t.Context()))
				s.expire("k")
				require.NoError(t, m.TryLock(t.Context()))
				require.NoError(t, m.Unlock(t.Context()))
				nothingLeft(t, r, s)
				released += 2
			}
			require.Equal(t, released+1, s.released)
			cancel()
			stop()
		}
		require.Equal(t, uint64(4), c.Stats().Lost)
	})
}

// A clocked context ends when somebody asks it, and its time has come.
type clocked struct {
	context.Context
	until time.Time
	lose  context.CancelCauseFunc
}

func (c clocked) Err() error {
	if !time.Now().Before(c.until) {
		c.lose(errSession)
	}
	return c.Context.Err()
}

type clockedSystem struct{ *otherSystem }

func (s clockedSystem) TryLock(ctx context.Context, key string) (SecondLock, error) {
	l, err := s.otherSystem.TryLock(ctx, key)
	if err == nil {
		own := l.(*otherLock)
		own.ctx = clocked{own.ctx, time.Now().Add(ttl / 2), own.lose}
	}
	return l, err
}

// After a suspend, no timer has fired yet.
func TestTheSecondsClockIsLookedAt(t *testing.T) {
	for name, look := range map[string]func(t *testing.T, m *Mutex, held context.Context){
		"Remaining": func(t *testing.T, m *Mutex, _ context.Context) { require.Zero(t, m.Remaining()) },
		"Until":     func(t *testing.T, m *Mutex, _ context.Context) { require.False(t, m.Until().After(time.Now())) },
		"Err":       func(t *testing.T, m *Mutex, held context.Context) { require.Error(t, held.Err()) },
		"Done":      func(t *testing.T, m *Mutex, held context.Context) { <-held.Done() },
		"Extend": func(t *testing.T, m *Mutex, _ context.Context) {
			require.ErrorIs(t, m.Extend(context.Background()), ErrNotHeld)
		},
		"TryLock": func(t *testing.T, m *Mutex, _ context.Context) { require.NoError(t, m.TryLock(context.Background())) },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				s := newOther(0)
				m := c.NewMutex("k", ttl, WithSecond(clockedSystem{s}))
				require.NoError(t, m.TryLock(t.Context()))
				l, _ := s.holder("k")
				held, stop := m.KeepAlive(t.Context())
				defer stop()
				time.Sleep(ttl / 2)
				s.remove(l) // that system has given it up
				look(t, m, held)
				m.Unlock(t.Context())
				nothingLeft(t, r, s)
			})
		})
	}
}

func TestALossOfTheMastersLeavesTheSecondUntilTheEnd(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		lose := func() time.Time {
			t.Helper()
			require.NoError(t, m.Lock(t.Context()))
			time.Sleep(ttl / 2)
			require.NoError(t, m.Extend(t.Context()))
			until := m.Until()
			r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2, 3, 4)
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.Zero(t, m.Remaining())
			l, _ := s.holder("k")
			require.NotNil(t, l, "whoever has read Until relies on it")
			return until
		}
		until := lose()
		time.Sleep(time.Until(until) - time.Millisecond)
		synctest.Wait()
		l, _ := s.holder("k")
		require.NotNil(t, l)
		time.Sleep(2 * time.Millisecond)
		nothingLeft(t, r, s)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)

		lose()
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		nothingLeft(t, r, s)

		until = lose()
		require.NoError(t, m.Lock(t.Context()))
		require.False(t, time.Now().Before(until))
		require.NoError(t, m.Unlock(t.Context()))
		nothingLeft(t, r, s)
	})
}

func TestAForgottenLockGivesTheSecondUp(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		require.NoError(t, m.Lock(t.Context()))
		for range 5 {
			time.Sleep(ttl / 2)
			require.NoError(t, m.Extend(t.Context()))
		}
		until := m.Until()
		time.Sleep(time.Until(until) - time.Millisecond)
		synctest.Wait()
		l, _ := s.holder("k")
		require.NotNil(t, l)
		time.Sleep(ttl / 10)
		nothingLeft(t, r, s)
		require.False(t, m.Until().IsZero(), "it was locked")
		require.Zero(t, m.Remaining())
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		nothingLeft(t, r, s)
	})
}

func TestUnlockSaysWhatTheSecondSays(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		unlock := func(ctx context.Context) error {
			t.Helper()
			err := m.Unlock(ctx)
			time.Sleep(10 * time.Millisecond)
			require.Zero(t, r.keys(), "the masters' lock is released whatever the other system says")
			s.set(func(s *otherSystem) { s.refusal, s.mute, s.queues = nil, false, map[string][]*otherLock{} })
			return err
		}
		require.NoError(t, m.Lock(t.Context()))
		s.set(func(s *otherSystem) { s.refusal = errors.New("other: unavailable") })
		err := unlock(t.Context())
		require.ErrorIs(t, err, ErrSecond)
		require.ErrorContains(t, err, "unavailable")

		require.NoError(t, m.Lock(t.Context()))
		l, _ := s.holder("k")
		s.remove(l)
		require.ErrorIs(t, unlock(t.Context()), ErrNotHeld, "another may have had it")

		require.NoError(t, m.Lock(t.Context()))
		s.set(func(s *otherSystem) { s.mute = true })
		began := time.Now()
		require.ErrorIs(t, unlock(t.Context()), ErrSecond)
		require.WithinDuration(t, began.Add(ttl), time.Now(), ttl/10, "it waits until the validity has ended")

		require.NoError(t, m.Lock(t.Context()))
		s.set(func(s *otherSystem) { s.mute = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began = time.Now()
		err = unlock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(began), ttl/10)

		require.ErrorIs(t, c.Do(t.Context(), "k", ttl, func(context.Context) error {
			l, _ := s.holder("k")
			s.remove(l) // and nobody is told
			return nil
		}, WithSecond(s)), ErrLost)
	})
}

// An end at any moment, of the context or of the client, leaves nothing.
func TestAnEndAtAnyMomentLeavesNothingOfEither(t *testing.T) {
	for _, end := range []string{"context", "unlock", "masters"} {
		t.Run(end, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				for at := time.Duration(0); at < 30*time.Millisecond; at += time.Millisecond / 4 {
					s := newOther(3 * time.Millisecond)
					l, err := s.TryLock(t.Context(), "k")
					require.NoError(t, err)
					time.AfterFunc(12*time.Millisecond, func() { l.Unlock(t.Context()) })
					m := c.NewMutex("k", ttl, WithSecond(s))
					ctx, cancel := context.WithTimeout(t.Context(), 10*ttl)
					time.AfterFunc(at, func() {
						switch end {
						case "context":
							cancel()
						case "unlock":
							m.Unlock(t.Context())
						case "masters":
							r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2, 3, 4)
						}
					})
					err = m.Lock(ctx)
					if err != nil {
						require.Equal(t, "context", end)
						require.ErrorIs(t, err, context.Canceled)
						require.Zero(t, m.Remaining())
					} else {
						m.Unlock(t.Context())
					}
					cancel()
					time.Sleep(40 * time.Millisecond)
					nothingLeft(t, r, s)
				}
				require.Zero(t, c.Stats().Waiting)
				require.Zero(t, c.Stats().Kept)
			})
		})
	}
}

func TestASecondThatComesTooLateIsReleased(t *testing.T) {
	for name, meanwhile := range map[string]func(m *Mutex, r *fakeRounds, s *otherSystem){
		"the masters lose the lock": func(m *Mutex, r *fakeRounds, s *otherSystem) {
			r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2, 3, 4)
		},
		"the masters are away": func(m *Mutex, r *fakeRounds, s *otherSystem) {
			r.set(func(m *fakeMaster) { m.frozen = true }, 0, 1, 2)
			time.AfterFunc(2*ttl, func() { r.set(func(m *fakeMaster) { m.frozen = false }, 0, 1, 2) })
		},
		"another unlocks":  func(m *Mutex, r *fakeRounds, s *otherSystem) { m.Unlock(context.Background()) },
		"its session ends": func(m *Mutex, r *fakeRounds, s *otherSystem) { s.expire("k") },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				s := newOther(time.Millisecond)
				s.late = 2 * ttl
				m := c.NewMutex("k", ttl, WithSecond(s))
				time.AfterFunc(20*time.Millisecond, func() { meanwhile(m, r, s) })
				require.ErrorIs(t, m.TryLock(t.Context()), ErrExpired)
				require.Zero(t, m.Remaining())
				require.Equal(t, 1, s.released)
				time.Sleep(2 * ttl)
				nothingLeft(t, r, s)
				require.Zero(t, c.Stats().Lost, "nobody had it")
			})
		})
	}
	t.Run("another has taken it with the same Mutex", func(t *testing.T) {
		simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			s := newOther(time.Millisecond)
			s.late = 100 * time.Millisecond
			m := c.NewMutex("k", ttl, WithSecond(s))
			first := make(chan error, 1)
			go func() { first <- m.TryLock(t.Context()) }()
			time.Sleep(50 * time.Millisecond)
			require.ErrorContains(t, m.TryLock(t.Context()), "held by this Mutex")
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, m.Lock(t.Context()))
			require.ErrorIs(t, <-first, ErrExpired)
			require.Equal(t, uint64(1002), m.Fence())
			require.Equal(t, 1, s.released)
			require.NoError(t, m.Unlock(t.Context()))
			nothingLeft(t, r, s)
		})
	})
}

func TestCloseEndsAWaitForTheSecond(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		l, err := s.TryLock(t.Context(), "k")
		require.NoError(t, err)
		m := c.NewMutex("k", ttl, WithSecond(s))
		got := make(chan error, 1)
		go func() { got <- m.Lock(t.Context()) }()
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-got, ErrClosed)
		require.NoError(t, l.Unlock(t.Context()))
		l2, waiting := s.holder("k")
		require.Nil(t, l2)
		require.Zero(t, waiting)
	})
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Second)
		closed := make(chan struct{})
		time.AfterFunc(time.Second/2, func() {
			defer close(closed)
			c.Close()
		})
		require.ErrorIs(t, c.NewMutex("k", ttl, WithSecond(s)).TryLock(t.Context()), ErrClosed)
		l, _ := s.holder("k")
		require.Nil(t, l)
		<-closed // a second Close waits for a sync.Mutex, which no fake clock knows
	})
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, c.Close())
		require.ErrorIs(t, m.Unlock(t.Context()), ErrClosed)
		l, _ := s.holder("k")
		require.Nil(t, l, "it is another system's client that is closed")
	})
}

func TestAPanicOfTheSecondLeavesNothing(t *testing.T) {
	for _, wait := range []bool{false, true} {
		f := new(fuse)
		f.calls.Store(-1)
		simulated(t, 5, Config{Observer: brittleObserver(f)}, func(t *testing.T, c *Client, r *fakeRounds) {
			s := newOther(time.Millisecond)
			s.fuse = f
			m := c.NewMutex("k", ttl, WithSecond(s))
			take := m.TryLock
			if wait {
				take = m.Lock
			}
			panics := everyPanic(t, f, func() {
				ctx := brittle{t.Context(), f}
				if take(ctx) == nil {
					m.Unlock(ctx)
				}
			}, func(panicked bool, at string) {
				if m.Remaining() > 0 { // the panic was that of Unlock's
					m.Unlock(t.Context())
				}
				time.Sleep(2 * ttl)
				nothingLeft(t, r, s)
			})
			require.Greater(t, panics, 5)
		})
	}
}

func TestWhatWithSecondDoesNotGoTogetherWith(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(0)
		for name, opt := range map[string]Option{
			"fence": WithFence(), "keys": WithKeys("l"), "permits": WithPermits(2), "shared": WithShared(),
			"token": WithToken("t"), "none": WithSecond(nil),
		} {
			require.Error(t, c.NewMutex("k", ttl, WithSecond(s), opt).TryLock(t.Context()), name)
		}
		require.Zero(t, s.asked)
		m := c.NewMutex("k", ttl, WithSecond(s), WithMinHold(2*ttl), WithOwner("me"))
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		l, _ := s.holder("k")
		require.Nil(t, l)
		require.Equal(t, 3, r.keys(), "the least hold is the masters'")
	})
}

func TestALeaderHasTheFenceOfTheSecond(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		var terms []uint64
		err := c.Lead(ctx, "k", ttl, func(leading context.Context) error {
			terms = append(terms, FenceFrom(leading))
			if len(terms) == 3 {
				cancel()
			} else {
				s.expire("k")
			}
			<-leading.Done()
			return leading.Err()
		}, WithSecond(s))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []uint64{1001, 1002, 1003}, terms)
		nothingLeft(t, r, s)
	})
}

// While the second lock is whole, nobody else holds the pair, whatever becomes of the masters: they
// forget their keys at any moment. And while the masters are whole, sessions of the second may end at any
// moment.
func TestTheSecondIsTheAuthority(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			all, r := candidates(t, 4, Config{})
			s := newOther(time.Duration(rnd.IntN(5)) * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var told chronicle
			var wg sync.WaitGroup
			faults := rand.New(rand.NewPCG(seed, 1))
			wg.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(faults.Int64N(int64(ttl))))
					if seed%2 == 0 {
						r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2)
					} else {
						s.expire("k")
					}
				}
			})
			for i, c := range all {
				rnd := rand.New(rand.NewPCG(seed, uint64(i)+2))
				wg.Go(func() {
					m := c.NewMutex("k", ttl, WithSecond(s))
					for ctx.Err() == nil {
						take := m.Lock
						if rnd.IntN(4) == 0 {
							take = m.TryLock
						}
						if take(ctx) != nil {
							time.Sleep(time.Millisecond)
							continue
						}
						now := reign{who: fmt.Sprint(i), term: m.Fence(), began: r.now()}
						switch rnd.IntN(3) {
						case 0: // it goes by the validity, and looks no more
							time.Sleep(m.Remaining())
							if seed%2 == 1 { // ... unless its session may end: that it must look at
								continue
							}
						case 1:
							held, stop := m.KeepAlive(ctx)
							select {
							case <-held.Done():
							case <-time.After(time.Duration(rnd.Int64N(int64(2 * ttl)))):
							}
							now.ended = r.now()
							stop()
						default:
							time.Sleep(time.Duration(rnd.Int64N(int64(m.Remaining()))))
							if m.Remaining() == 0 && seed%2 == 1 {
								continue
							}
						}
						if now.ended == 0 {
							now.ended = r.now()
						}
						told.write(now)
						m.Unlock(context.WithoutCancel(ctx))
					}
				})
			}
			wg.Wait()
			require.Greater(t, len(told.oneAtATime(t)), 5)
		})
	}
}
