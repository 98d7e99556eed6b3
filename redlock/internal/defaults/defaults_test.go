package defaults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestARoundWaitsForATwentiethOfTheTTLWithinBounds(t *testing.T) {
	const ms = time.Millisecond
	for ttl, want := range map[time.Duration]time.Duration{
		10 * ms: 20 * ms, 100 * ms: 20 * ms, 250 * ms: 50 * ms, time.Second: 200 * ms, 4 * time.Second: 200 * ms,
		6 * time.Second: 300 * ms, 10 * time.Second: 500 * ms, time.Minute: 500 * ms,
	} {
		require.Equal(t, want, RoundTimeout(ttl), "of %v", ttl)
	}
}
