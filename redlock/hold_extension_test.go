package redlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/stretchr/testify/require"
)

// Whoever asks for more time may look at the answer so late that the time it gives is over,
// while others have extended the lock further, or have released it. The Observer is told what
// is left of the lock: never less than nothing.
func TestObserverIsToldWhatIsLeftOfTheLock(t *testing.T) {
	type late struct {
		op   Op
		does func(ctx context.Context, m *Mutex)
	}
	extend := late{OpExtend, func(ctx context.Context, m *Mutex) { m.Extend(ctx) }}
	renewal := late{OpRenew, func(ctx context.Context, m *Mutex) {
		_, stop := m.KeepAlive(ctx)
		defer stop()
		time.Sleep(2 * ttl)
	}}
	recheck := late{OpRecheck, func(_ context.Context, m *Mutex) { m.client.rechecker.recheck([]*hold{&m.hold}) }}
	for name, c := range map[string]struct {
		late
		meanwhile func(t *testing.T, m *Mutex) // takes longer than the lock is valid
	}{
		"Extend, others have extended":   {extend, keepExtending},
		"recheck, others have extended":  {recheck, keepExtending},
		"renewal, others have extended":  {renewal, keepExtending},
		"recheck, others have unlocked":  {recheck, unlockAtOnce},
		"renewal, others have unlocked":  {renewal, unlockAtOnce},
		"renewal, and nobody else cares": {renewal, func(*testing.T, *Mutex) { time.Sleep(ttl) }},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				m := taken(t, client)
				var told []Round
				client.observe.Round = func(_ context.Context, round Round) {
					if round.Op == c.op {
						told = append(told, round)
					}
				}
				arrived, let := make(chan struct{}), make(chan struct{})
				var first *mux.Op
				client.rounds = &hookedRounds{rounds: r, waited: func(_ context.Context, op *mux.Op) {
					if first == nil && asks(op, kind.ExtendScript) {
						first = op
						close(arrived)
						<-let
					}
				}}
				over := make(chan struct{})
				go func() {
					defer close(over)
					c.does(t.Context(), m)
				}()
				conntest.Soon(t, "its answers have come", arrived)
				told = nil
				c.meanwhile(t, m)
				told = nil // of the others
				left := m.Remaining()
				close(let)
				synctest.Wait()
				require.NotEmpty(t, told)
				if told[0].Err == nil {
					require.Equal(t, left, told[0].Validity)
				}
				conntest.Soon(t, "it is over", over)
			})
		})
	}
}

func keepExtending(t *testing.T, m *Mutex) {
	for range 8 {
		time.Sleep(ttl / 4)
		require.NoError(t, m.Extend(context.Background()))
	}
}

func unlockAtOnce(t *testing.T, m *Mutex) { require.NoError(t, m.Unlock(context.Background())) }

// An extension that is found to have failed when the Mutex holds its next lock takes nothing
// away from that.
func TestLossOfALockSparesTheNextOne(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(func(f *fakeMaster) { clear(f.keys) }, 0, 1)
		c.rounds = &hookedRounds{rounds: r, waited: func(_ context.Context, op *mux.Op) {
			if asks(op, kind.ExtendScript) {
				c.rounds = r
				time.Sleep(2 * time.Millisecond) // all have answered
				m.Unlock(context.Background())
				time.Sleep(2 * time.Millisecond)
				require.NoError(t, m.TryLock(context.Background()))
			}
		}}
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		require.Positive(t, m.Remaining())
	})
}

// The first Extend of a lock that was handed over may come too late. Then the lock is over, as
// any other, and is released.
func TestHandedOverLockThatIsExtendedTooLateIsReleased(t *testing.T) {
	simulated(t, 3, Config{DriftFactor: 0.5}, func(t *testing.T, c *Client, r *fakeRounds) {
		h := c.NewMutex("k", ttl, WithToken(taken(t, c).Token()))
		c.rounds = r.late(ttl * 2 / 3)
		require.ErrorIs(t, h.Extend(t.Context()), ErrExpired)
		time.Sleep(2 * time.Millisecond)
		require.Zero(t, r.keys())
		require.ErrorIs(t, h.Extend(t.Context()), ErrNotHeld)
	})
}

// A renewal that was under way when its KeepAlive was stopped still finds a loss.
func TestRenewalOfAStoppedKeepAliveFindsALoss(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		stops := make(chan context.CancelFunc, 1)
		c.rounds = &hookedRounds{rounds: r, waited: func(context.Context, *mux.Op) { (<-stops)() }}
		r.set(func(f *fakeMaster) { clear(f.keys) }, 0, 1)
		_, stop := m.KeepAlive(t.Context())
		stops <- stop
		time.Sleep(ttl / 2)
		require.Zero(t, m.Remaining())
	})
}

// Renewals that are over make room for others.
func TestRenewalsThatAreOverAreNotUnderWay(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		_, stop := m.KeepAlive(t.Context())
		defer stop()
		time.Sleep(5 * ttl)
		c.renewer.mu.Lock()
		defer c.renewer.mu.Unlock()
		require.Zero(t, c.renewer.sending)
	})
}
