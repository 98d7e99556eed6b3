package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A cluster as a master: through the slot of the prefix.

const locks = "{locks}:"

var lockSlot = conn.HashSlot(locks)

// onClusters is the configuration for all clusters.
func onClusters(clusters *redlocktest.Clusters) redlock.Config {
	return redlock.Config{Masters: clusters.Addrs(), Prefix: locks, RoundTimeout: 2 * time.Second}
}

// orderedOnly has no node of a cluster take over by itself. Under load they do so when they should not, as they wait for
// each other for a second only. Nor do they stop serving when their neighbours are late.
var orderedOnly = redlocktest.WithArgs("--cluster-replica-no-failover", "yes", "--cluster-node-timeout", "5000")

// mayTakeOver lets a node of the only cluster take over by itself.
func mayTakeOver(t *testing.T, clusters *redlocktest.Clusters, j int) {
	t.Helper()
	redlock.Says(t, clusters.Nodes(0), j, "CONFIG", "SET", "cluster-replica-no-failover", "no")
}

// takesOver has a node of cluster i take the slot over. It is ordered to again and again: on a busy machine its master,
// or the others whose votes it needs, may not answer in time, and then nothing comes of an order.
func takesOver(t *testing.T, clusters *redlocktest.Clusters, i, j int, how ...string) {
	t.Helper()
	has := func() bool {
		at, err := clusters.FindOwner(i, lockSlot)
		return err == nil && at == j
	}
	var said any
	var err error
	for deadline := time.Now().Add(2 * time.Minute); !has(); {
		require.True(t, time.Now().Before(deadline), "node %d does not take over, and says %v, %v; %v", j, said, err, clusters.Ready(i))
		said, err = clusters.Nodes(i).Do(j, append([]string{"CLUSTER", "FAILOVER"}, how...)...)
		for tried := time.Now(); !has() && time.Since(tried) < 10*time.Second; { // an order is over after 5 s
			time.Sleep(20 * time.Millisecond) // before the next look
		}
	}
}

// What befalls a cluster that has locks: its slot moves with its keys, and all kinds of failovers. Locks go on each
// time after the quarantine, and no two clients have one.
func TestClusterLosesItsMasterUnderLoad(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3, orderedOnly)
	cfg := onClusters(clusters)
	load := contend(t, 500*time.Millisecond, openConfig(t, cfg), openConfig(t, cfg))
	load.goesOn("at first")
	at := clusters.Owner(0, lockSlot)
	for _, c := range []struct {
		what string
		do   func() // and then another node has the slot
	}{
		{"its slot moves", func() {
			require.NoError(t, clusters.Move(0, lockSlot, 2, func() { time.Sleep(10 * time.Millisecond) }))
		}},
		{"it is ordered to let its replica take over", func() { takesOver(t, clusters, 0, at^1) }},
		{"its replica takes over by itself", func() { takesOver(t, clusters, 0, at^1, "TAKEOVER") }},
		{"it is cut off from the others, and not from us", func() {
			mayTakeOver(t, clusters, at^1)
			clusters.Isolate(0, at, true)
		}},
		{"it is killed", func() {
			clusters.Isolate(0, at^1, false)
			mayTakeOver(t, clusters, at^1)
			clusters.Nodes(0).Kill(at)
		}},
	} {
		before := at
		require.Eventually(t, func() bool { // its replica is in step
			info, err := clusters.Nodes(0).Do(at^1, "INFO", "replication")
			return err == nil && strings.Contains(info.(string), "master_link_status:up") || strings.HasPrefix(c.what, "it is killed")
		}, time.Minute, 10*time.Millisecond)
		c.do()
		at = clusters.Owner(0, lockSlot, before)
		load.goesOn("after " + c.what)
	}
	load.end()
}

// Three clusters are a Redlock: with one of them in quarantine, locks go on, and one that is held survives.
func TestOneOfThreeClustersLosesItsMaster(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 3, 1, orderedOnly)
	cfg := onClusters(clusters)
	var phases diary
	b := openUp(t, cfg)
	cfg.Observers = phases.observer()
	a := openUp(t, cfg)
	const ttl = 6 * time.Second // longer than a busy machine lets two clusters stand still
	m := a.NewMutex("held", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	redlock.Confirmed(t, m)
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	load := contend(t, 500*time.Millisecond, a, b)
	for i, how := range [][]string{{}, {"TAKEOVER"}} {
		takesOver(t, clusters, i, 1, how...)
		phases.awaits(t, clusters.Addrs()[i], "quarantined")
		load.goesOn("meanwhile")
		redlock.Says(t, clusters.Nodes(i), 1, "DEL", locks+"held") // as if it had forgotten it
		for _, c := range []*redlock.Client{a, b} {
			reaches(t, c, i, "up")
		}
		load.goesOn("after " + fmt.Sprint(how))
		require.Eventually(t, func() bool {
			token, err := clusters.Nodes(i).Do(1, "GET", locks+"held")
			return held.Err() != nil || err == nil && token == m.Token()
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, context.Cause(held))
		redlock.Confirmed(t, m) // the next one is to lose it, and then the yes of two must count
	}
	require.ErrorIs(t, b.NewMutex("held", ttl).TryLock(t.Context()), redlock.ErrHeld)
}

// The only cluster fails over while a lock is held there: the lock is lost at once, nobody gets one until the longest
// TTL has passed, and the release is owed to the new master.
func TestLockOnTheOnlyClusterIsLostInAFailover(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3, orderedOnly)
	c := openConfig(t, onClusters(clusters))
	at := clusters.Owner(0, lockSlot)
	m := c.NewMutex("k", 10*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	redlock.SoonSays(t, clusters.Nodes(0), at^1, int64(2), "DBSIZE") // the replica has it; one is the witness
	began := time.Now()
	takesOver(t, clusters, 0, at^1)
	<-held.Done()
	require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
	require.Less(t, time.Since(began), 9*time.Second)
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	require.Eventually(t, func() bool {
		v, err := clusters.Nodes(0).Do(at^1, "DBSIZE")
		return err == nil && v == int64(1)
	}, 9*time.Second-time.Since(began), 5*time.Millisecond, "the new master has the release")
	err := c.NewMutex("k", time.Second).TryLock(t.Context())
	var why *mux.QuarantineError
	require.ErrorAs(t, err, &why)
	require.NoError(t, c.NewMutex("k", time.Second).Lock(t.Context()))
	require.Greater(t, time.Since(began), 10*time.Second)
}

// A client that starts after a failover knows nothing of it, and finds in the slot for how long the node has been its
// master. With Config.RestartGuard it waits for what is missing, and who starts later need not wait again.
func TestANewClientLearnsOfAFailover(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 1, orderedOnly)
	cfg := onClusters(clusters)
	openConfig(t, cfg)
	require.Zero(t, redlock.Says(t, clusters.Nodes(0), 0, "DBSIZE"), "who takes no lock leaves nothing")
	cfg.RestartGuard = 2 * time.Second
	quarantined := func(c *redlock.Client) bool {
		defer c.Close() // who comes later knows what it has left, and no more
		for deadline := time.Now().Add(busy); ; {
			m := c.NewMutex("k", time.Second)
			err := m.TryLock(t.Context())
			m.Unlock(t.Context())
			why, is := errors.AsType[*mux.QuarantineError](err)
			if is {
				require.NotEmpty(t, why.Reason)
			}
			if is || err == nil {
				return is
			}
			require.True(t, time.Now().Before(deadline), err) // it passes, where a busy machine is the cause
		}
	}
	for _, heir := range []int{1, 0} { // the second time the witness is the one before's
		takesOver(t, clusters, 0, heir)
		require.True(t, quarantined(openConfig(t, cfg)), "nobody knows since when it is the master")
		require.Eventually(t, func() bool { return !quarantined(openConfig(t, cfg)) }, busy, 100*time.Millisecond, "it is old enough")
		require.False(t, quarantined(openConfig(t, cfg)))
	}
	require.Empty(t, listed(t, openConfig(t, cfg), ""), "a witness is no lock")
	redlock.Says(t, clusters.Nodes(0), 0, "FLUSHALL")
	require.True(t, quarantined(openConfig(t, cfg)), "what has lost the witness has lost locks, too")
}

// The slot of a shard that is dead is given to another without its keys. That one was no replica, ever, and has been a
// master for long. But it knows none of the locks. So it has no vote for clients that start.
func TestANewClientDoesNotBelieveWhoWasGivenTheSlotOfTheDead(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3, orderedOnly)
	from := clusters.Owner(0, lockSlot)
	const heir = 2 // the first node of the second shard
	cfg := onClusters(clusters)
	cfg.RestartGuard = time.Second
	require.Eventually(t, func() bool { // it has been a master for longer than that
		info := redlock.Says(t, clusters.Nodes(0), heir, "INFO", "server")
		var up int
		_, rest, _ := strings.Cut(info.(string), "uptime_in_seconds:")
		_, err := fmt.Sscan(rest, &up)
		require.NoError(t, err)
		return up > 3
	}, busy, 50*time.Millisecond)
	info := redlock.Says(t, clusters.Nodes(0), heir, "CLUSTER", "SLOTS")
	var slots []string // of the shard that dies
	for _, r := range info.([]any) {
		if r := r.([]any); r[2].([]any)[2] == clusters.ID(0, from) {
			for slot := r[0].(int64); slot <= r[1].(int64); slot++ {
				slots = append(slots, fmt.Sprint(slot))
			}
		}
	}
	clusters.Nodes(0).Kill(from ^ 1)
	clusters.Nodes(0).Kill(from)
	require.Eventually(t, func() bool { // a node may read what the dead has said once more in between
		for _, node := range []int{heir, heir + 2} {
			clusters.Nodes(0).Do(node, append([]string{"CLUSTER", "DELSLOTS"}, slots...)...)
		}
		_, err := clusters.Nodes(0).Do(heir, append([]string{"CLUSTER", "ADDSLOTS"}, slots...)...)
		return err == nil
	}, busy, 20*time.Millisecond)
	redlock.Says(t, clusters.Nodes(0), heir, "CLUSTER", "BUMPEPOCH")
	require.Equal(t, heir, clusters.Owner(0, lockSlot, from))
	err := openConfig(t, cfg).NewMutex("k", time.Second).TryLock(t.Context())
	_, is := errors.AsType[*mux.QuarantineError](err)
	require.True(t, is, err)
}

// The replica takes over for a moment, and lacks the latest lock. Then its master takes over again, and has what the replica
// has. Whoever looks before and after finds one master, and one process. The lock is lost all the same, and nobody gets it
// until it is over: whoever has it is told, and so is who has not asked for anything meanwhile.
func TestASlotThatWasAwayForAMoment(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3, orderedOnly)
	a, b := openConfig(t, onClusters(clusters)), openConfig(t, onClusters(clusters))
	at := clusters.Owner(0, lockSlot)
	used(t, b, time.Minute)
	for range 2 { // what was away once is followed again
		reaches(t, a, 0, "up")
		clusters.StopReplication(0, at^1, true)
		m := a.NewMutex("k", 20*time.Second)
		require.NoError(t, m.Lock(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		for _, node := range []int{at ^ 1, at} {
			if node == at {
				clusters.StopReplication(0, at^1, false)
				require.Eventually(t, func() bool {
					info := redlock.Says(t, clusters.Nodes(0), at, "INFO", "replication")
					return strings.Contains(info.(string), "master_link_status:up")
				}, time.Minute, 2*time.Millisecond)
			}
			redlock.Says(t, clusters.Nodes(0), node, "CLUSTER", "FAILOVER", "TAKEOVER")
		}
		n := b.NewMutex("k", 20*time.Second) // it asks before anybody has looked again
		require.Error(t, n.TryLock(t.Context()))
		select {
		case <-held.Done():
		case <-time.After(10 * time.Second): // a renewal would be too late
			require.Fail(t, "nobody has noticed")
		}
		require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
		stop()
		require.Eventually(t, func() bool { return phase(b, 0) == "quarantined" }, 10*time.Second, 5*time.Millisecond)
		clusters.Owner(0, lockSlot, at^1)
		m.Unlock(t.Context())
	}
}

// One of the nodes that are listed is of another cluster by now, and has a slot of that name there. Nobody believes it,
// neither who starts then nor who has been connected, when all nodes of ours are silent or gone. When they are back, locks go on.
func TestAListedNodeOfAnotherClusterIsAlone(t *testing.T) {
	t.Parallel()
	for how, c := range map[string]struct {
		end, begin func(nodes *redlocktest.Masters, j int)
	}{
		"silent": {(*redlocktest.Masters).Pause, (*redlocktest.Masters).Resume},
		"gone":   {(*redlocktest.Masters).Kill, (*redlocktest.Masters).Restart},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			clusters := redlocktest.StartClusters(t, 2, 1, orderedOnly)
			cfg := onClusters(clusters)
			cfg.Masters = []string{clusters.Addrs()[0] + "," + clusters.Nodes(1).Addr(0)}
			cfg.DialTimeout = 300 * time.Millisecond
			begun := func() *redlock.Client { // Open would wait for no more than one timeout
				client, err := redlock.New(cfg)
				require.NoError(t, err)
				t.Cleanup(func() { client.Close() })
				return client
			}
			was := begun()
			reaches(t, was, 0, "up")
			for j := range clusters.Nodes(0).N() {
				c.end(clusters.Nodes(0), j)
			}
			starts := begun()
			for _, client := range []*redlock.Client{was, starts} {
				require.Eventually(t, func() bool { // a dial has asked the stranger, and all others in vain
					m := client.Stats().Masters[0]
					return strings.Contains(m.Err, clusters.Nodes(1).Addr(0)+" says")
				}, time.Minute, 5*time.Millisecond)
			}
			require.Zero(t, redlock.Says(t, clusters.Nodes(1), 0, "DBSIZE"))
			for j := range clusters.Nodes(0).N() {
				c.begin(clusters.Nodes(0), j)
			}
			for _, client := range []*redlock.Client{was, starts} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				m := client.NewMutex("k", time.Second)
				require.NoError(t, m.Lock(ctx))
				require.NoError(t, m.Unlock(ctx))
			}
		})
	}
}

// A cluster that serves nobody for a moment has forgotten nothing by that: it votes as soon as it serves again.
func TestClusterThatIsDownForAMomentForgetsNothing(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3, orderedOnly)
	var mu sync.Mutex
	var seen []string
	cfg := onClusters(clusters)
	cfg.Observers = onEvent(redlock.EventMaster, func(e *redlock.Event) {
		m := *e.Master
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprint(m.Phase, " ", m.Err))
	})
	c := openConfig(t, cfg)
	at := clusters.Owner(0, lockSlot)
	held := c.NewMutex("held", time.Minute)
	require.NoError(t, held.TryLock(t.Context()))
	for j := range 6 {
		if j != at && j != at^1 {
			clusters.Nodes(0).Pause(j)
		}
	}
	require.Eventually(t, func() bool {
		m := c.NewMutex("k", time.Second)
		err := m.TryLock(t.Context())
		m.Unlock(t.Context())
		return errors.Is(err, redlock.ErrNoQuorum)
	}, time.Minute, 5*time.Millisecond)
	for j := range 6 {
		if j != at && j != at^1 {
			clusters.Nodes(0).Resume(j)
		}
	}
	require.Equal(t, at, clusters.Owner(0, lockSlot))
	reaches(t, c, 0, "up")
	require.Eventually(t, func() bool { return held.Extend(t.Context()) == nil }, time.Minute, 5*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	for _, s := range seen {
		require.NotContains(t, s, "quarantined")
	}
}

// The nodes announce other ports than they have, as behind a NAT, and then names. They are followed, and a name for
// the known place is no switch.
func TestAnnouncedPlacesOfNodesAreFollowed(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 1, redlocktest.WithLinks())
	cfg := onClusters(clusters)
	var quarantined atomic.Bool
	cfg.Observers = onEvent(redlock.EventMaster, func(e *redlock.Event) { m := *e.Master; quarantined.CompareAndSwap(false, m.Phase == "quarantined") })
	c := openConfig(t, cfg)
	m := c.NewMutex("k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	require.Equal(t, clusters.Nodes(0).Addr(0), placeOf(t, clusters))
	for j := range 2 {
		for _, args := range [][]string{{"cluster-announce-hostname", "localhost"}, {"cluster-preferred-endpoint-type", "hostname"}} {
			if _, err := clusters.Nodes(0).Do(j, "CONFIG", "SET", args[0], args[1]); err != nil {
				t.Skip("it announces no names: ", err)
			}
		}
	}
	for range 2 {
		time.Sleep(time.Second) // for each to be asked
		require.NoError(t, m.Extend(t.Context()))
	}
	require.False(t, quarantined.Load())
	named := openConfig(t, cfg)
	require.Contains(t, placeOf(t, clusters), "localhost:")
	require.ErrorIs(t, named.NewMutex("k", time.Minute).TryLock(t.Context()), redlock.ErrHeld)
}

// placeOf returns where a connection to the only cluster leads.
func placeOf(t *testing.T, clusters *redlocktest.Clusters) string {
	t.Helper()
	addr, err := conn.ParseAddress(clusters.Addrs()[0])
	require.NoError(t, err)
	c, err := conn.Dial(t.Context(), addr, conn.Options{ClusterKey: locks, DialTimeout: busy})
	require.NoError(t, err)
	defer c.Close()
	return c.Server().Endpoint
}
