package redlock

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (q *localQueues) size() (n int) {
	for i := range q.shards {
		s := &q.shards[i]
		s.mu.Lock()
		n += len(s.queues)
		s.mu.Unlock()
	}
	return n
}

func newLocalQueues(handovers int) *localQueues {
	q := new(localQueues)
	q.init(new(core), handovers)
	return q
}

// signalled returns the signal a waiter has, if any.
func signalled(w *waiter) (signal, bool) {
	select {
	case s := <-w.signal:
		return s, true
	default:
		return 0, false
	}
}

func requireSignal(t *testing.T, want signal, w *waiter) {
	t.Helper()
	got, ok := signalled(w)
	require.True(t, ok, "no signal")
	require.Equal(t, want, got)
}

func requireQuiet(t *testing.T, all ...*waiter) {
	t.Helper()
	for _, w := range all {
		_, ok := signalled(w)
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

	q.leave(a, true, "k")
	requireSignal(t, turnHeld, b)
	q.released(0, "k")
	requireSignal(t, released, b)
	q.leave(b, true, "k")
	requireSignal(t, turnHeld, c)
	requireQuiet(t, other)
	q.leave(c, false, "k")
	q.leave(other, false, "another key")
	require.Zero(t, q.size())
}

func TestQueueGoesOnWhenAnyWaiterLeaves(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	c, _ := q.join("k")
	q.leave(b, false, "k") // in the middle
	requireQuiet(t, a, c)
	q.leave(a, false, "k") // the first, without the lock
	requireSignal(t, turn, c)
	d, _ := q.join("k")
	q.leave(d, false, "k") // the last
	requireQuiet(t, c)
	q.leave(c, true, "k")
	require.Zero(t, q.size())
}

func TestLatestSignalCounts(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	q.leave(a, true, "k") // told turnHeld, which b is slow to see
	q.released(0, "k")
	requireSignal(t, released, b)
	q.released(0, "k")
	q.leave(b, true, "k")
	again, _ := q.join("k")
	requireQuiet(t, again)
	q.leave(again, false, "k")
}

func TestHandOversInARowAreBounded(t *testing.T) {
	q := newLocalQueues(2)
	w, _ := q.join("k")
	for _, want := range []signal{released, released, yield, released, released, yield} {
		next, _ := q.join("k")
		q.leave(w, true, "k")
		requireSignal(t, turnHeld, next)
		q.released(0, "k")
		requireSignal(t, want, next)
		w = next
	}
	q.leave(w, false, "k")
	require.Zero(t, q.size())
}

func TestQueueKnowsWhyTheLockIsNotToBeHad(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	c, _ := q.join("k")
	d, _ := q.join("k")
	down := &RoundError{failure: failure{reason: ErrNoQuorum}}
	q.noteFailure(down, "k")
	_, held, failure := q.leave(d, false, "k")
	require.False(t, held)
	require.Same(t, down, failure)
	q.leave(a, true, "k")
	_, held, failure = q.leave(c, false, "k")
	require.True(t, held)
	require.Nil(t, failure)
	q.leave(b, false, "k")
}

func TestNothingOfAQueueIsLeftBehind(t *testing.T) {
	q := newLocalQueues(3)
	keys := []string{"a", "b", "c", "d"}
	type standing struct {
		key string
		w   *waiter
	}
	var all []standing
	for range 10_000 {
		if key := keys[rand.IntN(len(keys))]; rand.IntN(2) == 0 || len(all) == 0 {
			w, _ := q.join(key)
			all = append(all, standing{key, w})
		} else if rand.IntN(3) == 0 {
			q.released(0, key)
		} else {
			i := rand.IntN(len(all))
			q.leave(all[i].w, rand.IntN(2) == 0, all[i].key)
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
		}
	}
	for _, s := range all {
		q.leave(s.w, false, s.key)
	}
	require.Zero(t, q.size())
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

	q.leave(a, true, "a")
	q.released(0, "a")
	requireQuiet(t, set)
	q.leave(b, false, "b")
	requireSignal(t, turn, set)
	q.released(0, "b")
	requireSignal(t, released, set)
	requireQuiet(t, behind, other)

	q.leave(set, true, "a", "b")
	requireSignal(t, turnHeld, behind)
	late, first := q.join("a")
	require.True(t, first)
	q.released(0, "a", "b")
	requireSignal(t, released, behind)
	requireSignal(t, released, late)
	q.leave(behind, false, "b")
	q.leave(late, false, "a")
	q.leave(other, false, "c")
	require.Zero(t, q.size())
}

// One release of several keys notifies the head of the queues of several of them once.
func TestHandOversOfSeveralKeysInARowAreBounded(t *testing.T) {
	q := newLocalQueues(2)
	w, _ := q.join("a", "b")
	for _, want := range []signal{released, released, yield, released, released, yield} {
		next, _ := q.join("a", "b")
		q.leave(w, true, "a", "b")
		requireSignal(t, turnHeld, next)
		q.released(0, "a", "b")
		requireSignal(t, want, next)
		requireQuiet(t, next)
		w = next
	}
	// A queue that has had enough has the others of the lock yield with it.
	q.leave(w, false, "a", "b")
	one, _ := q.join("a")
	for range 2 {
		q.released(0, "a")
		requireSignal(t, released, one)
	}
	both, _ := q.join("b")
	q.released(0, "a", "b")
	requireSignal(t, yield, one)
	requireSignal(t, yield, both)
	q.leave(one, false, "a")
	q.leave(both, false, "b")
	require.Zero(t, q.size())
}

// A waiter that gives up frees its place in each queue, wherever it was.
func TestAWaiterForSeveralKeysGivesUp(t *testing.T) {
	q := newLocalQueues(-1)
	a, _ := q.join("a")
	set, _ := q.join("a", "b")
	b, first := q.join("b")
	require.False(t, first, "it waits for those who came before it")
	behind, _ := q.join("a")
	q.leave(set, false, "a", "b")
	requireSignal(t, turn, b)
	requireQuiet(t, a, behind)
	q.leave(a, false, "a")
	requireSignal(t, turn, behind)
	q.leave(b, false, "b")
	q.leave(behind, false, "a")
	require.Zero(t, q.size())
}

// In no history does a waiter for a set wait for more than those who came before it, and there is
// always one who has its turn.
func TestWaitersForSetsThatOverlapHaveTheirTurnInOrder(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b", "c", "d", "e"}
	type standing struct {
		came int
		keys []string
		w    *waiter
		turn bool
	}
	for range bearable(200) {
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
					q.leave(s.w, true, s.keys...)
					q.released(0, s.keys...)
				} else {
					q.leave(s.w, false, s.keys...)
				}
			}
			for i, s := range all {
				if _, ok := signalled(s.w); ok {
					s.turn = true
				}
				free := !slices.ContainsFunc(all[:i], func(before *standing) bool { return meets(before, s) })
				require.Equal(t, free, s.turn, "those before it have left, or have not")
			}
		}
		require.Zero(t, q.size())
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
				q.leave(w, true, keys...)
				q.released(0, keys...)
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
	require.Zero(t, q.size())
}

// A reader that gets in calls all that are next in its queue, up to the first writer. One that was
// refused is called again.
func TestReadersOfAQueueGoOnTogether(t *testing.T) {
	var q localQueues
	q.init(new(core), 1)
	enter := func(reader, wantFirst, wantClear bool) *waiter {
		w, first, clear := q.joinAs(nil, reader, "k")
		require.Equal(t, wantFirst, first)
		require.Equal(t, wantClear, clear)
		return w
	}
	told := func(w *waiter) int {
		if len(w.signal) == 0 {
			return -1
		}
		return int(<-w.signal)
	}
	a, b, c := enter(true, true, true), enter(true, false, true), enter(true, false, true)
	writer := enter(false, false, true)
	d := enter(true, false, false)
	q.leave(b, true, "k") // which has not waited for its turn
	require.EqualValues(t, turn, told(a))
	require.EqualValues(t, turn, told(c))
	require.False(t, q.noteReaderRefused(c, "k"))
	q.leave(a, true, "k")
	require.EqualValues(t, turn, told(c))
	require.True(t, q.noteReaderRefused(c, "k"))
	require.Equal(t, -1, told(writer))
	q.leave(c, true, "k")
	require.EqualValues(t, turnHeld, told(writer))
	require.Equal(t, -1, told(d))
	q.leave(writer, false, "k")
	require.EqualValues(t, turn, told(d))
	enter(true, false, true)
}
