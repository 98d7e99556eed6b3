//go:build unix

package etcdtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redburst/redburst/redlock/contrib/etcd"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

// shared is a cluster of one member that never fails, for the tests that break nothing.
var shared struct {
	once    sync.Once
	cluster *Cluster
	err     error
}

func calm(t testing.TB) *Cluster {
	shared.once.Do(func() { shared.cluster, shared.err = Start(1) })
	require.NoError(t, shared.err)
	return shared.cluster
}

// TestMain fails if goroutines are left.
func TestMain(m *testing.M) {
	Main()
	secondtest.Main(m, func() {
		if shared.cluster != nil {
			shared.cluster.Close()
		}
	})
}

// start starts a cluster that ends with the test.
func start(t testing.TB, n int) *Cluster {
	c, err := Start(n)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func newSecond(t testing.TB, client *clientv3.Client, opts ...etcd.Option) *etcd.Second {
	s, err := etcd.New(client, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// storeOf says how the common tests use a cluster.
func storeOf(t testing.TB, c *Cluster, prefix string, opts ...etcd.Option) secondtest.Store {
	opts = append(opts[:len(opts):len(opts)], etcd.WithPrefix(prefix))
	look := c.Client(t)
	named := newSecond(t, look, opts...)
	return secondtest.Store{
		Open: func(t testing.TB) secondtest.Second { return newSecond(t, c.Client(t), opts...) },
		Queue: func(t testing.TB, key string) int {
			for ctx := secondtest.Background(t); ; { // one member after the other
				try, cancel := context.WithTimeout(ctx, time.Second)
				answer, err := look.Get(try, named.Prefix(key)+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
				cancel()
				if err == nil {
					return int(answer.Count)
				}
				require.NoError(t, ctx.Err(), "%v", err)
			}
		},
		Clear: func(t testing.TB, key string) {
			_, err := look.Delete(secondtest.Background(t), named.Prefix(key)+"/", clientv3.WithPrefix())
			require.NoError(t, err)
		},
		End: func(t testing.TB) {
			all, err := look.Get(secondtest.Background(t), prefix, clientv3.WithPrefix())
			require.NoError(t, err)
			for _, kv := range all.Kvs {
				_, err := look.Revoke(secondtest.Background(t), clientv3.LeaseID(kv.Lease))
				if !errors.Is(err, rpctypes.ErrLeaseNotFound) { // it has several keys
					require.NoError(t, err)
				}
			}
		},
	}
}
