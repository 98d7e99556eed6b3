//go:build unix

package etcdtest

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/contrib/etcd"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

func TestPair(t *testing.T) {
	t.Parallel()
	c := calm(t)
	secondtest.Pair(t, func(t testing.TB) (secondtest.Store, *secondtest.Proxy, func(testing.TB) secondtest.Second) {
		p, prefix := secondtest.NewProxy(t, c.Addrs[0]), t.Name()+"/"
		return storeOf(t, c, prefix, etcd.WithTTL(10*time.Second)), p, func(t testing.TB) secondtest.Second {
			return newSecond(t, c.Client(t, p.Addr), etcd.WithPrefix(prefix), etcd.WithTTL(2*time.Second))
		}
	})
}
