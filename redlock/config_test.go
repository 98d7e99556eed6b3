package redlock_test

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

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
