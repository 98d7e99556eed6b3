//go:build unix

package zookeeper

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
	"github.com/redburst/redburst/redlock/contrib/zookeeper/zookeepertest"
)

// shared is a server that never fails, for the tests that break nothing.
var shared struct {
	once     sync.Once
	ensemble *zookeepertest.Ensemble
	err      error
}

func calm(t testing.TB) *zookeepertest.Ensemble {
	zookeepertest.Need(t)
	shared.once.Do(func() { shared.ensemble, shared.err = zookeepertest.Start(1) })
	require.NoError(t, shared.err)
	return shared.ensemble
}

// TestMain fails if goroutines are left.
func TestMain(m *testing.M) {
	secondtest.Main(m, func() {
		if shared.ensemble != nil {
			shared.ensemble.Close()
		}
	})
}

// start starts an ensemble that ends with the test.
func start(t testing.TB, n int) *zookeepertest.Ensemble {
	zookeepertest.Need(t)
	e, err := zookeepertest.Start(n)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

func newSecond(t testing.TB, servers []string, opts ...Option) *Second {
	s, err := New(servers, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// storeOf says how the common tests use an ensemble.
func storeOf(t testing.TB, e *zookeepertest.Ensemble, root string, opts ...Option) secondtest.Store {
	opts = append(opts[:len(opts):len(opts)], WithRoot(root))
	opts = opts[:len(opts):len(opts)]
	client := e.Client(t)
	named := newSecond(t, e.Addrs, opts...)
	var sessions zookeepertest.Sessions
	return secondtest.Store{
		Open: func(t testing.TB) secondtest.Second {
			return newSecond(t, e.Addrs, append(opts, WithDialer(sessions.Dial))...)
		},
		End: sessions.End,
		Clear: func(t testing.TB, key string) {
			names, _, err := client.Children(named.Path(key))
			require.NoError(t, err)
			var all []any // at once: the first must not be the waiter's for a moment
			for _, name := range names {
				all = append(all, &zk.DeleteRequest{Path: named.Path(key) + "/" + name, Version: -1})
			}
			_, err = client.Multi(all...)
			require.NoError(t, err)
		},
		Queue: func(t testing.TB, key string) int {
			for ctx := secondtest.Background(t); ; time.Sleep(10 * time.Millisecond) {
				_, err := client.Sync(named.Path(key))
				var names []string
				if err == nil {
					names, _, err = client.Children(named.Path(key))
				}
				if err == nil || errors.Is(err, zk.ErrNoNode) {
					return len(names)
				}
				require.NoError(t, ctx.Err(), "%v", err)
			}
		},
	}
}
