package main

import (
	"crypto/rand"
	"os"
	"os/exec"
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

// The command runs as our user, and yet does not see the passwords that it is not given.
func TestTheCommandCannotReadItsParentsPasswords(t *testing.T) {
	t.Parallel()
	password := rand.Text()
	masters := redlocktest.Start(t, 3, redlocktest.WithPassword(password))
	dir, err := os.MkdirTemp("", "redlock")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	text, err := os.ReadFile(binary)
	require.NoError(t, err)
	program := filepath.Join(dir, "redlock")
	require.NoError(t, processes.WriteProgram(program, text))
	for _, how := range []string{"run", "lead"} {
		cmd := exec.CommandContext(t.Context(), program, how, atOnce, "k", "--", "sh", "-c", `cat /proc/$PPID/environ; head -c 1 /proc/$PPID/mem; echo "parent $PPID"; kill $PPID`)
		cmd.Env, cmd.Dir = environment(mastersEnv(masters), "REDLOCK_PASSWORD="+password), "/"
		if os.Getuid() == 0 { // who may see all
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		said, err := cmd.CombinedOutput()
		require.Contains(t, string(said), "parent ", "%v", err)
		require.NotContains(t, string(said), password)
		require.Equal(t, 2, strings.Count(string(said), "Permission denied"), "%s", said)
	}
}

// tracked returns a variable of the environment that marks what a test starts, and a function that
// returns the processes with it. What is left of them is killed when the test ends.
func tracked(t *testing.T) (mark string, left func() []string) {
	t.Helper()
	mark = "TEST_MARK=" + t.TempDir() // which is unique
	left = func() []string { return processesWith(mark) }
	t.Cleanup(func() {
		for all := left(); len(all) > 0; all = left() {
			for _, id := range all {
				if r, ok := relativeOf(pidOf(t, id)); ok {
					r.send(syscall.SIGKILL)
				}
			}
		}
	})
	return mark, left
}

func pidOf(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// word returns the word behind a name in what the command writes.
func (s *invocation) word(name string) string {
	s.t.Helper()
	s.awaitStdout(name + " ")
	_, rest, _ := strings.Cut(s.out.String(), name+" ")
	return strings.Fields(rest)[0]
}

// What the command starts can leave its group and its session (setsid), and its parent (a daemon).
func TestALossEndsAllThatTheCommandHasStarted(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	dir := t.TempDir()
	s := begin(t, []string{mastersEnv(masters), mark}, sh(`cd `+dir+`; exec >/dev/null 2>&1; sleep 120 & setsid sleep 120 &
		(setsid sh -c 'sleep 120 & sleep 120' &)
		setsid sh -c 'trap "touch asked; exit" TERM; touch ready; while :; do sleep 0.01; done' & wait`, "--ttl", "3s", "--grace", "1m")...)
	require.Eventually(t, func() bool { return fileExists(dir + "/ready") }, patient, 5*time.Millisecond)
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.Empty(t, left())
	require.True(t, fileExists(dir+"/asked"))
	require.NotContains(t, s.err.String(), "cannot be ended")
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func TestWhatHasLeftTheGroupIsKilledAfterTheGrace(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	// One is stopped, one ignores SIGTERM, and one starts others as fast as it can.
	s := begin(t, []string{mastersEnv(masters), mark}, sh(`setsid sh -c 'kill -s STOP $$' >/dev/null 2>&1 &
		setsid sh -c 'trap "" TERM; while :; do sleep 120; done' >/dev/null 2>&1 &
		setsid sh -c 'trap "" TERM; echo ready; exec >/dev/null 2>&1; while :; do setsid sleep 120 & sleep 0.01; done' & sleep 120`, "--ttl", "3s", "--grace", "100ms")...)
	s.awaitStdout("ready")
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.Empty(t, left())
}

func TestASignalEndsWhatHasLeftTheGroupBeforeTheLockIsFree(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	s := begin(t, []string{mastersEnv(masters), mark}, sh(`exec 3<&0; setsid sh -c 'trap "echo tidying; read x; echo tidy; exit" TERM; echo ready; while :; do sleep 0.01; done' <&3 & sleep 120`,
		"--grace", "1m")...)
	s.awaitStdout("ready")
	require.NoError(t, s.Process.Signal(syscall.SIGTERM))
	s.awaitStdout("tidying")
	requireHeld(t, masters)
	s.in.Close()
	require.Equal(t, 128+15, s.end())
	require.Contains(t, s.out.String(), "tidy\n")
	require.Empty(t, left())
	requireFree(t, masters)
}

func TestALeadersTermEndsWithAllThatItsCommandHasStarted(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	s := begin(t, []string{mastersEnv(masters), mark}, leads(`setsid sh -c 'echo "stray $$"; exec sleep 120 >/dev/null 2>&1' & echo "begun $REDLOCK_FENCE"; while ! read x; do sleep 0.01; done`, "--ttl", "1s")...)
	stray := s.word("stray")
	_, term := hosts{s}.leader(t, 0)
	_, err := s.in.Write([]byte("end\n"))
	require.NoError(t, err)
	hosts{s}.leader(t, term)
	require.NotContains(t, left(), stray)
}

func TestWhatTheCommandLeavesWhenItEndsByItselfGoesOn(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	s := begin(t, []string{mastersEnv(masters), mark}, sh(`sleep 120 >/dev/null 2>&1 & echo "inside $!"
		setsid sh -c 'echo "outside $$"; exec sleep 120 >/dev/null 2>&1' & while ! read x; do sleep 0.01; done`)...)
	inside, outside := s.word("inside"), s.word("outside")
	_, err := s.in.Write([]byte("end\n"))
	require.NoError(t, err)
	require.Zero(t, s.end())
	require.ElementsMatch(t, []string{inside, outside}, left())
	requireFree(t, masters)
}

// A shell that becomes redlock by an exec leaves it its children. They are none of the command's.
func TestALossSparesWhatWasThereBeforeTheCommand(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	script := `sh -c 'sleep 120 >/dev/null 2>&1 & echo "below $!"; exec >/dev/null 2>&1; wait' & echo "before $!"; exec "$@"`
	s := beginBy(t, []string{mastersEnv(masters), mark}, "sh", append([]string{"-c", script, "sh", binary}, sh("echo ready; sleep 120", "--ttl", "3s")...)...)
	spared := []string{s.word("before"), s.word("below")}
	s.awaitStdout("ready")
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.ElementsMatch(t, spared, left())
}

// What was below such a child comes to redlock when that child ends.
func TestALossSparesWhatAProcessBeforeTheCommandHasLeft(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	dir := t.TempDir()
	script := `cd ` + dir + `; sh -c 'sleep 120 >/dev/null 2>&1 & echo "below $!"; exec >/dev/null 2>&1; touch begun; while [ ! -e end ]; do sleep 0.01; done' &
		echo "before $!"; while [ ! -e begun ]; do sleep 0.01; done; exec "$@"`
	s := beginBy(t, []string{mastersEnv(masters), mark}, "sh", append([]string{"-c", script, "sh", binary}, sh("echo ready; sleep 120", "--ttl", "3s")...)...)
	below, before := s.word("below"), s.word("before")
	s.awaitStdout("ready")
	require.NoError(t, os.WriteFile(dir+"/end", nil, 0o600))
	require.Eventually(t, func() bool { return !slices.Contains(left(), before) }, patient, 20*time.Millisecond)
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.Equal(t, []string{below}, left())
}

// A lock of flock(1), or a pipe whose reader waits for its end, must not last longer than redlock and the command.
func TestTheGuardHoldsNoDescriptorThatRedlockWasGiven(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	name := t.TempDir() + "/lock"
	s := beginBy(t, []string{mastersEnv(masters)}, "bash", append([]string{"-c", `exec 9>"$0" 77>"$0"; exec "$@"`, name, binary},
		sh(`echo "command $$"; read x`)...)...)
	command := s.word("command")
	var holders []string
	for _, r := range below(nil) {
		id := strconv.Itoa(r.pid)
		all, _ := os.ReadDir("/proc/" + id + "/fd")
		for _, fd := range all {
			if at, _ := os.Readlink("/proc/" + id + "/fd/" + fd.Name()); at == name {
				holders = append(holders, id+" "+fd.Name())
			}
		}
	}
	id := strconv.Itoa(s.Process.Pid)
	require.ElementsMatch(t, []string{id + " 9", id + " 77", command + " 9", command + " 77"}, holders)
	s.in.Close()
	s.end()
}

func init() {
	if os.Getenv("TEST_HEADLESS") != "" {
		syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // which ends the first thread alone
	}
}

func TestAProcessLivesWithoutItsFirstThread(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TEST_HEADLESS=1")
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	state := func() string {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat")
		require.NoError(t, err)
		return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))[0]
	}
	require.Eventually(t, func() bool { return state() == "Z" }, patient, 5*time.Millisecond)
	r, ok := relativeOf(cmd.Process.Pid)
	require.True(t, ok)
	require.False(t, r.dead)
	require.NoError(t, r.send(syscall.SIGKILL))
	require.Eventually(t, func() bool {
		r, _ := relativeOf(cmd.Process.Pid)
		return r.dead
	}, patient, 5*time.Millisecond)
	require.Error(t, cmd.Wait())
}

// root skips a test that changes users where that is not possible.
func root(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("setpriv"); err != nil || os.Geteuid() != 0 {
		t.Skip("it needs root and setpriv")
	}
}

const nobody = "setpriv --reuid=65534 --clear-groups "

func TestWhatCannotBeEndedIsSaid(t *testing.T) {
	t.Parallel()
	root(t)
	masters := redlocktest.Start(t, 3)
	mark, left := tracked(t)
	// A root who lacks the right to signal the processes of others.
	s := beginBy(t, []string{mastersEnv(masters), mark}, "setpriv", append([]string{"--bounding-set=-kill", binary},
		sh(`setsid sh -c 'echo "stray $$"; exec `+nobody+`sh -c "echo ready; exec sleep 120 >/dev/null 2>&1"' & sleep 120`, "--ttl", "3s", "--grace", "100ms")...)...)
	stray := s.word("stray")
	s.awaitStdout("ready")
	s.lose(masters)
	require.Equal(t, exitLost, s.end())
	require.Contains(t, s.err.String(), "cannot be ended: "+stray+" (sleep)\n")
	require.Equal(t, []string{stray}, left())
}

// The kernel kills the command alone, and forgets that when the command changes its user.
func TestTheGroupOfTheCommandDiesWithRedlock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	for name, as := range map[string]string{"its child": "", "another user": nobody} {
		t.Run(name, func(t *testing.T) {
			if as != "" {
				root(t)
			}
			mark, left := tracked(t)
			s := begin(t, []string{mastersEnv(masters), mark}, "run", atOnce, "--ttl", "1s", "k", "--", "sh", "-c",
				"exec "+as+`sh -c 'sleep 120 >/dev/null 2>&1 & echo ready; exec sleep 120 >/dev/null 2>&1'`)
			s.awaitStdout("ready")
			require.Len(t, left(), 3)
			require.Equal(t, -1, s.endBy(os.Kill))
			require.Eventually(t, func() bool { return len(left()) == 0 }, patient, 10*time.Millisecond)
		})
	}
}

// While what has left the group goes on, the number of the group can become that of another.
func TestASignalReachesNoLaterGroup(t *testing.T) {
	t.Parallel()
	root(t)
	const last = "/proc/sys/kernel/ns_last_pid"
	if _, err := exec.LookPath("unshare"); err != nil || exec.Command("unshare", "-pf", "--mount-proc", "sh", "-c", "echo 99 >"+last).Run() != nil {
		t.Skip("it needs a namespace of pids, and to choose one")
	}
	masters := redlocktest.Start(t, 3)
	dir := t.TempDir()
	// The guard ends when redlock has seen that the group is empty. The first signals have been passed on when none is pending
	// and no thread of redlock runs, for a second.
	script := `cd ` + dir + `; "$@" & run=$!
		until [ -s group ] && [ -s stray ]; do sleep 0.01; done; group=$(cat group); echo ready
		while kill -0 $run && kill -0 -- -$group; do sleep 0.01; done
		while kill -0 $run && grep -qs "[r]ead -r over" /proc/[0-9]*/cmdline; do sleep 0.01; done
		until [ "$later" = $group ]; do echo $((group-1)) >` + last + `; setsid sleep 120 & later=$!; done
		grep "^State" /proc/$run/status
		for i in 1 2 3 4 5 6 7 8 9 10; do kill -USR1 $run; sleep 0.1; done; kill -TERM $run
		while grep -q "^ShdPnd.*[1-9a-f]" /proc/$run/status || grep -q "^State.*R" /proc/$run/task/*/status; do sleep 0.01; done
		kill -KILL $(cat stray); wait $run; echo "status $?"; kill -0 $later && echo spared`
	s := beginBy(t, []string{mastersEnv(masters)}, "unshare", append([]string{"-pf", "--mount-proc", "--kill-child", "sh", "-c", script, "sh", binary},
		sh(`(trap "" TERM; exec setsid sh -c 'echo $$ >stray; exec sleep 120') & echo $$ >group; exec sleep 120`, "--ttl", "3s", "--grace", "20s")...)...)
	s.awaitStdout("ready")
	s.lose(masters)
	s.end()
	require.Regexp(t, `State:\s+[^Z\s]`, s.out.String(), "the guard goes on until redlock has ended")
	require.Contains(t, s.out.String(), "status 98\n")
	require.Contains(t, s.out.String(), "spared\n")
}

// The pid of a process that has ended can be that of another one.
func TestASignalReachesTheProcessThatWasMeantAndNoOther(t *testing.T) {
	cmd := exec.Command("sleep", "120")
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	meant, ok := relativeOf(cmd.Process.Pid)
	require.True(t, ok)
	former := meant
	former.born += "0"
	require.NoError(t, former.send(syscall.SIGKILL))
	require.NoError(t, meant.send(syscall.SIGTERM))
	require.Error(t, cmd.Wait())
	require.Equal(t, syscall.SIGTERM, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	require.NoError(t, meant.send(syscall.SIGTERM), "it has ended")
}

func TestTheCommandDiesWithAKilledRedlock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{mastersEnv(masters)}, sh(`echo "pid $$"; trap '' TERM HUP; while :; do sleep 0.01; done`, "--ttl", "3s")...).awaitStdout("pid ")
	s.endBy(os.Kill)
	_, pid, _ := strings.Cut(s.out.String(), "pid ")
	requireGone(t, lines(pid)[0])
	requireFree(t, masters) // by its TTL
}
