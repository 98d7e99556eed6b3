package mux_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

func TestCloseWakesEveryoneAndLeavesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	fds, goroutines := openFiles(), runtime.NumGoroutine()
	for round := range 10 {
		m, err := mux.Open(context.Background(), patiently(mux.Config{Masters: masters.Addrs(), StallTime: time.Hour}))
		require.NoError(t, err)
		for i := range 3 {
			masters.Pause(i)
		}
		if round%2 == 0 { // with dials under way as well
			masters.Kill(3)
		}
		var wg sync.WaitGroup
		for g := range 20 {
			wg.Go(func() {
				for k := 0; ; k++ {
					op := acquire(fmt.Sprintf("k%d-%d-%d", round, g, k), "t")
					op.All = true
					if err := m.Do(context.Background(), op); err != nil {
						if err != mux.ErrClosed {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		eventually(t, "operations are in flight", func() bool { return m.Masters()[0].Owed > 0 || m.Masters()[0].Phase != mux.Up })
		for range 3 {
			wg.Go(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		conntest.AllEnd(t, "all have returned", &wg)
		require.ErrorIs(t, m.Do(context.Background(), acquire("k", "t")), mux.ErrClosed)
		require.ErrorIs(t, m.Do(context.Background(), acquire("k", "t")), os.ErrClosed)
		m.Send(acquire("k", "t"))
		for i := range 3 {
			masters.Resume(i)
		}
		if round%2 == 0 {
			masters.Restart(3)
		}
	}
	eventually(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines })
	if fds > 0 {
		eventually(t, "descriptors are gone", func() bool { return openFiles() <= fds })
	}
}

// Releases that are on their way when the Mux is closed arrive, unless a master is too
// slow for the 100 ms that they are given.
func TestCloseLetsReleasesArrive(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	inTime := 0
	for k := range 20 {
		m := open(t, mux.Config{Masters: masters.Addrs()})
		waitUp(t, m, 3)
		key := fmt.Sprint("k", k)
		require.NoError(t, m.Do(t.Context(), acquire(key, "t")))
		m.Send(release(key, "t"))
		began := time.Now()
		require.NoError(t, m.Close())
		if time.Since(began) >= 100*time.Millisecond {
			for i := range 3 {
				masters.Flush(i)
			}
			continue
		}
		inTime++
		for i := range 3 {
			require.Zero(t, keysOn(t, masters, i))
		}
	}
	require.Positive(t, inTime)
}
