package mux

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingIsFirstInFirstOut(t *testing.T) {
	var r ring[int]
	in, out := 0, 0
	for range 100_000 {
		if rand.IntN(2) == 0 || r.len() == 0 {
			r.push(in)
			in++
		} else {
			require.Equal(t, out, *r.front())
			require.Equal(t, out, r.pop())
			out++
		}
		require.Equal(t, in-out, r.len())
	}
}
