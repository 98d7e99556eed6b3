//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func recordIn(t *testing.T, name string) (outcomes []string, r *record.Record) {
	t.Helper()
	r, err := readRecord(name)
	require.NoError(t, err)
	return roundsOf(r), r
}

func roundsOf(r *record.Record) (outcomes []string) {
	for e := range r.Events() {
		if e.Kind == record.KindRound {
			outcomes = append(outcomes, e.Op+" "+e.Outcome)
		}
	}
	return outcomes
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

	// The redlock is killed when its record, which a goroutine of its own writes, has the lock.
	s := begin(t, mastersEnv, sh("sleep 60", "--flight", name)...)
	require.Eventually(t, func() bool {
		r, err := readRecord(name)
		return err == nil && r.About.PID == s.Process.Pid && len(roundsOf(r)) > 0
	}, patient, 5*time.Millisecond)
	require.NotZero(t, s.endBy(os.Kill))
	outcomes, r = recordIn(t, name)
	require.Equal(t, []string{"lock ok"}, outcomes)
	require.Nil(t, r.About.Ended)
	outcomes, _ = recordIn(t, name+".old")
	require.Len(t, outcomes, 2)
}
