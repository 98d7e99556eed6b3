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

// beside gives two good masters and another one.
func beside(masters *redlocktest.Masters, another string) string {
	return "REDLOCK_MASTERS=" + masters.Addr(0) + "," + masters.Addr(1) + "," + another
}

func TestRunDoesNotWaitForAMajorityThatCanNeverServe(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2, redlocktest.WithArgs("--cluster-enabled", "yes"))
	good := redlocktest.Embedded(t, 1)
	status, stdout, stderr := do(t, []string{beside(masters, good.Addr(0))}, sh("echo ran", "--wait", "1h")...)
	require.Equal(t, exitNoQuorum, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "use independent masters")
	require.Contains(t, stderr, "Cluster")
	require.Zero(t, goingOn(stderr))
}

func TestRunWaitsForAMajorityBesideAMasterThatCanNeverServe(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	cluster := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	masters.Kill(0)
	waiter := begin(t, []string{beside(masters, cluster.Addr(0))}, sh("echo ran", "--wait", "1h")...)
	require.Eventually(t, func() bool { return strings.Contains(waiter.err.String(), "waiting for them") }, patient, 5*time.Millisecond)
	masters.Restart(0)
	require.Zero(t, waiter.end())
	require.Equal(t, "ran\n", waiter.out.String())
}

func TestASignalEndsTheWaitForAMajority(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	masters.Kill(0)
	waiter := begin(t, []string{mastersEnv(masters)}, sh("echo ran", "--wait", "1h")...)
	require.Eventually(t, func() bool { return strings.Contains(waiter.err.String(), "waiting for them") }, patient, 5*time.Millisecond)
	require.Equal(t, 128+15, waiter.endBy(syscall.SIGTERM))
	require.Empty(t, waiter.out.String())
}

// Nothing is known of a lock whose masters were asked, and had no time to answer.
func TestAWaitThatIsOverBeforeAnyAnswerIsNoAnswer(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3, redlocktest.WithLinks())
	for i := range masters.N() {
		masters.Delay(i, 150*time.Millisecond)
	}
	status, stdout, stderr := do(t, []string{mastersEnv(masters)}, sh("echo ran", "--wait", "100ms", "--ttl", "1m", "--dial-timeout", "30s")...)
	require.Equal(t, exitNoQuorum, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "no answer within 100ms")
	require.NotContains(t, stderr, "too few masters")
}

func TestARunWaitsUntilMastersThatWereJustStartedMayVote(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	started := time.Now()
	status, stdout, stderr := do(t, []string{mastersEnv(masters)}, guarded("echo ran", "--ttl", "3s", "--wait", "1m")...)
	require.Zero(t, status)
	require.Equal(t, "ran\n", stdout)
	require.Greater(t, time.Since(started), time.Second, "their age is known in whole seconds")
	require.Contains(t, stderr, "it may have forgotten locks")
	require.Equal(t, 1, strings.Count(stderr, "waiting for them for up to 1m"), "it says so once")
}

func TestAWaitWithoutEnd(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	holder := begin(t, env, sh("echo holding; cat")...).awaitStdout("holding")
	masters.Pause(0) // it waits for masters, too
	waiter := begin(t, env, sh("echo ran", "--wait", "forever")...)
	masters.Resume(0)
	holder.in.Close()
	require.Zero(t, holder.end())
	require.Zero(t, waiter.end())
	require.Equal(t, "ran\n", waiter.out.String())

	masters.Kill(0)
	masters.Kill(1)
	waiter = begin(t, env, sh("echo ran", "--wait", "forever")...)
	require.Eventually(t, func() bool { return strings.Contains(waiter.err.String(), "waiting for them\n") }, patient, 5*time.Millisecond)
	masters.Restart(0)
	require.Zero(t, waiter.end())
}

func TestASignalEndsTheWaitAndLeavesNoKey(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	holder := begin(t, env, sh("echo holding; cat")...).awaitStdout("holding")
	waiter := begin(t, env, sh("echo ran", "--wait", "1h")...)
	// It has asked the masters once it has loaded its scripts there.
	require.Eventually(t, func() bool {
		clients, err := masters.Do(0, "CLIENT", "LIST")
		return err == nil && strings.Count(clients.(string), "name=redlock/cmd/") == 2
	}, patient, 5*time.Millisecond)
	require.Equal(t, 128+15, waiter.endBy(syscall.SIGTERM))
	require.Empty(t, waiter.out.String())
	holder.in.Close()
	require.Zero(t, holder.end())
	requireFree(t, masters)
}

func TestRunWithoutAQuorum(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	masters.Kill(0)
	status, stdout, stderr := do(t, env, sh("echo ran")...)
	require.Zero(t, status, "a minority that is down does not matter")
	require.Equal(t, "ran\n", stdout)
	require.Empty(t, stderr)

	masters.Kill(1)
	for _, wait := range []string{"0", "1s"} {
		status, stdout, stderr := do(t, env, sh("echo ran", "--wait", wait)...)
		require.Equal(t, exitNoQuorum, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "too few masters")
		require.Contains(t, stderr, masters.Addr(0))
		require.Contains(t, stderr, "doctor")
	}
	// Who waits for the lock waits for a majority, too.
	waiter := begin(t, env, sh("echo ran", "--wait", "1m")...)
	require.Eventually(t, func() bool { return strings.Contains(waiter.err.String(), "waiting for them") }, patient, 5*time.Millisecond)
	masters.Restart(1)
	require.Zero(t, waiter.end())
	require.Equal(t, "ran\n", waiter.out.String())
}
