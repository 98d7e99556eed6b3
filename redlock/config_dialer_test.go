package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A mapping is a Dialer that knows where addresses lead to from here, and notes which it was asked for.
type mapping struct {
	to    sync.Map // string by string
	asked sync.Map
	dials atomic.Int64
	bare  bool // what it returns is a socket
}

func (m *mapping) dial(ctx context.Context, network, address string) (net.Conn, error) {
	m.asked.Store(address, true)
	m.dials.Add(1)
	at, ok := m.to.Load(address)
	if !ok {
		return nil, fmt.Errorf("there is no way to %s", address)
	}
	c, err := new(net.Dialer).DialContext(ctx, network, at.(string))
	if err != nil || m.bare {
		return c, err
	}
	return struct{ net.Conn }{c}, nil
}

// serves demands that locks are taken, released and kept.
func serves(t *testing.T, c *redlock.Client, key string) (held context.Context, kept *redlock.Mutex) {
	t.Helper()
	one, other := c.NewMutex(key, time.Hour), c.NewMutex(key, time.Hour)
	require.NoError(t, one.TryLock(t.Context()))
	require.ErrorIs(t, other.TryLock(t.Context()), redlock.ErrHeld)
	require.NoError(t, one.Unlock(t.Context()))
	require.NoError(t, other.TryLock(t.Context()))
	held, stop := other.KeepAlive(t.Context())
	t.Cleanup(stop)
	require.NoError(t, held.Err())
	return held, other
}

// Locks are as over our own connections: also a loss is told at once.
func TestLocksOverADialer(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{true, false} {
		t.Run(fmt.Sprint("a socket ", bare), func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			way := &mapping{bare: bare}
			var names []string
			for i, addr := range masters.Addrs() {
				names = append(names, fmt.Sprintf("master-%d.invalid:6379", i+1))
				way.to.Store(names[i], addr)
			}
			c := openUp(t, redlock.Config{Masters: names, Dialer: way.dial, StallTime: busy})
			held, kept := serves(t, c, "k")
			thief := openWith(t, masters, redlock.Config{})
			steals(t, masters, thief.NewMutex("k", time.Hour))
			conntest.Soon(t, "the loss", held.Done())
			require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
			require.ErrorIs(t, kept.Unlock(t.Context()), redlock.ErrNotHeld)
			before := way.dials.Load()
			masters.Restart(0)
			require.Eventually(t, func() bool {
				return way.dials.Load() > before && (phase(c, 0) == "quarantined" || phase(c, 0) == "up")
			}, time.Minute, 5*time.Millisecond, "it is connected again")
		})
	}
}

// Sentinels name an address that leads nowhere from here, under names of their own.
func TestADialerMapsWhatSentinelsName(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 1)
	way := &mapping{}
	const named = "192.0.2.1:6379"
	way.to.Store(named, groups.Servers(0).Addr(groups.Master(0)))
	_, list, _ := strings.Cut(groups.Addrs()[0], "://")
	list, name, _ := strings.Cut(list, "/")
	var sentinels []string
	for j, at := range strings.Split(list, ",") {
		redlock.Says(t, groups.Sentinels(), j, "SENTINEL", "REMOVE", name)
		redlock.Says(t, groups.Sentinels(), j, "SENTINEL", "MONITOR", name, "192.0.2.1", "6379", "2")
		sentinels = append(sentinels, fmt.Sprintf("sentinel-%d.invalid:26379", j+1))
		way.to.Store(sentinels[j], at)
	}
	c := openConfig(t, redlock.Config{Masters: []string{"sentinel://" + strings.Join(sentinels, ",") + "/" + name}, Dialer: way.dial, StallTime: busy})
	reaches(t, c, 0, "up")
	serves(t, c, "k")
	for _, address := range append(sentinels, named) {
		_, ok := way.asked.Load(address)
		require.True(t, ok, address)
	}
}

// The nodes of a cluster name themselves by names that lead nowhere from here.
func TestADialerMapsWhatClustersName(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3, orderedOnly)
	way := &mapping{}
	var list, names []string
	for j := range clusters.Nodes(0).N() {
		_, port, err := net.SplitHostPort(clusters.Nodes(0).Addr(j))
		require.NoError(t, err)
		host := fmt.Sprintf("node-%d.invalid", j+1)
		if _, err = clusters.Nodes(0).Do(j, "CONFIG", "SET", "cluster-announce-hostname", host); err != nil {
			t.Skip("this server announces no names: ", err)
		}
		redlock.Says(t, clusters.Nodes(0), j, "CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
		names = append(names, net.JoinHostPort(host, port))
		way.to.Store(names[j], clusters.Nodes(0).Addr(j))
	}
	for j := range clusters.Nodes(0).N() { // and all have heard of all
		require.Eventually(t, func() bool {
			said := redlock.Says(t, clusters.Nodes(0), j, "CLUSTER", "SLOTS")
			return strings.Count(fmt.Sprint(said), ".invalid") >= clusters.Nodes(0).N()
		}, time.Minute, 10*time.Millisecond)
	}
	for _, j := range []int{0, 1, 2} {
		list = append(list, names[j])
	}
	c := openConfig(t, redlock.Config{Masters: []string{"cluster://" + strings.Join(list, ",")}, Prefix: locks, Dialer: way.dial, StallTime: busy})
	reaches(t, c, 0, "up")
	_, kept := serves(t, c, "k")
	at := clusters.Owner(0, lockSlot)
	_, asked := way.asked.Load(names[at])
	require.True(t, asked)
	require.NoError(t, kept.Unlock(t.Context()))
	way.asked.Range(func(address, _ any) bool {
		require.Contains(t, names, address, "nobody looks a name up")
		return true
	})
}

// A Dialer's refusal does not tell that a master is down: the operator does.
func TestReplaceDoesNotBelieveADialer(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	c := openUp(t, redlock.Config{Masters: masters.Addrs()[:3], StallTime: time.Second, DialTimeout: time.Second,
		Dialer: new(net.Dialer).DialContext})
	masters.Kill(2)
	reaches(t, c, 2, "down")
	err := c.Replace(t.Context(), masters.Addr(2), masters.Addr(3))
	require.ErrorContains(t, err, "connection refused")
	require.NotErrorIs(t, err, redlock.ErrRefused)
	require.NoError(t, c.Replace(t.Context(), masters.Addr(2), masters.Addr(3), redlock.ShutDown()))
	reaches(t, c, 2, "up")
}

// Open is not held up by a Dialer that hangs.
func TestOpenGivesAHungDialerUp(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	_, err := redlock.Open(t.Context(), redlock.Config{Masters: []string{"master.invalid"}, DialTimeout: 100 * time.Millisecond,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			<-goOn
			return nil, errors.New("late")
		}})
	require.ErrorIs(t, err, redlock.ErrNoQuorum) // whether it names the Dialer is a matter of whose timeout is first
	close(goOn)
}
