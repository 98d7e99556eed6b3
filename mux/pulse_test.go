package mux

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The interval falls until a connection holds, and not because of what else ends connections.
func TestPulseFindsTheLimit(t *testing.T) {
	t.Parallel()
	for _, limit := range []time.Duration{2 * time.Second, 3 * time.Second, 50 * time.Second, 100 * time.Second} {
		p := pulse{every: 2 * time.Minute}
		cuts := 0
		for range 100 {
			if p.every >= limit {
				p.ended(limit)
				cuts++
			} else {
				p.lived(p.every)
			}
		}
		require.LessOrEqual(t, cuts, 2, limit)
		require.GreaterOrEqual(t, p.every, min(limit/2, time.Minute), limit)
		held := p.every
		for range 100 { // its master is restarted, and it is idle in between
			p.ended(held / 2)
			p.lived(held)
		}
		require.Equal(t, held, p.every, limit)
		for range 2 {
			p.ended(held / 2) // the limit is another now
		}
		if held >= 2*time.Second {
			require.Equal(t, max(time.Second, held/4), p.every, limit)
		}
	}
	p := pulse{every: 2 * time.Minute}
	for range 100 { // it was in use
		p.ended(time.Second - 1)
	}
	require.Equal(t, 2*time.Minute, p.every)
}
