//go:build linux

package redlocktest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// needSync skips the test if the server does not look at what fsync returns.
func needSync(t *testing.T) {
	t.Helper()
	m := Start(t, 1)
	reply, err := m.Do(0, "INFO", "server")
	require.NoError(t, err)
	_, version, _ := strings.Cut(reply.(string), "redis_version:") // Valkey has one, too
	if len(version) > 1 && version[1] == '.' && version[0] < '7' {
		t.Skip("the server is too old to look at what fsync returns")
	}
}

func setKey(m *Masters, i int) error {
	_, err := m.Do(i, "SET", "k", "v")
	return err
}

func TestDiskThatFails(t *testing.T) {
	t.Parallel()
	needSync(t)
	m := Start(t, 2, WithDisks(), WithClocks(), WithArgs("--appendonly", "yes", "--appendfsync", "everysec"))
	require.NoError(t, setKey(m, 0))
	m.FailSync(0, true)
	eventually(t, func() bool {
		err := setKey(m, 0)
		return err != nil && strings.Contains(err.Error(), "MISCONF") && strings.Contains(err.Error(), "Input/output error")
	}, "it refuses writes")
	require.NoError(t, setKey(m, 1))
	m.Restart(0)
	eventually(t, func() bool { return setKey(m, 0) != nil }, "its disk still fails")
	reply, err := m.Do(0, "GET", "k")
	require.NoError(t, err)
	require.Equal(t, "v", reply, "the kernel has what it wrote")

	m.FailSync(0, false)
	for _, value := range []string{"no", "yes"} {
		_, err := m.Do(0, "CONFIG", "SET", "appendonly", value)
		require.NoError(t, err)
	}
	eventually(t, func() bool { return setKey(m, 0) == nil }, "its disk is well")
}

func TestDiskThatFailsEndsWhoPersistsEveryWrite(t *testing.T) {
	t.Parallel()
	needSync(t)
	m := Start(t, 1, WithDisks(), WithArgs("--appendonly", "yes", "--appendfsync", "always"))
	require.NoError(t, setKey(m, 0))
	m.FailSync(0, true)
	require.Error(t, setKey(m, 0))
	eventually(t, func() bool { return m.PID(0) == 0 }, "it ends")
	m.FailSync(0, false)
	m.Restart(0)
	require.NoError(t, setKey(m, 0))
}

func TestDisksOfTheirOwnMustBeAskedFor(t *testing.T) {
	t.Parallel()
	mustBeAskedFor(t, func(m *Masters) { m.FailSync(0, true) }, "disk", "WithDisks")
	_, err := RunEmbedded(1, WithDisks())
	require.ErrorContains(t, err, "nor disks")
	require.ErrorContains(t, groupable(options{disks: true}), "leave out WithDisks")
}
