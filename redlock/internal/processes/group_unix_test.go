//go:build unix

package processes

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

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
	require.ErrorIs(t, Stop(p), os.ErrProcessDone)
}
