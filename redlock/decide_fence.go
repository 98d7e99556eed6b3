package redlock

import (
	"github.com/redburst/redburst/mux"
)

// A fence is a number that each lock on a key has, and every later one's is greater (others call
// it a fencing token). It needs no consensus. Each master counts the locks it gives. A quorum's
// counters differ only where a master has missed some, or two clients have tried at once.
//
//   - An acquire moves a master's counter to max(counter+1, hint) where the key is free, and
//     returns it. If a quorum returns the same number, that is the fence: one round.
//   - Otherwise the fence is the greatest that a quorum has returned, and a second round raises
//     the counters to it, but only where the key is still ours. The fence is published only when
//     a quorum has done so. Validity counts from the beginning of the first round.
//   - Extend, renewal and recheck raise the counters, too: a master that is given the key again
//     must not have it beside a low counter.
//
// Why every later fence is greater: let W be the quorum whose counters were at least T(A) while
// A's key was there. The quorum of B, which has the lock after A, has a master j in common with W.
// B's script ran at j after A's key had gone from there, so it returned T(A)+1 or more. T(B) is
// the greatest number, or the common one, of a quorum with j in it.
//
// So a raise must not count where the key is gone: B's script may have run there before it. And
// the greatest number of a quorum is not enough without a raise: the next quorum may share only
// masters with it that have lower ones.
//
// A master that lost its memory has lost its counter. Nothing happens while every quorum has a
// master that has had the number and remembers it: while a majority of all masters do. (Where just
// a quorum has had it, one that forgets is too many.) Beyond that the hint protects: it is the
// client's wall clock, and so above every fence that was given before the masters went down, if the
// clients' clocks differ by less than the time between the two locks. That is at least as long as
// the masters did not vote: see Config.RestartGuard.
//
// # Numbers that nobody believes
//
// All numbers come from clients' clocks. One that is further ahead of a client's own clock than
// Config.FenceSkew was written by somebody, or the master lies. The client does not believe it: the vote
// has failed, in an acquire, a raise and an adopt. So it is neither published nor raised on other masters.
// The quorums of the proof are of numbers that are believed, and nothing else changes in it.
//
// If a majority has such numbers, the lock fails. It can as well be this client's clock that is wrong. And a
// resource that has stored a number which is too great refuses everybody for ever. A client whose
// clock is far ahead must not have all others fail by that. So a master refuses a hint that is further ahead
// of its own clock than the skew.
//
// A counter that is not believed is mended: it is set to T(B) by the holder B, if
//
//   - B is no reader;
//   - B had the master's answer before its lock was published, and has not set the key there again since;
//   - by the master's own clock the counter is too far ahead, too.
//
// Why every later fence is greater all the same: let A be a lock with that master j in W(A). If A's key came to j
// after B's key had gone, it came after the mending. If it was there before, T(A) < T(B), as B comes after A:
// suppose that at another master m, of W(A) and of B's quorum, B's key was there first. A's key came there when B's
// had gone, and so after B was published, as B was valid then. A was not published before that. But A's key had gone
// from j before B's key came, so A was over by then.
//
// Without the second condition, A could have been at j between two keys of B. So what mends is never sent a second
// time. A reader is not before or after the others that hold the lock with it, and its number can be lower than
// theirs. The third condition is for a client whose clock is far back, where a majority has lost its
// counters: then the proof does not hold, and what the others remember is all there is.
//
// What is left to a master that lies: it can have the fence jump by the skew at most. Clients whose clocks are behind
// that of the one which has raised it do not believe that number for as long as they are behind. A master that
// goes on so keeps them from locks with a fence. And it can say a lower number than it has been told, as
// it can say of a lock that it is there. No majority protects from that. A counter on a master that always answers
// after the others have decided is not heard of, and stays until it is: nobody waits for a master only to mend it.

// maxFence is the greatest number that there can be. Lua counts in 64-bit floats, which are
// exact up to here. In microseconds it is the year 2255.
const maxFence = 1<<53 - 1

// common returns the greatest number of the votes that are yes, and reports whether a quorum
// has it.
func common(votes []mux.Vote, quorum int) (fence uint64, agreed bool) {
	same := 0
	for i := range votes {
		v := &votes[i]
		if v.Verdict != VerdictYes {
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
