//go:build linux

package redlocktest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ahead returns by how much the clock of master i is ahead of ours, which lies between these.
func ahead(t *testing.T, m *Masters, i int) (least, most time.Duration) {
	t.Helper()
	before := time.Now()
	reply, err := m.Do(i, "TIME")
	after := time.Now()
	require.NoError(t, err)
	var parts [2]int64
	for j, part := range reply.([]any) {
		parts[j], err = strconv.ParseInt(part.(string), 10, 64)
		require.NoError(t, err)
	}
	at := time.Unix(parts[0], parts[1]*1000)
	return at.Sub(after.Round(0)), at.Sub(before.Round(0)) + time.Microsecond
}

// requireAhead waits until the clock of master i is ahead by so much. A single answer may be wrong: Valkey
// adds to the clock that it has read what has passed by another, and may stand still between reading the two.
func requireAhead(t *testing.T, m *Masters, i int, by time.Duration) {
	t.Helper()
	eventually(t, func() bool {
		least, most := ahead(t, m, i)
		return least <= by && by <= most
	}, fmt.Sprint("it is ahead by ", by))
}

// steady returns by how much the clock of master i is ahead, when it goes on as ours does: several answers
// that lie apart, and not in what a server adds to one reading of its clock, agree on it.
func steady(t *testing.T, m *Masters, i int) (least, most time.Duration) {
	t.Helper()
	eventually(t, func() bool {
		least, most = ahead(t, m, i)
		for range 2 {
			time.Sleep(readPause)
			nextLeast, nextMost := ahead(t, m, i)
			least, most = max(least, nextLeast), min(most, nextMost)
		}
		return least <= most
	}, "it goes on as ours does")
	return least, most
}

func TestClockThatJumps(t *testing.T) {
	t.Parallel()
	m := Start(t, 2, WithClocks(), WithArgs("--appendonly", "yes"))
	set := func(key string, ttl time.Duration) {
		t.Helper()
		_, err := m.Do(0, "SET", key, "v", "PX", strconv.FormatInt(ttl.Milliseconds(), 10))
		require.NoError(t, err)
	}
	left := func(key string) time.Duration {
		t.Helper()
		reply, err := m.Do(0, "PTTL", key)
		require.NoError(t, err)
		return time.Duration(reply.(int64)) * time.Millisecond
	}
	requireAhead(t, m, 0, 0)
	set("short", time.Minute)
	set("long", 2*time.Hour)

	m.Jump(0, time.Hour)
	require.Equal(t, -2*time.Millisecond, left("short"), "its term is over, at once")
	requireAhead(t, m, 0, time.Hour)
	requireAhead(t, m, 1, 0)
	require.Greater(t, left("long"), 30*time.Minute)
	require.LessOrEqual(t, left("long"), time.Hour)

	m.Jump(0, -3*time.Hour)
	requireAhead(t, m, 0, -2*time.Hour)
	require.Greater(t, left("long"), 3*time.Hour, "it lives longer")

	m.Restart(0)
	requireAhead(t, m, 0, -2*time.Hour)
	require.Greater(t, left("long"), 3*time.Hour)
}

func TestClockThatDrifts(t *testing.T) {
	t.Parallel()
	m := Start(t, 2, WithClocks())
	for _, share := range []float64{0.05, -0.05, 1} {
		m.Drift(0, 0)
		least, most := steady(t, m, 0)
		before := time.Now()
		m.Drift(0, share)
		after := time.Now()
		// What it has gained grows with the time, and what time has passed is known well enough.
		gained := func(d time.Duration) time.Duration { return time.Duration(share * float64(d)) }
		eventually(t, func() bool {
			asked := time.Now()
			nowLeast, nowMost := ahead(t, m, 0)
			bounds := []time.Duration{gained(asked.Sub(after)), gained(time.Since(before))}
			slow, fast := min(bounds[0], bounds[1]), max(bounds[0], bounds[1])
			right := nowLeast <= most+fast+time.Millisecond && nowMost >= least+slow-time.Millisecond
			return right && (nowLeast > most+10*time.Millisecond || nowMost < least-10*time.Millisecond)
		}, fmt.Sprint("it has gained ", share))
	}
	m.Drift(0, 0)
	least, most := steady(t, m, 0)
	began := time.Now()
	eventually(t, func() bool {
		nowLeast, nowMost := steady(t, m, 0)
		return time.Since(began) > 50*time.Millisecond && nowLeast <= most && nowMost >= least
	}, "what it has gained remains, and no more")
	requireAhead(t, m, 1, 0)
}

// More changes than the file has room for.
func TestClockIsSetAgainAndAgain(t *testing.T) {
	t.Parallel()
	m := Start(t, 1, WithClocks())
	for range settings + 3 {
		m.Jump(0, time.Second)
	}
	requireAhead(t, m, 0, (settings+3)*time.Second)
}

// mustBeAskedFor demands that masters that were not asked to have it of their own panic: real ones, and embedded.
func mustBeAskedFor(t *testing.T, do func(m *Masters), what, option string) {
	t.Helper()
	needRedis(t)
	real, err := Run(1)
	require.NoError(t, err)
	defer real.Close()
	embedded, err := RunEmbedded(1)
	require.NoError(t, err)
	defer embedded.Close()
	for _, m := range []*Masters{real, embedded} {
		require.PanicsWithError(t, "redlocktest: set the "+what+" of "+m.name(0)+
			": it has no "+what+" of its own: start redis-servers with "+option, func() { do(m) })
	}
}

func TestClocksOfTheirOwnMustBeAskedFor(t *testing.T) {
	t.Parallel()
	mustBeAskedFor(t, func(m *Masters) { m.Jump(0, time.Second) }, "clock", "WithClocks")
	_, err := RunEmbedded(1, WithClocks())
	require.ErrorContains(t, err, "nor clocks of their own")
}

func TestImpossibleDriftIsRefused(t *testing.T) {
	t.Parallel()
	c := &clock{preload: preload{path: filepath.Join(t.TempDir(), "none")}}
	for _, share := range []float64{-1, -2, 1e9} {
		require.ErrorContains(t, c.drift(share), "above -1")
	}
	require.ErrorIs(t, c.drift(0.5), os.ErrNotExist)
}

func TestServerThatTakesNoClockIsRefused(t *testing.T) {
	needRedis(t)
	if err := Available(WithClocks()); err != nil {
		t.Skip(err)
	}
	real, err := lookup()
	require.NoError(t, err)
	script := filepath.Join(t.TempDir(), "static") // as if it were: the shell has loaded it, too
	require.NoError(t, os.WriteFile(script, fmt.Appendf(nil, `#!/bin/sh
unset LD_PRELOAD
printf '\0' | dd of="$REDLOCKTEST_CLOCK" bs=1 seek=%d conv=notrunc
exec %s "$@"
`, loadedAt, real), 0o755))
	t.Setenv("REDLOCKTEST_SERVER", script)
	_, err = Run(1, WithClocks())
	require.ErrorContains(t, err, "does not load the library for a clock of its own")
}

func TestMissingCompilerIsNamed(t *testing.T) {
	needRedis(t)
	t.Setenv("CC", "no-such-compiler")
	require.ErrorContains(t, Available(WithClocks()), "no C compiler")
	for _, opt := range []Option{WithClocks(), WithDisks()} {
		_, err := Run(1, opt)
		require.ErrorContains(t, err, "no C compiler")
		t.Setenv("CI", "")
		require.Contains(t, told(func(tb *fakeTB) { Start(tb, 1, opt) }).skip, "no C compiler")
		t.Setenv("CI", "true")
		require.Contains(t, told(func(tb *fakeTB) { Start(tb, 1, opt) }).fatal, "no C compiler")
	}
}
