// Package quorum decides: what a round's votes say, for how long a lock is valid by them, which masters' yes counts, and
// which masters vote at all. It asks nobody. It reads no clock and starts no goroutine: it is given votes, what servers say
// of themselves, and the time. So all of it can be read, and tested, alone.
//
//	tally.go    what a round's votes say (Tally), and the validity that they give (Term)
//	suspect.go  which masters' yes counts, of a lock whose sets may come late (Sets)
//	guard.go    which masters may have forgotten locks, and do not vote (Guard)
//	witness.go  ... by what all clients leave on the masters for each other
//	fence.go    the number that a lock has, with the proof that it grows
//
// A Guard is used with the mux locked, but for Use; what else is here belongs to whoever calls it.
package quorum
