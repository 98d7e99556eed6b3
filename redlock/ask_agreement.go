package redlock

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/resp"
)

// agreements are the slotted locks whose number of slots was agreed to lately. An attempt that relies on one
// is a plain SET, and does not look at the mark. Each of its voters has the mark nevertheless, or one that was
// there says so:
//
//   - The attempt that has agreed was sent to every master that was connected, and what follows it
//     on a connection comes after it.
//   - Where the script has failed, the number was another perhaps. Its answer comes before the SET's, also if
//     nobody waits for it any more. It ends all agreements.
//   - A master that is connected again may have forgotten the mark, or was not asked. That ends
//     all agreements, too.
//
// An attempt that has relied on an agreement which has ended meanwhile does not count, and is made once more.
//
// They are a table of fixed size: a lock whose entry was taken by another is only asked about once more.
type agreements struct {
	table [4096]atomic.Uint64
	epoch atomic.Uint64   // of those that have not ended
	judge mux.VerdictFunc // of an attempt that looks at the mark
}

var agreedSeed = maphash.MakeSeed()

func (a *agreements) init() {
	a.judge = func(v resp.Value) mux.Verdict {
		if _, ok := v.Int(); !ok {
			a.end()
		}
		return kind.JudgeOne(v)
	}
}

// end ends all agreements. It may be called with the Mux locked.
func (a *agreements) end() { a.epoch.Add(1) }

// entry returns the place of a lock, and what is there if it was agreed to in that epoch and in the minute of
// now. Its life is a part of it, as the mark lasts for as long as that asks for.
func (a *agreements) entry(s *spec, epoch uint64, now time.Duration) (at *atomic.Uint64, want uint64) {
	h := maphash.String(agreedSeed, s.key) + uint64(s.slots())<<48 + uint64(s.life())*0x9e3779b97f4a7c15
	return &a.table[h%uint64(len(a.table))], h + uint64(now/kind.AgreedFor) + epoch*0xbf58476d1ce4e5b9 + 1
}

// lately reports whether a lock was agreed to, and in which epoch an attempt begins.
func (a *agreements) lately(s *spec, now time.Duration) (sure bool, epoch uint64) {
	epoch = a.epoch.Load()
	at, want := a.entry(s, epoch, now)
	return at.Load() == want, epoch
}

// note takes note of an attempt that a quorum has agreed to. It began in that epoch.
func (a *agreements) note(s *spec, epoch uint64, now time.Duration) {
	at, want := a.entry(s, epoch, now)
	at.Store(want)
}
