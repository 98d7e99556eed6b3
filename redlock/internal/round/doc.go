// Package round asks all masters one question at a time. It knows what is sent for each round of a lock, to whom, and
// what undoes it. It knows nothing of errors, statistics and Observers, and of no Client and Mutex: package redlock tells
// of the rounds.
//
//	spec.go       the part of a lock that never changes (Spec)
//	call.go       one round: its operation, its buffers, and what its stragglers leave (Call)
//	core.go       what all rounds of a client share, and rounds that are of several parts (Core)
//	hints.go      the numbers that an acquire with a fence asks for, and which numbers are believed (Hints)
//	agreement.go  on which numbers of permits the masters have lately agreed
//
// # Who calls whom
//
//	redlock: attempts, extensions, releases, looks, revocations
//	     | takes a Call of the Core, encodes a round in it, and has the Mux carry it out
//	     v
//	Core --> Mux: N connections
//	     |
//	     +--> quorum: what the votes say      kind: what is sent, and how a reply reads
//
// # Goroutines and locks
//
// The package starts no goroutine, and has no mutex. A Call belongs to whoever has taken it, until its operation is
// decided and it is put back. A Core, its Hints and its agreements are used by any number of goroutines at once: they
// have pools and atomics alone. So all of it can be used under any other lock, but Core.Mux has the mux's own rules.
// Agreements are ended with the mux locked, too, and so a Core asks the mux nothing there.
//
// A round is encoded and posted under the lock of whoever keeps its lock (see inside.go in redlock): what is posted later
// is carried out later.
package round
