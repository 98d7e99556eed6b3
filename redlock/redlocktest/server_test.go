//go:build unix

package redlocktest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
)

func TestServerIsTheOneThatTheEnvironmentNames(t *testing.T) {
	needRedis(t)
	real, err := lookup()
	require.NoError(t, err)
	script := filepath.Join(t.TempDir(), "any-name")
	require.NoError(t, processes.WriteProgram(script, fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$@\" --maxclients 77\n", real)))
	t.Setenv("REDLOCKTEST_SERVER", script)

	m := Start(t, 1)
	limit, err := m.Do(0, "CONFIG", "GET", "maxclients")
	require.NoError(t, err)
	require.Equal(t, []any{"maxclients", "77"}, limit)
	info, err := m.Do(0, "INFO", "server")
	require.NoError(t, err)
	require.Contains(t, strings.Split(info.(string), "\r\n"), fmt.Sprint("process_id:", m.PID(0)),
		"the process is the server's, not the script's")
}

func TestServerThatTheEnvironmentNamesMustBeThere(t *testing.T) {
	t.Setenv("REDLOCKTEST_SERVER", filepath.Join(t.TempDir(), "missing"))
	require.ErrorContains(t, Available(), "REDLOCKTEST_SERVER")
	require.ErrorContains(t, Available(), "missing")
}
