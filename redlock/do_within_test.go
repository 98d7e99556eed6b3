package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func nothing(context.Context) error { return nil }

// within calls f under a lock of each way to have one: with the context that belongs to the lock.
func within(t *testing.T, c *Client, key string, f func(ctx context.Context, by string)) {
	t.Helper()
	withinTTL(t, c, key, ttl, f)
}

func withinTTL(t *testing.T, c *Client, key string, ttl time.Duration, f func(ctx context.Context, by string), opts ...Option) {
	t.Helper()
	limited, cancel := context.WithTimeout(t.Context(), 20*ttl) // where f waits for itself
	defer cancel()
	require.NoError(t, c.Do(limited, key, ttl, func(ctx context.Context) error {
		f(ctx, "Do")
		return nil
	}, opts...))
	if len(opts) == 0 { // other kinds have no leader
		require.ErrorIs(t, c.Lead(limited, key, ttl, func(ctx context.Context) error {
			f(ctx, "Lead")
			return errCause
		}), errCause)
	}
	m := c.NewMutex(key, ttl, opts...)
	require.NoError(t, m.Lock(t.Context()))
	ctx, stop := m.KeepAlive(limited)
	f(ctx, "KeepAlive")
	stop()
	require.NoError(t, m.Unlock(t.Context()))
}

// A Do within a Do of the same key would wait for itself. It fails at once, and says why, whatever takes the lock and
// however the context was derived.
func TestALockWithinItselfFailsAtOnce(t *testing.T) {
	type mine struct{}
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		within(t, c, "k", func(ctx context.Context, by string) {
			derived, cancel := context.WithTimeout(context.WithValue(context.WithoutCancel(ctx), mine{}, 1), 10*ttl)
			defer cancel()
			for _, ctx := range []context.Context{ctx, derived} {
				began, rounds := time.Now(), c.Stats().Held
				for what, err := range map[string]error{
					"Do":           c.Do(ctx, "k", ttl, func(context.Context) error { t.Error("it has it"); return nil }),
					"Do, one try":  c.Do(ctx, "k", ttl, nothing, WithWait(0)),
					"Do, bounded":  c.Do(ctx, "k", ttl, nothing, WithWait(time.Minute)),
					"Do of more":   c.Do(ctx, "j", ttl, nothing, WithKeys("k", "l")),
					"Do of reader": c.Do(ctx, "k", ttl, nothing, WithShared()),
					"Lock":         c.NewMutex("k", 2*ttl).Lock(ctx),
					"TryLock":      c.NewMutex("k", ttl, WithFence()).TryLock(ctx),
					"Lead":         c.Lead(ctx, "k", ttl, nothing),
				} {
					require.ErrorIs(t, err, ErrHeld, what)
					require.ErrorContains(t, err, `: held by the `+by+` that this context belongs to: locks are not reentrant`, what)
					require.NotContains(t, err.Error(), "another", what)
				}
				require.Zero(t, time.Since(began))
				require.Equal(t, rounds, c.Stats().Held, "no master is asked")
			}
		})
		r.gone(t, 10*time.Millisecond)
	})
}

// What is not in the caller's way is taken as ever.
func TestALockWithinAnotherIsTaken(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		other, _ := another(t, r, Config{})
		within(t, c, "k", func(ctx context.Context, _ string) {
			require.NoError(t, c.Do(ctx, "j", ttl, func(ctx context.Context) error {
				require.ErrorContains(t, c.Do(ctx, "k", ttl, nothing), "belongs to", "the outer one counts, too")
				return nil
			}))
			limited, cancel := context.WithTimeout(ctx, ttl)
			defer cancel()
			err := other.Do(limited, "k", ttl, nothing)
			require.ErrorIs(t, err, context.DeadlineExceeded, "another client knows nothing of it, and waits")
		})
	})
}

// A caller with another context waits: it may be another goroutine. Who holds the lock is said in the end.
func TestALockOfThisProcessIsWaitedFor(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		within(t, c, "k", func(context.Context, string) {
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
				err := c.Do(ctx, "k", ttl, nothing)
				cancel()
				require.ErrorIs(t, err, ErrHeld)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, `redlock: lock "k": held by this process (`)
				require.NotContains(t, err.Error(), "another")
			}
		})
		other, _ := another(t, r, Config{})
		require.NoError(t, other.NewMutex("k", 10*ttl).TryLock(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		require.ErrorContains(t, c.NewMutex("k", ttl).Lock(ctx), `redlock: lock "k": held by another (`)
	})
}

// It may have been of this process, and another's since. Who waits behind the one that was refused then is told of the other.
func TestALockThatWasOfThisProcessIsAnothersSince(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for range 2 {
			r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"a/token", r.clock() + 200*time.Millisecond} }, 0, 1, 2)
			ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
			first := waitsFor(t, c, ctx)
			var all []*runner
			for range 2 {
				all = append(all, waitsFor(t, c, ctx))
			}
			require.NoError(t, soon(t, first.locked), "while others wait")
			r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"other/AAAAAAAAAAAAAAAAAAAAAAAAAAA", r.clock() + time.Hour} }, 0, 1, 2)
			for _, m := range all {
				err := soon(t, m.locked)
				require.ErrorIs(t, err, ErrHeld)
				require.ErrorContains(t, err, "held by other on 3 of 3 masters")
				require.NotContains(t, err.Error(), "held by this process")
			}
			cancel()
			r.set(flush, 0, 1, 2)
		}
	})
}

// A context knows the lock for as long as that is held.
func TestAContextForgetsALockThatIsOver(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		var of []context.Context
		within(t, c, "k", func(ctx context.Context, _ string) { of = append(of, context.WithoutCancel(ctx)) })
		m := taken(t, c)
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		r.set(flush, 0, 1, 2)
		<-held.Done() // it is lost
		of = append(of, context.WithoutCancel(held))
		for _, ctx := range of {
			require.NoError(t, c.Do(ctx, "k", ttl, nothing))
		}
		// The Mutex has another lock now, and its context is another.
		require.NoError(t, m.Lock(of[len(of)-1]))
		again, stop := m.KeepAlive(context.Background())
		defer stop()
		require.ErrorContains(t, c.NewMutex("k", ttl).TryLock(again), "KeepAlive that this context")
		err := c.NewMutex("k", ttl).TryLock(context.WithoutCancel(held))
		require.ErrorIs(t, err, ErrHeld)
		require.NotContains(t, err.Error(), "belongs to")
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// Readers hold a lock together, and permits are several. Only what can never be had fails.
func TestReadersAndPermitsWithinThemselves(t *testing.T) {
	t.Parallel()
	c := opened(t, redlocktest.Start(t, 3).Addrs(), nil)
	const ttl = 3 * time.Second
	fails := func(err error, by string) {
		t.Helper()
		require.ErrorIs(t, err, ErrHeld)
		require.ErrorContains(t, err, "held by the "+by+" that this context")
	}
	withinTTL(t, c, "k", ttl, func(ctx context.Context, by string) {
		require.NoError(t, c.Do(ctx, "k", ttl, func(ctx context.Context) error {
			fails(c.Do(ctx, "k", ttl, nothing), "Do") // a writer
			return nil
		}, WithShared()))
		fails(c.NewMutex("k", ttl).TryLock(ctx), by)
	}, WithShared())
	for _, opt := range []Option{WithShared(), WithPermits(4)} {
		m := c.NewMutex("own", ttl, opt)
		for range 2 {
			require.NoError(t, m.Lock(t.Context()))
			held, stop := m.KeepAlive(t.Context())
			within, cancel := context.WithTimeout(held, 10*time.Second)
			err := m.Lock(within)
			cancel()
			fails(err, "KeepAlive")
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			stop()
			require.NoError(t, m.Unlock(t.Context()))
		}
	}
	withinTTL(t, c, "k", ttl, func(ctx context.Context, by string) {
		fails(c.NewMutex("k", ttl, WithPermits(1)).Lock(ctx), by)
		require.NoError(t, c.Do(ctx, "k", ttl, nothing), "another lock")
	}, WithPermits(1))
	withinTTL(t, c, "k2", ttl, func(ctx context.Context, by string) {
		k := c.held.KeepAlive(ctx, holdOf(ctx), "") // a Mutex has one permit, however often it is kept alive
		defer k.Stop()
		require.NoError(t, c.Do(k, "k2", ttl, func(ctx context.Context) error {
			fails(c.Do(ctx, "k2", ttl, nothing, WithPermits(2)), "KeepAlive") // both are held: this is the second that is found
			return nil
		}, WithPermits(2)))
	}, WithPermits(2))
}
