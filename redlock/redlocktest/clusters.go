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
	nodes   [][]*clusterNode // by cluster
	closing sync.Once
}

// A clusterNode is a node of a cluster.
type clusterNode struct {
	*server
	id   string
	bus  *bus
	link *link // in front of its port; nil without WithLinks
}

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
	c, err := RunClusters(n, shards, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	c.tb = tb
	tb.Cleanup(c.Close)
	return c
}

// RunClusters is [StartClusters] without a test. The caller must call [Clusters.Close]. A missing
// redis-server is an error that says what to install.
func RunClusters(n, shards int, opts ...Option) (*Clusters, error) {
	for try := 1; ; try++ {
		c := &Clusters{}
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
	for i := range n {
		var nodes []*clusterNode
		for j := range 2 * shards {
			node := &clusterNode{id: fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "%d/%d", i, j)))}
			node.server = newServer(bin, len(c.nodes)*2*shards+j, c.group, o)
			nodes = append(nodes, node)
		}
		c.nodes = append(c.nodes, nodes)
		for _, node := range nodes {
			if err := node.prepare(o, choosable); err != nil {
				return err
			}
		}
		for j, node := range nodes {
			if err := os.WriteFile(filepath.Join(node.dir, "nodes.conf"), nodesConf(nodes, j), 0o600); err != nil {
				return err
			}
		}
	}
	var starting sync.WaitGroup
	errs := make([]error, n*2*shards)
	for i := range n {
		for j, node := range c.nodes[i] {
			starting.Go(func() {
				node.mu.Lock()
				defer node.mu.Unlock()
				errs[i*2*shards+j] = node.server.start()
			})
		}
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i := range n {
		for j := 0; j < 2*shards; j += 2 {
			s := c.nodes[i][j].server
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

// prepare gives a node its directory, its ports and its arguments.
func (n *clusterNode) prepare(o options, choosable bool) (err error) {
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return err
	}
	if n.port, err = freePort(); err != nil {
		return err
	}
	port := n.port + 10000
	n.args = []string{"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
		"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"}
	if choosable {
		if port, err = freePort(); err != nil {
			return err
		}
		n.args = append(n.args, "--cluster-port", strconv.Itoa(port))
	}
	if n.bus, err = newBus(port, n.id); err != nil {
		return err
	}
	n.args = append(n.args, "--cluster-announce-bus-port", strconv.Itoa(n.bus.port()))
	if o.links {
		if n.link, err = newLink(localhost(n.port)); err != nil {
			return err
		}
		_, port, _ := strings.Cut(n.link.addr(), ":")
		n.args = append(n.args, "--cluster-announce-port", port)
	}
	n.args = append(n.args, o.args...)
	return nil
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

// nodesConf is the file in which a node remembers its cluster, as if it had been in it before.
func nodesConf(nodes []*clusterNode, me int) (conf []byte) {
	shards := len(nodes) / 2
	for j, n := range nodes {
		flags, of, epoch := "master", "-", j/2+1
		if j%2 == 1 {
			// Redis before 7 takes an epoch here for the replica's own, and then CLUSTER FAILOVER TAKEOVER chooses no new one.
			flags, of, epoch = "slave", nodes[j-1].id, 0
		}
		if j == me {
			flags = "myself," + flags
		}
		conf = fmt.Appendf(conf, "%s 127.0.0.1:%s@%d %s %s 0 0 %d connected", n.id, n.shownPort(), n.bus.port(), flags, of, epoch)
		if j%2 == 0 {
			conf = fmt.Appendf(conf, " %d-%d", j/2*clusterSlots/shards, (j/2+1)*clusterSlots/shards-1)
		}
		conf = append(conf, '\n')
	}
	return fmt.Appendf(conf, "vars currentEpoch %d lastVoteEpoch 0\n", shards)
}

// shownPort is the port that a node announces.
func (n *clusterNode) shownPort() string {
	_, port, _ := strings.Cut(n.shown(), ":")
	return port
}

// shown is the address that a node announces.
func (n *clusterNode) shown() string {
	if n.link != nil {
		return n.link.addr()
	}
	return n.addr()
}

// Ready is nil if all nodes of cluster i serve, and each master has a replica in step. The error says what is missing.
func (c *Clusters) Ready(i int) error {
	for j := range c.nodes[i] {
		info, err := c.Do(i, j, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if text := info.(string); !strings.Contains(text, "cluster_state:ok") ||
			!strings.Contains(text, fmt.Sprintf("cluster_known_nodes:%d\r", len(c.nodes[i]))) {
			return fmt.Errorf("node %d of cluster %d is not ready: %s", j, i, text)
		}
		info, err = c.Do(i, j, "INFO", "replication")
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
	var ending sync.WaitGroup
	var addrs []string
	for _, nodes := range c.nodes {
		for _, n := range nodes {
			addrs = append(addrs, n.addr())
			if n.bus != nil {
				addrs = append(addrs, localhost(n.bus.to), localhost(n.bus.port()))
				ending.Go(n.bus.close)
			}
			if n.link != nil {
				addrs = append(addrs, n.link.addr())
				ending.Go(n.link.close)
			}
			ending.Go(func() { n.kill() })
		}
	}
	ending.Wait()
	if c.group != nil {
		c.group.Close()
	}
	releaseBlock(addrs)
}

// N returns the number of clusters.
func (c *Clusters) N() int { return len(c.nodes) }

// Nodes returns the number of nodes of each cluster.
func (c *Clusters) Nodes() int { return len(c.nodes[0]) }

// Addr returns the address of cluster i, as redlock.Config.Masters takes it: cluster:// with the
// first master of each shard, or with both nodes of the only one.
func (c *Clusters) Addr(i int) string {
	var all []string
	for j := range c.nodes[i] {
		if j%2 == 0 || len(c.nodes[i]) == 2 {
			all = append(all, c.Node(i, j))
		}
	}
	return "cluster://" + strings.Join(all, ",")
}

// Addrs returns the addresses of all clusters.
func (c *Clusters) Addrs() (all []string) {
	for i := range c.nodes {
		all = append(all, c.Addr(i))
	}
	return all
}

// Node returns the host:port that node j of cluster i announces.
func (c *Clusters) Node(i, j int) string { return c.nodes[i][j].shown() }

// ID returns the id of node j in cluster i.
func (c *Clusters) ID(i, j int) string { return c.nodes[i][j].id }

// Owner returns the node that has a slot of cluster i. It waits for up to a minute until a node
// serves the slot and more than half of the nodes that are up name it as the master.
func (c *Clusters) Owner(i, slot int) (node int) {
	c.must(i, "find the owner of a slot", wait(func() (err error) {
		node, err = c.FindOwner(i, slot)
		return err
	}))
	return node
}

// FindOwner is [Clusters.Owner] without the wait: the error says why there is none now.
func (c *Clusters) FindOwner(i, slot int) (int, error) {
	named := map[string]int{}
	up := 0
	for j := range c.nodes[i] {
		v, err := c.Do(i, j, "CLUSTER", "SLOTS")
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
	for j, n := range c.nodes[i] {
		if 2*named[n.id] <= up || n.state() != nil {
			continue
		}
		info, err := c.Do(i, j, "CLUSTER", "INFO")
		if err == nil && strings.Contains(info.(string), "cluster_state:ok") {
			return j, nil
		}
	}
	return 0, fmt.Errorf("no node serves slot %d: named are %v, up are %d", slot, named, up)
}

// Await returns when a node other than the given one has a slot of cluster i, and which it is. It fails
// after a minute.
func (c *Clusters) Await(i, slot, other int) (node int) {
	c.must(i, "await another owner of a slot", wait(func() (err error) {
		node, err = c.FindOwner(i, slot)
		if err == nil && node == other {
			err = errors.New("it has it still")
		}
		return err
	}))
	return node
}

// Do sends one command to node j of cluster i, as [Masters.Do] does.
func (c *Clusters) Do(i, j int, args ...string) (any, error) {
	reply, err := do(c.nodes[i][j].server, args...)
	return reply, asking(fmt.Sprintf("node %d of cluster %d", j, i), err)
}

// Kill ends node j of cluster i as SIGKILL does, and returns when it is gone.
func (c *Clusters) Kill(i, j int) { c.must(i, "kill", c.nodes[i][j].kill()) }

// Restart starts node j of cluster i again, which remembers its cluster, but has no data.
func (c *Clusters) Restart(i, j int) { c.must(i, "restart", c.nodes[i][j].restart()) }

// Pause freezes node j of cluster i until [Clusters.Resume].
func (c *Clusters) Pause(i, j int) { c.must(i, "pause", c.nodes[i][j].pause()) }

// Resume lets a paused node go on.
func (c *Clusters) Resume(i, j int) { c.must(i, "resume", c.nodes[i][j].resume()) }

// Isolate cuts node j of cluster i off from the other nodes until [Clusters.Rejoin]. Clients still
// reach it. So does its replica: the two are cut off only as nodes.
func (c *Clusters) Isolate(i, j int) { c.isolate(i, j, true) }

// Rejoin ends what Isolate has done.
func (c *Clusters) Rejoin(i, j int) { c.isolate(i, j, false) }

func (c *Clusters) isolate(i, j int, cut bool) {
	id := c.nodes[i][j].id
	for _, n := range c.nodes[i] {
		n.bus.cut(id, cut)
	}
}

// Move gives a slot of cluster i to node j, with its keys, as redis-cli --cluster reshard does. each is
// called, if it is not nil, after every step: when both nodes know that the slot moves, after each of its
// keys, and at last. It does not wait until the other nodes know it: that is for [Clusters.Await]. The error says which
// step has failed. Then some keys have been moved, perhaps, and it goes on where it was if it is called again.
func (c *Clusters) Move(i, slot, to int, each func()) error {
	from, err := c.FindOwner(i, slot)
	if err != nil {
		return err
	}
	step := func() {
		if each != nil {
			each()
		}
	}
	s, target := strconv.Itoa(slot), c.nodes[i][to]
	if _, err := c.Do(i, to, "CLUSTER", "SETSLOT", s, "IMPORTING", c.ID(i, from)); err != nil {
		return err
	}
	if _, err := c.Do(i, from, "CLUSTER", "SETSLOT", s, "MIGRATING", target.id); err != nil {
		return err
	}
	step()
	for {
		v, err := c.Do(i, from, "CLUSTER", "GETKEYSINSLOT", s, "1")
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
		if _, err := c.Do(i, from, migrate...); err != nil {
			return err
		}
		step()
	}
	for _, j := range slices.Compact([]int{to, from}) {
		if _, err := c.Do(i, j, "CLUSTER", "SETSLOT", s, "NODE", target.id); err != nil {
			return err
		}
	}
	step()
	return nil
}

// Cut cuts the link in front of node j of cluster i until [Clusters.Heal], as [Masters.Cut] does. It cuts the node off
// from its clients and its replica.
func (c *Clusters) Cut(i, j int) {
	c.change(i, j, "cut", func(w *weather) { w.cut = [2]bool{true, true} })
}

// CutReplies is [Clusters.Cut] for replies alone: the node executes what it is sent.
func (c *Clusters) CutReplies(i, j int) {
	c.change(i, j, "cut replies", func(w *weather) { w.cut[toClients] = true })
}

// Delay makes all that passes the link of node j of cluster i arrive later by d, as [Masters.Delay] does.
func (c *Clusters) Delay(i, j int, d time.Duration) {
	c.change(i, j, "delay", func(w *weather) { w.delay = d })
}

// Heal ends what Cut and CutReplies have done.
func (c *Clusters) Heal(i, j int) {
	c.change(i, j, "heal", func(w *weather) { *w = weather{delay: w.delay} })
}

// Reset resets all connections of clients and the replica to node j of cluster i once.
func (c *Clusters) Reset(i, j int) {
	if l := c.nodes[i][j].link; l != nil {
		l.reset()
		return
	}
	c.must(i, "reset", errNoLink)
}

func (c *Clusters) change(i, j int, op string, f func(*weather)) {
	if l := c.nodes[i][j].link; l != nil {
		l.change(f)
		return
	}
	c.must(i, op, errNoLink)
}

// StopReplication has a replica, node j of cluster i, get nothing more from its master, and keep what it has, until
// [Clusters.GoOnReplicating] or a restart.
func (c *Clusters) StopReplication(i, j int) {
	// Its master does not let it in again.
	c.mustDo(i, j, "CONFIG", "SET", "masteruser", "nobody")
	c.mustDo(i, j, "CONFIG", "SET", "masterauth", "nothing")
	c.mustDo(i, j, "CLIENT", "KILL", "TYPE", "master")
}

// GoOnReplicating ends what StopReplication has done.
func (c *Clusters) GoOnReplicating(i, j int) {
	c.mustDo(i, j, "CONFIG", "SET", "masterauth", c.nodes[i][j].secret)
	c.mustDo(i, j, "CONFIG", "SET", "masteruser", "")
}

func (c *Clusters) mustDo(i, j int, args ...string) {
	_, err := c.Do(i, j, args...)
	c.must(i, strings.Join(args, " "), err)
}

func (c *Clusters) must(i int, op string, err error) {
	if err == nil {
		return
	}
	err = fmt.Errorf("redlocktest: %s of cluster %d: %w", op, i, err)
	if c.tb == nil {
		panic(err)
	}
	c.tb.Helper()
	c.tb.Fatal(err)
}
