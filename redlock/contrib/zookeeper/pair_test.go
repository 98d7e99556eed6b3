//go:build unix

package zookeeper

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

func TestPair(t *testing.T) {
	t.Parallel()
	e := calm(t)
	secondtest.Pair(t, func(t testing.TB) (secondtest.Store, *secondtest.Proxy, func(testing.TB) secondtest.Second) {
		p, root := secondtest.NewProxy(t, e.Addrs[0]), "/"+t.Name()
		return storeOf(t, e, root, WithTimeout(2*time.Second)), p, func(t testing.TB) secondtest.Second {
			return newSecond(t, []string{p.Addr}, WithRoot(root), WithTimeout(2*time.Second))
		}
	})
}
