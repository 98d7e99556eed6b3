package mux_test

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
)

// A fakeCluster is nodes that all say the same about who has the slot.
type fakeCluster struct {
	nodes []*fakeMaster

	mu    sync.Mutex
	owner int
	says  map[int]string // what a node answers instead to whoever asks for the slot, or hangs
	epoch int            // of all nodes
	asked map[int]int    // how often a node was asked for the slot
	votes string         // the owner's answer to all else
	told  chan []string  // the owner's other commands
}

const (
	movedReply = "-MOVED 1236 127.0.0.1:1\r\n"
	askReply   = "-ASK 1236 127.0.0.1:1\r\n"
	downReply  = "-CLUSTERDOWN The cluster is down\r\n"
	hangs      = "hangs"
)

func newCluster(t *testing.T, n int) *fakeCluster {
	c := &fakeCluster{says: map[int]string{}, asked: map[int]int{}, votes: ":1\r\n", told: make(chan []string, 1000)}
	for i := range n {
		node := newFake(t, fmt.Sprint("node", i), func() script {
			return func(args []string) (string, bool) { return c.answer(i, args), true }
		})
		c.change(func() { c.nodes = append(c.nodes, node) })
	}
	return c
}

func (c *fakeCluster) answer(i int, args []string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if args[0] == "GET" {
		c.asked[i]++
	}
	switch {
	case c.says[i] == hangs && (args[0] == "GET" || args[0] == "CLUSTER"):
		return ""
	case args[0] == "ROLE":
		return "*1\r\n$6\r\nmaster\r\n"
	case args[0] == "GET" && c.says[i] != "":
		return c.says[i]
	case args[0] == "GET" && i == c.owner:
		return "$-1\r\n"
	case args[0] == "GET":
		return fmt.Sprintf("-MOVED 1236 %s\r\n", c.nodes[c.owner].addr())
	case args[0] == "CLUSTER" && args[1] == "INFO" && c.epoch < 0:
		return "-NOPERM no\r\n"
	case args[0] == "CLUSTER" && args[1] == "INFO":
		return bulk(fmt.Sprintf("cluster_my_epoch:%d\r\n", c.epoch))
	case args[0] == "CLUSTER":
		out := fmt.Sprintf("*%d\r\n", len(c.nodes))
		for j, n := range c.nodes {
			slot := 2000 + j
			if j == c.owner {
				slot = 1236
			}
			host, port, _ := net.SplitHostPort(n.addr())
			out += fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*3\r\n%s:%s\r\n%s", slot, slot, bulk(host), port, bulk(n.id))
		}
		return out
	}
	c.told <- args
	return c.votes
}

// noEpoch has the nodes say nothing of their epochs.
func (c *fakeCluster) noEpoch() { c.epoch = -1 }

func (c *fakeCluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *fakeCluster) config(cfg mux.Config) mux.Config {
	cfg.Masters = []string{"cluster://" + c.nodes[0].addr()}
	cfg.Conn.ClusterKey = "{locks}:"
	return cfg
}

// A node that says that the slot is another's, or on its way there, has no vote any more. What is to be delivered
// goes to whoever has the slot then. Even if that is the same node again, it is another's successor. A cluster that
// serves nobody for a moment has not switched.
func TestNodeThatSaysThatItHasTheSlotNoMoreIsLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply    string
		switches int64
	}{
		"moved": {movedReply, 1}, "on its way": {askReply, 1}, "partly there": {"-TRYAGAIN later\r\n", 1},
		"a replica": {readOnly, 1}, "down": {downReply, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := newCluster(t, 3)
			var switches atomic.Int64
			befores := make(chan string, 10)
			m := open(t, nodes.config(mux.Config{
				OnSwitch: func(int) { switches.Add(1) },
				Keeper: keeps(func(_ int, before, _ conn.Server) (time.Duration, string) {
					befores <- before.Endpoint
					return 0, ""
				}),
			}))
			require.Empty(t, <-befores)
			nodes.change(func() { nodes.votes = c.reply; nodes.says[0] = c.reply })
			op := release("k", "t")
			op.Command = op.Fallback
			require.NoError(t, m.Do(t.Context(), op))
			var said *mux.ReplyError
			require.ErrorAs(t, op.Votes[0].Err, &said)
			<-nodes.told
			require.NotEqual(t, mux.Up, m.Masters()[0].Phase)
			require.Equal(t, c.switches, switches.Load())
			nodes.change(func() { nodes.votes = ":1\r\n"; nodes.says = map[int]string{} })
			require.Equal(t, "EVAL", conntest.Soon(t, "the release is delivered", nodes.told)[0])
			if before := <-befores; c.switches == 0 {
				require.Equal(t, nodes.nodes[0].addr(), before)
			} else {
				require.NotEqual(t, nodes.nodes[0].addr(), before)
			}
		})
	}
}

// A node that finds out while nobody asks it for a lock is left, too; and so is one that most others do not confirm.
func TestMasterOfASlotIsLeftWhenTheClusterSaysSo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(c *fakeCluster)
		why    error
	}{
		"it moves":                  {func(c *fakeCluster) { c.says[0] = askReply }, mux.ErrSwitched},
		"it has moved":              {func(c *fakeCluster) { c.owner = 1 }, mux.ErrSwitched},
		"the others are cut off":    {func(c *fakeCluster) { c.says[1], c.says[2] = downReply, downReply }, mux.ErrUnconfirmed},
		"the others hang":           {func(c *fakeCluster) { c.says[1], c.says[2] = hangs, hangs }, mux.ErrUnconfirmed},
		"it says itself no more":    {func(c *fakeCluster) { c.says[0] = hangs }, mux.ErrUnconfirmed},
		"it was another's":          {func(c *fakeCluster) { c.epoch++ }, mux.ErrSwitched},
		"one other does not answer": {func(c *fakeCluster) { c.says[1] = downReply }, nil},
		"one other hangs":           {func(c *fakeCluster) { c.says[1] = hangs }, nil},
		"it shows no epoch":         {func(c *fakeCluster) { c.noEpoch() }, mux.ErrUnconfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := newCluster(t, 3)
			left := make(chan error, 1000)
			m := open(t, nodes.config(mux.Config{OnState: func(_ int, s mux.State) {
				if s.Phase != mux.Up {
					left <- s.Err
				}
			}}))
			eventually(t, "all have answered since it is followed", func() (is bool) {
				nodes.change(func() { is = min(nodes.asked[0]-1, nodes.asked[1], nodes.asked[2]) > 2 }) // the dial has asked, too
				return is
			})
			nodes.change(func() { c.change(nodes) })
			if c.why != nil {
				late := time.After(patience / 3)
				for why := error(nil); !errors.Is(why, c.why); { // a busy machine may be late with an answer before
					select {
					case why = <-left:
					case <-late:
						require.ErrorIs(t, why, c.why)
					}
				}
				return
			}
			changed := clock.Now()
			eventually(t, "it has a vote that nothing confirmed before counts for any more", func() bool {
				op := vote("a")
				require.NoError(t, m.Do(t.Context(), op))
				for len(nodes.told) > 0 {
					<-nodes.told
				}
				return clock.Now() > changed+conn.SlotTrust && op.Votes[0].Verdict == mux.VerdictYes
			})
		})
	}
}

// A process that has stood still does not know who has the slot. No vote counts until a majority has confirmed it
// again, but releases are sent.
func TestMasterOfASlotHasNoVoteUntilItIsConfirmed(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3)
	m := open(t, nodes.config(mux.Config{}))
	hasNoVote := func(op *mux.Op, said string) {
		for range 20 { // in between, it may be confirmed again, or left
			eventually(t, "it is up", func() bool { return m.Masters()[0].Phase == mux.Up })
			mux.Distrust(m, 0)
			require.NoError(t, m.Do(t.Context(), op))
			if errors.Is(op.Votes[0].Err, mux.ErrUnconfirmed) && m.Masters()[0].Phase == mux.Up {
				return
			}
		}
		require.Fail(t, said)
	}
	hasNoVote(vote("a"), "it has a vote")
	undo := release("k", "t")
	undo.Command = undo.Fallback
	for len(nodes.told) > 0 {
		<-nodes.told
	}
	hasNoVote(undo, "it has one for a release")
	require.Equal(t, "EVAL", conntest.Soon(t, "the release is sent", nodes.told)[0])
	eventually(t, "it votes again", func() bool {
		op := vote("a")
		require.NoError(t, m.Do(t.Context(), op))
		return op.Votes[0].Verdict == mux.VerdictYes
	})
}

// Others may rely on a master's predecessor for as long as a majority's word counts. Its quarantine lasts for so
// much longer.
func TestQuarantineOfASlotCountsFromWhenNobodyReliesOnItsMaster(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 1)
	k := keeps(func(int, conn.Server, conn.Server) (time.Duration, string) { return time.Minute, "test" })
	m := open(t, nodes.config(mux.Config{Keeper: k}))
	op := vote("a")
	require.NoError(t, m.Do(t.Context(), op))
	var why *mux.QuarantineError
	require.ErrorAs(t, op.Votes[0].Err, &why)
	at := m.Masters()[0].Since
	require.GreaterOrEqual(t, mux.QuarantinedUntil(m, 0), at+time.Minute+conn.SlotTrust-time.Second)
	k.lasts(m, 0, 2*time.Minute)
	require.GreaterOrEqual(t, mux.QuarantinedUntil(m, 0), at+2*time.Minute+conn.SlotTrust-time.Second)
}
