package round

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/skew"
	"github.com/stretchr/testify/require"
)

// remembered are the hints of a client whose counters live for a day.
func remembered() *Hints {
	h := new(Hints)
	h.Init(24 * time.Hour)
	return h
}

func TestHints(t *testing.T) {
	now := uint64(time.Now().UnixMicro())
	const day = 24 * 3600 * 1_000_000
	h := remembered()
	first := h.Next()
	require.GreaterOrEqual(t, first, now)
	require.Greater(t, h.Next(), first)
	h.saw(now + day/4)
	require.Equal(t, now+day/4+1, h.Next(), "another's clock is ahead")
	require.Equal(t, now+day/4+2, h.Next())
	h.saw(now)
	require.Equal(t, now+day/4+3, h.Next())
	h.saw(now + day*3/4)
	require.Equal(t, now+day/4+4, h.Next(), "one number that is far off does not spoil all keys")
	h.saw(quorum.MaxFence)
	require.Less(t, h.Next(), now+day)
}

func TestHintsBesideAWrongClock(t *testing.T) {
	for _, year := range []int{1902, 2199} {
		skew.Set(time.Until(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)))
		h := remembered()
		first := h.Next()
		require.Less(t, first, uint64(time.Hour.Microseconds()), "numbers must be able to grow")
		require.Greater(t, h.Next(), first)
		skew.Set(0)
		h.Next()
		skew.Set(time.Until(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)))
		require.Positive(t, h.Next(), "a lock whose counters are all lost has this number, and 0 is none")
	}
	skew.Set(0)
}
