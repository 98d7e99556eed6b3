//go:build linux

package main

import (
	"testing"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Otherwise the sampler would look at keys that are not there, and find nothing to blame.
func TestTheKeysOfEachLockAreKnown(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
	require.NoError(t, err)
	defer client.Close()
	names := make(map[string]bool)
	for _, l := range stormLocks {
		require.False(t, names[l.String()], "%s is there twice", l)
		names[l.String()] = true
		if l.Kind == foreign {
			continue
		}
		masters.Flush(0) // such as the number of permits
		m := client.NewMutex(l.Keys[0], minute, l.options(l.mayFence())...)
		takes(t, m)
		keys, err := masters.Do(0, "KEYS", "*")
		require.NoError(t, err)
		var there []string
		for _, key := range keys.([]any) {
			if !lasts.MatchString(key.(string)) {
				there = append(there, key.(string))
			}
		}
		if l.Kind == permits {
			require.Len(t, there, 1, l)
			require.Subset(t, l.on(""), there, l)
		} else {
			require.ElementsMatch(t, l.on(""), there, l)
		}
		require.NoError(t, m.Unlock(t.Context()))
	}
}
