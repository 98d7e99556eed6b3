package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// suspectKinds are the kinds of locks of which somebody else can have had one in between.
var suspectKinds = map[string][]redlock.Option{
	"plain":          nil,
	"fence":          {redlock.WithFence()},
	"several":        {redlock.WithKeys("and", "more")},
	"several fenced": {redlock.WithFence(), redlock.WithKeys("and", "more")},
	"reader":         {redlock.WithShared()},
	"permit":         {redlock.WithPermits(1)},
}

// askedAfterALoss is how a holder finds out that its lock is not what it was.
var askedAfterALoss = map[string]func(ctx context.Context, m *redlock.Mutex) error{
	"Extend": func(ctx context.Context, m *redlock.Mutex) error { return m.Extend(ctx) },
	"Unlock": func(ctx context.Context, m *redlock.Mutex) error { return m.Unlock(ctx) },
	"Extend, twice": func(ctx context.Context, m *redlock.Mutex) error {
		m.Extend(ctx)
		return m.Extend(ctx)
	},
	"Extend, then Unlock": func(ctx context.Context, m *redlock.Mutex) error {
		m.Extend(ctx)
		return m.Unlock(ctx)
	},
}

// eachSuspect runs f with each kind and each way to ask, twice with the same Mutex. The client goes through links, the other
// does not.
func eachSuspect(t *testing.T, f func(t *testing.T, masters *redlocktest.Masters, c *redlock.Client, m *redlock.Mutex, others func(), ask func() error)) {
	t.Parallel()
	for kind, opts := range suspectKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3, redlocktest.WithLinks())
			c := openUp(t, redlock.Config{Masters: masters.Addrs(), StallTime: time.Second / 2, RoundTimeout: 300 * time.Millisecond})
			other := openUp(t, redlock.Config{Masters: direct(t, masters)})
			m := c.NewMutex("k", long, opts...)
			writes := opts
			if kind == "reader" {
				writes = nil
			}
			another := other.NewMutex("k", long, writes...)
			others := func() {
				require.Eventually(t, func() bool { return another.TryLock(t.Context()) == nil }, time.Minute, time.Millisecond)
				require.NoError(t, another.Unlock(t.Context()))
			}
			for how, ask := range askedAfterALoss {
				t.Log(how)
				f(t, masters, c, m, others, func() error { return ask(t.Context(), m) })
				m.Unlock(t.Context())
				for i := range 3 {
					reaches(t, c, i, "up")
					deleteLocks(t, masters, i)
				}
			}
		})
	}
}

// The acquire's own set comes late at one master, behind a connection that was given up, after another has had the lock.
func TestAnAcquireThatComesLateHidesNoLoss(t *testing.T) {
	eachSuspect(t, func(t *testing.T, masters *redlocktest.Masters, c *redlock.Client, m *redlock.Mutex, others func(), ask func() error) {
		again := func() {
			masters.Heal(2)
			m.Unlock(t.Context())
			reaches(t, c, 2, "up")
			for i := range 3 {
				deleteLocks(t, masters, i)
			}
		}
		late := func() bool { // unless the connection was reset with the set in it
			n, err := masters.Do(2, "EVAL", redlock.HeldKeys, "0")
			return err == nil && n != int64(0)
		}
		for tries := 0; ; tries++ {
			require.Eventually(t, func() bool {
				masters.CutRequests(2)
				if m.TryLock(t.Context()) == nil && phase(c, 2) == "up" {
					return true // it was sent the set
				}
				again()
				return false
			}, time.Minute, time.Millisecond)
			deleteLocks(t, masters, 1)
			others() // by masters 1 and 2
			require.Eventually(t, func() bool { return phase(c, 2) != "up" }, time.Minute, time.Millisecond, "it is given up")
			masters.Heal(2)
			reaches(t, c, 2, "up")
			until := time.Now().Add(5 * time.Second)
			for !late() && time.Now().Before(until) {
				time.Sleep(time.Millisecond)
			}
			if late() {
				break
			}
			require.Less(t, tries, 10, "the late set is carried out")
			again()
		}
		require.ErrorIs(t, ask(), redlock.ErrNoQuorum)
	})
}

// The answers of an extension are lost together with their connections, with one silent master or all.
func TestLostAnswersHideNoLoss(t *testing.T) {
	eachSuspect(t, func(t *testing.T, masters *redlocktest.Masters, c *redlock.Client, m *redlock.Mutex, others func(), ask func() error) {
		require.NoError(t, m.Lock(t.Context()))
		settled(t, c)
		for i := range 3 {
			masters.CutReplies(i)
			deleteLocks(t, masters, i)
		}
		others()
		require.Error(t, m.Extend(t.Context()))
		for i := range 3 {
			masters.Reset(i)
			masters.Heal(i)
			require.Eventually(t, func() bool { return behind.OfMaster(&c.Stats().Masters[i]).Owed == 0 }, time.Minute, time.Millisecond)
			reaches(t, c, i, "up")
		}
		err := ask()
		for begun := time.Now(); errors.Is(err, redlock.ErrNoQuorum) && time.Since(begun) < time.Minute; {
			err = ask() // a busy machine makes masters late
		}
		require.ErrorIs(t, err, redlock.ErrNotHeld)
	})
}

// Two masters have lost the lock, another has had it, and one of the two is silent: nothing that is set again makes a quorum.
func TestWhatIsSetAgainMakesNoQuorum(t *testing.T) {
	eachSuspect(t, func(t *testing.T, masters *redlocktest.Masters, c *redlock.Client, m *redlock.Mutex, others func(), ask func() error) {
		require.NoError(t, m.Lock(t.Context()))
		settled(t, c)
		deleteLocks(t, masters, 0)
		deleteLocks(t, masters, 2)
		others()
		masters.Cut(0)
		require.ErrorIs(t, ask(), redlock.ErrNoQuorum)
		masters.Heal(0)
	})
}

// A minority that hangs since before the acquire costs nothing: it has never said yes.
func TestAHungMasterDelaysNoUnlock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openUp(t, redlock.Config{Masters: masters.Addrs(), StallTime: time.Minute, RoundTimeout: time.Minute})
	masters.Pause(2)
	for name, opts := range suspectKinds {
		m := c.NewMutex(name, time.Minute, opts...)
		for range 3 {
			require.NoError(t, m.Lock(t.Context()))
			since := time.Now()
			require.NoError(t, m.Unlock(t.Context()))
			require.Less(t, time.Since(since), 20*time.Second)
		}
	}
	masters.Resume(2)
}

// A lock that is kept alive outlives that all masters restart empty, one after the other. Nobody extends it but the
// renewals: one repairs, and another follows at once and confirms that.
func TestAKeptLockOutlivesARollingRestart(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	masters := redlocktest.Start(t, 3)
	c := openUp(t, redlock.Config{Masters: masters.Addrs()})
	locks, held := map[string]*redlock.Mutex{}, map[string]context.Context{}
	for name, opts := range suspectKinds {
		if name == "several fenced" { // it has the keys of another here
			continue
		}
		m := c.NewMutex(name, ttl, opts...)
		require.NoError(t, m.Lock(t.Context()))
		redlock.Confirmed(t, m)
		ctx, stop := m.KeepAlive(t.Context())
		defer stop()
		locks[name], held[name] = m, ctx
	}
	for i := range 3 {
		size := redlock.Says(t, masters, i, "DBSIZE")
		masters.Restart(i)
		redlock.SoonSays(t, masters, i, size, "DBSIZE") // it is given all of them again
		for name, m := range locks {
			require.Eventually(t, func() bool { return redlock.Suspects(m) == 0 }, time.Minute, time.Millisecond, name)
		}
	}
	for name, m := range locks {
		require.NoError(t, context.Cause(held[name]), name)
		require.NoError(t, m.Unlock(t.Context()), name)
	}
}
