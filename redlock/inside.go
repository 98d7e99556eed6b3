package redlock

// This file is for who changes the package: who calls whom, who takes which mutex, and where each rule is kept.
//
// # Who calls whom
//
// Calls go downwards. A part below Mutex takes what it needs of the parts below it, and never the Client. Package held asks
// two things of the client all the same, through interfaces: to make its errors and tell its Observers (Teller), and who
// waits for a lock (Queues).
//
//	Client.Do, Acquire, Lead  Mutex.Lock (wait)  Client.Holders, Locks, Revoke, Watch
//	      |               | waits in queues, subscribes to the key
//	      |               +--> line: LocalQueues, GlobalQueues, Looks; each waiter is a tracking.Listener
//	      v               v
//	Mutex.TryLock (attempt), Extend, KeepAlive, Unlock, Release
//	      |               |             ^ switches of a Sentinel group
//	      |               v
//	      |         held: all locks that are held, and the one of each Mutex; its doc.go draws what is inside
//	      +---------+
//	                v
//	      core: masters, clock, statistics, events               guard: who must not vote
//	                |    tracking.Registry: who wants to be told what masters notify of
//	      round.Core, round.Call: one round          kind: what is sent, and how replies are judged
//	                |
//	      mux.Mux: N connections
//
// A client has these goroutines, besides those of its mux and of package held: one that waits for pushes, while the masters
// are to notify of changes of a lock that is kept alive; one for a moment each second, while a waiter is the head of a
// global queue; and one for each Observer, while it is to be told something. All but that of an Observer that hangs have
// ended when Close returns. A goroutine that waits in Lock reads the masters' pushes itself: it sleeps in the mux, and
// drives it if no other goroutine does.
//
// # Locks
//
// A goroutine that holds one of these may take those after it, and no other:
//
//	Client.attempts   shared by each attempt, from its first command to its release; Close
//	                  takes it alone, to wait for them. An attempt only tries to take it, and so
//	                  do a hand-over and Shutdown.
//	guard.raising     while a longer TTL is told to the mux; no hook takes it
//	rechecker.mu      the list of the holds; it, relay.mu, renewer.mu and Lock.mu are package held's
//	a shard of line.  the local queues of some keys; several shards are locked in their order
//	LocalQueues
//	relay.mu          who has its lock; its rounds are posted under it
//	renewer.mu        the heap; renewals are posted under it
//	Lock.mu           one lock's state; the other extends are posted under it
//	line.Global-      the heads of global queues
//	Queues.mu
//	line.Waiter.askMu what a waiter asks the masters
//	mux.Mux.mu        the hooks of guard, tracking and rechecker run under it, and so do the
//	                  completions of releases that are not awaited; they take leaves
//
// The mutexes of the tracking.Registry, which waiters, watchers and kept locks share, and of the events are
// leaves: a goroutine that holds one takes no other. So an event can be told under any other. Contexts
// are cancelled while none of these is held, except Client.attempts at times. Observers are called by
// goroutines of their own, which hold none.
//
// # Where the rules are
//
// Each row names the declaration that decides, and a fault in the list that breaks it there. A rule of several parts has
// a row for each. What is between processes is decided in Lua, on the masters; within one, in Go. What a failed attempt, or a round
// that was decided early, leaves on the masters, and what undoes it, is a table in internal/round/call.go.
//
//	the majority                      redlock/internal/quorum/tally.go     Majority             quorum-minus-one
//	for how long a lock is valid      redlock/internal/quorum/tally.go     Term.Until           drift-skipped
//	when a lock is taken              redlock/internal/quorum/tally.go     Tally.Acquired       success-without-validity
//	when it is extended               redlock/internal/quorum/tally.go     Tally.Extended       extend-without-a-look-at-the-validity
//	when Unlock may return nil        redlock/internal/quorum/tally.go     Tally.Released       unlock-of-what-was-lost
//	... of a lock handed over         redlock/internal/held/relay.go       relay.complete       unlock-confirmed-by-an-earlier-round
//	whose yes counts                  redlock/internal/quorum/suspect.go   Sets.SuspectSince    round-is-judged-by-the-suspects-of-its-beginning
//	who is sent a repair              redlock/internal/quorum/suspect.go   Sets.Succeeded       round-before-a-repair-clears-it
//	a restarted master has no vote    redlock/internal/quorum/guard.go     Guard.decide         newcomer-to-a-used-list-votes
//	... until when                    redlock/internal/quorum/guard.go     Guard.Standing       yes-counts-before-the-witness-is-read
//	what is durable                   redlock/internal/quorum/guard.go     Guard.remembers      durable-though-it-denies-it
//	which fence counts                redlock/internal/quorum/fence.go     Common               fence-before-it-is-safe
//	... and which number is one       redlock/internal/kind/fenced.go      fenced.Acquire       far-fence-believed-in-an-acquire
//	a failed attempt is undone        redlock/acquire.go                   attempt.round        failed-attempt-kept
//	... if its context ends           redlock/acquire.go                   attempt.round        cancelled-attempt-leaves-its-key
//	... while it waits in the queues  redlock/internal/line/global.go      GlobalQueues.endEntry  who-gives-up-stays-in-the-queue
//	... or if the context panics      redlock/wait.go                      wait.cleanUp         waiter-that-panics-stays-in-the-queue
//	who goes on after a split         redlock/acquire_split.go             Mutex.resolve        split-asks-who-owes
//	a lock is lost at its end         redlock/internal/held/keepalive.go   KeepAlive.deadline   keepalive-ends-late
//	a lock is renewed after a third   redlock/internal/quorum/tally.go     RenewAfter           renewed-after-a-half
//	a renewal is repeated             redlock/internal/held/renewer.go     renewer.complete     renewal-not-repeated
//	a lock after a switch             redlock/internal/held/recheck.go     rechecker.survives   recheck-judges-anothers-lock
//	a tombstone excludes              redlock/internal/held/renewer.go     renewer.noteLost     a-minoritys-tombstones-are-deleted
//	who is next, and who is dead      redlock/internal/kind/queue.go       EnterScript          dead-in-the-queue-blocks
//	... in this process               redlock/internal/line/local.go       LocalQueues.joinAs   several-waiter-does-not-wait-for-its-turn
//	... and is woken                  redlock/internal/line/local.go       LocalQueues.Released  wake-nobody
//	a queue that does not move        redlock/wait.go                      wait.renew           queue-that-does-not-move-is-obeyed
//	readers give way to a writer      redlock/internal/kind/shared.go      addReader            intent-ignored
//	how many permits there are        redlock/internal/kind/permits.go     permitAcquireScript  another-number-of-permits
//	... and for how long we know      redlock/acquire.go                   attempt.once         ended-agreement-counts
//	whose answer a reply is           mux/reply.go                         Mux.reply            unexpected-reply-accepted
//	a reply that is too large         mux/reply.go                         Mux.reply            long-reply-is-judged
//	... and how large that is         resp/scan.go                         Reader.scanBulk      bulk-without-limit
//	a dial of a master that fails     mux/dial.go                          Mux.dial             dials-forget-that-they-took-too-long
//	... of a sentinel, or a node      conn/asker.go                        tempo.wait           followers-forget-who-was-late
//	a connection that ends            mux/slot.go                          slot.backOff         silent-master-is-dialled-at-once
//	a release that is owed            mux/debt.go                          slot.wants           debt-delivered-after-its-time
//	where a group's master is         conn/sentinel.go                     agree                one-sentinel-moves-the-master
//	nobody waits for an Observer      redlock/observer_queue.go            events.end           observer-in-the-callers-way

import (
	"context"

	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/held"
)

// The doors of package behind.
func init() {
	behind.OfHolder = func(h any) *behind.Holder { return &h.(*Holder).more }
	behind.OfEvent = func(e any) *behind.Event { return &e.(*Event).more }
	behind.OfMaster = func(m any) *behind.Master { return &m.(*MasterStats).more }
	behind.OfStats = func(s any) *behind.Stats { return &s.(*Stats).more }
	behind.TokenFrom = held.TokenFrom
	behind.Tell = func(of any, ctx context.Context, key string) bool {
		c, ok := of.(*Client)
		if !ok {
			c = of.(*Mutex).mustClient()
		}
		return c.events.tell(ctx, behind.Note, key)
	}
}
