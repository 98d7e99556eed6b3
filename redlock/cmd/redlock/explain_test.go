//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestExplainTellsOfTwoHolders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 6)
	dir := t.TempDir()
	var names []string
	for i, list := range [][]string{masters.Addrs()[:3], masters.Addrs()[3:]} { // their lists differ
		names = append(names, filepath.Join(dir, string(rune('a'+i))))
		env := []string{"REDLOCK_MASTERS=" + list[0] + "," + list[1] + "," + list[2]}
		s := begin(t, env, "hold", "--restart-guard=0", "--owner", string(rune('a'+i)), "--flight", names[i], "k")
		s.assigned("REDLOCK_TOKEN")
	}
	status, stdout, stderr := do(t, nil, append([]string{"explain"}, names...)...)
	require.Equal(t, exitNo, status, stderr)
	require.Contains(t, stdout, `b took "k" while a still had it`)
	require.Contains(t, stdout, "two lists of masters")
	requireReadable(t, stdout)
	status, stdout, _ = do(t, nil, "explain", "--key", "k", names[0])
	require.Zero(t, status)
	require.Contains(t, stdout, "a takes the lock")
	for _, args := range [][]string{{"explain"}, {"explain", filepath.Join(dir, "none")}, {"explain", os.Args[0]}, {"explain", "http://127.0.0.1:1/"}} {
		status, _, stderr = do(t, nil, args...)
		require.Equal(t, exitUsage, status, args)
		require.NotEmpty(t, stderr)
	}
}
