//go:build unix

package zookeeper

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
	"github.com/redburst/redburst/redlock/contrib/zookeeper/zookeepertest"
)

func TestForeignLocksAreExcludedAndExclude(t *testing.T) {
	t.Parallel()
	e := calm(t)
	s := storeOf(t, e, "/foreign")
	second := s.Open(t).(*Second)
	require.Equal(t, "/foreign/plain-key", second.Path("plain-key"))
	for _, key := range []string{"plain-key", "a/b%"} {
		foreign := zk.NewLock(e.Client(t), second.Path(key), zk.WorldACL(zk.PermAll))
		require.NoError(t, foreign.Lock())
		_, err := second.TryLock(secondtest.Background(t), key)
		require.ErrorIs(t, err, redlock.ErrHeld)
		w := s.Watch(t, second, key)
		require.NoError(t, foreign.Unlock())
		w.Await(t)

		l := secondtest.MustLock(t, second, key)
		waited := make(chan error, 1)
		go func() { waited <- foreign.Lock() }()
		s.AwaitQueue(t, key, 2)
		require.NoError(t, l.Unlock(secondtest.Background(t)))
		require.NoError(t, <-waited)
		require.NoError(t, foreign.Unlock())
	}
}

func TestContextEndsBeforeAnotherHasTheLock(t *testing.T) {
	t.Parallel()
	e := calm(t)
	for name, root := range map[string]string{"at once": "/cut1", "after heartbeats": "/cut2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := secondtest.NewProxy(t, e.Addrs[0])
			a := newSecond(t, []string{p.Addr}, WithRoot(root), WithTimeout(2*time.Second))
			s := storeOf(t, e, root, WithTimeout(2*time.Second))
			l := secondtest.MustLock(t, a, "k")
			if name == "after heartbeats" {
				time.Sleep(2700 * time.Millisecond)
				require.NoError(t, l.Context().Err())
			}
			w := s.Watch(t, s.Open(t), "k")
			p.Cut()
			secondtest.EndsBefore(t, l, w)
			p.Reset()
			p.Heal()
			require.ErrorIs(t, l.Unlock(secondtest.Background(t)), redlock.ErrNotHeld)
			// The Second is of use again.
			require.NoError(t, secondtest.MustLock(t, a, "k").Unlock(secondtest.Background(t)))
		})
	}
}

// The servers decide how long a session lasts.
func TestTimeoutIsTheOneThatIsAgreedTo(t *testing.T) {
	t.Parallel()
	e := calm(t)
	second := newSecond(t, e.Addrs, WithTimeout(100*time.Millisecond), WithRoot("/agreed"))
	l := secondtest.MustLock(t, second, "k")
	require.Equal(t, 2*zookeepertest.Tick, second.store.lastTimeout())
	l.Unlock(secondtest.Background(t)) // a machine that is busy may have lost it by now

	second = newSecond(t, e.Addrs, WithTimeout(time.Hour), WithRoot("/agreed"))
	l = secondtest.MustLock(t, second, "k")
	require.Equal(t, time.Minute, second.store.lastTimeout())
	require.NoError(t, l.Unlock(secondtest.Background(t)))
}

func TestCancelledAtEveryPoint(t *testing.T) {
	t.Parallel()
	e := calm(t)
	p := secondtest.NewProxy(t, e.Addrs[0])
	s := storeOf(t, e, "/cancel")
	s.CancelledAtEveryPoint(t, p, func(t testing.TB) secondtest.Second {
		return newSecond(t, []string{p.Addr}, WithRoot("/cancel"))
	})
}

// A connection that breaks at any point while a lock is taken leaves nothing, and the lock is taken on the next.
func TestConnectionBreaksAtEveryPoint(t *testing.T) {
	t.Parallel()
	e := calm(t)
	s := storeOf(t, e, "/break")
	for _, fromServer := range []bool{false, true} {
		for n := 0; n < 20; n++ {
			p := secondtest.NewProxy(t, e.Addrs[0])
			second := newSecond(t, []string{p.Addr}, WithRoot("/break"), WithTimeout(10*time.Second))
			require.NoError(t, secondtest.MustLock(t, second, "first").Unlock(secondtest.Background(t)))
			reached := p.Trap(n, fromServer, p.Reset)
			l, err := second.TryLock(secondtest.Background(t), "k")
			require.NoError(t, err)
			s.AwaitQueue(t, "k", 1)
			require.NoError(t, l.Unlock(secondtest.Background(t)))
			s.AwaitQueue(t, "k", 0)
			if !reached() {
				t.Log("it broke at", n, "points")
				break
			}
		}
	}
}

// Many who wait for one node in vain leave one watch on it.
func TestWatchesDoNotPileUp(t *testing.T) {
	t.Parallel()
	s := storeOf(t, calm(t), "/watches")
	a, b := s.Open(t), s.Open(t).(*Second)
	l := secondtest.MustLock(t, a, "k")
	var session *session
	var first *watch
	for range 20 {
		ctx, cancel := context.WithCancel(secondtest.Background(t))
		failed := make(chan error, 1)
		go func() {
			_, err := b.Lock(ctx, "k")
			failed <- err
		}()
		s.AwaitQueue(t, "k", 2)
		session = b.store.lastSession()
		var now []*watch
		require.Eventually(t, func() bool {
			session.mu.Lock()
			defer session.mu.Unlock()
			now = slices.Collect(maps.Values(session.watches))
			return len(now) == 1
		}, secondtest.Patience, time.Millisecond)
		if first == nil {
			first = now[0]
		}
		time.Sleep(5 * time.Millisecond)
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		s.AwaitQueue(t, "k", 1)
		session.mu.Lock()
		for _, w := range session.watches {
			require.Same(t, first, w)
		}
		session.mu.Unlock()
	}
	require.NoError(t, l.Unlock(secondtest.Background(t)))
	require.Eventually(t, func() bool {
		session.mu.Lock()
		defer session.mu.Unlock()
		return len(session.watches) == 0
	}, secondtest.Patience, time.Millisecond)
}

func TestNumbers(t *testing.T) {
	for name, want := range map[string]int32{
		"_c_0123456789abcdef-lock-0000000007":  7,
		"_c_0123456789abcdef-lock-2147483647":  2147483647,
		"_c_0123456789abcdef-lock--2147483648": -2147483648,
		"_c_0123456789abcdef-lock--000000001":  -1,
		"b2f__lock__0000000012":                12,
		"b2f__lock__-000000012":                -12,
		"x0000000003":                          3,
	} {
		n, ok := number(name)
		require.True(t, ok, name)
		require.Equal(t, want, n, name)
	}
	for _, name := range []string{"", "lock", "lock-1", "lock-99999999999", "lock-00000000a"} {
		_, ok := number(name)
		require.False(t, ok, name)
	}
}

func TestNearestBefore(t *testing.T) {
	for _, test := range []struct {
		names string
		own   string
		want  string
		there bool
	}{
		{"l-0000000001", "l-0000000001", "", true},
		{"l-0000000001 l-0000000002 l-0000000003 l-0000000004", "l-0000000003", "l-0000000002", true},
		{"l-0000000005 x__lock__0000000002 hello l-1 l-0000000004", "l-0000000004", "x__lock__0000000002", true},
		{"l-0000000005", "l-0000000004", "", false},
		{"l-0000000003", "l-0000000004", "l-0000000003", false},
		{"l-2147483646 l-2147483647 l--2147483648 l--2147483647", "l--2147483648", "l-2147483647", true},
		{"l-2147483647 l--2147483648", "l-2147483647", "", true},
		{"l--000000001 l-0000000000", "l-0000000000", "l--000000001", true},
	} {
		before, there := nearestBefore(strings.Fields(test.names), test.own)
		require.Equal(t, test.want, before, test)
		require.Equal(t, test.there, there, test)
	}
}

// A heartbeat is a write, and counts from when the one before was sent.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	e := start(t, 1) // where nobody else writes
	p := secondtest.NewProxy(t, e.Addrs[0])
	second := newSecond(t, []string{p.Addr}, WithTimeout(time.Minute))
	var opening atomic.Int64
	p.Trap(0, true, func() { opening.Store(int64(clock.Now())) })
	opened, span, err := second.store.Open(secondtest.Background(t), func(error) {})
	require.NoError(t, err)
	require.Less(t, span.From, time.Duration(opening.Load()))
	require.NoError(t, opened.Close(secondtest.Background(t)))

	before := clock.Now()
	require.NoError(t, secondtest.MustLock(t, second, "k").Unlock(secondtest.Background(t)))
	s, until := second.store.lastSession(), clock.Now()
	for range 4 {
		opened, zxid := clock.Now(), zookeepertest.Zxid(e.Addrs[0])
		require.NotEmpty(t, zxid)
		var answered atomic.Int64
		p.Trap(0, true, func() { answered.Store(int64(clock.Now())) })
		span, err := s.Renew(secondtest.Background(t))
		require.NoError(t, err)
		require.Greater(t, span.From, before)
		require.Less(t, span.From, until)
		require.NotEqual(t, zxid, zookeepertest.Zxid(e.Addrs[0]))
		before, until = opened, time.Duration(answered.Load())
	}
}

// One of three servers may fail in any way, and nothing is lost. Without a majority there is an error and no lock, and
// all locks end in time. When it is there again, so is the lock.
func TestServersFail(t *testing.T) {
	t.Parallel()
	e := start(t, 3)
	s := storeOf(t, e, "/three", WithTimeout(4*time.Second))
	second := s.Open(t)
	l := secondtest.MustLock(t, second, "k")
	held := func() {
		t.Helper()
		require.Eventually(t, func() bool { // a request that is under way may fail, and there may be no leader
			other, err := second.Lock(secondtest.Background(t), "other")
			if err == nil {
				err = other.Unlock(secondtest.Background(t))
			}
			return err == nil
		}, secondtest.Patience, 10*time.Millisecond)
		require.NoError(t, l.Context().Err(), "%v", context.Cause(l.Context()))
	}
	for i, server := range e.Servers {
		if zookeepertest.Mode(e.Addrs[i]) == "leader" {
			continue
		}
		if i%2 == 0 {
			server.Kill()
			held()
			server.Restart(t)
		} else {
			server.Pause(t)
			held()
			server.Resume()
		}
		held()
	}
	e.Servers[0].Kill()
	e.Servers[1].Kill()
	cause := secondtest.Ended(t, l)
	t.Log(cause)
	require.NotErrorIs(t, cause, context.DeadlineExceeded)
	for name, take := range map[string]func(context.Context, string) (redlock.SecondLock, error){
		"TryLock": second.TryLock, "Lock": second.Lock,
	} {
		ctx := secondtest.Background(t)
		_, err := take(ctx, "free")
		require.Error(t, err, name)
		require.NoError(t, ctx.Err())
		require.NotErrorIs(t, err, redlock.ErrHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		t.Log(err)
	}
	require.NoError(t, e.Servers[0].Begin())
	e.Servers[1].Restart(t)
	var again redlock.SecondLock
	require.Eventually(t, func() bool {
		var err error
		again, err = second.TryLock(secondtest.Background(t), "k")
		return err == nil
	}, secondtest.Patience, 100*time.Millisecond)
	require.Greater(t, again.Fence(), l.Fence())
	s.AwaitQueue(t, "free", 0)
	require.NoError(t, again.Unlock(secondtest.Background(t)))
}

// The leader is killed, or hangs, again and again, while two processes pass a lock to and fro. No two have it at a time, by
// their contexts.
func TestLeadersFail(t *testing.T) {
	t.Parallel()
	e := start(t, 3)
	s := storeOf(t, e, "/leaders", WithTimeout(2*time.Second))
	leader := func() (leader int) {
		require.Eventually(t, func() bool {
			for i, addr := range e.Addrs {
				if zookeepertest.Mode(addr) == "leader" {
					leader = i
					return true
				}
			}
			return false
		}, secondtest.Patience, 50*time.Millisecond)
		return leader
	}
	s.Chaos(t, []secondtest.Second{s.Open(t), s.Open(t)}, 6*time.Second, func(n int) {
		i := leader()
		first, other := e.Servers[i], e.Servers[(i+1)%3]
		switch n % 3 {
		case 0:
			other.Kill()
			other.Restart(t)
		case 1: // all locks are lost
			first.Pause(t)
			other.Pause(t)
			time.Sleep(2500 * time.Millisecond)
			first.Resume()
			other.Resume()
		case 2:
			first.Kill()
			first.Restart(t)
		}
	})
}
