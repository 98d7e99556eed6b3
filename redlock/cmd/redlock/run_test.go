//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// sh is the command line of a shell script that is run under the lock k, also on masters
// that were just started.
func sh(script string, flags ...string) []string {
	return guarded(script, append([]string{atOnce}, flags...)...)
}

// guarded is the same, and waits until masters that were just started have their votes.
func guarded(script string, flags ...string) []string {
	return append(append([]string{"run"}, flags...), "k", "--", "sh", "-c", script)
}

// lose takes the lock away from the command, which stands still meanwhile: where masters are slow, a holder that is
// notified gives the first its key again before the last has lost it.
func (s *invocation) lose(masters *redlocktest.Masters) {
	s.t.Helper()
	require.NoError(s.t, s.Process.Signal(syscall.SIGSTOP))
	for i := range masters.N() {
		masters.Flush(i)
	}
	require.NoError(s.t, s.Process.Signal(syscall.SIGCONT))
}

// requireFree waits until no master has the key k.
func requireFree(t *testing.T, masters *redlocktest.Masters) {
	t.Helper()
	require.Eventually(t, func() bool {
		for i := range masters.N() {
			if token, err := masters.Do(i, "GET", "k"); err != nil || token != nil {
				return false
			}
		}
		return true
	}, patient, 5*time.Millisecond)
}

// requireHeld waits until most masters have the key k, and returns the token. The others may not have been connected
// yet when these were enough for the lock; then a renewal gives them the key.
func requireHeld(t *testing.T, masters *redlocktest.Masters) (token string) {
	t.Helper()
	require.Eventually(t, func() bool {
		has := 0
		for i := range masters.N() {
			if v, _ := masters.Do(i, "GET", "k"); v != nil {
				token, has = v.(string), has+1
			}
		}
		return has > masters.N()/2
	}, patient, 5*time.Millisecond)
	return token
}

func requireGone(t *testing.T, pid string) {
	t.Helper()
	id, err := strconv.Atoi(strings.TrimSpace(pid))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return syscall.Kill(id, 0) == syscall.ESRCH }, patient, 5*time.Millisecond)
}

func TestRunExitsWithTheStatusOfTheCommand(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	notExecutable := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(notExecutable, nil, 0o600))
	for name, test := range map[string]struct {
		args   []string
		status int
	}{
		"success":        {sh("exit 0"), 0},
		"failure":        {sh("exit 7"), 7},
		"ours":           {sh("exit 96"), 96},
		"SIGTERM":        {sh("kill -TERM $$"), 128 + 15},
		"SIGKILL":        {sh("kill -KILL $$"), 128 + 9},
		"not executable": {[]string{"run", atOnce, "k", "--", notExecutable}, exitNoExec},
		"not found":      {[]string{"run", "k", "--", "no-such-command"}, exitNoFile},
		"no such path":   {[]string{"run", "k", "--", notExecutable + "2"}, exitNoFile},
		"not a program":  {[]string{"run", atOnce, "k", "--", executable(t, "\x00")}, exitNoExec},
		"without --":     {[]string{"run", atOnce, "k", "true"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, stderr := do(t, env, test.args...)
			require.Equal(t, test.status, status)
			if test.status == exitNoExec || test.status == exitNoFile {
				require.Contains(t, stderr, test.args[len(test.args)-1])
			} else {
				require.Empty(t, stderr)
			}
			requireFree(t, masters)
		})
	}
}

func executable(t *testing.T, text string) string {
	name := t.TempDir() + "/file"
	require.NoError(t, processes.WriteProgram(name, []byte(text)))
	return name
}

func TestRunGivesTheCommandInputAndEnvironment(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters), "REDLOCK_FENCE=another's"}, sh(`cat; echo "$REDLOCK_KEY $REDLOCK_TOKEN"; echo oops >&2`, "--owner", "me", "--verbose")...)
	_, err := s.in.Write([]byte("through and through\n"))
	require.NoError(t, err)
	s.awaitStdout("through and through\n")
	token := requireHeld(t, masters)
	s.in.Close()
	require.Zero(t, s.end())
	require.Equal(t, fmt.Sprintf("through and through\nk %s\n", token), s.out.String())
	require.Regexp(t, `^me/`, token)
	require.Contains(t, s.err.String(), "oops")
	require.Contains(t, s.err.String(), "k is released")
}

func TestRunGivesTheCommandAFence(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{mastersEnv(masters), "REDLOCK_FENCE=1"} // as if run stood in another run
	last := uint64(0)
	for range 3 {
		exit, stdout, _ := do(t, env, sh("echo $REDLOCK_FENCE")...)
		require.Zero(t, exit)
		fence, err := strconv.ParseUint(strings.TrimSpace(stdout), 10, 64)
		require.NoError(t, err)
		require.Greater(t, fence, max(last, 1))
		last = fence
	}
	exit, s := statusOfKey(t, env, "k")
	require.Equal(t, exitNo, exit)
	require.Equal(t, last, s.Fence, "it is remembered when the lock is free")
	_, stdout, _ := do(t, env, "status", "k")
	require.Contains(t, stdout, "FENCE")
	require.Contains(t, stdout, fmt.Sprint(last))

	exit, stdout, _ = do(t, env, sh("echo [$REDLOCK_FENCE]", "--fence=false")...)
	require.Zero(t, exit)
	require.Equal(t, "[]\n", stdout)
}

// A user may have been given the locks' keys before there were counters.
func TestRunWithoutTheRightToTheCounter(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	onAll(t, masters, "ACL", "SETUSER", "locker", "on", ">pw", "~k", "+@all")
	env := []string{mastersEnv(masters), "REDLOCK_USERNAME=locker", "REDLOCK_PASSWORD=pw"}
	exit, stdout, stderr := do(t, env, sh("echo [$REDLOCK_FENCE]")...)
	require.Zero(t, exit, stderr)
	require.Equal(t, "[]\n", stdout)
	require.Contains(t, stderr, "{k}:fence")

	exit, stdout, stderr = do(t, env, sh("echo [$REDLOCK_FENCE]", "--fence=false")...)
	require.Zero(t, exit)
	require.Equal(t, "[]\n", stdout)
	require.Empty(t, stderr)

	exit, stdout, stderr = do(t, env, sh("echo ran", "--fence")...)
	require.Equal(t, exitNoQuorum, exit)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "NOPERM")

	exit, s := statusOfKey(t, env, "k")
	require.Equal(t, exitNo, exit)
	require.Zero(t, s.Fence)
}

func TestOnlyOneRunsAtATime(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	holder := begin(t, env, sh("echo holding; cat", "--owner", "first")...).awaitStdout("holding")

	for name, flags := range map[string][]string{"-n": {"-n"}, "--no-wait": {"--no-wait"}, "--wait 0": {"--wait", "0"}, "--wait": {"--wait", "2s"}} {
		t.Run(name, func(t *testing.T) {
			require.Eventually(t, func() bool { // see requireRefused
				status, stdout, stderr := do(t, env, sh("echo ran", flags...)...)
				return status == exitHeld && stdout == "" && strings.Contains(stderr, `"k" is held by another`) && strings.Contains(stderr, "by first")
			}, patient, 5*time.Millisecond)
		})
	}
	status, stdout, _ := do(t, env, sh("echo ran", "-n", "-E", "0")...)
	require.Zero(t, status)
	require.Empty(t, stdout)

	waiter := begin(t, env, sh("echo ran", "--wait", "1m")...)
	var all []*invocation
	for range 3 {
		all = append(all, begin(t, env, sh("echo ran", "--wait", "1m")...))
	}
	require.Empty(t, waiter.out.String())
	holder.in.Close()
	require.Zero(t, holder.end())
	for _, s := range append(all, waiter) {
		require.Zero(t, s.end())
		require.Equal(t, "ran\n", s.out.String())
	}
}

func TestRunRenewsTheLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	const ttl = 3 * time.Second
	s := begin(t, []string{mastersEnv(masters)}, sh("echo holding; cat", "--ttl", ttl.String())...).awaitStdout("holding")
	token := requireHeld(t, masters)
	for started := time.Now(); time.Since(started) < ttl*3/2; time.Sleep(ttl / 150) { // the second renewal was needed
		require.Equal(t, token, requireHeld(t, masters))
	}
	s.in.Close()
	require.Zero(t, s.end())
	requireFree(t, masters)
}

func TestALostLockEndsTheCommand(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, sh(`trap 'echo asked; exit 3' TERM; echo holding; sleep 3600 & wait`, "--ttl", "3s")...).awaitStdout("holding")
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.Contains(t, s.out.String(), "asked")
	require.Contains(t, s.err.String(), "the lock is lost")
	require.Contains(t, s.err.String(), "status 3")
	requireFree(t, masters)
}

func TestALockThatIsAnothersEndsTheCommandAndStaysThere(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, sh("echo holding; exec sleep 3600", "--ttl", "3s")...).awaitStdout("holding")
	onAll(t, masters, "SET", "k", "another")
	require.Equal(t, exitLost, s.end())
	for i := range masters.N() {
		require.Equal(t, "another", ask(t, masters, i, "GET", "k"))
	}
}

func TestAMajorityThatHangsEndsTheCommand(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, sh("echo holding; exec sleep 3600", "--ttl", "3s")...).awaitStdout("holding")
	masters.Pause(0)
	masters.Pause(1)
	require.Equal(t, exitLost, s.end())
	masters.Resume(0)
	masters.Resume(1)
}

func TestTheEndOfTheLifetimeEndsTheCommand(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	status, _, stderr := do(t, []string{mastersEnv(masters)}, sh("exec sleep 3600", "--max-lifetime", "3s", "--ttl", "1m")...)
	require.Equal(t, exitLifetime, status)
	require.Contains(t, stderr, "the --max-lifetime of 3s is over: ending the command")
	require.Contains(t, stderr, "before the command ended, with status 143")
	require.NotContains(t, stderr, "lost", "it was given up")
	require.NotContains(t, stderr, "another", "nobody else had it meanwhile")
	requireFree(t, masters)
}

func TestALossFoundAtTheReleaseIsTold(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, sh("echo holding; cat", "--ttl", "1h")...).awaitStdout("holding")
	s.lose(masters)
	s.in.Close()
	require.Equal(t, exitLost, s.end())
	require.Contains(t, s.err.String(), "not held")
}

func TestWhatIgnoresTheEndOfTheLockIsKilledAfterTheGrace(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	// The shell ends at once, and its child does not.
	s := begin(t, []string{mastersEnv(masters)}, sh(`trap '' TERM; sleep 3600 & trap 'exit 3' TERM; echo "pid $!"; wait`,
		"--ttl", "3s", "--grace", "100ms")...)
	s.awaitStdout("pid ")
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	_, pid, _ := strings.Cut(s.out.String(), "pid ")
	requireGone(t, lines(pid)[0])

	// And neither of them does.
	s = begin(t, []string{mastersEnv(masters)}, sh(`trap '' TERM; echo "pid $$"; sleep 3600; sleep 3600`, "--ttl", "3s", "--grace", "100ms")...).awaitStdout("pid ")
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.Contains(t, s.err.String(), "status 137")
	_, pid, _ = strings.Cut(s.out.String(), "pid ")
	requireGone(t, lines(pid)[0])
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2} {
		t.Run(signal.String(), func(t *testing.T) {
			s := begin(t, []string{mastersEnv(masters)}, sh(fmt.Sprintf(`trap 'echo got it; exit 5' %d; echo ready; while :; do sleep 0.01; done`, signal))...).awaitStdout("ready")
			require.Equal(t, 5, s.endBy(signal))
			require.Contains(t, s.out.String(), "got it")
			requireFree(t, masters)
		})
	}
}

func TestACommandThatASignalEndsIsReportedAsShellsDo(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		s := begin(t, []string{mastersEnv(masters)}, sh("echo ready; exec sleep 3600")...).awaitStdout("ready")
		status := s.endBy(signal)
		if died := s.ProcessState.Sys().(syscall.WaitStatus); died.Signaled() { // a Ctrl-C at a terminal
			status = 128 + int(died.Signal())
		}
		require.Equal(t, 128+int(signal), status)
	}
}

func TestTheLockIsKeptUntilTheLastOfTheCommandHasEnded(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	// The shell ends at the signal, while its child takes its time to tidy up.
	s := begin(t, []string{mastersEnv(masters)}, sh(`exec 3<&0; trap 'exit 3' TERM; (trap 'echo tidying; read x; echo tidy; exit' TERM; echo ready; while :; do sleep 0.01; done) <&3 & wait`,
		"--grace", "1m")...)
	s.awaitStdout("ready")
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	s.awaitStdout("tidying")
	requireHeld(t, masters)
	s.in.Close()
	require.Equal(t, 3, s.end())
	require.Contains(t, s.out.String(), "tidy\n")
	requireFree(t, masters)
}

func TestWhatOutlivesASignalIsKilledAfterTheGrace(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, sh(`trap '' TERM; sleep 3600 & trap 'exit 3' TERM; echo "pid $!"; wait`, "--grace", "3s")...).awaitStdout("pid ")
	require.Equal(t, 3, s.endBy(syscall.SIGTERM))
	_, pid, _ := strings.Cut(s.out.String(), "pid ")
	requireGone(t, lines(pid)[0])
	requireFree(t, masters)
}

func TestADaemonThatTheCommandLeavesIsLeftAlone(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	end := filepath.Join(t.TempDir(), "end") // a shell that is about to read would overlook a signal until it has read
	s := begin(t, []string{mastersEnv(masters), "END=" + end}, sh(`trap '' HUP; sleep 3600 >/dev/null 2>&1 & trap 'echo reloaded' HUP; echo "pid $!"
		while [ ! -e "$END" ]; do sleep 0.01; done`, "--grace", "1ms")...)
	s.awaitStdout("pid ")
	require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	s.awaitStdout("reloaded")
	time.Sleep(2 * time.Millisecond) // the grace
	require.NoError(t, os.WriteFile(end, nil, 0o600))
	require.Zero(t, s.end())
	_, pid, _ := strings.Cut(s.out.String(), "pid ")
	id, err := strconv.Atoi(lines(pid)[0])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(id, syscall.SIGKILL))
	requireFree(t, masters)
}

func TestSignalsThatWereIgnoredStayIgnored(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, "run", atOnce, "outer", "--", "sh", "-c", `trap '' HUP; exec "$0" run `+atOnce+` k -- sh -c 'echo ready; cat; echo alive'`, binary)
	s.awaitStdout("ready")
	require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	s.in.Close()
	require.Zero(t, s.end())
	require.Contains(t, s.out.String(), "alive")
}

// The token is all that it takes to release the lock.
func TestRunDoesNotShowTheToken(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	status, stdout, stderr := do(t, []string{mastersEnv(masters)}, sh("echo $REDLOCK_TOKEN", "-v", "--owner", "night-shift")...)
	require.Zero(t, status)
	require.Contains(t, stderr, "as night-shift\n")
	require.NotContains(t, stderr, strings.TrimSpace(stdout))
}

// A redlock in the command is to use the same masters, and nobody gives it our password.
func TestTheCommandKnowsTheMastersAndNoPassword(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithArgs("--requirepass", "sesame"))
	secret := "redis://:sesame@" + strings.Join(masters.Addrs(), ",redis://:sesame@")
	for name, env := range map[string][]string{
		"of the environment": {"REDLOCK_MASTERS=127.0.0.1:1", "REDLOCK_PASSWORD=sesame"},
		"of the URLs":        {"REDLOCK_MASTERS=" + secret},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"run", atOnce, "k", "--", "env"} // no shell, which would tidy up
			if env[0] == "REDLOCK_MASTERS=127.0.0.1:1" {
				args = slices.Insert(args, 1, "--masters", strings.Join(masters.Addrs(), ","))
			}
			status, stdout, stderr := do(t, env, args...)
			require.Zero(t, status, stderr)
			require.Contains(t, stdout, "REDLOCK_MASTERS="+strings.Join(masters.Addrs(), ",")+"\n")
			require.Equal(t, 1, strings.Count(stdout, "REDLOCK_MASTERS="))
			require.NotContains(t, stdout, "sesame")
			require.NotContains(t, stdout, "PASSWORD")
		})
	}
}
