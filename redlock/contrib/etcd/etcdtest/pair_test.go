//go:build unix

package etcdtest

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/contrib/etcd"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

func TestPair(t *testing.T) {
	c := start(t, 1) // as it ends sessions
	t.Parallel()
	p := secondtest.NewProxy(t, c.Addrs[0])
	s := storeOf(c, "pair/", etcd.WithTTL(2*time.Second))
	s.Line(t, "")
	s.Pair(t, p, func(t testing.TB) secondtest.Second {
		return newSecond(t, c.Client(t, p.Addr), etcd.WithPrefix("pair/"), etcd.WithTTL(2*time.Second))
	})
}
