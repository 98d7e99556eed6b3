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

// An extension may look at the answer so late that the time it gives is over,
// while others have extended the lock further, or have released it. The Observer is told what
// is left of the lock: never less than nothing.
func TestObserverIsToldWhatIsLeftOfTheLock(t *testing.T) {
	type late struct {
		op   string
		does func(ctx context.Context, m *Mutex)
	}
	extend := late{opExtend, func(ctx context.Context, m *Mutex) { m.Extend(ctx) }}
	renewal := late{opRenew, func(ctx context.Context, m *Mutex) {
		_, stop := m.KeepAlive(ctx)
		defer stop()
		time.Sleep(2 * ttl)
	}}
	recheck := late{opRecheck, func(_ context.Context, m *Mutex) { m.client.held.Recheck(&m.hold) }}
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
				var told []Event
				client.events.hook(EventRound, func(round *Event) {
					if round.Op == c.op {
						told = append(told, *round)
					}
				})
				arrived, let := make(chan struct{}), make(chan struct{})
				var first *mux.Op
				client.round.Mux = &hookedRounds{Mux: r, waited: func(_ context.Context, op *mux.Op) {
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
					require.Equal(t, left, told[0].more.Validity)
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
		c.round.Mux = &hookedRounds{Mux: r, waited: func(_ context.Context, op *mux.Op) {
			if asks(op, kind.ExtendScript) {
				c.round.Mux = r
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
		c.round.Mux = r.late(ttl * 2 / 3)
		require.ErrorIs(t, h.Extend(t.Context()), ErrExpired)
		r.gone(t, 2*time.Millisecond)
		require.ErrorIs(t, h.Extend(t.Context()), ErrNotHeld)
	})
}

// A renewal that was under way when its KeepAlive was stopped still finds a loss.
func TestRenewalOfAStoppedKeepAliveFindsALoss(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		stops := make(chan context.CancelFunc, 1)
		c.round.Mux = &hookedRounds{Mux: r, waited: func(context.Context, *mux.Op) { (<-stops)() }}
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
		kept, _ := c.held.Size()
		require.Equal(t, 1, kept, "its KeepAlive, and no renewal")
	})
}

func TestExtendWithFailuresAndRestarts(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		// Two were down when it was taken, and are back. They are given it, and the next round confirms that. Then
		// two others go down.
		r.set(fail, 3, 4)
		m := taken(t, c)
		r.set(restart, 3, 4)
		for range 2 {
			require.NoError(t, m.Extend(t.Context()))
			time.Sleep(2 * time.Millisecond)
			require.Equal(t, 5, r.holders("k", m.Token()))
		}
		r.set(fail, 0, 1)
		require.NoError(t, m.Extend(t.Context()))
		// Too few answer: nothing is lost yet.
		until := Until(m)
		r.set(fail, 2)
		err := m.Extend(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, errFake)
		require.Positive(t, m.Remaining())
		require.WithinDuration(t, until, Until(m), time.Microsecond)
		r.set(func(m *fakeMaster) { m.down = nil }, 0, 1, 2)
		require.NoError(t, m.Extend(t.Context()))
	})
}

// An extend whose lock another finds lost while the masters answer, such as a recheck that knows of a master that was
// replaced, does not make it valid again.
func TestExtendDoesNotReviveWhatAnotherFoundLost(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		for range 2 {
			token := m.Token()
			c.round.Mux = &hookedRounds{Mux: r, waited: func(_ context.Context, op *mux.Op) {
				if asks(op, kind.ExtendScript) {
					c.held.Lose(&m.hold, []byte(token), nil)
				}
			}}
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.Zero(t, m.Remaining())
			time.Sleep(10 * time.Millisecond)
			require.Zero(t, r.holders("k", token))
			c.round.Mux = r
			require.NoError(t, m.TryLock(t.Context()))
		}
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
		c.round.Mux = &hookedRounds{Mux: r,
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
		m := Within(c.NewMutex("k", ttl), 10*ttl)
		require.NoError(t, m.TryLock(t.Context()))
		c.round.Mux = r.late(ttl + ttl/10)
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
