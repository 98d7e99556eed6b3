package redlock

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/stretchr/testify/require"
)

// An extension sets the lock again where it is gone. A release that follows it finds it there, and must not say that
// the lock was held all the time.
func TestALossThatAnExtensionFindsIsToldToAllThatFollow(t *testing.T) {
	for name, n := range map[string]int{"a release of its own": 1, "the last release is shared": 2} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				all := runners(t, c, n)
				time.Sleep(ttl / 3) // so that the round extends
				r.set(flush, 0, 1)
				for i, m := range all {
					m.leave(t.Context())
					if i < n {
						all[i+1].has(t)
					}
				}
				for _, m := range all {
					require.ErrorIs(t, soon(t, m.unlocked), ErrNotHeld)
				}
				r.gone(t, 2*time.Millisecond)
			})
		})
	}
}

// The masters know no scripts any more, as after SCRIPT FLUSH. The last holder releases the lock while the round before
// asks for one, and so they are not sent its text. That says nothing of whether they have the lock.
func TestAScriptThatIsNotKnownIsNoLoss(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 1)
		time.Sleep(ttl / 3) // so that the round extends
		r.set(unscript, 0, 1, 2)
		all[0].leave(t.Context())
		all[1].has(t)
		all[1].leave(t.Context())
		require.NoError(t, soon(t, all[0].unlocked))
		require.NoError(t, soon(t, all[1].unlocked))
		r.gone(t, time.Millisecond)
	})
}

// The next holder's Extend sets the lock again where it is gone. The round that confirms the Unlock before it must not
// take that for the lock that was there.
func TestAnExtendOfTheNextHolderHidesNoLoss(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		arrived := make(chan struct{})
		var once sync.Once
		c.round.Mux = &hookedRounds{Mux: r, waited: func(_ context.Context, op *mux.Op) {
			if strings.Contains(string(op.Command), kind.ReadScript.Hash) {
				once.Do(func() { <-arrived }) // its answers are there, and are not judged yet
			}
		}}
		all := runners(t, c, 2)
		all[0].leave(t.Context())
		all[1].has(t)
		time.Sleep(2 * time.Millisecond)
		r.set(flush, 0, 1)
		all[1].leave(t.Context())
		require.NoError(t, soon(t, all[2].locked))
		r.set(freeze, 2)
		extended := make(chan error, 1)
		go func() { extended <- all[2].Extend(t.Context()) }()
		synctest.Wait()
		close(arrived)
		require.NoError(t, soon(t, all[0].unlocked))
		require.ErrorIs(t, soon(t, all[1].unlocked), ErrNotHeld)
		soon(t, extended)
		r.set(thaw, 2)
	})
}

// The round that follows a hand-over says that a quorum had the lock until then. If it extends the lock, and is judged too
// late for that, the next holder has lost it. The last one had it all the time.
func TestAnUnlockIsConfirmedByAnExtensionThatComesTooLate(t *testing.T) {
	for _, late := range []time.Duration{0, ttl} {
		for _, waits := range []bool{true, false} {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				var armed atomic.Bool
				var first atomic.Pointer[mux.Op]
				c.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) {
					if armed.CompareAndSwap(true, false) {
						first.Store(op)
					}
				}, waited: func(_ context.Context, op *mux.Op) {
					if first.CompareAndSwap(op, nil) {
						time.Sleep(late) // the process stands still
					}
				}}
				for range 2 { // the second time with what was used before
					all, failed := runners(t, c, 1), c.Stats().ReleaseFailed
					time.Sleep(ttl / 3) // so that the round extends
					armed.Store(true)
					if waits {
						all[0].leave(t.Context())
					} else {
						require.NoError(t, all[0].Release())
					}
					require.NoError(t, soon(t, all[1].locked))
					time.Sleep(late + 2*time.Millisecond)
					if waits {
						require.NoError(t, soon(t, all[0].unlocked))
					}
					settle()
					require.Nil(t, first.Load())
					require.Equal(t, failed, c.Stats().ReleaseFailed)
					require.Equal(t, late == 0, all[1].Remaining() > 0)
					all[1].Mutex.Unlock(t.Context())
					time.Sleep(2 * ttl)
				}
			})
		}
	}
}

// The relay's extension may be judged late. The holder may have extended the lock further by then: it is not lost.
func TestAnExtensionThatIsJudgedLateEndsNothing(t *testing.T) {
	for after, handovers := range map[string]int{"it is held": 0, "it was given on": -1, "it was released": 1} {
		simulated(t, 3, Config{Handovers: handovers}, func(t *testing.T, c *Client, r *fakeRounds) {
			arrived := make(chan struct{})
			var armed atomic.Bool
			var late atomic.Pointer[mux.Op]
			c.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) {
				if armed.Load() {
					late.CompareAndSwap(nil, op)
				}
			}, waited: func(_ context.Context, op *mux.Op) {
				if op == late.Load() {
					<-arrived
				}
			}}
			all := runners(t, c, 2)
			armed.Store(true)
			time.Sleep(ttl / 3) // so that the round extends
			all[0].leave(t.Context())
			all[1].has(t)
			held, stop := all[1].KeepAlive(t.Context())
			time.Sleep(3 * ttl / 2)
			require.Positive(t, all[1].Remaining())
			if after != "it is held" {
				stop()
				all[1].leave(t.Context())
				require.NoError(t, soon(t, all[2].locked))
				held, _ = all[2].KeepAlive(t.Context())
			}
			close(arrived)
			require.NoError(t, soon(t, all[0].unlocked), after)
			time.Sleep(time.Millisecond)
			require.NoError(t, held.Err(), after)
		})
	}
}

// Those who are in no global queue get the lock now and then: they poll, as a client of another library does.
func TestThoseWhoPollAreNotShutOut(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
		c, _ := another(t, r, Config{})
		other, _ := another(t, r, Config{})
		var all sync.WaitGroup
		var over atomic.Bool
		end := r.now() + 10*ttl
		for range 32 {
			all.Go(func() {
				m := c.NewMutex("k", ttl)
				for r.now() < end && !over.Load() {
					require.NoError(t, m.Lock(t.Context()))
					time.Sleep(200 * time.Microsecond)
					require.NoError(t, m.Unlock(t.Context()))
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		had, tried := 0, 0
		m := other.NewMutex("k", ttl)
		for r.now() < end-ttl && had < 10 {
			tried++
			if m.TryLock(t.Context()) == nil {
				had++
				require.NoError(t, m.Unlock(t.Context()))
			}
			time.Sleep(3300 * time.Microsecond)
		}
		over.Store(true)
		all.Wait()
		t.Log(had, "of", tried)
		require.Equal(t, 10, had)
	})
}

// graceRounds close as a Mux does: what comes later is not sent, and what was sent before is done.
type graceRounds struct {
	round.Mux
	closed atomic.Bool
}

func (c *graceRounds) Post(ops ...*mux.Op) {
	if !c.closed.Load() {
		c.Mux.Post(ops...)
	}
}

func (c *graceRounds) Send(op *mux.Op) {
	if !c.closed.Load() {
		c.Mux.Send(op)
	}
}

func (c *graceRounds) Close() error {
	c.closed.Store(true)
	time.Sleep(100 * time.Millisecond)
	return c.Mux.Close()
}

// A lock that was given to a waiter, which has not taken it over yet, is released when the client is closed.
func TestCloseReleasesALockThatIsGiven(t *testing.T) {
	observer := onEvent(behind.Wake, func(_ *Event) { time.Sleep(200 * time.Millisecond) })
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.round.Mux = &graceRounds{Mux: r}
		all := runners(t, c, 1)
		token := all[0].secretly()
		require.NoError(t, all[0].Release())
		synctest.Wait()
		require.NoError(t, c.Close())
		require.ErrorIs(t, soon(t, all[1].locked), ErrClosed)
		require.Zero(t, r.holders("k", token))
	})
}

// A waiter that wakes while Close is under way is not given the lock either.
func TestNobodyTakesOverWhileTheClientCloses(t *testing.T) {
	wake := make(chan chan struct{}, 1)
	observer := onEvent(behind.Wake, func(_ *Event) {
		select {
		case woken := <-wake:
			<-woken
		default: // a later call
		}
	})
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		woken := make(chan struct{})
		wake <- woken
		all := runners(t, c, 1)
		all[0].leave(t.Context())
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		require.Empty(t, closed, "it waits for the waiter to leave the global queue")
		close(woken)
		err := soon(t, all[1].locked)
		require.NoError(t, soon(t, closed)) // first: another Close, after a test that fails, would keep the clock from moving
		require.ErrorIs(t, err, ErrClosed)
		require.Empty(t, all[1].secretly())
	})
}

// A waiter that has been given one lock, which is lost, is not given another beside it.
func TestAWaiterIsGivenOneLock(t *testing.T) {
	var once sync.Once
	var block func()
	observer := onEvent(behind.Wake, func(_ *Event) { once.Do(func() { block() }) })
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		woken := make(chan struct{})
		block = func() { <-woken }
		all := runners(t, c, 1)
		require.NoError(t, all[0].Release())
		synctest.Wait()
		r.set(flush, 0, 1)
		other := c.NewMutex("k", ttl)
		require.NoError(t, other.TryLock(t.Context()))
		require.NoError(t, other.Release())
		close(woken)
		require.NoError(t, soon(t, all[1].locked))
		all[1].Unlock(t.Context())
		r.gone(t, 10*time.Millisecond)
	})
}

// An Observer may call the client.
func TestAnObserverMayUnlockWhatIsLost(t *testing.T) {
	var lost func()
	observer := onEvent(EventLost, func(_ *Event) { lost() })
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 2)
		told := make(chan error, 1)
		lost = func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			told <- all[2].Unlock(ctx)
		}
		r.set(flush, 0, 1, 2)
		all[0].leave(t.Context())
		all[1].has(t)
		all[1].leave(t.Context())
		all[2].has(t)
		all[2].KeepAlive(t.Context())
		err := soon(t, told)
		require.ErrorIs(t, err, ErrNotHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		for _, m := range all[:2] {
			require.ErrorIs(t, soon(t, m.unlocked), ErrNotHeld)
		}
	})
}

// Whoever takes a lock over still has to look whether a group has switched. Until then the lock is not given on: another
// goroutine may unlock the same Mutex.
func TestALockThatIsBeingTakenOverIsNotGivenOn(t *testing.T) {
	var look func()
	observer := onEvent(behind.Wake, func(_ *Event) { look() })
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		var given *line.Given
		look = func() { given = c.localQueues.Head("k").Given() }
		all := runners(t, c, 1)
		all[0].leave(t.Context())
		all[1].has(t)
		require.Zero(t, all[1].pins(), "it was taken over")
		m := c.NewMutex("k", ttl)
		_, _, taken := c.held.TakeOver(t.Context(), &m.hold, given, false)
		require.True(t, taken)
		require.Positive(t, m.pins())
		m.hold.Unpin()
		require.Zero(t, m.pins())
		require.NoError(t, all[1].Unlock(t.Context()))
	})
}
