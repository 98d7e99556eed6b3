//go:build unix

package zookeeper

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
	"github.com/redburst/redburst/redlock/contrib/zookeeper/zookeepertest"
)

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

// What is no ZooKeeper is said to be none, and nobody waits for the rest of what a server begins to say.
func TestFirstMessage(t *testing.T) {
	for sent, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n": "no ZooKeeper",
		"\x15\x03\x03\x00\x02\x02\x28": "needs TLS", // an alert
		"\x00\x00\x00\x25":             "timeout",
	} {
		synctest.Test(t, func(t *testing.T) {
			client, server := net.Pipe()
			defer server.Close()
			w := &wire{timeout: time.Minute, open: map[*connection]bool{}, dial: func(string, string, time.Duration) (net.Conn, error) {
				return client, nil
			}}
			c, err := w.Dial("tcp", "server", time.Minute)
			require.NoError(t, err)
			defer c.Close()
			go server.Write([]byte(sent))
			first := make([]byte, 41) // the client reads it like this
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
			_, err = io.ReadFull(c, first[:4])
			require.NoError(t, c.SetReadDeadline(time.Time{}))
			if err == nil {
				_, err = io.ReadFull(c, first[4:])
			}
			require.ErrorContains(t, err, want)
			require.ErrorIs(t, w.reason(errors.New("no answer")), err)
		})
	}
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

// Nobody has confirmed an end whose connection breaks. That one broke before does not matter.
func TestConnectionBreaksAtTheEnd(t *testing.T) {
	t.Parallel()
	p := secondtest.NewProxy(t, calm(t).Addrs[0])
	for _, breaks := range []bool{false, true} {
		second := newSecond(t, []string{p.Addr}, WithRoot("/end"), WithTimeout(10*time.Second))
		require.NoError(t, secondtest.MustLock(t, second, "k").Unlock(secondtest.Background(t)))
		p.Reset()
		require.NoError(t, secondtest.MustLock(t, second, "k").Unlock(secondtest.Background(t)))
		if breaks {
			p.Trap(0, false, p.Reset)
			require.ErrorContains(t, second.Close(), "no server has answered")
		} else {
			require.NoError(t, second.Close())
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
		}, secondtest.Patience, 5*time.Millisecond)
		if first == nil {
			first = now[0]
		}
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
	}, secondtest.Patience, 5*time.Millisecond)
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
