//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestDemoThatIsStoppedLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"A lock on", "1. ", "2. ", "3. "} {
		env, requireNothingLeft := marked(t)
		s := begin(t, env, "demo").awaitStdout(part)
		s.Process.Signal(syscall.SIGINT) // it may have ended already
		if status := s.end(); status != 0 {
			require.Equal(t, 128+2, status)
			require.Contains(t, s.out.String(), "Stopped; nothing is left.")
		}
		requireNothingLeft()
	}
}

func TestDemoThatIsStoppedLeavesNoKeyOnMastersOfTheUser(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for _, part := range []string{"1. ", "2. ", "3. "} {
		s := begin(t, nil, "demo", "--masters", strings.Join(masters.Addrs(), ",")).awaitStdout(part)
		s.Process.Signal(syscall.SIGTERM) // it may have ended already
		s.end()
		for i := range masters.N() {
			require.Eventually(t, func() bool { // nobody waits for the last master; a TTL takes longer
				keys, err := masters.Do(i, "EVAL", lockKeys, "0")
				return err == nil && keys == int64(0)
			}, demoTTL/2, time.Millisecond)
		}
	}
}
