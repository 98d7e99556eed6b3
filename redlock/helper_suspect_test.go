package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Confirmed extends a lock until every master that votes has it, and its yes counts. On a busy machine a master may have
// answered the acquire late.
func Confirmed(t testing.TB, m *Mutex) {
	t.Helper()
	for until, good := time.Now().Add(hanging), 0; good < 2; {
		require.NoError(t, m.Extend(t.Context()))
		good++
		if Suspects(m) != 0 {
			good = 0
		}
		require.True(t, time.Now().Before(until), "some are suspect still")
		time.Sleep(time.Millisecond) // a master may answer a repair
	}
}

// Suspects returns how many masters' yes counts for nothing.
func Suspects(m *Mutex) int { return suspects(m).Len() }
