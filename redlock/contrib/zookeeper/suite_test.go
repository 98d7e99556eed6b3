//go:build unix

package zookeeper

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
	"github.com/redburst/redburst/redlock/contrib/zookeeper/zookeepertest"
)

// These tests are those of every store.

func TestSecond(t *testing.T) {
	t.Parallel()
	storeOf(t, calm(t), "/test/second", WithTimeout(4*time.Second)).Run(t)
}

// behindProxy opens stores whose sessions have a timeout, and Seconds with another that reach them through a proxy.
func behindProxy(t testing.TB, timeout, through time.Duration) secondtest.Opener {
	e := calm(t)
	return func(t testing.TB) (secondtest.Store, *secondtest.Proxy, func(testing.TB) secondtest.Second) {
		p, root := secondtest.NewProxy(t, e.Addrs[0]), "/"+t.Name()
		return storeOf(t, e, root, WithTimeout(timeout)), p, func(t testing.TB) secondtest.Second {
			return newSecond(t, []string{p.Addr}, WithRoot(root), WithTimeout(through))
		}
	}
}

func TestPair(t *testing.T) {
	t.Parallel()
	secondtest.Pair(t, behindProxy(t, secondtest.ShortTTL, secondtest.ShortTTL))
}

func TestContextEndsBeforeAnotherHasTheLock(t *testing.T) {
	t.Parallel()
	secondtest.ContextEndsFirst(t, behindProxy(t, DefaultTimeout, secondtest.ShortTTL))
}

func TestCancelledAtEveryPoint(t *testing.T) {
	t.Parallel()
	secondtest.CancelledAtEveryPoint(t, behindProxy(t, DefaultTimeout, DefaultTimeout))
}

func TestForeignLocksAreExcludedAndExclude(t *testing.T) {
	t.Parallel()
	e := calm(t)
	s := storeOf(t, e, "/foreign")
	second := s.Open(t).(*Second)
	require.Equal(t, "/foreign/plain-key", second.Path("plain-key"))
	client := e.Client(t)
	s.ExcludesForeign(t, second, func(key string) secondtest.ForeignLock {
		return zk.NewLock(client, second.Path(key), zk.WorldACL(zk.PermAll))
	})
}

func TestServersFail(t *testing.T) {
	t.Parallel()
	e := start(t, 3)
	// Without its leader an ensemble is away for longer than a session may last.
	with := func(timeout time.Duration) secondtest.Store { return storeOf(t, e, "/three", WithTimeout(timeout)) }
	with(4*time.Second).ServersFail(t, e.Servers, func(i int) bool { return leads(e, i) },
		with(secondtest.LastingTTL).Open(t), with(secondtest.ShortTTL).Open(t))
}

func TestLeadersFail(t *testing.T) {
	t.Parallel()
	e := start(t, 3)
	storeOf(t, e, "/leaders", WithTimeout(secondtest.ShortTTL)).LeadersFail(t, e.Servers, func(i int) bool { return leads(e, i) })
}

func leads(e *zookeepertest.Ensemble, i int) bool { return zookeepertest.Mode(e.Addrs[i]) == "leader" }
