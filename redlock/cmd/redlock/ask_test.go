package main

import (
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A set that others have made is no lock, but no plain lock is set beside it.
func TestStatusTakesNoOtherSetForReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	ask(t, masters, 0, "ZADD", "k", "17", "alice", "4", "bob")
	exit, stdout, _ := do(t, []string{mastersEnv(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held by a key that is no lock (sorted set), on 1 of 1 master, without\nexpiry")
}

// What somebody keeps under the lock's name, and beside it, can be longer than an answer may be.
func TestStatusOfAKeyWithALargeValue(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i := range 3 {
		for _, key := range []string{"k", kind.CounterKey("k"), kind.MarkKey("k"), kind.SlotKey("k", 1, 2)} {
			ask(t, masters, i, "SET", key, strings.Repeat("v", 100<<10))
		}
		ask(t, masters, i, "ZADD", string(kind.AppendQueueKey(nil, "k")), "1", strings.Repeat("v", 100<<10))
	}
	env := []string{mastersEnv(masters)}
	exit, stdout, _ := do(t, env, "status", "k")
	require.Zero(t, exit, stdout)
	require.Contains(t, stdout, "k is held by a key that is no lock (string of 102400 bytes), on 3 of 3 masters,")
	_, stdout, _ = do(t, env, "status", "--permits", "2", "k")
	require.Contains(t, stdout, "1 of 2 permits is free")
	exit, stdout, _ = do(t, env, "fence", "k")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "102400 bytes  it is no number that can grow")
	requireRefused(t, env, `a key that is no lock \(string of 102400 bytes\)`, "k")
	onAll(t, masters, "ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-eval")
	exit, stdout, _ = do(t, append(env, "REDLOCK_USERNAME=narrow", "REDLOCK_PASSWORD=pw"), "status", "k")
	require.Zero(t, exit, stdout)
	require.Contains(t, stdout, "k is held by a key that is no lock, on 3 of 3 masters,")
}

// One answer that is too long is an error in its place. The others are there.
func TestAnswerThatIsTooLong(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	ask(t, masters, 0, "SET", "k", strings.Repeat("v", 100<<10))
	p, err := dialProbe(t.Context(), masters.Addr(0), conn.Options{})
	require.NoError(t, err)
	defer p.close()
	get := []string{"GET", "k"}
	replies, err := p.do(t.Context(), get, clientList, get, get, []string{"PING"})
	require.NoError(t, err)
	require.Equal(t, "TOOLONG the answer is too long: bulk string of 102411 bytes", string(replies[0].Bytes()))
	require.Contains(t, string(replies[1].Bytes()), "id=")
	require.Equal(t, replies[0].Bytes(), replies[2].Bytes(), "the limits were raised for one answer")
	require.Equal(t, replies[0].Bytes(), replies[3].Bytes())
	require.True(t, replies[4].Is("PONG"))
}

func TestStatusSaysWhyItCannotListReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	take(t, masters, "a", "k", time.Hour, redlock.WithShared())
	for _, command := range []string{"time", "zrange"} {
		ask(t, masters, 0, "ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-"+command)
		exit, stdout, _ := do(t, []string{mastersEnv(masters), "REDLOCK_USERNAME=narrow", "REDLOCK_PASSWORD=pw"}, "status", "k")
		require.Equal(t, exitNoQuorum, exit)
		require.Contains(t, stdout, "the user lacks +"+command)
	}
}

func TestAFrozenMasterHoldsNobodyUpForMoreThanTheDialTimeout(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	masters.Pause(1)
	exit, stdout, _ := do(t, []string{mastersEnv(masters)}, "status", "--dial-timeout", "2s", "k")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "timeout")
	exit, d := diagnosed(t, []string{mastersEnv(masters)}, "--dial-timeout", "2s")
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "does not answer", masters.Addr(1))
}

// Each command that meets a key of another type calls it a key that is no lock, and leaves it alone.
func TestCommandsNameAKeyThatIsNoLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	onAll(t, masters, "HSET", "k", "f", "v")
	onAll(t, masters, "HSET", kind.SlotKey("k", 1, 1), "f", "v")
	onAll(t, masters, "HSET", kind.CounterKey("c"), "f", "v")
	onAll(t, masters, "ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-eval", "-evalsha")
	onAll(t, masters, "ACL", "SETUSER", "untyped", "on", ">pw", "~*", "+@all", "-type")
	env := []string{mastersEnv(masters)}
	user := func(name string) []string { return append(env, "REDLOCK_USERNAME="+name, "REDLOCK_PASSWORD=pw") }
	const hash = "a key that is no lock (hash)"
	for args, want := range map[string]struct {
		exit int
		says string
		env  []string
	}{
		"status k":                        {0, "k is held by " + hash + ", on 3 of 3 masters, without expiry", env},
		"status --permits 1 k":            {0, hash, env},
		"status k --json":                 {0, `"state": "held"`, env},
		"ls k":                            {0, "k: " + hash, env},
		"release --force k":               {exitUsage, `"k" is ` + hash, env},
		"revoke k --reason x":             {exitUsage, `"k" is ` + hash, env},
		"release --token t k":             {exitHeld, "by " + hash, env},
		"hold " + atOnce + " -n k":        {exitHeld, "by " + hash + ", without expiry", env},
		"fence c":                         {exitNo, "hash", env},
		"run " + atOnce + " -n k -- true": {exitHeld, "by " + hash + ", without expiry", env},
		"run " + atOnce + " -n k --shared -- true": {exitHeld, "by " + hash + ", without expiry", env},
		"run " + atOnce + " -n k --fence -- true":  {exitHeld, "by " + hash + ", without expiry", env},
		"run " + atOnce + " -n a --also k -- true": {exitHeld, "by " + hash + ", without expiry", env},
		"status k ": {0, "k is held by " + hash + ", on 3 of 3 masters, without expiry", user("narrow")},
		"status  k": {exitNoQuorum, "the user lacks +type", user("untyped")},
	} {
		require.Eventually(t, func() bool { // see requireRefused
			exit, stdout, stderr := do(t, want.env, strings.Fields(args)...)
			return exit == want.exit && strings.Contains(strings.Join(strings.Fields(stdout+stderr), " "), want.says)
		}, patient, 5*time.Millisecond, args)
	}
	watch := begin(t, env, "status", "--watch", "k").awaitStdout("k: held by " + hash)
	watch.end()
	for i := range 3 {
		require.Equal(t, "v", ask(t, masters, i, "HGET", "k", "f"))
	}
	onAll(t, masters, "DEL", "k") // and one on a minority is in nobody's way
	ask(t, masters, 0, "HSET", "k", "f", "v")
	exit, stdout, stderr := do(t, env, "run", atOnce, "--wait", "1m", "k", "--", "true")
	require.Zero(t, exit, "%s%s", stdout, stderr)
	masters.Pause(2)
	exit, stdout, _ = do(t, env, "status", "--dial-timeout", "1s", "k")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stdout, hash)
}
