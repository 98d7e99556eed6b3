package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A pseudoTerminal is one with somebody at it, and a program that it serves.
type pseudoTerminal struct {
	*invocation
	keyboard *os.File // also the screen
}

// startOnTerminal starts a program on a terminal of its own.
func startOnTerminal(t *testing.T, env []string, argv ...string) *pseudoTerminal {
	t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	raw, err := ptmx.SyscallConn()
	require.NoError(t, err)
	var n, unlock int32
	require.NoError(t, raw.Control(func(fd uintptr) {
		require.NoError(t, ioctl(int(fd), syscall.TIOCSPTLCK, &unlock))
		require.NoError(t, ioctl(int(fd), syscall.TIOCGPTN, &n))
		size := [4]uint16{24, 200}
		require.NoError(t, ioctl(int(fd), syscall.TIOCSWINSZ, (*int32)(unsafe.Pointer(&size))))
	}))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	defer tty.Close()

	ctx, cancel := context.WithTimeout(context.Background(), patient)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = environment(append([]string{"PS1=ready> ", "HISTFILE=", "TERM=xterm"}, env...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	d := &pseudoTerminal{&invocation{Cmd: cmd, t: t, out: new(output), err: new(output), exited: make(chan struct{})}, ptmx}
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		io.Copy(d.out, ptmx) // until the last program has let go of the terminal
	}()
	go func() {
		cmd.Wait()
		close(d.exited)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("on the screen:\n%s", d.out)
		}
		cancel()
		<-d.exited
		ptmx.Close()
		<-shown
	})
	return d
}

func (d *pseudoTerminal) types(text string) {
	d.t.Helper()
	_, err := d.keyboard.WriteString(text)
	require.NoError(d.t, err)
}

const (
	ctrlC = "\x03"
	ctrlD = "\x04"
	ctrlZ = "\x1a"
)

func TestCtrlCEndsTheCommandAndTheScript(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for name, command := range map[string]string{
		"that does not read": `trap "" USR1; echo begun; exec sleep 3600`,
		"that reads":         `read x; echo begun; exec cat`,
	} {
		t.Run(name, func(t *testing.T) {
			d := startOnTerminal(t, []string{mastersEnv(masters)}, "bash", "-c", binary+" run "+atOnce+" k -- sh -c '"+command+"'; echo went on")
			d.types("input\n")
			d.awaitStdout("begun")
			d.types(ctrlC)
			d.end()
			require.NotContains(t, d.out.String(), "went on", "a script ends with its command")
			requireFree(t, masters)
		})
	}
}

func TestCtrlCThatTheCommandHandlesIsItsOwnAffair(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	d := startOnTerminal(t, []string{mastersEnv(masters)}, "bash", "-c",
		binary+` run `+atOnce+` k -- sh -c 'trap "echo handled; exit 4" INT; read x; echo begun; while :; do sleep 0.01; done'; echo "went on with $?"`)
	d.types("input\n")
	d.awaitStdout("begun")
	d.types(ctrlC)
	d.awaitStdout("went on with 4")
}

func TestACommandInAPipelineLeavesTheTerminalToTheOthers(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	// cat reads the terminal while the command does not.
	d := startOnTerminal(t, []string{mastersEnv(masters)}, "bash", "-c", binary+" run "+atOnce+" k -- sh -c 'echo begun; exec sleep 3600' | (cat; cat </dev/tty)")
	d.awaitStdout("begun")
	d.types(ctrlC)
	d.end()
	requireFree(t, masters)
}

// A shell that is stopped while it starts a program can hang (vfork), so what is
// suspended here starts none.
const idle = `echo "be""gun as $$."; exec sleep 3600`

// isStopped reports whether a process is stopped.
func isStopped(t *testing.T, pid string) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	require.NoError(t, err)
	_, state, _ := strings.Cut(string(text), ") ")
	return state[0] == 'T'
}

func TestACommandIsSuspendedAndResumedWithTheLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1) // of several, one that comes late has no key before a renewal
	d := startOnTerminal(t, []string{mastersEnv(masters)}, "bash", "--norc", "--noprofile", "-i")
	for _, reads := range []string{"", "read x; "} { // by that the terminal is lent
		d.types(binary + ` run ` + atOnce + ` --ttl 1h k -- sh -c '` + reads + idle + "'\n")
		if reads != "" {
			d.types("input\n")
		}
		var pid string
		require.Eventually(t, func() (whole bool) {
			_, pid, _ = strings.Cut(d.out.String(), "begun as ")
			pid, _, whole = strings.Cut(pid, ".")
			return whole
		}, patient, 5*time.Millisecond)
		d.types(ctrlZ)
		d.awaitStdout("Stopped")
		require.True(t, isStopped(t, pid))
		require.NotNil(t, ask(t, masters, 0, "GET", "k"))
		d.types("fg; echo 'end'ed with $?\n")
		require.Eventually(t, func() bool { return !isStopped(t, pid) }, patient, 5*time.Millisecond)
		d.types(ctrlC)
		requireFree(t, masters)
		d.out.clear()
	}
}

func TestACommandThatIsResumedTooLateIsEnded(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	d := startOnTerminal(t, []string{mastersEnv(masters)}, "bash", "--norc", "--noprofile", "-i")
	d.types(binary + " run " + atOnce + " --ttl 3s k -- sh -c '" + idle + "'\n")
	d.awaitStdout("begun as ")
	d.types(ctrlZ)
	d.awaitStdout("Stopped")
	requireFree(t, masters) // it has expired
	d.types("fg; echo 'end'ed with $?\n")
	d.awaitStdout("ended with 98")
	require.Contains(t, d.out.String(), "the lock is lost")
}

func TestAnInteractiveShellCanBeTheCommand(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	d := startOnTerminal(t, []string{mastersEnv(masters)}, binary, "run", atOnce, "k", "--", "bash", "--norc", "--noprofile", "-i")
	d.awaitStdout("ready> ")
	d.types("echo 'in'side $REDLOCK_KEY\n")
	d.awaitStdout("inside k")
	d.types("sh -c 'echo be''gun; exec sleep 3600'\n")
	d.awaitStdout("begun")
	d.out.clear()
	d.types(ctrlC)
	d.awaitStdout("ready> ")
	d.types("exit 5\n")
	require.Equal(t, 5, d.end())
	requireFree(t, masters)
}

// A run that waits would look like one that hangs.
func TestARunOnATerminalSaysWhomItWaitsFor(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	holder := begin(t, env, sh("echo holding; cat", "--owner", "first")...).awaitStdout("holding")
	d := startOnTerminal(t, env, binary, "run", "--wait", "1h", "k", "--", "echo", "we ran")
	d.awaitStdout(`waiting: "k" is held by another`)
	d.awaitStdout("by first, ")
	holder.in.Close()
	require.Zero(t, holder.end())
	d.awaitStdout("we ran")
	d.end()
}

func TestColoursAreForTerminals(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	for _, test := range []struct {
		env      []string
		coloured bool
	}{{nil, true}, {[]string{"NO_COLOR=1"}, false}, {[]string{"TERM=dumb"}, false}} {
		d := startOnTerminal(t, append(test.env, mastersEnv(masters)), binary, "status", "k")
		d.end()
		d.awaitStdout("MASTER")
		require.Equal(t, test.coloured, strings.Contains(d.out.String(), "\x1b["))
	}
}

func TestAnEmptyListSaysSoOnATerminal(t *testing.T) {
	t.Parallel()
	env := []string{mastersEnv(redlocktest.Start(t, 1))}
	for args, says := range map[string]string{"ls": "no lock\r\n", "ls --waiting a*": "nobody waits for a lock that matches a*\r\n"} {
		d := startOnTerminal(t, env, append([]string{binary}, strings.Fields(args)...)...)
		require.Equal(t, exitNo, d.end())
		d.awaitStdout(says)
		require.Equal(t, says, d.out.String())
	}
}

func TestReleaseByForceAsksFirst(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	holder := begin(t, env, "hold", atOnce, "--ttl", "1h", "--owner", "night-shift", "k")
	holder.assigned("REDLOCK_TOKEN")
	requireHeld(t, masters)
	for _, answer := range []string{"no\n", "\n", ctrlD} {
		d := startOnTerminal(t, env, binary, "release", "--force", "k")
		d.awaitStdout("Take it away? Type yes: ")
		require.Contains(t, d.out.String(), "k is held by night-shift, ")
		d.types(answer)
		require.Equal(t, exitUsage, d.end())
		d.awaitStdout("nothing was changed")
		requireHeld(t, masters)
	}
	d := startOnTerminal(t, env, binary, "release", "--force", "k")
	d.awaitStdout("Type yes: ")
	d.types("yes\n")
	require.Zero(t, d.end())
	d.awaitStdout("k was taken from night-shift, ")
	requireFree(t, masters)
}

// With tostop, the terminal stops whoever writes to it and is not in its foreground.
func TestATerminalThatStopsWritersDoesNotStopTheRenewals(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	pid := t.TempDir() + "/pid"
	d := startOnTerminal(t, []string{mastersEnv(masters)}, "bash", "-c",
		"stty tostop; "+binary+" run -v "+atOnce+" --ttl 3s k -- sh -c 'read x; echo begun; echo $$ >"+pid+"; while :; do sleep 0.01; done'")
	d.types("input\n") // so the command gets the terminal
	d.awaitStdout("begun")
	was := requirePid(t, pid)
	masters.Kill(2)
	d.awaitStdout(masters.Addr(2) + " is down")
	masters.Pause(0)
	masters.Pause(1)
	requireGone(t, was)
}

// Who takes a lock while the question is on the screen keeps it.
func TestRevokeOfAllThatMatchAsksAndRevokesWhatItHasShown(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	revoke := []string{binary, "revoke", "--match", "*", "--reason", "why", "--wait", "1m"}
	hold := func(owner, key string) *invocation {
		s := begin(t, env, "hold", "--ttl=3s", "--owner", owner, key)
		s.assigned("REDLOCK_TOKEN")
		return s
	}
	first, stays := hold("first", "k"), hold("stays", "l")
	d := startOnTerminal(t, env, revoke...)
	d.awaitStdout("Revoke 2 locks? Type yes: ")
	require.Contains(t, d.out.String(), "first")
	require.Contains(t, d.out.String(), "stays")
	d.types("no\n")
	require.Equal(t, exitUsage, d.end())

	d = startOnTerminal(t, env, revoke...)
	d.awaitStdout("Revoke 2 locks? Type yes: ")
	first.endBy(syscall.SIGTERM)
	second := hold("second", "k")
	d.types("yes\n")
	d.awaitStdout("l of stays is revoked") // the terminal can be behind the program's end
	require.Zero(t, d.end())
	require.Contains(t, d.out.String(), `"k" is free, or another's by now`)
	require.Equal(t, exitLost, stays.end())
	_, st := statusOfKey(t, env, "k")
	require.Equal(t, "second", st.Owner)
	require.NotEqual(t, exitLost, second.endBy(syscall.SIGTERM))
}
