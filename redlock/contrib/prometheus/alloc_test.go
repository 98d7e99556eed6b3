//go:build !race

package redlockprom

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

func TestObserverAllocatesNothing(t *testing.T) {
	observer := New().Observer()
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		observer.Round(ctx, redlock.Round{Op: "unlock", Key: "k", Took: time.Millisecond, Held: time.Second})
		observer.WaitEnd(ctx, "k", time.Second, nil)
	}))
}
