package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/clock"
)

func TestClockGoesOn(t *testing.T) {
	t.Parallel()
	const d = 10 * time.Millisecond
	wall := time.Now() // first: what passes between the two readings is not clock.Now's
	before := clock.Now()
	require.Positive(t, before)
	<-time.After(d)
	passed := clock.Now() - before
	require.GreaterOrEqual(t, passed, d)
	require.LessOrEqual(t, passed, time.Since(wall)+time.Millisecond)
}

func TestAfterIsForeverWhereTheSumWouldOverflow(t *testing.T) {
	t.Parallel()
	require.Equal(t, 3*time.Second, clock.After(time.Second, 2*time.Second))
	require.Equal(t, clock.Forever, clock.After(1, clock.Forever))
	require.Equal(t, time.Hour, clock.After(-time.Hour, 2*time.Hour), "it was before the clock began")
	require.Equal(t, clock.Forever, clock.After(clock.Forever, clock.Forever))
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		clock.Now()
	}
}
