package redlocktest

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/internal/aged"
	"github.com/redburst/redburst/redlock/internal/processes"
	"testing"
)

const (
	clusterSlots = 1 << 14
	// How long a node waits for an answer before it takes another one for down.
	nodeTimeout = time.Second
)

// Clusters are n independent Redis Clusters, numbered from 0. The nodes of each are numbered from 0,
// too: of shard s the first master is node 2*s, and its replica is node 2*s+1. If a master is killed,
// frozen or cut off, its replica takes its place after about two seconds. All methods may be called by
// several goroutines at once. Clusters come from [StartClusters] and [RunClusters]; the zero value has none.
//
// A method that fails ends the test with Fatal. If there is no test, it panics with the error.
type Clusters struct {
	tb      testing.TB // nil without a test
	group   *processes.Group
	all     []*cluster
	closing sync.Once
}

// A cluster is one of Clusters. Each of its nodes has the same place in all of these.
type cluster struct {
	nodes *Masters
	ids   []string
	buses []*bus
}

func (k *cluster) server(j int) *server { return k.nodes.masters[j].(*server) }

// StartClusters starts n clusters of some shards each on free ports of 127.0.0.1, without
// persistence, and returns when all nodes serve. The slots are shared evenly among the shards. They
// are closed when the test ends. If no redis-server is installed, the test is skipped or fails, as by
// [Start].
//
// The options for clusters are WithPassword; WithArgs, without arguments that set a password or a port; and WithLinks:
// the nodes announce the ports of links in front of them, as behind a NAT. Clients and replicas use them.
func StartClusters(tb testing.TB, n, shards int, opts ...Option) *Clusters {
	tb.Helper()
	needed(tb)
	c, err := startClusters(tb, n, shards, opts)
	return tied(tb, c, err)
}

// RunClusters is [StartClusters] without a test. The caller must call [Clusters.Close]. A missing
// redis-server is an error that says what to install.
func RunClusters(n, shards int, opts ...Option) (*Clusters, error) {
	return startClusters(nil, n, shards, opts)
}

func startClusters(tb testing.TB, n, shards int, opts []Option) (*Clusters, error) {
	for try := 1; ; try++ {
		c := &Clusters{tb: tb}
		holdBlock()
		err := c.start(n, shards, opts)
		if err == nil {
			return c, nil
		}
		c.Close()
		if !errors.Is(err, errPortTaken) || try == 10 { // before Redis 7 the bus has a port that another may have
			return nil, err
		}
	}
}

func (c *Clusters) start(n, shards int, opts []Option) (err error) {
	o := chosen(opts)
	if o.clocks || o.disks || o.hosts != nil || o.unix {
		return errors.New("redlocktest: clusters have neither clocks nor disks nor hosts of their own, nor Unix sockets")
	}
	bin, err := lookup()
	if err != nil {
		return err
	}
	if c.group, err = processes.NewGroup("redlocktest"); err != nil {
		return err
	}
	choosable := hasClusterPort(bin)
	var starting sync.WaitGroup
	errs := make([]error, n*2*shards)
	for i := range n {
		k := &cluster{nodes: noServers(c.tb, "node")}
		c.all = append(c.all, k)
		for j := range 2 * shards {
			id := fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "%d/%d", i, j)))
			if err := k.add(newServer(bin, i*2*shards+j, c.group, o), id, o, choosable); err != nil {
				return err
			}
		}
		for j := range k.ids {
			if err := os.WriteFile(filepath.Join(k.server(j).dir, "nodes.conf"), k.conf(j), 0o600); err != nil {
				return err
			}
		}
	}
	for i := range errs {
		starting.Go(func() {
			s := c.all[i/(2*shards)].server(i % (2 * shards))
			s.mu.Lock()
			defer s.mu.Unlock()
			errs[i] = s.start()
		})
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i := range n {
		for j := 0; j < 2*shards; j += 2 {
			s := c.all[i].server(j)
			aged.Add(runID(s), said(s, "cluster_my_epoch", "CLUSTER", "INFO"))
		}
	}
	return wait(func() error {
		for i := range n {
			if err := c.Ready(i); err != nil {
				return err
			}
		}
		return nil
	})
}

// add adds a node, and gives it its directory, its ports and its arguments.
func (k *cluster) add(s *server, id string, o options, choosable bool) (err error) {
	k.nodes.masters, k.ids = append(k.nodes.masters, s), append(k.ids, id)
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	if s.port, err = freePort(); err != nil {
		return err
	}
	port := s.port + 10000
	s.args = []string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
		"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"}
	if choosable {
		if port, err = freePort(); err != nil {
			return err
		}
		s.args = append(s.args, "--cluster-port", strconv.Itoa(port))
	}
	b, err := newBus(port, id)
	if err != nil {
		giveBack(localhost(port))
		return err
	}
	k.buses = append(k.buses, b)
	s.args = append(s.args, "--cluster-announce-bus-port", strconv.Itoa(b.port()))
	if o.links {
		l, err := newLink(localhost(s.port))
		if err != nil {
			return err
		}
		k.nodes.links = append(k.nodes.links, l)
		s.args = append(s.args, "--cluster-announce-port", portOf(l.addr()))
	}
	s.args = append(s.args, o.args...)
	return nil
}

func portOf(addr string) string {
	_, port, _ := strings.Cut(addr, ":")
	return port
}

// hasClusterPort reports whether the server can be told the port of its cluster bus.
func hasClusterPort(bin string) bool {
	text, _ := exec.Command(bin, "--version").Output()
	m := regexp.MustCompile(`v=(\d+)\.`).FindSubmatch(text)
	if m == nil {
		return false
	}
	major, _ := strconv.Atoi(string(m[1]))
	return major >= 7
}

// conf is the file in which a node remembers its cluster, as if it had been in it before.
func (k *cluster) conf(me int) (conf []byte) {
	shards := len(k.ids) / 2
	for j, id := range k.ids {
		flags, of, epoch := "master", "-", j/2+1
		if j%2 == 1 {
			// Redis before 7 takes an epoch here for the replica's own, and then CLUSTER FAILOVER TAKEOVER chooses no new one.
			flags, of, epoch = "slave", k.ids[j-1], 0
		}
		if j == me {
			flags = "myself," + flags
		}
		conf = fmt.Appendf(conf, "%s 127.0.0.1:%s@%d %s %s 0 0 %d connected", id, portOf(k.nodes.Addr(j)), k.buses[j].port(), flags, of, epoch)
		if j%2 == 0 {
			conf = fmt.Appendf(conf, " %d-%d", j/2*clusterSlots/shards, (j/2+1)*clusterSlots/shards-1)
		}
		conf = append(conf, '\n')
	}
	return fmt.Appendf(conf, "vars currentEpoch %d lastVoteEpoch 0\n", shards)
}

// Ready is nil if all nodes of cluster i serve, and each master has a replica in step. The error says what is missing.
func (c *Clusters) Ready(i int) error {
	nodes := c.Nodes(i)
	for j := range nodes.N() {
		info, err := nodes.Do(j, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if text := info.(string); !strings.Contains(text, "cluster_state:ok") ||
			!strings.Contains(text, fmt.Sprintf("cluster_known_nodes:%d\r", nodes.N())) {
			return fmt.Errorf("node %d of cluster %d is not ready: %s", j, i, text)
		}
		info, err = nodes.Do(j, "INFO", "replication")
		if err != nil {
			return err
		}
		if text := info.(string); !strings.Contains(text, "state=online") && !strings.Contains(text, "master_link_status:up") {
			return fmt.Errorf("node %d of cluster %d has no replica in step: %s", j, i, text)
		}
	}
	return nil
}

// Close kills all nodes, paused ones too, and removes their files. It returns when they are gone. Further calls do
// nothing; no other method may be called after it. Clusters that belong to a test close when the test ends.
func (c *Clusters) Close() { c.closing.Do(c.close) }

func (c *Clusters) close() {
	var all []*Masters
	var addrs []string
	for _, k := range c.all {
		all = append(all, k.nodes)
		for _, b := range k.buses {
			addrs = append(addrs, localhost(b.to), localhost(b.port()))
			b.close()
		}
	}
	closeAll(c.group, all...)
	releaseBlock(addrs)
}

// Addrs returns the addresses of all clusters, as redlock.Config.Masters takes them: cluster:// with the
// first master of each shard, or with both nodes of the only one.
func (c *Clusters) Addrs() (all []string) {
	for i := range c.all {
		nodes := c.Nodes(i).Addrs()
		for j := 1; len(nodes) > 2 && j < len(nodes); j++ {
			nodes = slices.Delete(nodes, j, j+1)
		}
		all = append(all, "cluster://"+strings.Join(nodes, ","))
	}
	return all
}

// Nodes returns the nodes of cluster i, with the addresses that they announce. One that is started again remembers its
// cluster, but has no data. With [WithLinks], what befalls a node's link cuts it off from its clients and its replica.
func (c *Clusters) Nodes(i int) *Masters { return c.all[i].nodes }

// ID returns the id of node j in cluster i.
func (c *Clusters) ID(i, j int) string { return c.all[i].ids[j] }

// Owner returns the node that has a slot of cluster i. It waits for up to a minute until a node serves the
// slot that is not excluded, and more than half of the nodes that are up name it as the master.
func (c *Clusters) Owner(i, slot int, except ...int) (node int) {
	err := wait(func() (err error) {
		if node, err = c.FindOwner(i, slot); err == nil && slices.Contains(except, node) {
			err = fmt.Errorf("node %d has it still", node)
		}
		return err
	})
	if err != nil {
		fail(c.tb, fmt.Errorf("redlocktest: find the owner of a slot of cluster %d: %w", i, err))
	}
	return node
}

// FindOwner is [Clusters.Owner] without the wait: the error says why there is none now.
func (c *Clusters) FindOwner(i, slot int) (int, error) {
	k := c.all[i]
	named := map[string]int{}
	up := 0
	for j := range k.ids {
		v, err := k.nodes.Do(j, "CLUSTER", "SLOTS")
		if err != nil {
			continue
		}
		up++
		for _, r := range v.([]any) {
			r := r.([]any)
			if r[0].(int64) <= int64(slot) && int64(slot) <= r[1].(int64) {
				named[r[2].([]any)[2].(string)]++
			}
		}
	}
	for j, id := range k.ids {
		if 2*named[id] <= up || k.server(j).state() != nil {
			continue
		}
		info, err := k.nodes.Do(j, "CLUSTER", "INFO")
		if err == nil && strings.Contains(info.(string), "cluster_state:ok") {
			return j, nil
		}
	}
	return 0, fmt.Errorf("no node serves slot %d: named are %v, up are %d", slot, named, up)
}

// Isolate cuts node j of cluster i off from the other nodes, or no more. Clients still
// reach it. So does its replica: the two are cut off only as nodes.
func (c *Clusters) Isolate(i, j int, cut bool) {
	for _, b := range c.all[i].buses {
		b.cut(c.all[i].ids[j], cut)
	}
}

// Move gives a slot of cluster i to node j, with its keys, as redis-cli --cluster reshard does. each is
// called, if it is not nil, after every step: when both nodes know that the slot moves, after each of its
// keys, and at last. It does not wait until the other nodes know it: that is for [Clusters.Owner]. The error says which
// step has failed. Then some keys have been moved, perhaps, and it goes on where it was if it is called again.
// Nothing is done if the node has the slot.
func (c *Clusters) Move(i, slot, to int, each func()) error {
	from, err := c.FindOwner(i, slot)
	if err != nil || from == to {
		return err
	}
	step := func() {
		if each != nil {
			each()
		}
	}
	nodes, s, target := c.Nodes(i), strconv.Itoa(slot), c.all[i].server(to)
	if _, err := nodes.Do(to, "CLUSTER", "SETSLOT", s, "IMPORTING", c.ID(i, from)); err != nil {
		return err
	}
	if _, err := nodes.Do(from, "CLUSTER", "SETSLOT", s, "MIGRATING", c.ID(i, to)); err != nil {
		return err
	}
	step()
	for {
		v, err := nodes.Do(from, "CLUSTER", "GETKEYSINSLOT", s, "1")
		if err != nil {
			return err
		}
		keys := v.([]any)
		if len(keys) == 0 {
			break
		}
		migrate := []string{"MIGRATE", "127.0.0.1", strconv.Itoa(target.port), keys[0].(string), "0", "5000", "REPLACE"}
		if target.secret != "" {
			migrate = append(migrate, "AUTH", target.secret)
		}
		if _, err := nodes.Do(from, migrate...); err != nil {
			return err
		}
		step()
	}
	for _, j := range []int{to, from} {
		if _, err := nodes.Do(j, "CLUSTER", "SETSLOT", s, "NODE", c.ID(i, to)); err != nil {
			return err
		}
	}
	step()
	return nil
}

// StopReplication has a replica, node j of cluster i, get nothing more from its master, and keep what it has, or go on.
// It goes on after a restart, too.
func (c *Clusters) StopReplication(i, j int, stop bool) {
	user, secret := "", c.all[i].server(j).secret
	if stop { // its master does not let it in again
		user, secret = "nobody", "nothing"
	}
	c.mustDo(i, j, "CONFIG", "SET", "masteruser", user)
	c.mustDo(i, j, "CONFIG", "SET", "masterauth", secret)
	if stop {
		c.mustDo(i, j, "CLIENT", "KILL", "TYPE", "master")
	}
}

// mustDo leaves the last argument out of an error: it may be a password.
func (c *Clusters) mustDo(i, j int, args ...string) {
	_, err := do(c.all[i].server(j), args...)
	c.Nodes(i).must(j, strings.Join(args[:len(args)-1], " "), err)
}
