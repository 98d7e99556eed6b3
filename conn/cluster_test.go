package conn_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
)

// ofLocks is for a cluster: {locks}: is in slot 1236.
var ofLocks = conn.Options{DialTimeout: patient, ClusterKey: "{locks}:"}

const (
	moved = "-MOVED 1236 10.0.0.1:1\r\n"
	ask   = "-ASK 1236 10.0.0.1:1\r\n"
	down  = "-CLUSTERDOWN The cluster is down\r\n"
)

// slotsAt is an answer to CLUSTER SLOTS: the slots are shared among the endpoints, and the first has the most, also
// ours. The id of each node is its port.
func slotsAt(endpoints ...string) string {
	out := fmt.Sprintf("*%d\r\n", len(endpoints))
	for i, at := range endpoints {
		host, port, _ := net.SplitHostPort(at)
		first, last := 0, 10_000
		if i > 0 {
			first, last = 10_000+i, 10_000+i
		}
		out += fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*3\r\n$%d\r\n%s\r\n:%s\r\n$%d\r\n%s\r\n", first, last, len(host), host, port, len(port), port)
	}
	return out
}

// nodesOf are masters of a cluster; the first has our slot.
func nodesOf(t *testing.T, n int) (nodes []*scripted, endpoints []string) {
	for range n {
		s := script(t, map[string]string{
			"HELLO": strings.ReplaceAll(hello, "$10\r\nstandalone", "$7\r\ncluster"), "GET": moved,
			"CLUSTER INFO": "$38\r\ncluster_state:ok\r\ncluster_my_epoch:7\r\n\r\n",
		})
		nodes, endpoints = append(nodes, s), append(endpoints, s.addr)
	}
	for _, s := range nodes {
		s.answer("CLUSTER SLOTS", slotsAt(endpoints...))
	}
	nodes[0].answer("GET", "$-1\r\n")
	return nodes, endpoints
}

func cluster(t *testing.T, endpoints ...string) conn.Address {
	return parse(t, "cluster://user:secret@"+strings.Join(endpoints, ","))
}

// Most nodes of the list lead to the master of the slot, also if the others are gone, of another cluster, or no
// nodes at all.
func TestMasterOfASlotIsFound(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1"
	nodes, at := nodesOf(t, 3)
	_, other := nodesOf(t, 1)
	alone := serverAs(t, "master")
	for name, given := range map[string][]string{
		"all":                    at,
		"one that has it":        at[:1],
		"one that has it not":    at[2:],
		"one is gone":            {nobody, at[2], at[1]},
		"one is of another":      {at[1], at[2], other[0]},
		"another has no cluster": {alone.addr, at[2], at[1]},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := conn.Dial(t.Context(), cluster(t, given...), ofLocks)
			require.NoError(t, err)
			defer c.Close()
			s := c.Server()
			require.Equal(t, nodes[0].addr, s.Endpoint)
			require.Equal(t, "7", s.Epoch)
			require.True(t, s.Cluster)
			require.ElementsMatch(t, at, s.Nodes)
			require.NotZero(t, s.SlotAsked)
		})
	}
	require.True(t, nodes[1].saw("AUTH user secret"))
}

// A node that most others do not confirm is not believed, whatever it says of itself: it was cut off, forgotten
// or replaced, or is of another cluster.
func TestMasterOfASlotNeedsAMajority(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		given  func(at []string) []string
		change func(nodes []*scripted, at []string)
		want   string
		no     bool // it is refused, and not tried again soon
	}{
		"others name another": {change: func(nodes []*scripted, at []string) {
			nodes[1].answer("CLUSTER SLOTS", slotsAt(at[1], at[0], at[2]))
			nodes[2].answer("CLUSTER SLOTS", slotsAt(at[2], at[0], at[1]))
		}, want: "more than half of the cluster's masters must say who has slot 1236, and"},
		"others are gone": {change: func(nodes []*scripted, at []string) {
			nodes[0].answer("CLUSTER SLOTS", slotsAt(at[0], "127.0.0.1:1", "127.0.0.1:2"))
		}, given: func(at []string) []string { return at[:1] }, want: "more than half"},
		"most that are listed are gone": {given: func(at []string) []string {
			return []string{"127.0.0.1:1", "127.0.0.1:2", at[0]}
		}, want: "and more than half of 3 nodes"},
		"half of those that are listed are gone": {given: func(at []string) []string {
			return []string{"127.0.0.1:1", at[0]}
		}, want: "and more than half of 2 nodes"},
		"others serve nobody": {change: func(nodes []*scripted, at []string) {
			nodes[1].answer("GET", down)
			nodes[2].answer("GET", down)
		}, want: "serves no keys now"},
		"one forgets the others": {change: func(nodes []*scripted, at []string) {
			nodes[0].answer("CLUSTER SLOTS", slotsAt(at[0]))
			nodes[1].answer("CLUSTER SLOTS", slotsAt(at[1]))
		}, want: "more than half"},
		"it is moving":    {change: func(nodes []*scripted, _ []string) { nodes[0].answer("GET", ask) }, want: "ASK 1236"},
		"it knows better": {change: func(nodes []*scripted, _ []string) { nodes[0].answer("GET", moved) }, want: "MOVED 1236"},
		"it is a replica": {change: func(nodes []*scripted, _ []string) {
			nodes[0].answer("ROLE", "*1\r\n$5\r\nslave\r\n")
			nodes[0].answer("HELLO", "-ERR unknown command\r\n")
		}, want: "it is a slave in the cluster"},
		"it is not allowed": {change: func(nodes []*scripted, _ []string) { allAnswer(nodes, "GET", "-NOPERM no\r\n") }, want: "let the user run GET", no: true},
		"nor the slots":     {change: func(nodes []*scripted, _ []string) { allAnswer(nodes, "CLUSTER SLOTS", "-NOPERM no\r\n") }, want: "let the user run CLUSTER SLOTS", no: true},
		"a wrong password":  {change: func(nodes []*scripted, _ []string) { allAnswer(nodes, "AUTH", "-WRONGPASS no\r\n") }, want: "correct the username and password", no: true},
		"it has no cluster": {change: func(nodes []*scripted, _ []string) {
			allAnswer(nodes, "CLUSTER SLOTS", "-ERR This instance has cluster support disabled\r\n")
		}, want: "write its address as redis://host:port", no: true},
		"a place that is none": {change: func(nodes []*scripted, at []string) {
			allAnswer(nodes, "CLUSTER SLOTS", slotsAt("no/place:1"))
		}, want: "more than half"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, at := nodesOf(t, 3)
			if c.change != nil {
				c.change(nodes, at)
			}
			given := at
			if c.given != nil {
				given = c.given(at)
			}
			_, err := conn.Dial(t.Context(), cluster(t, given...).WithHint(at[0]), ofLocks)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "secret")
			require.Equal(t, c.no, errors.Is(err, conn.ErrRefused), err)
		})
	}
	_, at := nodesOf(t, 1)
	_, err := conn.Dial(t.Context(), cluster(t, at...), conn.Options{DialTimeout: patient, ClusterKey: "locks:"})
	require.ErrorContains(t, err, "choose a prefix that has one, such as {locks}:")
	require.ErrorIs(t, err, conn.ErrRefused)
	_, err = conn.Dial(t.Context(), parse(t, at[0]), ofLocks)
	require.ErrorContains(t, err, "write cluster://")
}

func allAnswer(nodes []*scripted, command, answer string) {
	for _, n := range nodes {
		n.answer(command, answer)
	}
}

// A node that stands in for a whole cluster, as a proxy or a serverless one does: it names itself as the master of
// all slots, by a name or without one.
func TestOneEndpointForAWholeCluster(t *testing.T) {
	t.Parallel()
	nodes, at := nodesOf(t, 1)
	_, port, _ := net.SplitHostPort(at[0])
	for name, host := range map[string]string{"a name": "$9\r\nlocalhost\r\n", "none": "$-1\r\n", "an empty one": "$0\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			nodes[0].answer("CLUSTER SLOTS", fmt.Sprintf("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%s:%s\r\n", host, port))
			nodes[0].answer("CLUSTER INFO", "-ERR unknown subcommand\r\n")
			c, err := conn.Dial(t.Context(), cluster(t, at...), ofLocks)
			require.NoError(t, err)
			defer c.Close()
			require.Equal(t, at[0], c.RemoteAddr())
			require.Empty(t, c.Server().Epoch)
			require.Contains(t, c.Server().Missing, "config epoch: CLUSTER INFO: ERR unknown subcommand")
		})
	}
}

// An endpoint that knows no CLUSTER at all is the master of all slots, too, if it is the only one of its address and
// serves the keys. Any other refusal is one.
func TestOneEndpointKnowsNoCluster(t *testing.T) {
	t.Parallel()
	const unknown = "-ERR unknown command 'CLUSTER'\r\n"
	for name, c := range map[string]struct {
		nodes      int
		slots, get string
		want       string
	}{
		"it has all keys":      {nodes: 1, slots: unknown, get: "$-1\r\n"},
		"no such subcommand":   {nodes: 1, slots: "-ERR Unknown subcommand or wrong number of arguments for 'SLOTS'\r\n", get: "$-1\r\n"},
		"the user may not":     {nodes: 1, slots: "-NOPERM no\r\n", get: "$-1\r\n", want: "let the user run CLUSTER SLOTS"},
		"it cannot say now":    {nodes: 1, slots: "-ERR upstream failure\r\n", get: "$-1\r\n", want: "upstream failure"},
		"another has the key":  {nodes: 1, slots: unknown, get: moved, want: "unknown command"},
		"it serves nobody":     {nodes: 1, slots: unknown, get: down, want: "unknown command"},
		"it is one of several": {nodes: 2, slots: unknown, get: "$-1\r\n", want: "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, at := nodesOf(t, c.nodes)
			allAnswer(nodes, "CLUSTER SLOTS", c.slots)
			allAnswer(nodes, "CLUSTER INFO", unknown)
			allAnswer(nodes, "GET", c.get)
			dialled, err := conn.Dial(t.Context(), cluster(t, at...), ofLocks)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			defer dialled.Close()
			require.Equal(t, at[0], dialled.Server().Endpoint)
			require.Equal(t, at, dialled.Server().Nodes)
		})
	}
}

// A failed dial asks each node, and shows nothing of it. Nodes that a minority names are not even asked, and are
// not shown the password.
func TestNodeThatOnlyAMinorityNamesIsNotAsked(t *testing.T) {
	t.Parallel()
	nodes, at := nodesOf(t, 3)
	liar, thief := nodes[2], serverAs(t, "master")
	for i := range 2 { // the liar is the first that answers
		at[i] = farFrom(t, nodes[i].addr, 200*time.Millisecond).addr
	}
	for _, honest := range nodes[:2] {
		honest.answer("CLUSTER SLOTS", slotsAt(at...))
	}
	liar.answer("CLUSTER SLOTS", slotsAt(thief.addr, at[0], at[1], at[2]))
	c, err := conn.Dial(t.Context(), cluster(t, at...), ofLocks)
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, at[0], c.Server().Endpoint)
	require.Empty(t, thief.seen())
}

// FollowSlot says who has the slot as long as a majority does, and when it asked. It follows when nodes change.
func TestASlotIsFollowed(t *testing.T) {
	t.Parallel()
	nodes, at := nodesOf(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	said := make(chan conn.SlotOwner, 1000)
	ended := make(chan struct{})
	began := clock.Now()
	go func() {
		defer close(ended)
		conn.FollowSlot(ctx, cluster(t, at[0]), ofLocks, func(o conn.SlotOwner) { said <- o })
	}()
	next := func(what string, is func(o conn.SlotOwner) bool) (o conn.SlotOwner) {
		for !is(o) {
			o = conntest.Soon(t, what, said)
		}
		return o
	}
	o := next("the first", func(o conn.SlotOwner) bool { return o.Endpoint == at[0] && !o.Moving })
	require.GreaterOrEqual(t, o.Asked, began)
	require.ElementsMatch(t, at, o.Nodes)
	later := clock.Now()
	next("again", func(o conn.SlotOwner) bool { return o.Endpoint == at[0] && o.Asked >= later })

	nodes[0].answer("GET", ask)
	next("it is moving", func(o conn.SlotOwner) bool { return o.Moving })
	nodes[0].answer("GET", "-MOVED 1236 "+at[1]+"\r\n")
	nodes[0].answer("CLUSTER SLOTS", slotsAt(at[1], at[0], at[2]))
	nodes[1].answer("GET", "$-1\r\n")
	nodes[1].answer("CLUSTER SLOTS", slotsAt(at[1], at[0], at[2]))
	o = next("it has moved", func(o conn.SlotOwner) bool { return o.Endpoint == at[1] })
	require.False(t, o.Moving)

	nodes[2].answer("GET", down)
	nodes[1].answer("GET", down)
	next("no majority", func(o conn.SlotOwner) bool { return o.Endpoint == "" })
	cancel()
	conntest.Soon(t, "the end", ended)
	conn.FollowSlot(t.Context(), parse(t, at[0]), ofLocks, nil)
}

// A node that is asked for its view of the cluster may just have been given the slot. What is asked for then is read in the order
// in which it was sent.
func TestANodeIsGivenTheSlotAsItsViewIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, given := range []bool{true, false} {
		nodes, at := nodesOf(t, 3)
		epoch, has, err := conn.AskedTwice(t.Context(), cluster(t, at...), ofLocks, at[1], func() {
			if given {
				nodes[1].answer("GET", "$-1\r\n")
				nodes[1].answer("CLUSTER SLOTS", slotsAt(at[1], at[0], at[2]))
			}
		})
		require.NoError(t, err)
		require.Equal(t, given, has)
		require.Equal(t, "7", epoch)
	}
}

// A real cluster of one node, over TLS and for a user that may do no more than it must.
func TestClusterOverTLS(t *testing.T) {
	t.Parallel()
	version, err := exec.Command(cmp.Or(os.Getenv("REDLOCKTEST_SERVER"), "redis-server"), "--version").Output()
	require.NoError(t, err)
	if strings.Contains(string(version), "v=6.") {
		t.Skip("the bus of a cluster has a port of its own from Redis 7 on")
	}
	a := newAuthority(t)
	m, addr := startTLS(t, a, "requirepass pw", "cluster-enabled yes", "tls-cluster yes", fmt.Sprint("cluster-port ", freePort(t)))
	c, err := net.Dial("unix", m.socket)
	require.NoError(t, err)
	defer c.Close()
	lines := bufio.NewReader(c)
	tell := func(command string) string {
		_, err := io.WriteString(c, command+"\r\n")
		require.NoError(t, err)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		return line
	}
	for _, command := range []string{"AUTH pw", "CLUSTER ADDSLOTSRANGE 0 16383",
		"ACL SETUSER locker on >secret ~{locks}:* -@all +cluster|slots +cluster|info +get +set +info"} {
		require.Equal(t, "+OK\r\n", tell(command))
	}
	until(t, func() bool { return tell("SET {locks}:k 1") == "+OK\r\n" }) // it waits for a while at its start
	opt := ofLocks
	opt.TLS = &tls.Config{RootCAs: a.roots}
	connection, err := conn.Dial(t.Context(), parse(t, "clusters://locker:secret@"+addr), opt)
	require.NoError(t, err)
	defer connection.Close()
	require.Equal(t, addr, connection.Server().Endpoint)
	require.NotEmpty(t, connection.Server().Epoch)
	require.Empty(t, connection.Server().Missing)
	require.Equal(t, "1", string(newLine(t, connection).do("GET", "{locks}:k").Bytes()))

	renewed := opt
	renewed.TLS = &tls.Config{} // which does not trust the nodes
	renewed.Credentials = func(context.Context, string) (conn.Credentials, error) {
		return conn.Credentials{Username: "locker", Password: conn.NewSecret("secret"), TLS: opt.TLS}, nil
	}
	again, err := conn.Dial(t.Context(), parse(t, "clusters://"+addr), renewed)
	require.NoError(t, err)
	again.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := make(chan string, 1)
	go conn.FollowSlot(ctx, parse(t, "clusters://"+addr), renewed, func(o conn.SlotOwner) {
		if o.Endpoint != "" {
			said <- o.Endpoint
			cancel()
		}
	})
	require.Equal(t, addr, soon(t, said))
}
