// Package tracking is about what masters notify a client of (CLIENT TRACKING), and about how a goroutine sleeps until then.
// It knows nothing of errors, statistics and Observers, and of no Client, Mutex and wait: package redlock acts on what it
// tells.
//
//	registry.go   who wants to be told of which key, and which masters have promised it (Registry)
//	sleeper.go    how a goroutine sleeps until masters, or other goroutines, wake it
//	listener.go   one goroutine that sleeps until enough masters have notified it (Listener)
//	restraint.go  who is notified again and again of nothing is kept back (Restraint)
//	kept.go       locks that are kept alive: their changes, and the questions that have masters notify of them (KeptLocks)
//
// # Who calls whom
//
//	the mux's hooks: pushes, connections     waiters, watchers      the renewer
//	     |                                        |                     |  ^ heed
//	     v                                        v                     v  |
//	Registry -------------------------------> Listener             KeptLocks
//	     tells, with the mux locked               |                     |
//	                                              +---> sleeper <-------+
//	                                                       |
//	                                                       +--> Mux: sleeps there, and is woken there
//
// # Goroutine
//
// The package starts one: KeptLocks has it while there are locks that are kept alive and have asked the masters. It sleeps in
// the mux, and calls heed, with no lock, when masters have notified or were connected. It ends with the last of these locks,
// or with the mux.
//
// # Locks
//
// Registry.mu guards all subscriptions. It is a leaf: a goroutine that holds it takes no other, and cancels no context. So
// everything can be called under any other lock. The hooks call Push, Disconnected and Connected with the mux locked, and
// what they tell wakes the sleepers there. A Listener's Wake and Sleep, and KeptLocks.Remove, take the lock of the mux.
package tracking
