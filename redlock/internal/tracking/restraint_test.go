package tracking

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Where notices tell of changes, or are rare, nobody pauses.
func TestNoticesOfChangesAreActedOnAtOnce(t *testing.T) {
	var r Restraint
	at := time.Hour
	for i := range 1000 {
		at += time.Millisecond
		require.Equal(t, at, r.Due(at))
		r.Learn(i%3 == 0)
	}
	r = Restraint{}
	for range 1000 {
		at += 2*noticePauseMax + 1
		require.Equal(t, at, r.Due(at))
		r.Learn(false)
	}
	for range 2 * maxVainNotices {
		at += time.Millisecond
		at = r.Due(at)
		r.Learn(false)
	}
	require.Equal(t, at+noticePauseMax, r.Due(at+1))
	require.Equal(t, at+time.Minute, r.Due(at+time.Minute), "after a quiet time")
}

// One change among many notices that told of nothing ends no row of these; several in a row do.
func TestOneChangeEndsNoRowOfVainNotices(t *testing.T) {
	var r Restraint
	at := time.Hour
	notice := func(changed bool) (pause time.Duration) {
		at++
		due := r.Due(at)
		pause, at = due-at, due
		r.Learn(changed)
		return pause
	}
	for range 2 * maxVainNotices {
		notice(false)
	}
	for i := range 1000 {
		require.GreaterOrEqual(t, notice(i%4 == 0), noticePauseMax/2, i)
	}
	for range 2 * maxVainNotices {
		notice(true)
	}
	require.False(t, r.Doubts())
	require.Zero(t, notice(false))
}
