package redlock_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// nativeRelease is the command by which the server that is tested releases a lock; without one
// the test is skipped. make servers runs these tests on servers that have one.
func nativeRelease(t testing.TB) string {
	t.Helper()
	one := redlocktest.Start(t, 1)
	for _, command := range []string{"DELEX", "DELIFEQ"} {
		if _, err := one.Do(0, command); err != nil && strings.Contains(err.Error(), "wrong number of arguments") {
			return command
		}
	}
	t.Skip("this server has neither DELEX (Redis 8.4) nor DELIFEQ (Valkey 9.0)")
	return ""
}

// calls is how often a master was asked for a command since it was started.
func calls(t testing.TB, masters *redlocktest.Masters, i int, command string) int {
	t.Helper()
	return conntest.Calls(redlock.Says(t, masters, i, "INFO", "commandstats"), command)
}

// lockAndBack takes a lock, extends and releases it.
func lockAndBack(t *testing.T, c *redlock.Client) {
	t.Helper()
	m := c.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Extend(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
}

func TestNativeCommandsAreUsedWhereTheyAre(t *testing.T) {
	native := nativeRelease(t)
	for name, c := range map[string]struct {
		args            []string
		native, scripts int // calls
	}{
		"on":           {nil, 1, 0},
		"switched off": {[]string{"--rename-command", native, ""}, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			masters := redlocktest.Start(t, 3, redlocktest.WithArgs(c.args...))
			client := openOn(t, masters, nil)
			var texts [3]int
			for n := 1; n <= 2; n++ {
				lockAndBack(t, client)
				for i := range 3 {
					happens(t, func() bool { return calls(t, masters, i, native) == n*c.native }, "master %d has released it", i)
					happens(t, func() bool { return calls(t, masters, i, "EVALSHA") == n*c.scripts }, "master %d was sent scripts", i)
					happens(t, func() bool {
						witness, err := masters.Do(i, "GET", "{}:since")
						return err == nil && strings.Contains(fmt.Sprint(witness), "used")
					}, "master %d has its witness", i)
					if n > 1 {
						require.Equal(t, texts[i], calls(t, masters, i, "EVAL"), "the witness alone is written by a script's text")
					}
					texts[i] = calls(t, masters, i, "EVAL")
				}
			}
		})
	}
}

// Several keys are taken by MSETEX where it is, and by the script where it is not or may not be used.
func TestSeveralKeysAreTakenByTheNativeCommand(t *testing.T) {
	one := redlocktest.Start(t, 1)
	if _, err := one.Do(0, "MSETEX"); err == nil || !strings.Contains(err.Error(), "wrong number of arguments") {
		t.Skip("this server has no MSETEX (Redis 8.4, Valkey 9.1)")
	}
	for name, c := range map[string]struct {
		args            []string
		forbidden       bool
		native, scripts int // calls to take a lock 20 times; extends and releases are scripts, too
		// A master that refuses the command is sent the script's text, if the lock is still being
		// taken then.
	}{
		"on":           {native: 20, scripts: 40},
		"switched off": {args: []string{"--rename-command", "MSETEX", ""}, scripts: 60},
		"forbidden":    {forbidden: true, scripts: 41},
	} {
		t.Run(name, func(t *testing.T) {
			masters := redlocktest.Start(t, 3, redlocktest.WithArgs(c.args...))
			client := openOn(t, masters, nil)
			for i := range 3 {
				if c.forbidden {
					redlock.Says(t, masters, i, "ACL", "SETUSER", "default", "-msetex")
				}
			}
			m := client.NewMutex("a", 30*time.Second, redlock.WithKeys("b"))
			plain := client.NewMutex("b", 30*time.Second)
			for range 20 {
				require.NoError(t, m.TryLock(t.Context()))
				require.ErrorIs(t, plain.TryLock(t.Context()), redlock.ErrHeld)
				require.NoError(t, m.Extend(t.Context()))
				require.NoError(t, m.Unlock(t.Context()))
			}
			for i := range 3 {
				happens(t, func() bool { return calls(t, masters, i, "EVALSHA") >= c.scripts }, "master %d was sent scripts", i)
				happens(t, func() bool { return calls(t, masters, i, "MSETEX") == c.native }, "master %d was sent MSETEX", i)
				if !c.forbidden {
					require.Equal(t, c.scripts, calls(t, masters, i, "EVALSHA"))
				}
			}
		})
	}
}

// Each master of a mixed fleet is spoken to in its own words, within one round.
func TestServersCanBeMixed(t *testing.T) {
	native := nativeRelease(t)
	mine := redlocktest.Start(t, 2)
	other, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("there is no other server")
	}
	t.Setenv("REDLOCKTEST_SERVER", other)
	theirs := redlocktest.Start(t, 1)
	c, err := redlock.Open(t.Context(), redlock.Config{Masters: append(mine.Addrs(), theirs.Addrs()...), RoundTimeout: busy, DialTimeout: busy})
	require.NoError(t, err)
	defer c.Close()
	happens(t, func() bool {
		up := 0
		for _, m := range c.Stats().Masters {
			if m.Phase == "up" {
				up++
			}
		}
		return up == 3
	}, "all are up")
	for range 10 {
		lockAndBack(t, c)
	}
	happens(t, func() bool { return calls(t, theirs, 0, "EVALSHA") == 20 || calls(t, theirs, 0, native) == 10 }, "the other server has taken part")
	for i := range 2 {
		happens(t, func() bool { return calls(t, mine, i, native) == 10 }, "master %d has taken part", i)
		require.Zero(t, calls(t, mine, i, "EVALSHA"))
	}
}

func TestNativeCommandsMeanWhatTheScriptsMean(t *testing.T) {
	native := nativeRelease(t)
	masters, c := started(t, 3)
	do := func(t *testing.T, i int, args ...string) {
		t.Helper()
		redlock.Says(t, masters, i, args...)
	}
	taken := func(t *testing.T) *redlock.Mutex {
		t.Helper()
		m := c.NewMutex(t.Name(), 30*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		for i := range 3 { // the last may come later
			redlock.SoonSays(t, masters, i, int64(1), "EXISTS", t.Name())
		}
		return m
	}
	holds := func(t *testing.T, i int, want any) {
		t.Helper()
		redlock.SoonSays(t, masters, i, want, "TYPE", t.Name())
	}
	t.Run("a key that was lost is set again", func(t *testing.T) {
		m := taken(t)
		do(t, 1, "DEL", t.Name())
		happens(t, func() bool { // where an extension was told in time that it is gone
			v, err := masters.Do(1, "TYPE", t.Name())
			return m.Extend(t.Context()) == nil && err == nil && v == "string"
		}, "master 1 has it again")
		require.NoError(t, m.Unlock(t.Context()))
	})
	t.Run("a TTL that was changed is set right", func(t *testing.T) {
		m := taken(t)
		for i := range 3 {
			do(t, i, "PEXPIRE", t.Name(), "20000")
		}
		require.NoError(t, m.Extend(t.Context()))
		for i := range 3 {
			happens(t, func() bool { v, err := masters.Do(i, "PTTL", t.Name()); return err == nil && v.(int64) > 20000 }, "master %d", i)
		}
		require.NoError(t, m.Unlock(t.Context()))
	})
	t.Run("a key that is lost on a majority is a lock lost", func(t *testing.T) {
		m := taken(t)
		do(t, 0, "DEL", t.Name())
		do(t, 1, "DEL", t.Name())
		require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNotHeld)
		require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	})
	t.Run("another's key is left alone", func(t *testing.T) {
		m := taken(t)
		do(t, 2, "SET", t.Name(), "another's")
		require.NoError(t, m.Extend(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		holds(t, 0, "none")
		require.Equal(t, "another's", redlock.Says(t, masters, 2, "GET", t.Name()))
	})
	t.Run("a key of another type is another's", func(t *testing.T) {
		m := taken(t)
		for i := range 2 {
			do(t, i, "DEL", t.Name())
			do(t, i, "HSET", t.Name(), "f", "v")
		}
		require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNotHeld)
		require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
		holds(t, 0, "hash")
	})
	t.Run("a lock that was handed over", func(t *testing.T) {
		m := taken(t)
		h := c.NewMutex(t.Name(), 30*time.Second, redlock.WithToken(m.Token()))
		do(t, 1, "DEL", t.Name())
		require.NoError(t, h.Extend(t.Context()))
		holds(t, 1, "none") // nobody here knows whether the lock was valid
		require.NoError(t, h.Unlock(t.Context()))
	})
	t.Run("a master without memory keeps the locks that it has", func(t *testing.T) {
		m := taken(t)
		for i := range 3 {
			do(t, i, "CONFIG", "SET", "maxmemory", "1")
		}
		require.NoError(t, m.Extend(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		for i := range 3 {
			do(t, i, "CONFIG", "SET", "maxmemory", "0")
		}
		holds(t, 0, "none")
	})
	t.Run("a user who may not call it has the script", func(t *testing.T) {
		m := taken(t)
		for i := range 3 {
			do(t, i, "ACL", "SETUSER", "default", "-"+strings.ToLower(native))
		}
		for range 2 {
			require.NoError(t, m.Extend(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, m.TryLock(t.Context()))
		}
		require.NoError(t, m.Unlock(t.Context()))
	})
}
