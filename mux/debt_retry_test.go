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
