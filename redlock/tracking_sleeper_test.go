package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/stretchr/testify/require"
)

// sleeper returns a listener that is woken by each push of "k".
func sleeper(t *testing.T, c *Client) *tracking.Listener {
	s := new(tracking.Listener)
	s.Init(&c.tracking)
	s.Listen(1, 1, "k")
	t.Cleanup(s.End)
	return s
}

// What comes before a goroutine sleeps wakes it once, however often it came, and nothing wakes it twice.
func TestASleeperIsWokenOnce(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := sleeper(t, c)
		hook := func() { // with the mux locked
			r.mu.Lock()
			defer r.mu.Unlock()
			c.tracking.Push(0, []byte("k"))
		}
		for _, wake := range []func(){s.Wake, hook} {
			wake()
			wake()
			since := r.now()
			require.NoError(t, s.Sleep(t.Context()))
			require.Zero(t, r.now()-since)

			time.AfterFunc(time.Second, wake)
			require.NoError(t, s.Sleep(t.Context()))
			require.Equal(t, time.Second, r.now()-since)

			wake()
			s.Clear()
			time.AfterFunc(time.Second, wake)
			require.NoError(t, s.Sleep(t.Context()))
			require.Equal(t, 2*time.Second, r.now()-since)
		}
	})
}

// A wake that comes while the goroutine is on its way to sleep is not lost, wherever on that way it is.
func TestAWakeOnTheWayToSleepIsNotLost(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := sleeper(t, c)
		before := func(*mux.Op) { s.Wake() }
		for range 2 {
			for _, way := range []*hookedRounds{{Mux: r, posting: before}, {Mux: r, posted: s.Wake}, {Mux: r, posting: before, posted: s.Wake}} {
				c.round.Mux = way
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				since := r.now()
				require.NoError(t, s.Sleep(ctx))
				require.Zero(t, r.now()-since)

				c.round.Mux = r
				require.ErrorIs(t, s.Sleep(ctx), context.DeadlineExceeded, "it was woken once")
				cancel()
			}
		}
	})
}

func TestASleeperEndsWithItsContextAndItsClient(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		s := sleeper(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.Sleep(ctx), context.DeadlineExceeded)
		time.AfterFunc(time.Second, func() { c.Close() })
		require.ErrorIs(t, s.Sleep(t.Context()), mux.ErrClosed)
	})
}
