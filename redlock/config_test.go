package redlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// clustered is a list of masters of which the last can never serve.
func clustered(t *testing.T, n int) []string {
	t.Helper()
	good := redlocktest.Start(t, n-1)
	bad := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	return append(good.Addrs(), bad.Addr(0))
}

// One master that can never serve stops no process, running or new, and shows.
func TestRefusedMinorityIsShown(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	told := map[string]redlock.MasterStats{}
	cfg := redlock.Config{Masters: clustered(t, 3), RoundTimeout: busy, Observers: onEvent(redlock.EventMaster, func(e *redlock.Event) {
		m := *e.Master
		mu.Lock()
		defer mu.Unlock()
		told[m.Addr] = m
	})}
	c := openConfig(t, cfg)
	reaches(t, c, 0, "up")
	reaches(t, c, 1, "up")
	reaches(t, c, 2, "refused")
	require.Contains(t, c.Stats().Masters[2].Err, "Redis Cluster")
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return told[cfg.Masters[2]].Phase == "refused" && strings.Contains(told[cfg.Masters[2]].Err, "Redis Cluster") &&
			told[cfg.Masters[0]].Phase == "up"
	}, time.Minute, 5*time.Millisecond)
	used(t, c, long)
	_, err := c.Holders(t.Context(), "k")
	require.NoError(t, err)
}

// New is for services that must start while masters are down.
func TestNewNeedsNoMasters(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i := range 3 {
		masters.Kill(i)
	}
	c, err := redlock.New(redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy, DialTimeout: busy})
	require.NoError(t, err)
	defer c.Close()
	m := c.NewMutex("k", long)
	require.ErrorIs(t, m.TryLock(t.Context()), redlock.ErrNoQuorum)
	taken := make(chan error, 1)
	go func() { taken <- m.Lock(t.Context()) }()
	require.Eventually(t, func() bool { return c.Stats().Waiting == 1 }, time.Minute, 5*time.Millisecond)
	masters.Restart(0)
	masters.Restart(1)
	require.NoError(t, conntest.Soon(t, "two of three are up, and Lock has it", taken))
	require.NoError(t, m.Unlock(t.Context()))

	for name, cfg := range map[string]redlock.Config{
		"no masters":        {},
		"malformed":         {Masters: []string{"http://a"}},
		"twice":             {Masters: []string{"a:1", "a:1"}},
		"negative duration": {Masters: []string{"a:1"}, RestartGuard: -1},
		"bad owner":         {Masters: []string{"a:1"}, Owner: "a b"},
	} {
		_, err := redlock.New(cfg)
		require.ErrorContains(t, err, "redlock: new: ", name)
	}
}

// A context that ends Open is its own reason, unless masters have failed by then.
func TestOpenThatItsContextEnds(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	masters.Pause(0)
	masters.Pause(1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), DialTimeout: busy})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, redlock.ErrNoQuorum)
	var round *redlock.RoundError
	require.ErrorAs(t, err, &round)
	require.Equal(t, redlock.OpOpen, round.Op)
	require.Len(t, round.Votes, 3)
	masters.Kill(0)
	masters.Kill(1)
	_, err = redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: time.Second})
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}
