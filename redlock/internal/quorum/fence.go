package quorum

import (
	"github.com/redburst/redburst/mux"
)

// A fence is a number that each lock on a key has. The fence of every later lock is greater. (Others call it a
// fencing token.) Fences need no consensus. Each master counts the locks that it gives. The counters of a
// quorum differ only if a master has missed some locks, or if two clients have tried at once.
//
//   - An acquire moves a master's counter to max(counter+1, hint) where the key is free, and
//     returns the counter. If a quorum returns the same number, that is the fence, after one round.
//   - Otherwise the fence is the greatest number that a quorum has returned. A second round raises
//     the counters to it, but only where the key is still ours. The fence is published only after
//     a quorum has raised its counters. The validity counts from the beginning of the first round.
//   - A lock that stays in the process is passed to its next holder: one round moves the counters on where the
//     key is ours, and returns them, as if each master had released the lock and given it again. The rest is as
//     for an acquire.
//   - Extend, renewal and recheck raise the counters, too. A master that is given the key again
//     must not have it beside a lower counter.
//
// This is why every later fence is greater. Let T(A) be the fence of a lock A, and W the quorum whose counters
// were at least T(A) while A's key was there. Let B have the lock after A. The quorum of B shares a master j with
// W. B's script ran on j after A's key had gone from j, so it returned T(A)+1 or more. T(B) is the greatest
// number, or the common number, of a quorum that contains j.
//
// So a raise must not count where the key is gone, as B's script may have run there before the raise. And the
// greatest number of a quorum is not enough without a raise: the next quorum may share only masters
// with it that have lower numbers.
//
// A master that has lost its memory has lost its counter. This does no harm while every quorum contains a master
// that has had the number and remembers it, which is so while a majority of all masters remember it. (If only
// a bare quorum has had the number, one master that forgets is too many.) Beyond that the hint protects, as it
// is the client's wall clock. It is above every fence that was given before the masters went down, if the
// clients' clocks differ by less than the time between the two locks. That time is at least as long as the
// masters did not vote: see Config.RestartGuard.
//
// # Numbers that are not believed
//
// All numbers come from clients' clocks. If a number is ahead of a client's own clock by more than
// round.Hints.Skew (24 hours, or Config.FenceMemory if that is less), no lock has written it there, or the master
// lies. The client does not believe the number: in an acquire, a raise and an adopt, the vote is failed. So the number is neither published nor raised on other
// masters. The quorums of the proof consist of votes with numbers that are believed, and the proof stays the same.
//
// If a majority has such numbers, the lock fails. The client cannot take one of them as its fence, as its own clock
// may be wrong, and a resource that has stored a number which is too great refuses every later holder. A client
// whose clock is far ahead must not make all others fail in this way. So a master refuses a hint that is
// ahead of its own clock by more than the skew.
//
// A holder B mends a counter that is not believed: it sets the counter to T(B), if
//
//   - B is no reader;
//   - B had the master's answer before its lock was published, and has not set the key there again since;
//   - by the master's own clock the counter is too far ahead, too.
//
// This is why every later fence is greater all the same. Let A be another lock, with that master j in W(A). If A's
// key came to j after B's key had gone, it came after the mending. If A's key was on j before B's key, then B must
// come after A, so that T(A) < T(B). Suppose the contrary: on another master m, of W(A) and of B's quorum, B's key
// was there before A's. A's key came to m when B's key had gone, and so after B was published, as B was valid until
// then. So A was not published before B. But A's key had gone from j before B's key came to j, so A was over by then.
//
// Without the second condition, A's key could have been on j between two keys of B. So a mend is never sent a second
// time. A reader comes neither before nor after the readers that hold the lock with it, and its number can be lower
// than theirs: hence the first condition. The third condition is for a client whose clock is far behind, when a
// majority has lost its counters. Then the proof does not hold, and only the counters that are left protect.
//
// This is what a master that lies can still do. It can make the fence jump, by the skew at most. Clients whose
// clocks are behind that of the client which has raised the fence do not believe the number for as long as they are
// behind. A master that repeats this keeps these clients from locks with a fence. A master can also return a lower
// number than it was told, as it can claim that a lock is there. No majority protects from that. And if a
// master always answers after the others have decided, its counter is not seen, and stays as it is until it is
// seen: a client does not wait for a master only to mend it.

// MaxFence is the greatest number that a fence can be. Lua counts in 64-bit floats, which are exact up to this
// number. As microseconds since 1970, it is in the year 2255.
const MaxFence = 1<<53 - 1

// Common returns the greatest number of the yes votes. agreed says whether a quorum has it.
func Common(votes []mux.Vote, quorum int) (fence uint64, agreed bool) {
	same := 0
	for i := range votes {
		v := &votes[i]
		if v.Verdict != mux.VerdictYes {
			continue
		}
		switch n := uint64(v.Int); {
		case n > fence:
			fence, same = n, 1
		case n == fence:
			same++
		}
	}
	return fence, fence > 0 && same >= quorum
}
