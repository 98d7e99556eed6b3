package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

var releasedKinds = map[string][]Option{
	"plain": nil, "fenced": {WithFence()}, "several": {WithKeys("l", "m")}, "several fenced": {WithKeys("n"), WithFence()},
	"one permit": {WithPermits(1)}, "least hold over": {WithMinHold(time.Millisecond)},
}

// The next attempt of the process follows the release on each connection.
func TestTheNextAttemptFollowsARelease(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for name, opts := range releasedKinds {
		t.Run(name, func(t *testing.T) {
			for i := range 3 {
				Says(t, masters, i, "FLUSHALL")
				Says(t, masters, i, "SCRIPT", "FLUSH")
			}
			c := openedWith(t, Config{Masters: masters.Addrs()})
			mutexes := []*Mutex{c.NewMutex("k", time.Minute, opts...), c.NewMutex("k", time.Minute, opts...)}
			for n := range 60 {
				m := mutexes[n%2]
				if n%3 == 0 {
					require.NoError(t, m.Lock(t.Context()))
				} else {
					require.NoError(t, m.TryLock(t.Context()))
				}
				if name == "least hold over" {
					time.Sleep(10 * time.Millisecond) // it passes, on real masters
				}
				require.NoError(t, m.Release())
				require.Zero(t, m.Remaining())
				require.Empty(t, m.Token())
			}
			require.Eventually(t, func() bool { return c.Stats().Released == 60 }, hanging, 5*time.Millisecond)
			require.Zero(t, c.Stats().ReleaseFailed)
		})
	}
}

// A master that has forgotten the script of a release is sent its text, whether somebody waits for the release or not.
func TestAReleaseGoesOutWhereItsScriptWasForgotten(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for name, opts := range releasedKinds {
		t.Run(name, func(t *testing.T) {
			for i := range 3 {
				Says(t, masters, i, "FLUSHALL")
			}
			c := openedWith(t, Config{Masters: masters.Addrs()})
			for n, release := range []func(m *Mutex) error{
				(*Mutex).Release,
				func(m *Mutex) error { return m.Unlock(t.Context()) },
				func(m *Mutex) error {
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					if err := m.Unlock(ctx); !errors.Is(err, context.Canceled) {
						return fmt.Errorf("not %w: %w", context.Canceled, err)
					}
					return nil
				},
			} {
				for range 2 { // the second finds what the first has left
					m := c.NewMutex("k", time.Minute, opts...)
					require.NoError(t, m.Lock(t.Context()), n) // a release may come late where it needs its text
					Confirmed(t, m)
					if name == "least hold over" {
						time.Sleep(10 * time.Millisecond)
					}
					for i := range 3 {
						Says(t, masters, i, "SCRIPT", "FLUSH")
					}
					require.NoError(t, release(m), n)
					require.Eventually(t, func() bool {
						for i := range 3 {
							if left, err := masters.Do(i, "EXISTS", kind.SlotKey("k", 1, 1), "k", "l", "m", "n"); err != nil || left != int64(0) {
								return false
							}
						}
						return true
					}, hanging, 5*time.Millisecond, n)
				}
			}
			require.Equal(t, uint64(2), c.Stats().ReleaseFailed, "of those whose context had ended")
		})
	}
}

// The writer that follows readers, and the readers that follow it.
func TestReadersAndWritersFollowARelease(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	writer := c.NewMutex("k", time.Minute)
	readers := []*Mutex{c.NewMutex("k", time.Minute, WithShared()), c.NewMutex("k", time.Minute, WithShared())}
	for range 100 {
		require.NoError(t, writer.TryLock(t.Context()))
		require.NoError(t, writer.Release())
		for _, r := range readers {
			require.NoError(t, r.TryLock(t.Context()))
		}
		for _, r := range readers {
			require.NoError(t, r.Release())
		}
	}
}

// rounds records what an Observer is told of releases.
type toldOf struct {
	mu    sync.Mutex
	round []Event
}

func (o *toldOf) observer() []Observer {
	return onEvent(EventRound, func(r *Event) {
		if r.Op == opUnlock {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.round = append(o.round, *r)
		}
	})
}

// last returns the only one since the last call.
func (o *toldOf) last(t *testing.T) Event {
	t.Helper()
	time.Sleep(time.Minute) // on the fake clock
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	require.Len(t, o.round, 1)
	r := o.round[0]
	o.round = nil
	return r
}

func TestWhatBecomesOfAReleaseIsTold(t *testing.T) {
	o := new(toldOf)
	simulated(t, 5, Config{Observers: o.observer()}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl)
		require.ErrorIs(t, m.Release(), ErrNotHeld)

		require.NoError(t, m.TryLock(t.Context()))
		began := time.Now()
		require.NoError(t, m.Release())
		require.Equal(t, began, time.Now(), "it waits for nobody")
		told := o.last(t)
		require.NoError(t, told.Err)
		require.Equal(t, "k", told.Key)
		require.Equal(t, uint64(1), c.Stats().Released)
		require.Zero(t, r.keys())

		require.NoError(t, m.TryLock(t.Context()))
		time.Sleep(10 * time.Millisecond) // the lock is taken when a quorum has it: now all have
		r.set(func(m *fakeMaster) { clear(m.keys) }, 0, 1, 2)
		require.NoError(t, m.Release(), "nobody knows yet")
		require.ErrorIs(t, o.last(t).Err, ErrNotHeld)
		require.Equal(t, uint64(1), c.Stats().ReleaseFailed)

		require.NoError(t, m.TryLock(t.Context()))
		r.set(func(m *fakeMaster) { m.down = errors.New("down") }, 0, 1, 2)
		require.NoError(t, m.Release())
		require.ErrorIs(t, o.last(t).Err, ErrNoQuorum)
		r.set(func(m *fakeMaster) { m.down = nil }, 0, 1, 2)
		require.NoError(t, m.Lock(t.Context()), "the key has ended with its TTL")

		r.set(func(m *fakeMaster) { m.mute = true }, 0, 1, 2)
		require.NoError(t, m.Release())
		require.ErrorIs(t, o.last(t).Err, ErrNoQuorum)
		r.set(func(m *fakeMaster) { m.mute = false }, 0, 1, 2)

		require.NoError(t, m.TryLock(t.Context()))
		time.Sleep(ttl)
		require.ErrorIs(t, m.Release(), ErrNotHeld, "its validity has ended")
		require.ErrorIs(t, o.last(t).Err, ErrNotHeld)

		require.NoError(t, m.TryLock(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		require.NoError(t, m.Release())
		require.Equal(t, context.Canceled, context.Cause(held), "it is no loss")
		require.NoError(t, o.last(t).Err)
		require.Zero(t, c.Stats().Lost)
		require.Zero(t, c.Stats().Kept)
		require.Equal(t, uint64(2), c.Stats().Released)
		require.Equal(t, uint64(4), c.Stats().ReleaseFailed)
	})
}

func TestAReleaseGivesTheQueueItsTurn(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		const waiters = 5
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				m := c.NewMutex("k", ttl)
				require.NoError(t, m.Lock(t.Context()))
				require.NoError(t, m.Release())
			})
		}
		time.Sleep(ttl / 2)
		began := time.Now()
		require.NoError(t, m.Release())
		all.Wait()
		require.Equal(t, uint64(waiters), c.Stats().more.WokenLocal)
		require.Less(t, time.Since(began), time.Second, "a round for each, on the fake clock")
		r.gone(t, time.Second)
	})
}

func TestAReleaseIsOwedToAMasterThatIsAway(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs()}) // one that is starved is not given up
	m := c.NewMutex("k", time.Hour)
	require.NoError(t, m.TryLock(t.Context()))
	exists := func(n string) func() bool {
		return func() bool {
			v, err := masters.Do(2, "EXISTS", "k")
			return err == nil && fmt.Sprint(v) == n
		}
	}
	require.Eventually(t, exists("1"), hanging, 5*time.Millisecond)
	Confirmed(t, m)
	masters.Pause(2)
	require.NoError(t, m.Release())
	require.Eventually(t, func() bool { return c.Stats().Released == 1 }, hanging, 5*time.Millisecond)
	masters.Resume(2)
	require.Eventually(t, exists("0"), hanging, 5*time.Millisecond)
}

func TestCloseLingersForARelease(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	lingered := 0
	for n := range 20 {
		o := new(toldOf)
		c := openedWith(t, Config{Masters: masters.Addrs(), Observers: o.observer()})
		m := c.NewMutex("k", time.Hour)
		require.NoError(t, m.Lock(t.Context()), n) // a release may come late where it needs its text
		require.NoError(t, m.Release())
		require.NoError(t, c.Close())
		require.Len(t, o.round, 1)
		if err := o.round[0].Err; err != nil { // the masters were too busy to answer in time
			require.ErrorIs(t, err, ErrClosed)
		} else {
			lingered++
			require.Equal(t, uint64(1), c.Stats().Released)
		}
		require.ErrorIs(t, m.Release(), ErrNotHeld)
	}
	require.Positive(t, lingered)
	c := openedWith(t, Config{Masters: masters.Addrs()})
	m := c.NewMutex("k", time.Hour)
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, c.Close())
	require.ErrorIs(t, m.Release(), ErrClosed)
}

// Many processes take a lock and release it without waiting: never do two hold it.
func TestReleasesKeepExclusion(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var inside sync.Mutex
	var all sync.WaitGroup
	for _, c := range openedTimes(t, 4, Config{Masters: masters.Addrs()}) {
		all.Go(func() {
			m := c.NewMutex("k", time.Minute)
			for range 40 {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				if !inside.TryLock() {
					t.Error("two hold it")
					return
				}
				inside.Unlock()
				if err := m.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	conntest.AllEnd(t, "all have had it", &all)
}
