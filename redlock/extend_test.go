package redlock

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/stretchr/testify/require"
)

// Of two extends under way at once, the first finds that a quorum had lost the
// key, and gives it back. What the second sees then is what the first has set and
// is about to release: it does not make the lock valid again.
func TestExtendDoesNotReviveWhatAnotherFoundLost(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		token := m.Token()
		r.set(flush, 0, 1, 2)
		first, second := make(chan error), make(chan error)
		go func() { first <- m.Extend(t.Context()) }()
		synctest.Wait() // it is posted
		r.set(func(m *fakeMaster) { m.delay = 5 * time.Millisecond }, 0, 1, 2, 3, 4)
		go func() { second <- m.Extend(t.Context()) }()
		require.ErrorIs(t, conntest.Soon(t, "the first returns", first), ErrNotHeld)
		require.ErrorIs(t, conntest.Soon(t, "the second returns", second), ErrNotHeld)
		require.Zero(t, m.Remaining())
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.holders("k", token))
	})
}

// An Unlock takes the lock away from an Extend that is under way, and its release follows. The
// Extend releases nothing by itself: the Unlock would find the lock gone, and call that a loss.
func TestExtendDuringAnUnlockLeavesTheReleaseToIt(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		extended, unlocked := make(chan error, 1), make(chan error, 1)
		releasing := make(chan struct{})
		m := taken(t, c)
		token := m.Token()
		c.rounds = &hookedRounds{rounds: r,
			posting: func(op *mux.Op) {
				if asks(op, kind.ReleaseScript) { // of the Unlock, which has taken the lock away
					close(releasing)
					require.ErrorIs(t, conntest.Soon(t, "the Extend returns", extended), ErrNotHeld)
				}
			},
			waited: func(_ context.Context, op *mux.Op) {
				if asks(op, kind.ExtendScript) {
					go func() { unlocked <- m.Unlock(t.Context()) }()
					<-releasing
				}
			}}
		extended <- m.Extend(t.Context())
		require.NoError(t, conntest.Soon(t, "the Unlock returns", unlocked), "it was held until then")
		time.Sleep(10 * time.Millisecond) // the last masters have it
		require.Zero(t, r.holders("k", token))
	})
}

// Another round has prolonged the lock while an Extend was under way, whose answer
// comes after the validity that it began with.
func TestSlowExtendTakesNothingAway(t *testing.T) {
	for _, renews := range []string{"KeepAlive", "Extend"} {
		t.Run(renews, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				time.Sleep(m.Remaining() - 40*time.Millisecond)
				r.set(func(m *fakeMaster) { m.delay = 10 * time.Millisecond }, all(3)...)
				held, stop := t.Context(), func() {}
				first := make(chan error, 1)
				if renews == "KeepAlive" {
					held, stop = m.KeepAlive(t.Context())
					first <- nil
				} else {
					go func() { first <- m.Extend(t.Context()) }()
				}
				defer stop()
				time.Sleep(5 * time.Millisecond)
				r.set(func(m *fakeMaster) { m.delay = 40 * time.Millisecond }, all(3)...)
				require.NoError(t, m.Extend(t.Context()))
				require.NoError(t, conntest.Soon(t, "the first returns", first))
				require.NoError(t, held.Err())
				require.Positive(t, m.Remaining())
				require.Equal(t, 3, r.holders("k", m.Token()))
			})
		})
	}
}

// An Extend whose caller stands still after the answers, until the lock is over or until
// others have extended it further.
func TestExtendThatLooksTooLate(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(m.Remaining() - 20*time.Millisecond)
		now := c.now
		var looks atomic.Int64
		c.now = func() time.Duration {
			if looks.Add(1) == 2 { // after the answers
				time.Sleep(100 * time.Millisecond)
			}
			return now()
		}
		require.ErrorIs(t, m.Extend(t.Context()), ErrExpired)
		require.Zero(t, m.Remaining())
	})
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl, WithRoundTimeout(10*ttl))
		require.NoError(t, m.TryLock(t.Context()))
		c.rounds = r.late(ttl + ttl/10)
		first := make(chan error, 1)
		go func() { first <- m.Extend(t.Context()) }()
		for range 5 {
			time.Sleep(ttl / 4)
			require.NoError(t, m.Extend(t.Context()))
		}
		require.NoError(t, conntest.Soon(t, "the first returns", first))
		require.Positive(t, m.Remaining())
	})
}
