package redlocktest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
)

const someSlot = 5000 // of the first of three shards

// A cluster fails over when a master is killed, frozen or cut off from the others, and slots move
// with their keys.
func TestClustersFailOverAndMoveSlots(t *testing.T) {
	needRedis(t)
	began := time.Now()
	c := StartClusters(t, 1, 3)
	t.Log("started after", time.Since(began))
	require.Equal(t, 0, c.Owner(0, someSlot))

	c.Isolate(0, 0, true)
	began = time.Now()
	require.Equal(t, 1, c.Owner(0, someSlot, 0))
	t.Log("failed over after", time.Since(began))
	eventually(t, func() bool {
		_, err := c.Nodes(0).Do(0, "GET", "{06S}") // of slot 0
		return err != nil
	}, "a master that is cut off serves no keys")
	c.Isolate(0, 0, false)
	eventually(t, func() bool {
		role, err := c.Nodes(0).Do(0, "ROLE")
		return err == nil && role.([]any)[0] == "slave"
	}, "it learns who has taken its place")
	c.Nodes(0).Kill(1)
	require.Equal(t, 0, c.Owner(0, someSlot, 1))
	c.Nodes(0).Restart(1)
	c.Nodes(0).Pause(0)
	c.Owner(0, someSlot, 0)
	c.Nodes(0).Resume(0)

	steps := 0
	from := c.Owner(0, someSlot)
	require.NoError(t, c.Move(0, someSlot, 2, func() { steps++ }))
	c.Owner(0, someSlot, from)
	require.Equal(t, 2, c.Owner(0, someSlot))
	require.Equal(t, 2, steps)
	require.NoError(t, c.Move(0, someSlot, 2, nil), "it is there")
}

// A cluster of one shard serves all slots.
func TestClusterMayHaveOneShard(t *testing.T) {
	needRedis(t)
	c := StartClusters(t, 1, 1, WithLinks())
	require.Equal(t, 0, c.Owner(0, 0))
	require.Equal(t, 0, c.Owner(0, clusterSlots-1))
	v, err := c.Nodes(0).Do(0, "CLUSTER", "SLOTS")
	require.NoError(t, err)
	require.Contains(t, c.Addrs()[0], c.Nodes(0).links[0].addr())
	_, port, _ := strings.Cut(c.Nodes(0).Addr(0), ":")
	require.Equal(t, port, fmt.Sprint(v.([]any)[0].([]any)[2].([]any)[1]))

	c.StopReplication(0, 1, true)
	_, err = c.Nodes(0).Do(0, "SET", "key", "value")
	require.NoError(t, err)
	_, err = c.Nodes(0).Do(1, "CLUSTER", "FAILOVER", "TAKEOVER")
	require.NoError(t, err)
	require.Equal(t, 1, c.Owner(0, 0, 0))
	v, err = c.Nodes(0).Do(1, "GET", "key")
	require.NoError(t, err)
	require.Nil(t, v, "it had not heard of it")
	c.StopReplication(0, 1, false)
	eventually(t, func() bool { return c.Ready(0) == nil }, "the other one is its replica now")
}

// A replica that takes its master's place without asking the others has it for good, whichever of the two has the
// smaller id. These clusters have one of each.
func TestClustersReplicaTakesOver(t *testing.T) {
	needRedis(t)
	c := StartClusters(t, 2, 1)
	require.NotEqual(t, c.ID(0, 0) < c.ID(0, 1), c.ID(1, 0) < c.ID(1, 1))
	for i := range 2 {
		_, err := c.Nodes(i).Do(1, "CLUSTER", "FAILOVER", "TAKEOVER")
		require.NoError(t, err)
		require.Equal(t, 1, c.Owner(i, someSlot, 0))
		eventually(t, func() bool { return c.Ready(i) == nil }, "the other one is its replica")
		require.Equal(t, 1, c.Owner(i, someSlot))
	}
}

// Whoever sees the output of a test is to see no password there.
func TestAnErrorOfAClusterHasNoPassword(t *testing.T) {
	down := newServer("", 0, &processes.Group{}, options{})
	c := &Clusters{all: []*cluster{{nodes: &Masters{masters: []master{down}, what: "node"}}}}
	require.PanicsWithError(t, "redlocktest: CONFIG SET masterauth node 0 (127.0.0.1:0): it is down",
		func() { c.mustDo(0, 0, "CONFIG", "SET", "masterauth", "secret") })
}

// A bus remembers nobody whom it does not let in.
func TestABusForgetsWhoWasCutOff(t *testing.T) {
	b, err := newBus(0, "node")
	require.NoError(t, err)
	defer giveBack(localhost(b.port()))
	b.cut("node", true)
	c, err := net.Dial("tcp", localhost(b.port()))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	b.close()
	require.Empty(t, b.conns)
}
