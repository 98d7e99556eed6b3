package census

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// Since when a lock is held is said only of a holder with the fence, whose counter was given its life together with the key
// on a majority of the masters.
func TestSinceWhenIsSaidOfAHolderWithAFenceAlone(t *testing.T) {
	now := time.Now()
	taken := now.Add(-time.Hour).Truncate(time.Microsecond)
	const memory, left = 24 * time.Hour, 10 * time.Second
	for name, test := range map[string]struct {
		counters [3]time.Duration // for how long they last beyond the key
		said     bool
	}{
		"with the key":                {[3]time.Duration{memory, memory, memory}, true},
		"asked for a moment apart":    {[3]time.Duration{memory + 10*time.Millisecond, memory - 10*time.Millisecond, memory}, true},
		"the least memory":            {[3]time.Duration{time.Minute, time.Minute, time.Minute}, true},
		"on a majority":               {[3]time.Duration{memory, memory - 30*time.Second, memory}, true},
		"on a minority":               {[3]time.Duration{memory - 30*time.Second, memory, memory - 30*time.Second}, false},
		"100 ms before the key":       {[3]time.Duration{memory - 100*time.Millisecond, memory - 100*time.Millisecond, memory - 100*time.Millisecond}, false},
		"100 ms after it":             {[3]time.Duration{memory + 100*time.Millisecond, memory + 100*time.Millisecond, memory + 100*time.Millisecond}, false},
		"some seconds before it":      {[3]time.Duration{memory - 7*time.Second, memory - 7*time.Second, memory - 7*time.Second}, false},
		"it does not outlive the key": {[3]time.Duration{0, 0, 0}, false},
	} {
		tally := NewTally(3)
		for i, beyond := range test.counters {
			tally.Add(i, Row{Holders: []Holder{{Token: conn.NewSecret("t"), TTL: left}}, Fence: uint64(taken.UnixMicro()), FenceTTL: left + beyond})
		}
		want := time.Time{}
		if test.said {
			want = taken
		}
		require.True(t, want.Equal(tally.Since(now)), name)
	}
}
