package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// What keeps the set of readers alive is the reader whose term ends last.
func TestStatusListsNoReaderWhoseTermHasEnded(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	env := []string{mastersEnv(masters)}
	dead := take(t, masters, "dead", "k", 2*time.Second, redlock.WithShared())
	take(t, masters, "alive", "k", time.Hour, redlock.WithShared())
	require.Eventually(t, func() bool {
		_, s := statusOfKey(t, env, "k")
		return len(s.Readers) == 1 && s.Readers[0].Owner == "alive"
	}, patient, 5*time.Millisecond)
	score, err := masters.Do(0, "ZSCORE", "k", dead.Token())
	require.NoError(t, err)
	require.NotNil(t, score, "it is still there")
}

// A set that others have made is no lock, but no plain lock is set beside it.
func TestStatusTakesNoOtherSetForReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	_, err := masters.Do(0, "ZADD", "k", "17", "alice", "4", "bob")
	require.NoError(t, err)
	exit, stdout, _ := do(t, []string{mastersEnv(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held by a key that is no lock, on 1 of 1 master, without expiry")
}

func TestStatusSaysWhyItCannotListReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	take(t, masters, "a", "k", time.Hour, redlock.WithShared())
	for _, command := range []string{"time", "zrange"} {
		_, err := masters.Do(0, "ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-"+command)
		require.NoError(t, err)
		exit, stdout, _ := do(t, []string{mastersEnv(masters), "REDLOCK_USERNAME=narrow", "REDLOCK_PASSWORD=pw"}, "status", "k")
		require.Equal(t, exitNoQuorum, exit)
		require.Contains(t, stdout, strings.ToUpper(command)+": NOPERM")
	}
}

func TestAMasterNamesAThousandReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	const far = 1 << 42 // milliseconds since 1970: long after this
	set := []string{"ZADD", "k"}
	for i := range maxReaders + 1 {
		set = append(set, fmt.Sprint(far+int64(i)), fmt.Sprint("reader-", i))
	}
	_, err := masters.Do(0, set...)
	require.NoError(t, err)
	exit, stdout, _ := do(t, []string{mastersEnv(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held by at least 1000 readers, ")
}

func TestAFrozenMasterHoldsStatusUpForTheDialTimeoutOnly(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	masters.Pause(1)
	exit, stdout, _ := do(t, []string{mastersEnv(masters)}, "status", "--dial-timeout", "2s", "k")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "timeout")
}

func TestStatusSeesKeysThatAreNoLocks(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i := range 3 {
		_, err := masters.Do(i, "LPUSH", "k", "x")
		require.NoError(t, err)
	}
	exit, stdout, _ := do(t, []string{mastersEnv(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held by a key that is no lock, on 3 of 3 masters, without expiry")
	exit, _, stderr := do(t, []string{mastersEnv(masters)}, "run", atOnce, "-n", "k", "--", binary, "--version")
	require.Equal(t, exitHeld, exit)
	require.Contains(t, stderr, "by a key that is no lock, without expiry")
}
