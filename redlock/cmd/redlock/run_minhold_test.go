//go:build unix

package main

import (
	"os"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Of three hosts whose cron begins the same job, one runs it, though it is over before the others come.
func TestAShortJobRunsOnceInAPeriod(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	job := func(flags ...string) (int, string, string) {
		return do(t, env, sh("echo ran", append([]string{"--no-wait", "--min-hold", "1h"}, flags...)...)...)
	}
	status, stdout, stderr := job("--ttl", "1s", "-v")
	require.Zero(t, status)
	require.Equal(t, "ran\n", stdout)
	require.Contains(t, stderr, "k is left until 1h0m0s have passed since it was taken")
	for range 2 {
		status, stdout, stderr = job("--ttl", "1s", "--quiet")
		require.Equal(t, exitHeld, status, "cron sends mail for what is written, whatever the status")
		require.Empty(t, stdout+stderr)
	}
	status, stdout, stderr = job("-q", "-E", "0")
	require.Zero(t, status)
	require.Empty(t, stdout+stderr)
	status, _, stderr = job()
	require.Equal(t, exitHeld, status)
	require.Contains(t, stderr, "is held by another")

	exit, s := statusOfKey(t, env, "k")
	require.Zero(t, exit)
	require.Greater(t, *s.LeftMS, (58 * time.Minute).Milliseconds())
	require.LessOrEqual(t, *s.LeftMS, (61 * time.Minute).Milliseconds())
}

func TestAJobThatFailsIsTriedAgainUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	job := func(script string, flags ...string) int {
		status, _, _ := do(t, env, sh(script, append([]string{"--min-hold", "1h"}, flags...)...)...)
		return status
	}
	require.Equal(t, 7, job("exit 7"))
	requireFree(t, masters)
	require.Equal(t, 128+15, job("kill -TERM $$"))
	requireFree(t, masters)
	require.Equal(t, exitLifetime, job("exec sleep 3600", "--max-lifetime", "200ms"))
	requireFree(t, masters)
	require.Equal(t, 7, job("exit 7", "--hold-on-error"))
	require.Equal(t, exitHeld, job("exit 0", "-n"))
}

// What could not be begun is no success either.
func TestAJobThatCannotBeginLeavesNoLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	status, _, _ := do(t, []string{mastersEnv(masters)}, "run", atOnce, "--min-hold", "1h", "k", "--", executable(t, "\x00"))
	require.Equal(t, exitNoExec, status)
	requireFree(t, masters)
}

func TestALeastHoldOfAHostThatDies(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, sh("echo holding; cat", "--min-hold", "1h", "--ttl", "1s")...).awaitStdout("holding")
	requireHeld(t, masters)
	require.NoError(t, s.Process.Signal(os.Kill))
	s.in.Close()
	s.end()
	for i := range masters.N() {
		left := ask(t, masters, i, "PTTL", "k")
		if left.(int64) != -2 { // it was late, and the lock needed it not
			require.Greater(t, left.(int64), (58 * time.Minute).Milliseconds())
		}
	}
}
