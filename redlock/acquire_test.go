package redlock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/stretchr/testify/require"
)

func TestTakenExactlyWhereTheFreeAreAMajority(t *testing.T) {
	for n := 1; n <= 7; n++ {
		simulated(t, n, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			for mask := range uint(1) << n {
				taken := subset(mask)
				r.set(flush, all(n)...)
				r.set(occupy, taken...)
				m := c.NewMutex("k", ttl)
				err := m.TryLock(t.Context())
				if 2*(n-len(taken)) > n {
					require.NoError(t, err, "%d masters, taken %v", n, taken)
					require.NoError(t, m.Unlock(t.Context()))
				} else {
					require.ErrorIs(t, err, ErrHeld, "%d masters, taken %v", n, taken)
					require.NotErrorIs(t, err, ErrNoQuorum)
				}
				time.Sleep(5 * time.Millisecond)
				require.Equal(t, len(taken), r.keys(), "nothing of ours may be left, nothing of theirs gone")
			}
		})
	}
}

func TestSplitVoteIsHeldAndLeavesNothing(t *testing.T) {
	simulated(t, 4, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c2 := newClient(Config{}, r, r.now)
		a, b := c.NewMutex("k", ttl), c2.NewMutex("k", ttl)
		r.set(func(m *fakeMaster) { m.delay = 10 * time.Millisecond }, 2, 3)
		errs := make(chan error, 1)
		go func() { errs <- a.TryLock(t.Context()) }() // is first at masters 0 and 1
		time.Sleep(5 * time.Millisecond)
		r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"b's", r.clock() + ttl} }, 2, 3)
		require.ErrorIs(t, b.TryLock(t.Context()), ErrHeld)
		require.ErrorIs(t, conntest.Soon(t, "it is decided", errs), ErrHeld)
		r.set(flush, 2, 3)
		r.gone(t, 20*time.Millisecond)
	})
}

func TestEndedContextAsksNobody(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errCause)
		m := c.NewMutex("k", ttl)
		for _, err := range []error{m.TryLock(ctx), m.Lock(ctx)} {
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, errCause)
		}
		time.Sleep(5 * time.Millisecond)
		require.Empty(t, r.logs(0))
		m = taken(t, c)
		require.ErrorIs(t, m.Extend(ctx), errCause)
		require.Positive(t, m.Remaining())
	})
}

// The Observer is told of the loss of a lock that ran out before the next one is taken: one
// that unlocks what was lost, as KeepAlive says one should, releases nothing of that.
func TestLockIsNotReleasedByWhoHearsOfTheLossOfTheOneBefore(t *testing.T) {
	for name, lock := range map[string]func(*Mutex, context.Context) error{"TryLock": (*Mutex).TryLock, "Lock": (*Mutex).Lock} {
		t.Run(name, func(t *testing.T) {
			var m *Mutex
			losses := 0
			observer := onEvent(EventLost, func(_ *Event) {
				losses++
				m.Unlock(context.Background())
			})
			simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
				m = taken(t, c)
				held, stop := m.KeepAlive(context.Background())
				defer stop()
				r.suspend(2 * ttl) // no timer has come yet
				require.NoError(t, lock(m, t.Context()))
				require.Equal(t, 1, losses)
				require.ErrorIs(t, context.Cause(held), ErrLost)
				require.NotEmpty(t, m.Token())
				require.Positive(t, m.Remaining())
				time.Sleep(10 * time.Millisecond)
				require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrHeld)
			})
		})
	}
}

// A lock that ran out is released when the Mutex takes the next: a master that was frozen
// meanwhile still has its key, or has yet to set it.
func TestNothingIsLeftOfALockThatRanOutBeforeTheNext(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(freeze, 2)
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.TryLock(t.Context()))
		token := m.Token()
		time.Sleep(ttl)
		require.NoError(t, m.TryLock(t.Context()))
		require.NotEqual(t, token, m.Token())
		require.NoError(t, m.Unlock(t.Context()))
		r.set(thaw, 2) // it does all that it was sent
		r.gone(t, 10*time.Millisecond)

		r.set(freeze, 2) // and the next one is refused
		require.NoError(t, m.TryLock(t.Context()))
		token = m.Token()
		time.Sleep(ttl)
		other, _ := another(t, r, Config{})
		require.NoError(t, other.NewMutex("k", ttl).TryLock(t.Context()))
		require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld)
		r.set(thaw, 2)
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.holders("k", token))
	})
}

// Of two TryLocks on one Mutex the first pauses until its lock is over and the
// second has taken the next one.
func TestLateSuccessSparesAYoungerLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl)
		now := c.now
		var once atomic.Bool
		c.now = func() time.Duration {
			at := now()
			if !once.Swap(true) {
				time.Sleep(ttl + 10*time.Millisecond)
			}
			return at
		}
		first := make(chan error, 1)
		go func() { first <- m.TryLock(context.Background()) }()
		time.Sleep(ttl + 5*time.Millisecond)
		require.NoError(t, m.TryLock(t.Context()))
		token := m.Token()
		require.ErrorIs(t, conntest.Soon(t, "the first returns", first), ErrExpired)
		require.Equal(t, token, m.Token())
		require.NoError(t, m.Unlock(t.Context()))
		r.gone(t, 10*time.Millisecond)
	})
}
