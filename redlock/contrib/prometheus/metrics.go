package redlockprom

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
)

// Metrics is a prometheus.Collector of one client. It is made by New. All its methods may be called by
// any number of goroutines at once.
type Metrics struct {
	client atomic.Pointer[redlock.Client]
	key    func(key string) string // nil for no label

	rounds, waits, holds *prometheus.HistogramVec
	phases               *prometheus.CounterVec
}

// An Option of New.
type Option func(*Metrics)

// WithKeyLabel has the histograms have a label "key", which is what label returns for a lock's key. Each
// value is a further set of series, and they are kept for ever: label should return one of a few words,
// such as the part of the key before its first colon.
func WithKeyLabel(label func(key string) string) Option {
	return func(m *Metrics) { m.key = label }
}

// New returns the metrics of a client that is still to be opened. Its Config is to have their Observer.
func New(opts ...Option) *Metrics {
	m := new(Metrics)
	for _, opt := range opts {
		opt(m)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		if m.key != nil {
			labels = append(labels, "key")
		}
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m.rounds = histogram("redlock_round_duration_seconds", "Duration of a round, from its start to its decision.", behind.RoundBuckets, "op", "outcome")
	m.waits = histogram("redlock_wait_duration_seconds", "For how long a Lock that had to wait has waited, after its first attempt.", behind.WaitBuckets, "outcome")
	m.holds = histogram("redlock_hold_duration_seconds", "For how long locks were held that were released.", behind.HoldBuckets)
	m.phases = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "redlock_master_phase_changes_total",
		Help: "How often a master has entered a phase, or has another reason to be in it."}, []string{"master", "phase"})
	return m
}

// Watch has the client's Stats be collected from now on, instead of those of a client before it. If the process goes on
// when it has closed the client, unregister the Metrics: all masters are down then, for which there is an alert.
func (m *Metrics) Watch(client *redlock.Client) { m.client.Store(client) }

// Observer returns what is to be told what the client does.
func (m *Metrics) Observer() redlock.Observer { return m.told }

func (m *Metrics) told(_ context.Context, e *redlock.Event) {
	switch e.Kind {
	case redlock.EventRound:
		m.observe(m.rounds, e.Took, e.Key, e.Op, redlock.Outcome(e.Err))
		if held := behind.OfEvent(e).Held; held != 0 {
			m.observe(m.holds, held, e.Key)
		}
	case redlock.EventWaited:
		m.observe(m.waits, e.Took, e.Key, redlock.Outcome(e.Err))
	case redlock.EventMaster:
		m.phases.WithLabelValues(e.Master.Addr, e.Master.Phase).Inc()
	}
}

func (m *Metrics) observe(h *prometheus.HistogramVec, d time.Duration, key string, labels ...string) {
	if m.key != nil {
		labels = append(labels, strings.ToValidUTF8(m.key(key), "\uFFFD"))
	}
	h.WithLabelValues(labels...).Observe(d.Seconds())
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.observed() {
		c.Describe(to)
	}
	for _, n := range numbers {
		to <- n.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.observed() {
		c.Collect(to)
	}
	if client := m.client.Load(); client != nil {
		collect(client.Stats(), to)
	}
}

func (m *Metrics) observed() [4]prometheus.Collector {
	return [...]prometheus.Collector{m.rounds, m.waits, m.holds, m.phases}
}
