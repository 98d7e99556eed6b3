//go:build unix

package redlocktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
)

// A child of another process is as one of whose end another wait has heard: there is nothing to wait for.
func TestStopMayComeTooLate(t *testing.T) {
	text, err := exec.Command("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!").Output()
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	p, err := os.FindProcess(pid)
	require.NoError(t, err)
	defer p.Kill()
	require.ErrorIs(t, processes.Stop(p), os.ErrProcessDone)
}

// A child that is forked while a program is written would have it open, and nobody could execute it.
func TestNothingIsForkedWhileAProgramIsWritten(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o700))
	written := make(chan error, 1)
	go func() { written <- processes.WriteProgram(pipe, []byte("#!/bin/sh\n")) }() // it has opened it when somebody reads
	require.Eventually(t, func() bool {
		free := syscall.ForkLock.TryLock()
		if free {
			syscall.ForkLock.Unlock()
		}
		return !free
	}, 10*time.Second, time.Millisecond)
	text, err := os.ReadFile(pipe)
	require.NoError(t, err)
	require.NoError(t, <-written)
	require.Equal(t, "#!/bin/sh\n", string(text))
}
