//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func recordIn(t *testing.T, name string) (outcomes []string, r *flight.Record) {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	r, err = flight.Read(f)
	require.NoError(t, err)
	for e := range r.Events() {
		if e.Kind == flight.KindRound {
			outcomes = append(outcomes, string(e.Op)+" "+e.Outcome)
		}
	}
	return outcomes, r
}

func TestRunIsRecorded(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	mastersEnv := []string{"REDLOCK_MASTERS=" + strings.Join(masters.Addrs(), ",")}
	dir := t.TempDir()
	name := filepath.Join(dir, "record")
	status, _, stderr := do(t, mastersEnv, sh("exit 3", "--flight", name)...)
	require.Equal(t, 3, status, stderr)
	outcomes, r := recordIn(t, name)
	require.Equal(t, []string{"lock ok", "unlock ok"}, outcomes)
	require.NotNil(t, r.About.Ended)
	require.Equal(t, "redlock-run", r.About.Clients[0].Name)

	// Whatever is wrong with a record, the command runs.
	zeros, mine := filepath.Join(dir, "zeros"), filepath.Join(dir, "mine")
	require.NoError(t, os.WriteFile(zeros, make([]byte, 1<<20), 0o600))
	require.NoError(t, os.WriteFile(mine, []byte("notes of mine"), 0o600))
	for name, complaint := range map[string]string{zeros: "", mine: "nothing is recorded", dir: "nothing is recorded", filepath.Join(dir, "no", "such"): "nothing is recorded"} {
		status, _, stderr = do(t, mastersEnv, sh("exit 7", "--flight", name)...)
		require.Equal(t, 7, status, "%s: %s", name, stderr)
		require.Contains(t, stderr, complaint)
	}
	outcomes, _ = recordIn(t, zeros)
	require.Equal(t, []string{"lock ok", "unlock ok"}, outcomes)
	text, err := os.ReadFile(mine)
	require.NoError(t, err)
	require.Equal(t, "notes of mine", string(text))

	// The shell kills the redlock that runs it.
	status, _, _ = do(t, mastersEnv, sh("kill -9 $PPID; sleep 60", "--flight", name)...)
	require.NotZero(t, status)
	outcomes, r = recordIn(t, name)
	require.Equal(t, []string{"lock ok"}, outcomes)
	require.Nil(t, r.About.Ended)
	outcomes, _ = recordIn(t, name+".old")
	require.Len(t, outcomes, 2)
}
