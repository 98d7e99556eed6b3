package redlockprom

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
)

// A number is a metric that is read from the Stats.
type number struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(s *redlock.Stats, is func(value float64, labels ...string))
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

var numbers = []number{
	several(counter, "attempts_total", "Attempts to take a lock, by how they ended.", func(s *redlock.Stats, is func(float64, ...string)) {
		is(float64(s.Acquired), "ok")
		is(float64(s.Held), "held")
		is(float64(s.NoQuorum), "no_quorum")
		is(float64(behind.OfStats(s).Expired), "expired")
		is(float64(behind.OfStats(s).Cancelled), "cancelled")
	}, "outcome"),
	one(counter, "released_total", "Locks released, confirmed by a quorum.", func(s *redlock.Stats) uint64 { return s.Released }),
	one(counter, "releases_failed_total", "Releases that no quorum has confirmed, or whose lock had been lost.", func(s *redlock.Stats) uint64 { return s.ReleaseFailed }),
	one(counter, "extended_total", "Locks extended by Extend.", func(s *redlock.Stats) uint64 { return behind.OfStats(s).Extended }),
	one(counter, "renewals_total", "Renewals sent by KeepAlive.", func(s *redlock.Stats) uint64 { return s.Renewals }),
	one(counter, "renewals_failed_total", "Renewals sent by KeepAlive without success.", func(s *redlock.Stats) uint64 { return s.RenewalsFailed }),
	one(counter, "renewals_notified_total", "Renewals sent at once, as masters had notified of a change of the key.", func(s *redlock.Stats) uint64 { return s.RenewalsNotified }),
	one(counter, "lost_total", "Contexts of KeepAlive that ended because the lock was lost.", func(s *redlock.Stats) uint64 { return s.Lost }),
	one(counter, "revoked_total", "Contexts of KeepAlive that ended because the lock was revoked.", func(s *redlock.Stats) uint64 { return s.Revoked }),
	one(counter, "fences_raised_total", "Locks that took a second round to agree on their fence.", func(s *redlock.Stats) uint64 { return s.FenceRaised }),
	one(counter, "second_locks_total", "Second locks taken, behind the one on the masters.", func(s *redlock.Stats) uint64 { return behind.OfStats(s).SecondTaken }),
	several(counter, "second_locks_seconds_total", "The time that taking second locks has taken.", func(s *redlock.Stats, is func(float64, ...string)) { is(behind.OfStats(s).SecondTime.Seconds()) }),
	one(counter, "second_locks_failed_total", "Locks released again, as the second lock was not to be had.", func(s *redlock.Stats) uint64 { return behind.OfStats(s).SecondFailed }),
	several(counter, "wakes_total", "Waits in Lock that ended to try again, by why.", func(s *redlock.Stats, is func(float64, ...string)) {
		more := behind.OfStats(s)
		is(float64(more.WokenFree), "free")
		is(float64(more.WokenHeld), "held")
		is(float64(more.WokenExpiry), "expiry")
		is(float64(more.WokenLocal), "local")
		is(float64(more.WokenPoll), "poll")
	}, "reason"),
	one(gauge, "waiting", "Goroutines that wait in Lock.", func(s *redlock.Stats) uint64 { return uint64(s.Waiting) }),
	one(gauge, "kept", "KeepAlives that renew a lock; a lock can have several.", func(s *redlock.Stats) uint64 { return uint64(s.Kept) }),
	one(counter, "events_dropped_total", "Events left out, as an Observer was too slow.", func(s *redlock.Stats) uint64 { return s.EventsDropped }),
	one(gauge, "events_waiting", "Events that the slowest Observer is still to be told.", func(s *redlock.Stats) uint64 { return uint64(s.EventsWaiting) }),

	several(gauge, "master_phase", "1 for the phase that the master is in, 0 for the others.", func(s *redlock.Stats, is func(float64, ...string)) {
		for _, m := range s.Masters {
			for phase := range mux.Quarantined + 1 { // which is the last
				n := 0.0
				if m.Phase == phase.String() {
					n = 1
				}
				is(n, m.Addr, phase.String())
			}
		}
	}, "master", "phase"),
	each(gauge, "master_rtt_seconds", "Smoothed round trip of the master; 0 before the first.", func(m *redlock.MasterStats) float64 { return m.RTT.Seconds() }),
	each(counter, "master_replies_total", "Replies of the master.", func(m *redlock.MasterStats) float64 { return float64(behind.OfMaster(m).Replies) }),
	each(counter, "master_failures_total", "Votes of the master that failed.", func(m *redlock.MasterStats) float64 { return float64(behind.OfMaster(m).Failures) }),
	each(gauge, "master_owed", "Answers that the master owes.", func(m *redlock.MasterStats) float64 { return float64(behind.OfMaster(m).Owed) }),
	each(gauge, "master_debts", "Releases to be delivered when the master is back, or to be repeated.", func(m *redlock.MasterStats) float64 { return float64(m.Debts) }),
}

func several(kind prometheus.ValueType, name, help string, read func(*redlock.Stats, func(float64, ...string)), labels ...string) number {
	return number{prometheus.NewDesc("redlock_"+name, help, labels, nil), kind, read}
}

// one is a number of the client.
func one(kind prometheus.ValueType, name, help string, read func(*redlock.Stats) uint64) number {
	return several(kind, name, help, func(s *redlock.Stats, is func(float64, ...string)) { is(float64(read(s))) })
}

// each is a number of each master.
func each(kind prometheus.ValueType, name, help string, read func(*redlock.MasterStats) float64) number {
	return several(kind, name, help, func(s *redlock.Stats, is func(float64, ...string)) {
		for i := range s.Masters {
			is(read(&s.Masters[i]), s.Masters[i].Addr)
		}
	}, "master")
}

func collect(s redlock.Stats, to chan<- prometheus.Metric) {
	for _, n := range numbers {
		n.read(&s, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(n.desc, n.kind, value, labels...)
		})
	}
}
