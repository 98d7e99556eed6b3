// Package held is a lock that is held: from the attempt that has taken it, through its renewals and extensions, to its
// release, or until it is handed over within the process. It knows no Client, no Mutex and no Observer, and makes no error
// of a lock. What it asks of its client is in a Core: a Teller makes the errors and tells the Observers, and Queues are those
// who wait. Package redlock makes the attempts, and has what users call.
//
//	locks.go         all locks of a client, the door (Locks)
//	core.go          what the package is given of a client (Core, Teller, Queues), and counts
//	lock.go          the lock that a Mutex holds, and its state: a hold (Lock)
//	extension.go     one round that gives a hold its full TTL again; Extend
//	keepalive.go     the context of who works under a lock (KeepAlive)
//	renewer.go       renews what is kept alive, and ends its contexts
//	subscription.go  what a lock that is kept alive is notified of
//	recheck.go       asks again for every lock when a group has another master
//	release.go       the round that releases a lock; Unlock and Release
//	relay.go         a lock that goes from one holder of the client to the next
//	backing.go       the second lock, in another system
//
// # Who calls whom
//
//	redlock: attempts, Extend, KeepAlive, Unlock, Release, a waiter that was given a lock, Shutdown, Close
//	     |
//	     v
//	Locks --+--> release --> relay: hands a lock over, and asks the masters once more
//	        |                  |
//	        +--> rechecker: lists what is held    Switched: a group has another master
//	        |         |
//	        +--> renewer: a heap of KeepAlives, and one timer    heed: masters notify (tracking.KeptLocks)
//	        |         |
//	        +---------+--> extension --> Lock: a hold, its KeepAlives, its second lock (backing)
//	                                       |
//	                                       +--> round: what is asked      quorum: what the votes say
//
// A hold and its KeepAlives know each other: it moves their ends, and they are ended by the renewer. It also knows the relay
// that its lock is in.
//
// # Goroutines
//
// All have ended when Wait returns, but the last.
//
//	the renewer's   of its timer, while a deadline is served or renewals are under way; several if some are slow
//	an end          one for each lock that the two above and below find over: its contexts may block when they are called
//	a recheck       one, after a switch, until all locks were asked for
//	a relay's       one for each lock that is handed over, while an Unlock waits for its round, and one for a moment if
//	                the lock is lost
//	a context's     one for each of several that end together, while it is cancelled; whoever ends them waits for it
//	secondOver      for a moment, if a second lock is lost or forgotten, even after Close
//
// The renewer has KeptLocks run their goroutine, too.
//
// # Locks
//
// In this order, and all before the lock of the mux. The queues call GoesOn, Give and GiveBack under their own, which come
// after rechecker.mu and before relay.mu.
//
//	rechecker.mu  the list of the holds
//	relay.mu      who has its lock; its rounds are posted under it
//	renewer.mu    the heap; renewals are posted under it
//	Lock.mu       one lock's state; the other extends are posted under it
//
// Contexts are cancelled while none of these is held, nor are callers' contexts asked. The Teller is asked under any of them.
package held
