package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	decides "github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The first attempt of a new client does not fail because its connections are under way.
func TestTheFirstAttemptWaitsForTheConnections(t *testing.T) {
	t.Parallel()
	masters, before := started(t, 3)
	used(t, before, time.Minute)
	for _, down := range []int{-1, 2} {
		if down >= 0 {
			masters.Kill(down)
		}
		for range 5 {
			c, err := redlock.New(redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy, DialTimeout: busy})
			require.NoError(t, err)
			m := c.NewMutex(t.Name(), time.Minute)
			require.NoError(t, m.TryLock(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, c.Close())
		}
	}
	// Nobody waits for masters that do not come.
	masters.Kill(1)
	masters.Pause(0)
	c, err := redlock.New(redlock.Config{Masters: masters.Addrs(), RoundTimeout: time.Hour, DialTimeout: time.Hour})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = c.NewMutex(t.Name(), 2*time.Hour).TryLock(ctx)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "one of three is no majority, whatever it says")
	require.NoError(t, c.Close())
	c, err = redlock.New(redlock.Config{Masters: masters.Addrs()[:1], RoundTimeout: time.Millisecond, DialTimeout: time.Hour})
	require.NoError(t, err)
	require.ErrorIs(t, c.NewMutex(t.Name(), time.Minute).TryLock(t.Context()), redlock.ErrNoQuorum, "within the round's time")
	require.NoError(t, c.Close())
	c, err = redlock.New(redlock.Config{Masters: masters.Addrs()[:1], RoundTimeout: time.Hour, DialTimeout: time.Hour})
	require.NoError(t, err)
	first := make(chan error, 1)
	go func() { first <- c.NewMutex(t.Name(), 2*time.Hour).TryLock(t.Context()) }()
	require.NoError(t, c.Close())
	require.ErrorIs(t, conntest.Soon(t, "the attempt ends with the client", first), redlock.ErrClosed)
}

// A master hangs before anybody has used the list. Whether it was used is not known for a moment, and that is said.
func TestTheFirstAttemptSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openWith(t, masters, redlock.Config{RoundTimeout: 300 * time.Millisecond, StallTime: time.Hour})
	time.Sleep(decides.AskAgain + 100*time.Millisecond) // who has been idle reads again
	masters.Pause(2)
	m := c.NewMutex("k", time.Minute)
	err := m.TryLock(t.Context())
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "has not answered yet whether it may vote")
	require.NotContains(t, err.Error(), "the round timeout of 1ms")
	require.Eventually(t, func() bool { return m.TryLock(t.Context()) == nil }, 20*time.Second, time.Millisecond)
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
