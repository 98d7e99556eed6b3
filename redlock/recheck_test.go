package redlock

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// A recheck, of which one round hangs, must not take locks for lost that were renewed
// while it waited.
func TestRecheckSparesWhatOthersRenew(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true // as if one were a group's
		var kept []context.Context
		for i := range 10 {
			m := c.NewMutex("k"+strconv.Itoa(i), 6*time.Second, WithRoundTimeout(time.Second))
			require.NoError(t, m.TryLock(t.Context()))
			k, stop := m.KeepAlive(t.Context())
			defer stop()
			kept = append(kept, k)
		}
		slow := c.NewMutex("slow", 60*time.Second, WithRoundTimeout(4*time.Second))
		require.NoError(t, slow.TryLock(t.Context()))
		time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
		r.set(func(m *fakeMaster) { m.keys["slow"] = fakeKey{"foreign", r.clock() + time.Hour} }, 0)
		r.set(freeze, 2)
		c.rechecker.all()
		r.set(thaw, 2)
		for _, k := range kept {
			require.NoError(t, context.Cause(k))
		}
		require.Zero(t, slow.Remaining(), "one of three has it")
	})
}

// A lock that was handed over is asked for again, too.
func TestRecheckKnowsLocksThatWereHandedOver(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true // as if one were a group's
		m := taken(t, c)
		h := c.NewMutex("k", ttl, WithToken(m.Token()))
		require.NoError(t, h.Extend(t.Context()))
		time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
		c.rechecker.remove(&m.hold)      // which must not be used any more
		r.set(flush, 0, 1)
		c.rechecker.all()
		require.Zero(t, h.Remaining())
	})
}

// A lock that a switch has put in doubt, and that is over before the masters could be
// asked again, is released.
func TestStaleSuccessIsReleased(t *testing.T) {
	simulated(t, 3, Config{DriftFactor: 0.5}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		c.rounds = &switchingRounds{r, c}
		now, looks := c.now, 0
		c.now = func() time.Duration {
			if looks++; looks == 2 { // before the recheck
				time.Sleep(ttl / 2)
			}
			return now()
		}
		require.ErrorIs(t, c.NewMutex("k", ttl, WithRoundTimeout(time.Minute)).TryLock(t.Context()), ErrNoQuorum)
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}

// switchingRounds has a group switch just after each round.
type switchingRounds struct {
	*fakeRounds
	c *Client
}

func (s *switchingRounds) Do(ctx context.Context, op *mux.Op) error {
	defer s.c.rechecker.switches.Add(1)
	return s.fakeRounds.Do(ctx, op)
}

// A recheck whose answers were looked at too late does not revive what has been seen to
// be over.
func TestRecheckRevivesNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		m := taken(t, c)
		time.Sleep(m.Remaining() - 5*time.Millisecond)
		c.rounds = &lateRounds{fakeRounds: r, late: 50 * time.Millisecond}
		c.rechecker.all()
		require.Zero(t, m.Remaining())
	})
}
