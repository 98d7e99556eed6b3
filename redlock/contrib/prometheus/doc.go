// Package redlockprom shows Prometheus what a redlock client does, and how its masters are.
//
//	metrics := redlockprom.New()
//	client, err := redlock.Open(ctx, redlock.Config{Masters: masters, Observers: []redlock.Observer{metrics.Observer()}})
//	metrics.Watch(client)
//	prometheus.MustRegister(metrics)
//
// # Metrics
//
// From [redlock.Client.Stats], read at each scrape:
//
//	redlock_attempts_total{outcome}               attempts to take a lock on the masters, whatever becomes of the second
//	                                              one: ok, held, no_quorum, expired, cancelled
//	redlock_released_total                        locks released, confirmed by a quorum
//	redlock_releases_failed_total                 releases that no quorum has confirmed, or whose lock had been lost
//	redlock_extended_total                        locks extended by Extend
//	redlock_renewals_total                        renewals sent by KeepAlive
//	redlock_renewals_failed_total                 ... and without success
//	redlock_renewals_notified_total               ... at once, as masters had notified of a change of the key
//	redlock_lost_total                            contexts of KeepAlive that ended because the lock was lost
//	redlock_revoked_total                         ... because it was revoked, which lost_total does not count
//	redlock_fences_raised_total                   locks that took a second round to agree on their fence
//	redlock_second_locks_total                    second locks taken, behind the one on the masters (WithSecond)
//	redlock_second_locks_seconds_total            ... and the time that this has taken
//	redlock_second_locks_failed_total             locks released again, as the second lock was not to be had
//	redlock_wakes_total{reason}                   waits that ended: free, held, expiry, local, poll
//	redlock_waiting                               goroutines that wait in Lock
//	redlock_kept                                  KeepAlives that renew a lock; a lock can have several
//	redlock_events_dropped_total                  events left out, as an Observer was too slow
//	redlock_events_waiting                        events that the slowest Observer is still to be told
//	redlock_master_phase{master,phase}            1 for the phase that a master is in, 0 for the others
//	redlock_master_rtt_seconds{master}            smoothed round trip
//	redlock_master_replies_total{master}          replies
//	redlock_master_failures_total{master}         votes that failed
//	redlock_master_owed{master}                   answers outstanding
//	redlock_master_debts{master}                  releases to be delivered when it is back
//
// From the Observer, which has to be in the client's Config:
//
//	redlock_round_duration_seconds{op,outcome}    a round, from its start to its decision: op is lock, extend,
//	                                              unlock, renew, recheck or revoke, outcome that of redlock.Outcome
//	redlock_wait_duration_seconds{outcome}        a Lock that had to wait, after its first attempt
//	redlock_hold_duration_seconds                 from taking a lock to releasing it
//	redlock_master_phase_changes_total{master,phase}
//	                                              that a master has entered a phase, or is in it for another reason
//	                                              (down, then down with another error); also between two scrapes
//
// How many of the locks that were taken had to be waited for:
//
//	sum(rate(redlock_wait_duration_seconds_count{outcome="ok"}[5m])) / sum(rate(redlock_attempts_total{outcome="ok"}[5m]))
//
// The attempts with the outcome held do not say that: a Lock that queues behind another of its own process asks no
// master, and one that tries again counts again. They are for those who ask once, by TryLock or redlock.WithWait(0).
//
// A lock that is held is in redlock_kept only if it is kept alive, as Do, Lead and KeepAlive do. Of the
// others the client knows nothing until they are released. Nor does it know how long a lock was held that
// ran out, so that is in no histogram.
//
// Keys are no labels, as there can be any number of them. [WithKeyLabel] makes a label of what they have in
// common.
//
// # Lifetimes
//
// A Metrics is of one client. It can be registered before Watch, and collects the histograms alone until
// then. After Client.Close it goes on collecting what was counted last; its masters are down then. It keeps
// the client from being collected as garbage until it is unregistered itself.
//
// Several clients of one process have a Metrics each, with a label that tells them apart:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"client": "orders"}, registry).MustRegister(metrics)
//
// A dashboard and alert rules for these metrics are in redlock/contrib/dashboards.
package redlockprom
