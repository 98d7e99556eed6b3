//go:build !race

package redlockotel

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
)

// Where there is no span, and no label of keys, an operation that is told allocates nothing.
func TestObserverAllocatesNothing(t *testing.T) {
	telemetry, err := New(WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))))
	require.NoError(t, err)
	observer := telemetry.Observer()
	ctx := t.Context()
	events := []redlock.Event{
		{Kind: redlock.EventRound, Op: "unlock", Key: "k", Took: time.Millisecond},
		{Kind: redlock.EventRound, Op: "revoke", Key: "k", Took: time.Millisecond},
		{Kind: behind.Wait, Key: "k"},
		{Kind: behind.Wake, Key: "k"},
		{Kind: redlock.EventWaited, Key: "k", Took: time.Second},
	}
	behind.OfEvent(&events[0]).Held, behind.OfEvent(&events[3]).Why = time.Second, "free"
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		for i := range events {
			observer(ctx, &events[i])
		}
	}))
}
