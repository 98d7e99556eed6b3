package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// wrapped is a Second whose locks are wrapped.
type wrapped struct {
	Second
	wrap func(SecondLock) SecondLock
	end  time.Duration // how long Lock takes to return once its context has ended
}

func (w wrapped) TryLock(ctx context.Context, key string) (SecondLock, error) {
	l, err := w.Second.TryLock(ctx, key)
	if err == nil && w.wrap != nil {
		l = w.wrap(l)
	}
	return l, err
}

func (w wrapped) Lock(ctx context.Context, key string) (SecondLock, error) {
	l, err := w.Second.Lock(ctx, key)
	if err != nil {
		time.Sleep(w.end)
	}
	if err == nil && w.wrap != nil {
		l = w.wrap(l)
	}
	return l, err
}

type contextPanics struct{ SecondLock }

func (contextPanics) Context() context.Context { panic("the user's") }

type nilContext struct{ SecondLock }

func (nilContext) Context() context.Context { return nil }

func TestASecondLockWhoseContextPanicsIsReleased(t *testing.T) {
	for name, wrap := range map[string]func(l SecondLock) SecondLock{
		"panics": func(l SecondLock) SecondLock { return contextPanics{l} },
		"nil":    func(l SecondLock) SecondLock { return nilContext{l} },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				s := newOther(time.Millisecond)
				m := c.NewMutex("k", ttl, WithSecond(wrapped{Second: s, wrap: wrap}))
				require.Panics(t, func() { m.TryLock(t.Context()) })
				require.Equal(t, 1, s.released)
				nothingLeft(t, r, s)
			})
		})
	}
}

func TestATryLockThatFailsGivesBackNoOthersLock(t *testing.T) {
	var m *Mutex
	first := true
	var third chan error
	observer := &Observer{Round: func(ctx context.Context, r Round) {
		if r.Op == OpLock && r.Err == nil && first {
			first = false
			m.Unlock(context.Background()) // another goroutine
			go func() { third <- m.TryLock(context.Background()) }()
			time.Sleep(5 * time.Millisecond)
		}
	}}
	simulated(t, 3, Config{Observer: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(20 * time.Millisecond)
		third = make(chan error, 1)
		m = c.NewMutex("k", ttl, WithSecond(s))
		began := make(chan error, 1)
		go func() { began <- m.TryLock(t.Context()) }()
		require.NoError(t, <-third)
		until := m.Until()
		require.Error(t, <-began)
		require.Equal(t, until, m.Until(), "nobody has unlocked it")
		l, _ := s.holder("k")
		require.NotNil(t, l, "who has read Until relies on it")
	})
}

func TestAPanicOfAContextLeavesNoPair(t *testing.T) {
	for _, wait := range []bool{false, true} {
		f := new(fuse)
		f.calls.Store(-1)
		simulated(t, 3, Config{Observer: brittleObserver(f)}, func(t *testing.T, c *Client, r *fakeRounds) {
			s := newOther(time.Millisecond)
			m := c.NewMutex("k", ttl, WithSecond(s))
			take := m.TryLock
			if wait {
				take = m.Lock
			}
			everyPanic(t, f, func() { take(brittle{t.Context(), f}) }, func(panicked bool, at string) {
				time.Sleep(5 * time.Millisecond)
				if panicked {
					require.Empty(t, m.Token(), at)
					nothingLeft(t, r, s)
				}
				m.Unlock(t.Context())
			})
		})
	}
}

func TestDoWaitsForASecondNoLongerThanItMay(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		s.mute = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err := c.Do(ctx, "k", ttl, func(context.Context) error { return nil }, WithSecond(s), WithWait(time.Second))
		require.ErrorIs(t, err, ErrHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, s.asked)
		require.Less(t, time.Since(began), time.Minute)
	})
}

func TestCloseLeavesNoKeyOfWhoWaitsForTheSecond(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs()})
	s := newOther(time.Millisecond)
	l, err := s.TryLock(t.Context(), "k")
	require.NoError(t, err)
	defer l.Unlock(context.Background())
	m := c.NewMutex("k", time.Minute, WithSecond(wrapped{Second: s, end: 200 * time.Millisecond}))
	got := make(chan error, 1)
	go func() { got <- m.Lock(t.Context()) }()
	time.Sleep(100 * time.Millisecond)
	for i := range 3 {
		n, err := masters.Do(i, "EXISTS", "k")
		require.NoError(t, err)
		require.Equal(t, int64(1), n)
	}
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-got, ErrClosed)
	for i := range 3 {
		n, err := masters.Do(i, "EXISTS", "k")
		require.NoError(t, err)
		require.Equal(t, int64(0), n)
	}
}

// latecomer calls late, once, before a round is sent.
type latecomer struct {
	rounds
	late func()
}

func (l *latecomer) Do(ctx context.Context, op *mux.Op) error {
	if late := l.late; late != nil {
		l.late = nil
		late()
	}
	return l.rounds.Do(ctx, op)
}

// Of two goroutines with one Mutex, one goes by what Until has returned. The masters lose the key. The other gets no lock
// before that time, or Unlock, whenever it began.
func TestAnotherGoroutineDoesNotEndWhatUntilHasReturned(t *testing.T) {
	for name, began := range map[string]bool{"after the loss": false, "before the lock": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				s := newOther(time.Millisecond)
				m := c.NewMutex("k", ttl, WithSecond(s))
				var until time.Time
				var l *otherLock
				lose := func() {
					require.NoError(t, m.TryLock(t.Context()))
					until = m.Until()
					l, _ = s.holder("k")
					r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2)
					require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
				}
				if began {
					c.rounds = &latecomer{rounds: r, late: lose}
				} else {
					lose()
				}
				require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld)
				now, _ := s.holder("k")
				require.Same(t, l, now)
				require.NoError(t, l.Context().Err())

				ctx, cancel := context.WithDeadline(t.Context(), until.Add(-ttl/4))
				defer cancel()
				require.ErrorIs(t, m.Lock(ctx), ErrHeld)
				require.NoError(t, l.Context().Err())
				require.NoError(t, m.Lock(t.Context()))
				require.False(t, time.Now().Before(until))
				require.NoError(t, m.Unlock(t.Context()))

				lose()
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
				require.NoError(t, m.TryLock(t.Context()))
				require.True(t, time.Now().Before(until))
				require.NoError(t, m.Unlock(t.Context()))

				lose()
				s.expire("k") // so nobody is alone any more
				require.NoError(t, m.TryLock(t.Context()))
				require.NoError(t, m.Unlock(t.Context()))
				nothingLeft(t, r, s)
			})
		})
	}
}

type curious struct {
	locked func() bool
	saw    *atomic.Bool
}

func (e curious) Error() string {
	if e.locked() {
		e.saw.Store(true)
	}
	return "curious"
}

func (e curious) Is(error) bool { _ = e.Error(); return false }

func TestTheSecondsErrorIsAskedUnderNoLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		require.NoError(t, m.Lock(t.Context()))
		_, stop := m.KeepAlive(t.Context())
		defer stop()
		l, _ := s.holder("k")
		var saw atomic.Bool
		l.lose(curious{func() bool {
			if c.renewer.mu.TryLock() {
				c.renewer.mu.Unlock()
				return false
			}
			return true
		}, &saw})
		time.Sleep(time.Millisecond)
		require.False(t, saw.Load())
	})
}

func TestALockThatIsCutSaysWhatTheSecondSaid(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(700 * time.Millisecond)
		s.down = errors.New("other: unavailable")
		m := c.NewMutex("k", ttl, WithSecond(s))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := m.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, ErrSecond)
	})
}

func TestALockThatAwaitsItsSecondHasNothingRemaining(t *testing.T) {
	t.Parallel()
	c, _ := newFake(t, 1, Config{})
	s := newOther(0)
	s.down = errors.New("other: unavailable")
	m := c.NewMutex("k", time.Minute, WithSecond(s))
	var over atomic.Bool
	var wg sync.WaitGroup
	var seen atomic.Int64
	for range 2 {
		wg.Go(func() {
			for !over.Load() {
				if m.Remaining() > 0 {
					seen.Add(1)
				}
			}
		})
	}
	for began := time.Now(); time.Since(began) < 3*time.Second && seen.Load() == 0; {
		m.TryLock(t.Context())
	}
	over.Store(true)
	wg.Wait()
	require.Zero(t, seen.Load(), "the second lock was never taken")
}

func TestContextsEndBeforeTheMastersLockIsGivenBack(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		require.NoError(t, m.Lock(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		derived, cancel := context.WithCancel(held)
		defer cancel()
		var asked atomic.Bool
		c.renewer.core.rounds = &hookedRounds{rounds: r, sending: func(*mux.Op) {
			asked.Store(true)
			if derived.Err() == nil {
				t.Error("another can have it from here on")
			}
		}}
		s.expire("k")
		time.Sleep(time.Millisecond)
		require.True(t, asked.Load())
	})
}

// Several goroutines on one Mutex do whatever they like, while all fails: each second lock is released once
// (or else otherLock panics), and nothing is left.
func TestSeveralOnOneMutex(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			all, r := candidates(t, 2, Config{})
			rnd := rand.New(rand.NewPCG(seed, 7))
			s := newOther(time.Duration(rnd.IntN(4)) * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			wg.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rnd.Int64N(int64(ttl) / 2)))
					switch rnd.IntN(3) {
					case 0:
						r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2)
					case 1:
						s.expire("k")
					}
				}
			})
			for i, c := range all {
				m := c.NewMutex("k", ttl, WithSecond(s))
				for j := range 4 {
					rnd := rand.New(rand.NewPCG(seed, uint64(i*10+j)))
					wg.Go(func() {
						for ctx.Err() == nil {
							short, end := context.WithTimeout(ctx, time.Duration(rnd.Int64N(int64(ttl))))
							switch rnd.IntN(6) {
							case 0:
								m.TryLock(short)
							case 1:
								m.Lock(short)
							case 2:
								m.Unlock(short)
							case 3:
								m.Extend(short)
							case 4:
								held, stop := m.KeepAlive(short)
								<-held.Done()
								stop()
							default:
								time.Sleep(time.Duration(rnd.Int64N(int64(ttl) / 4)))
							}
							end()
						}
					})
				}
				defer func() {
					m.Unlock(context.Background())
					require.Zero(t, c.Stats().Kept)
					require.Zero(t, c.Stats().Waiting)
				}()
			}
			wg.Wait()
			time.Sleep(3 * ttl)
			nothingLeft(t, r, s)
		})
	}
}
