//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const soonTold = "--ttl=3s" // renewed after a second, and so told of a revocation

func TestRevokeHasTheHolderStop(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	s := begin(t, env, "hold", atOnce, soonTold, "--owner", "night-shift", "k")
	s.assigned("REDLOCK_TOKEN")
	status, stdout, stderr := do(t, env, "revoke", "k", "--reason", "deploy of version 2", "--wait", "1m")
	require.Zero(t, status, stderr)
	require.Regexp(t, `^k of night-shift is revoked; it let go after \S+\n$`, stdout)
	require.Equal(t, exitLost, s.end())
	require.Contains(t, s.err.String(), "the lock was revoked: ")
	require.Contains(t, s.err.String(), `revoked: "deploy of version 2"`)
	require.NotContains(t, s.err.String(), "another may", "nobody had it before it was let go of")
	requireFree(t, masters)

	status, _, stderr = do(t, env, "revoke", "k", "--reason", "again")
	require.Equal(t, exitNo, status)
	require.Contains(t, stderr, `"k" is free`)
}

// Nobody would ever take away what a revocation leaves in the place of a key that does not expire.
func TestAKeyThatNeverEndsIsNotRevoked(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	onAll(t, masters, "SET", "a key", "theirs")
	status, _, stderr := do(t, []string{mastersEnv(masters)}, "revoke", "a key", "--reason", "why")
	require.Equal(t, exitHeld, status)
	require.Contains(t, stderr, "does not expire")
	require.Contains(t, stderr, "redlock release --force 'a key'")
	for i := range 3 {
		require.Equal(t, "theirs", ask(t, masters, i, "GET", "a key"))
	}
}

// A lock may be on a bare majority. Then its vote is needed that is connected last.
func TestALockIsTakenAwayThoughAMasterIsConnectedLate(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"revoke": {"--reason", "why", "--wait", "0"}, "release": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3, redlocktest.WithLinks())
			env := []string{mastersEnv(masters)}
			s, token := holds(t, env, "k")
			requireHeld(t, masters)
			require.NoError(t, s.Process.Signal(syscall.SIGSTOP)) // or it repairs its lock
			ask(t, masters, 1, "DEL", "k")
			masters.Delay(2, 100*time.Millisecond)
			status, _, stderr := do(t, env, append([]string{name, "k", "--token", token, "--dial-timeout", "1m"}, args...)...)
			require.Zero(t, status, stderr)
		})
	}
}

func TestRevokeSaysWhoHasNotLetGo(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	s, token := holds(t, env, "--owner", "night-shift", "k")
	requireHeld(t, masters)
	require.NoError(t, s.Process.Signal(syscall.SIGSTOP)) // or it lets go at once
	status, _, stderr := do(t, env, "revoke", "--token", token+"x", "k", "--reason", "why")
	require.Equal(t, exitHeld, status)
	require.Contains(t, stderr, `"k" is held under another token`)
	status, stdout, stderr := do(t, env, "revoke", "k", "--reason", "why", "--wait", "10ms")
	require.Zero(t, status, stderr)
	require.Regexp(t, `^k of night-shift is revoked; it has not let go; the key ends in \S+\n$`, stdout)
	exit, st := statusOfKey(t, env, "k")
	require.Zero(t, exit)
	require.Equal(t, "night-shift", st.Owner)
	require.Equal(t, token, st.Token)
	_, stdout, _ = do(t, env, "status", "k")
	require.Contains(t, stdout, "It was revoked, and is free when its holder lets go, or when the key ends: why")
	require.Contains(t, stdout, "night-shift, revoked")
	requireReadable(t, stdout)

	status, stdout, stderr = do(t, env, "revoke", "k", "--reason", "another", "--wait", "0", "--json", "--token", token)
	require.Zero(t, status, "whoever revokes it again changes nothing: %s", stderr)
	var out struct {
		Key    string   `json:"key"`
		Owners []string `json:"owners"`
		LetGo  *bool    `json:"let_go"`
		LeftMS int64    `json:"left_ms"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &out))
	require.Equal(t, []string{"night-shift"}, out.Owners)
	require.False(t, *out.LetGo)
	require.Positive(t, out.LeftMS)

	status, _, stderr = do(t, env, "release", "--token", token, "k")
	require.Zero(t, status, "a revoked lock can be released by its token: %s", stderr)
	requireFree(t, masters)
	require.Equal(t, exitLost, s.endBy(syscall.SIGCONT), "it is told, and does not wait for its renewal in 20 minutes")
}

func TestRevokeOfReadersAndPermits(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	for _, flags := range [][]string{{"--shared"}, {"--permits", "3"}} {
		one := begin(t, env, append([]string{"hold", atOnce, soonTold, "--owner", "one", "k"}, flags...)...)
		one.assigned("REDLOCK_TOKEN")
		two := begin(t, env, append([]string{"hold", atOnce, soonTold, "--owner", "two", "k"}, flags...)...)
		two.assigned("REDLOCK_TOKEN")
		args := []string{"revoke", "k", "--reason", "why", "--wait", "1m"}
		if len(flags) > 1 {
			args = append(args, flags...)
		}
		status, stdout, stderr := do(t, env, args...)
		require.Zero(t, status, stderr)
		require.Regexp(t, `^k of 2 holders is revoked; they let go after \S+\n$`, stdout)
		require.Equal(t, exitLost, one.end())
		require.Equal(t, exitLost, two.end())
	}
}

// Who names the key alone, or permits of a key that has a lock, is told what it has.
func TestRevokeNamesTheFlagThatIsMissing(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	holds(t, env, "--owner", "night-shift", "a lock")
	_, token := holds(t, env, "--permits", "3", "permits")
	revoked := func(args ...string) (status int, stderr string) {
		status, _, stderr = do(t, env, append([]string{"revoke", "--reason", "why", "--wait", "0"}, args...)...)
		return status, stderr
	}
	status, stderr := revoked("permits")
	require.Equal(t, exitNo, status)
	require.Contains(t, stderr, `"permits" is free as a lock; held of its 3 permits: 1`)
	require.Contains(t, stderr, "--permits 3 takes all of them away")
	status, stderr = revoked("permits", "--permits", "2")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "there are 3 permits")
	status, stderr = revoked("a lock", "--permits", "3")
	require.Equal(t, exitNo, status)
	require.Contains(t, stderr, "night-shift has it as a lock: to revoke that, leave out --permits")
	status, stderr = revoked("nobody's", "--permits", "3")
	require.Equal(t, exitNo, status)
	require.NotContains(t, stderr, "leave out")

	status, stderr = revoked("permits", "--permits", "3", "--token", token)
	require.Zero(t, status, stderr)
	do(t, env, "release", "permits", "--permits", "3", "--token", token)
	status, stderr = revoked("permits")
	require.Equal(t, exitNo, status)
	require.NotContains(t, stderr, "permits:", "none is held")
}

// mayBeHeld has a lock that one master has lost, and another is silent: so nobody knows whether a majority has it.
// It is at one of these keys.
func mayBeHeld(t *testing.T, masters *redlocktest.Masters, key string, at []string, opts ...redlock.Option) (token string) {
	t.Helper()
	c, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
	require.NoError(t, err)
	defer c.Close()
	awaitAllUp(t, c) // one that comes later is not asked
	m := c.NewMutex(key, time.Hour, opts...)
	require.NoError(t, m.Lock(t.Context()))
	has := func(i int) (key string) {
		for _, key := range at {
			if v, err := masters.Do(i, "GET", key); err == nil && v == m.Token() {
				return key
			}
		}
		return ""
	}
	require.Eventually(t, func() bool { return has(0) != "" && has(1) != "" }, patient, time.Millisecond)
	ask(t, masters, 0, "DEL", has(0))
	masters.Pause(2)
	return m.Token()
}

// A holder that a majority may name, with those who are silent, is neither gone nor free.
func TestNobodyIsSaidToHaveLetGoWhoMayHoldIt(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	mayBeHeld(t, masters, "lock:k", []string{"lock:k"})
	status, stdout, stderr := do(t, env, "revoke", "--match", "lock:*", "--yes", "--reason", "why")
	require.Equal(t, exitNoQuorum, status, stderr)
	require.Contains(t, stderr, `too few masters say whether "lock:k" is held`)
	require.NotContains(t, stderr, "no lock that matches")
	require.Empty(t, stdout)
	_, all := listOf(t, env)
	require.Len(t, all, 1)
	require.Equal(t, unknown, all[0].State)
	require.Equal(t, unknown, all[0].Holders[0].State)
	_, stdout, _ = do(t, env, "ls", "lock:k")
	require.Contains(t, stdout, "lock:k: plain, unknown: 1 of 3 masters name ")

	tokens := []conn.Secret{conn.NewSecret("a"), conn.NewSecret("b")}
	for _, c := range []struct {
		on, silent, masters int
		remain              int
		unknown             bool
	}{{1, 0, 3, 0, false}, {1, 1, 3, 0, true}, {2, 1, 3, 1, false}, {1, 1, 5, 0, false}, {2, 1, 5, 0, true}} {
		r := revocation{holders: []census.Holder{{Token: tokens[0]}, {Token: tokens[1]}}, remain: 2, unknown: true}
		lock := redlock.LockInfo{Masters: c.masters, Silent: make([]string, c.silent)}
		lock.Holders = []redlock.Holder{{Token: tokens[1], Masters: make([]string, c.on), Held: c.on > c.masters/2}}
		r.count(lock)
		require.Equal(t, c.remain, r.remain, "%+v", c)
		require.Equal(t, c.unknown, r.unknown, "%+v", c)
	}
}

func TestNoPermitIsSaidToBeFreeThatMayBeHeld(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	token := mayBeHeld(t, masters, "gpu", []string{"{gpu}:permit:1/4", "{gpu}:permit:2/4", "{gpu}:permit:3/4", "{gpu}:permit:4/4"}, redlock.WithPermits(4))
	for _, args := range [][]string{nil, {"--token", token}, {"--token", "another"}} {
		status, _, stderr := do(t, env, append([]string{"revoke", "gpu", "--permits", "4", "--reason", "why"}, args...)...)
		require.Equal(t, exitNoQuorum, status, stderr)
		require.NotContains(t, stderr, "no permit")
	}
}

func TestARevokedRunLeavesNothingThere(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"success": nil, "failure": {"--hold-on-error"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters, env := started(t, 3)
			s := begin(t, env, sh(fmt.Sprintf(`trap 'exit %d' TERM; echo ready; while :; do sleep 0.01; done`, len(flags)),
				append(flags, soonTold, "--min-hold", "1h")...)...).awaitStdout("ready")
			status, stdout, stderr := do(t, env, "revoke", "k", "--reason", "why", "--wait", "1m")
			require.Zero(t, status, stderr)
			require.Contains(t, stdout, "it let go after")
			require.Equal(t, exitLost, s.end())
			requireFree(t, masters)
		})
	}
}

// A holder that does not heed its revocation keeps the lock, whoever revokes it again.
func TestARevokedLockIsRevokedAgain(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	s, _ := holds(t, env, "lock:k")
	require.NoError(t, s.Process.Signal(syscall.SIGSTOP))
	for range 2 {
		status, stdout, stderr := do(t, env, "revoke", "--match", "lock:*", "--yes", "--reason", "why", "--wait", "0")
		require.Zero(t, status, stderr)
		require.Contains(t, stdout, "it has not let go; the key ends in")
	}
	require.Equal(t, exitLost, s.endBy(syscall.SIGCONT))
}

// Nobody works under a lock that is left there, and so nobody is to be stopped.
func TestWhatIsLeftThereIsNotRevoked(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	status, _, stderr := do(t, env, "run", atOnce, "--min-hold", "1h", "k", "--", "true")
	require.Zero(t, status, stderr)
	for _, args := range [][]string{{"k"}, {"--match", "*", "--yes"}} {
		status, stdout, stderr := do(t, env, append([]string{"revoke", "--reason", "why"}, args...)...)
		require.Equal(t, exitNo, status, stderr)
		require.NotContains(t, stdout, "revoked")
	}
	for i := range 3 {
		require.Contains(t, ask(t, masters, i, "GET", "k"), "left:")
	}
	// On one master of three it is nobody's.
	for i := range 2 {
		ask(t, masters, i, "DEL", "k")
	}
	_, stdout, _ := do(t, env, "status", "k")
	require.Contains(t, stdout, "k is free")
	_, stdout, _ = do(t, env, "ls", "k")
	require.Contains(t, stdout, "k: plain, free: 1 of 3 masters name left by ")
}

// Its tombstones keep others out until it lets go, but no longer than its keys would have.
func TestRunSaysWhetherAnotherCouldHaveARevokedLock(t *testing.T) {
	t.Parallel()
	const nobody, another = "nobody else had it before that", "another may have held it"
	for name, test := range map[string]struct {
		ttl, ends, says, hides string
		harm                   func(masters *redlocktest.Masters)
	}{
		"it ends at once":               {"30s", "exit 3", nobody + ": ", another, nil},
		"it ends when its key is there": {"30s", "sleep 1; exit 3", nobody + ": ", another, nil},
		"it ends later than its key":    {"1s", "sleep 2; exit 3", another, nobody, nil},
		"a master is down":              {"30s", "exit 3", nobody + ": ", another, func(masters *redlocktest.Masters) { masters.Kill(0) }},
		"a master was restarted":        {"30s", "exit 3", nobody + ": ", another, func(masters *redlocktest.Masters) { masters.Restart(0) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters, env := started(t, 3)
			s := begin(t, env, sh(`trap '`+test.ends+`' TERM; echo holding; while :; do sleep 0.01; done`, "--ttl", test.ttl, "--grace", "1m")...).awaitStdout("holding")
			requireHeld(t, masters)
			if test.harm != nil {
				test.harm(masters)
			}
			status, _, stderr := do(t, env, "revoke", "k", "--reason", "deploy", "--wait", "0")
			require.Zero(t, status, stderr)
			require.Equal(t, exitLost, s.end())
			require.Contains(t, s.err.String(), "the lock is revoked: ending the command\n")
			require.Contains(t, s.err.String(), "the lock was revoked before the command ended, with status 3: ")
			require.Contains(t, s.err.String(), `revoked: "deploy"`)
			require.Contains(t, s.err.String(), test.says)
			require.NotContains(t, s.err.String(), test.hides)
		})
	}
}
