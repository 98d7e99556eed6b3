//go:build !race

package redlockprom

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/stretchr/testify/require"
)

func TestObserverAllocatesNothing(t *testing.T) {
	observer := New().Observer()
	ctx := t.Context()
	round := redlock.Event{Kind: redlock.EventRound, Op: "unlock", Key: "k", Took: time.Millisecond}
	behind.OfEvent(&round).Held = time.Second
	waited := redlock.Event{Kind: redlock.EventWaited, Key: "k", Took: time.Second}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		observer(ctx, &round)
		observer(ctx, &waited)
	}))
}
