//go:build unix

package main

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// assigned is the value of a variable that hold has written.
func (s *invocation) assigned(name string) string {
	s.t.Helper()
	s.awaitStdout(name + "=")
	_, value, _ := strings.Cut(s.out.String(), name+"=")
	value, _, _ = strings.Cut(value, "\n")
	return value
}

func TestHoldHoldsUntilItIsEnded(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		s := begin(t, env, "hold", atOnce, "--ttl", "1s", "--owner", "me", "k")
		require.Equal(t, requireHeld(t, masters), s.assigned("REDLOCK_TOKEN"))
		fence, err := strconv.ParseUint(s.assigned("REDLOCK_FENCE"), 10, 64)
		require.NoError(t, err)
		require.Positive(t, fence)
		require.NoError(t, s.Process.Signal(syscall.SIGUSR1)) // which asks for nothing
		wait := "0"
		if signal == syscall.SIGTERM {
			wait = "2s" // for longer than the TTL
		}
		status, _, stderr := do(t, env, "hold", atOnce, "--wait", wait, "k")
		require.Equal(t, exitHeld, status, "it is renewed")
		require.Contains(t, stderr, "by me")
		status, _, stderr = do(t, env, "hold", atOnce, "-n", "-q", "-E", "7", "k")
		require.Equal(t, 7, status)
		require.Empty(t, stderr)
		require.Zero(t, s.endBy(signal))
		require.Empty(t, s.err.String())
		requireFree(t, masters)
	}
}

func TestHoldTellsOfItsEnd(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	s := begin(t, env, "hold", atOnce, "--ttl", "3s", "k")
	s.assigned("REDLOCK_TOKEN")
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.Contains(t, s.err.String(), "the lock was lost")

	s = begin(t, env, "hold", atOnce, "--ttl", "1h", "k") // the next renewal is far away
	s.assigned("REDLOCK_TOKEN")
	s.lose(masters)
	require.Equal(t, exitLost, s.endBy(syscall.SIGTERM))

	status, _, stderr := do(t, env, "hold", atOnce, "--max-lifetime", "200ms", "k")
	require.Equal(t, exitLifetime, status)
	require.Contains(t, stderr, "the --max-lifetime of 200ms is over")
	requireFree(t, masters)
}

func TestHoldTakesAnyKindOfLock(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	first := begin(t, env, "hold", atOnce, "--permits", "2", "k")
	second := begin(t, env, "hold", atOnce, "--permits", "2", "k")
	require.ElementsMatch(t, []string{"1", "2"}, []string{first.assigned("REDLOCK_PERMIT"), second.assigned("REDLOCK_PERMIT")})
	status, _, _ := do(t, env, "hold", atOnce, "-n", "--permits", "2", "k")
	require.Equal(t, exitHeld, status)
	readers := []*invocation{begin(t, env, "hold", atOnce, "--shared", "r"), begin(t, env, "hold", atOnce, "--shared", "r")}
	for _, s := range append(readers, first, second) {
		s.assigned("REDLOCK_TOKEN")
		require.Zero(t, s.endBy(syscall.SIGTERM))
	}
}

func TestASignalEndsTheWaitOfHold(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	first := begin(t, env, "hold", atOnce, "k")
	first.assigned("REDLOCK_TOKEN")
	waiter := begin(t, env, "hold", atOnce, "-v", "--wait", "forever", "k").awaitStderr("waiting: ")
	require.Equal(t, 128+15, waiter.endBy(syscall.SIGTERM))
	require.Empty(t, waiter.out.String())
}

func TestWordsAreQuotedForTheShell(t *testing.T) {
	require.Equal(t, "redlock-hold@host:7/ABC.3.4", quoted("redlock-hold@host:7/ABC.3.4"))
	require.Equal(t, `'$(rm)'\''x'`, quoted(`$(rm)'x`))
	require.Equal(t, `'[a]{b}'`, quoted(`[a]{b}`))
}
