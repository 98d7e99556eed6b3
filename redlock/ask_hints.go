package redlock

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/skew"
	"github.com/redburst/redburst/resp"
)

// hints makes the hints of a client, and says which numbers it believes.
type hints struct {
	last          atomic.Uint64 // the greatest that was given, or has been seen
	kind.Counters               // what the kinds with a fence know of them
}

func (h *hints) init(memory, skew time.Duration) {
	h.Memory, h.Skew = memory, uint64(skew.Microseconds())
	h.Given = func(v resp.Value) mux.Verdict { return h.judge(v, 1) }
	h.Adopted = func(v resp.Value) mux.Verdict { return h.judge(v, 0) }
}

// judge judges a counter: one that is not believed is a failed vote.
func (h *hints) judge(v resp.Value, least int64) mux.Verdict {
	switch n, ok := v.Int(); {
	case !ok:
		return kind.JudgeError(v)
	case n < least:
		return VerdictNo
	case h.believes(uint64(n)):
		return VerdictYes
	}
	return VerdictFailed
}

// believes reports whether a number can be a fence: it is not too far ahead of the wall clock. Most are
// the last hint, so the clock is seldom asked.
func (h *hints) believes(n uint64) bool { return n <= h.last.Load() || n <= h.now()+h.Skew }

// ahead bounds the hints that are ahead of the wall clock. They go beyond it where another client's clock is
// ahead. Further than half of the skew the number is some other key's that went wrong, and would spoil all
// others: masters refuse what is the whole skew ahead of their clocks.
func (h *hints) ahead() uint64 { return h.Skew / 2 }

// next returns a hint: the wall clock in microseconds, or one more than the greatest number that
// this client knows. It is never 0, which is no number.
func (h *hints) next() uint64 {
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

// saw notes a number that a master has.
func (h *hints) saw(n uint64) {
	limit := h.now() + h.ahead()
	for last := h.last.Load(); n > last && n <= limit; last = h.last.Load() {
		if h.last.CompareAndSwap(last, n) {
			return
		}
	}
}

// now is the wall clock in microseconds, and 0 if that is no time of this century: numbers must
// be able to grow after it.
func (h *hints) now() uint64 {
	now := time.Now().Add(skew.Offset()).UnixMicro()
	if now < 0 || now > maxFence/2 {
		return 0
	}
	return uint64(now)
}

// farText says how far a number is ahead of the wall clock, which is now in microseconds.
func farText(n, now uint64) string {
	if n >= maxFence {
		return "no number that can be a fence"
	}
	return fmt.Sprintf("%d, %v ahead of this process's clock", n, (time.Duration(n-now) * time.Microsecond).Round(time.Second))
}
