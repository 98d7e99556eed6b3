package mux

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingIsFirstInFirstOut(t *testing.T) {
	t.Parallel()
	var r ring[int]
	in, out := 0, 0
	for range 100_000 {
		if rand.IntN(2) == 0 || r.len() == 0 {
			r.push(in)
			in++
		} else {
			front := *r.front()
			if popped := r.pop(); front != out || popped != out {
				t.Fatalf("front %d, pop %d, want %d", front, popped, out)
			}
			out++
		}
		if r.len() != in-out {
			t.Fatalf("len %d, want %d", r.len(), in-out)
		}
	}
}

func TestRingGivesBackWhatAnOutageHasMadeItGrow(t *testing.T) {
	t.Parallel()
	var r ring[int]
	for round, want := range []int{keepRing, 2 * keepRing} {
		for k := range want {
			r.push(k)
		}
		for k := range want {
			require.Equal(t, k, r.pop())
		}
		require.Equal(t, round == 0, r.buf != nil)
	}
	r.push(1)
	require.Equal(t, 1, r.pop())
}
