package redlock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// An attempt that is not one of the queue does not notify the queue: the masters have
// to notify of what this client itself deletes, so tracking is without NOLOOP.
func TestWaiterLearnsOfAReleaseByAFailedTryLock(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 2)
	m := c.NewMutex("other", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()), "the first attempt waits until both have said whether they may vote")
	require.NoError(t, m.Unlock(t.Context()))
	masters.Pause(1)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- c.NewMutex("k", 30*time.Second).TryLock(ctx) }()
	SoonSays(t, masters, 0, int64(1), "EXISTS", "k")
	done := parked(t, c, "k")
	cancel()
	require.ErrorIs(t, conntest.Soon(t, "the attempt returns", failed), context.Canceled)
	masters.Resume(1)
	comes(t, done)
}

// The network has become slow since its round trips were measured.
func TestWaiterGetsALockWhenMastersHaveBecomeSlow(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithLinks())
	holder := opened(t, masters.Addrs(), nil)
	waiter := openedWith(t, Config{Masters: masters.Addrs(), StallTime: time.Minute})
	for range 20 {
		m := waiter.NewMutex("other", 30*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
	m := holder.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	masters.Delay(0, 30*time.Millisecond)
	done := parked(t, waiter, "k")
	require.NoError(t, m.Unlock(t.Context()))
	comes(t, done)
}

// sleeps has the waiter of a watch sleep again and again, until the test ends. It returns what says
// that it was woken since.
func sleeps(t *testing.T, w *line.Waiter) <-chan struct{} {
	t.Helper()
	woken := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for w.Sleep(ctx) == nil {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return woken
}

// Masters that can notify of changes may not notify that a key has expired: a waiter looks by itself then.
func TestWaiterLooksWhenTheTTLHasPassed(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, newClient(Config{}, r, r.now)) // and forgotten, by another process
		c.round.Mux = &notifiedRounds{fakeRounds: r, client: c, mum: true}
		since := r.now()
		require.NoError(t, c.NewMutex("k", ttl).Lock(t.Context()))
		require.Less(t, r.now()-since, ttl+2*lookInterval)
		require.EqualValues(t, 1, c.Stats().more.WokenExpiry)
	})
}
