//go:build unix

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// It can never have the lock while the command around it waits for it.
func TestARunWithinARunOnTheSameKeySaysWhoHoldsIt(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	for name, flags := range map[string]struct{ outer, inner []string }{
		"a lock":       {nil, []string{"k"}},
		"a key of two": {[]string{"--also", "l"}, []string{"l"}},
		"also":         {nil, []string{"--also", "k", "m"}},
		"a reader":     {[]string{"--shared"}, []string{"k"}},
	} {
		t.Run(name, func(t *testing.T) {
			inner := strings.Join(append([]string{binary, "run", atOnce}, flags.inner...), " ") + " -- echo ran"
			outer := begin(t, env, sh(strings.Replace(inner, "run ", "run --wait 1h ", 1), append([]string{"--ttl", "1s"}, flags.outer...)...)...).awaitStderr("waiting: ")
			outer.awaitStderr("by the redlock that runs us: it is not free before that command has ended")
			outer.endBy(os.Kill)
			require.Eventually(t, func() bool { // see requireRefused
				status, stdout, stderr := do(t, env, guarded(strings.Replace(inner, "run ", "run -n ", 1),
					append([]string{atOnce, "--wait", "1m"}, flags.outer...)...)...)
				return status == exitHeld && stdout == "" && strings.Contains(stderr, "by the redlock that runs us")
			}, patient, 5*time.Millisecond)
		})
	}
	status, stdout, stderr := do(t, env, sh(binary+" run "+atOnce+" --shared k -- echo ran", "--shared")...)
	require.Zero(t, status, "readers do not exclude each other")
	require.Equal(t, "ran\n", stdout)
	require.Empty(t, stderr)
}

func TestAReaderAmongOthersIsKnownAsTheParent(t *testing.T) {
	t.Setenv(tokenVariable, "ours")
	readers := []census.Holder{{Token: redlock.NewSecret("another's")}, {Token: redlock.NewSecret("ours")}}
	of := func(holders []census.Holder) answer {
		return answer{row: census.Row{Holders: holders, Readers: len(holders)}}
	}
	require.True(t, newLockStatus("k", []answer{of(readers)}).byParent())
	require.False(t, newLockStatus("k", []answer{of(readers[:1])}).byParent())
	require.False(t, newLockStatus("k", []answer{of(readers), of(readers[:1]), of(readers[:1])}).byParent(), "it is a rest of it")
	t.Setenv(tokenVariable, "")
	require.False(t, newLockStatus("k", []answer{{}}).byParent())
}

// Who may take a lock may read its key, and no more is asked of him.
func TestRunTellsTheHolderWithoutScripts(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	aged(t, masters)
	for i := range masters.N() {
		for _, command := range [][]string{
			{"SET", "k", "night-shift/ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "PX", "3600000"},
			append([]string{"ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all"}, "-eval"),
		} {
			ask(t, masters, i, command...)
		}
	}
	env := []string{mastersEnv(masters), "REDLOCK_USERNAME=narrow", "REDLOCK_PASSWORD=pw"}
	requireRefused(t, env, "by night-shift, ", "k")

	for i := range 2 { // whose answers would be needed
		ask(t, masters, i, "ACL", "SETUSER", "narrow", "-get")
	}
	requireRefused(t, env, "nobody knows by whom: 1 of 3 masters answered; 2 are needed", "k")
}
