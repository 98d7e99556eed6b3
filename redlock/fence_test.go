package redlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestEachLockHasAGreaterFence(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	c := opened(t, masters.Addrs(), nil)
	last := uint64(0)
	for range 20 {
		m := c.NewMutex("k", 10*time.Second, WithFence())
		require.Zero(t, m.Fence())
		require.NoError(t, m.TryLock(t.Context()))
		require.Greater(t, m.Fence(), last)
		last = m.Fence()
		require.NoError(t, m.Extend(t.Context()))
		require.Equal(t, last, m.Fence())
		require.NoError(t, m.Unlock(t.Context()))
		require.Zero(t, m.Fence())
	}
	require.Zero(t, c.Stats().FenceRaised, "nobody else was there")
	all, err := c.Holders(t.Context(), "k", WithFence())
	require.NoError(t, err)
	at := 0
	for _, h := range all {
		if h.Fence == last {
			at++
		}
	}
	require.GreaterOrEqual(t, at, 3)
}

func TestFenceFromTheContext(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	require.Zero(t, FenceFrom(t.Context()))
	require.NoError(t, c.Do(t.Context(), "a", 10*time.Second, func(outer context.Context) error {
		a := FenceFrom(outer)
		require.NotZero(t, a)
		type some struct{}
		derived, cancel := context.WithCancel(context.WithValue(outer, some{}, 1))
		defer cancel()
		require.Equal(t, a, FenceFrom(derived))
		return errors.Join(
			c.Do(outer, "b", 10*time.Second, func(inner context.Context) error {
				require.NotZero(t, FenceFrom(inner))
				require.NotEqual(t, a, FenceFrom(inner))
				return nil
			}, WithFence()),
			c.Do(outer, "c", 10*time.Second, func(inner context.Context) error {
				require.Zero(t, FenceFrom(inner), "the outer lock's number says nothing of this one")
				return nil
			}))
	}, WithFence()))
	m := c.NewMutex("a", 10*time.Second, WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	require.Equal(t, m.Fence(), FenceFrom(held))
	stop()
	require.Equal(t, m.Fence(), FenceFrom(held), "it can still be used to be refused")
	require.NoError(t, m.Unlock(t.Context()))
	require.NotZero(t, FenceFrom(held))
}
