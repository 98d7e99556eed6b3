package round

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/resp"
)

// agreements are the slotted locks for which the masters have lately agreed on the number of slots. An attempt
// that relies on an agreement is a plain SET, and does not look at the mark. Each master that votes for it has
// the mark nevertheless, or the agreement ends before the attempt counts:
//
//   - The attempt that brought the agreement was sent to every master that was connected. Every later command
//     on one of these connections comes after it.
//   - The script may have failed on a master, perhaps because its mark is another number. Its answer comes before
//     that of the SET, and is judged even if no round waits for it any more. It ends all agreements.
//   - A master that is connected again may have forgotten the mark, or may never have been asked. A new
//     connection ends all agreements, too. So does what the guard sees that a master has lost while it is connected
//     (FLUSHALL): the push comes before the answer to what is sent after.
//
// If an agreement ends while an attempt relies on it, the attempt does not count, and is made once more.
//
// They are a table of fixed size. If another lock has taken an entry, the next attempt only looks at the mark
// once more.
type agreements struct {
	table [4096]atomic.Uint64
	Epoch atomic.Uint64   // of the agreements that have not ended
	Judge mux.VerdictFunc // of an attempt that looks at the mark
}

var agreedSeed = maphash.MakeSeed()

func (a *agreements) init() {
	a.Judge = func(v resp.Value) mux.Verdict {
		if _, ok := v.Int(); !ok {
			a.End()
		}
		return kind.JudgeOne(v)
	}
}

// End ends all agreements. It may be called with the Mux locked.
func (a *agreements) End() { a.Epoch.Add(1) }

// entry returns the place of a lock in the table. want is the value that stands there if there is an agreement of
// that epoch and of the minute of now. The lock's life is a part of it, as it decides how long the mark lives.
func (a *agreements) entry(s *Spec, epoch uint64, now time.Duration) (at *atomic.Uint64, want uint64) {
	h := maphash.String(agreedSeed, s.Key) + uint64(s.Slots())<<48 + uint64(s.Life())*0x9e3779b97f4a7c15
	return &a.table[h%uint64(len(a.table))], h + uint64(now/kind.AgreedFor) + epoch*0xbf58476d1ce4e5b9 + 1
}

// Lately reports whether there is an agreement for a lock, and returns the epoch in which an attempt begins.
func (a *agreements) Lately(s *Spec, now time.Duration) (sure bool, epoch uint64) {
	epoch = a.Epoch.Load()
	at, want := a.entry(s, epoch, now)
	return at.Load() == want, epoch
}

// Note notes the agreement of an attempt that has succeeded, and that began in that epoch.
func (a *agreements) Note(s *Spec, epoch uint64, now time.Duration) {
	at, want := a.entry(s, epoch, now)
	at.Store(want)
}
