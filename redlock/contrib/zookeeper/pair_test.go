//go:build unix

package zookeeper

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

func TestPair(t *testing.T) {
	e := calm(t)
	t.Parallel()
	p := secondtest.NewProxy(t, e.Addrs[0])
	s := storeOf(t, e, "/pair", WithTimeout(2*time.Second))
	s.Pair(t, p, func(t testing.TB) secondtest.Second {
		return newSecond(t, []string{p.Addr}, WithRoot("/pair"), WithTimeout(2*time.Second))
	})
}
