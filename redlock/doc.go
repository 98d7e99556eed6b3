// Package redlock takes a lock on N independent Redis masters, by the Redlock
// algorithm, at the speed of one.
//
//	client, err := redlock.Open(ctx, redlock.Config{Masters: []string{"a:6379", "b:6379", "c:6379"}})
//	defer client.Close()
//
//	err = client.Do(ctx, "orders:42", 10*time.Second, func(ctx context.Context) error {
//		return work(ctx) // ctx ends, cause ErrLost, if the lock does
//	})
//
// # What it does
//
// A lock is a key on the masters that holds a random token and expires after
// the TTL. A round asks all masters in one burst to set it where it is free
// (SET key token NX PX ttl). T1 is taken before the first byte is written, and
// the lock is held if a majority said yes and, at the moment of looking,
//
//	validity = TTL - (now-T1) - drift,   drift = TTL*0.01 + 2 ms
//
// is above zero; [Mutex.Until] is its end. Otherwise a release goes to all
// masters at once, also to those that said no. The token is fresh for every
// attempt, and every command to one master goes over one connection in order, so
// a release follows what it undoes however late either arrives. A connection
// that breaks in between owes the release to the master as a debt.
//
// Keys and tokens are those of redsync, node-redlock, redlock-py and redlock-rb,
// so all of them exclude each other.
//
// # What it promises, and if what
//
// At most one holder at any time looks at a valid lock, provided that
//
//   - the masters' clocks, measuring the TTL, run at most Config.DriftFactor
//     faster than this process's, and nobody sets a master's wall clock forward
//     (Redis expires keys by it; a clock that jumps expires them early). Our own
//     clock is not the wall clock: it is CLOCK_BOOTTIME on Linux, which goes on
//     counting while the machine is suspended;
//   - a master that restarts has kept its keys (appendfsync always), or is not
//     listened to until the longest TTL has passed. This client does so with a master
//     that it knew, and, given Config.RestartGuard, with one that it meets soon after
//     its start; so must all others. A master that does not say who it is (it needs the
//     right to INFO) counts as restarted at every reconnect. A replica that takes a
//     master's place counts as one that was restarted, and the locks that are held are
//     asked for again then;
//   - no master of locks is made a replica, not for a moment: it takes over the other's
//     data. This client counts it as restarted if it was asked for anything meanwhile, or
//     is connected again later, since its replication id has changed. If neither is so,
//     nobody can know;
//   - a group of sentinels has one master at a time: one that was replaced, and is cut
//     off from its sentinels but not from us, must stop taking writes
//     (min-replicas-to-write). A switch is believed when more than half of the sentinels
//     say so, or the master says itself that it is none any more;
//   - a holder looks at its lock (the context, [Mutex.Remaining]) and not at its
//     hopes. A process can be paused between the look and the deed for longer than
//     the validity. Where that must not do harm, what is protected has to refuse
//     late writers (a fencing token), which Redlock has none of, or the lock has to
//     come from a consensus system.
//
// # Rules
//
//  1. A cancelled context never leaves a key behind: no release uses a caller's
//     context.
//  2. The end of the validity is computed before the caller can see success, and no
//     success is reported without any validity.
//  3. Extend and renewal give the key back to a master that has lost it, but only
//     while the lock is valid by our clock: what has expired is not revived. If a
//     quorum had lost it, the lock is lost, though all have it again: another may
//     have held it in between.
//  4. KeepAlive's context ends at the end of the validity at the latest: its timer
//     is set before a renewal is sent.
//  5. Unlock returns nil if a quorum deleted the key, [ErrNotHeld] only if the lock
//     was lost before, and [ErrNoQuorum], or the context's error, if the masters did not
//     answer.
//  6. A master that does not know a script is sent its text once: no loop.
//
// # How it waits
//
// [Mutex.Lock] waits until the lock is taken or its context is done. Those who
// wait in one client for one key stand in a line, and only the first looks at the
// masters. When the lock is released in this client, the first has it one round
// later, its attempt following the release on every connection. After
// Config.Handovers in a row, the first of the line lets others try before it does.
//
// Against other processes the first of a line reads how long the key has to live,
// and asks each master to tell of its next change (CLIENT TRACKING); it wakes when
// the key can be free on a majority, or when its TTL has passed there. Those who
// wake at the same moment ask one master first, the same for all of them, and only
// who has that asks the others: so a vote does not split, and a crowd costs one
// command each. Where too few masters can tell, or are up, it polls: after at least
// the time of a round and, on top, a random part of twice that time, doubling to
// 200 ms. TryLock does not stand in line, and asks all masters at once.
//
// # How it renews
//
// All [Mutex.KeepAlive] of a client share one heap of events and one timer, which
// costs nothing while nothing is due. A lock is renewed a third of its TTL after
// it was last; those due at about the same time share a burst. The timer for the
// deadlines is set again before a burst is sent, and whoever waits for a burst
// serves nothing else, so that masters that hang delay no deadline and no other
// lock's renewal. A renewal that failed is repeated until the deadline. A context
// ends up to 10 ms before the validity does, which is what the runtime may take
// to run a timer while all processors are busy.
//
// A renewal is never sent after a release, and a retry of one by a master that did
// not know the script cannot set a key. A renewal is not sent for a lock that is over by
// the clock. If this process stands still between its look at the clock and the write, a
// master may be asked to set again a key that has expired there: the answer comes too late
// to count then, and the key is released.
//
// # What it returns
//
// All errors that come from the masters are [*RoundError], with every master's
// vote, and wrap one of [ErrHeld], [ErrNoQuorum], [ErrExpired], [ErrNotHeld],
// [ErrLost] and [ErrClosed]. If a context ended the operation before the masters had
// decided it, the error wraps the context's error and cause alone. A [Mutex.Lock] whose
// context ends wraps both, if it knows why it had to wait: ask for these first, and then
// for the context's error.
//
// Tokens are not in these errors: whoever knows one can release the lock.
package redlock
