package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// patient is how long a test waits for what must come.
const patient = 45 * time.Second

// atOnce is for masters that were just started, where a run would wait for its TTL.
const atOnce = "--restart-guard=0"

// An invocation is one run of the command.
type invocation struct {
	*exec.Cmd
	t      *testing.T
	in     io.WriteCloser
	out    *output
	err    *output
	exited chan struct{}
}

// An output is what a command has written until now.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

// environment is ours, without what the command looks at, and with more. Its lines are those of a terminal.
func environment(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "REDLOCK_") || strings.HasPrefix(v, "NO_COLOR=") || strings.HasPrefix(v, "COLUMNS=")
	})
	return append(append(env, "COLUMNS=80"), more...)
}

func mastersEnv(m *redlocktest.Masters) string {
	return "REDLOCK_MASTERS=" + strings.Join(m.Addrs(), ",")
}

// started returns masters that were just started, and the variable that names them to the command.
func started(t *testing.T, n int) (*redlocktest.Masters, []string) {
	t.Helper()
	masters := redlocktest.Start(t, n)
	return masters, []string{mastersEnv(masters)}
}

// ask returns what a master says to a command, and requires that it is no error.
func ask(t testing.TB, masters *redlocktest.Masters, i int, command ...string) any {
	t.Helper()
	v, err := masters.Do(i, command...)
	require.NoError(t, err, "%q", command)
	return v
}

// onAll has all masters carry out a command.
func onAll(t *testing.T, masters *redlocktest.Masters, command ...string) {
	t.Helper()
	for i := range masters.N() {
		ask(t, masters, i, command...)
	}
}

// begin starts the command.
func begin(t *testing.T, env []string, args ...string) *invocation {
	t.Helper()
	return beginBy(t, env, binary, args...)
}

// beginBy starts a program that becomes the command.
func beginBy(t *testing.T, env []string, program string, args ...string) *invocation {
	t.Helper()
	out, err := new(output), new(output)
	s := beginProgram(t, env, out, err, program, args...)
	s.out, s.err = out, err
	return s
}

// beginTo starts the command, which writes to others than us.
func beginTo(t *testing.T, env []string, stdout, stderr io.Writer, args ...string) *invocation {
	t.Helper()
	return beginProgram(t, env, stdout, stderr, binary, args...)
}

func beginProgram(t *testing.T, env []string, stdout, stderr io.Writer, program string, args ...string) *invocation {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	s := &invocation{Cmd: exec.CommandContext(ctx, program, args...), t: t, out: new(output), err: new(output), exited: make(chan struct{})}
	s.Env, s.Stdout, s.Stderr, s.WaitDelay = environment(env...), stdout, stderr, patient
	var err error
	s.in, err = s.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start())
	go func() {
		s.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		cancel()
		s.in.Close() // or what a failed test leaves behind keeps the output open
		<-s.exited
	})
	return s
}

// end waits for the command's end and returns its exit status.
func (s *invocation) end() int {
	s.t.Helper()
	<-s.exited
	s.t.Logf("%v: %v\n%s%s", s.Args[1:], s.ProcessState, s.out, s.err)
	return s.ProcessState.ExitCode()
}

// endBy is end, after a signal.
func (s *invocation) endBy(signal os.Signal) int {
	s.t.Helper()
	require.NoError(s.t, s.Process.Signal(signal))
	return s.end()
}

// awaitStdout waits until the command has written text to stdout.
func (s *invocation) awaitStdout(text string) *invocation {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.out.String(), text) }, patient, 5*time.Millisecond,
		"%q in what the command writes; stderr: %s", text, s.err)
	return s
}

// do runs the command to its end, without input.
func do(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	s := begin(t, env, args...)
	s.in.Close()
	status = s.end()
	return status, s.out.String(), s.err.String()
}

// requireRefused is for a run that others keep from running: it says what they hold, and who they
// are. A busy machine may not find that out in the second that a run takes for it.
func requireRefused(t *testing.T, env []string, says string, args ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, stdout, stderr := do(t, env, append(append([]string{"run", atOnce, "-n"}, args...), "--", "echo", "ran")...)
		return status == exitHeld && stdout == "" && regexp.MustCompile(says).MatchString(stderr)
	}, patient, 5*time.Millisecond)
}

// requireReadable fails if a line is too long for a terminal, or coloured where
// no terminal is.
func requireReadable(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
	}
	require.NotContains(t, text, "\x1b")
}

// lines are the lines of a text.
func lines(text string) (all []string) {
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		all = append(all, s.Text())
	}
	return all
}

// awaitStderr waits until the command has written text to stderr.
func (s *invocation) awaitStderr(text string) *invocation {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.err.String(), text) }, patient, 5*time.Millisecond,
		"%q in what the command says: %s", text, s.err)
	return s
}
