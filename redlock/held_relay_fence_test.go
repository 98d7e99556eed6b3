package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/stretchr/testify/require"
)

// One round is the release and the acquire: it says whether the lock was held, and gives the next one its number.
func TestALockWithAFenceIsHandedOverByOneRound(t *testing.T) {
	simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 3, WithFence())
		token := all[0].secretly()
		for i, m := range all[:3] {
			if i == 2 {
				time.Sleep(ttl / 3)
			}
			before, until, since, passes := m.Fence(), m.validUntil(), r.now(), r.asked(0, "pass")
			m.leave(t.Context())
			require.Empty(t, all[i+1].locked, "it waits for its number")
			require.NoError(t, soon(t, m.unlocked))
			require.NoError(t, soon(t, all[i+1].locked))
			require.Equal(t, token, all[i+1].secretly())
			synctest.Wait() // two masters are enough for both, and the third may be later in the same moment
			require.Equal(t, time.Millisecond, r.now()-since)
			require.Equal(t, passes+1, r.asked(0, "pass"))
			if i == 2 { // a renewal would be due
				until = quorum.NewTerm(ttl, 0.01).Until(since)
			}
			require.Equal(t, until, all[i+1].validUntil())
			require.Greater(t, all[i+1].Fence(), before)
		}
		require.NoError(t, all[3].Unlock(t.Context()))
		r.gone(t, time.Millisecond)
		require.EqualValues(t, 4, c.Stats().Acquired)
		require.EqualValues(t, 4, c.Stats().Released)
	})
}

// While a lock with a fence stays in the process, no other command is about it.
func TestAHandOverWithAFenceIsOneCommandToEachMaster(t *testing.T) {
	simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 20, WithFence())
		before := len(r.logs(0))
		for i, m := range all[:20] {
			m.leave(t.Context())
			require.NoError(t, soon(t, all[i+1].locked))
		}
		time.Sleep(time.Millisecond)
		require.Len(t, r.logs(0)[before:], 20)
		require.Equal(t, 20, r.asked(0, "pass"))
	})
}

// If the masters give different numbers, the greatest is raised on a quorum before anybody has it.
func TestAPassWhoseNumbersDifferIsRaised(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 1, WithFence())
		for i := range 3 {
			r.set(func(m *fakeMaster) { m.counters["k"] += int64(1+i) * 1_000_000 }, i)
		}
		all[0].leave(t.Context())
		require.NoError(t, soon(t, all[0].unlocked))
		require.Empty(t, all[1].locked)
		require.NoError(t, soon(t, all[1].locked))
		raised := 0
		for i := range 3 {
			r.set(func(m *fakeMaster) {
				if uint64(m.counters["k"]) >= all[1].Fence() {
					raised++
				}
			}, i)
		}
		require.GreaterOrEqual(t, raised, 2)
		require.EqualValues(t, 1, c.Stats().FenceRaised)
		require.Equal(t, 1, r.asked(0, "pass"))
	})
}

// Too few masters answer, or their counters are not believed: the next one has no number, and asks the masters itself.
func TestAPassWithoutANumberGivesNoLock(t *testing.T) {
	far := func(m *fakeMaster) { m.counters["k"] += 10 * round.FenceSkew.Microseconds() }
	for name, test := range map[string]struct {
		harm, mend func(m *fakeMaster)
		unlocked   error
	}{
		"too few answer":       {freeze, thaw, ErrNoQuorum},
		"counters far ahead":   {far, func(m *fakeMaster) { m.counters["k"] = 0 }, nil},
		"it is lost meanwhile": {flush, func(*fakeMaster) {}, ErrNotHeld},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				all := runners(t, c, 1, WithFence())
				token, before := all[0].secretly(), all[0].Fence()
				r.set(test.harm, 0, 1)
				all[0].leave(t.Context())
				require.ErrorIs(t, soon(t, all[0].unlocked), test.unlocked)
				require.Empty(t, all[1].locked)
				r.set(test.mend, 0, 1)
				require.NoError(t, soon(t, all[1].locked))
				require.NotEqual(t, token, all[1].secretly())
				require.Greater(t, all[1].Fence(), before)
				require.NoError(t, all[1].Unlock(t.Context()))
				r.gone(t, 10*time.Millisecond)
			})
		})
	}
}

// A waiter that leaves while its number is asked for declines the lock, and the next one has it.
func TestAWaiterLeavesBeforeItHasItsNumber(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ctx, cancel := context.WithCancel(t.Context())
		all := []*runner{{taken(t, c, WithFence()), nil, make(chan error, 1)}, waitsFor(t, c, ctx, WithFence()), waitsFor(t, c, t.Context(), WithFence())}
		token, before := all[0].secretly(), all[0].Fence()
		all[0].leave(t.Context())
		time.Sleep(500 * time.Microsecond)
		cancel()
		require.ErrorIs(t, soon(t, all[1].locked), context.Canceled)
		require.NoError(t, soon(t, all[0].unlocked))
		require.NoError(t, soon(t, all[2].locked))
		require.NotEqual(t, token, all[2].secretly())
		require.Greater(t, all[2].Fence(), before)
		require.NoError(t, all[2].Unlock(t.Context()))
		r.gone(t, 10*time.Millisecond)
	})
}

// Close releases a lock whose next holder has no number yet.
func TestCloseReleasesALockThatIsBeingCounted(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.round.Mux = &graceRounds{Mux: r}
		all := runners(t, c, 1, WithFence())
		token := all[0].secretly()
		require.NoError(t, all[0].Release())
		synctest.Wait()
		require.NoError(t, c.Close())
		require.ErrorIs(t, soon(t, all[1].locked), ErrClosed)
		require.Zero(t, r.holders("k", token))
	})
}

// A pass sets the lock nowhere again. So the relay ends before a minority that has lost it grows to a majority.
func TestARelayWithAFenceWearsOut(t *testing.T) {
	simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
		var all sync.WaitGroup
		var lost atomic.Int32
		end := r.now() + 10*ttl
		for range 4 {
			all.Go(func() {
				m := c.NewMutex("k", ttl, WithFence())
				for r.now() < end {
					require.NoError(t, m.Lock(t.Context()))
					time.Sleep(10 * time.Millisecond)
					if m.Unlock(t.Context()) != nil {
						lost.Add(1)
					}
				}
			})
		}
		for i := range 6 {
			time.Sleep(3 * ttl / 2)
			r.set(func(m *fakeMaster) { clear(m.keys) }, i%3)
		}
		all.Wait()
		require.Zero(t, lost.Load())
	})
}
