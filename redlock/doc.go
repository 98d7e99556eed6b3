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
// asks all masters in one burst to set the key where it is free (SET key token NX PX ttl). T1 is
// the time before the first byte is written. The lock is held if a majority says yes and, when
// their answers are counted,
//
//	validity = TTL - (now-T1) - drift,   drift = TTL*0.01 + 2 ms
//
// is above zero. [Mutex.Remaining] is what is left of it. Otherwise a release goes to all masters at once, also
// to those that said no.
//
// Contenders that begin at about the same time can split the votes. Then one of them goes on, so
// that somebody has the lock: the one that has the vote of the first master, in an order that all
// clients have in common. It keeps its votes, and asks the others again, seven times at most; the
// rest give up. acquire_split.go has the rule. An attempt pays for that only if it has met a split.
// But who does not wait for a holder, and is refused, waits for the answer of the first master: if
// that one is slow, for at most four round trips, 50 ms, or two of its own. A client that may not
// use INFO goes by the masters' addresses instead of their run ids. If others go by another order,
// nobody may have the lock after a split, as before.
//
// The token is fresh for every attempt. There is one ordered connection to each master, so a
// release always follows its acquire, however late either arrives. If the connection breaks in
// between, the client keeps the release as a debt, and sends it when the master is back. The next
// attempt of this process follows the release, too. So [Mutex.Release] need not wait for the
// masters, and a lock costs one round trip. [Mutex.Unlock] costs a second one, and says whether
// the lock was held until then.
//
// Keys and tokens are like those of redsync, node-redlock, redlock-py and redlock-rb, so all of
// them and this library exclude each other. One page says how to [come from these and from other
// locks], and another how to [run the masters].
//
// # Guarantees and assumptions
//
// At most one holder at any time sees a valid lock, if all of this is so:
//
//   - While a TTL passes, the masters' clocks run at most Config.DriftFactor faster than this
//     process's, and nobody sets a master's wall clock forward (Redis expires keys by it). Our
//     own clock is not the wall clock. On Linux it is CLOCK_BOOTTIME, which goes on counting
//     while the machine is suspended. Setting a master's clock back breaks nothing. But keys that
//     no client renews or deletes last longer there, by as much: the key of a holder that has died,
//     the rest of [WithMinHold], the number of permits. No client waits for a minority of such
//     masters.
//   - A master that restarts has kept its keys (appendfsync always), or no client counts its vote
//     until the longest TTL has passed. This client does so: a key on each master tells since when it has
//     forgotten nothing (see Config.RestartGuard, which has what no client can see).
//     All other clients must, too. A master that does not say who
//     it is (it needs the right to INFO) counts as restarted at every reconnect. A replica that
//     takes a master's place counts as restarted, and the client then asks again for the locks
//     that it holds.
//   - All clients have the same masters. While one is replaced by another ([Client.Replace]), the
//     old one is down for good.
//   - No master is ever made a replica, not even for a moment: it takes over the other's data.
//     This client finds that out if it asks the master for anything meanwhile, or connects to it
//     again later, since the replication id has changed. Then it counts the master as restarted.
//     Otherwise no client can find out.
//   - A Sentinel group has one master at a time. A master that was replaced, and is cut off from
//     its sentinels but not from us, must stop taking writes (min-replicas-to-write). This needs
//     Redis 7 or Valkey: an older server lets scripts write all the same, so it goes on extending
//     locks. The client believes a switch when more than half of the sentinels say so, or when
//     the master itself says that it is a master no longer. It believes where the master is, then
//     and at the start, only if more than half of the sentinels say so (but see
//     Config.TrustAnySentinel).
//   - A cluster's slot has one master at a time whose word more than half of the cluster's masters
//     confirm. A node that was replaced, and does not know it, has no vote 3 seconds after the last
//     confirmation (conn.SlotTrust), and its successor has none until then and for the longest TTL.
//   - The holder checks its context or [Mutex.Remaining] before each protected action. A process
//     can be paused between the check and the action for longer than the validity. Where that
//     must do no harm, the resource has to refuse late writers by the lock's fence.
//
// # Rules
//
//  1. A cancelled context never leaves a key behind: no release uses a caller's context.
//  2. The end of the validity is computed before the caller can see success. No lock is reported
//     as taken when its validity is over.
//  3. Extend and renewal set nothing. They succeed if a quorum has the key. Then they give it back
//     to a master that has lost it, by a command of its own, and only while the lock is valid by
//     our clock: an expired lock is not revived. A set can be carried out late, even behind a
//     connection that was given up, after another has had the lock. So the yes of a master
//     that was sent one, and had not answered when the lock was taken, counts for nothing, in
//     Unlock neither, until a round has succeeded that began after its answer; or its process is
//     another. With one exception: what a master has answered within max(4 round trips, 50 ms) of
//     the acquire counts. So a yes says that nobody else has had a quorum since then, or since the
//     lock was taken if that was later; unless a master that had decided for the lock has lost
//     its key within that time, before the late one has set it. The proof is in
//     internal/quorum/suspect.go.
//  4. KeepAlive's context ends at the end of the validity at the latest: its timer is set before
//     a renewal is sent.
//  5. Unlock returns nil if a quorum deleted the key, [ErrNotHeld] only if the lock had ended
//     before, and [ErrNoQuorum], or the context's error, if the masters did not answer.
//  6. A master that does not know a script is sent its text once: no loop. Where the server has a
//     native command (DELEX and MSETEX of Redis 8.4, DELIFEQ of Valkey 9.0, SET IFEQ), that takes
//     the place of the script. The script does what the command cannot do, in the same round.
//
// # The fence
//
// With [WithFence], a lock has a number that is greater than that of every earlier holder of its
// key. Let the resource refuse every number lower than one that it has seen. Once a later holder
// has shown its number, the resource takes no write of a holder whose lock is over. So a holder
// shows its fence to the resource before it relies on what it reads there.
//
// Each master keeps a counter beside the key. An acquire moves it to max(counter+1, hint) where
// the key is free; the hint is the client's wall clock in microseconds. If a majority returns the
// same number, that is the fence, after one round. Otherwise the fence is the greatest of them,
// and a second round first raises the counters of a majority that still holds the key. Extend,
// renewal and recheck raise the counters, and so does a command that gives a master the key again. The
// proof is in internal/quorum/fence.go.
//
// The numbers grow if a majority of all masters have had a lock's number, and remember it until
// the next lock is taken. They remember it for Config.FenceMemory, and beyond a restart only if
// they persist it. If fewer masters do, the hint keeps the numbers growing, provided that the
// clients' wall clocks differ by less than the masters were down, or by less than
// Config.RestartGuard if that is longer.
//
// A client does not believe a number that is further ahead of its wall clock than 24 h, or
// Config.FenceMemory if that is shorter: a person has written it, or the master lies. That
// master's vote has failed then, and its counter is set back when the lock is taken with the
// others. If a majority has such numbers, the lock cannot be taken, and the error says which
// master has which number: this clock is wrong, or the counters are. A master refuses a client
// whose clock is that far ahead of its own. Nothing else depends on a wall clock.
//
// If the counters of a majority are wrong, a person sets them back:
//
//  1. End every process that may have had the lock, or wait for longer than any can be paused:
//     the next number may be lower than theirs.
//  2. redlock fence KEY --reset-to now
//  3. If the greatest number that the resource has stored is above the counters, set it to
//     theirs. Until then the resource refuses every holder. If an old holder could still write,
//     the resource would accept it from now on.
//
// Locks without a fence, and those of other libraries, have no number. They exclude locks with a
// fence, and are excluded by them.
//
// # Kinds of locks
//
// An option chooses the kind of a lock. Everything else here is true of every kind: attempts,
// waiting, validity, renewal, recheck, errors.
//
//	NewMutex(key, ttl)    one holder: SET key token NX PX ttl, as other libraries have it
//	WithFence()           ... and a number that grows
//	WithKeys(more...)     one holder of several keys, all or none
//	WithShared()          a reader: any number of them, or one writer, which is a lock without it
//	WithPermits(k)        up to k holders
//
// These options go together (yes), or are an error at the first use (no):
//
//	               WithFence   WithKeys   WithShared   WithPermits
//	WithFence      -           yes        yes          no
//	WithKeys       yes         -          no           no
//	WithShared     yes         no         -            no
//	WithPermits    no          no         no           -
//
// WithToken, WithOwner and WithMaxLifetime go with all, and WithMinHold with
// all but WithShared. Which locks on one key exclude each other:
//
//	               plain, fenced, other libraries   several keys   reader      permit
//	plain, ...     excludes                         excludes       excludes    -
//	several keys   excludes                         excludes       excludes    -
//	reader         excludes                         excludes       together    -
//	permit         -                                -              -           up to k
//
// [WithSecond] goes with the plain lock alone, and with WithOwner, WithMaxLifetime and
// WithMinHold.
//
// # Names
//
// A lock's key has the name that the caller gives. Beside it, a kind may need keys with these
// names. No lock can have such a name:
//
//	{key}:fence                     the counter of WithFence
//	{key}:writer                    the intent of a writer, where WithShared is used
//	{key}:permit:1/4, {key}:permits the slots of WithPermits, and how many there are
//	{key}:line, {key}:line:...      the queue of the waiters in Lock, on one master; of permits {key}:permit:line
//	{key}:since                     since when the master has forgotten nothing; key is Config.Prefix here
//
// If the key has a hash tag already, that is, a text in braces, the first brace is missing: the
// counter of a{b}c is a{b}c}:fence. A key with a closing brace and no hash tag, such as b}c, is
// refused where something stands beside it: that would also be {b}c's. Its waiters have no queue. So all of a lock is in one slot of a cluster. Config.Prefix stands
// before all names, and counts as a part of the key: with the prefix {locks}: no lock can have the
// name writer, as {locks}:writer is the intent of a lock on locks.
//
// All these keys expire by themselves, but for the last, of which each cluster has one.
//
// # Several keys
//
// With [WithKeys], one command asks each master for all keys, and the master obeys it in one
// step: it sets all of them, or none. So its yes is a yes for each key, and for each key this is
// the algorithm above. A lock that loses one key is lost. With a fence, all counters move to one
// number, which is above each of them.
//
// # Readers
//
// With [WithShared], the key holds a sorted set instead of a string: each member is a reader's
// token, and its score says when that reader expires by the master's own clock. A writer's SET NX
// refuses any key that is there, whatever it holds, and a reader's script refuses a string. So
// each master has readers or one writer. Two majorities share a master, so readers and a writer
// never hold the lock together. The key expires with the last reader. A reader that has died ends
// with its own TTL, not with those of the others. If a master's clock was set back, a writer that
// waits in Lock makes a dead reader end within twice the reader's TTL.
//
// A writer that has waited in Lock for 100 ms, and finds readers, leaves its intent on the
// masters: {key}:writer, for 3 s. It leaves it again each second while readers are there. Masters
// with an intent refuse new readers. Current readers may stay and renew, and readers that waited
// before the intent came still enter first. So a stream of readers does not keep a writer out.
// While a writer has the lock, the next writer leaves no intent: when the lock is free, a new
// reader can be faster, and new readers are refused only then. A stream of writers does not keep
// readers out, as readers are in the queue, too: see "How it waits". All that is a courtesy: no
// exclusion depends on it. Writers of other libraries leave no intent.
//
// With a fence, a reader's number is above that of every earlier writer and below that of every
// later one. Readers that hold the lock together mostly have the same number, but not always. So
// a resource refuses a write whose number is below any that it has seen, and a read whose number
// is below that of the last write.
//
// # Permits
//
// With [WithPermits], a lock has k slots, and the holder of a slot holds a permit. Each slot is a
// lock by itself: its key, {key}:permit:3/4, is set and released like that of a lock with one
// holder. So all that is said here of a lock is true of each permit. (A counter on each master,
// with a majority of those that are below k, would admit up to kN/quorum holders.)
//
// An attempt tries the slot that the Mutex had last, or any. If that slot is taken, the attempt
// reads all slots on all masters, and tries one that is free on a majority. If another is faster,
// it looks again, eight times at most. A Lock enters the queue before it looks. A waiter is
// notified when any slot changes. If a slot is released in this client, the head of the local
// queue tries that one.
//
// {key}:permits, the mark, holds k. A client's first attempt with a TTL, and one a minute, sets
// its slot by a script that fails on a master whose mark has another k. The mark outlives the
// locks that rely on it by a minute or more, and each Extend and renewal sets it again.
//
// So while processes with one k use the lock, processes with another k get no permit. The two
// never have permits at the same time. The Locks of the others wait, and ask again every one to
// two seconds. If processes are replaced one by one, fewer and fewer have permits. When the last
// old one has ended, none has a permit until the TTL and two minutes have passed, or
// {key}:permits is deleted on all masters. Delete it only when no process with the old k runs. To
// change k without that pause, use another name for the lock with the new k, and roll out three
// versions. A version may run beside the one before it and the one after it only:
//
//	client.Do(ctx, "lock:gpu", ttl, work, redlock.WithPermits(4)) // the first
//
//	client.Do(ctx, "lock:gpu", ttl, func(ctx context.Context) error { // the second
//		return client.Do(ctx, "lock:gpu/6", ttl, work, redlock.WithPermits(6))
//	}, redlock.WithPermits(4))
//
//	client.Do(ctx, "lock:gpu/6", ttl, work, redlock.WithPermits(6)) // the third
//
// While the first version runs, all processes that work have one of the four permits. While the
// third runs, all have one of the six. A process of the second version has both, so the second
// never has more at work than the smaller number allows. Each of its processes waits for the
// names in the same order. The same three steps make k smaller.
//
// # Once in a period
//
// A lock has one holder at a time. Three processes that wait for it, to do a short job, do the
// job three times, one after the other. Even if they do not wait, a process whose clock is late,
// by more than the job takes, finds the lock free. [WithMinHold] makes the job run once in d:
// after it, the key stays on the masters until d has passed since it was set.
//
//	err := client.Do(ctx, "lock:nightly-report", 30*time.Second, report,
//		redlock.WithMinHold(time.Hour), redlock.WithWait(0))
//	if errors.Is(err, redlock.ErrHeld) {
//		return nil // it is done, or being done, elsewhere
//	}
//
// The value of a key that is left there after its work begins with left:, so that people see that
// nobody works under it ([Holder].Left). From then on the token itself releases nothing.
//
// What the client tells the masters:
//
//   - The key is set for d or for the TTL, whichever is longer. Each renewal sets it for the rest
//     of d or for the TTL, whichever is longer. So the key stays even if the holder dies before
//     it can release it, or can reach no master then.
//   - A release only ever shortens a key's life, and only that of our own key. A release that
//     comes late, or is delivered as a debt, prolongs nothing.
//   - Validity, renewal and loss go by the TTL alone.
//   - On the masters d is longer by the clock drift, as the validity is shorter by it: no other
//     client gets the lock before d has passed by our clock. d must be shorter than the period,
//     by more than that drift and by more than the clocks of the processes that begin the work
//     differ.
//   - After a failure the lock is deleted, so that another can try.
//
// A lock that stays is no proof that the job has been done: a holder that dies leaves the key,
// too. And a job is done twice in d if the lock was lost meanwhile and another took it.
//
// # A second lock
//
// Redlock rests on clocks. [WithSecond] adds a lock of a system that rests on consensus:
//
//	second, err := etcd.New(client)
//	err = client.Do(ctx, "lock:orders:42", 10*time.Second, work, redlock.WithSecond(second))
//
// The masters come first. They let one client at a time through to the other system, so that
// writes little to its disks. The other system is the authority. A holder of the lock has both,
// so two clients have it at a time only if both systems fail in the same moment. If the masters
// have lost their keys, or their clocks have jumped, a second client gets the masters' lock, and
// waits for the other.
//
//	what happens                      what becomes of the lock
//	the other system is down          no client gets it: neither system stands in for the other
//	too few masters answer            likewise
//	the other system's session ends   it is lost: its context ends by then, and the masters' lock is released
//	the masters lose the key          it is lost: its context ends. The second lock remains until Unlock, or until
//	                                  the end of the last validity that Remaining has returned. The Mutex takes no
//	                                  other lock before then
//	the holder forgets it             both end with the validity
//	the process dies                  the masters' ends with the TTL, the second with its session
//
// Unlock releases the second lock first: the next holder of the masters' lock need not wait for
// it.
//
// # Leadership
//
// [Client.Lead] runs a function whenever this process leads, and [Client.Watch] tells every
// process who leads.
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
// What a holder publishes, and its owner by default, is a hint and no proof: any user who may
// write the lock's key can write any name there. So check who answers at a published address.
//
// A leader is the holder of a lock, and what is said here of a lock is all that is promised. Its
// function is told to end before the validity ends, and the next leader begins after that. A
// leader that steps down is followed at once. A leader that dies is followed when
// its TTL has passed. While a function that should have ended still runs, this process does not
// lead again. Another may: that is what the fence is for.
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
//	followers learn of   by a push                by a push                   by polling
//	a new leader
//	... and of none      by a push                not from Observe            after a release,
//	                                                                          not after an expiry
//	order of candidates  that of arrival          that of arrival             none
//	the value            is fixed while it leads  can be changed (Proclaim)   can be changed
//	shortest TTL         milliseconds             seconds                     seconds
//
// So etcd has what no lock on independent masters can have: an order that no clock can break, and
// a store whose transactions refuse a former leader, in one step. Where the leader's writes go to
// etcd anyway, use its election. In Kubernetes a Lease needs no further servers, and everybody
// can read it. Both survive a restart of all their servers, as they write to disk; a master does
// only if it is configured to.
//
// # How a service stops
//
// [Client.Shutdown] ends a service's locks without taking one from work that goes on:
//
//	stop, cancel := context.WithTimeout(context.Background(), 20*time.Second) // less than the orchestrator's patience
//	defer cancel()
//	if err := client.Shutdown(stop); err != nil {
//		log.Print(err) // names what is still held, and ends with its TTL
//	}
//
// No new lock is taken, contexts end with a cause that wraps ErrClosed, functions return, their locks are released, and
// the client is closed. Meanwhile the locks are renewed. So call it instead of cancelling the contexts that Do and
// KeepAlive were given: a lock whose parent context has ended before is not renewed once that was noticed, and can
// expire while its function still cleans up.
//
// # How it waits
//
// [Mutex.Lock] waits until the lock is taken or its context is done. Waiters of one client for
// one key wait in a local queue, and only its head looks at the masters. When the lock is
// unlocked in this client, it stays in the process: the head has it at once, with what is left of
// the validity. The masters are asked once more whether they have it, for the Unlock, and the
// Unlocks that come meanwhile share the next round. So a key that many goroutines of one process
// want costs the masters a few commands in a round trip, however often it changes hands. The last
// holder releases it. With [WithFence] the head waits for its number, and each hand-over is a
// round that counts, in place of a release and an attempt. Where this is not possible (Config.Handovers says where), the head has the
// lock one round later: its attempt follows the release on every connection. After
// Config.Handovers in a row, or some milliseconds, the head lets others try first.
//
// The head of each client's local queue enters a global queue, the queue between processes. It is
// on one master, the queue master. The masters have an order for each key, and the queue master
// is the first of those that can notify of changes (CLIENT TRACKING). The waiter has an entry
// there ({key}:line*), which says its owner and for how long it has waited, and the master notifies the waiter when its predecessor's entry ends. Only
// the head of the global queue reads on each master how long the lock's key has to live, and asks
// to be notified of its next change. It wakes when the key can be free on a majority, or when its
// TTL has passed there, and asks all masters at once. So one release wakes one waiter, the waiter
// that came first gets the lock first, and the cost of a lock does not grow with the number of
// waiters.
//
// No exclusion depends on this queue. These bypass it: TryLock, the first attempt of a Lock that
// knows of no other contender, the hand-overs within a process, and other libraries. If a client
// takes a lock again and again, and is nearer to the masters than the waiters, it would not
// notice them. So it looks at the queue every 250 ms, or every hundred round trips if that is
// longer. What can go wrong delays the waiters for so long:
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
// Processes that see different masters up have two queues. Then two waiters contend, and the
// quorum decides. Where waiters contend without a queue, and wake together, their votes can be
// split, and the one that has the first master's goes on.
//
// Where too few masters can notify, or too few are up, the head of a local queue polls. It pauses
// for at least about the time of a round, plus a random part of twice that time. The random part
// doubles with each poll, up to 200 ms. TryLock does not wait in a queue, and asks all masters at
// once.
//
// A waiter for several keys ([WithKeys]) is in the local queue of each. It joins all of them in
// one step, and tries when it is the head of all. So waiters of one client that share a key get
// it in the order in which they came, and none blocks another. Between processes, the head of all
// its local queues enters the global queue of one key after the other, in the order of the keys.
// It enters the next queue only while it is the head of those before. So no two wait for each
// other, and none is starved. The head of all global queues subscribes to all keys. The lock can
// be taken when the last of them is free.
//
// Readers of all processes share one rank in the global queue. The first reader that is refused
// takes it, at the end, and the others join it there. When no writer is ahead they all try, and
// the writers behind them wait until they have the lock. A reader that is refused later takes a
// new rank. So readers wait for no writer that came after them. A reader that is not refused
// needs no entry. Readers of one client do not wait for each other: a reader tries at once where
// only readers are ahead of it in the local queue, unless the lock was refused within the last
// second. A reader that gets the lock makes the readers behind it try, up to the first writer.
//
// # How it renews
//
// All calls of [Mutex.KeepAlive] of a client share one heap of events and one timer, which costs
// nothing while nothing is due. A lock is renewed a third of its TTL after the last time.
// Renewals that are due at about the same time share a burst. The timer for the deadlines is set
// again before a burst is sent, and the goroutine that waits for the burst does nothing else. So
// masters that hang delay no deadline, and a minority of them delays no renewal. A renewal that
// failed is repeated until the deadline. A context ends up to 10 ms before the validity does: the
// runtime may take that long to run a timer while all processors are busy.
//
// Once a lock that is kept alive was held for 100 ms, the masters are asked to notify of the next
// change of its keys (CLIENT TRACKING), and again behind each renewal. If one notifies of a change
// that no command of this client explains, the lock is renewed: at once if no quorum may have it
// any more, and otherwise within 20 ms, but at most once in 50 ms. So a holder whose key was
// deleted learns of its loss within a round trip or two, and a minority that has lost the key has
// it again. If such renewals find nothing wrong, the pause between them doubles each time, up to a
// third of the TTL. If a master has lost all keys, the renewals are spread: 10,000 in a second.
//
// These are not notified, and find a loss by their next round, as before: a lock that is not kept
// alive (its next Extend or Unlock); one that is held for less than 100 ms, which costs no command
// more; a lock that was handed over, for its first 100 ms (but the round that follows the hand-over
// finds a loss); readers ([WithShared]), as each renewal of one changes the key of all. A master
// notifies if it speaks RESP3 and the user has the rights (MasterStats.Notifies). It forgets what
// it has promised when its table is full (tracking-table-max-keys, a million by default), and says
// so: then locks are renewed more often, but not without end.
//
// A renewal is never sent after a release. A master is asked a second time if it does not know
// the script, or if it lacks the key and was asked by a native command. The second question is
// not sent once the lock is over, so it follows no release either. No renewal is sent for a lock
// that is over by the clock. If this process stands still between its look at the clock and the
// write, a master may set a key again that has expired there. Then the answer comes too late to
// count, and the key is released.
//
// # How a lock is revoked
//
// [Client.Revoke] is for an operator who must have a lock from a holder that does not give it up.
// If the key were deleted, another would have the lock while the holder is at work. Instead, each
// master that has the holder's token gets a tombstone in its place: revoked:, the token, a newline
// and the reason. The tombstone ends when the key would have ended, so it keeps everybody out for
// as long, which is longer than the holder's validity. Only extensions find no token any more: once
// a majority has tombstones, none can succeed. The holder's next extension finds out, and its
// context ends with [ErrRevoked]. That is at once if the masters notify it of the change of its
// key, as of any loss.
//
// Only a holder deletes the tombstones of its own token, and only when it lets go: by Unlock, by
// Release, by the end of Do, or when the Mutex takes its next lock. It does not do so when it is
// told, as its work may take a moment to end. A holder that was told and a holder that never
// comes back differ in nothing else.
//
//   - Less than a majority of tombstones ends no lock. An extension leaves them there, and sets
//     the key again when they have ended.
//   - A tombstone is lost where the key would be lost: by a restart without its memory, or a flush.
//     What protects the lock then protects the revocation.
//   - The token is compared. So a revocation that comes late, or meets the next holder, does nothing.
//   - A lock that stays in the process ([Config].Handovers) has one token. Whoever has it then, or is
//     given it before the process knows, is told.
//   - A fence goes on to grow. [Client.Watch], [Client.Holders] and [RoundError].HeldBy name the
//     holder until it has let go.
//   - redsync's extension fails, also one with SetNXOnExtend: the key is not free. But once the
//     tombstones have ended, such an extension sets the key again if nobody else has it, as it does
//     with any lock that has ended. A release by another library deletes no tombstone.
//
// # What it returns
//
// Each error that comes from the masters is a [*RoundError], with every master's vote. It wraps
// one of [ErrHeld], [ErrNoQuorum], [ErrRefused], [ErrExpired], [ErrNotHeld], [ErrLost],
// [ErrRevoked], [ErrMaxLifetime], [ErrSecond] and [ErrClosed]. If a context ended the operation
// before the masters had decided it, the error wraps the context's error and cause alone. A
// [Mutex.Lock] whose context ends wraps both, if it knows why it had to wait: ask for the lock's
// errors first, and then for the context's error.
//
// Tokens are not in these errors: any process that knows a token can release the lock.
//
// # Who calls whom
//
// Calls go downwards, but for a hold and its KeepAlives, which know each other. A part below Mutex
// takes what it needs of the parts below it, and never the Client.
//
//	Client.Do, Lead  Mutex.Lock (wait)           Client.Holders, Locks, Revoke, Watch
//	      |               | waits in queues, subscribes to the key
//	      |               +--> localQueues, globalQueues, subscriptions
//	      v               v
//	Mutex.TryLock (attempt), Extend, KeepAlive, Unlock, Release
//	      |               |             ^ switches of a Sentinel group
//	      |               +--> rechecker: asks again for every lock that is held; Shutdown waits for those
//	      |               |
//	      |               +--> relay: a lock that goes from one holder of the client to the next
//	      |               |
//	      |               +--> renewer: renews what is kept alive
//	      |                        | and ends its contexts (keepAlive);
//	      |                        | at once if masters notify (heldSubscriptions)
//	      +---------+--------------+
//	                v
//	      extension: posts and judges one round that extends a hold
//	                |
//	      hold: the lock that a Mutex holds, and its state
//	                |
//	      core: masters, clock, calls, statistics, events        guard: who must not vote
//	                |    notices: who wants to be told what masters notify of
//	      call: one round          kind: what is sent, and how replies are judged
//	                |
//	      mux.Mux: N connections
//
// A client has these goroutines, besides those of its mux: the renewer's, while a deadline is
// served or renewals are under way; one that waits for pushes, while the masters are to notify of
// changes of a lock that is kept alive; one for a moment each second, while a waiter is the head of a
// global queue; one recheck after a switch; one for each lock that is handed over within the
// client, while an Unlock waits for its round, and one for a moment if it is lost; one for each
// Observer, while it is to be told something; and one for a moment, even after
// Close, if a second lock is lost or forgotten. All but the last have ended when Close returns, and
// that of an Observer that hangs. A
// goroutine that waits in Lock reads the masters' pushes itself: it sleeps in the mux, and drives
// it if no other goroutine does.
//
// # Locks
//
// A goroutine that holds one of these may take those after it, and no other:
//
//	Client.attempts   shared by each attempt, from its first command to its release; Close
//	                  takes it alone, to wait for them. An attempt only tries to take it, and so
//	                  do a hand-over and Shutdown.
//	guard.raising     while a longer TTL is told to the mux; no hook takes it
//	rechecker.mu      the set of holds
//	a shard of        the local queues of some keys; several shards are locked in their order
//	localQueues
//	relay.mu          who has its lock; its rounds are posted under it
//	renewer.mu        the heap; renewals are posted under it
//	hold.mu           one lock's state; the other extends are posted under it
//	globalQueues.mu   the heads of global queues
//	waiterSubscrip-   what a waiter asks the masters
//	tion.askMu
//	mux.Mux.mu        the hooks of guard, notices and rechecker run under it, and so do the
//	                  completions of releases that are not awaited; they take leaves
//
// The mutexes of the notices, which waiters, watchers and kept locks share, and of the events are
// leaves: a goroutine that holds one takes no other. So an event can be told under any other. Contexts
// are cancelled while none of these is held, except Client.attempts at times. Observers are called by
// goroutines of their own, which hold none.
//
// [come from these and from other locks]: https://github.com/redburst/redburst/blob/main/redlock/docs/coming-from.md
// [run the masters]: https://github.com/redburst/redburst/blob/main/redlock/docs/masters.md
package redlock
