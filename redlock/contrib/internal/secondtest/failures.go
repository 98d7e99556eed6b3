//go:build unix

package secondtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock"
)

// ShortTTL is that of sessions that a test waits for the end of.
const ShortTTL = 2 * time.Second

// An Opener opens a store of the test's own, and a proxy. through opens a Second whose traffic passes the proxy.
type Opener func(t testing.TB) (s Store, p *Proxy, through func(t testing.TB) Second)

// A ForeignLock is a lock of another library on the same key.
type ForeignLock interface {
	Lock() error
	Unlock() error
}

// ExcludesForeign tests that the locks of a Second and those of another library exclude each other.
func (s Store) ExcludesForeign(t *testing.T, second Second, foreign func(key string) ForeignLock) {
	for _, key := range []string{"plain-key", "plain key", "a/b%"} {
		other := foreign(key)
		require.NoError(t, other.Lock())
		_, err := second.TryLock(Background(t), key)
		require.ErrorIs(t, err, redlock.ErrHeld)
		w := s.Watch(t, second, key)
		require.NoError(t, other.Unlock())
		Taken(t, w)

		l := MustLock(t, second, key)
		waited := make(chan error, 1)
		go func() { waited <- other.Lock() }()
		s.AwaitQueue(t, key, 2)
		require.Empty(t, waited)
		require.NoError(t, l.Unlock(Background(t)))
		require.NoError(t, <-waited)
		require.NoError(t, other.Unlock())
	}
}

// ContextEndsFirst tests that a store that cannot be reached any more ends the lock of whoever has it before it gives the
// lock to another. The Seconds behind the proxy have the ShortTTL.
func ContextEndsFirst(t *testing.T, open Opener) {
	for _, name := range []string{"at once", "after renewals"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p, through := open(t)
			a := through(t)
			l := LockInTime(t, a, "k")
			if name == "after renewals" {
				require.Eventually(t, func() bool { // a busy machine may lose it once
					time.Sleep(ShortTTL * 5 / 4)
					lives := l.Context().Err() == nil
					if !lives {
						l = LockInTime(t, a, "k")
					}
					return lives
				}, Patience, time.Millisecond)
			}
			w := s.Watch(t, s.Open(t), "k")
			p.Cut()
			endsBefore(t, l, w)
			p.Reset()
			p.Heal()
			require.ErrorIs(t, l.Unlock(Background(t)), redlock.ErrNotHeld)
			// The Second is of use again.
			require.NoError(t, LockInTime(t, a, "k").Unlock(Background(t)))
		})
	}
}

// LockInTime takes a lock where a request may fail, as there has to be a new leader first, or all is slow.
func LockInTime(t testing.TB, s redlock.Second, key string) (l redlock.SecondLock) {
	t.Helper()
	require.Eventually(t, func() (ok bool) {
		var err error
		l, err = s.Lock(Background(t), key)
		return err == nil
	}, Patience, 10*time.Millisecond)
	return l
}

// LastingTTL is that of sessions that must outlive the failure of a server, and the election of a new leader, on a machine that
// has much else to do.
const LastingTTL = 12 * time.Second

// ServersFail has servers fail in any way, one of three, but those that spare says not to: nothing is lost. Without a majority there
// is an error and no lock, and all locks end in time. When it is there again, so is the lock. The sessions of lasting have
// the LastingTTL, and those of brief the ShortTTL.
func (s Store) ServersFail(t *testing.T, servers []*Server, spare func(i int) bool, lasting, brief Second) {
	second := s.Open(t)
	l := MustLock(t, lasting, "k")
	works := func() {
		t.Helper()
		require.NoError(t, LockInTime(t, second, "other").Unlock(Background(t)))
		// Those who wait get it, though the server that they may have asked to tell them hangs.
		waiter := s.Open(t)
		held := LockInTime(t, waiter, "other")
		w := s.Watch(t, waiter, "other")
		require.NoError(t, held.Unlock(Background(t)))
		Taken(t, w)
		require.NoError(t, l.Context().Err(), "%v", context.Cause(l.Context()))
	}
	for i, server := range servers {
		if spare(i) {
			continue
		}
		if i%2 == 0 {
			server.Kill()
			works()
			server.Restart(t)
		} else {
			server.Pause(t)
			works()
			server.Resume()
		}
		works()
	}
	require.NoError(t, l.Unlock(Background(t)))

	l = LockInTime(t, brief, "k")
	servers[0].Pause(t)
	servers[1].Kill()
	cause := Ended(t, l)
	t.Log(cause)
	require.NotErrorIs(t, cause, context.DeadlineExceeded)
	for name, take := range Takes {
		ctx := Background(t)
		_, err := take(brief)(ctx, "free")
		require.Error(t, err, name)
		require.NoError(t, ctx.Err())
		require.NotErrorIs(t, err, redlock.ErrHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		t.Log(err)
	}
	servers[0].Resume()
	servers[1].Restart(t)
	again := LockInTime(t, brief, "k")
	require.Greater(t, again.Fence(), l.Fence())
	s.AwaitQueue(t, "free", 0)
}

// AwaitLeader waits until one of the servers leads, and returns its number.
func AwaitLeader(t testing.TB, servers []*Server, leads func(i int) bool) (leader int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for leader = range servers {
			if leads(leader) {
				return true
			}
		}
		return false
	}, Patience, 50*time.Millisecond)
	return leader
}

// LeadersFail kills the leader of three servers, or has it hang, again and again, while two processes pass a lock to and fro. No two
// have it at a time, by their contexts. The sessions have the ShortTTL.
func (s Store) LeadersFail(t *testing.T, servers []*Server, leads func(i int) bool) {
	s.chaos(t, []Second{s.Open(t), s.Open(t)}, 6*time.Second, func(n int) {
		leader := AwaitLeader(t, servers, leads)
		first, other := servers[leader], servers[(leader+1)%len(servers)]
		switch n % 3 {
		case 0:
			first.Kill()
			first.Restart(t)
		case 1: // all locks are lost
			first.Pause(t)
			other.Pause(t)
			time.Sleep(ShortTTL * 5 / 4)
			first.Resume()
			other.Resume()
		case 2:
			first.Pause(t)
			time.Sleep(ShortTTL * 3 / 4)
			first.Resume()
		}
	})
}

// endsBefore waits until the context of l has ended and w has the lock, and fails unless that was the order.
func endsBefore(t testing.TB, l redlock.SecondLock, w <-chan time.Time) {
	t.Helper()
	ended := make(chan time.Time, 1)
	context.AfterFunc(l.Context(), func() { ended <- time.Now() })
	var end, taken time.Time
	for end.IsZero() || taken.IsZero() {
		select {
		case end = <-ended:
		case taken = <-w:
		case <-time.After(Patience):
			require.Fail(t, "the lock is not lost, or nobody else gets it")
		}
	}
	t.Logf("the context ended %v before another had the lock: %v", taken.Sub(end), context.Cause(l.Context()))
	require.True(t, end.Before(taken), "the context ended %v after another had the lock", end.Sub(taken))
}

// chaos has all of seconds take a lock in turns, while fail is called again and again for about d. A holder works until its
// context ends, or gives up the lock after a while. Whoever gets the lock finds the context of the last one ended: asked,
// it looks at the clock.
func (s Store) chaos(t *testing.T, seconds []Second, d time.Duration, fail func(n int)) {
	ctx, cancel := context.WithCancel(Background(t))
	defer cancel()
	var mu sync.Mutex
	var taken, lost int
	var last redlock.SecondLock // that was held when it was looked at
	var all sync.WaitGroup
	for _, second := range seconds {
		all.Go(func() {
			for ctx.Err() == nil {
				l, err := second.Lock(ctx, "k")
				if err != nil {
					time.Sleep(20 * time.Millisecond)
					continue
				}
				hold := 100 * time.Millisecond
				mu.Lock()
				if l.Context().Err() == nil {
					if taken++; taken%3 == 0 {
						hold = 4 * time.Second
					}
					if last != nil && last.Context().Err() == nil {
						t.Error("two have the lock")
					}
					if last != nil && l.Fence() <= last.Fence() {
						t.Errorf("fence %d after %d", l.Fence(), last.Fence())
					}
					last = l
				}
				mu.Unlock()
				select {
				case <-l.Context().Done():
					mu.Lock()
					lost++
					mu.Unlock()
				case <-time.After(hold):
				}
				unlock, cancel := context.WithTimeout(context.Background(), Patience)
				l.Unlock(unlock)
				cancel()
			}
		})
	}
	began := time.Now()
	for n := 0; time.Since(began) < d; n++ {
		time.Sleep(500 * time.Millisecond)
		fail(n)
	}
	// It can be had again.
	mu.Lock()
	before := taken
	mu.Unlock()
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return taken > before
	}, Patience, 10*time.Millisecond)
	cancel()
	all.Wait()
	t.Logf("%d locks, %d of them lost", taken, lost)
	s.AwaitQueue(t, "k", 0)
}
