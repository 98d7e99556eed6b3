package line

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/stretchr/testify/require"
)

func newCore() *Core {
	return &Core{Tracking: new(tracking.Registry), Now: func() time.Duration { return 0 }, Masters: 3}
}

// coreOf is a core that asks those masters, an hour after its beginning.
func coreOf(m round.Mux, masters int) *Core {
	c := &Core{Round: &round.Core{Mux: m}, Tracking: new(tracking.Registry), Now: func() time.Duration { return time.Hour }, Masters: masters}
	c.Round.Init(time.Hour)
	c.Tracking.Init(c.Round)
	return c
}

// join is Join for keys of which nothing is handed over.
func (qs *LocalQueues) join(keys ...string) (w *Waiter, first bool) {
	w, first, _ = qs.joinAs(nil, false, keys...)
	return w, first
}

func newLocalQueues(handovers int) *LocalQueues {
	q := new(LocalQueues)
	q.Init(newCore(), handovers)
	return q
}

func requireSignal(t *testing.T, want Signal, w *Waiter) {
	t.Helper()
	got, ok := w.Signal()
	require.True(t, ok, "no signal")
	require.Equal(t, want, got)
}

func requireQuiet(t *testing.T, all ...*Waiter) {
	t.Helper()
	for _, w := range all {
		_, ok := w.Signal()
		require.False(t, ok, "an unwanted signal")
	}
}

func TestQueueIsFirstInFirstOut(t *testing.T) {
	q := newLocalQueues(-1)
	a, first := q.join("k")
	require.True(t, first)
	b, first := q.join("k")
	require.False(t, first)
	c, _ := q.join("k")
	other, first := q.join("another key")
	require.True(t, first, "queues do not meet")
	requireQuiet(t, a, b, c)

	q.Leave(a, true, "k")
	requireSignal(t, TurnHeld, b)
	q.Released(0, "k")
	requireSignal(t, Released, b)
	q.Leave(b, true, "k")
	requireSignal(t, TurnHeld, c)
	requireQuiet(t, other)
	q.Leave(c, false, "k")
	q.Leave(other, false, "another key")
	require.Zero(t, q.Size())
}

func TestQueueGoesOnWhenAnyWaiterLeaves(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	c, _ := q.join("k")
	q.Leave(b, false, "k") // in the middle
	requireQuiet(t, a, c)
	q.Leave(a, false, "k") // the first, without the lock
	requireSignal(t, Turn, c)
	d, _ := q.join("k")
	q.Leave(d, false, "k") // the last
	requireQuiet(t, c)
	q.Leave(c, true, "k")
	require.Zero(t, q.Size())
}

func TestLatestSignalCounts(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	q.Leave(a, true, "k") // told TurnHeld, which b is slow to see
	q.Released(0, "k")
	requireSignal(t, Released, b)
	q.Released(0, "k")
	q.Leave(b, true, "k")
	again, _ := q.join("k")
	requireQuiet(t, again)
	q.Leave(again, false, "k")
}

func TestHandOversInARowAreBounded(t *testing.T) {
	q := newLocalQueues(2)
	w, _ := q.join("k")
	for _, want := range []Signal{Released, Released, Yield, Released, Released, Yield} {
		next, _ := q.join("k")
		q.Leave(w, true, "k")
		requireSignal(t, TurnHeld, next)
		q.Released(0, "k")
		requireSignal(t, want, next)
		w = next
	}
	q.Leave(w, false, "k")
	require.Zero(t, q.Size())
}

func TestQueueKnowsWhyTheLockIsNotToBeHad(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	c, _ := q.join("k")
	d, _ := q.join("k")
	down := errors.New("no quorum")
	q.NoteFailure(down, false, "k")
	_, held, failure := q.Leave(d, false, "k")
	require.False(t, held)
	require.Same(t, down, failure)
	q.Leave(a, true, "k")
	_, held, failure = q.Leave(c, false, "k")
	require.True(t, held)
	require.Nil(t, failure)
	q.Leave(b, false, "k")
}

// A lock that was released is not held in this client any more, also for who waits for one of its keys and is not the head
// for another.
func TestAReleasedLockIsNotSaidToBeHeld(t *testing.T) {
	q := newLocalQueues(-1)
	for range 2 {
		holder, _ := q.join("a")
		blocker, _ := q.join("b")
		w, first := q.join("a", "b")
		require.False(t, first)
		q.Leave(holder, true, "a")
		q.Released(0, "a")
		requireQuiet(t, w)
		_, held, _ := q.Leave(w, false, "a", "b")
		require.False(t, held)
		q.Leave(blocker, false, "b")
	}
}

func TestNothingOfAQueueIsLeftBehind(t *testing.T) {
	q := newLocalQueues(3)
	keys := []string{"a", "b", "c", "d"}
	type standing struct {
		key string
		w   *Waiter
	}
	var all []standing
	for range 10_000 {
		if key := keys[rand.IntN(len(keys))]; rand.IntN(2) == 0 || len(all) == 0 {
			w, _ := q.join(key)
			all = append(all, standing{key, w})
		} else if rand.IntN(3) == 0 {
			q.Released(0, key)
		} else {
			i := rand.IntN(len(all))
			q.Leave(all[i].w, rand.IntN(2) == 0, all[i].key)
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
		}
	}
	for _, s := range all {
		q.Leave(s.w, false, s.key)
	}
	require.Zero(t, q.Size())
}

// A waiter for several keys has its turn when it is the head of each queue, and is notified
// nothing before.
func TestAWaiterForSeveralKeysIsInEachQueue(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("a")
	b, _ := q.join("b")
	set, first := q.join("a", "b")
	require.False(t, first)
	behind, _ := q.join("b")
	other, first := q.join("c")
	require.True(t, first)

	q.Leave(a, true, "a")
	q.Released(0, "a")
	requireQuiet(t, set)
	q.Leave(b, false, "b")
	requireSignal(t, Turn, set)
	q.Released(0, "b")
	requireSignal(t, Released, set)
	requireQuiet(t, behind, other)

	q.Leave(set, true, "a", "b")
	requireSignal(t, TurnHeld, behind)
	late, first := q.join("a")
	require.True(t, first)
	q.Released(0, "a", "b")
	requireSignal(t, Released, behind)
	requireSignal(t, Released, late)
	q.Leave(behind, false, "b")
	q.Leave(late, false, "a")
	q.Leave(other, false, "c")
	require.Zero(t, q.Size())
}

// One release of several keys notifies the head of the queues of several of them once.
func TestHandOversOfSeveralKeysInARowAreBounded(t *testing.T) {
	q := newLocalQueues(2)
	w, _ := q.join("a", "b")
	for _, want := range []Signal{Released, Released, Yield, Released, Released, Yield} {
		next, _ := q.join("a", "b")
		q.Leave(w, true, "a", "b")
		requireSignal(t, TurnHeld, next)
		q.Released(0, "a", "b")
		requireSignal(t, want, next)
		requireQuiet(t, next)
		w = next
	}
	// A queue that has had enough has the others of the lock Yield with it.
	q.Leave(w, false, "a", "b")
	one, _ := q.join("a")
	for range 2 {
		q.Released(0, "a")
		requireSignal(t, Released, one)
	}
	both, _ := q.join("b")
	q.Released(0, "a", "b")
	requireSignal(t, Yield, one)
	requireSignal(t, Yield, both)
	q.Leave(one, false, "a")
	q.Leave(both, false, "b")
	require.Zero(t, q.Size())
}

// A waiter that gives up frees its place in each queue, wherever it was.
func TestAWaiterForSeveralKeysGivesUp(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("a")
	set, _ := q.join("a", "b")
	b, first := q.join("b")
	require.False(t, first, "it waits for those who came before it")
	behind, _ := q.join("a")
	q.Leave(set, false, "a", "b")
	requireSignal(t, Turn, b)
	requireQuiet(t, a, behind)
	q.Leave(a, false, "a")
	requireSignal(t, Turn, behind)
	q.Leave(b, false, "b")
	q.Leave(behind, false, "a")
	require.Zero(t, q.Size())
}

// In no history does a waiter for a set wait for more than those who came before it, and there is
// always one who has its turn.
func TestWaitersForSetsThatOverlapHaveTheirTurnInOrder(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b", "c", "d", "e"}
	type standing struct {
		came int
		keys []string
		w    *Waiter
		turn bool
	}
	for range 50 {
		q := newLocalQueues(-1)
		var all []*standing
		meets := func(x, y *standing) bool {
			return slices.ContainsFunc(x.keys, func(k string) bool { return slices.Contains(y.keys, k) })
		}
		for came := 0; came < 300 || len(all) > 0; came++ {
			if came < 300 && rand.IntN(2) == 0 {
				s := &standing{came: came}
				for _, k := range keys {
					if rand.IntN(3) == 0 {
						s.keys = append(s.keys, k)
					}
				}
				if len(s.keys) > 0 {
					s.w, s.turn = q.join(s.keys...)
					all = append(all, s)
				}
			} else if len(all) > 0 {
				i := rand.IntN(len(all))
				if !all[i].turn && rand.IntN(4) > 0 { // only some give up
					i = slices.IndexFunc(all, func(s *standing) bool { return s.turn })
				}
				s := all[i]
				all = slices.Delete(all, i, i+1)
				if s.turn && rand.IntN(2) == 0 {
					q.Leave(s.w, true, s.keys...)
					q.Released(0, s.keys...)
				} else {
					q.Leave(s.w, false, s.keys...)
				}
			}
			for i, s := range all {
				if _, ok := s.w.Signal(); ok {
					s.turn = true
				}
				free := !slices.ContainsFunc(all[:i], func(before *standing) bool { return meets(before, s) })
				require.Equal(t, free, s.turn, "those before it have left, or have not")
			}
		}
		require.Zero(t, q.Size())
	}
}

// Many goroutines join and leave queues that overlap: nobody waits for ever.
func TestQueuesThatOverlapNeverBlock(t *testing.T) {
	t.Parallel()
	q := newLocalQueues(1)
	sets := [][]string{{"a", "b"}, {"b", "c"}, {"a", "c"}, {"a"}, {"b"}, {"c"}, {"a", "b", "c"}}
	var holders [3]atomic.Int32
	var all sync.WaitGroup
	done := make(chan struct{})
	for _, keys := range append(slices.Clone(sets), sets...) {
		all.Go(func() {
			for range 2000 {
				w, first := q.join(keys...)
				if !first {
					select {
					case <-w.signal:
					case <-done:
						return
					}
				}
				for _, k := range keys {
					if holders[k[0]-'a'].Add(1) > 1 {
						t.Error("two are the head of one queue")
					}
				}
				for _, k := range keys {
					holders[k[0]-'a'].Add(-1)
				}
				q.Leave(w, true, keys...)
				q.Released(0, keys...)
			}
		})
	}
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("somebody waits for ever")
		close(done)
		return
	}
	require.Zero(t, q.Size())
}

// A reader that gets in calls all that are next in its queue, up to the first writer. One that was
// refused is called again.
func TestReadersOfAQueueGoOnTogether(t *testing.T) {
	var q LocalQueues
	q.Init(newCore(), 1)
	enter := func(reader, wantFirst, wantClear bool) *Waiter {
		w, first, clear := q.joinAs(nil, reader, "k")
		require.Equal(t, wantFirst, first)
		require.Equal(t, wantClear, clear)
		return w
	}
	told := func(w *Waiter) int {
		if len(w.signal) == 0 {
			return -1
		}
		return int(<-w.signal)
	}
	a, b, c := enter(true, true, true), enter(true, false, true), enter(true, false, true)
	writer := enter(false, false, true)
	d := enter(true, false, false)
	q.Leave(b, true, "k") // which has not waited for its turn
	require.EqualValues(t, Turn, told(a))
	require.EqualValues(t, Turn, told(c))
	require.False(t, q.NoteReaderRefused(c, "k"))
	q.Leave(a, true, "k")
	require.EqualValues(t, Turn, told(c))
	require.True(t, q.NoteReaderRefused(c, "k"))
	require.Equal(t, -1, told(writer))
	q.Leave(c, true, "k")
	require.EqualValues(t, TurnHeld, told(writer))
	require.Equal(t, -1, told(d))
	q.Leave(writer, false, "k")
	require.EqualValues(t, Turn, told(d))
	enter(true, false, true)
}

// A lock is the part of one that is given, as GiveBack.
type lock func(s *round.Spec)

func (give lock) GiveBack(s *round.Spec) { give(s) }

// A waiter that leaves releases the lock that it was given before it is out of the queue. Otherwise Close could find
// nothing there to take back, and close the connections before the release is sent.
func TestAWaiterThatLeavesReleasesBeforeCloseLooks(t *testing.T) {
	q := newLocalQueues(-1)
	w, _ := q.join("k")
	back := 0
	in := &Given{Of: lock(func(*round.Spec) {
		back++
		if q.shard("k").mu.TryLock() {
			q.shard("k").mu.Unlock()
			t.Error("Close can look in between")
		}
	})}
	w.given.Store(in)
	declined, _, _ := q.Leave(w, false, "k")
	require.True(t, declined)
	require.Equal(t, 1, back)
	q.TakeBack()
	require.Equal(t, 1, back, "once")
}

func TestAWaiterOfThePoolIsAsNew(t *testing.T) {
	q := newLocalQueues(1)
	fresh, _ := q.join("a key")
	used := (*Waiter)(nil)
	again, _ := q.join("k")
	for again != used { // a pool may drop what is put
		used = again
		conntest.Soil(used, "listener", "core", "entries", "blockers", "reader", "timer", "given", "asking", "signal")
		select {
		case used.signal <- Turn: // as it gives up
		default:
		}
		q.Leave(used, false, "k")
		again, _ = q.join("k")
	}
	require.Empty(t, conntest.Differs(used, fresh, "listener", "timer", "entries[0].waiter"))
	requireQuiet(t, used)
}
