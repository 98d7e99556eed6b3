package redlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Whatever frees the key on a majority wakes a waiter elsewhere: a release by
// any client, DEL, FLUSHALL, an expiry.
func TestWaiterIsNotifiedByTheMasters(t *testing.T) {
	t.Parallel()
	masters, holder := started(t, 5)
	var seen wakes
	waiter := openOn(t, masters, seen.observer())
	majority := func(args ...string) func(*redlock.Mutex) {
		return func(*redlock.Mutex) {
			for i := range 3 {
				redlock.Says(t, masters, i, args...)
			}
		}
	}
	there := func(key string) (n int64) {
		for i := range 5 {
			n += redlock.Says(t, masters, i, "EXISTS", key).(int64)
		}
		return n
	}
	for name, free := range map[string]func(*redlock.Mutex){
		"unlock":   func(m *redlock.Mutex) { require.NoError(t, m.Unlock(context.Background())) },
		"DEL":      majority("DEL", "DEL"),
		"FLUSHALL": majority("FLUSHALL"),
		"UNLINK":   majority("UNLINK", "UNLINK"),
		"PEXPIRE":  majority("PEXPIRE", "PEXPIRE", "20"),
	} {
		t.Run(name, func(t *testing.T) {
			told := func() int { return seen.count("free") + seen.count("expiry") }
			// Masters that are too busy to answer a look in a few milliseconds
			// promise nothing, and the waiter polls: then it is done again.
			for before, tries := told(), 0; told() == before; tries++ {
				require.Less(t, tries, 20, "the waiter polls and is not told")
				allUp(t, holder, waiter) // else what is deleted there may be the waiter's
				m := holder.NewMutex(name, 30*time.Second)
				for begun := time.Now(); ; { // it may hear only now that they were flushed, and then does not ask all
					require.Less(t, time.Since(begun), 2*time.Minute)
					err := m.TryLock(t.Context())
					settled(t, holder)
					if err == nil && there(name) == 5 {
						break
					}
					m.Unlock(t.Context())
				}
				polls := seen.count("poll")
				w, done := lockInBackground(t, waiter, name)
				free(m)
				require.NoError(t, conntest.Soon(t, "the waiter has the lock", done))
				require.Eventually(t, func() bool { return waiter.Stats().EventsWaiting == 0 }, busy, time.Millisecond)
				require.Greater(t, told()+seen.count("poll"), before+polls)
				require.NoError(t, w.Unlock(t.Context()))
				m.Unlock(t.Context())
				require.Eventually(t, func() bool { return there(name) == 0 }, 30*time.Second, 5*time.Millisecond) // before it may be done again
			}
		})
	}
}

// The key vanishes between the refusal and the look, or at any other moment. The permit that was freed in this process is the
// one that the head of the queue tries.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	clients := []*redlock.Client{openOn(t, masters, nil), openOn(t, masters, nil)}
	for n, opts := range map[int][]redlock.Option{1: nil, 3: {redlock.WithPermits(3)}} {
		var held []*redlock.Mutex
		for range n {
			held = append(held, clients[1].NewMutex(fmt.Sprint(n), 30*time.Second, opts...))
			require.NoError(t, held[len(held)-1].TryLock(t.Context()))
		}
		for i := range 300 {
			done := make(chan error, 1)
			next := clients[i%2].NewMutex(fmt.Sprint(n), 30*time.Second, opts...)
			go func() { done <- next.Lock(context.Background()) }()
			for begun := time.Now(); time.Since(begun) < time.Duration(i)*2*time.Microsecond; {
			}
			require.NoError(t, held[i%n].Unlock(t.Context()))
			require.NoError(t, conntest.Soon(t, "the waiter has the lock", done))
			held[i%n] = next
		}
	}
}

// A connection that is lost takes its promise with it: the waiter looks again.
func TestWaiterLooksAgainWhenAMasterIsLost(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	holder, waiter := openOn(t, masters, nil), openOn(t, masters, nil)
	m := holder.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	redlock.Confirmed(t, m)
	settled(t, holder) // without one that the waiter has come to first, three would be too few
	_, done := lockInBackground(t, waiter, "k")
	masters.Kill(0)
	masters.Kill(1)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, conntest.Soon(t, "the waiter has the lock", done))
}

// The masters notify of a renewal as they do of a release. The waiter finds the key held, and
// that is no lock that was free.
func TestRenewalsAreNotCountedAsFree(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	holder, waiter := openOn(t, masters, nil), openOn(t, masters, nil)
	m := holder.NewMutex("k", 3*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	w, done := lockInBackground(t, waiter, "k")
	require.Eventually(t, func() bool { // as renewals would, and more often
		require.NoError(t, m.Extend(t.Context()))
		return statsBehind(waiter).WokenHeld >= 5
	}, time.Minute, 10*time.Millisecond)
	require.Zero(t, statsBehind(waiter).WokenFree)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, conntest.Soon(t, "the waiter has the lock", done))
	require.LessOrEqual(t, statsBehind(waiter).WokenFree, uint64(1))
	require.NoError(t, w.Unlock(t.Context()))
}
