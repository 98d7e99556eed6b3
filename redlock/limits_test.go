package redlock

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The limits that the package comment names: the longest times, the largest values and keys, and the names
// of keys. And the limit of the masters: their memory.

// What never ends, or lasts for longer than a Duration can say.
func TestLongTimesDoNotOverflow(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{DriftFactor: 1e-9}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMaxLifetime(clock.Forever))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		require.NoError(t, held.Err())
		require.ErrorContains(t, c.CheckMutex("k", clock.Forever/time.Millisecond*time.Millisecond), "hundred years")
		require.NoError(t, c.NewMutex("j", maxTTL).TryLock(t.Context()))
	})
	masters := redlocktest.Start(t, 1)
	_, err := New(Config{Masters: masters.Addrs(), FenceMemory: maxTTL + 1})
	require.ErrorContains(t, err, "hundred years")
	remembers := openedWith(t, Config{Masters: masters.Addrs(), FenceMemory: maxTTL})
	fenced := remembers.NewMutex("fenced", maxTTL, WithFence())
	require.NoError(t, fenced.TryLock(t.Context()))
	require.NoError(t, fenced.Extend(t.Context()))

	Says(t, masters, 0, "SET", "k", "another's", "PX", "15000000000000")
	c := openedWith(t, Config{Masters: masters.Addrs(), DialTimeout: clock.Forever})
	comes := parked(t, c, "k")
	require.Zero(t, c.Stats().more.WokenExpiry)
	h, err := OnEach(c, t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, clock.Forever, h[0].TTL)
	require.NoError(t, c.Close())
	require.ErrorIs(t, conntest.Soon(t, "the waiter returns", comes), ErrClosed)
}

// A value of any size under a key, and a key of any size, are in nobody's way.
func TestBigValuesAndKeysBreakNoConnection(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for i := range 3 {
		Says(t, masters, i, "SET", "big", strings.Repeat("v", 1<<20))
	}
	m := c.NewMutex("mine", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	holders, err := OnEach(c, t.Context(), "big")
	require.NoError(t, err)
	require.Equal(t, census.Unknown, holders[0].Token)
	require.EqualValues(t, 1<<20, holders[0].Size)
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan error, 1)
	go func() { refused <- c.NewMutex("big", 30*time.Second).Lock(ctx) }()
	require.Eventually(t, func() bool { return c.Stats().Held > 0 }, hanging, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, conntest.Soon(t, "it gives up", refused), ErrHeld)
	err = c.CheckMutex(strings.Repeat("k", maxKey+1), 30*time.Second)
	require.ErrorContains(t, err, "16384")
	require.Less(t, len(err.Error()), 300)
	longest := c.NewMutex(strings.Repeat("k", maxKey), 30*time.Second)
	require.NoError(t, longest.TryLock(t.Context()))
	require.NoError(t, longest.Unlock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	for _, s := range c.round.Mux.Masters() {
		require.EqualValues(t, 1, s.Connects)
	}
}

// Whatever a lock keeps on the masters beside its key has a name that no lock can have, and expires.
func TestNoLockHasTheNameOfWhatIsKeptBesideOne(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	all := openedTimes(t, 3, Config{Masters: masters.Addrs()})
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	take := func(key string, opts ...Option) {
		t.Helper()
		require.NoError(t, all[0].NewMutex(key, time.Minute, opts...).TryLock(t.Context()))
	}
	wait := func(c *Client, key string, opts ...Option) {
		waiting.Go(func() { c.NewMutex(key, time.Minute, opts...).Lock(ctx) })
	}
	take("a", WithFence(), WithKeys("b"))
	take("p", WithPermits(1))
	take("s", WithShared(), WithFence())
	for _, c := range all[1:] {
		wait(c, "a", WithFence(), WithKeys("b"))
		wait(c, "p", WithPermits(1))
	}
	wait(all[1], "s")
	beside := map[string]bool{}
	require.Eventually(t, func() bool {
		if m := all[0].NewMutex("s", time.Minute, WithShared()); m.TryLock(ctx) == nil { // the writer is told
			m.Unlock(ctx)
		}
		keys := Says(t, masters, 0, "KEYS", "*")
		for _, key := range keys.([]any) {
			key := key.(string)
			if len(key) == 1 || key == "{}:since" { // the last is no lock's, and does not expire
				continue
			}
			if left, err := masters.Do(0, "PTTL", key); err == nil {
				require.NotEqual(t, int64(-1), left, "%s expires", key)
			}
			if strings.HasSuffix(key, ":alive") {
				key = "alive"
			} else if before, _, ok := strings.Cut(key, "line:"); ok {
				key = before + "line:*"
			}
			beside[key] = true
		}
		for _, name := range []string{"{a}:fence", "{b}:fence", "{a}:line", "{a}:line:*", "alive", "{p}:permits",
			"{p}:permit:1/1", "{p}:permit:line", "{p}:permit:line:*", "{s}:fence", "{s}:writer"} {
			if !beside[name] {
				return false
			}
		}
		return true
	}, hanging, 5*time.Millisecond)
	delete(beside, "alive")
	names := slices.Collect(maps.Keys(beside))
	c := all[0]
	for _, name := range append(names, "{a}:line:x:alive", "{}}:writer", "{a}}:permit:line:x", "{}:since") {
		require.ErrorIs(t, c.CheckMutex(name, time.Minute), errReserved, name)
		require.ErrorIs(t, c.CheckMutex("k", time.Minute, WithKeys(name)), errReserved, name)
		require.ErrorIs(t, c.Do(t.Context(), name, time.Minute, nil, WithPermits(2)), errReserved, name)
	}
	for _, name := range []string{"{a}", "{a}:b", "a}:fence", "{a}:fences", "{a}fence", "{a:fence"} {
		m := c.NewMutex(name, time.Minute)
		require.NoError(t, m.TryLock(t.Context()), name)
		require.NoError(t, m.Unlock(t.Context()), name)
	}
}

// Masters without memory (maxmemory, noeviction) give no new lock. Locks that are held are extended and released.
func TestFullMastersExtendAndRelease(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	limit := func(bytes string) {
		for i := range masters.Addrs() {
			Says(t, masters, i, "CONFIG", "SET", "maxmemory", bytes)
		}
	}
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	all := func(name string) map[string]*Mutex {
		locks := map[string]*Mutex{}
		for kind, opts := range map[string][]Option{
			"plain":          nil,
			"several":        {WithKeys(name+"2", name+"3")},
			"shared":         {WithShared()},
			"permits":        {WithPermits(2)},
			"fence":          {WithFence()},
			"several fenced": {WithKeys(name+"4", name+"5"), WithFence()},
			"shared fenced":  {WithShared(), WithFence()},
		} {
			locks[kind] = c.NewMutex(name+kind, 10*time.Minute, opts...)
		}
		return locks
	}
	held := all("")
	for name, m := range held {
		require.NoError(t, m.TryLock(t.Context()), name)
	}
	limit("1")
	for name, m := range all("new ") {
		err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum, name)
		require.NotErrorIs(t, err, ErrHeld, name)
		require.ErrorContains(t, err, "OOM", name)
	}
	waits := parked(t, other, "plain")
	for name, m := range held {
		require.NoError(t, m.Extend(t.Context()), name)
		require.NoError(t, m.Extend(t.Context()), name)
		require.NoError(t, m.Unlock(t.Context()), name)
	}
	require.ErrorContains(t, c.NewMutex("plain", time.Minute).TryLock(t.Context()), "OOM")
	require.EqualValues(t, 1, other.Stats().Waiting, "a Lock goes on trying")
	limit("0")
	comes(t, waits)
}
