//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// leads is the command line of a shell script that runs where the leader is.
func leads(script string, flags ...string) []string {
	return append(append([]string{"lead", atOnce}, flags...), "k", "--", "sh", "-c", script)
}

// The hosts, each of which says when it leads: "begun" and its term.
type hosts []*invocation

// leader waits until one of the hosts has begun a term after another, and returns it and the term.
func (h hosts) leader(t *testing.T, after uint64) (leader int, term uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		for i, s := range h {
			for _, line := range lines(s.out.String()) {
				if of, ok := strings.CutPrefix(line, "begun "); ok {
					if n, err := strconv.ParseUint(of, 10, 64); err == nil && n > max(after, term) {
						leader, term = i, n
					}
				}
			}
		}
		return term > after
	}, patient, 5*time.Millisecond, "a leader after term %d", after)
	return leader, term
}

// stays runs until it is ended, and fails the test if another host's command runs at the same time.
func stays(t *testing.T) string {
	t.Helper()
	mine := filepath.Join(t.TempDir(), "alone")
	return fmt.Sprintf(`mkdir %s || echo together; trap 'rmdir %s; exit 5' TERM; echo "begun $REDLOCK_FENCE"; while :; do sleep 0.01; done`, mine, mine)
}

func begins(t *testing.T, n int, env []string, args []string) (all hosts) {
	t.Helper()
	for range n {
		all = append(all, begin(t, env, args...))
	}
	return all
}

func TestTheCommandRunsOnExactlyOneHost(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	all := begins(t, 3, []string{mastersEnv(masters)}, leads(stays(t), "--ttl", "3s", "-v"))
	last := uint64(0)
	for len(all) > 1 {
		leader, term := all.leader(t, last)
		last = term
		s := all[leader]
		s.awaitStderr(fmt.Sprintf("k: we lead, in term %d", term))
		require.Equal(t, 5, s.endBy(syscall.SIGTERM), "the command's own")
		require.NotContains(t, s.err.String(), "has ended")
		all = append(all[:leader], all[leader+1:]...)
	}
	_, _ = all.leader(t, last)
	require.NoError(t, all[0].Process.Signal(syscall.SIGTERM))
	require.Equal(t, 5, all[0].end())
	for _, s := range all {
		require.NotContains(t, s.out.String(), "together")
	}
	requireFree(t, masters)
}

func TestTheCommandBeginsElsewhereWhenItsHostDies(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	all := begins(t, 2, []string{mastersEnv(masters)}, leads(`echo "begun $REDLOCK_FENCE"; exec sleep 3600`, "--ttl", "1s"))
	leader, term := all.leader(t, 0)
	require.NoError(t, all[leader].Process.Signal(os.Kill))
	all[leader].end()
	next, _ := all.leader(t, term)
	require.NotEqual(t, leader, next)
}

func TestACommandThatEndsIsStartedAgain(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, leads(`sleep 3600 & echo "begun $REDLOCK_FENCE"; echo "pid $!"; exit 7`, "--ttl", "100ms")...)
	_, term := hosts{s}.leader(t, 0)
	hosts{s}.leader(t, term)
	s.awaitStderr("the command has ended, with status 7")
	_, pid, _ := strings.Cut(s.out.String(), "pid ")
	requireGone(t, lines(pid)[0])
	s.endBy(syscall.SIGTERM)
	requireFree(t, masters)
}

func TestALostLeadershipEndsTheCommandAndIsWonAgain(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, leads(`trap "" TERM; echo "begun $REDLOCK_FENCE"; while :; do sleep 0.01; done`, "--ttl", "3s", "--grace", "10ms")...)
	_, term := hosts{s}.leader(t, 0)
	onAll(t, masters, "DEL", "k")
	s.awaitStderr("the lock is lost: ending the command")
	hosts{s}.leader(t, term)
	require.NotContains(t, s.err.String(), "has ended")
	require.NoError(t, s.Process.Signal(syscall.SIGTERM)) // which the command ignores
	require.Equal(t, 128+9, s.end())
	requireFree(t, masters)
}

func TestATermThatIsOverEndsTheCommand(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, leads(`echo "begun $REDLOCK_FENCE"; exec sleep 3600`, "--max-lifetime", "100ms", "--ttl", "1s")...)
	_, term := hosts{s}.leader(t, 0)
	hosts{s}.leader(t, term)
	s.awaitStderr("the --max-lifetime of 100ms is over: ending the command")
	require.NotContains(t, s.err.String(), "lost")
}

func TestAHangupIsTheCommandsAffair(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	s := begin(t, env, leads(`trap 'echo reloaded; sleep 0.5; echo alive' HUP; echo "begun $REDLOCK_FENCE"; while :; do sleep 0.01; done`, "--grace", "50ms")...)
	hosts{s}.leader(t, 0)
	waiter := begin(t, env, leads("echo begun 1", "-v")...).awaitStderr("waiting: ")
	require.Equal(t, 128+1, waiter.endBy(syscall.SIGHUP))
	require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	s.awaitStdout("reloaded")
	s.awaitStdout("alive")
	require.Equal(t, 128+15, s.endBy(syscall.SIGTERM))

	s = begin(t, env, leads(`echo "begun $REDLOCK_FENCE"; exec sleep 3600`)...)
	hosts{s}.leader(t, 0)
	require.NoError(t, s.Process.Signal(syscall.SIGHUP)) // a terminal that was closed
	require.Equal(t, 128+1, s.end())
	require.NotContains(t, s.err.String(), "has ended")
	requireFree(t, masters)
}

// Many programs take a second signal for a wish to end at once.
func TestTheCommandGetsTheSignalThatEndsLeadAndNoOther(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, leads(`trap 'echo got it' INT; trap 'echo ended' TERM; echo "begun $REDLOCK_FENCE"; while :; do sleep 0.01; done`, "--grace", "300ms")...)
	hosts{s}.leader(t, 0)
	require.Equal(t, 128+9, s.endBy(syscall.SIGINT))
	require.Contains(t, s.out.String(), "got it")
	require.NotContains(t, s.out.String(), "ended")
	requireFree(t, masters)
}

func TestTheLeadersCommandKnowsItsLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters), "REDLOCK_PASSWORD=x", "REDLOCK_SENTINEL_PASSWORD=x", "REDLOCK_TOKEN=another's"}, leads(`echo "$REDLOCK_KEY $REDLOCK_TOKEN $REDLOCK_MASTERS [$REDLOCK_PASSWORD$REDLOCK_SENTINEL_PASSWORD]"; exec sleep 3600`, "--owner", "me:8080")...)
	s.awaitStdout("[]")
	token := requireHeld(t, masters)
	require.Regexp(t, "^me:8080/", token)
	require.Equal(t, fmt.Sprintf("k %s %s []\n", token, strings.Join(masters.Addrs(), ",")), s.out.String())
	exit, status := statusOfKey(t, []string{mastersEnv(masters)}, "k")
	require.Zero(t, exit)
	require.Equal(t, "me:8080", status.Owner)
}

func TestWhatKeepsAHostFromLeadingIsTold(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	status, _, _ := do(t, env, "lead", "k", "--", "no-such-command")
	require.Equal(t, exitNoFile, status)
	status, _, _ = do(t, env, "lead", atOnce, "k", "--", executable(t, "\x00"))
	require.Equal(t, exitNoExec, status)
	requireFree(t, masters)
	onAll(t, masters, "ACL", "SETUSER", "locker", "on", ">pw", "~k", "+@all")
	status, _, stderr := do(t, append(env, "REDLOCK_USERNAME=locker", "REDLOCK_PASSWORD=pw"), leads("echo ran")...)
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "NOPERM")

	masters.Kill(0)
	masters.Kill(1)
	s := begin(t, env, leads(`echo "begun $REDLOCK_FENCE"; exec sleep 3600`)...).awaitStderr("waiting for them\n")
	masters.Restart(0)
	hosts{s}.leader(t, 0)
}

// A command that takes longer than the TTL to end, after its --max-lifetime, is alone until it has ended.
func TestALeadersLifetimeEndsWithItsCommand(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mine := filepath.Join(t.TempDir(), "alone")
	script := fmt.Sprintf(`mkdir %s || echo together; trap 'sleep 1.5; rmdir %s; exit 5' TERM; echo "begun $REDLOCK_FENCE"; while :; do sleep 0.01; done`, mine, mine)
	all := begins(t, 2, []string{mastersEnv(masters)}, leads(script, "--ttl", "1s", "--max-lifetime", "1s"))
	first, term := all.leader(t, 0)
	for next := first; next == first; { // the other leads as soon as it has come
		next, term = all.leader(t, term)
	}
	for _, s := range all {
		require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	}
	for _, s := range all {
		s.end()
		require.NotContains(t, s.out.String(), "together")
	}
}
