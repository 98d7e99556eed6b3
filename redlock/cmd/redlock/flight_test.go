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

	// The shell kills the redlock that runs it.
	status, _, _ = do(t, mastersEnv, sh("kill -9 $PPID; sleep 60", "--flight", name)...)
	require.NotZero(t, status)
	outcomes, r = recordIn(t, name)
	require.Equal(t, []string{"lock ok"}, outcomes)
	require.Nil(t, r.About.Ended)
	outcomes, _ = recordIn(t, name+".old")
	require.Len(t, outcomes, 2)

	status, _, stderr = do(t, mastersEnv, sh("true", "--flight", dir)...)
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "--flight")
}
