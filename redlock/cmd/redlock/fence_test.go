//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// locks takes a lock with a fence, gives it back, and returns the fence.
func locks(t *testing.T, masters *redlocktest.Masters, key string, opts ...redlock.Option) (uint64, error) {
	t.Helper()
	c, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
	require.NoError(t, err)
	defer c.Close()
	m := c.NewMutex(key, 10*time.Second, append(opts, redlock.WithFence())...)
	if err := m.TryLock(t.Context()); err != nil {
		return 0, err
	}
	fence := m.Fence()
	require.NoError(t, m.Unlock(t.Context()))
	return fence, nil
}

func TestFenceShowsCountersThatNobodyBelieves(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	status, stdout, stderr := do(t, env, "fence", "k")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "AHEAD OF THE CLOCK")

	hour := strconv.FormatInt(time.Now().Add(time.Hour).UnixMicro(), 10)
	masters.Do(0, "SET", "{k}:fence", hour)
	status, stdout, stderr = do(t, env, "fence", "k")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, hour)
	require.Regexp(t, `(1h0m0s|59m\d\ds)\n`, stdout)
	status, _, _ = do(t, env, "fence", "--skew", "30m", "k")
	require.Equal(t, exitNo, status)

	masters.Do(1, "SET", "{k}:fence", "9007199254740900")
	status, stdout, stderr = do(t, env, "fence", "other", "k")
	require.Equal(t, exitNo, status)
	require.Regexp(t, `9007199254740900 +\d{7}h`, stdout)
	require.Contains(t, stderr, "a counter is more than 24h0m0s ahead of this clock")
	requireReadable(t, stdout)
	for _, junk := range [][]string{{"SET", "{k}:fence", "junk"}, {"SADD", "{k}:fence", "member"}} {
		masters.Do(2, "DEL", "{k}:fence")
		masters.Do(2, junk...)
		status, stdout, stderr = do(t, env, "fence", "other", "k")
		require.Equal(t, exitNo, status)
		require.Contains(t, stdout, "it is no number that can grow")
		require.Contains(t, stderr, "a counter is no number that can grow")
		requireReadable(t, stdout)
		_, stdout, _ = do(t, env, "status", "k")
		require.Contains(t, stdout, "no number")
		requireReadable(t, stdout)
	}

	masters.Kill(0)
	status, stdout, _ = do(t, env, "fence", "k")
	require.Equal(t, exitNo, status)
	require.Contains(t, stdout, "refused")
	masters.Kill(1)
	status, _, stderr = do(t, env, "fence", "k")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "1 of 3 masters answered")
}

func TestFenceIsJSON(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	masters.Do(0, "SET", "{k}:fence", strconv.FormatInt(time.Now().Add(-time.Hour).UnixMicro(), 10))
	masters.Do(1, "SET", "{k}:fence", "what")
	masters.Kill(2)
	status, stdout, stderr := do(t, env, "fence", "--json", "k")
	require.Equal(t, exitNo, status, stderr)
	var out struct {
		Key              string
		Answered, Quorum int
		Masters          []struct {
			Master, Counter, Error string
			AheadMS                *int64 `json:"ahead_ms"`
			Believed               bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &out), stdout)
	require.Equal(t, []any{"k", 2, 2, 3}, []any{out.Key, out.Answered, out.Quorum, len(out.Masters)})
	a, b, c := out.Masters[0], out.Masters[1], out.Masters[2]
	require.Equal(t, masters.Addrs()[0], a.Master)
	require.True(t, a.Believed)
	require.InDelta(t, -time.Hour.Milliseconds(), *a.AheadMS, float64(time.Minute.Milliseconds()))
	require.Equal(t, "what", b.Counter)
	require.False(t, b.Believed)
	require.Nil(t, b.AheadMS)
	require.NotEmpty(t, c.Error)
	require.False(t, c.Believed)
	status, _, _ = do(t, env, "fence", "--json", "--reset-to", "now", "k")
	require.Equal(t, exitUsage, status)
}

func TestStatusShowsTheFenceThatAMajorityRemembers(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i, counter := range []string{"7", "9007199254740900", "5"} {
		masters.Do(i, "SET", "{k}:fence", counter)
	}
	_, stdout, _ := do(t, []string{mastersEnv(masters)}, "status", "--json", "k")
	require.Contains(t, stdout, "\n  \"fence\": 7,\n")
}

// A fence that nobody believes on a majority is set back, and locks are taken again.
func TestFenceIsReset(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	for i := range 3 {
		masters.Do(i, "SET", "{k}:fence", "9007199254740900")
		masters.Do(i, "SET", "{l}:fence", "junk")
	}
	_, err := locks(t, masters, "k", redlock.WithKeys("l"))
	require.ErrorContains(t, err, "'redlock fence'")
	require.Eventually(t, func() bool { // on a busy machine one may not be asked in time: then a quorum is set back
		status, stdout, stderr := do(t, env, "fence", "k", "l", "--reset-to", "now")
		require.Zero(t, status, stderr)
		require.Contains(t, stdout, "If the resource has stored a greater fence, set that to ")
		return regexp.MustCompile(`(?s)k: the counter is \d{16} on 3 of 3 masters.*l: the counter is \d{16} on 3 of 3 masters`).MatchString(stdout)
	}, patient, 5*time.Millisecond)
	for i := range 3 {
		require.Greater(t, ask(t, masters, i, "PTTL", "{k}:fence"), (23 * time.Hour).Milliseconds())
	}
	fence, err := locks(t, masters, "k", redlock.WithKeys("l"))
	require.NoError(t, err)
	require.LessOrEqual(t, fence, uint64(time.Now().UnixMicro()))

	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	status, _, stderr := do(t, env, "fence", "k", "--reset-to", fmt.Sprint(ahead))
	require.Zero(t, status, stderr)
	fence, err = locks(t, masters, "k")
	require.NoError(t, err)
	require.Equal(t, ahead+1, fence)
}

func TestFenceIsNotResetUnderAHolder(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	s, _ := holds(t, env, "--owner", "night-shift", "k")
	was := ask(t, masters, 0, "GET", "{k}:fence")
	status, stdout, stderr := do(t, env, "fence", "k", "--reset-to", "now")
	require.Equal(t, exitHeld, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "'redlock status' says who holds it")
	require.Equal(t, was, ask(t, masters, 0, "GET", "{k}:fence"))
	s.Process.Kill()
	s.end()
}

// A counter is set only while all keys are ours there.
func TestNoCounterIsSetBesideAnothersKey(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	reset := func() (v any) {
		v = ask(t, masters, 0, "EVAL", resetScript, "4", "k", "l", "{k}:fence", "{l}:fence", "ours", "7", "1000")
		return v
	}
	for _, key := range []string{"k", "l"} {
		for _, owner := range []string{"another's", ""} {
			masters.Do(0, "MSET", "k", "ours", "l", "ours")
			if masters.Do(0, "SET", key, owner); owner == "" {
				masters.Do(0, "DEL", key)
			}
			require.EqualValues(t, 0, reset(), "%s is %q", key, owner)
			require.EqualValues(t, 0, ask(t, masters, 0, "EXISTS", "{k}:fence", "{l}:fence"))
		}
	}
	masters.Do(0, "MSET", "k", "ours", "l", "ours")
	require.EqualValues(t, 1, reset())
}

// Whoever interrupts it, as a master does not answer, can run it again at once.
func TestFenceIsInterrupted(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	masters.Pause(2)
	s := begin(t, env, "fence", "k", "--reset-to", "now")
	require.Eventually(t, func() bool {
		v, err := masters.Do(0, "GET", "k")
		return err == nil && v != nil
	}, patient, 5*time.Millisecond)
	require.Equal(t, 128+2, s.endBy(syscall.SIGINT))
	for i := range 2 {
		require.Nil(t, ask(t, masters, i, "GET", "k"))
	}
	masters.Resume(2)
	status, _, stderr := do(t, env, "fence", "k", "--reset-to", "now")
	require.Zero(t, status, stderr)
}

// A master that hangs has the command wait for longer than its lock is valid: others may have moved the counters by then.
func TestFenceIsResetWhileTheLockIsValid(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	masters.Pause(2)
	for ttl, status := range map[time.Duration]int{time.Hour: 0, 300 * time.Millisecond: exitNoQuorum} {
		f := fenceCommand{to: "now", now: time.Now(), skew: time.Hour, ttl: ttl}
		cmd := &cobra.Command{}
		f.given.register(cmd)
		require.NoError(t, cmd.ParseFlags([]string{"-m", strings.Join(masters.Addrs(), ","), "--dial-timeout", "1s"}))
		set, err := f.given.masterSet()
		require.NoError(t, err)
		f.masterSet = set
		err = f.reset(t.Context(), []string{"k"})
		if status == 0 {
			require.NoError(t, err)
			continue
		}
		var said *failure
		require.ErrorAs(t, err, &said)
		require.Equal(t, status, said.status)
	}
}

func TestFenceIsResetOnAMajority(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	masters.Kill(0)
	status, stdout, stderr := do(t, env, "fence", "k", "--reset-to", "now")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "on 2 of 3 masters")
	require.Contains(t, stderr, masters.Addr(0)+" keeps its counter: ")
	masters.Do(1, "SADD", "{k}:fence", "member") // which is overwritten
	status, stdout, stderr = do(t, env, "fence", "k", "--reset-to", "now")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "on 2 of 3 masters")
	masters.Kill(1)
	status, _, _ = do(t, env, "fence", "k", "--reset-to", "now")
	require.Equal(t, exitNoQuorum, status)

	for _, bad := range []string{"0", "soon", "-1", "9007199254740900"} {
		status, _, stderr = do(t, env, "fence", "k", "--reset-to="+bad)
		require.Equal(t, exitUsage, status, bad)
		require.Contains(t, stderr, "--reset-to", bad)
	}
	for _, greatest := range []string{"9007199254740991", "9007199254740993"} { // which cannot grow, however far clocks differ
		status, _, stderr = do(t, env, "fence", "k", "--skew=2200000h", "--reset-to="+greatest)
		require.Equal(t, exitUsage, status, greatest)
		require.Contains(t, stderr, "--reset-to", greatest)
	}
	masters.Restart(1)
	masters.Do(1, "SET", "{k}:fence", "junk")
	status, _, _ = do(t, env, "fence", "--skew=2200000h", "k")
	require.Equal(t, exitNo, status)
	status, _, _ = do(t, env, "fence")
	require.Equal(t, exitUsage, status)
	status, _, _ = do(t, env, "fence", "--skew", "-1s", "k")
	require.Equal(t, exitUsage, status)
}
