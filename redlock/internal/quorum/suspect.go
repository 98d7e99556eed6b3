package quorum

import (
	"time"

	"github.com/redburst/redburst/mux"
)

// This file decides which masters' yes counts. A yes is to say that the master has had the key all the time. It does not
// if a set of the key comes late: the acquire's own, on a master that had not answered when the lock was taken, or a
// repair. Another may have had the lock and let go before the late set is carried out. Nobody can take a set back: it waits
// in the buffers of a master that hangs, even behind a connection that was given up. So each token remembers its sets.
//
//   - Who is sent a set owes an answer, and is suspect: its yes counts for nothing in any round.
//   - An answer ends what is owed, and not the suspicion. If the connection ends first, the master owes it until its
//     process is another, and the set is gone with the old one. So a master whose connection breaks while a lock is taken
//     is left out for the lock's life, unless it is restarted: nothing else confirms it.
//   - A round succeeds if a quorum says yes that is not suspect. If it began after the last set was sent, all those are
//     suspects no more that owed nothing when it began. For whatever their sets have done was done before the round
//     began, and the round says that nobody else had a quorum by then.
//   - Only such a round repairs: it sends a set to those that have said that the key is gone, and owe nothing. So one set
//     at most is under way to a master.
//   - A straggler of the acquire that has answered soon (mux.Mux.Heard) is no suspect. Until it was read, another may have
//     had a quorum after the acquire was decided, if one that had decided it has lost the key by then: rule 3 of the
//     package comment says so. A repair has no such exception.
//   - A token that comes from another process has unknown sets. Its first round counts every yes, and who did not say yes
//     owes as if its connection had ended. So such a lock is not repaired on a master that was out of reach then, unless
//     that is restarted later.
//
// TestModelOfSuspects goes through all states, and shows what each of these sentences is for.

// Sets are what a token remembers of its sets. It goes wherever the token goes.
type Sets struct {
	owing   mux.Set // have not answered theirs, as far as is known
	never   mux.Set // ... and will not, as that is
	suspect mux.Set // whose yes counts for nothing; those that owe are among them

	first, last time.Duration // the sets that are owed were sent between
	grown       uint32        // how often suspects were added after the acquire
}

// A Trust is what the sets were when a round began.
type Trust struct {
	owing mux.Set
	grown uint32
}

// NewSets begins the sets of a lock that was taken: those that were sent theirs between the two times, and have not
// answered.
func NewSets(owing mux.Set, first, last time.Duration) Sets {
	return Sets{owing: owing, suspect: owing, first: first, last: last}
}

// Asks returns what a mux is to be asked before a round: of those that may answer still, and of those that never will.
func (s *Sets) Asks() (open, never mux.Sent) {
	return mux.Sent{To: s.owing &^ s.never, First: s.first, Last: s.last}, mux.Sent{To: s.never, Last: s.last}
}

// Heard notes what the mux has said of those that owe: who has answered, who of these soon, and who never will.
func (s *Sets) Heard(answered, soon, never mux.Set) {
	s.never |= never & s.owing
	s.never &^= answered
	if s.grown == 0 {
		s.suspect &^= soon & s.owing
	}
	s.owing &^= answered
}

// Begin begins a round.
func (s *Sets) Begin() Trust { return Trust{s.owing, s.grown} }

// Doubted returns the masters whose yes counts for nothing in a round that begins, and those whose yes counts if they have
// answered soon by then.
func (s *Sets) Doubted() (suspect mux.Set, unless mux.Sent) {
	if s.grown == 0 {
		unless, _ = s.Asks()
	}
	return s.suspect &^ unless.To, unless
}

// SuspectSince returns the masters whose yes counts for nothing either, when a round is judged.
func (s *Sets) SuspectSince(t Trust) mux.Set {
	if s.grown == t.grown {
		return 0
	}
	return s.suspect
}

// Succeeded notes that a round has succeeded, and returns those of the masters that are to be repaired that have said that
// the key is gone.
func (s *Sets) Succeeded(t Trust, gone mux.Set) (repair mux.Set) {
	if s.grown != t.grown {
		return 0
	}
	s.suspect &= t.owing
	return gone &^ s.owing
}

// Sent notes that masters were sent a repair between two times.
func (s *Sets) Sent(to mux.Set, first, last time.Duration) {
	if to == 0 {
		return
	}
	if s.owing == s.never {
		s.first = first
	}
	s.last = last
	s.owing |= to
	s.suspect |= to
	s.grown++
}

// Adopted notes that the first round has succeeded of a token that comes from another process, by that time.
func (s *Sets) Adopted(all, yes mux.Set, now time.Duration) {
	s.owing = all &^ yes
	s.never, s.suspect, s.last = s.owing, s.owing, now
	s.grown++
}
