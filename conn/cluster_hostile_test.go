package conn_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
)

// One node says that a master is elsewhere, while another is silent: the place has no majority, so nobody goes there, and
// nobody is told the password there.
func TestAPlaceThatOneNodeNamesIsNotDialled(t *testing.T) {
	t.Parallel()
	for _, silent := range []int{0, 1} {
		nodes, at := nodesOf(t, 3)
		thief := serverAs(t, "master")
		thief.answer("GET", "$-1\r\n")
		liar := nodes[2]
		nodes[silent].answer("GET", "")
		// It has the name of the master that is silent, and says that the slot is there.
		_, port, _ := net.SplitHostPort(at[silent])
		_, place, _ := net.SplitHostPort(thief.addr)
		named := strings.ReplaceAll(slotsAt(at[silent], at[1-silent], at[2]),
			fmt.Sprintf(":%s\r\n$%d\r\n%s\r\n", port, len(port), port), fmt.Sprintf(":%s\r\n$%d\r\n%s\r\n", place, len(port), port))
		liar.answer("CLUSTER SLOTS", named)
		thief.answer("CLUSTER SLOTS", named)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		c, err := conn.Dial(ctx, cluster(t, at...), ofLocks)
		cancel()
		if err == nil {
			require.NotEqual(t, thief.addr, c.Server().Endpoint)
			c.Close()
		}
		require.Empty(t, thief.seen(), "it is told nothing")
	}
}

// A node chooses its name, and the others repeat it. A name that is a list of places makes none of them a node that is asked, now or
// at the next dial.
func TestANameThatIsAListLeadsNowhere(t *testing.T) {
	t.Parallel()
	nodes, at := nodesOf(t, 3)
	var thieves []*scripted
	name := "x:1"
	for range 5 {
		thief := serverAs(t, "master")
		thieves, name = append(thieves, thief), name+","+thief.addr
	}
	for _, s := range nodes {
		s.answer("CLUSTER SLOTS", slotsAt(at[0], at[1], at[2], net.JoinHostPort(name+",y", "7003")))
	}
	address := cluster(t, at...)
	for range 3 {
		c, err := conn.Dial(t.Context(), address, ofLocks)
		require.NoError(t, err)
		require.Equal(t, at[0], c.Server().Endpoint)
		require.NotContains(t, strings.Join(c.Server().Nodes, " "), "x:1")
		address = address.WithHint(name).WithNodes(append(c.Server().Nodes, name, net.JoinHostPort(name, "7003")))
		c.Close()
	}
	for _, thief := range thieves {
		require.Empty(t, thief.seen(), "it is told nothing")
	}
}

// An answer that has no end is not waited for: nodes say little, but for their view of the cluster.
func TestANodeWhoseAnswerIsHugeIsGivenUp(t *testing.T) {
	t.Parallel()
	nodes, at := nodesOf(t, 3)
	for _, s := range nodes {
		s.answer("GET", "$1073741000\r\nx")
	}
	opt := ofLocks
	opt.DialTimeout = 10 * patient
	dialled := make(chan error, 1)
	go func() {
		_, err := conn.Dial(t.Context(), cluster(t, at...), opt)
		dialled <- err
	}()
	require.Error(t, soon(t, dialled))
}

// A node that names other places each time has us connected to those that it names now, and to no others. No other test
// may follow a slot meanwhile.
func TestPlacesThatAreNamedNoMoreAreLeft(t *testing.T) {
	conn.AskSlotEvery(t, 10*time.Millisecond)
	const each = 8
	var open [3 * each]atomic.Int64
	var places []string
	for i := range open {
		places = append(places, conntest.Listen(t, func(c net.Conn) {
			open[i].Add(1)
			defer open[i].Add(-1)
			conntest.Answer(c, func(args []string) (string, bool) {
				switch args[0] {
				case "GET":
					return down, true
				case "CLUSTER":
					return slotsAt("127.0.0.1:1"), true
				}
				return "+OK\r\n", true
			})
		}))
	}
	var window, asked atomic.Int64
	seed := conntest.Listen(t, func(c net.Conn) {
		conntest.Answer(c, func(args []string) (string, bool) {
			switch args[0] {
			case "GET": // another answer each time, so that it is asked again who the masters are
				return fmt.Sprintf("-MOVED 1236 10.0.0.1:%d\r\n", 1+asked.Add(1)%60_000), true
			case "CLUSTER":
				if args[1] == "SLOTS" {
					w := window.Load()
					return slotsAt(places[w*each : (w+1)*each]...), true
				}
			}
			return "+OK\r\n", true
		})
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn.FollowSlot(ctx, cluster(t, seed), ofLocks, func(conn.SlotOwner) {})
	}()
	for w := range 3 {
		window.Store(int64(w))
		require.Eventually(t, func() bool {
			for i := range open {
				if (i/each == w) != (open[i].Load() == 1) {
					return false
				}
			}
			return true
		}, 20*time.Second, time.Millisecond, "it is connected to those that are named, and to no others")
	}
	cancel()
	conntest.Soon(t, "the end", ended)
}

// However many nodes are asked, their answers have so much memory together.
func TestAnswersOfNodesAreBoundedTogether(t *testing.T) {
	t.Parallel()
	require.Equal(t, 16<<20, conn.AnswerBytes(0))
	require.Equal(t, 16<<20, conn.AnswerBytes(3))
	for _, nodes := range []int{9, 40, 600} {
		require.LessOrEqual(t, nodes*conn.AnswerBytes(nodes), 128<<20)
		require.Greater(t, conn.AnswerBytes(nodes), 200<<10)
	}

	// One of 40 says more than a 40th.
	nodes, at := nodesOf(t, 40)
	for _, n := range nodes {
		n.answer("GET", down)
	}
	nodes[1].answer("CLUSTER SLOTS", "*40000\r\n"+strings.Repeat("$100\r\n"+strings.Repeat("x", 100)+"\r\n", 40_000))
	opt := ofLocks
	opt.DialTimeout = patient
	_, err := conn.Dial(t.Context(), cluster(t, at[0]), opt)
	require.ErrorContains(t, err, "node "+at[1]+": resp: too many bytes")
}

// Where servers lead, a link-local address is nobody's master, unless it is listed.
func TestLinkLocalAddressesAreNotDialled(t *testing.T) {
	t.Parallel()
	for _, evil := range []string{"169.254.169.254:80", "[fe80::1]:80", "[::ffff:169.254.169.254]:80"} {
		nodes, _ := nodesOf(t, 1)
		nodes[0].answer("CLUSTER SLOTS", slotsAt(evil))
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		_, err := conn.Dial(ctx, cluster(t, nodes[0].addr), ofLocks)
		require.ErrorContains(t, err, "link-local", evil)
		_, err = conn.Dial(ctx, group(t, sentinelAt(t, evil).addr), conn.Options{DialTimeout: patient, TrustAnySentinel: true})
		require.ErrorIs(t, err, conn.ErrRefused, evil)
		require.ErrorContains(t, err, "link-local", evil)
		cancel()

		ctx, cancel = context.WithCancel(t.Context())
		cancel() // it would be dialled
		for _, address := range []string{evil, "cluster://" + evil} {
			_, err = conn.Dial(ctx, parse(t, address), ofLocks)
			require.Error(t, err)
			require.False(t, errors.Is(err, conn.ErrRefused), "%s: %v", address, err)
		}
	}
}
