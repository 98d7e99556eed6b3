package redlock

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Histories are chosen at random, each by its seed. A test of them looks at so many, and at others in each run.
// REDLOCK_HISTORIES=n has each of these tests look at n. REDLOCK_SEED=n has it look at one alone, that of a failure.

// seeds returns the first seed of a test's histories, and how many there are, of usually so many.
func seeds(t *testing.T, usually int) (first, n uint64) {
	if seed, given := fromEnvironment(t, "REDLOCK_SEED"); given {
		return seed, 1
	}
	if n, given := fromEnvironment(t, "REDLOCK_HISTORIES"); given {
		return rand.Uint64(), n
	}
	return rand.Uint64(), uint64(usually)
}

func fromEnvironment(t *testing.T, name string) (n uint64, given bool) {
	s := os.Getenv(name)
	if s == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err, name)
	return n, true
}

// again says how to run one history of a test again.
func again(t *testing.T, seed uint64) string {
	return "REDLOCK_SEED=" + strconv.FormatUint(seed, 10) + " go test -run '" + t.Name() + "' ./redlock"
}

// Raced says that the race detector watches, which makes everything several times as slow.
var Raced bool

// fewer is n, or a part of it in a short run.
func fewer(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

// bearable is n, or a part of it where the race detector watches.
func bearable(n int) int {
	if Raced {
		return n / 3
	}
	return n
}

// bearably is d, or a part of it where the race detector watches.
func bearably(d time.Duration) time.Duration {
	return time.Duration(bearable(int(d.Microseconds()))) * time.Microsecond
}

// sequential leaves a test of what no two goroutines do at once to a run without the race detector.
func sequential(t *testing.T) {
	t.Helper()
	if Raced {
		t.Skip("nothing in it can race: it runs without the race detector")
	}
}
