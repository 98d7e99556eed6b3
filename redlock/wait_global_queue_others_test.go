package redlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A crowd is processes that want one lock again and again.
type crowd struct {
	t       *testing.T
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	during  func() // while one has it; nil means for 2 ms

	pacing sync.Once
	paces  atomic.Int64 // how often another lock was taken, with a pause in between

	mu      sync.Mutex
	had     []int // how often each has had it
	stalled []time.Duration
}

// stall is how many paces must fit into a wait that is called a stall. On a machine that has nothing else to do
// there are about 800 in a lookInterval. On one that is busy the waits are longer, and so are the paces.
const stall = 200

func newCrowd(t *testing.T, n int) *crowd {
	c := &crowd{t: t, had: make([]int, n), stalled: make([]time.Duration, n)}
	c.ctx, c.end = context.WithCancel(t.Context())
	t.Cleanup(c.finish)
	return c
}

// wants has process i take the lock, and hold it for a moment, until the end.
func (c *crowd) wants(i int, m *Mutex) {
	c.pacing.Do(func() {
		pace := m.client.NewMutex("pace", m.term.ttl)
		c.running.Go(func() {
			for ; c.ctx.Err() == nil; c.paces.Add(1) {
				pace.TryLock(c.ctx)
				pace.Unlock(context.Background())
				time.Sleep(10 * time.Millisecond) // before the next pace
			}
		})
	})
	c.running.Go(func() {
		for c.ctx.Err() == nil {
			since, paces := time.Now(), c.paces.Load()
			if m.Lock(c.ctx) != nil {
				continue
			}
			c.mu.Lock()
			c.had[i]++
			if waited := time.Since(since); waited >= lookInterval && c.paces.Load()-paces >= stall {
				c.stalled[i] = waited
			}
			c.mu.Unlock()
			if c.during != nil {
				c.during()
			} else {
				time.Sleep(2 * time.Millisecond) // the work
			}
			m.Unlock(context.Background())
		}
	})
}

// atLeisure is the work of a crowd where most of a test is spent on what befalls the masters.
func atLeisure() { time.Sleep(10 * time.Millisecond) }

// serves requires that each has the lock so often from now on, and that none waited until a waiter looks
// again by itself: so nobody missed a notification.
func (c *crowd) serves(often int) {
	c.t.Helper()
	c.mu.Lock()
	before := slices.Clone(c.had)
	c.mu.Unlock()
	served := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range c.had {
			if c.had[i]-before[i] < often {
				return false
			}
		}
		return true
	}
	require.Eventually(c.t, served, time.Minute, 5*time.Millisecond, "%v", c.had)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Zero(c.t, slices.Max(c.stalled), "%v", c.stalled)
}

func (c *crowd) finish() {
	c.end()
	conntest.AllEnd(c.t, "all return", &c.running)
}

// Those who bypass the queue, with TryLock or with another library, stall nobody who waits in it.
func TestThoseWhoBypassTheQueueStallNobody(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := newCrowd(t, 4)
	for i := range 4 {
		m := opened(t, masters.Addrs(), nil).NewMutex("k", term30)
		c.wants(i, m)
	}
	for g := range 3 {
		client := opened(t, masters.Addrs(), nil)
		c.running.Go(func() {
			m := client.NewMutex("k", term30)
			for c.ctx.Err() == nil {
				if m.TryLock(c.ctx) == nil {
					time.Sleep(2 * time.Millisecond) // the work
					m.Unlock(context.Background())
				}
				time.Sleep(2 * time.Millisecond) // before the next try
			}
		})
		c.running.Go(func() { // another library: it asks one master after the other, and releases so
			for n := 0; c.ctx.Err() == nil; n++ {
				token := fmt.Sprint(g, n)
				for i := range masters.N() {
					masters.Do(i, "SET", "k", token, "NX", "PX", "30000")
				}
				for i := range masters.N() {
					masters.Do(i, "EVAL", kind.ReleaseScript.Text, "1", "k", token)
				}
				time.Sleep(5 * time.Millisecond) // before the next try
			}
		})
	}
	c.serves(5) // those who are stalled wait for lookInterval
	c.finish()
	noQueue(t, masters)
}

// Processes that see different masters are in two queues. All of them have the lock, in whichever they
// stand, and also when the master comes back for those who had lost it.
func TestProcessesThatSeeDifferentMastersAllHaveTheLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	sees := opened(t, masters.Addrs(), nil)
	away := queueMasterOf(t, sees, "k")
	addrs := masters.Addrs()
	addrs[away] = "127.0.0.1:1"
	c := newCrowd(t, 4)
	for i := range 4 {
		if i >= 2 {
			client, err := Open(t.Context(), Config{Masters: addrs, RoundTimeout: hanging, DialTimeout: hanging, StallTime: hanging})
			require.NoError(t, err)
			t.Cleanup(func() { client.Close() })
			for j := range 3 {
				if j != away {
					comesUp(t, client, j)
				}
			}
			require.NotEqual(t, away, queueMasterOf(t, client, "k"))
			m := client.NewMutex("k", term30)
			c.wants(i, m)
		} else {
			m := opened(t, masters.Addrs(), nil).NewMutex("k", term30)
			c.wants(i, m)
		}
	}
	c.serves(20)
	c.finish()
	noQueue(t, masters)
}

// The queue master hangs, comes back, and hangs again, while processes want the lock.
func TestQueueMasterHangsAndComesBack(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := newCrowd(t, 4)
	c.during = atLeisure
	clients := believingTimes(t, 4, Config{Masters: masters.Addrs(), StallTime: time.Second})
	master := queueMasterOf(t, clients[0], "k")
	for i, client := range clients {
		m := client.NewMutex("k", term30, WithRoundTimeout(time.Second))
		c.wants(i, m)
	}
	for range 2 {
		c.serves(10)
		masters.Pause(master)
		c.serves(5)
		masters.Resume(master)
		c.serves(5)
		for _, client := range clients {
			comesUp(t, client, master)
		}
	}
	c.serves(10)
	c.finish()
	noQueue(t, masters)
}

// The queue master restarts without anything, again and again, while processes want the lock.
func TestQueueMasterRestartsEmpty(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := newCrowd(t, 4)
	clients := believingTimes(t, 4, Config{Masters: masters.Addrs()})
	for i, client := range clients {
		m := client.NewMutex("k", term30)
		c.wants(i, m)
	}
	for range 3 {
		c.serves(5)
		masters.Restart(queueMasterOf(t, clients[0], "k"))
		c.serves(5)
		for i := range 3 {
			for _, client := range clients {
				comesUp(t, client, i)
			}
		}
	}
	c.finish()
	noQueue(t, masters)
}

// A Sentinel group whose master has the queue switches to its replica, or loses its master, while
// processes want the lock.
func TestQueueMasterIsReplaced(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(g *redlocktest.Groups, i int){
		"by an order": func(g *redlocktest.Groups, i int) { g.Switch(i) },
		"as it dies": func(g *redlocktest.Groups, i int) {
			was := g.Master(i)
			g.Kill(i)
			g.Await(i, was)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			groups := redlocktest.StartGroups(t, 3)
			c := newCrowd(t, 4)
			c.during = atLeisure
			var clients []*Client
			for i := range 4 {
				client := openedWith(t, Config{Masters: groups.Addrs()})
				clients = append(clients, client)
				m := client.NewMutex("k", 3*time.Second)
				c.wants(i, m)
			}
			c.serves(10)
			replaced := queueMasterOf(t, clients[0], "k")
			replace(groups, replaced)
			c.serves(10)
			for _, client := range clients { // then the queue may have its old place
				comesUp(t, client, replaced)
			}
			c.serves(10)
		})
	}
}
