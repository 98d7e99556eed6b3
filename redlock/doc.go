// Package redlock takes a lock on N independent Redis masters, by the Redlock
// algorithm, at the speed of one.
//
//	client, err := redlock.Open(ctx, redlock.Config{Masters: []string{"a:6379", "b:6379", "c:6379"}})
//	defer client.Close()
//
//	err = client.Do(ctx, "lock:orders:42", 10*time.Second, func(ctx context.Context) error {
//		return work(ctx) // ctx ends, cause ErrLost, if the lock does
//	})
//
// # What it does
//
// A lock is a key on the masters that holds a random token and expires after the TTL. A round
// asks all masters in one burst to set the key where it is free (SET key token NX PX ttl). T1
// is taken before the first byte is written. The lock is held if a majority said yes and, at
// the moment of looking,
//
//	validity = TTL - (now-T1) - drift,   drift = TTL*0.01 + 2 ms
//
// is above zero. [Mutex.Until] is its end. Otherwise a release goes to all masters at once,
// also to those that said no.
//
// The token is fresh for every attempt. There is one ordered connection to each master, so a
// release always follows its acquire, however late either arrives. A connection that
// breaks in between owes the release to the master as a debt. And the next attempt of this process
// follows the release, so [Mutex.Release] need not wait for the masters: then a lock costs one round
// trip, and [Mutex.Unlock] costs a second one, for which it says whether the lock was held until then.
//
// Keys and tokens are those of redsync, node-redlock, redlock-py and redlock-rb, so all of them
// exclude each other. A page says how to [come from these and from other locks], and another how to
// [run the masters].
//
// # Guarantees and assumptions
//
// At most one holder at any time looks at a valid lock, provided that all of this is so:
//
//   - The masters' clocks, measuring the TTL, run at most Config.DriftFactor faster than this
//     process's, and nobody sets a master's wall clock forward (Redis expires keys by it). Our
//     own clock is not the wall clock. It is CLOCK_BOOTTIME on Linux, which goes on counting
//     while the machine is suspended. To set a master's clock back breaks nothing. But what nobody is
//     left to renew or to delete lives on there for as much longer: the key of a holder that has
//     died, the rest of [WithMinHold], the number of permits. If that is so on a minority, nobody waits for it.
//   - A master that restarts has kept its keys (appendfsync always), or no client listens to it
//     until the longest TTL has passed. This client does so with a master that it knew. Given
//     Config.RestartGuard, it does so with one that it meets soon after its start. All other
//     clients must, too. A master that does not say who it is (it needs the right to INFO)
//     counts as restarted at every reconnect. A replica that takes a master's place counts as
//     restarted, and the client then asks again for the locks that it holds.
//   - No master of locks is made a replica, not for a moment: it takes over the other's data.
//     This client counts it as restarted if it was asked for anything meanwhile, or is
//     connected again later, since its replication id has changed. Otherwise nobody can know.
//   - A Sentinel group has one master at a time. A master that was replaced, and is cut off from
//     its sentinels but not from us, must stop taking writes (min-replicas-to-write). This needs
//     Redis 7 or Valkey: an older server lets scripts write all the same, so it goes on
//     extending locks. A switch is believed when more than half of the sentinels say so, or when
//     the master itself says that it is none any more. Only more than half of the sentinels can
//     say where the master is, then and at the start (but see Config.TrustAnySentinel).
//   - The holder checks its context or [Mutex.Remaining] before each protected action. A process
//     can be paused between the check and the action for longer than the validity. Where that
//     must do no harm, the resource has to refuse late writers by the lock's fence.
//
// # Rules
//
//  1. A cancelled context never leaves a key behind: no release uses a caller's context.
//  2. The end of the validity is computed before the caller can see success. No success is
//     reported without any validity.
//  3. Extend and renewal give the key back to a master that has lost it, but only while the
//     lock is valid by our clock: what has expired is not revived. If a quorum had lost the
//     key, the lock is lost, though all have it again: another may have held it in between.
//  4. KeepAlive's context ends at the end of the validity at the latest: its timer is set
//     before a renewal is sent.
//  5. Unlock returns nil if a quorum deleted the key, [ErrNotHeld] only if the lock was lost
//     before, and [ErrNoQuorum], or the context's error, if the masters did not answer.
//  6. A master that does not know a script is sent its text once: no loop. Where the server has
//     a native command (DELEX and MSETEX of Redis 8.4, DELIFEQ of Valkey 9.0, SET IFEQ), that takes the
//     script's place; what it cannot do the script does, in the same round.
//
// # The fence
//
// With [WithFence], a lock has a number that is greater than that of every earlier holder of its
// key. A resource that refuses a number lower than one it has seen takes no write of a holder
// whose lock is over, once a later holder has shown its own. So a holder shows its fence to the
// resource before it relies on what it reads there.
//
// Each master keeps a counter beside the key. An acquire moves it to max(counter+1, hint) where
// the key is free; the hint is the client's wall clock in microseconds. If a majority returns the
// same number, that is the fence, after one round. Otherwise the greatest of them is, once a
// second round has raised the counters of a majority that still holds the key. Extend, renewal
// and recheck raise the counter of a master that they give the key again. The proof is in decide_fence.go.
//
// It is assumed that a majority of all masters have had a lock's number, and remember it until the
// next lock is taken: for Config.FenceMemory, and beyond a restart only if they persist it. If
// fewer do, the hint keeps the numbers growing, provided that the clients' wall clocks differ by
// less than the masters were down, or Config.RestartGuard if that is longer.
//
// A number that is further ahead of this process's wall clock than Config.FenceSkew is not believed: somebody
// has written it, or the master lies. The master's vote has failed then, and its counter is set back when the lock is
// taken with the others. If that is so on a majority, the lock cannot be taken, and the error says which
// master has which number: this clock is wrong, or the counters are. A master refuses a client whose clock
// is that far ahead of its own. Nothing else depends on a wall clock.
//
// A majority of counters that are wrong is set back by a person:
//
//  1. End every process that may have had the lock, or wait for longer than any can be paused. A number may come
//     that is lower than theirs.
//  2. redlock fence KEY --reset-to now
//  3. Set the greatest number that the resource has stored to that of the counters, if it is greater. Until then
//     the resource refuses everybody. If an old holder could still write, the resource would take that from now on.
//
// Locks without a fence, and those of other libraries, have no number. They exclude a lock with
// one, and are excluded.
//
// # Kinds of locks
//
// An option says of which kind a lock is. Everything else here is true of each: attempts, waiting,
// validity, renewal, recheck, errors.
//
//	NewMutex(key, ttl)    one holder: SET key token NX PX ttl, as other libraries have it
//	WithFence()           ... and a number that grows
//	WithKeys(more...)     one holder of several keys, all or none
//	WithShared()          a reader: any number of them, or one writer, which is a lock without it
//	WithPermits(k)        up to k holders
//
// What goes together, and what is an error at the first use:
//
//	               WithFence   WithKeys   WithShared   WithPermits
//	WithFence      -           yes        yes          no
//	WithKeys       yes         -          no           no
//	WithShared     yes         no         -            no
//	WithPermits    no          no         no           -
//
// WithToken, WithOwner, WithRoundTimeout and WithMaxLifetime go with all, and WithMinHold with all but
// WithShared. Who excludes whom on one key:
//
//	               plain, fenced, other libraries   several keys   reader      permit
//	plain, ...     excludes                         excludes       excludes    -
//	several keys   excludes                         excludes       excludes    -
//	reader         excludes                         excludes       together    -
//	permit         -                                -              -           up to k
//
// [WithSecond] goes with the plain lock alone, and with WithOwner, WithRoundTimeout, WithMaxLifetime and
// WithMinHold.
//
// # Names
//
// A lock has a key of the name that it is given. What a kind needs besides has these names, and no lock can
// have them:
//
//	{key}:fence                     the counter of WithFence
//	{key}:writer                    the intent of a writer, where WithShared is used
//	{key}:permit:1/4, {key}:permits the slots of WithPermits, and how many there are
//	{key}:line, {key}:line:...      the queue of those who wait in Lock, on one master. For permits {key}:permit:line
//
// All expire by themselves.
//
// # Several keys
//
// With [WithKeys], one command to each master is about all keys, and the master obeys it at one
// moment: it sets all of them, or none. So its yes is a yes for each key, and for each key this is
// the algorithm above. Losing one key is losing the lock. With a fence, all counters move to one
// number, which is above each of them.
//
// # Readers
//
// With [WithShared], the key holds a sorted set instead of a string: each member is a reader's token,
// and its score says when that reader expires by the master's own clock. SET NX refuses a key that
// is there, whatever it holds, and a reader's script refuses a string. So on each master there are
// readers or one writer, and two majorities share a master. The key expires with the last
// reader. A reader that has died ends with its own TTL, not with those of the others. If a master's clock was
// set back, a writer that waits in Lock has it end within twice its TTL.
//
// A writer that has waited in Lock for 100 ms, and finds readers, leaves its intent on the masters
// ({key}:writer, for 3 s, left again each second while readers are there). New readers are refused
// then. Current readers may stay and renew. Readers that waited before the intent came still enter first.
// So a stream of readers does not keep a writer out. While a writer has the lock, the next one leaves no
// intent: when the lock is free, a new reader can be the faster, and only then they are refused. A stream of
// writers does not keep readers out, as these are in the queue, too: see below. All that is a
// courtesy: no exclusion depends on it. Writers of other libraries leave no intent.
//
// With a fence, a reader's number is above that of every earlier writer and below that of every later
// one. Readers that hold the lock together mostly have the same, but not always. So a resource
// refuses a write whose number is below any that it has seen, and a read whose number is below that of
// the last write.
//
// # Permits
//
// With [WithPermits], a lock has k slots, and whoever has one of them holds a permit. Each slot is a
// lock by itself: its key, {key}:permit:3/4, is set and released as that of a lock with one holder
// is. So all that is said here of a lock is true of each permit. (A counter on each master, with a
// majority of those that are below k, would admit up to kN/quorum holders.)
//
// An attempt is for the slot that the Mutex had last, or for any. If that is taken, the attempt reads
// all slots on all masters, and tries one that is free on a majority; if another is faster, it looks
// again, eight times at most. A Lock enters the queue before it looks. A waiter is notified of a change of
// any slot. If a slot is released in this client, the head of the queue tries that one.
//
// {key}:permits holds k. A client's first attempt with a TTL, and one a minute, sets its slot by a script
// that fails on a master where another k is written. The key outlives the locks that rely on it by a
// minute or more, and each Extend and renewal sets it again.
//
// So processes with another k have no permits while those with the first one use the lock, and never do both
// have some at a time. Their Locks wait, and ask once in one or two seconds. If processes are replaced one by
// one, fewer and fewer have permits, and none has when the last old one has ended, until the TTL and two minutes
// have passed, or {key}:permits is deleted on all masters. Delete it only when no process with the old k runs.
// To change k without that pause, let another name stand for the other k, and have each process pass through
// three versions. No version may run beside one that is not next to it:
//
//	client.Do(ctx, "lock:gpu", ttl, work, redlock.WithPermits(4)) // the first
//
//	client.Do(ctx, "lock:gpu", ttl, func(ctx context.Context) error { // the second
//		return client.Do(ctx, "lock:gpu/6", ttl, work, redlock.WithPermits(6))
//	}, redlock.WithPermits(4))
//
//	client.Do(ctx, "lock:gpu/6", ttl, work, redlock.WithPermits(6)) // the third
//
// While the first version runs, all that work have one of the four permits. While the third runs, all have one
// of the six. The second has both, so it is never above the smaller number, and each of its processes waits for
// the names in the same order. The same three steps make k smaller.
//
// # Once in a period
//
// A lock has one holder at a time. Three processes that wait for it, to do a short job, do the job three
// times, one after the other. And of three that do not wait, one whose clock is late by more than the job
// takes finds the lock free. [WithMinHold] makes it once in d: after the job the key is left on the masters,
// until d has passed since it was set.
//
//	err := client.Do(ctx, "lock:nightly-report", 30*time.Second, report,
//		redlock.WithMinHold(time.Hour), redlock.WithWait(0))
//	if errors.Is(err, redlock.ErrHeld) {
//		return nil // it is done, or being done, elsewhere
//	}
//
// What the masters are told:
//
//   - The key is set for d or for the TTL, whichever is longer, and each renewal sets it for what
//     is left of d or for the TTL. So it is there also if the holder dies before it can release it, or
//     no master can be reached then.
//   - A release only ever shortens what a key has to live, and only a key that is ours. One that comes late, or
//     is delivered as a debt, prolongs nothing.
//   - Validity, renewal and loss go by the TTL alone.
//   - On the masters d is longer by the clock drift, as validity is shorter by it: nobody has the lock
//     before d has passed by our clock. d must be shorter than the period by more than that, and by more
//     than the clocks of those who begin the work differ.
//   - After a failure the lock is deleted, so that another can try ([WithHoldOnError] leaves it).
//
// It is no proof that the job has been done: a holder that dies leaves the key, too. And a job is
// done twice in d if the lock was lost meanwhile and others took it.
//
// # A second lock
//
// Redlock rests on clocks. With [WithSecond], a lock of a system that rests on consensus stands behind it:
//
//	second, err := etcd.New(client)
//	err = client.Do(ctx, "lock:orders:42", 10*time.Second, work, redlock.WithSecond(second))
//
// The masters come first: of all who want the lock, one at a time gets through to the other system, and
// that writes little to its disks. That is the authority. Whoever has the lock has both, so no two have
// it at a time unless both systems fail in the same moment: if the masters have lost their keys, or their
// clocks have jumped, a second client gets theirs, and waits for the other lock.
//
//	what happens                      what becomes of the lock
//	the other system is down          nobody gets it: neither stands in for the other
//	too few masters answer            likewise
//	the other system's session ends   it is lost: its context ends by then, and the masters' is released
//	the masters lose the key          it is lost: its context ends. The second lock remains until Unlock, or until
//	                                  the validity ends that Until has promised. Its Mutex takes no other before
//	the holder forgets it             both end with the validity
//	the process dies                  the masters' ends with the TTL, the second with its session
//
// Unlock gives the second lock back first: whoever gets the masters' then need not wait for it.
//
// # Leadership
//
// [Client.Lead] runs a function whenever this process leads, and [Client.Watch] tells everybody who does.
//
//	err := client.Lead(ctx, "lock:scheduler", 10*time.Second, func(ctx context.Context) error {
//		return schedule(ctx, redlock.FenceFrom(ctx)) // the number of this leadership
//	}, redlock.WithOwner("10.0.0.7:8080"))
//
//	for leader, err := range client.Watch(ctx, "lock:scheduler") {
//		if err == nil && leader.Held {
//			connect(leader.Owner)
//		}
//	}
//
// What a holder publishes, and its owner by default, is a hint and no proof: whoever may write the lock's key
// can write any name there. So check who answers at a published address.
//
// A leader is the holder of a lock, and what is said here of a lock is all that is promised. Its function
// is told to end before the validity ends, and the next leader begins after that. A leader that
// ends in order is followed one hand-over later, one that dies when its TTL has passed. While a function
// still runs that should have ended, this process does not lead anew. Another may: that is what the
// fence is for.
//
// Compared with the elections of etcd (client/v3/concurrency) and Kubernetes (client-go's
// tools/leaderelection):
//
//	                     here                     etcd                        client-go
//	rests on             a quorum, and clocks     consensus                   the API server's
//	                     that drift little                                    consensus, and clock rates
//	the leader learns    its context ends         Session.Done, which the     its context ends at
//	of its loss          before the validity      user watches                RenewDeadline
//	                     does, also after a
//	                     suspend
//	one function at      yes, within the          no: Campaign can return     no, says its documentation
//	a time               validity                 after its session is lost
//	the lock is given    when the function has    when the user resigns       when its context ends, if
//	up                   returned, or with                                    asked; else it expires
//	                     WithMaxLifetime
//	campaigns again      by itself                by the user                 by the user: Run returns
//	a number that grows  the fence, for any       the key's revision, for     leaseTransitions, which is
//	                     resource                 etcd's transactions, too    not made for it
//	followers are told   by a push                by a push                   by polling
//	nobody leads         is told                  is not told by Observe      is told after a release,
//	                                                                          not after an expiry
//	order of candidates  that of arrival          that of arrival             none
//	the value            is fixed while it leads  can be changed (Proclaim)   can be changed
//	shortest TTL         milliseconds             seconds                     seconds
//
// So etcd has what no lock on independent masters can have: an order that no clock can break, and a store
// whose transactions refuse a leader that is over, in one step. Where the leader's writes go to etcd
// anyway, use its election. In Kubernetes a Lease needs no further servers, and everybody can read it. Both
// outlive the loss of memory of all their servers, which write to disk; a master must be told to.
//
// # How it waits
//
// [Mutex.Lock] waits until the lock is taken or its context is done. Waiters of one client for
// one key wait in a local queue, and only its head looks at the masters. When the lock is released
// in this client, the head has it one round later: its attempt follows the release on every
// connection. After Config.Handovers in a row, the head lets others try before it does.
//
// The head of each client's local queue enters a global queue, the queue between processes. That is on one
// master, the queue master: the first in a ranking of the masters for the key, of those that can notify of
// changes (CLIENT TRACKING). The waiter has an entry there ({key}:line*), and the master notifies it when its
// predecessor's entry ends. Only the head of the global queue reads on each master how long the lock's key has to
// live, and asks to be notified of its next change. It wakes when the key can be free on a majority, or when
// its TTL has passed there, and asks all masters at once. So one release wakes one waiter, the first that came
// gets the lock first, and the cost of a lock does not grow with the number of waiters.
//
// No exclusion depends on this queue. TryLock bypasses it, and so do the first attempt of a Lock that
// knows of no other, the hand-overs within a process, and other libraries. A client that takes a lock again
// and again would know of no other if it is nearer to the masters than the waiters. So it looks at the queue
// every 250 ms, or every hundred round trips if that is longer. What can go wrong delays the waiters for so
// long:
//
//	a process dies in the queue     4 s: its entry lasts for 3 s after it was renewed last, or after others have
//	                                seen that its master's clock was set back
//	a Lock gives up, or panics,     no time: it takes its entry away
//	or its client is closed
//	the queue master is lost,       no time: the next master has the queue
//	restarts, or is flushed
//	the queue master hangs          1.3 s: then they contend as if there were no queue
//	it refuses ({key}:line* is      no time: they contend likewise. A refusal is remembered for a
//	none of the user's keys)        minute, so that an ACL LOG is not filled
//	the head has no quorum          no time: it goes to the end
//	an entry has no waiter, or the  10 to 20 s: then they look whether the lock is free all the same
//	queue master makes it up
//
// Processes that see different masters have two queues. Then two contend, and the quorum decides. Waiters
// that contend without a queue, and wake together, try the same master first, and only its winner asks the
// others. So votes hardly split, and each loser costs one command.
//
// Where too few masters can notify, or are up, the head of a local queue polls: after at least the time
// of a round and, on top, a random part of twice that time, doubling to 200 ms. TryLock does not
// wait in a queue, and asks all masters at once.
//
// A waiter for several keys ([WithKeys]) is in the local queue of each. It joins them all in one step,
// and tries when it is the head of all. So those of one client that share a key have it in the
// order in which they came, and none blocks another. Between processes, the head of them enters
// the global queue of one key after the other, in the order of the keys, and the next one only while it is the
// head of those before. So no two wait for each other, and none is starved. The head of all queues
// subscribes to all keys. The lock can be taken when the last of them is free.
//
// Readers of all processes share one rank in the global queue. The first that is refused takes it, at
// the end, and the others join it there. When no writer is ahead they all try, and the writers
// behind them wait until they have the lock. A reader that is refused later takes a new rank. So readers wait for
// no writer that came after them. A reader that is not refused needs no entry. Readers of one client do not
// wait for each other: one tries at once where only readers are ahead of it in the local queue, unless the lock was
// refused within the last second. One that gets the lock has its successors try, up to the first writer.
//
// # How it renews
//
// All [Mutex.KeepAlive] of a client share one heap of events and one timer, which costs nothing
// while nothing is due. A lock is renewed a third of its TTL after the last time. Renewals that
// are due at about the same time share a burst. The timer for the deadlines is set again before
// a burst is sent, and whoever waits for a burst serves nothing else. So masters that hang
// delay no deadline, and a minority of them no renewal. A renewal that failed is repeated until the
// deadline. A context ends up to 10 ms before the validity does, which is what the runtime may
// take to run a timer while all processors are busy.
//
// A renewal is never sent after a release. A master that does not know the script, or that lacks
// the key and was asked by a native command, is asked a second time. That is not sent once the
// lock is over, so it follows no release either. No renewal is sent for a lock that is over by
// the clock. If this process stands still between its look at the clock and the write, a master
// may be asked to set again a key that has expired there. Then the answer comes too late to
// count, and the key is released.
//
// # What it returns
//
// Each error that comes from the masters is a [*RoundError], with every master's vote. It wraps
// one of [ErrHeld], [ErrNoQuorum], [ErrRefused], [ErrExpired], [ErrNotHeld], [ErrLost], [ErrMaxLifetime],
// [ErrSecond] and [ErrClosed]. If a context ended the operation before the masters had decided it, the error wraps the context's
// error and cause alone. A [Mutex.Lock] whose context ends wraps both, if it knows why it had to
// wait: ask for these first, and then for the context's error.
//
// Tokens are not in these errors: whoever knows one can release the lock.
//
// # Who calls whom
//
// Calls go downwards, but for a hold and its KeepAlives, which know each other. A part below Mutex
// takes what it needs of the parts below it, and never the Client.
//
//	Client.Do, Lead  Mutex.Lock (wait)           Client.Holders, Watch (watcherSubscriptions)
//	      |               | waits in queues, subscribes to the key
//	      |               +--> localQueues, globalQueues, subscriptions
//	      v               v
//	Mutex.TryLock (attempt), Extend, KeepAlive, Unlock, Release
//	      |               |             ^ switches of a Sentinel group
//	      |               +--> rechecker: asks again for every lock that is held
//	      |               |
//	      |               +--> renewer: renews what is kept alive
//	      |                        | and ends its contexts (keepAlive)
//	      +---------+--------------+
//	                v
//	      extension: posts and judges one round that extends a hold
//	                |
//	      hold: the lock that a Mutex holds, and its state
//	                |
//	      core: masters, clock, calls, statistics, Observer      guard: who must not vote
//	                |
//	      call: one round          kind: what is sent, and how replies are judged
//	                |
//	      mux.Mux: N connections
//
// The goroutines of a client, besides those of its mux, are the renewer's while a deadline is
// served or renewals are under way, one for a moment each second while a waiter is the head of a
// global queue, and one recheck after a switch. A second lock that is lost, or forgotten, has one
// for a moment, also after Close. One runs while there are releases to report to the Observer that were not
// awaited. All others have ended when Close returns. A goroutine that
// waits in Lock reads the masters' pushes itself: it sleeps in the mux, as the driver if there is
// no other.
//
// # Locks
//
// Whoever holds one of these may take those after it, and no other:
//
//	Client.attempts   shared by each attempt, from its first command to its release; Close
//	                  takes it alone, to wait for them. An attempt only tries to take it.
//	guard.raising     while a longer TTL is told to the mux; no hook takes it
//	rechecker.mu      the set of holds
//	renewer.mu        the heap; renewals are posted under it
//	hold.mu           one lock's state; the other extends are posted under it
//	globalQueues.mu   the heads of global queues
//	a shard of        the local queues of some keys; several shards are locked in their order
//	localQueues
//	mux.Mux.mu        the hooks of guard, subscriptions and rechecker run under it, and so do
//	                  the completions of releases that are not awaited; they take leaves
//
// The mutexes of the subscriptions, of the watchers' and of the releases are leaves: under them no other is taken.
// Contexts are cancelled, and the Observer is called, under none of these but, at times,
// Client.attempts.
//
// [come from these and from other locks]: https://github.com/redburst/redburst/blob/main/redlock/docs/coming-from.md
// [run the masters]: https://github.com/redburst/redburst/blob/main/redlock/docs/masters.md
package redlock
