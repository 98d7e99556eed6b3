// Package redlockotel shows OpenTelemetry what a redlock client does, and how its masters are: as metrics,
// and as spans.
//
//	telemetry, err := redlockotel.New()
//	client, err := redlock.Open(ctx, redlock.Config{Masters: masters, Observers: []redlock.Observer{telemetry.Observer()}})
//	watched, err := telemetry.Watch(client)
//	defer watched.Unregister()
//
//	err = telemetry.Do(ctx, client, "orders:42", 10*time.Second, func(ctx context.Context) error {
//		return work(ctx) // its spans are children of redlock.hold
//	})
//
// # Spans
//
// [Telemetry.Do], [Telemetry.Lock] and [Telemetry.TryLock] make two, which are children of the caller's:
//
//	redlock.lock    from the call until the lock is taken, or is not to be had
//	redlock.hold    from then on until it is released; it links to redlock.lock
//
// Their attribute redlock.key is the lock's key. redlock.lock has redlock.outcome, which is that of
// [redlock.Outcome], and after a wait redlock.wait.duration, in seconds. Both have error.type if they have
// failed. That another holds the lock is no error of redlock.lock, unless its context has ended because of it.
//
// The Observer adds events to them, with the time when they happened, and ends them, with theirs. It does so a moment
// later, in a goroutine of its own: a span processor that hangs delays no lock. [redlock.Client.Close] waits for it. A span
// whose events are more than a second late is ended without them.
//
//	redlock.wait     a Lock begins to wait
//	redlock.wake     it stops waiting to try again: redlock.wake.reason says why
//	redlock.round    the masters were asked: redlock.operation is lock, extend, unlock, renew, recheck or revoke
//	redlock.lost     the lock is lost, or was revoked: error.message says which
//
// Without these three functions the events are added to the span of the context that Lock, TryLock, Unlock
// and KeepAlive were given, if that has one, and has not ended: the Observer is told a moment later. A term of
// redlock.Client.Lead is no span, as it can last for days.
//
// # Metrics
//
// From [redlock.Client.Stats], read at each export ([Telemetry.Watch]):
//
//	redlock.lock.attempts          {attempt}   on the masters, whatever becomes of the second lock; redlock.outcome:
//	                                           ok, held, no_quorum, expired, cancelled
//	redlock.lock.released          {lock}      confirmed by a quorum
//	redlock.release.failed         {release}   no quorum has confirmed it, or its lock had been lost
//	redlock.lock.extended          {lock}      by Extend
//	redlock.lock.lost              {lock}      contexts of KeepAlive that ended because of it
//	redlock.lock.revoked           {lock}      ... because the lock was revoked, which lock.lost does not count
//	redlock.lock.kept              {keepalive} that renew a lock now; a lock can have several
//	redlock.lock.waiting           {waiter}    goroutines that wait in Lock now
//	redlock.renewal.sent           {renewal}
//	redlock.renewal.failed         {renewal}
//	redlock.renewal.notified       {renewal}
//	redlock.events.dropped         {event}     left out, as an Observer was too slow
//	redlock.events.waiting         {event}     that the slowest Observer is still to be told
//	redlock.fence.raised           {lock}      took a second round to agree on their fence
//	redlock.second.taken           {lock}      second locks, behind the one on the masters (redlock.WithSecond)
//	redlock.second.time            s           that taking them has taken
//	redlock.second.failed          {lock}      released again, as the second lock was not to be had
//	redlock.wait.wakes             {wake}      redlock.wake.reason: free, held, expiry, local, poll
//	redlock.master.status          1           1 for the redlock.master.phase that it is in, 0 for the others
//	redlock.master.rtt             s           smoothed round trip
//	redlock.master.replies         {reply}
//	redlock.master.failures        {vote}      votes that failed
//	redlock.master.owed            {reply}     answers outstanding
//	redlock.master.debts           {release}   to be delivered when it is back
//
// The masters have server.address and server.port. From the Observer:
//
//	redlock.round.duration         s           redlock.operation, redlock.outcome
//	redlock.wait.duration          s           redlock.outcome; of a Lock that had to wait, after its first attempt
//	redlock.hold.duration          s           from taking a lock to releasing it
//	redlock.master.phase_changes   {change}    a master has entered redlock.master.phase, or is in it for another
//	                                           reason (another error); also between two exports
//
// How often a lock had to be waited for is the count of redlock.wait.duration over that of redlock.lock.attempts with the
// outcome ok. Attempts with the outcome held do not say it: a Lock that queues behind another of its own process asks
// no master, and one that tries again counts again. They are for those who ask once, by TryLock or redlock.WithWait(0).
//
// Keys are no attributes of metrics, as there can be any number of them. [WithKeyLabel] makes one, redlock.key,
// of what they have in common.
//
// # Lifetimes
//
// A Telemetry is of one client, and several clients of one process have one each, which [WithAttributes] tells
// apart. What Watch has registered goes on reporting what was counted last after Client.Close, until it is
// unregistered.
package redlockotel
