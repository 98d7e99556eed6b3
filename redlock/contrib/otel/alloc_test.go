//go:build !race

package redlockotel

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
)

// Where there is no span, and no label of keys, an operation that is told allocates nothing.
func TestObserverAllocatesNothing(t *testing.T) {
	telemetry, err := New(WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))))
	require.NoError(t, err)
	observer := telemetry.Observer()
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		observer.Round(ctx, redlock.Round{Op: "unlock", Key: "k", Took: time.Millisecond, Held: time.Second})
		observer.WaitStart(ctx, "k")
		observer.Wake(ctx, "k", redlock.WakeFree)
		observer.WaitEnd(ctx, "k", time.Second, nil)
	}))
}
