package redlock

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistogramBucketsAreAnEighthWide(t *testing.T) {
	at := []time.Duration{0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 1000, time.Microsecond, time.Millisecond,
		time.Second, time.Hour, math.MaxInt64 - 1, math.MaxInt64}
	last := -1
	for _, d := range at {
		i := bucketOf(d)
		require.GreaterOrEqual(t, i, last)
		last = i
		end := bucketEnd(i)
		require.GreaterOrEqual(t, end, d)
		require.LessOrEqual(t, end-d, d/8)
		if i > 0 {
			require.Less(t, bucketEnd(i-1), d)
		}
	}
	require.Equal(t, len(histogram{}.buckets)-1, last)
	require.Zero(t, bucketOf(-time.Second))
}

func TestLatencyOf99Percent(t *testing.T) {
	var h histogram
	require.Zero(t, h.p99())
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	const want = 990 * time.Millisecond
	require.GreaterOrEqual(t, h.p99(), want)
	require.LessOrEqual(t, h.p99(), want+want/8)
	var one histogram
	one.add(time.Second)
	require.GreaterOrEqual(t, one.p99(), time.Second)
}

// An attempt that was not made, or that the masters could not decide, says nothing of
// whether the lock was held.
func TestWhatWasNotDecidedWasNotHeld(t *testing.T) {
	var s stats
	s.countNotified(&RoundError{Op: opLock, failure: failure{ended: context.Canceled}})
	s.countNotified(&RoundError{Op: opLock, failure: failure{reason: ErrClosed}})
	s.countNotified(&RoundError{Op: opLock, failure: failure{reason: ErrNoQuorum}, Votes: []Vote{{Verdict: voteFailed}}})
	require.Zero(t, s.wokenHeld.Load())
	require.Zero(t, s.wokenFree.Load())
	s.countNotified(&RoundError{Op: opLock, failure: failure{reason: ErrHeld}, Votes: []Vote{{Verdict: votedNo}}})
	require.EqualValues(t, 1, s.wokenHeld.Load())
}

func TestStatsCountWhatHappens(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Hour}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		require.NoError(t, m.Extend(t.Context()))
		require.Error(t, c.NewMutex("k", ttl).TryLock(t.Context()))
		time.Sleep(time.Second)
		require.NoError(t, m.Unlock(t.Context()))
		r.set(func(m *fakeMaster) { m.delay = 2 * ttl }, 0, 1)
		require.Error(t, m.TryLock(t.Context()))
		r.set(fail, 0, 1)
		require.Error(t, m.TryLock(t.Context()))
		s := c.Stats()
		require.Equal(t, []uint64{1, 1, 1, 1, 1, 1}, []uint64{s.Acquired, s.Held, s.NoQuorum, s.more.Expired, s.Released, s.more.Extended})
		require.InDelta(t, time.Millisecond, s.AcquireP99, float64(time.Millisecond)/8)
		require.Len(t, s.Masters, 3)
		require.Equal(t, "m0", s.Masters[0].Addr)
		require.Equal(t, "up", s.Masters[0].Phase)
	})
}
