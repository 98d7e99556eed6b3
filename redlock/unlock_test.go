package redlock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/stretchr/testify/require"
)

// The key outlives the validity by the drift: whoever deletes a majority in that
// time has held the lock until then.
func TestUnlockJustAfterTheValidityIsNoLoss(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(m.Remaining() + time.Millisecond)
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// Whatever asks for more time is sent under a lock, so that no Unlock comes in between: it
// would follow the release, and set the key again.
func TestNothingIsExtendedAfterItsRelease(t *testing.T) {
	for name, c := range map[string]struct {
		lock   func(m *Mutex) *sync.Mutex
		extend func(m *Mutex)
	}{
		"Extend":  {func(m *Mutex) *sync.Mutex { return holdMu(m) }, func(m *Mutex) { m.Extend(context.Background()) }},
		"recheck": {func(m *Mutex) *sync.Mutex { return holdMu(m) }, func(m *Mutex) { m.client.held.Recheck(&m.hold) }},
		"KeepAlive": {func(m *Mutex) *sync.Mutex { return renewerMu(m.client) }, func(m *Mutex) {
			_, stop := m.KeepAlive(context.Background())
			defer stop()
			time.Sleep(ttl/quorum.RenewAfter + time.Millisecond)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				m := taken(t, client)
				posted := false
				client.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) {
					if !asks(op, kind.ExtendScript) {
						return
					}
					posted = true
					if lock := c.lock(m); lock.TryLock() { // then an Unlock can come in between
						lock.Unlock()
						require.NoError(t, m.Unlock(context.Background()))
					}
				}}
				c.extend(m)
				require.True(t, posted)
				m.Unlock(t.Context())
				r.gone(t, 10*time.Millisecond)
				requireReleasedForGood(t, r)
			})
		})
	}
}

// A local waiter's attempt follows the release on every connection, however long whoever
// releases the lock stands still before it does.
func TestLocalWaiterIsNotifiedAfterTheRelease(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		c.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) {
			if asks(op, kind.ReleaseScript) {
				synctest.Wait() // everybody who can do something has done it
			}
		}}
		next, done := c.NewMutex("k", ttl), make(chan error, 1)
		go func() { done <- next.Lock(t.Context()) }()
		for c.Stats().Held == 0 { // then the waiter polls, and pauses for a millisecond at least
			time.Sleep(time.Millisecond / 4)
		}
		refused, since := c.Stats().Held, r.now()
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, conntest.Soon(t, "the waiter has the lock", done))
		require.Equal(t, refused, c.Stats().Held, "the waiter has asked before the release was sent")
		require.Equal(t, time.Millisecond, r.now()-since)
	})
}

func TestUnlockGoesOutWhateverBecomesOfItsContext(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for at := time.Duration(0); at < 3*time.Millisecond; at += 100 * time.Microsecond {
			m := taken(t, c)
			ctx, cancel := context.WithTimeoutCause(t.Context(), at, errCause)
			if err := m.Unlock(ctx); err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, errCause)
				require.NotErrorIs(t, err, ErrNoQuorum, "no master has failed")
				require.NotErrorIs(t, err, ErrNotHeld)
			}
			cancel()
			r.gone(t, 5*time.Millisecond)
		}
	})
}
