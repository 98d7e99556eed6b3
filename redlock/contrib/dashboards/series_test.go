package dashboards

import (
	"context"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/redburst/redburst/redlock"
	redlockprom "github.com/redburst/redburst/redlock/contrib/prometheus"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// soon is how long what should come at once may take before a test gives up.
const soon = 20 * time.Second

// Between two scrapes, on a clock of our own.
const interval = 15 * time.Second

// A database has the samples of series.
type database struct {
	series map[string]*series // by their labels
	scrape int
}

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

func (d *database) add(l labels.Labels, scrape int, value float64) {
	if d.series == nil {
		d.series = map[string]*series{}
	}
	s := d.series[l.String()]
	if s == nil {
		s = &series{labels: l}
		d.series[l.String()] = s
	}
	s.samples = append(s.samples, sample{at(scrape).UnixMilli(), value})
}

// at is when a scrape was.
func at(scrape int) time.Time { return time.UnixMilli(0).Add(time.Duration(scrape) * interval) }

// scraped adds what a collector has, as Prometheus does: with a job and an instance.
func (d *database) scraped(t *testing.T, from prometheus.Gatherer) {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.Metric {
			add := func(suffix string, value float64, more ...string) {
				b := labels.NewBuilder(labels.FromStrings(append(more, "__name__", f.GetName()+suffix, "job", "service", "instance", "host:80")...))
				for _, l := range m.Label {
					b.Set(l.GetName(), l.GetValue())
				}
				d.add(b.Labels(), d.scrape, value)
			}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				h := m.Histogram
				add("_sum", h.GetSampleSum())
				add("_count", float64(h.GetSampleCount()))
				add("_bucket", float64(h.GetSampleCount()), "le", "+Inf")
				for _, b := range h.Bucket {
					add("_bucket", float64(b.GetCumulativeCount()), "le", strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
				}
			case dto.MetricType_COUNTER, dto.MetricType_GAUGE:
				add("", m.Counter.GetValue()+m.Gauge.GetValue())
			default:
				t.Fatalf("%s is a %v", f.GetName(), f.GetType())
			}
		}
	}
	d.scrape++
}

// of is the database of series as promql's own tests write them: one in a line, with a value for each
// scrape.
func of(t *testing.T, lines ...string) *database {
	t.Helper()
	d := new(database)
	for _, line := range lines {
		l, values, err := parser.ParseSeriesDesc(line)
		require.NoError(t, err, line)
		for i, v := range values {
			if !v.Omitted {
				d.add(l, i, v.Value)
			}
		}
		d.scrape = max(d.scrape, len(values))
	}
	return d
}

// query evaluates an expression at the last scrape.
func (d *database) query(t *testing.T, expr string) promql.Vector {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	defer engine.Close()
	q, err := engine.NewInstantQuery(t.Context(), d, nil, expr, at(d.scrape-1))
	require.NoError(t, err, expr)
	defer q.Close()
	r := q.Exec(t.Context())
	require.NoError(t, r.Err, expr)
	require.Empty(t, r.Warnings, expr)
	v, err := r.Vector()
	require.NoError(t, err, expr)
	var all promql.Vector
	for _, s := range v {
		if !math.IsNaN(s.F) {
			all = append(all, s)
		}
	}
	return all
}

// lived is the database of a service that has used locks, by an embedded client: all that there is to
// be seen of one has happened between the scrapes. A master is down at the end.
func lived(t *testing.T) *database {
	t.Helper()
	ctx := t.Context()
	masters := redlocktest.Embedded(t, 3)
	metrics := redlockprom.New()
	client, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), Observers: []redlock.Observer{metrics.Observer()},
		RoundTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	metrics.Watch(client)
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(metrics))
	until := func(what string, f func(s redlock.Stats) bool) {
		t.Helper()
		require.Eventually(t, func() bool { return f(client.Stats()) }, soon, 5*time.Millisecond, what)
	}
	until("all are up", func(s redlock.Stats) bool {
		return s.Masters[0].Phase == "up" && s.Masters[1].Phase == "up" && s.Masters[2].Phase == "up"
	})
	d := new(database)
	for range 4 { // what is to be a rate has to be there before it grows
		m, other := client.NewMutex("k", 30*time.Second), client.NewMutex("k", 30*time.Second)
		require.NoError(t, m.TryLock(ctx))
		require.NoError(t, m.Extend(ctx))
		done := make(chan error, 1)
		go func() { done <- other.Lock(ctx) }()
		until("it waits", func(s redlock.Stats) bool { return s.Waiting == 1 })
		require.NoError(t, m.Unlock(ctx))
		require.NoError(t, <-done)
		require.NoError(t, other.Unlock(ctx))
		both := client.NewMutex("l", 30*time.Second, redlock.WithSecond(open{}))
		require.NoError(t, both.TryLock(ctx))
		require.NoError(t, both.Unlock(ctx))
		d.scraped(t, registry)
	}
	masters.Kill(0)
	until("one is down", func(s redlock.Stats) bool { return s.Masters[0].Phase == "down" })
	d.scraped(t, registry)
	return d
}

// open is a second lock that everybody gets.
type open struct{}

func (open) TryLock(context.Context, string) (redlock.SecondLock, error) { return open{}, nil }
func (open) Lock(context.Context, string) (redlock.SecondLock, error)    { return open{}, nil }
func (open) Context() context.Context                                    { return context.Background() }
func (open) Fence() uint64                                               { return 1 }
func (open) Unlock(context.Context) error                                { return nil }

func (d *database) Querier(int64, int64) (storage.Querier, error) { return querier{d}, nil }

type querier struct{ *database }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &set{at: -1}
next:
	for _, s := range q.series {
		for _, m := range matchers {
			if !m.Matches(s.labels.Get(m.Name)) {
				continue next
			}
		}
		found.all = append(found.all, storage.NewListSeries(s.labels, s.samples))
	}
	return found
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

type set struct {
	all []storage.Series
	at  int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *set) At() storage.Series                { return s.all[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

type sample struct {
	ms    int64
	value float64
}

func (s sample) T() int64                      { return s.ms }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
