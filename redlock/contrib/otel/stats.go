package redlockotel

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// seconds is the unit of times. They are read in nanoseconds, and shown as what the unit says.
const seconds = "s"

// A number is a metric that is read from the Stats.
type number struct {
	name, unit, description string
	grows                   bool // it counts what has happened, and not what is so now
	read                    func(s *redlock.Stats, is func(n uint64, attributes ...attribute.KeyValue))
}

var numbers = []number{
	{"redlock.lock.attempts", "{attempt}", "Attempts to take a lock, by how they ended.", true, func(s *redlock.Stats, is func(uint64, ...attribute.KeyValue)) {
		more := behind.OfStats(s)
		is(s.Acquired, keyOutcome.String("ok"))
		is(s.Held, keyOutcome.String("held"))
		is(s.NoQuorum, keyOutcome.String("no_quorum"))
		is(more.Expired, keyOutcome.String("expired"))
		is(more.Cancelled, keyOutcome.String("cancelled"))
	}},
	{"redlock.wait.wakes", "{wake}", "Waits in Lock that ended to try again, by why.", true, func(s *redlock.Stats, is func(uint64, ...attribute.KeyValue)) {
		more := behind.OfStats(s)
		is(more.WokenFree, keyReason.String("free"))
		is(more.WokenHeld, keyReason.String("held"))
		is(more.WokenExpiry, keyReason.String("expiry"))
		is(more.WokenLocal, keyReason.String("local"))
		is(more.WokenPoll, keyReason.String("poll"))
	}},
	one("redlock.lock.released", "{lock}", "Locks released, confirmed by a quorum.", true, func(s *redlock.Stats) uint64 { return s.Released }),
	one("redlock.lock.extended", "{lock}", "Locks extended by Extend.", true, func(s *redlock.Stats) uint64 { return behind.OfStats(s).Extended }),
	one("redlock.lock.lost", "{lock}", "Contexts of KeepAlive that ended because the lock was lost.", true, func(s *redlock.Stats) uint64 { return s.Lost }),
	one("redlock.lock.revoked", "{lock}", "Contexts of KeepAlive that ended because the lock was revoked.", true, func(s *redlock.Stats) uint64 { return s.Revoked }),
	one("redlock.lock.kept", "{keepalive}", "KeepAlives that renew a lock; a lock can have several.", false, func(s *redlock.Stats) uint64 { return uint64(s.Kept) }),
	one("redlock.lock.waiting", "{waiter}", "Goroutines that wait in Lock.", false, func(s *redlock.Stats) uint64 { return uint64(s.Waiting) }),
	one("redlock.renewal.sent", "{renewal}", "Renewals sent by KeepAlive.", true, func(s *redlock.Stats) uint64 { return s.Renewals }),
	one("redlock.renewal.failed", "{renewal}", "Renewals sent by KeepAlive without success.", true, func(s *redlock.Stats) uint64 { return s.RenewalsFailed }),
	one("redlock.renewal.notified", "{renewal}", "Renewals sent at once, as masters had notified of a change of the key.", true, func(s *redlock.Stats) uint64 { return s.RenewalsNotified }),
	one("redlock.release.failed", "{release}", "Releases that no quorum has confirmed, or whose lock had been lost.", true, func(s *redlock.Stats) uint64 { return s.ReleaseFailed }),
	one("redlock.second.taken", "{lock}", "Second locks taken, behind the one on the masters.", true, func(s *redlock.Stats) uint64 { return behind.OfStats(s).SecondTaken }),
	one("redlock.second.time", seconds, "The time that taking second locks has taken.", true, func(s *redlock.Stats) uint64 { return uint64(behind.OfStats(s).SecondTime) }),
	one("redlock.second.failed", "{lock}", "Locks released again, as the second lock was not to be had.", true, func(s *redlock.Stats) uint64 { return behind.OfStats(s).SecondFailed }),
	one("redlock.events.dropped", "{event}", "Events left out, as an Observer was too slow.", true, func(s *redlock.Stats) uint64 { return s.EventsDropped }),
	one("redlock.events.waiting", "{event}", "Events that the slowest Observer is still to be told.", false, func(s *redlock.Stats) uint64 { return uint64(s.EventsWaiting) }),
	one("redlock.fence.raised", "{lock}", "Locks that took a second round to agree on their fence.", true, func(s *redlock.Stats) uint64 { return s.FenceRaised }),

	{"redlock.master.status", "1", "1 for the phase that the master is in, 0 for the others.", false, func(s *redlock.Stats, is func(uint64, ...attribute.KeyValue)) {
		for _, m := range s.Masters {
			for phase := range mux.Quarantined + 1 { // which is the last
				n := uint64(0)
				if m.Phase == phase.String() {
					n = 1
				}
				is(n, append(place(m.Addr), keyPhase.String(phase.String()))...)
			}
		}
	}},
	each("redlock.master.rtt", seconds, "Smoothed round trip of the master; 0 before the first.", false, func(m *redlock.MasterStats) uint64 { return uint64(m.RTT) }),
	each("redlock.master.replies", "{reply}", "Replies of the master.", true, func(m *redlock.MasterStats) uint64 { return behind.OfMaster(m).Replies }),
	each("redlock.master.failures", "{vote}", "Votes of the master that failed.", true, func(m *redlock.MasterStats) uint64 { return behind.OfMaster(m).Failures }),
	each("redlock.master.owed", "{reply}", "Answers that the master owes.", false, func(m *redlock.MasterStats) uint64 { return uint64(behind.OfMaster(m).Owed) }),
	each("redlock.master.debts", "{release}", "Releases to be delivered when the master is back, or to be repeated.", false, func(m *redlock.MasterStats) uint64 { return uint64(m.Debts) }),
}

// one is a number of the client.
func one(name, unit, description string, grows bool, read func(*redlock.Stats) uint64) number {
	return number{name, unit, description, grows, func(s *redlock.Stats, is func(uint64, ...attribute.KeyValue)) { is(read(s)) }}
}

// each is a number of each master.
func each(name, unit, description string, grows bool, read func(*redlock.MasterStats) uint64) number {
	return number{name, unit, description, grows, func(s *redlock.Stats, is func(uint64, ...attribute.KeyValue)) {
		for i := range s.Masters {
			is(read(&s.Masters[i]), place(s.Masters[i].Addr)...)
		}
	}}
}

// Watch has the client's Stats be reported at each export, until what it returns is unregistered. An error
// is the meter's.
func (t *Telemetry) Watch(client *redlock.Client) (metric.Registration, error) {
	return t.watch(client.Stats)
}

func (t *Telemetry) watch(stats func() redlock.Stats) (metric.Registration, error) {
	all := make([]metric.Observable, len(numbers))
	var errs []error
	for i, n := range numbers {
		var err error
		unit, about := metric.WithUnit(n.unit), metric.WithDescription(n.description)
		switch {
		case n.unit == seconds && n.grows:
			all[i], err = t.meter.Float64ObservableCounter(n.name, unit, about)
		case n.unit == seconds:
			all[i], err = t.meter.Float64ObservableGauge(n.name, unit, about)
		case n.grows:
			all[i], err = t.meter.Int64ObservableCounter(n.name, unit, about)
		default:
			all[i], err = t.meter.Int64ObservableUpDownCounter(n.name, unit, about)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		for i, n := range numbers {
			n.read(&s, func(value uint64, attributes ...attribute.KeyValue) {
				switch to := all[i].(type) {
				case metric.Float64Observable:
					o.ObserveFloat64(to, time.Duration(value).Seconds(), t.with(attributes))
				case metric.Int64Observable:
					o.ObserveInt64(to, int64(value), t.with(attributes))
				}
			})
		}
		return nil
	}, all...)
}

// with is the attributes, and those that all metrics have.
func (t *Telemetry) with(attributes []attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(slices.Concat(t.always, attributes)...))
}

// place says where a master is.
func place(address string) []attribute.KeyValue {
	if a, err := conn.ParseAddress(address); err == nil {
		address = a.Endpoint()
	}
	if host, port, err := net.SplitHostPort(address); err == nil {
		if n, err := strconv.Atoi(port); err == nil {
			return []attribute.KeyValue{keyAddress.String(host), keyPort.Int(n)}
		}
	}
	return []attribute.KeyValue{keyAddress.String(address)} // a Unix socket, or a Sentinel group
}
