package redlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A user's context or Observer may panic at each call of it, wherever that is. It leaves nothing behind.

// Whatever call of a context panics, in whichever operation: the caller that recovers has
// taken no lock that it knows nothing of, and nobody else notices.
func TestPanicOfAContextLeavesNothing(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	var f fuse
	ctx := brittle{t.Context(), &f}
	gone := func(at string) {
		t.Helper()
		for i := range 3 {
			require.Eventually(t, func() bool {
				n, err := masters.Do(i, "EXISTS", "k")
				return err == nil && n == int64(0)
			}, hanging, 5*time.Millisecond, at)
		}
	}
	foreign := func() { // a key that is gone after a moment
		for i := range 3 {
			command(t, masters, i, "SET", "k", "another's", "PX", "20")
		}
	}
	for name, use := range map[string]func(m *Mutex){
		"TryLock": func(m *Mutex) { require.NoError(t, m.TryLock(ctx)) },
		"Lock":    func(m *Mutex) { require.NoError(t, m.Lock(ctx)) },
		"Lock that waits": func(m *Mutex) {
			foreign()
			require.NoError(t, m.Lock(ctx))
		},
		"Lock that gives up": func(*Mutex) {
			for i := range 3 {
				command(t, masters, i, "SET", "k", "another's", "PX", "20")
			}
			ended, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if c.NewMutex("k", ttl).Lock(brittle{ended, &f}) == nil {
				panic("not this time") // a machine that is busy
			}
		},
		"Do": func(*Mutex) {
			require.NoError(t, c.Do(ctx, "k", ttl, func(ctx context.Context) error { return ctx.Err() }))
		},
		"Extend": func(m *Mutex) {
			require.NoError(t, m.TryLock(t.Context()))
			require.NoError(t, m.Extend(ctx))
		},
		"Unlock": func(m *Mutex) {
			require.NoError(t, m.TryLock(t.Context()))
			require.NoError(t, m.Unlock(ctx))
		},
		"KeepAlive": func(m *Mutex) {
			require.NoError(t, m.TryLock(t.Context()))
			_, stop := m.KeepAlive(ctx)
			stop()
		},
		"Holders": func(*Mutex) { c.Holders(ctx, "k") },
	} {
		t.Run(name, func(t *testing.T) {
			var m *Mutex
			panics := everyPanic(t, &f, func() {
				m = c.NewMutex("k", 30*time.Second)
				use(m)
			}, func(panicked bool, at string) {
				switch name {
				case "Unlock":
					require.Empty(t, m.Token(), at)
				case "TryLock", "Lock", "Lock that waits":
					require.Equal(t, panicked, m.Token() == "", at)
				}
				m.Unlock(t.Context())
				gone(at)
				require.Zero(t, c.Stats().Kept, at)
				nothingIsLeft(t, c, at)
			})
			require.Positive(t, panics)
		})
	}
}

func TestNilContextLeavesNothing(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	var none context.Context
	m := c.NewMutex("k", ttl)
	require.Panics(t, func() { m.TryLock(none) })
	require.Panics(t, func() { m.Lock(none) })
	require.Error(t, c.Do(none, "k", ttl, nothing))
	require.NoError(t, m.TryLock(t.Context()))
	require.Panics(t, func() { m.Extend(none) })
	require.Panics(t, func() { m.KeepAlive(none) })
	require.Panics(t, func() { c.Holders(none, "k") })
	require.Panics(t, func() { m.Unlock(none) })
	require.Empty(t, m.Token())
	require.Panics(t, func() { Open(none, Config{Masters: masters.Addrs()}) })
	nothingIsLeft(t, c, "")
}

// Whatever call of an Observer panics, likewise. Those that are called by goroutines of the
// client end the process, as any panic in a goroutine does.
func TestPanicOfAnObserverLeavesNothing(t *testing.T) {
	var f fuse
	simulatedWith := func(name string, use func(t *testing.T, c *Client, r *fakeRounds, m *Mutex)) {
		t.Run(name, func(t *testing.T) {
			panics := 0
			for calls := int64(0); ; calls++ {
				panicked := false
				synctest.Test(t, func(t *testing.T) {
					c, r := newFake(t, 3, Config{Observer: brittleObserver(&f)})
					for _, m := range r.masters {
						m.delay = time.Millisecond
					}
					m := c.NewMutex("k", ttl)
					func() {
						defer func() { panicked = recover() != nil }()
						f.calls.Store(calls)
						use(t, c, r, m)
					}()
					f.calls.Store(-1)
					at := fmt.Sprint("call ", calls)
					if panicked && name != "Extend" {
						require.Empty(t, m.Token(), at)
					}
					m.Unlock(t.Context())
					time.Sleep(2 * ttl) // what is foreign has expired
					require.Zero(t, r.keys(), at)
					require.Zero(t, c.Stats().Kept, at)
					nothingIsLeft(t, c, at)
				})
				if !panicked {
					break
				}
				panics++
			}
			require.Positive(t, panics)
		})
	}
	quietly := func(do func()) { // without a panic
		was := f.calls.Swap(-1)
		do()
		f.calls.Store(was)
	}
	simulatedWith("TryLock", func(t *testing.T, _ *Client, _ *fakeRounds, m *Mutex) {
		require.NoError(t, m.TryLock(t.Context()))
	})
	simulatedWith("Lock that waits", func(t *testing.T, _ *Client, r *fakeRounds, m *Mutex) {
		r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"another's", r.clock() + 20*time.Millisecond} }, all(3)...)
		require.NoError(t, m.Lock(t.Context()))
	})
	simulatedWith("Lock that gives up", func(t *testing.T, c *Client, r *fakeRounds, _ *Mutex) {
		r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"another's", r.clock() + ttl} }, all(3)...)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.NewMutex("k", ttl).Lock(ctx), ErrHeld)
	})
	simulatedWith("Do", func(t *testing.T, c *Client, _ *fakeRounds, _ *Mutex) {
		require.NoError(t, c.Do(t.Context(), "k", ttl, func(context.Context) error { return nil }))
	})
	simulatedWith("Extend", func(t *testing.T, c *Client, _ *fakeRounds, m *Mutex) {
		quietly(func() { require.NoError(t, m.TryLock(t.Context())) })
		require.NoError(t, m.Extend(t.Context()))
	})
	simulatedWith("Unlock", func(t *testing.T, c *Client, _ *fakeRounds, m *Mutex) {
		quietly(func() { require.NoError(t, m.TryLock(t.Context())) })
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// The last that an Observer is told of a Lock is that it has come to it: nobody else knows.
func TestPanicAtTheEndOfAWaitGivesTheLockBack(t *testing.T) {
	observer := &Observer{WaitEnd: func(_ context.Context, _ string, _ time.Duration, err error) {
		if err == nil {
			panic("the user's")
		}
	}}
	simulated(t, 3, Config{Observer: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"another's", r.clock() + 20*time.Millisecond} }, all(3)...)
		m := c.NewMutex("k", ttl)
		require.Panics(t, func() { m.Lock(t.Context()) })
		require.Empty(t, m.Token())
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
		nothingIsLeft(t, c, "")
	})
}

// One Observer that panics as it is told of a loss keeps no other context alive, and Close
// goes on to its end.
func TestPanicOfAnObserverKeepsNoContextAlive(t *testing.T) {
	t.Parallel()
	lossy := func(ends func(c *Client, m *Mutex)) {
		synctest.Test(t, func(t *testing.T) {
			var f fuse
			f.calls.Store(-1)
			c, r := newFake(t, 3, Config{Observer: &Observer{Lost: func(context.Context, string, error) { f.use() }}})
			m := c.NewMutex("k", ttl)
			require.NoError(t, m.TryLock(t.Context()))
			var kept []context.Context
			for range 5 {
				held, _ := m.KeepAlive(t.Context())
				kept = append(kept, held)
			}
			r.set(flush, all(3)...)
			f.calls.Store(0)
			require.Panics(t, func() { ends(c, m) })
			for _, held := range kept {
				require.ErrorIs(t, context.Cause(held.(*keepAlive).Context), ErrLost) // not by a look at the clock
			}
			require.Zero(t, c.Stats().Kept)
		})
	}
	lossy(func(_ *Client, m *Mutex) { m.Extend(context.Background()) })
	lossy(func(c *Client, _ *Mutex) { c.Close() })

	masters := redlocktest.Start(t, 1)
	c := opened(t, masters.Addrs(), &Observer{Lost: func(context.Context, string, error) { panic("the user's") }})
	m := c.NewMutex("k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	m.KeepAlive(t.Context())
	require.Panics(t, func() { c.Close() })
	require.ErrorIs(t, m.Extend(t.Context()), ErrClosed, "the connections have ended")
	require.NoError(t, c.Close())
}

// The context of a KeepAlive panics when the KeepAlive is taken off it: the release goes out
// nevertheless.
func TestUnlockReleasesThoughAKeepAlivesContextPanics(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		var f fuse
		f.calls.Store(-1)
		parent, cancel := context.WithCancel(context.Background())
		defer cancel()
		m := taken(t, c)
		m.KeepAlive(brittle{parent, &f})
		waiter := c.NewMutex("k", ttl)
		waited := make(chan error, 1)
		go func() { waited <- waiter.Lock(t.Context()) }()
		synctest.Wait()
		began := r.now()
		f.calls.Store(0)
		require.Panics(t, func() { m.Unlock(context.Background()) })
		f.calls.Store(-1)
		require.Empty(t, m.Token())
		require.NoError(t, conntest.Soon(t, "the waiter has it", waited))
		require.Less(t, r.now()-began, ttl/2, "it is released, and has not expired")
		require.NoError(t, waiter.Unlock(t.Context()))
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
		nothingIsLeft(t, c, "")
	})
}

func TestOneContextThatPanicsKeepsNoOtherAlive(t *testing.T) {
	for name, ends := range map[string]func(c *Client, m *Mutex, r *fakeRounds){
		"Unlock": func(_ *Client, m *Mutex, _ *fakeRounds) { m.Unlock(context.Background()) },
		"Extend": func(_ *Client, m *Mutex, r *fakeRounds) {
			r.set(flush, all(3)...)
			m.Extend(context.Background())
		},
		"Close": func(c *Client, _ *Mutex, _ *fakeRounds) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				var f fuse
				f.calls.Store(-1)
				parent, cancel := context.WithCancel(context.Background())
				defer cancel()
				m := taken(t, c)
				before, _ := m.KeepAlive(context.Background())
				m.KeepAlive(brittle{parent, &f})
				after, _ := m.KeepAlive(context.Background())
				var derived []context.Context // which do not look at the clock
				for _, held := range []context.Context{before, after} {
					d, stop := context.WithCancel(held)
					defer stop()
					derived = append(derived, d)
				}
				f.calls.Store(0)
				require.Panics(t, func() { ends(c, m, r) })
				f.calls.Store(-1)
				synctest.Wait()
				for _, d := range derived {
					require.Error(t, d.Err())
				}
			})
		})
	}
}

// A lock that ran out is taken again. The Observer, which hears of the loss only then, panics.
func TestPanicAboutAnOldLossTakesNothing(t *testing.T) {
	fails := false
	observer := &Observer{Lost: func(context.Context, string, error) {
		if fails {
			panic("the user's")
		}
	}}
	simulated(t, 3, Config{Observer: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		_, stop := m.KeepAlive(context.Background())
		defer stop()
		r.suspend(2 * ttl) // timers do not count it
		fails = true
		require.Panics(t, func() { m.TryLock(context.Background()) })
		fails = false
		require.Empty(t, m.Token())
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
		nothingIsLeft(t, c, "")
	})
}

// What is given back is kept alive by nobody, though somebody has seen it.
func TestLockThatIsGivenBackIsNotKeptAlive(t *testing.T) {
	var m *Mutex
	var held context.Context
	observer := &Observer{Round: func(_ context.Context, r Round) {
		if r.Op == OpLock && r.Err == nil && held == nil {
			held, _ = m.KeepAlive(context.Background()) // or another goroutine that has seen Remaining
			panic("the user's")
		}
	}}
	simulated(t, 3, Config{Observer: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		m = c.NewMutex("k", ttl)
		released := false
		c.rounds = &hookedRounds{rounds: r, sending: func(*mux.Op) {
			released = true
			require.Error(t, held.Err(), "another can have it from here on")
		}}
		require.Panics(t, func() { m.TryLock(t.Context()) })
		require.True(t, released)
		require.ErrorIs(t, context.Cause(held), ErrLost)
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, c.NewMutex("k", ttl).TryLock(t.Context()))
		require.Zero(t, c.Stats().Kept)
	})
}

// A lock that is over is released though an Observer panics that is told of it.
func TestPanicOfAnObserverLeavesNoLockThatIsGivenBack(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		_, stop := m.KeepAlive(t.Context())
		defer stop()
		token := []byte(m.Token())
		c.observe.Lost = func(context.Context, string, error) { panic("the user's") }
		require.PanicsWithValue(t, "the user's", func() { c.renewer.giveBack(&m.hold, token, 0, nil) })
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}
