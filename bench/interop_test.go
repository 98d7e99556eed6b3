package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// interop returns redburst and redsync on the same masters.
func interop(t *testing.T, o ...redlock.Observer) (*Fleet, *redlock.Client, *redsync.Redsync) {
	f := start(t, Case{N: 5, Transport: TCP})
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: f.URLs(), Observers: o})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	var pools []redsyncredis.Pool
	for _, e := range f.endpoints {
		pool, closePool, err := openGoRedis(e, 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, closePool()) })
		pools = append(pools, pool)
	}
	return f, client, redsync.New(pools...)
}

func TestInteropWhatRedsyncHoldsIsRefused(t *testing.T) {
	f, client, rs := interop(t)
	theirs, ours := rs.NewMutex("key", redsync.WithExpiry(time.Minute)), client.NewMutex("key", lockTTL)
	require.NoError(t, theirs.LockContext(t.Context()))
	require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld)
	requireValue(t, f, theirs.Value()) // our release, which follows a refusal, leaves theirs
	ok, err := theirs.UnlockContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, ours.TryLock(t.Context()))
}

func TestInteropWhatWeHoldIsRefusedToRedsync(t *testing.T) {
	f, client, rs := interop(t)
	theirs, ours := rs.NewMutex("key", redsync.WithExpiry(time.Minute)), client.NewMutex("key", lockTTL)
	require.NoError(t, ours.TryLock(t.Context()))
	taken, ok := errors.AsType[*redsync.ErrTaken](theirs.TryLockContext(t.Context()))
	require.True(t, ok, "redsync says that it is taken")
	require.Len(t, taken.Nodes, f.N)
	requireValue(t, f, ours.Token())
	require.NoError(t, ours.Extend(t.Context()))
	require.NoError(t, ours.Unlock(t.Context()))
	require.NoError(t, theirs.TryLockContext(t.Context()))
}

// A set and a reader exclude redsync on each key of theirs, are excluded by it, and are told when it lets go.
func TestInteropEachKindAndRedsync(t *testing.T) {
	for name, opts := range map[string][]redlock.Option{
		"a set":                   {redlock.WithKeys("other")},
		"a set with a fence":      {redlock.WithKeys("other"), redlock.WithFence()},
		"a reader":                {redlock.WithShared()},
		"a reader with a fence":   {redlock.WithShared(), redlock.WithFence()},
		"one holder with a fence": {redlock.WithFence()},
	} {
		t.Run(name, func(t *testing.T) {
			_, client, rs := interop(t)
			ours := client.NewMutex("key", lockTTL, opts...)
			keys := []string{"key"}
			if strings.HasPrefix(name, "a set") {
				keys = append(keys, "other")
			}
			for _, key := range keys {
				theirs := rs.NewMutex(key, redsync.WithExpiry(time.Minute))
				require.NoError(t, theirs.LockContext(t.Context()))
				require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld)
				locked := make(chan error, 1)
				go func() { locked <- ours.Lock(t.Context()) }()
				require.Eventually(t, func() bool { return client.Stats().Waiting == 1 }, time.Minute/2, time.Millisecond)
				ok, err := theirs.UnlockContext(t.Context())
				require.NoError(t, err)
				require.True(t, ok)
				require.NoError(t, <-locked)
				require.Error(t, theirs.TryLockContext(t.Context()))
				require.NoError(t, ours.Extend(t.Context()))
				_, err = theirs.UnlockContext(t.Context())
				require.Error(t, err, "it has nothing to release")
				require.NoError(t, ours.Unlock(t.Context()))
				require.Eventually(t, func() bool { // its releases of what it was refused may be on their way
					return theirs.TryLockContext(t.Context()) == nil
				}, time.Minute/2, time.Millisecond)
				_, err = theirs.UnlockContext(t.Context())
				require.NoError(t, err)
			}
		})
	}
}

func TestInteropRedsyncsUnlockWakesOurWaiter(t *testing.T) {
	wakes := make(chan string, 16)
	f, client, rs := interop(t, redlock.SlogObserver(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == "why" { // it stops waiting
				wakes <- a.Value.String()
			}
			return a
		},
	}))))
	theirs, ours := rs.NewMutex("key", redsync.WithExpiry(time.Minute)), client.NewMutex("key", lockTTL)
	require.NoError(t, theirs.LockContext(t.Context()))
	locked := make(chan error, 1)
	go func() { locked <- ours.Lock(t.Context()) }()
	require.Eventually(t, func() bool { return reads(t, f) == f.N }, time.Minute/2, time.Millisecond,
		"the waiter reads the key everywhere, to be told of its change")
	_, err := theirs.UnlockContext(t.Context())
	require.NoError(t, err)
	require.NoError(t, <-locked)
	require.Equal(t, "free", <-wakes, "it was told, before the TTL passed and without polling")
	require.Empty(t, wakes, "its first attempt was its last")
	require.ErrorIs(t, client.NewMutex("key", lockTTL).TryLock(t.Context()), redlock.ErrHeld)
	require.Error(t, theirs.TryLockContext(t.Context()))
}

// reads returns how many masters have been asked for a TTL.
func reads(t *testing.T, f *Fleet) (n int) {
	t.Helper()
	for i := range f.N {
		v, err := f.Do(i, "INFO", "commandstats")
		require.NoError(t, err)
		if strings.Contains(fmt.Sprint(v), "cmdstat_pttl:") {
			n++
		}
	}
	return n
}

// requireValue says whose the key is on every master.
func requireValue(t *testing.T, f *Fleet, token string) {
	t.Helper()
	for i := range f.N {
		v, err := f.Do(i, "GET", "key")
		require.NoError(t, err)
		require.Equal(t, token, v, "master %d", i)
	}
}

// onOneMaster returns redburst on a single master, as redislock knows no more.
func onOneMaster(t *testing.T) (*Fleet, *redlock.Client) {
	f := start(t, Case{N: 1, Transport: TCP})
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: f.URLs()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return f, client
}

func TestInteropRedislock(t *testing.T) {
	f, client := onOneMaster(t)
	locker, err := openBsm(f, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close()) })
	theirs, err := locker.Mutex("key")
	require.NoError(t, err)
	ours := client.NewMutex("key", lockTTL)

	require.NoError(t, theirs.TryLock(t.Context()))
	require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld)
	require.NoError(t, theirs.Extend(t.Context()), "our release, which follows a refusal, leaves theirs")
	locked := make(chan error, 1)
	go func() { locked <- ours.Lock(t.Context()) }()
	require.Eventually(t, func() bool { return client.Stats().Waiting == 1 }, time.Minute/2, time.Millisecond)
	require.NoError(t, theirs.Unlock(t.Context()))
	require.NoError(t, <-locked)
	require.ErrorIs(t, theirs.TryLock(t.Context()), redislock.ErrNotObtained)
	require.NoError(t, ours.Extend(t.Context()))
	require.NoError(t, ours.Unlock(t.Context()))
	require.NoError(t, theirs.TryLock(t.Context()))
}

// With a token that the caller has chosen, redislock lets in whoever chooses the same.
func TestInteropRedislockWithAChosenToken(t *testing.T) {
	f, client := onOneMaster(t)
	locker, err := openBsm(f, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close()) })
	locks, chosen := locker.(*bsmLocker).locks, &redislock.Options{Token: "host-1"}
	var held *redislock.Lock
	for range 2 {
		held, err = locks.Obtain(t.Context(), "key", lockTTL, chosen)
		require.NoError(t, err)
	}
	ours := client.NewMutex("key", lockTTL)
	require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, ours.Lock(t.Context()))
	_, err = locks.Obtain(t.Context(), "key", lockTTL, chosen)
	require.ErrorIs(t, err, redislock.ErrNotObtained)
}

// rueidislock has other keys, so neither excludes the other.
func TestInteropRueidislockHasOtherKeys(t *testing.T) {
	f, client := onOneMaster(t)
	locker, err := openRueidisLock(f, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close()) })
	theirs, err := locker.Mutex("key")
	require.NoError(t, err)
	require.NoError(t, theirs.TryLock(t.Context()))
	require.NoError(t, client.NewMutex("key", lockTTL).TryLock(t.Context()))
	n, err := f.Do(0, "EXISTS", "key", "rueidislock:0:key")
	require.NoError(t, err)
	require.Equal(t, int64(2), n)
	require.NoError(t, theirs.Unlock(t.Context()))
}
