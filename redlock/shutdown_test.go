package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// shuts begins to shut a client down, and returns when no lock can be taken any more. It is over before the test's end
// closes the client: two that close keep a simulated clock from moving.
func shuts(t *testing.T, c *Client) <-chan error {
	ctx, cancel := context.WithCancel(context.Background())
	ended, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		ended <- c.Shutdown(ctx)
	}()
	t.Cleanup(func() { cancel(); <-over })
	<-c.shut
	return ended
}

// works has Do run a function until end is called, at the test's end at the latest. It returns when it runs.
func works(t *testing.T, c *Client, opts ...Option) (ctx context.Context, end func(), ended chan error) {
	return runsUntilEnd(t, func(fn func(context.Context) error) error { return c.Do(context.Background(), "k", ttl, fn, opts...) })
}

// runsUntilEnd is works for whatever calls a function.
func runsUntilEnd(t *testing.T, call func(fn func(context.Context) error) error) (ctx context.Context, end func(), ended chan error) {
	over, runs := make(chan struct{}), make(chan context.Context, 1)
	ended, end = make(chan error, 1), sync.OnceFunc(func() { close(over) })
	t.Cleanup(end)
	go func() {
		ended <- call(func(ctx context.Context) error { runs <- ctx; <-over; return nil })
	}()
	return <-runs, end, ended
}

// simulatedKinds are the kinds that the simulated masters know.
var simulatedKinds = map[string][]Option{"plain": nil, "fenced": {WithFence()}, "several keys": {WithKeys("k2", "k3")}}

// What is held stays held until its holder lets go, however long that takes; and nobody gets another lock.
func TestShutdownWaitsForWorkAndKeepsItsLocks(t *testing.T) {
	for name, opts := range simulatedKinds {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				work, end, ended := works(t, c, opts...)
				kept, loose := c.NewMutex("kept", ttl), c.NewMutex("loose", 100*ttl)
				require.NoError(t, kept.Lock(t.Context()))
				require.NoError(t, loose.Lock(t.Context()))
				ctx, _ := kept.KeepAlive(t.Context())
				waiter := parked(t, c, "kept")
				done, since := shuts(t, c), r.now()
				err := soon(t, waiter)
				require.Less(t, r.now()-since, 20*time.Millisecond, "it is woken")
				for _, err := range []error{err, c.NewMutex("new", ttl).TryLock(t.Context()), c.NewMutex("new", ttl).Lock(t.Context()),
					c.NewMutex("kept", ttl).Lock(t.Context()),
					c.Do(t.Context(), "new", ttl, noWork), c.Do(t.Context(), "new", ttl, noWork, WithWait(time.Minute)), c.Lead(t.Context(), "new", ttl, noWork)} {
					require.ErrorIs(t, err, ErrClosed)
				}
				synctest.Wait()
				for _, ctx := range []context.Context{work, ctx} {
					require.ErrorIs(t, context.Cause(ctx), ErrClosed)
					require.NotErrorIs(t, context.Cause(ctx), ErrLost)
				}
				again, _ := kept.KeepAlive(t.Context()) // also one that begins now
				require.ErrorIs(t, context.Cause(again), ErrClosed)
				time.Sleep(10 * ttl)
				require.Empty(t, done)
				require.True(t, kept.Held())
				for i := range r.masters {
					require.Equal(t, 3, locksOn(r, i), "of Do, and two Mutexes")
				}
				end()
				require.NoError(t, <-ended)
				require.NoError(t, kept.Extend(t.Context()))
				require.NoError(t, kept.Unlock(t.Context()))
				require.False(t, kept.Held())
				time.Sleep(ttl)
				require.Empty(t, done)
				require.NoError(t, loose.Release())
				require.NoError(t, <-done)
				for i := range r.masters {
					require.Zero(t, locksOn(r, i))
				}
				require.ErrorIs(t, loose.Lock(t.Context()), ErrClosed)
				require.NoError(t, c.Shutdown(t.Context()))
				require.NoError(t, c.Close())
			})
		})
	}
}

func noWork(context.Context) error { return nil }

// locksOn is how many locks a master has, whatever their kind.
func locksOn(r *fakeRounds, master int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := map[string]bool{}
	for key, k := range r.masters[master].keys {
		if k.expires > r.clock() && !strings.HasSuffix(key, ":permits") && !strings.HasSuffix(key, "2") && !strings.HasSuffix(key, "3") {
			names[strings.SplitN(key, ":", 2)[0]] = true
		}
	}
	return len(names)
}

// What is still held when the context ends is left on the masters, and named.
func TestShutdownLeavesWhatIsHeldToItsTTL(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.round.Mux = &graceRounds{Mux: r} // a release that is posted before Close is carried out
		var all []*Mutex
		for i := range 12 {
			m := c.NewMutex(fmt.Sprintf("k%02d", i), ttl)
			require.NoError(t, m.TryLock(t.Context()))
			m.KeepAlive(t.Context())
			all = append(all, m)
		}
		tokens := []string{all[0].Token(), all[11].Token()}
		tired := errors.New("the service is told to stop at once")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, tired)
		defer cancel()
		err := c.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, tired)
		require.ErrorContains(t, err, `12 locks are left to their TTL: "k00", "k01"`)
		require.ErrorContains(t, err, `"k09" and 2 more keys`)
		require.NotContains(t, err.Error(), "k10")
		for i, token := range tokens {
			require.Equal(t, 3, r.holders(all[11*i].Key(), token), "it is released, or was not renewed")
		}
		r.gone(t, ttl+time.Second)
		require.NoError(t, c.Shutdown(t.Context()))
	})
}

// An attempt has found the client open, and has its lock when the context has ended. That is left, too, and named.
func TestShutdownNamesALockThatIsTakenLate(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(func(m *fakeMaster) { m.counters["k"] = time.Now().Add(48 * time.Hour).UnixMicro() }, 2)
		r.set(func(m *fakeMaster) { m.delay *= 2 }, 0, 1) // the third says so before they decide
		mends, goOn := make(chan struct{}), make(chan struct{})
		c.round.Mux = &hookedRounds{Mux: r, sending: func(*mux.Op) { // it sets the counter of the third back, and has its lock then
			close(mends)
			<-goOn
		}}
		taken := make(chan error, 1)
		go func() { taken <- c.NewMutex("k", ttl, WithFence()).TryLock(t.Context()) }()
		<-mends
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		done := make(chan error, 1)
		go func() { done <- c.Shutdown(ctx) }()
		<-c.closed
		close(goOn)
		require.NoError(t, <-taken)
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, `1 lock is left to its TTL: "k"`)
	})
}

func TestShutdownKeepsAMinHold(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.round.Mux = &graceRounds{Mux: r}
		_, end, ended := works(t, c, WithMinHold(time.Hour))
		done := shuts(t, c)
		end()
		require.NoError(t, <-ended)
		require.NoError(t, <-done)
		time.Sleep(time.Hour - ttl)
		require.Equal(t, 3, r.keys())
		r.gone(t, 2*time.Minute)
	})
}

// An attempt whose answers come after Shutdown has begun does not get the lock, and leaves no key.
func TestAnAttemptUnderWayEndsWithShutdown(t *testing.T) {
	for name, take := range map[string]func(m *Mutex, ctx context.Context) error{"TryLock": (*Mutex).TryLock, "Lock": (*Mutex).Lock} {
		for kind, opts := range simulatedKinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				simulated(t, 3, Config{RoundTimeout: time.Second}, func(t *testing.T, c *Client, r *fakeRounds) {
					c.round.Mux = &graceRounds{Mux: r}
					r.set(func(m *fakeMaster) { m.delay = 60 * time.Millisecond }, 0, 1, 2)
					got := make(chan error, 1)
					m := c.NewMutex("k", ttl, opts...)
					go func() { got <- take(m, t.Context()) }()
					synctest.Wait()
					done := shuts(t, c)
					time.Sleep(30 * time.Millisecond)
					require.Empty(t, done, "it waits for the attempt")
					require.ErrorIs(t, <-got, ErrClosed)
					require.NoError(t, <-done)
					require.Zero(t, m.Remaining())
					time.Sleep(time.Second)
					for i := range r.masters {
						require.Zero(t, locksOn(r, i))
					}
				})
			})
		}
	}
}

// A lock that was given to a waiter, which has not taken it over yet, is released.
func TestShutdownReleasesALockThatIsGiven(t *testing.T) {
	var shut func()
	observer := onEvent(behind.Wake, func(*Event) { shut() })
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.round.Mux = &graceRounds{Mux: r}
		var done <-chan error
		shut = func() { done = shuts(t, c) }
		all := runners(t, c, 2)
		token := all[0].secretly()
		require.NoError(t, all[0].Release())
		for _, waiter := range all[1:] {
			require.ErrorIs(t, soon(t, waiter.locked), ErrClosed)
		}
		require.NoError(t, <-done)
		require.Zero(t, r.holders("k", token))
	})
}

// Work is waited for, also once its lock is lost, and its Do says so.
func TestShutdownWaitsForWorkWhoseLockIsLost(t *testing.T) {
	eachDoing(t, Config{}, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		work, end, ended := runsUntilEnd(t, func(fn func(context.Context) error) error { return do(context.Background(), "k", ttl, fn) })
		done := shuts(t, c)
		time.Sleep(5 * ttl)
		require.ErrorIs(t, context.Cause(work), ErrClosed)
		require.Equal(t, 3, r.keys(), "it is renewed")
		r.set(flush, 0, 1, 2)
		time.Sleep(5 * ttl)
		require.Empty(t, done)
		end()
		require.ErrorIs(t, <-ended, ErrLost)
		require.NoError(t, <-done)
	})
}

func TestShutdownNamesWorkWhoseLockIsLost(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		end, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- c.Do(t.Context(), "k", ttl, func(ctx context.Context) error {
				within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				defer cancel()
				r.set(flush, 0, 1, 2)
				err := c.Shutdown(within) // which waits for this function
				<-end
				return err
			})
		}()
		time.Sleep(2 * time.Minute)
		close(end)
		err := <-ended
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 call of Do, Acquire, Lead or Unlock has not ended")
		require.NotContains(t, err.Error(), "left to")
	})
}

// The leader's lock is renewed until its function has returned, whose error is not forgotten.
func TestShutdownWaitsForALeader(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ended, failed := make(chan error, 1), errors.New("it could not clean up")
		leads := make(chan struct{})
		go func() {
			ended <- c.Lead(t.Context(), "k", ttl, func(ctx context.Context) error {
				close(leads)
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), ErrClosed) {
					return errors.New("another cause")
				}
				time.Sleep(5 * ttl)
				if r.keys() < 3 {
					return errors.New("its lock has ended")
				}
				return failed
			})
		}()
		<-leads
		require.NoError(t, c.Shutdown(t.Context()))
		err := <-ended
		require.ErrorIs(t, err, failed)
		require.ErrorIs(t, err, ErrClosed)
		require.Zero(t, r.keys())
	})
}

// A leader that has lost its lock is waited for, too.
func TestShutdownWaitsForWhatALeaderCleansUp(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		_, end, ended := runsUntilEnd(t, func(fn func(context.Context) error) error { return c.Lead(context.Background(), "k", ttl, fn) })
		r.set(flush, 0, 1, 2)
		time.Sleep(2 * ttl)
		done := shuts(t, c)
		time.Sleep(ttl)
		require.Empty(t, done)
		end()
		require.NoError(t, <-done)
		require.ErrorIs(t, <-ended, ErrClosed)
	})
}

// An Unlock that waits for the masters has their answer before the client is closed.
func TestShutdownWaitsForAnUnlock(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Second}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(func(m *fakeMaster) { m.delay = 400 * time.Millisecond }, 0, 1, 2)
		unlocked := make(chan error, 1)
		go func() { unlocked <- m.Unlock(t.Context()) }()
		synctest.Wait()
		require.NoError(t, c.Shutdown(t.Context()))
		require.NoError(t, <-unlocked)
	})
}

// An Unlock that begins while Shutdown looks through the locks is waited for as well: it is counted before its lock is gone.
func TestShutdownWaitsForAnUnlockThatBeginsAsItLooks(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Second}, func(t *testing.T, c *Client, r *fakeRounds) {
		ended := c.NewMutex("ended", time.Second)
		require.NoError(t, ended.TryLock(t.Context()))
		m := taken(t, c)
		time.Sleep(2 * time.Second)
		r.set(func(m *fakeMaster) { m.delay = 400 * time.Millisecond }, 0, 1, 2)
		unlocked, begun := make(chan error, 1), false
		r.looked = func() {
			if begun || holdMu(ended).TryLock() {
				if !begun {
					holdMu(ended).Unlock()
				}
				return
			}
			begun = true // it looks at the first of its list
			go func() { unlocked <- m.Unlock(t.Context()) }()
			spin(t, "the lock is let go of", func() bool { return m.secretly() == "" })
		}
		require.NoError(t, c.Shutdown(t.Context()))
		require.NoError(t, <-unlocked)
	})
}

// A Lock that waits for its second lock gives up, and leaves nothing on the masters; a lock that has both is waited for.
func TestShutdownWithASecond(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newOther(time.Millisecond)
		both := c.NewMutex("both", ttl, WithSecond(s))
		require.NoError(t, both.Lock(t.Context()))
		both.KeepAlive(t.Context())
		l, err := s.TryLock(t.Context(), "k")
		require.NoError(t, err)
		defer l.Unlock(context.Background())
		got := make(chan error, 1)
		go func() { got <- c.NewMutex("k", ttl, WithSecond(s)).Lock(t.Context()) }()
		require.Eventually(t, func() bool { _, waiting := s.holder("k"); return waiting == 1 }, time.Minute, time.Millisecond)
		done := shuts(t, c)
		require.ErrorIs(t, soon(t, got), ErrClosed)
		time.Sleep(5 * ttl)
		require.Empty(t, done)
		require.Positive(t, both.Remaining())
		require.NoError(t, both.Unlock(t.Context()))
		require.NoError(t, <-done)
		require.Zero(t, r.keys())
	})
}

func TestShutdownAndClose(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		first, second := shuts(t, c), shuts(t, c)
		require.NoError(t, c.Close())
		for _, done := range []<-chan error{first, second, shuts(t, c)} {
			err := <-done
			require.ErrorIs(t, err, ErrClosed)
			require.ErrorContains(t, err, `1 lock is left to its TTL: "k"`)
		}
		require.ErrorIs(t, m.Unlock(t.Context()), ErrClosed)
	})
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		time.Sleep(ttl) // what has expired is not waited for
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, c.Shutdown(over))
	})
}

// Whatever goroutines do at the moment when it begins, Shutdown returns nil once they have let go, and nothing is held on
// any master then.
func TestNothingIsHeldAfterShutdown(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	for try := range 20 {
		c := openedWith(t, Config{Masters: masters.Addrs()})
		var wg sync.WaitGroup
		var taken atomic.Int64
		for i := range 16 {
			opts := [][]Option{nil, {WithFence()}, {WithPermits(3)}, {WithShared()}, {WithKeys("more", "other")}}[i%5]
			key := fmt.Sprint("key", i%5)
			wg.Go(func() {
				m := c.NewMutex(key, term30, opts...)
				for n := 0; ; n++ {
					var err error
					switch (n + i) % 4 {
					case 0:
						if err = m.TryLock(t.Context()); err == nil {
							err = m.Unlock(t.Context())
						}
					case 1:
						if err = m.Lock(t.Context()); err == nil {
							err = m.Release()
						}
					case 2:
						err = c.Do(t.Context(), key, term30, func(context.Context) error { return nil }, opts...)
					default:
						if err = m.Lock(t.Context()); err == nil {
							m.KeepAlive(t.Context())
							err = m.Unlock(t.Context())
						}
					}
					if err == nil {
						taken.Add(1)
					} else if errors.Is(err, ErrClosed) {
						return
					}
				}
			})
		}
		want := int64(try * 10)
		require.Eventually(t, func() bool { return taken.Load() >= want }, time.Minute, time.Millisecond)
		require.NoError(t, c.Shutdown(t.Context()))
		wg.Wait()
		nothingHeld(t, masters)
	}
}

// nothingHeld waits until no master has a lock.
func nothingHeld(t *testing.T, masters *redlocktest.Masters) {
	t.Helper()
	for i := range masters.N() {
		require.Eventually(t, func() bool {
			n, err := masters.Do(i, "EVAL", HeldKeys, "0")
			return err == nil && n == int64(0)
		}, term30/3, 5*time.Millisecond)
	}
}

// So it is with each kind, on real masters: the lock outlives its TTL while the function runs, and is released then.
func TestShutdownKeepsEachKind(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	const short = 300 * time.Millisecond
	for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFence()}, "shared": {WithShared()}, "permits": {WithPermits(1)},
		"several keys": {WithKeys("more", "other")}} {
		t.Run(name, func(t *testing.T) {
			c, other := openedWith(t, Config{Masters: masters.Addrs()}), openedWith(t, Config{Masters: masters.Addrs()})
			rival := other.NewMutex("k", short)
			if name == "permits" {
				rival = other.NewMutex("k", short, opts...)
			}
			err := c.Do(t.Context(), "k", short, func(ctx context.Context) error {
				go c.Shutdown(context.WithoutCancel(ctx))
				<-ctx.Done()
				hold := holdOf(ctx)
				for until := time.Now().Add(4 * short); time.Now().Before(until); time.Sleep(short / 10) { // the work, longer than the TTL
					if err := rival.TryLock(context.WithoutCancel(ctx)); hold.Remaining(c.now) > 0 && !errors.Is(err, ErrHeld) {
						return fmt.Errorf("another has tried it: %w", err)
					}
				}
				return nil
			}, opts...)
			if !errors.Is(err, ErrLost) { // a machine that is busy may lose it
				require.NoError(t, err)
			}
			require.NoError(t, c.Shutdown(t.Context()))
			require.NoError(t, rival.Lock(t.Context()))
			require.NoError(t, rival.Unlock(t.Context()))
		})
	}
}

// A minority that is silent delays nothing.
func TestShutdownWhileAMasterIsSilent(t *testing.T) {
	masters, c := started(t, 3)
	m := c.NewMutex("k", term30)
	require.NoError(t, m.Lock(t.Context()))
	Confirmed(t, m)
	waiter := parked(t, c, "k")
	masters.Pause(2)
	done := shuts(t, c)
	require.ErrorIs(t, conntest.Soon(t, "the waiter is told", waiter), ErrClosed)
	require.Empty(t, done)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, conntest.Soon(t, "it is shut down", done))
	masters.Resume(2)
	nothingHeld(t, masters)
}
