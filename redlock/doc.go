// Package redlock takes a lock on N independent Redis masters, by the Redlock
// algorithm, in one round trip to all of them.
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
// to those that said no, unless all did.
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
// them and this library exclude each other.
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
//     a renewal is sent. No timer counts a suspend of the machine. So it sleeps for a second at
//     most, and whoever asks the context has it look at the clock.
//  5. Unlock returns nil if a quorum deleted the key, or has it still, [ErrNotHeld] only if the lock had ended
//     before, and [ErrNoQuorum], or the context's error, if the masters did not answer.
//  6. A master that does not know a script is sent its text once: no loop. Where the server has a
//     native command (DELEX and MSETEX of Redis 8.4, DELIFEQ of Valkey 9.0, SET IFEQ), that takes
//     the place of the script. The script does what the command cannot do, in the same round.
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
// These options go together (yes), or NewMutex panics and Do returns an error (no):
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
// All these keys expire by themselves, but for the last, of which each master has one.
//
// # The fence
//
// With [WithFence], a lock has a number that is greater than that of every earlier holder of its
// key. Let the resource refuse every number lower than one that it has seen. Once a later holder
// has shown its number, the resource takes no write of a holder whose lock is over. So a holder
// shows its fence to the resource before it relies on what it reads there.
//
// The numbers grow if a majority of all masters have had a lock's number, and remember it until
// the next lock is taken. They remember it for Config.FenceMemory, and beyond a restart only if
// they persist it. If fewer masters do, the numbers still grow, provided that the clients' wall
// clocks differ by less than the masters were down, or by less than Config.RestartGuard if that
// is longer. A client does not believe a number that is further ahead of its wall clock than 24 h,
// or Config.FenceMemory if that is shorter. [The kinds, one by one] say how such a counter is set
// back.
//
// # Once in a period
//
// A lock prevents two runs at once. It does not prevent a second run afterwards. [WithMinHold]
// makes a job run once in d: after it, the key stays on the masters until d has passed since it was
// set. If the job fails, the lock is deleted, so that another can try.
//
//	err := client.Do(ctx, "lock:nightly-report", 30*time.Second, report,
//		redlock.WithMinHold(time.Hour), redlock.WithWait(0))
//	if errors.Is(err, redlock.ErrHeld) {
//		return nil // it is done, or being done, elsewhere
//	}
//
// A lock that stays is no proof that the job has been done: a holder that dies leaves the key,
// too. And a job is done twice in d if the lock was lost meanwhile and another took it.
//
// # A second lock
//
// Redlock rests on clocks. [WithSecond] adds a lock of a system that rests on consensus, etcd or
// ZooKeeper. The masters come first, and let one client at a time through to it. It has the last
// word: two clients have the lock at a time only if both systems fail in the same moment.
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
//			connect(leader.Holders[0].Owner) // a hint and no proof: check who answers there
//		}
//	}
//
// A leader is the holder of a lock, and what is said here of a lock is all that is promised.
//
// # How a service stops
//
// [Client.Shutdown] tells all work under locks at once to stop, and releases each lock when its work has stopped:
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
// # More
//
// [The kinds, one by one]: fences, several keys, readers, permits, periods, second locks, leaders.
// [How it works]: how it waits, renews, and is revoked. [What distance costs]. [The Redlock text],
// step by step, and where we differ. [A service], with its tests. How to [come from other locks],
// and how to [run the masters].
//
// [The kinds, one by one]: https://github.com/redburst/redburst/blob/main/redlock/docs/kinds.md
// [How it works]: https://github.com/redburst/redburst/blob/main/redlock/docs/how-it-works.md
// [What distance costs]: https://github.com/redburst/redburst/blob/main/redlock/docs/distance.md
// [The Redlock text]: https://github.com/redburst/redburst/blob/main/redlock/docs/redlock-text.md
// [A service]: https://github.com/redburst/redburst/blob/main/redlock/docs/service.md
// [come from other locks]: https://github.com/redburst/redburst/blob/main/redlock/docs/coming-from.md
// [run the masters]: https://github.com/redburst/redburst/blob/main/redlock/docs/masters.md
package redlock
