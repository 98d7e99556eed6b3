//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// clusterShards are so many that a majority of a cluster's masters goes on without one of them.
const clusterShards = 3

// What befalls a cluster, and the one of its nodes that has the slot of the locks: its owner.
const (
	ownerKilled    fault = "owner killed"          // its replica takes over, and the owner comes back as a replica of that
	ownerRestarted fault = "owner restarted"       // at once and without its keys: it may remain the owner
	ownerFrozen    fault = "owner frozen"          // its replica takes over if that lasts; the owner goes on with what has arrived
	ownerCutOff    fault = "owner cut off"         // from the other nodes, and not from clients
	failover       fault = "failover"              // that the owner agrees to
	takeover       fault = "takeover"              // by the replica alone: it asks nobody
	lateTakeover   fault = "takeover from behind"  // the replica has heard nothing from the owner for a while
	slotMoved      fault = "slot moved"            // with its keys, one after the other
	moveCutShort   fault = "slot's move cut short" // the owner is killed when some keys have left it
	othersFrozen   fault = "other nodes frozen"    // all but the owner and its replica: the cluster serves nobody
	replicaKilled  fault = "replica killed"        // and comes back
	strayAnswers   fault = "another cluster's node alone answers"
)

// clusters are roaming masters: each is a Redis Cluster.
type clusters struct {
	*redlocktest.Clusters
	*seats
	slot  int
	stray *redlocktest.Clusters // whose first node is listed among those of the first cluster
}

func newClusters(c, stray *redlocktest.Clusters) *clusters {
	slot := conn.HashSlot(roamingPrefix)
	find := func(i int) (int, error) { return c.FindOwner(i, slot) }
	f := &clusters{Clusters: c, seats: &seats{make([]atomic.Int64, len(c.Addrs())), find, c.Ready}, slot: slot, stray: stray}
	for i := range f.now {
		f.settle(context.Background(), i)
	}
	return f
}

// Addrs lists all nodes of each cluster, and the stray one.
func (f *clusters) Addrs() (all []string) {
	for i := range f.N() {
		var nodes []string
		for j := range 2 * clusterShards {
			nodes = append(nodes, f.Nodes(i).Addr(j))
		}
		if i == 0 { // it was a node of this one before, perhaps
			nodes = append(nodes, f.stray.Nodes(0).Addr(0))
		}
		all = append(all, "cluster://"+strings.Join(nodes, ","))
	}
	return all
}

func (f *clusters) Close() {
	f.Clusters.Close()
	f.stray.Close()
}

// Do follows the slot: on a busy machine a cluster may fail over by itself.
func (f *clusters) Do(i int, args ...string) (any, error) {
	reply, err := f.Nodes(i).Do(f.at(i), args...)
	var refused redlocktest.ReplyError
	if !errors.As(err, &refused) || !strings.HasPrefix(string(refused), "MOVED") {
		return reply, err
	}
	now, err := f.FindOwner(i, f.slot)
	if err != nil {
		return nil, err
	}
	f.now[i].Store(int64(now))
	return f.Nodes(i).Do(now, args...)
}

func (f *clusters) faults() []fault {
	return []fault{ownerKilled, ownerRestarted, ownerFrozen, ownerCutOff, failover, takeover, lateTakeover, slotMoved, moveCutShort, othersFrozen, replicaKilled,
		cut, cutReplies, delay, answersLost, lateLost, strayAnswers}
}

func (f *clusters) befall(ctx context.Context, n *nemesis, s strike) {
	i := s.Target
	defer n.forgetting(ctx)() // a slot that is moved loses no key, but no client knows that
	f.settle(ctx, i)
	at := f.at(i)
	replica := at ^ 1
	switch s.Fault {
	case ownerKilled:
		f.Nodes(i).Kill(at)
		f.await(ctx, i, replica)
		sleep(ctx, s.For/4)
		f.Nodes(i).Restart(at)
	case ownerRestarted:
		f.Nodes(i).Restart(at)
	case ownerFrozen:
		f.Nodes(i).Pause(at)
		sleep(ctx, s.For)
		f.Nodes(i).Resume(at)
	case ownerCutOff:
		f.Isolate(i, at, true)
		sleep(ctx, s.For)
		f.Isolate(i, at, false)
	case failover:
		f.replace(ctx, i, replica, 6*time.Second, func() error { // it is given up before
			_, err := f.Nodes(i).Do(replica, "CLUSTER", "FAILOVER")
			return err
		})
	case takeover:
		f.takeOver(ctx, i, replica)
	case lateTakeover:
		f.StopReplication(i, replica, true)
		sleep(ctx, s.For/4)
		f.takeOver(ctx, i, replica)
		f.StopReplication(i, replica, false)
	case slotMoved:
		f.move(ctx, i, at)
	case moveCutShort:
		to := f.another(ctx, i, at)
		if f.cutMoveShort(i, at, to) {
			f.await(ctx, i, replica)
			f.Nodes(i).Restart(at)
		}
		f.Nodes(i).Do(to, "CLUSTER", "SETSLOT", strconv.Itoa(f.slot), "STABLE")
	case othersFrozen:
		for j := range 2 * clusterShards {
			if j != at && j != replica {
				f.Nodes(i).Pause(j)
			}
		}
		sleep(ctx, s.For)
		for j := range 2 * clusterShards {
			if j != at && j != replica {
				f.Nodes(i).Resume(j)
			}
		}
	case strayAnswers:
		f.leaveStray(ctx, n, s.For)
	case replicaKilled:
		f.Nodes(i).Kill(replica)
		sleep(ctx, s.For)
		f.Nodes(i).Restart(replica)
	}
	f.settle(ctx, i)
}

// leaveStray cuts all nodes of the first cluster off from the clients, so that only a node of another one is left of the list.
// A client that comes then has no RestartGuard. It goes when they are back.
func (f *clusters) leaveStray(ctx context.Context, n *nemesis, long time.Duration) {
	place := rand.IntN(len(n.clientTurn))
	n.clientTurn[place].Lock()
	defer n.clientTurn[place].Unlock()
	for j := range 2 * clusterShards {
		f.Nodes(0).Cut(j)
	}
	n.fleet.client(place).kill()
	if _, err := n.fleet.startUnguarded(place); err != nil {
		panic(err)
	}
	sleep(ctx, long)
	for j := range 2 * clusterShards {
		f.Nodes(0).Heal(j)
	}
	n.killClient(place)
}

// takeOver makes a replica the owner, whatever the others say.
func (f *clusters) takeOver(ctx context.Context, i, replica int) {
	patiently(ctx, "take over", func() error {
		if now, err := f.FindOwner(i, f.slot); err == nil && now == replica {
			return nil
		}
		if _, err := f.Nodes(i).Do(replica, "CLUSTER", "FAILOVER", "TAKEOVER"); err != nil { // it is the master already, perhaps
			return err
		}
		return errors.New("the others do not know of it yet")
	})
}

// another returns the master of another shard than that of a node.
func (f *clusters) another(ctx context.Context, i, node int) (master int) {
	patiently(ctx, "find another master", func() error {
		for k := range 2 * clusterShards {
			j := (node + 2 + k) % (2 * clusterShards)
			if role, err := f.Nodes(i).Do(j, "ROLE"); j|1 != node|1 && err == nil && role.([]any)[0] == "master" {
				master = j
				return nil
			}
		}
		return errors.New("there is none")
	})
	return master
}

// move moves the slot to another shard. On a busy machine that may fail over meanwhile. Then its replica has what has
// arrived.
func (f *clusters) move(ctx context.Context, i, from int) {
	to := f.another(ctx, i, from)
	patiently(ctx, "move the slot", func() error {
		role, err := f.Nodes(i).Do(to, "ROLE")
		if err == nil && role.([]any)[0] != "master" {
			to ^= 1
		}
		return f.Move(i, f.slot, to, func() { sleep(ctx, rand.N(20*time.Millisecond)) })
	})
}

// cutMoveShort begins to move the slot to another shard, and kills the owner when some keys have left it. It is false if the
// slot has moved before, as it has too few keys.
func (f *clusters) cutMoveShort(i, from, to int) (killed bool) {
	steps, last := 0, 2+rand.IntN(8) // the first step moves no key
	f.Move(i, f.slot, to, func() {   // which fails if the owner is killed
		if steps++; steps != last {
			return
		}
		if now, err := f.FindOwner(i, f.slot); err == nil && now == from {
			f.Nodes(i).Kill(from)
			killed = true
		}
	})
	return killed
}

// impose strikes the traffic of the owner. That to its replica is struck with it.
func (f *clusters) impose(s strike) (lift func()) {
	nodes := links{f.Nodes(s.Target), nil}
	s.Target = f.at(s.Target)
	return nodes.impose(s)
}

func (f *clusters) reset(s strike) {
	for j := range 2 * clusterShards {
		f.Nodes(s.Target).Reset(j)
	}
}

// end does nothing: the links tell the nodes that the clients are gone.
func (f *clusters) end(int) {}
