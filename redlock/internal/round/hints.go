package round

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/skew"
	"github.com/redburst/redburst/resp"
)

// FenceSkew is how far the clocks of clients may differ, or less if counters live for less: a clock that shows the local
// time for UTC is off by less, and one with a wrong date by more.
const FenceSkew = 24 * time.Hour

// Hints makes the hints of a client, and says which numbers the client believes.
type Hints struct {
	last          atomic.Uint64 // the last hint, or a greater number that a master had since
	kind.Counters               // what the kinds with a fence know of the client
}

// Init makes the hints of a client whose counters live for so long.
func (h *Hints) Init(memory time.Duration) {
	h.Memory, h.Skew = memory, uint64(min(memory, FenceSkew).Microseconds())
	h.Given = func(v resp.Value) mux.Verdict { return h.judge(v, 1) }
	h.Adopted = func(v resp.Value) mux.Verdict { return h.judge(v, 0) }
}

// judge judges a counter: a number below least is a no, and one that is not believed is failed.
func (h *Hints) judge(v resp.Value, least int64) mux.Verdict {
	switch n, ok := v.Int(); {
	case !ok:
		return kind.JudgeError(v)
	case n < least:
		return mux.VerdictNo
	case h.believes(uint64(n)):
		return mux.VerdictYes
	}
	return mux.VerdictFailed
}

// believes reports whether a number can be a fence: it is not too far ahead of the wall clock. Most numbers are
// the last hint, so it seldom needs the clock.
func (h *Hints) believes(n uint64) bool { return n <= h.last.Load() || n <= h.now()+h.Skew }

// ahead returns how far a hint may be ahead of the wall clock. Hints are ahead of it if another client's clock is.
// A number that is ahead by more than half of the skew is of one key whose counter went wrong. If the hints
// followed it, it would spoil all other keys: masters refuse hints that are the whole skew ahead of their clocks.
func (h *Hints) ahead() uint64 { return h.Skew / 2 }

// Next returns a hint: one more than the last number, if that is ahead of the wall clock and not too far ahead,
// and otherwise the wall clock in microseconds. It is never 0, which means that there is no number.
func (h *Hints) Next() uint64 {
	now := h.now()
	for {
		last := h.last.Load()
		hint := max(now, 1)
		if last >= now && last <= now+h.ahead() {
			hint = last + 1
		}
		if h.last.CompareAndSwap(last, hint) {
			return hint
		}
	}
}

// saw notes a number that a master has, unless it is too far ahead of the wall clock.
func (h *Hints) saw(n uint64) {
	limit := h.now() + h.ahead()
	for last := h.last.Load(); n > last && n <= limit; last = h.last.Load() {
		if h.last.CompareAndSwap(last, n) {
			return
		}
	}
}

// now returns the wall clock in microseconds. It returns 0 if the clock shows a time before 1970 or after 2112:
// numbers must be able to grow after it.
func (h *Hints) now() uint64 {
	now := time.Now().Add(skew.Offset()).UnixMicro()
	if now < 0 || now > quorum.MaxFence/2 {
		return 0
	}
	return uint64(now)
}

// Learn takes the numbers in the votes of an acquire, so that the next hints are above them.
func (h *Hints) Learn(votes []mux.Vote) {
	most := int64(0)
	for i := range votes {
		most = max(most, votes[i].Int, -votes[i].Int)
	}
	if most > 0 {
		h.saw(uint64(most))
	}
}

// What is said of counters that are not believed.
const (
	noNumber    = "counters are no numbers that can be a fence, or are too far ahead of this process's clock. If the clock is right, see 'redlock fence'"
	tooFarAhead = "counters are too far ahead of this process's clock to be believed. If the clock is right, see 'redlock fence'"
)

// Unbelieved finds the votes that have failed because a counter is too far ahead of the wall clock, or is no number. It puts
// that into the votes' errors. It returns the masters that can be mended, and what to say of all.
func (h *Hints) Unbelieved(votes []mux.Vote) (far mux.Set, why string) {
	for i := range votes {
		v := &votes[i]
		if v.Verdict != mux.VerdictFailed {
			continue
		}
		text := ""
		switch reply, said := v.Err.(*mux.ReplyError); {
		case said && reply.Code == "WRONGTYPE": // a script says that of a counter alone
			text, why = "a key of another type", noNumber
		case v.Int <= 0:
			continue
		default:
			far = far.With(i)
			text = farText(uint64(v.Int), h.now())
			if uint64(v.Int) >= quorum.MaxFence {
				why = noNumber
			}
			why = cmp.Or(why, tooFarAhead)
		}
		v.Err = &mux.ReplyError{Code: "NOFENCE", Message: "NOFENCE its counter is " + text}
	}
	return far, why
}

// farText says how far a number is ahead of the wall clock, which shows now, in microseconds.
func farText(n, now uint64) string {
	if n >= quorum.MaxFence {
		return "no number that can be a fence"
	}
	return fmt.Sprintf("%d, %v ahead of this process's clock", n, (time.Duration(n-now) * time.Microsecond).Round(time.Second))
}
