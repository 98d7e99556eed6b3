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

// beside is a fleet of two good masters and another one.
func beside(masters *redlocktest.Masters, another string) string {
	return "REDLOCK_MASTERS=" + masters.Addr(0) + "," + masters.Addr(1) + "," + another
}

// goingOn counts the masters that a run says it goes on without.
func goingOn(stderr string) int { return strings.Count(stderr, "going on without it") }

func TestRunSaysWhichMasterCanNeverServeAndGoesOn(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	cluster := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	locked := redlocktest.Start(t, 1, redlocktest.WithArgs("--requirepass", "another-secret"))
	for name, test := range map[string]struct{ address, says string }{
		"a node of a cluster": {cluster.Addr(0), "use independent masters, not a cluster"},
		"a wrong password":    {"redis://:my-secret@" + locked.Addr(0), "correct the username and password"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, []string{beside(masters, test.address)}, sh("echo holding; cat", "--ttl", "3s")...)
			s.reads("holding")
			require.Eventually(t, func() bool { return goingOn(s.err.String()) == 1 }, patient, time.Millisecond)
			s.in.Close()
			require.Zero(t, s.end())
			stderr := s.err.String()
			require.Equal(t, 1, goingOn(stderr), "it says so once")
			require.Contains(t, stderr, test.says)
			require.Contains(t, stderr, test.address[strings.LastIndexByte(test.address, '@')+1:])
			require.NotContains(t, stderr, "secret")
		})
	}
}

func TestRunSaysWhichMasterCannotServeAnyMore(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{inFleet(masters)}, sh("echo holding; cat", "--ttl", "3s")...)
	s.reads("holding")
	replicate(t, masters, 2, 0)
	require.Eventually(t, func() bool { return goingOn(s.err.String()) == 1 }, patient, time.Millisecond)
	require.Contains(t, s.err.String(), masters.Addr(2))
	require.Contains(t, s.err.String(), "it is a replica")
	s.in.Close()
	require.Zero(t, s.end())
}

func TestRunDoesNotWaitForAMajorityThatCanNeverServe(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2, redlocktest.WithArgs("--cluster-enabled", "yes"))
	good := redlocktest.Embedded(t, 1)
	status, stdout, stderr := do(t, []string{beside(masters, good.Addr(0))}, sh("echo ran", "--wait", "1h")...)
	require.Equal(t, exitNoQuorum, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "use independent masters")
	require.Zero(t, goingOn(stderr))
}

func TestRunWaitsForAMajorityBesideAMasterThatCanNeverServe(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	cluster := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	masters.Kill(0)
	waiter := begin(t, []string{beside(masters, cluster.Addr(0))}, sh("echo ran", "--wait", "1h")...)
	require.Eventually(t, func() bool { return strings.Contains(waiter.err.String(), "waiting for them") }, patient, time.Millisecond)
	masters.Restart(0)
	require.Zero(t, waiter.end())
	require.Equal(t, "ran\n", waiter.out.String())
}

func TestASignalEndsTheWaitForAMajority(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	masters.Kill(0)
	waiter := begin(t, []string{inFleet(masters)}, sh("echo ran", "--wait", "1h")...)
	require.Eventually(t, func() bool { return strings.Contains(waiter.err.String(), "waiting for them") }, patient, time.Millisecond)
	require.NoError(t, waiter.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+15, waiter.end())
	require.Empty(t, waiter.out.String())
}

// Nothing is known of a lock whose masters were asked, and had no time to answer.
func TestAWaitThatIsOverBeforeAnyAnswerIsNoAnswer(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3, redlocktest.WithLinks())
	for i := range masters.N() {
		masters.Delay(i, 150*time.Millisecond)
	}
	status, stdout, stderr := do(t, []string{inFleet(masters)}, sh("echo ran", "--wait", "100ms", "--ttl", "1m", "--dial-timeout", "30s")...)
	require.Equal(t, exitNoQuorum, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "no answer within 100ms")
	require.NotContains(t, stderr, "too few masters")
}
