//go:build unix

package etcdtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/redburst/redburst/redlock/contrib/etcd"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

// These tests are those of every store.

func TestSecond(t *testing.T) {
	t.Parallel()
	storeOf(t, calm(t), "second/", etcd.WithTTL(10*time.Second)).Run(t)
}

// behindProxy opens stores whose sessions have a TTL, and Seconds with another that reach them through a proxy.
func behindProxy(t testing.TB, ttl, through time.Duration) secondtest.Opener {
	c := calm(t)
	return func(t testing.TB) (secondtest.Store, *secondtest.Proxy, func(testing.TB) secondtest.Second) {
		p, prefix := secondtest.NewProxy(t, c.Addrs[0]), t.Name()+"/"
		return storeOf(t, c, prefix, etcd.WithTTL(ttl)), p, func(t testing.TB) secondtest.Second {
			return newSecond(t, c.Client(t, p.Addr), etcd.WithPrefix(prefix), etcd.WithTTL(through))
		}
	}
}

func TestPair(t *testing.T) {
	t.Parallel()
	secondtest.Pair(t, behindProxy(t, etcd.DefaultTTL, secondtest.ShortTTL))
}

func TestContextEndsBeforeAnotherHasTheLock(t *testing.T) {
	t.Parallel()
	secondtest.ContextEndsFirst(t, behindProxy(t, etcd.DefaultTTL, secondtest.ShortTTL))
}

func TestCancelledAtEveryPoint(t *testing.T) {
	t.Parallel()
	secondtest.CancelledAtEveryPoint(t, behindProxy(t, etcd.DefaultTTL, etcd.DefaultTTL))
}

func TestForeignMutexesAreExcludedAndExclude(t *testing.T) {
	t.Parallel()
	c := calm(t)
	second := newSecond(t, c.Client(t), etcd.WithPrefix("foreign/"))
	require.Equal(t, "foreign/plain key", second.Prefix("plain key"))
	session, err := concurrency.NewSession(c.Client(t))
	require.NoError(t, err)
	defer session.Close()
	storeOf(t, c, "foreign/").ExcludesForeign(t, second, func(key string) secondtest.ForeignLock {
		return foreignMutex{t, concurrency.NewMutex(session, second.Prefix(key))}
	})
}

type foreignMutex struct {
	t testing.TB
	m *concurrency.Mutex
}

func (f foreignMutex) Lock() error   { return f.m.Lock(secondtest.Background(f.t)) }
func (f foreignMutex) Unlock() error { return f.m.Unlock(secondtest.Background(f.t)) }

func TestServersFail(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	with := func(ttl time.Duration) secondtest.Store { return storeOf(t, c, "three/", etcd.WithTTL(ttl)) }
	with(5*time.Second).ServersFail(t, c.Members, func(int) bool { return false },
		with(secondtest.LastingTTL).Open(t), with(secondtest.ShortTTL).Open(t))
}

func TestLeadersFail(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	storeOf(t, c, "leaders/", etcd.WithTTL(secondtest.ShortTTL)).LeadersFail(t, c.Members, func(i int) bool { return c.leads(t, i) })
}
