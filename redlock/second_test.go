package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

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
			require.InDelta(t, ttl, m.Remaining(), float64(ttl/10))
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
		require.Equal(t, uint64(2), c.Stats().more.SecondTaken)
		require.Zero(t, c.Stats().more.SecondFailed)
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
		r.gone(t, 10*time.Millisecond)
		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, uint64(3), c.Stats().more.SecondFailed)

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
	for delay, few := range map[time.Duration]int{0: 20, 700 * time.Millisecond: 5} { // the context may cut an attempt
		simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			s := newOther(delay)
			s.down = errors.New("other: unavailable")
			m := c.NewMutex("k", ttl, WithSecond(s))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := m.Lock(ctx)
			require.ErrorIs(t, err, ErrSecond)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Less(t, s.asked, 200, "there are pauses")
			require.Greater(t, s.asked, few)
			nothingLeft(t, r, s)

			time.AfterFunc(10*time.Second, func() { s.set(func(s *otherSystem) { s.down = nil }) })
			require.NoError(t, m.Lock(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))
			nothingLeft(t, r, s)
			require.Zero(t, c.Stats().Waiting)
		})
	}
}

// A waiter is notified that an attempt has given the masters' lock back.
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
		require.Equal(t, uint64(1), c.Stats().more.WokenLocal)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// A process whose other system is away is not in the way of one that reaches it, and does not
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
		}, hanging, 5*time.Millisecond)
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
	require.Eventually(t, func() bool { return asked() >= before+3 }, hanging, 5*time.Millisecond)
	polls := clients[1].Stats().more.WokenPoll
	require.GreaterOrEqual(t, polls, uint64(2), "it pauses before it asks again")
	cancel()
	err := conntest.Soon(t, "the end", first)
	require.ErrorIs(t, err, ErrSecond)
	require.ErrorIs(t, err, context.Canceled)
}

func TestUnlockSaysWhatTheSecondSays(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		unlock := func(ctx context.Context) error {
			t.Helper()
			err := m.Unlock(ctx)
			r.gone(t, 10*time.Millisecond, "the masters' lock is released whatever the other system says")
			s.set(func(s *otherSystem) { s.refusal, s.mute, s.queues = nil, false, map[string][]*otherLock{} })
			return err
		}
		require.NoError(t, m.Lock(t.Context()))
		s.set(func(s *otherSystem) { s.refusal = errors.New("other: unavailable") })
		err := unlock(t.Context())
		require.ErrorIs(t, err, ErrSecond)
		require.ErrorContains(t, err, "unavailable")

		plain := c.NewMutex("l", ttl)
		for range 20 { // a pool may give another object than the last one
			require.NoError(t, m.Lock(t.Context()))
			l, _ := s.holder("k")
			s.remove(l)
			require.ErrorIs(t, unlock(t.Context()), ErrNotHeld, "another may have had it")
			require.NoError(t, plain.Lock(t.Context()))
			require.NoError(t, plain.Unlock(t.Context()), "that says nothing of other locks")
		}

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

// Nobody waits for the second lock of a Release, and that is no failure. A loss that it has found all the same is told, with
// what it said.
func TestAReleaseTellsOfASecondThatWasLost(t *testing.T) {
	var said []error
	observers := onEvent(EventRound, func(e *Event) {
		if e.Op == opUnlock {
			said = append(said, e.Err)
		}
	})
	simulated(t, 3, Config{Observers: observers}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", ttl, WithSecond(s))
		for n := range 4 {
			err := fmt.Errorf("other: %w", context.Canceled)
			if n%2 == 0 {
				err = fmt.Errorf("other: %w, %w", ErrNotHeld, context.Canceled)
			}
			require.NoError(t, m.Lock(t.Context()))
			s.set(func(s *otherSystem) { s.refusal = err })
			require.NoError(t, m.Release())
			settle()
			require.Len(t, said, n+1)
			if n%2 == 0 {
				require.ErrorIs(t, said[n], ErrNotHeld)
				require.ErrorContains(t, said[n], "other: ")
			} else {
				require.NoError(t, said[n])
			}
			s.set(func(s *otherSystem) { s.refusal, s.queues = nil, map[string][]*otherLock{} })
		}
	})
}

// Nothing of a second lock stays once it is released, though its lock on the masters would have been valid for long.
func TestASecondThatIsReleasedIsForgotten(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		m := c.NewMutex("k", time.Hour, WithSecond(s))
		for range 2 {
			require.NoError(t, m.Lock(t.Context()))
			l, _ := s.holder("k")
			second := weak.Make(l)
			l = nil
			require.NoError(t, m.Unlock(t.Context()))
			settle()
			runtime.GC()
			require.Nil(t, second.Value(), "a timer or a context has it")
		}
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

func TestAPanicOfTheSecondLeavesNothing(t *testing.T) {
	for _, wait := range []bool{false, true} {
		f := new(fuse)
		f.calls.Store(-1)
		simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
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
		require.Error(t, c.CheckMutex("k", ttl, WithSecond(s), WithSecond(nil)))
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
	for seed := range uint64(bearable(8)) {
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
