package redlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// What never ends, or lasts for longer than a Duration can say.
func TestLongTimesDoNotOverflow(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{DriftFactor: 1e-9}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMaxLifetime(conn.Forever))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		require.NoError(t, held.Err())
		require.ErrorContains(t, c.NewMutex("k", conn.Forever/time.Millisecond*time.Millisecond).TryLock(t.Context()), "hundred years")
		require.NoError(t, c.NewMutex("j", maxTTL).TryLock(t.Context()))
	})
	masters := redlocktest.Start(t, 1)
	_, err := New(Config{Masters: masters.Addrs(), FenceMemory: maxTTL + 1})
	require.ErrorContains(t, err, "hundred years")
	remembers := openedWith(t, Config{Masters: masters.Addrs(), FenceMemory: maxTTL})
	fenced := remembers.NewMutex("fenced", maxTTL, WithFence())
	require.NoError(t, fenced.TryLock(t.Context()))
	require.NoError(t, fenced.Extend(t.Context()))

	command(t, masters, 0, "SET", "k", "another's", "PX", "15000000000000")
	c := openedWith(t, Config{Masters: masters.Addrs(), DialTimeout: conn.Forever})
	comes := parked(t, c, "k")
	require.Zero(t, c.Stats().WokenExpiry)
	h, err := c.Holders(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, conn.Forever, h[0].TTL)
	require.NoError(t, c.Close())
	require.ErrorIs(t, conntest.Soon(t, "the waiter returns", comes), ErrClosed)
}

// A value of any size under a key, and a key of any size, are in nobody's way.
func TestBigValuesAndKeysBreakNoConnection(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	for i := range 3 {
		command(t, masters, i, "SET", "big", strings.Repeat("v", 1<<20))
	}
	m := c.NewMutex("mine", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	holders, err := c.Holders(t.Context(), "big")
	require.NoError(t, err)
	require.Len(t, holders[0].Token, 1024)
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan error, 1)
	go func() { refused <- c.NewMutex("big", 30*time.Second).Lock(ctx) }()
	require.Eventually(t, func() bool { return c.Stats().Held > 0 }, hanging, time.Millisecond)
	cancel()
	require.ErrorIs(t, conntest.Soon(t, "it gives up", refused), ErrHeld)
	err = c.NewMutex(strings.Repeat("k", maxKey+1), 30*time.Second).Lock(t.Context())
	require.ErrorContains(t, err, "16384")
	require.Less(t, len(err.Error()), 300)
	longest := c.NewMutex(strings.Repeat("k", maxKey), 30*time.Second)
	require.NoError(t, longest.TryLock(t.Context()))
	require.NoError(t, longest.Unlock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	for _, s := range c.rounds.Masters() {
		require.EqualValues(t, 1, s.Connects)
	}
}
