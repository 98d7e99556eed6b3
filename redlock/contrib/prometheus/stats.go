package redlockprom

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("redlock_"+name, help, labels, nil)
}

var (
	attempts = desc("attempts_total", "Attempts to take a lock, by how they ended.", "outcome")
	wakes    = desc("wakes_total", "Waits in Lock that ended to try again, by why.", "reason")

	masterPhase    = desc("master_phase", "1 for the phase that the master is in, 0 for the others.", "master", "phase")
	masterRTT      = desc("master_rtt_seconds", "Smoothed round trip of the master; 0 before the first.", "master")
	masterReplies  = desc("master_replies_total", "Replies of the master.", "master")
	masterFailures = desc("master_failures_total", "Votes of the master that failed.", "master")
	masterOwed     = desc("master_owed", "Answers that the master owes.", "master")
	masterDebts    = desc("master_debts", "Releases to be delivered when the master is back, or to be repeated.", "master")
)

// counts are the metrics that are one number of the Stats.
var counts = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *redlock.Stats) float64
}{
	{desc("released_total", "Locks released, confirmed by a quorum."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.Released) }},
	{desc("extended_total", "Locks extended by Extend."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.Extended) }},
	{desc("renewals_total", "Renewals sent by KeepAlive."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.Renewals) }},
	{desc("renewals_failed_total", "Renewals sent by KeepAlive without success."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.RenewalsFailed) }},
	{desc("renewals_notified_total", "Renewals sent at once, as masters had notified of a change of the key."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.RenewalsNotified) }},
	{desc("lost_total", "Contexts of KeepAlive that ended because the lock was lost."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.Lost) }},
	{desc("fences_raised_total", "Locks that took a second round to agree on their fence."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.FenceRaised) }},
	{desc("releases_failed_total", "Releases that no quorum has confirmed, or whose lock had been lost."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.ReleaseFailed) }},
	{desc("second_locks_total", "Second locks taken, behind the one on the masters."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.Second.Count) }},
	{desc("second_locks_seconds_total", "The time that taking second locks has taken."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return s.Second.Sum.Seconds() }},
	{desc("second_locks_failed_total", "Locks released again, as the second lock was not to be had."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.SecondFailed) }},
	{desc("events_dropped_total", "Events left out, as an Observer was too slow."),
		prometheus.CounterValue, func(s *redlock.Stats) float64 { return float64(s.EventsDropped) }},
	{desc("events_waiting", "Events that the slowest Observer is still to be told."),
		prometheus.GaugeValue, func(s *redlock.Stats) float64 { return float64(s.EventsWaiting) }},
	{desc("waiting", "Goroutines that wait in Lock."),
		prometheus.GaugeValue, func(s *redlock.Stats) float64 { return float64(s.Waiting) }},
	{desc("kept", "KeepAlives that renew a lock; a lock can have several."),
		prometheus.GaugeValue, func(s *redlock.Stats) float64 { return float64(s.Kept) }},
}

// phases are those of redlock.MasterStats.
var phases = [...]mux.Phase{mux.Dialing, mux.Up, mux.Stalled, mux.Down, mux.Refused, mux.Quarantined}

func collect(s redlock.Stats, to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		send(d, prometheus.CounterValue, float64(value), labels...)
	}
	for _, c := range counts {
		send(c.desc, c.kind, c.value(&s))
	}
	counter(attempts, s.Acquired, "ok")
	counter(attempts, s.Held, "held")
	counter(attempts, s.NoQuorum, "no_quorum")
	counter(attempts, s.Expired, "expired")
	counter(attempts, s.Cancelled, "cancelled")
	counter(wakes, s.WokenFree, "free")
	counter(wakes, s.WokenHeld, "held")
	counter(wakes, s.WokenExpiry, "expiry")
	counter(wakes, s.WokenLocal, "local")
	counter(wakes, s.WokenPoll, "poll")
	for _, m := range s.Masters {
		for _, phase := range phases {
			is := 0.0
			if string(m.Phase) == phase.String() {
				is = 1
			}
			send(masterPhase, prometheus.GaugeValue, is, m.Addr, phase.String())
		}
		send(masterRTT, prometheus.GaugeValue, m.RTT.Seconds(), m.Addr)
		counter(masterReplies, m.Replies, m.Addr)
		counter(masterFailures, m.Failures, m.Addr)
		send(masterOwed, prometheus.GaugeValue, float64(m.Owed), m.Addr)
		send(masterDebts, prometheus.GaugeValue, float64(m.Debts), m.Addr)
	}
}
