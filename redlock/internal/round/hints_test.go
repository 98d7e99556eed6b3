package round

import (
	"testing"
	"testing/synctest"
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

// What is believed, what the hints follow, and at which clock they begin, at each bound.
func TestBoundsOfHints(t *testing.T) {
	defer skew.Set(0)
	synctest.Test(t, func(t *testing.T) {
		h := remembered()
		now, day := uint64(time.Now().UnixMicro()), uint64(FenceSkew.Microseconds())
		require.True(t, h.believes(now+day))
		require.False(t, h.believes(now+day+1))
		require.Equal(t, now, h.Next())
		require.Equal(t, now+1, h.Next())
		h.saw(now + day/2 + 1)
		require.Equal(t, now+2, h.Next(), "it is ahead by more than half of the skew")
		h.saw(now + day/2)
		require.Equal(t, now+day/2+1, h.Next())
		require.Equal(t, now, h.Next(), "the last one is ahead by more than half of the skew, and is not followed for ever")
		require.Equal(t, now+1, h.Next())
		time.Sleep(time.Microsecond)
		require.Equal(t, now+2, h.Next(), "a hint of this very moment was given")
		h.saw(now + 2)
		require.Equal(t, now+3, h.Next())

		for _, off := range []time.Duration{time.Until(time.UnixMicro(-1)), time.Until(time.UnixMicro(quorum.MaxFence/2 + 1))} {
			skew.Set(off)
			require.Zero(t, h.now())
		}
		for _, at := range []int64{0, 1, quorum.MaxFence / 2} {
			skew.Set(time.Until(time.UnixMicro(at)))
			require.EqualValues(t, at, h.now())
		}
	})
}

// A clock that was set back is no reason to disbelieve what was given before it.
func TestAHintIsBelievedAfterTheClockWasSetBack(t *testing.T) {
	defer skew.Set(0)
	h := remembered()
	last := h.Next()
	skew.Set(-2 * FenceSkew)
	require.True(t, h.believes(last))
	require.False(t, h.believes(last+1))
	require.Less(t, h.Next(), last, "and yet the hints do not follow it: masters would refuse them")
}
