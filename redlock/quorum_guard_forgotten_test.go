package redlock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// takenOnTwo has a lock be taken on the masters 0 and 2 of three alone, and returns it: 1 has a leftover that expires.
func takenOnTwo(t *testing.T, masters *redlocktest.Masters, c *redlock.Client, ttl time.Duration, opts ...redlock.Option) *redlock.Mutex {
	t.Helper()
	m := c.NewMutex("k", ttl, opts...)
	require.NoError(t, c.NewMutex("before", ttl).Lock(t.Context())) // so that a guard is over
	redlock.Says(t, masters, 1, "SET", "k", "another's")
	require.NoError(t, m.TryLock(t.Context()))
	settled(t, c)
	redlock.Says(t, masters, 1, "DEL", "k")
	return m
}

// refusesSecond requires that no other has the lock while one has it.
func refusesSecond(t *testing.T, m *redlock.Mutex, second *redlock.Client, ttl time.Duration) {
	t.Helper()
	n := second.NewMutex("k", ttl)
	err := n.TryLock(t.Context())
	require.Positive(t, m.Remaining(), "it took too long")
	require.Error(t, err, "two hold one lock")
}

// A master that was flushed, was restarted with or without its disk, or is another one, has forgotten what it granted.
// Nobody counts its vote, whoever was connected, is connected again or starts only now; with a RestartGuard or without.
func TestWhoHasForgottenALockDoesNotGiveIt(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second // a busy machine takes a while for all that comes within it
	durable := redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always")
	for name, c := range map[string]struct {
		guard, sure bool
		options     []redlocktest.Option
		forget      func(t *testing.T, masters *redlocktest.Masters)
		third       int // the third master afterwards
	}{
		"flushed":          {forget: func(_ *testing.T, masters *redlocktest.Masters) { masters.Flush(2) }, third: 2},
		"flushed, guarded": {guard: true, forget: func(_ *testing.T, masters *redlocktest.Masters) { masters.Flush(2) }, third: 2},
		"restarted":        {forget: func(_ *testing.T, masters *redlocktest.Masters) { masters.Restart(2) }, third: 2},
		"a warm spare": {guard: true, forget: func(_ *testing.T, masters *redlocktest.Masters) { masters.Kill(2) },
			third: 3},
		"a warm spare, no guard": {forget: func(_ *testing.T, masters *redlocktest.Masters) { masters.Kill(2) }, third: 3},
		"a durable newcomer": {guard: true, options: []redlocktest.Option{durable}, third: 3, forget: func(_ *testing.T, masters *redlocktest.Masters) {
			masters.Kill(2)
			masters.Restart(3)
		}},
		"a newcomer that is declared durable": {guard: true, sure: true, options: []redlocktest.Option{durable}, third: 3, forget: func(_ *testing.T, masters *redlocktest.Masters) {
			masters.Kill(2)
			masters.Restart(3)
		}},
		"a clock that is stepped at boot": {guard: true, options: []redlocktest.Option{redlocktest.WithClocks()}, third: 2, forget: func(t *testing.T, masters *redlocktest.Masters) {
			masters.Kill(2)
			masters.Jump(2, -time.Hour)
			masters.Restart(2)
			masters.Jump(2, time.Hour)
			runsFor(t, masters, 2, 3000) // it says so
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 4, c.options...)
			cfg := redlock.Config{Masters: masters.Addrs()[:3], RoundTimeout: busy, Durable: c.sure}
			if c.guard {
				cfg.RestartGuard = ttl
			}
			first, there := openConfig(t, cfg), openConfig(t, cfg)
			require.NoError(t, there.NewMutex("there", ttl).Lock(t.Context()))
			m := takenOnTwo(t, masters, first, ttl)
			c.forget(t, masters)
			cfg.Masters = []string{masters.Addr(0), masters.Addr(1), masters.Addr(c.third)}
			second := openConfig(t, cfg)
			if c.third == 3 {
				require.NoError(t, there.Replace(t.Context(), masters.Addr(2), masters.Addr(3)))
			}
			refusesSecond(t, m, second, ttl)
			refusesSecond(t, m, there, ttl)
			n := second.NewMutex("k", ttl)
			require.NoError(t, n.Lock(t.Context()))
			require.Zero(t, m.Remaining())
		})
	}
}

// A test suite flushes the masters, and takes a lock at once. It has used the masters before, and others do.
func TestATestSuiteThatFlushesDoesNotWait(t *testing.T) {
	t.Parallel()
	suite := func(masters *redlocktest.Masters) (slow bool) {
		cfg := redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy}
		a, b := openConfig(t, cfg), openConfig(t, cfg)
		for round := range 20 {
			began := time.Now()
			for i := range 3 {
				redlock.Says(t, masters, i, []string{"FLUSHALL", "FLUSHDB"}[round%2])
			}
			err := a.NewMutex("k", time.Minute).TryLock(t.Context())
			if err == nil {
				err = b.NewMutex("j", time.Minute, redlock.WithFence()).TryLock(t.Context())
			}
			if err != nil && time.Since(began) > 3*time.Second { // then it is no flush of all
				return true
			}
			require.NoError(t, err)
		}
		return false
	}
	for range 10 {
		if !suite(redlocktest.Start(t, 3)) {
			return
		}
	}
	require.Fail(t, "three flushes take more than three seconds each time")
}

// Whoever starts three masters and tries the library does not wait, also with one of them down.
func TestATryDoesNotWait(t *testing.T) {
	t.Parallel()
	for _, down := range []bool{false, true} {
		masters := redlocktest.Start(t, 3)
		if down {
			masters.Kill(1)
		}
		for range 3 { // one process after the other
			c, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
			require.NoError(t, err)
			m := c.NewMutex("k", time.Hour)
			require.NoError(t, m.TryLock(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, c.Close())
		}
	}
}

// An upgrade, a new prefix and a backup by redis-cli --rdb silence nobody.
func TestOldMastersDoNotWait(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	runsFor(t, masters, 0, 2)
	runsFor(t, masters, 2, 2)
	for _, prefix := range []string{"", "", "new:"} {
		var phases diary
		c := openConfig(t, redlock.Config{Masters: []string{masters.Addr(0), masters.Addr(2)}, Prefix: prefix, RestartGuard: time.Second, RoundTimeout: busy,
			Observers: phases.observer()})
		m := c.NewMutex("k", time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		replicate(t, masters, 1, 0) // as redis-cli --rdb is one for a moment
		promote(t, masters, 1)
		redlock.Says(t, masters, 0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		phases.awaits(t, masters.Addr(0), "down")
		reaches(t, c, 0, "up")
		m = c.NewMutex("j", time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
}

// runsFor waits until a master says that it was started so many seconds ago.
func runsFor(t *testing.T, masters *redlocktest.Masters, i, seconds int) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := masters.Do(i, "INFO", "server")
		_, text, _ := strings.Cut(fmt.Sprint(info), "uptime_in_seconds:")
		var up int
		fmt.Sscan(text, &up)
		return err == nil && up > seconds
	}, time.Minute, 10*time.Millisecond)
}

// A push that the witness has changed comes before what was granted after it, so no vote of a master that was flushed
// counts, also not one that was under way. It is asked again on the same connection.
func TestAVoteUnderWayAtAFlushDoesNotCount(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	cfg := redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy}
	first, second := openConfig(t, cfg), openConfig(t, cfg)
	used(t, second, time.Minute)
	m := takenOnTwo(t, masters, first, time.Minute)
	masters.Pause(2)
	refused := make(chan error, 1)
	n := second.NewMutex("k", time.Minute)
	go func() { refused <- n.TryLock(t.Context()) }()
	masters.Resume(2)
	masters.Flush(2)
	<-refused
	require.False(t, m.Remaining() > 0 && n.Remaining() > 0)
	refusesSecond(t, m, second, time.Minute)
	require.Equal(t, "quarantined", phase(second, 2), "it is connected")
}

// Whoever may write a client's witness can put anything there. That costs the masters' votes for a TTL at the most, and not for
// as long as their connections live, however long it is.
func TestAWitnessThatIsNoneStopsNobodyForLong(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"short": "garbage", "too long": strings.Repeat("x", 70_000)} {
		masters := redlocktest.Start(t, 3)
		all := []*redlock.Client{openWith(t, masters, redlock.Config{}), openWith(t, masters, redlock.Config{})}
		locks := func() {
			for _, c := range append(all, openWith(t, masters, redlock.Config{})) {
				ctx, cancel := context.WithTimeout(t.Context(), busy)
				m := c.NewMutex("k", time.Second)
				require.NoError(t, m.Lock(ctx), name)
				require.NoError(t, m.Unlock(ctx), name)
				cancel()
			}
		}
		locks()
		for range 2 {
			for i := range 2 {
				redlock.Says(t, masters, i, "SET", "{}:since", value)
			}
			locks()
		}
		for i := range 2 {
			redlock.Says(t, masters, i, "DEL", "{}:since")
		}
		locks()
	}
}
