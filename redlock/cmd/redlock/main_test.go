package main

import (
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	binary string // the command, built once
	tags   string // with which it is built: those of the tests
)

func TestMain(m *testing.M) {
	// The tests mostly wait, for processes and for time to pass, so more of them run at
	// once than there are cores. A -parallel on the command line comes later and wins.
	flag.Set("test.parallel", "8")
	// Whoever runs the tests may ignore hangups (nohup), or interrupts (a job in
	// the background of a script), and children inherit that; but not a signal
	// that is caught.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "redlock")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "redlock")
		if runtime.GOOS == "windows" {
			binary += ".exe"
		}
		if out, err := build(tags, binary).CombinedOutput(); err != nil {
			panic(string(out))
		}
		return m.Run()
	}())
}

// build compiles the command. Without what debuggers need, that takes half as much.
func build(tags, path string) *exec.Cmd {
	return exec.Command("go", "build", "-ldflags=-s -w", "-tags", tags, "-o", path, ".")
}

func TestHelpHasExamplesAndFitsIntoATerminal(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"", "demo", "run", "lead", "hold", "release", "revoke", "fence", "status", "doctor", "explain", "ui", "version", "man"} {
		status, stdout, _ := do(t, nil, append(strings.Fields(command), "--help")...)
		require.Zero(t, status)
		require.Contains(t, stdout, "Examples:")
		requireReadable(t, stdout)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	t.Parallel()
	status, stdout, _ := do(t, nil, "--version")
	require.Zero(t, status)
	require.Regexp(t, `^redlock \S+\n$`, stdout)
	status, more, _ := do(t, nil, "version")
	require.Zero(t, status)
	require.Regexp(t, "^"+regexp.QuoteMeta(strings.TrimSpace(stdout))+` \((commit [0-9a-f]{12}, )?`+regexp.QuoteMeta(runtime.Version())+`\)\n$`, more)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, stdout, _ = do(t, nil, "completion", shell)
		require.Zero(t, status)
		require.Contains(t, stdout, "redlock")
	}
}

// Everybody can read the arguments of a command (ps).
func TestNoExampleGivesASecretAsAnArgument(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`--token[ =]"?\$|(?i)password[ =]"?\$`)
	for _, cmd := range append(newRoot().Commands(), newRoot()) {
		require.NotRegexp(t, secret, cmd.Example, cmd.Name())
		require.NotRegexp(t, secret, cmd.Long, cmd.Name())
	}
	for _, name := range []string{"../../../README.md", "../../doc.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotRegexp(t, secret, string(text))
	}
}

func TestFailuresKnowTheirCause(t *testing.T) {
	err := usageError("", "%w", io.EOF)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, "exit status 3", exitWith(3).Error())
	require.NoError(t, exitWith(0))
	var f *failure
	require.True(t, errors.As(err, &f))
}
