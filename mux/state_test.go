package mux_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

func TestStateChangesAreObservedInOrder(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var mu sync.Mutex
	seen := map[int][]mux.Phase{}
	m := open(t, mux.Config{Masters: masters.Addrs(), OnState: func(i int, s mux.State) {
		mu.Lock()
		defer mu.Unlock()
		seen[i] = append(seen[i], s.Phase)
	}})
	waitUp(t, m, 3)
	masters.Kill(1)
	eventually(t, "down", func() bool { return upCount(m) == 2 })
	masters.Restart(1)
	waitUp(t, m, 3)
	eventually(t, "all told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen[1]) >= 3 && seen[1][len(seen[1])-1] == mux.Up
	})
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []mux.Phase{mux.Up}, seen[0])
	require.Equal(t, mux.Up, seen[1][0])
	require.Equal(t, mux.Down, seen[1][1])
}

// A straggler is read when somebody reads at all, which says nothing of its master.
func TestRoundTripsAreNotThoseOfTheTick(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 5)
	var took time.Duration
	for k := range 30 {
		op := acquire(fmt.Sprint("k", k), "t")
		require.NoError(t, m.Do(t.Context(), op))
		took = max(took, op.Decided-op.Started)
		eventually(t, "the stragglers are read", func() bool { return outstanding(m) == 0 })
	}
	require.LessOrEqual(t, m.RTT(), took, "the estimate is above the longest round")
}
