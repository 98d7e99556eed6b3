package redlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A user's context may panic at each call of it, wherever that is. It leaves nothing behind.

// Whatever call of a context panics, in whichever operation: the caller that recovers has
// taken no lock that it knows nothing of, and nobody else notices.
func TestPanicOfAContextLeavesNothing(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
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
			Says(t, masters, i, "SET", "k", "another's", "PX", "20")
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
				Says(t, masters, i, "SET", "k", "another's", "PX", "20")
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
		"Do that waits": func(*Mutex) {
			require.NoError(t, c.Do(ctx, "k", term30, func(ctx context.Context) error { return ctx.Err() }, WithWait(time.Minute)))
		},
		"Acquire that waits": func(*Mutex) {
			_, release, err := c.Acquire(ctx, "k", term30, WithWait(time.Minute))
			require.NoError(t, err)
			defer release()
			require.NoError(t, release())
		},
		"Acquire": func(*Mutex) {
			_, release, err := c.Acquire(ctx, "k", ttl)
			require.NoError(t, err)
			defer release()
			require.NoError(t, release())
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
				require.Zero(t, c.busy.Load(), at)
				nothingIsLeft(t, c, at)
			})
			require.Positive(t, panics)
		})
	}
}

// A context can panic when the end of a lock ends it. What the caller held is let go of all the same.
func TestAPanicAtTheEndOfALockLeavesNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		var f fuse
		ctx := brittle{t.Context(), &f}
		panics := everyPanic(t, &f, func() {
			c.Do(ctx, "k", ttl, func(context.Context) error {
				r.suspend(time.Hour)
				return nil
			})
		}, func(_ bool, at string) {
			require.Zero(t, c.Stats().Kept, at)
			require.Zero(t, c.busy.Load(), at)
			require.Empty(t, recheckedHolds(c), at)
			time.Sleep(time.Second)
		})
		require.Positive(t, panics)
	})
}

// A cause that is the caller's own can panic when it is asked what it is. The release of an Acquire does not ask.
func TestAReleaseDoesNotAskTheCauseOfItsContext(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	for range 2 {
		ctx, cancel := context.WithCancelCause(t.Context())
		_, release, err := c.Acquire(ctx, "k", term30)
		require.NoError(t, err)
		cancel(brittleCause{})
		require.NoError(t, release())
		require.Zero(t, c.busy.Load())
		require.NoError(t, c.Do(t.Context(), "k", term30, func(context.Context) error { return nil }, WithWait(time.Minute)))
	}
}

type brittleCause struct{}

func (brittleCause) Error() string { return "the caller's" }
func (brittleCause) Is(error) bool { panic("the cause's") }

func TestUnlockWithoutAContextReleasesAllTheSame(t *testing.T) {
	t.Parallel()
	c := opened(t, redlocktest.Start(t, 3).Addrs(), nil)
	var none context.Context
	for _, unlock := range []func(*Mutex){func(m *Mutex) { m.Unlock(none) }, func(m *Mutex) { m.UnlockNow(none) }} {
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.TryLock(t.Context()))
		require.PanicsWithValue(t, "redlock: the context is nil", func() { unlock(m) })
		require.Empty(t, m.Token())
		nothingIsLeft(t, c, "")
	}
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
		r.gone(t, 10*time.Millisecond)
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

// What is given back is kept alive by nobody, though somebody has seen it.
func TestLockThatIsGivenBackIsNotKeptAlive(t *testing.T) {
	var m *Mutex
	var held context.Context
	observer := onEvent(EventRound, func(r *Event) {
		if r.Op == opLock && r.Err == nil && held == nil {
			held, _ = m.KeepAlive(context.Background()) // or another goroutine that has seen Remaining
			panic("the user's")
		}
	})
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		m = c.NewMutex("k", ttl)
		released := false
		c.round.Mux = &hookedRounds{Mux: r, sending: func(*mux.Op) {
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
