// Package line says who is next: which waiter of this client, and which client. It knows no error of a lock, no statistics,
// no Observer, and no Client and Mutex. Package redlock has the call of Lock (wait.go), which asks it what to do next, and
// package held has the locks that waiters are given (relay.go). What both have of a client is in a Core.
//
//	waiter.go      one goroutine in Lock (Waiter): what wakes it, and what it is given (Given)
//	local.go       the waiters of this client for each key, in their order (LocalQueues)
//	global.go      the waiters of all processes for each key, on one master (GlobalQueues)
//	look.go        whether a key is free, and when it will be (Looks)
//	contention.go  which keys others want, too
//	core.go        what the package is given of a client
//
// # Who calls whom
//
//	wait: a call of Lock          Unlock, Close           a relay
//	     |                             | Released, HandOver   | Counted, AskOthers, NoteOthers
//	     v                             v                      v
//	LocalQueues: signals, or a lock that is given, wake a Waiter
//	     | its head alone
//	     v
//	GlobalQueues: the end of its predecessor's notice wakes a Waiter
//	     | its head alone
//	     v
//	Looks: a change of the key on a majority wakes a Waiter
//	     |
//	     +--> round: what is asked      tracking: a Waiter is a Listener      kind: the queue's scripts
//
// # Goroutines
//
// The package starts none, but it has timers. Each waiter has one, which wakes it. One for all heads of global queues renews
// their entries each second: it begins with the first head, is not set again without one, and GlobalQueues.Close stops it.
//
// # Locks
//
// In this order, and each comes before the lock of the mux:
//
//	a shard of LocalQueues   the queues of some keys; several shards are locked in their order. goesOn and give, of HandOver,
//	                         and Given.Of are called under it
//	GlobalQueues.mu          the heads
//	Waiter.askMu             what a waiter asks the masters
//
// All else of a Waiter is its goroutine's, but what its comments say: the queues set its signal and what it is given.
package line
