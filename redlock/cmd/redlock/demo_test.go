package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// marked returns an environment by which the command and all that it starts are
// found again, and a func that requires that nothing of them is left.
func marked(t *testing.T) (env []string, requireNothingLeft func()) {
	t.Helper()
	dir := t.TempDir()
	mark := "TMPDIR=" + dir // unique, and where the masters' files would be
	return []string{mark}, func() {
		t.Helper()
		require.Eventually(t, func() bool { return len(processesWith(mark)) == 0 }, patient, 20*time.Millisecond, "processes are left")
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// processesWith finds processes by a variable of their environment, where the
// system tells.
func processesWith(variable string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range all {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), variable) {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

func requireWholeDemo(t *testing.T, stdout string) {
	t.Helper()
	requireReadable(t, stdout)
	for _, part := range []string{"1. ", "taken", "token     alice/", "validity  ", "2. ", "held by alice", "3. ", "4. ", "extended", "released",
		"Everything was as told."} {
		require.Contains(t, stdout, part)
	}
}

func TestDemoOnRealMasters(t *testing.T) {
	redlocktest.Start(t, 0) // they have to be there
	env, requireNothingLeft := marked(t)
	status, stdout, stderr := do(t, env, "demo")
	require.Zero(t, status)
	require.Empty(t, stderr)
	requireWholeDemo(t, stdout)
	require.Contains(t, stdout, "5 Redis masters, started for it")
	require.Contains(t, stdout, "3 of 5 decided in")
	require.Contains(t, stdout, "one is frozen (SIGSTOP)")
	require.Contains(t, stdout, "killed")
	require.Equal(t, 5, strings.Count(stdout, "is gone"))
	requireNothingLeft()
}

// Other users of the machine do not command the demo's masters meanwhile, nor see the password.
func TestMastersOfTheDemoDemandAPassword(t *testing.T) {
	redlocktest.Start(t, 0) // they have to be there
	d := &demo{terminal: &terminal{Writer: io.Discard}}
	_, err := d.start()
	require.NoError(t, err)
	defer d.close()
	for i, address := range d.ours.Addrs() {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "CONFIG GET dir\r\n")
		require.NoError(t, err)
		answer := make([]byte, len("-NOAUTH"))
		_, err = io.ReadFull(c, answer)
		require.NoError(t, err)
		require.Equal(t, "-NOAUTH", string(answer))
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.ours.PID(i))); err == nil {
			require.NotContains(t, string(line), d.password)
		}
	}
}

// embedding builds the command with embedded masters, once.
var embedding = sync.OnceValues(func() (path string, err error) {
	path = strings.TrimSuffix(binary, ".exe") + "-embedding.exe"
	out, err := build(tags+",redburst_embedded", path).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

func TestTheCommandThatIsInstalledHoldsNoRedis(t *testing.T) {
	t.Parallel()
	path, err := embedding()
	require.NoError(t, err)
	for file, holds := range map[string]bool{binary: false, path: true} {
		info, err := buildinfo.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, holds, slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return strings.Contains(m.Path, "miniredis") }))
	}
}

func TestDemoOnEmbeddedMasters(t *testing.T) {
	t.Parallel()
	path, err := embedding()
	require.NoError(t, err)
	env, requireNothingLeft := marked(t)
	s := beginBy(t, append(env, "REDLOCKTEST_SERVER=", "PATH="+t.TempDir()), path, "demo")
	require.Zero(t, s.end())
	require.Empty(t, s.err.String())
	stdout := s.out.String()
	requireWholeDemo(t, stdout)
	require.Contains(t, stdout, "embedded, as redis-server is not installed")
	require.NotContains(t, stdout, "SIGSTOP")
	require.Equal(t, 5, strings.Count(stdout, "is gone"))
	requireNothingLeft()
}

func TestDemoWithoutAServerSaysWhatToDo(t *testing.T) {
	t.Parallel()
	env, requireNothingLeft := marked(t)
	status, stdout, stderr := do(t, append(env, "REDLOCKTEST_SERVER=", "PATH="+t.TempDir()), "demo")
	require.Equal(t, exitNo, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "the masters do not start: no redis-server on the PATH: install it")
	require.Contains(t, stderr, "'redlock demo --help' says how to see it without a redis-server")
	_, help, _ := do(t, nil, "demo", "--help")
	require.Contains(t, help, "redburst_embedded")
	requireNothingLeft()
}

func TestDemoOnMastersThatCannotBeStartedIsEmbedded(t *testing.T) {
	t.Parallel()
	path, err := embedding()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, processes.WriteProgram(filepath.Join(dir, "redis-server"), []byte("#!/bin/sh\necho broken; exit 1\n")))
	env, requireNothingLeft := marked(t)
	env = append(env, "REDLOCKTEST_SERVER=", "PATH="+dir+":"+os.Getenv("PATH"))
	s := beginBy(t, env, path, "demo")
	require.Zero(t, s.end())
	requireWholeDemo(t, s.out.String())
	require.Contains(t, s.out.String(), "embedded, as redis-server does not start")
	require.Contains(t, s.err.String(), "does not start")
	status, _, stderr := do(t, env, "demo")
	require.Equal(t, exitNo, status)
	require.Contains(t, stderr, "redis-server ended at once; it says: broken\n")
	requireNothingLeft()
}

func TestDemoLeavesMastersOfTheUserAlone(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var pids []int
	for i := range masters.N() {
		ask(t, masters, i, "SET", "mine", "stays")
		pids = append(pids, masters.PID(i))
	}
	status, stdout, stderr := do(t, nil, "demo", "--masters", strings.Join(masters.Addrs(), ","))
	require.Zero(t, status)
	require.Empty(t, stderr)
	requireWholeDemo(t, stdout)
	require.Contains(t, stdout, "3 masters of yours")
	require.Contains(t, stdout, "Skipped")
	for i := range masters.N() {
		require.Equal(t, pids[i], masters.PID(i))
		require.ElementsMatch(t, []any{"mine", "{}:since"}, ask(t, masters, i, "KEYS", "*"))
	}
}

func TestDemoWorksWithAMinorityOfTheUsersMastersDown(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	masters.Kill(1)
	status, stdout, _ := do(t, nil, "demo", "--masters", strings.Join(masters.Addrs(), ","))
	require.Zero(t, status)
	requireWholeDemo(t, stdout)
	require.Equal(t, 2, strings.Count(stdout, "is gone"))
	require.Contains(t, stdout, "refused")
}

func TestDemoFailsIfItIsNotAsTold(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	masters.Kill(0)
	masters.Kill(1)
	status, stdout, stderr := do(t, nil, "demo", "--masters", strings.Join(masters.Addrs(), ","))
	require.Equal(t, exitNo, status)
	require.NotContains(t, stdout, "as told")
	require.Contains(t, stderr, "too few masters")
	require.Contains(t, stderr, "doctor")
}
