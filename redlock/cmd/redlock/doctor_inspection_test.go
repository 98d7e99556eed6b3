package main

import (
	"testing"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Passwords that only the user default has logged in with are no news to him, and to nobody else.
func TestUserIsThatWithWhichAMasterIsSpokenTo(t *testing.T) {
	t.Parallel()
	given := conn.Options{Username: "given"}
	for address, want := range map[string]string{
		"h:1":                              "given",
		"redis://h:1/0":                    "given",
		"redis://ann:pw@h:1":               "ann",
		"redis://ann:p/w@h:1":              "ann",
		"redis://:pw@h:1":                  "default",
		"unix://ann:pw@/run/a@b":           "ann",
		"unix:///run/a@b":                  "given",
		"unix:///run/x@/y":                 "given",
		"sentinel://ann:p/w@h:1,i:1/group": "ann",
	} {
		_, err := conn.ParseAddress(address)
		require.NoError(t, err, address)
		require.Equal(t, want, userOf(address, given), address)
	}
}

func TestDoctorLeavesALockInUseAlone(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	ask(t, masters, 0, "SET", "lock", "somebody", "PX", "3600000")
	exit, _ := diagnosed(t, []string{mastersEnv(masters)}, "--try", "lock")
	require.Zero(t, exit)
	require.Equal(t, "somebody", ask(t, masters, 0, "GET", "lock"))
	require.Greater(t, ask(t, masters, 0, "PTTL", "lock"), int64(3_000_000))
}

func TestDoctorExaminesMastersOverRESP2(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always", "--rename-command", "HELLO", ""))
	exit, d := diagnosed(t, []string{mastersEnv(masters)})
	require.Zero(t, exit)
	requireFinding(t, d, risky, "lacks CLIENT TRACKING", masters.Addr(0))
	require.False(t, d.Masters[0].Tracking)
}

func TestDoctorExaminesEmbeddedMasters(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	exit, d := diagnosed(t, []string{mastersEnv(masters)})
	require.Zero(t, exit)
	requireFinding(t, d, risky, "does not say whether it drops keys", masters.Addrs()...)
	for _, m := range d.Masters {
		require.Empty(t, m.Error)
		require.NotNil(t, m.ClockRate)
	}
}
