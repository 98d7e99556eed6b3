package redlock

import (
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/skew"
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

// maxFence is the greatest number that there can be. Lua counts in 64-bit floats, which are
// exact up to here. In microseconds it is the year 2255.
const maxFence = 1<<53 - 1

// hints makes the hints of a client.
type hints struct {
	last atomic.Uint64 // the greatest that was given, or has been seen
}

// maxAhead bounds how far a number that was seen may be ahead of the wall clock to move the
// hints. Beyond it the number is some other key's that went wrong, and would spoil all others.
const maxAhead = 24 * time.Hour

// next returns a hint: the wall clock in microseconds, or one more than the greatest number that
// this client knows. It is never 0, which is no number.
func (h *hints) next() uint64 {
	now := h.now()
	for {
		last := h.last.Load()
		hint := max(now, 1)
		if last >= now && last <= now+uint64(maxAhead.Microseconds()) {
			hint = last + 1
		}
		if h.last.CompareAndSwap(last, hint) {
			return hint
		}
	}
}

// saw notes a number that a master has.
func (h *hints) saw(n uint64) {
	limit := h.now() + uint64(maxAhead.Microseconds())
	for last := h.last.Load(); n > last && n <= limit; last = h.last.Load() {
		if h.last.CompareAndSwap(last, n) {
			return
		}
	}
}

// now is the wall clock in microseconds, and 0 if that is no time of this century: numbers must
// be able to grow after it.
func (h *hints) now() uint64 {
	now := time.Now().Add(skew.Offset).UnixMicro()
	if now < 0 || now > maxFence/2 {
		return 0
	}
	return uint64(now)
}

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
