package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What comes before a goroutine sleeps wakes it once, however often it came, and nothing wakes it twice.
func TestASleeperIsWokenOnce(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newSleeper(&c.core)
		hook := func() { // with the mux locked
			r.mu.Lock()
			defer r.mu.Unlock()
			s.wakeInHook()
		}
		for _, wake := range []func(){s.wake, hook} {
			wake()
			wake()
			since := r.now()
			require.NoError(t, s.sleep(t.Context()))
			require.Zero(t, r.now()-since)

			time.AfterFunc(time.Second, wake)
			require.NoError(t, s.sleep(t.Context()))
			require.Equal(t, time.Second, r.now()-since)

			wake()
			s.clear()
			time.AfterFunc(time.Second, wake)
			require.NoError(t, s.sleep(t.Context()))
			require.Equal(t, 2*time.Second, r.now()-since)
		}
	})
}

func TestASleeperEndsWithItsContextAndItsClient(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := newSleeper(&c.core)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.sleep(ctx), context.DeadlineExceeded)
		time.AfterFunc(time.Second, func() { c.Close() })
		require.ErrorIs(t, s.sleep(t.Context()), ErrClosed)
	})
}
