package mux

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A master that completes each handshake, and then answers nothing, is dialled ever less often. One that
// has answered meanwhile is dialled as any other.
func TestSilentMasterIsDialledEverLessOften(t *testing.T) {
	t.Parallel()
	cfg := Config{StallTime: time.Second, BackoffMax: time.Second}
	s := slot{lastReply: time.Minute, since: time.Hour}
	ends := func(phase Phase, lasted time.Duration) time.Duration {
		s.pause = 10 * time.Millisecond
		s.backOff(phase, s.since+lasted, &cfg)
		return s.pause
	}
	require.Zero(t, ends(Down, time.Second))
	require.Equal(t, 10*time.Millisecond, ends(Down, time.Second-1))
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 16} {
		require.Equal(t, want*time.Second, ends(Stalled, 2*time.Second))
	}
	require.Equal(t, 16*time.Second, ends(Down, time.Hour), "it has answered nothing since")
	s.lastReply = s.since
	require.Equal(t, 10*time.Millisecond, ends(Stalled, time.Hour), "it has answered")
	require.Zero(t, ends(Down, time.Hour))
}
