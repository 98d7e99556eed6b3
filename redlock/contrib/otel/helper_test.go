package redlockotel

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// soon is how long what should come at once may take before a test gives up.
const soon = 20 * time.Second

// A bench is a client of real masters, and what its Telemetry has shown.
type bench struct {
	*Telemetry
	client  *redlock.Client
	opened  []*redlock.Client
	masters *redlocktest.Masters
	spans   *tracetest.SpanRecorder
	tracers *trace.TracerProvider
	meters  *metric.MeterProvider
	reader  *metric.ManualReader
}

func newBench(t *testing.T, opts ...Option) *bench {
	t.Helper()
	b := &bench{spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader(), masters: redlocktest.Start(t, 3)}
	b.tracers = trace.NewTracerProvider(trace.WithSpanProcessor(b.spans))
	b.meters = metric.NewMeterProvider(metric.WithReader(b.reader))
	var err error
	b.Telemetry, err = New(append(opts, WithTracerProvider(b.tracers), WithMeterProvider(b.meters))...)
	require.NoError(t, err)
	b.client = b.open(t, b.Telemetry)
	return b
}

// open returns a client that is watched, and whose masters are all up.
func (b *bench) open(t *testing.T, telemetry *Telemetry) *redlock.Client {
	t.Helper()
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: b.masters.Addrs(), Observers: []redlock.Observer{telemetry.Observer()},
		RoundTimeout: 10 * time.Second, DialTimeout: 10 * time.Second, StallTime: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	b.opened = append(b.opened, client)
	_, err = telemetry.Watch(client)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, m := range client.Stats().Masters {
			if m.Phase != "up" {
				return false
			}
		}
		return true
	}, soon, 5*time.Millisecond)
	return client
}

// caller returns a context with a span, and ends the span with the test.
func (b *bench) caller(t *testing.T) context.Context {
	ctx, span := b.tracers.Tracer("test").Start(t.Context(), "caller")
	t.Cleanup(func() { span.End() })
	return ctx
}

// delete deletes a key on all masters.
func (b *bench) delete(t *testing.T, key string) {
	t.Helper()
	for i := range b.masters.N() {
		_, err := b.masters.Do(i, "DEL", key)
		require.NoError(t, err)
	}
}

// waiting returns when somebody waits in Lock.
func (b *bench) waiting(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return b.client.Stats().Waiting == 1 }, soon, 5*time.Millisecond)
}

// told returns when the Observers were told what has happened.
func (b *bench) told() {
	for _, c := range b.opened {
		for c.Stats().EventsWaiting > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// ended returns the spans of a name that have ended.
func (b *bench) ended(name string) (all []trace.ReadOnlySpan) {
	b.told() // who is told ends them
	for _, s := range b.spans.Ended() {
		if s.Name() == name {
			all = append(all, s)
		}
	}
	return all
}

// only returns the one span of a name that has ended.
func (b *bench) only(t *testing.T, name string) trace.ReadOnlySpan {
	t.Helper()
	all := b.ended(name)
	require.Len(t, all, 1, name)
	return all[0]
}

// about returns the attributes by name.
func about(attributes []attribute.KeyValue) map[string]any {
	all := map[string]any{}
	for _, a := range attributes {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

// events returns what has happened in a span: each event's name, and its attributes but for the durations
// and the key.
func events(s trace.ReadOnlySpan) (all []string) {
	for _, e := range s.Events() {
		words := []string{strings.TrimPrefix(e.Name, "redlock.")}
		for _, a := range e.Attributes {
			if a.Key != keyDuration && a.Key != keyKey && a.Key != "error.message" {
				words = append(words, a.Value.String())
			}
		}
		all = append(all, strings.Join(words, " "))
	}
	return all
}

// collected returns the metrics, by name{attributes}: the value, or a histogram's count.
func (b *bench) collected(t *testing.T) map[string]float64 {
	t.Helper()
	b.told()
	var data metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(t.Context(), &data))
	all := map[string]float64{}
	add := func(name string, set attribute.Set, value float64) {
		var words []string
		for _, a := range set.ToSlice() {
			words = append(words, a.Value.String())
		}
		name = strings.TrimPrefix(name, "redlock.")
		if len(words) > 0 {
			name += "{" + strings.Join(words, ",") + "}" // by the attributes' names
		}
		all[name] = value
	}
	for _, s := range data.ScopeMetrics {
		require.Equal(t, scope, s.Scope.Name)
		for _, m := range s.Metrics {
			require.NotEmpty(t, m.Unit, m.Name)
			require.NotEmpty(t, m.Description, m.Name)
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				t.Fatalf("%s is a %T", m.Name, d)
			}
		}
	}
	return all
}
