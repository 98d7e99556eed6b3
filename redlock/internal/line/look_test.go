package line

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

// What a master says of a slot, but for a TTL in milliseconds.
const (
	never  = -1
	isFree = -2
	silent = -3 // it does not answer in time, or its answer ends before this slot
)

// lookedAt are masters that say something of each slot. They are asked once with each of the answers.
type lookedAt struct {
	round.Mux
	slots   int // 0 of a lock that is not slotted
	says    [][][]int64
	asked   []time.Duration // with which timeouts
	deaf    mux.Set         // who does not notify
	stopped error           // what a round ends with
}

func (l *lookedAt) Post(...*mux.Op)    {}
func (l *lookedAt) RTT() time.Duration { return 0 }
func (l *lookedAt) AppendMasters(all []mux.State) []mux.State {
	for i := range l.says[0] {
		all = append(all, mux.State{Phase: mux.Up, Server: conn.Server{Tracking: !l.deaf.Has(i)}})
	}
	return all
}

func (l *lookedAt) Wait(ctx context.Context, op *mux.Op) error { return l.Do(ctx, op) }

func (l *lookedAt) Do(_ context.Context, op *mux.Op) error {
	says := l.says[len(l.asked)]
	l.asked = append(l.asked, op.Timeout)
	op.Votes = op.Votes[:0]
	late := false
	for _, slots := range says {
		v := mux.Vote{Verdict: mux.VerdictYes}
		switch {
		case slots[0] == silent:
			v, late = mux.Vote{}, true
		case l.slots == 0:
			v.Int = slots[0]
			if v.Int != isFree {
				v.Verdict = mux.VerdictNo
			}
		default:
			n := slices.Index(append(slices.Clone(slots), silent), silent)
			array := resp.AppendArray(nil, n)
			for _, ttl := range slots[:n] {
				array = resp.AppendInt(array, ttl)
			}
			v.Reply = resptest.Parse(array)
		}
		op.Votes = append(op.Votes, v)
	}
	if l.stopped != nil {
		return l.stopped
	}
	if late {
		return mux.ErrTimeout
	}
	return nil
}

// of is the spec of a lock with so many slots.
func (l *lookedAt) of() *round.Spec {
	s := &round.Spec{Kind: kind.Plain{}, Traits: new(round.Traits), Key: "k", Term: quorum.NewTerm(time.Minute, 0.01), Timeout: time.Second}
	if l.slots > 0 {
		permits := kind.NewPermits("k", time.Minute, l.slots)
		s.Kind, s.Slotted, s.QueueNames = permits, permits, []string{permits.Prefix}
	}
	return s
}

func (l *lookedAt) looks() (*Looks, *Waiter) {
	core := coreOf(l, len(l.says[0]))
	ls := new(Looks)
	ls.Init(core)
	return ls, NewWaiter(core)
}

// A look says of each slot what a majority has said, whatever the masters say and do not say, and whatever the look before
// was of.
func TestALookSaysWhatMastersSay(t *testing.T) {
	t.Parallel()
	answers := []int64{isFree, never, silent, 0, 70, 900}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for _, n := range []int{1, 2, 3, 5} {
		all := &lookedAt{says: [][][]int64{make([][]int64, n)}}
		ls, w := all.looks()
		for round := range 3000 {
			all.slots, all.asked, all.deaf = random.IntN(4), nil, mux.Set(random.IntN(1<<random.IntN(n+1)))
			slots, name := max(1, all.slots), fmt.Sprint(seed, " ", round)
			for i := range n {
				all.says[0][i] = make([]int64, slots)
				for slot := range slots {
					all.says[0][i][slot] = answers[random.IntN(len(answers))]
					if slot > 0 && all.says[0][i][slot-1] == silent {
						all.says[0][i][slot] = silent
					}
				}
			}
			s := all.of()
			ls.Listen(w, s)
			var changed mux.Set // in the first slot, since it listens
			if random.IntN(2) == 0 {
				pushed, key := random.IntN(n), "k"
				if all.slots > 0 {
					key = kind.SlotKey(key, 1, slots)
				}
				ls.core.Tracking.Push(pushed, []byte(key))
				changed = changed.With(pushed)
			}
			p, err := ls.Look(t.Context(), s, w)
			require.NoError(t, err, name)

			want := LookResult{WillNotify: true, Held: true, At: clock.Forever}
			for slot := range slots {
				var free, gone, mute mux.Set
				var ends []time.Duration
				held := 0
				for i := range n {
					end := clock.Forever
					switch ttl := all.says[0][i][slot]; {
					case ttl == isFree:
						free, end = free.With(i), ls.core.Now()
					case ttl == silent:
					case ttl == never:
						held++
					default:
						held++
						end = ls.core.Now() + time.Duration(ttl)*time.Millisecond + ExpirySlack
					}
					if all.deaf.Has(i) || all.says[0][i][0] == silent {
						mute = mute.With(i)
					}
					ends = append(ends, end)
				}
				if gone = free; slot == 0 {
					gone |= changed
				}
				slices.Sort(ends)
				if at := ends[n/2]; at < want.At {
					want.At, want.Slot = at, slot
				}
				want.Free = want.Free || 2*gone.Len() > n
				want.Read = want.Read || 2*free.Len() > n
				want.Held = want.Held && 2*held > n
				want.WillNotify = want.WillNotify && 2*(gone|mute).Len() <= n
			}
			require.Equal(t, want, p, "%s: %v, deaf %b, changed %b", name, all.says, all.deaf, changed)

			slot, found := ls.Free(w)
			require.Equal(t, want.Free, found, name)
			if found {
				gone := 0
				for i := range n {
					if all.says[0][i][slot] == isFree || slot == 0 && changed.Has(i) {
						gone++
					}
				}
				require.Greater(t, 2*gone, n, name)
			}
		}
		w.End()
	}
}

// Who looks for a free slot asks a second time, for longer, only where answers that have not come could say that one is free.
func TestFindWaitsForWhatCouldBeFree(t *testing.T) {
	t.Parallel()
	quiet := []int64{silent, silent}
	for name, c := range map[string]struct {
		first, then [][]int64
		found       int // the slot; -1 for none
		asks        int
	}{
		"one is free":                     {first: [][]int64{{70, isFree}, {70, isFree}, {70, 70}}, found: 1, asks: 1},
		"one is free, and one silent":     {first: [][]int64{{isFree, 70}, {isFree, 70}, quiet}, found: 0, asks: 1},
		"a minority has one free":         {first: [][]int64{{isFree, isFree}, {70, 70}, {never, 0}}, found: -1, asks: 1},
		"all answer, and none is free":    {first: [][]int64{{70, 70}, {70, 70}, {70, 70}}, found: -1, asks: 1},
		"two hold both":                   {first: [][]int64{{70, 70}, {70, never}, quiet}, found: -1, asks: 1},
		"the silent one may say the last": {first: [][]int64{{70, 70}, {70, isFree}, quiet}, then: [][]int64{{70, 70}, {70, isFree}, {70, isFree}}, found: 1, asks: 2},
		"the silent one may say the first": {first: [][]int64{{70, 70}, {isFree, 70}, quiet}, then: [][]int64{{70, 70}, {isFree, 70}, {isFree, 70}},
			found: 0, asks: 2},
		"a short answer":          {first: [][]int64{{70, silent}, {70, isFree}, {70, 70}}, then: [][]int64{{70, isFree}, {70, isFree}, {70, 70}}, found: 1, asks: 2},
		"it stays silent":         {first: [][]int64{{70, 70}, {70, isFree}, quiet}, then: [][]int64{{70, 70}, {70, isFree}, quiet}, found: -1, asks: 2},
		"two are silent":          {first: [][]int64{{70, 70}, quiet, quiet}, then: [][]int64{{70, isFree}, {70, isFree}, quiet}, found: 1, asks: 2},
		"it was released by then": {first: [][]int64{quiet, quiet, quiet}, then: [][]int64{{isFree, 70}, {isFree, 70}, quiet}, found: 0, asks: 2},
	} {
		for _, waits := range []bool{false, true} {
			all := &lookedAt{slots: 2, says: [][][]int64{c.first, c.then}}
			ls, w := all.looks()
			s := all.of()
			if !waits {
				w = nil
			}
			for range 8 { // it looks at them in any order
				all.asked = nil
				slot, found := ls.Find(t.Context(), s, w)
				require.Equal(t, c.found >= 0, found, name)
				require.Equal(t, max(0, c.found), slot, name)
				want := []time.Duration{round.MinShortTimeout + 2*slotTimeout, s.Timeout}[:c.asks]
				require.Equal(t, want, all.asked, name)
			}
			all.asked, all.stopped = nil, mux.ErrClosed
			_, found := ls.Find(t.Context(), s, w)
			require.False(t, found, name)
			require.Len(t, all.asked, 1, "who is closed does not ask again")
		}
	}
}
