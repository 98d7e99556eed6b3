package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/round"
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
		time.Sleep(w.end) // it is slow to end
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
	observer := []Observer{func(ctx context.Context, r *Event) {
		if r.Kind == EventRound {
			if r.Op == opLock && r.Err == nil && first {
				first = false
				m.Unlock(context.Background()) // another goroutine
				go func() { third <- m.TryLock(context.Background()) }()
				time.Sleep(5 * time.Millisecond)
			}
		}
	}}
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(20 * time.Millisecond)
		third = make(chan error, 1)
		m = c.NewMutex("k", ttl, WithSecond(s))
		began := make(chan error, 1)
		go func() { began <- m.TryLock(t.Context()) }()
		require.NoError(t, <-third)
		until := Until(m)
		require.Error(t, <-began)
		require.Equal(t, until, Until(m), "nobody has unlocked it")
		l, _ := s.holder("k")
		require.NotNil(t, l, "who has read Remaining relies on it")
	})
}

// Close comes when the masters' lock is taken, and nobody keeps it alive yet: it waits, and finds it.
func TestCloseReleasesALockWhoseSecondIsNotAskedYet(t *testing.T) {
	for _, wait := range []bool{false, true} {
		var c *Client
		closing := func() {}
		observer := onEvent(EventRound, func(r *Event) {
			if r.Op == opLock && r.Err == nil {
				closing = sync.OnceFunc(func() {
					closed := make(chan error, 1)
					go func() { closed <- c.Close() }()
					for range 100000 { // it waits for a mutex, which synctest does not know of
						if runtime.Gosched(); len(closed) > 0 {
							break
						}
					}
				})
			}
		})
		simulated(t, 3, Config{Observers: observer}, func(t *testing.T, client *Client, r *fakeRounds) {
			c = client
			s := newOther(time.Millisecond)
			m := c.NewMutex("k", term30, WithSecond(s))
			take := m.TryLock
			if wait {
				take = m.Lock
			}
			require.ErrorIs(t, take(askedContext{t.Context(), func() { closing() }}), ErrClosed)
			nothingLeft(t, r, s)
		})
	}
}

// The context of a Lock has ended while it waits for the second lock, and the other system is slow to say so. Close comes.
func TestCloseReleasesALockWhoseSecondIsNotWaitedForAnyMore(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		other, err := s.TryLock(t.Context(), "k")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.NewMutex("k", term30, WithSecond(wrapped{Second: s, end: time.Minute})).Lock(ctx) }()
		time.Sleep(time.Second)
		require.Equal(t, 3, r.keys())
		cancel()
		time.Sleep(20 * time.Second) // a renewal was due
		require.NoError(t, c.Close())
		require.Zero(t, r.keys())
		require.Error(t, conntest.Soon(t, "it returns", ended))
		require.NoError(t, other.Unlock(t.Context()))
		nothingLeft(t, r, s)
	})
}

// An askedContext says when it is asked.
type askedContext struct {
	context.Context
	asked func()
}

func (c askedContext) Done() <-chan struct{} { c.asked(); return c.Context.Done() }

func TestAPanicOfAContextLeavesNoPair(t *testing.T) {
	for _, wait := range []bool{false, true} {
		f := new(fuse)
		f.calls.Store(-1)
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
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
	masters, c := started(t, 3)
	s := newOther(time.Millisecond)
	l, err := s.TryLock(t.Context(), "k")
	require.NoError(t, err)
	defer l.Unlock(context.Background())
	m := c.NewMutex("k", time.Minute, WithSecond(wrapped{Second: s, end: 200 * time.Millisecond}))
	got := make(chan error, 1)
	go func() { got <- m.Lock(t.Context()) }()
	require.Eventually(t, func() bool { _, waiting := s.holder("k"); return waiting == 1 }, hanging, 5*time.Millisecond)
	for i := range 3 {
		SoonSays(t, masters, i, int64(1), "EXISTS", "k")
	}
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-got, ErrClosed)
	for i := range 3 {
		require.Equal(t, int64(0), Says(t, masters, i, "EXISTS", "k"))
	}
}

// latecomer calls late, once, before a round is sent.
type latecomer struct {
	round.Mux
	late func()
}

func (l *latecomer) Do(ctx context.Context, op *mux.Op) error {
	if late := l.late; late != nil {
		l.late = nil
		late()
	}
	return l.Mux.Do(ctx, op)
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
					until = Until(m)
					l, _ = s.holder("k")
					r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2)
					require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
				}
				if began {
					c.round.Mux = &latecomer{Mux: r, late: lose}
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
			if mu := renewerMu(c); mu.TryLock() {
				mu.Unlock()
				return false
			}
			return true
		}, &saw})
		time.Sleep(time.Millisecond)
		require.False(t, saw.Load())
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
	for began := time.Now(); time.Since(began) < bearably(3*time.Second) && seen.Load() == 0; {
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
		c.round.Mux = &hookedRounds{Mux: r, sending: func(*mux.Op) {
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
	for seed := range uint64(bearable(8)) {
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
			until := Until(m)
			r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2, 3, 4)
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.Zero(t, m.Remaining())
			l, _ := s.holder("k")
			require.NotNil(t, l, "whoever has read Remaining relies on it")
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
		until := Until(m)
		time.Sleep(time.Until(until) - time.Millisecond)
		synctest.Wait()
		l, _ := s.holder("k")
		require.NotNil(t, l)
		time.Sleep(ttl / 10)
		nothingLeft(t, r, s)
		require.Zero(t, m.Remaining())
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		nothingLeft(t, r, s)
	})
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
		"the masters are down, and each renewal fails at once": func(m *Mutex, r *fakeRounds, s *otherSystem) {
			r.set(fail, 0, 1, 2)
			time.AfterFunc(2*ttl, func() { r.set(func(m *fakeMaster) { m.down = nil }, 0, 1, 2) })
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
