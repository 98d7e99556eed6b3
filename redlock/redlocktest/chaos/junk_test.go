//go:build linux

package main

import (
	"context"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// What was there before a strange value stands there again, and it is nowhere else.
func TestStrangeValuesGoAgain(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	n := newNemesis(masters, new(fleet), nil, time.Second)
	all := func() (keys [][]any) {
		for i := range 3 {
			keys = append(keys, n.says(t, i, "KEYS", "*").([]any))
		}
		return keys
	}
	for _, thing := range strangeThings {
		n.says(t, 0, "SET", "{k}:fence", "7", "PX", "600000")
		n.says(t, 0, "SET", "k", "somebody's")
		ended, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); n.strewBeside(ended, []int{0, 1}, "{k}:fence", thing, time.Minute) }()
		require.Eventually(t, func() bool {
			v, err := masters.Do(0, "GET", "{k}:fence")
			w, err2 := masters.Do(1, "EXISTS", "{k}:fence")
			return (err != nil || v != "7") && err2 == nil && w == int64(1)
		}, patience, ms, thing)
		n.strewOn(t.Context(), []int{0, 1}, "k", thing, 2*junkTime)
		require.Equal(t, "somebody's", n.says(t, 0, "GET", "k"), "it is taken")
		cancel()
		<-done
		for i := range 2 {
			n.insist(t.Context(), i, "EVAL", restoreJunk, "3", "{k}:fence", "{k}:fence:kept", "{k}:fence:junk")
		}
		require.Equal(t, "7", n.says(t, 0, "GET", "{k}:fence"))
		require.Greater(t, n.says(t, 0, "PTTL", "{k}:fence"), int64(500000))
		require.Eventually(t, func() bool { k := all(); return len(k[0]) == 2 && len(k[1])+len(k[2]) == 0 }, patience, ms, thing)
	}
	require.NotZero(t, n.faults[junk])
	require.Equal(t, 2*len(strangeThings), n.faults[junkBeside])
}
