package redlockotel

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/redburst/redburst/redlock/contrib/otel"

// The attributes.
const (
	keyKey       = attribute.Key("redlock.key")
	keyOperation = attribute.Key("redlock.operation")
	keyOutcome   = attribute.Key("redlock.outcome")
	keyReason    = attribute.Key("redlock.wake.reason")
	keyPhase     = attribute.Key("redlock.master.phase")
	keyDuration  = attribute.Key("redlock.round.duration")
	keyWaited    = attribute.Key("redlock.wait.duration")
	keyError     = attribute.Key("error.type")
	keyAddress   = attribute.Key("server.address")
	keyPort      = attribute.Key("server.port")
)

// A Telemetry is what OpenTelemetry is shown of one client. It is made by New. All its methods may be called
// by any number of goroutines at once.
type Telemetry struct {
	key    func(key string) string // nil for no attribute
	always []attribute.KeyValue

	tracer trace.Tracer
	meter  metric.Meter

	rounds, waits, holds metric.Float64Histogram
	changes              metric.Int64Counter
	observes             atomic.Bool                         // somebody has asked for its Observer
	known                map[[2]string][]metric.RecordOption // by operation and outcome, without a key
}

// An Option of New.
type Option func(*options)

type options struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	key     func(key string) string
	always  []attribute.KeyValue
}

// WithTracerProvider sets what makes the spans. It is otel.GetTracerProvider() otherwise.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(o *options) { o.tracers = p }
}

// WithMeterProvider sets what takes the metrics. It is otel.GetMeterProvider() otherwise.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(o *options) { o.meters = p }
}

// WithAttributes has all metrics and spans have these attributes.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(o *options) { o.always = append(o.always, attributes...) }
}

// WithKeyLabel has the histograms have an attribute redlock.key, which is what label returns for a lock's
// key. Each value is a further set of series, and they are kept for ever: label should return one of a
// few words, such as the part of the key before its first colon. It is called by the Observer's goroutine:
// one that is slow delays no lock, but events and spans.
func WithKeyLabel(label func(key string) string) Option {
	return func(o *options) { o.key = label }
}

// New returns the telemetry of a client that is still to be opened. Its Config is to have the Observer.
// An error is the meter's.
func New(opts ...Option) (*Telemetry, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.tracers == nil {
		o.tracers = otel.GetTracerProvider()
	}
	if o.meters == nil {
		o.meters = otel.GetMeterProvider()
	}
	t := &Telemetry{key: o.key, always: o.always, tracer: o.tracers.Tracer(scope), meter: o.meters.Meter(scope)}
	var errs []error
	histogram := func(name, description string, buckets []float64) metric.Float64Histogram {
		h, err := t.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	t.rounds = histogram("redlock.round.duration", "Duration of a round, from its start to its decision.", behind.RoundBuckets)
	t.waits = histogram("redlock.wait.duration", "For how long a Lock that had to wait has waited, after its first attempt.", behind.WaitBuckets)
	t.holds = histogram("redlock.hold.duration", "For how long locks were held that were released.", behind.HoldBuckets)
	var err error
	t.changes, err = t.meter.Int64Counter("redlock.master.phase_changes", metric.WithUnit("{change}"),
		metric.WithDescription("How often a master has entered a phase, or has another reason to be in it."))
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	if t.key == nil {
		t.known = map[[2]string][]metric.RecordOption{}
		for _, op := range [...]string{"", "lock", "extend", "unlock", "renew", "recheck", "revoke"} {
			for _, outcome := range [...]string{"", "ok", "held", "no_quorum", "refused", "expired", "not_held", "revoked", "second", "closed", "cancelled"} {
				t.known[[2]string{op, outcome}] = t.options("", op, outcome)
			}
		}
	}
	return t, nil
}

// record records a duration, under the operation and the outcome that are not empty. It allocates
// nothing if there are no labels of keys.
func (t *Telemetry) record(ctx context.Context, h metric.Float64Histogram, d time.Duration, key, op, outcome string) {
	opts, ok := t.known[[2]string{op, outcome}]
	if !ok {
		opts = t.options(key, op, outcome)
	}
	h.Record(ctx, d.Seconds(), opts...)
}

func (t *Telemetry) options(key, op, outcome string) []metric.RecordOption {
	var all []attribute.KeyValue
	if t.key != nil {
		all = append(all, keyKey.String(valid(t.key(key))))
	}
	if op != "" {
		all = append(all, keyOperation.String(op))
	}
	if outcome != "" {
		all = append(all, keyOutcome.String(outcome))
	}
	return []metric.RecordOption{t.with(all)}
}

// valid returns a text that is UTF-8: for one that is not, an exporter drops all it has. Keys and errors may be any bytes.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// Observer returns what is to be told what the client does.
func (t *Telemetry) Observer() redlock.Observer {
	t.observes.Store(true)
	return t.told
}

func (t *Telemetry) told(ctx context.Context, e *redlock.Event) {
	span := spanOf(ctx)
	traced := span.IsRecording()
	add := func(name string, about ...attribute.KeyValue) {
		span.AddEvent(name, trace.WithTimestamp(e.Time), trace.WithAttributes(append(about, keyKey.String(valid(e.Key)))...))
	}
	switch e.Kind {
	case redlock.EventRound:
		outcome := redlock.Outcome(e.Err)
		t.record(ctx, t.rounds, e.Took, e.Key, e.Op, outcome)
		if held := behind.OfEvent(e).Held; held != 0 {
			t.record(ctx, t.holds, held, e.Key, "", "")
		}
		if traced {
			add("redlock.round", keyOperation.String(e.Op), keyOutcome.String(outcome), keyDuration.Float64(e.Took.Seconds()))
		}
	case behind.Wait:
		if traced {
			add("redlock.wait")
		}
	case behind.Wake:
		if traced {
			add("redlock.wake", keyReason.String(behind.OfEvent(e).Why))
		}
	case redlock.EventWaited:
		t.record(ctx, t.waits, e.Took, e.Key, "", redlock.Outcome(e.Err))
		if op := operationOf(ctx); op != nil {
			op.lock.SetAttributes(keyWaited.Float64(e.Took.Seconds()))
		}
	case redlock.EventLost:
		if traced {
			add("redlock.lost", attribute.String("error.message", valid(e.Err.Error())))
		}
	case redlock.EventMaster:
		t.changes.Add(ctx, 1, t.with(append(place(e.Master.Addr), keyPhase.String(e.Master.Phase))))
	case behind.Note:
		if op, _ := ctx.Value(operationKey{}).(*operation); op != nil && op.telemetry == t {
			op.noted(false)
		}
	}
}
