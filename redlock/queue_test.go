package redlock

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func (q *lines) size() (n int) {
	for i := range q.shards {
		s := &q.shards[i]
		s.mu.Lock()
		n += len(s.lines)
		s.mu.Unlock()
	}
	return n
}

func newLines(handovers int) *lines {
	q := new(lines)
	q.init(handovers)
	return q
}

// told returns the signal a waiter has, if any.
func told(w *waiter) (signal, bool) {
	select {
	case s := <-w.signal:
		return s, true
	default:
		return 0, false
	}
}

func requireTold(t *testing.T, want signal, w *waiter) {
	t.Helper()
	got, ok := told(w)
	require.True(t, ok, "no signal")
	require.Equal(t, want, got)
}

func requireQuiet(t *testing.T, all ...*waiter) {
	t.Helper()
	for _, w := range all {
		_, ok := told(w)
		require.False(t, ok, "an unwanted signal")
	}
}

func TestLineIsFirstInFirstOut(t *testing.T) {
	q := newLines(-1)
	a, first := q.join("k")
	require.True(t, first)
	b, first := q.join("k")
	require.False(t, first)
	c, _ := q.join("k")
	other, first := q.join("another key")
	require.True(t, first, "lines do not meet")
	requireQuiet(t, a, b, c)

	q.leave("k", a, true)
	requireTold(t, turnHeld, b)
	q.released("k")
	requireTold(t, released, b)
	q.leave("k", b, true)
	requireTold(t, turnHeld, c)
	requireQuiet(t, other)
	q.leave("k", c, false)
	q.leave("another key", other, false)
	require.Zero(t, q.size())
}

func TestLineGoesOnWhenAnybodyLeaves(t *testing.T) {
	q := newLines(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	c, _ := q.join("k")
	q.leave("k", b, false) // in the middle
	requireQuiet(t, a, c)
	q.leave("k", a, false) // the first, without the lock
	requireTold(t, turn, c)
	d, _ := q.join("k")
	q.leave("k", d, false) // the last
	requireQuiet(t, c)
	q.leave("k", c, true)
	require.Zero(t, q.size())
}

func TestLatestSignalCounts(t *testing.T) {
	q := newLines(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	q.leave("k", a, true) // told turnHeld, which b is slow to see
	q.released("k")
	requireTold(t, released, b)
	q.released("k")
	q.leave("k", b, true)
	again, _ := q.join("k")
	requireQuiet(t, again)
	q.leave("k", again, false)
}

func TestHandOversInARowAreBounded(t *testing.T) {
	q := newLines(2)
	w, _ := q.join("k")
	for _, want := range []signal{released, released, yield, released, released, yield} {
		next, _ := q.join("k")
		q.leave("k", w, true)
		requireTold(t, turnHeld, next)
		q.released("k")
		requireTold(t, want, next)
		w = next
	}
	q.leave("k", w, false)
	require.Zero(t, q.size())
}

func TestLineKnowsWhyTheLockIsNotToBeHad(t *testing.T) {
	q := newLines(-1)
	a, _ := q.join("k")
	b, _ := q.join("k")
	c, _ := q.join("k")
	d, _ := q.join("k")
	down := &RoundError{reason: ErrNoQuorum}
	q.noteFailure("k", down)
	held, failure := q.leave("k", d, false)
	require.False(t, held)
	require.Same(t, down, failure)
	q.leave("k", a, true)
	held, failure = q.leave("k", c, false)
	require.True(t, held)
	require.Nil(t, failure)
	q.leave("k", b, false)
}

func TestNothingOfALineIsLeftBehind(t *testing.T) {
	q := newLines(3)
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
			q.released(key)
		} else {
			i := rand.IntN(len(all))
			q.leave(all[i].key, all[i].w, rand.IntN(2) == 0)
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
		}
	}
	for _, s := range all {
		q.leave(s.key, s.w, false)
	}
	require.Zero(t, q.size())
}
