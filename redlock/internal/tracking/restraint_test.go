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
