//go:build unix

package etcdtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close()
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	if shared.cluster != nil {
		shared.cluster.Close()
	}
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+string(buf[:runtime.Stack(buf, true)]))
			code = 1
			break
		}
	}
	os.Exit(code)
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
func storeOf(c *Cluster, prefix string, opts ...etcd.Option) secondtest.Store {
	opts = append(opts, etcd.WithPrefix(prefix))
	var looking sync.Mutex
	var client *clientv3.Client
	look := func(t testing.TB) *clientv3.Client {
		looking.Lock()
		defer looking.Unlock()
		if client == nil {
			client = c.Client(t)
		}
		return client
	}
	return secondtest.Store{
		Open: func(t testing.TB) secondtest.Second { return newSecond(t, c.Client(t), opts...) },
		Line: func(t testing.TB, key string) int {
			line := newSecond(t, look(t), opts...).Prefix(key) + "/"
			for ctx := secondtest.Background(t); ; { // one member after the other
				try, cancel := context.WithTimeout(ctx, time.Second)
				answer, err := look(t).Get(try, line, clientv3.WithPrefix(), clientv3.WithCountOnly())
				cancel()
				if err == nil {
					return int(answer.Count)
				}
				require.NoError(t, ctx.Err(), "%v", err)
			}
		},
		End: func(t testing.TB) {
			leases, err := look(t).Leases(secondtest.Background(t))
			require.NoError(t, err)
			for _, l := range leases.Leases {
				_, err := look(t).Revoke(secondtest.Background(t), l.ID)
				require.NoError(t, err)
			}
		},
	}
}
