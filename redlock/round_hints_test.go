package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/round"
)

// A client's next hint is above the numbers of its locks, so that a master which has missed them
// has the others' number at once.
func TestALockTellsTheNextHint(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		r.set(func(m *fakeMaster) { m.counters["k"] = ahead }, 0, 1)
		m := c.NewMutex("k", ttl, WithFence())
		r.set(freeze, 2)
		for i := range 2 {
			require.NoError(t, m.TryLock(t.Context()))
			require.EqualValues(t, ahead+1+int64(i), m.Fence())
			require.NoError(t, m.Unlock(t.Context()))
			r.set(thaw, 2)
			time.Sleep(time.Millisecond)
			r.set(fail, 0) // the next quorum is of the others
		}
		require.Zero(t, c.Stats().FenceRaised)
	})
}

// A number that was seen in a refusal makes the next attempt's hint greater.
func TestARefusalTellsTheNextHint(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		r.set(func(m *fakeMaster) { occupy(m); m.counters["k"] = ahead }, 0, 1)
		m := c.NewMutex("k", ttl, WithFence())
		require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld)
		r.set(func(m *fakeMaster) { delete(m.keys, "k") }, all(3)...)
		time.Sleep(10 * time.Millisecond)              // the releases are there
		r.set(func(m *fakeMaster) { m.delay /= 2 }, 2) // it is one of the two that decide
		require.NoError(t, m.TryLock(t.Context()))
		require.Zero(t, c.Stats().FenceRaised, "the third master has the number of the others")
		require.Greater(t, m.Fence(), uint64(ahead))
	})
}

// newHints are those of a client with the defaults.
func newHints() *round.Hints {
	h := new(round.Hints)
	h.Init(defaults.FenceMemory)
	return h
}
