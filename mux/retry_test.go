package mux

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a master has refused is sent again half a second after the first refusal, however many come meanwhile.
func TestRefusalsDoNotPutOffTheNextDelivery(t *testing.T) {
	t.Parallel()
	m := Mux{slots: make([]slot, 1)}
	s := &m.slots[0]
	refuse := func(now time.Duration) {
		m.sendLater(0, m.takeFlight(&Op{Persist: time.Hour}, now), now)
	}
	first := time.Minute
	for now := first; now < first+retryEvery; now += retryEvery / 10 {
		refuse(now)
		m.retry(now)
		require.Zero(t, s.debts.len())
	}
	m.retry(first + retryEvery)
	require.Equal(t, 10, s.debts.len())
	require.Zero(t, s.refused.len())
	refuse(first + 2*retryEvery)
	m.retry(first + 2*retryEvery)
	require.Equal(t, 1, s.refused.len(), "it counts anew")
}

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
