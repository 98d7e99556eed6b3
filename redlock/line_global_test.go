package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/stretchr/testify/require"
)

// processes are clients of the same simulated masters, each as another process would be.
type processes struct {
	t       *testing.T
	r       *fakeRounds
	clients []*Client
	rounds  []*notifiedRounds
	holder  *Mutex
	running sync.WaitGroup

	mu    sync.Mutex
	order []int           // who had the lock
	had   []time.Duration // and when
}

// queued runs a test with n processes that wait for "k", which another holds, in their order.
func queued(t *testing.T, n int, f func(t *testing.T, p *processes)) {
	t.Helper()
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		p := newProcesses(t, r, c.NewMutex("k", time.Hour))
		require.NoError(t, p.holder.TryLock(t.Context()))
		for i := range n {
			p.join()
			p.wait(i, t.Context())
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second)
		f(t, p)
	})
}

func newProcesses(t *testing.T, r *fakeRounds, holder *Mutex) *processes {
	p := &processes{t: t, r: r, holder: holder}
	t.Cleanup(p.running.Wait) // when the clients are closed
	return p
}

// join adds a process.
func (p *processes) join() *Client { return p.joinWith(Config{}) }

func (p *processes) joinWith(cfg Config) *Client {
	c, told := another(p.t, p.r, cfg)
	p.clients, p.rounds = append(p.clients, c), append(p.rounds, told)
	return c
}

// wait has a process wait for the lock, and hold it for 10 ms.
func (p *processes) wait(i int, ctx context.Context) {
	p.running.Go(func() {
		m := p.clients[i].NewMutex("k", time.Hour)
		if m.Lock(ctx) != nil {
			return
		}
		p.mu.Lock()
		p.order, p.had = append(p.order, i), append(p.had, p.r.now())
		p.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		m.Unlock(context.Background())
	})
}

// release has the holder let go, waits until n have had the lock, and returns when that was.
func (p *processes) release(n int) (order []int, after []time.Duration) {
	p.t.Helper()
	since := p.r.now()
	require.NoError(p.t, p.holder.Unlock(p.t.Context()))
	for range 600 {
		time.Sleep(100 * time.Millisecond)
		p.mu.Lock()
		order, after = p.order, slices.Clone(p.had)
		p.mu.Unlock()
		if len(order) >= n {
			break
		}
	}
	require.Len(p.t, order, n)
	for i := range after {
		after[i] -= since
	}
	return order, after
}

// took returns who has had the lock.
func (p *processes) took() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order)
}

// nothingIsLeft requires that no entry of a queue is left on any master.
func (p *processes) nothingIsLeft() {
	p.t.Helper()
	p.r.gone(p.t, 100*time.Millisecond)
	require.Empty(p.t, p.entries("k"))
	for i, c := range p.clients {
		watched := len(c.tracking.Keys())
		dead := i < len(p.rounds) && p.rounds[i].is(&p.rounds[i].dead)
		require.True(p.t, dead || watched == 0, "nobody watches")
	}
}

// entries returns the queue of a key, on whichever masters it is.
func (p *processes) entries(key string) (ids []string) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	for _, m := range p.r.masters {
		ids = append(ids, m.lines[queueKey(key)]...)
	}
	return ids
}

// queueMaster returns the master that has the queue of a key.
func (p *processes) queueMaster(key string) int {
	master, ok := p.clients[0].globalQueues.QueueMaster(key)
	require.True(p.t, ok)
	return master
}

// Only the head of the queue asks the masters anything when the lock is released.
func TestOneReleaseWakesOneProcess(t *testing.T) {
	queued(t, 5, func(t *testing.T, p *processes) {
		time.Sleep(50 * time.Millisecond) // no renewal is due
		ordered := func() (n []int) {
			for _, r := range p.rounds {
				n = append(n, r.ordered())
			}
			return n
		}
		before := ordered()
		require.NoError(t, p.holder.Unlock(t.Context()))
		time.Sleep(5 * time.Millisecond)
		after := ordered()
		require.Equal(t, []int{0}, p.took())
		require.Equal(t, before[0]+2, after[0], "an attempt, and it leaves the queue")
		require.Equal(t, before[2:], after[2:])
		require.LessOrEqual(t, after[1]-before[1], 3, "it is the first now, and looks")
	})
}

// One that gives up leaves nothing, and those behind it wait for the one before it.
func TestWhoGivesUpLeavesTheQueue(t *testing.T) {
	for _, quitter := range all(3) {
		t.Run(fmt.Sprint(quitter), func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				p := newProcesses(t, r, c.NewMutex("k", time.Hour))
				require.NoError(t, p.holder.TryLock(t.Context()))
				ctx, cancel := context.WithCancel(t.Context())
				for i := range 3 {
					p.join()
					if i == quitter {
						p.wait(i, ctx)
					} else {
						p.wait(i, t.Context())
					}
					time.Sleep(20 * time.Millisecond)
				}
				require.Len(t, p.entries("k"), 3)
				cancel()
				time.Sleep(20 * time.Millisecond)
				require.Len(t, p.entries("k"), 2)
				order, after := p.release(2)
				require.Equal(t, slices.DeleteFunc(all(3), func(i int) bool { return i == quitter }), order)
				require.Less(t, after[1], 50*time.Millisecond)
				p.nothingIsLeft()
			})
		})
	}
}

// So does one whose Lock a panic ends.
func TestWhoPanicsLeavesTheQueue(t *testing.T) {
	queued(t, 1, func(t *testing.T, p *processes) {
		c := p.join()
		c.events.hook(behind.Wait, func(*Event) { // before it has entered: then a wake
			c.events.hook(behind.Wake, func(*Event) { panic("the user's") })
		})
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			c.NewMutex("k", time.Hour).Lock(t.Context())
		}()
		time.Sleep(50 * time.Millisecond)
		require.Len(t, p.entries("k"), 2)
		p.join()
		p.wait(2, t.Context())
		time.Sleep(50 * time.Millisecond)
		order, after := p.release(2)
		require.Equal(t, []int{0, 2}, order)
		require.Equal(t, "the user's", <-panicked)
		require.Less(t, after[1], 50*time.Millisecond)
		p.nothingIsLeft()
	})
}

// Those behind a process that dies go on when its entry ends.
func TestWhoDiesDelaysTheOthersForAFewSeconds(t *testing.T) {
	for name, dead := range map[string][]int{"the first": {0}, "another": {1}, "two": {0, 1}, "two apart": {0, 2}} {
		t.Run(name, func(t *testing.T) {
			queued(t, 4, func(t *testing.T, p *processes) {
				for _, i := range dead { // its client ends without leaving
					p.rounds[i].turn(&p.rounds[i].dead, true)
				}
				order, after := p.release(4 - len(dead))
				require.Equal(t, slices.DeleteFunc(all(4), func(i int) bool { return slices.Contains(dead, i) }), order)
				require.Less(t, after[len(after)-1], 4100*time.Millisecond, "as is documented")
				time.Sleep(kind.NoticeLife)
				p.nothingIsLeft()
			})
		})
	}
}

// A queue in which processes wait for longer than a notice lives costs no more than before.
func TestWaitingForLongerThanANoticeLives(t *testing.T) {
	queued(t, 8, func(t *testing.T, p *processes) {
		before := p.rounds[7].ordered()
		time.Sleep(3*kind.NoticeLife + kind.NoticeLife/2)
		require.Less(t, p.rounds[7].ordered()-before, int(4*kind.NoticeLife/line.EntryPause))
		order, after := p.release(8)
		require.Equal(t, all(8), order)
		require.Less(t, after[7], 8*20*time.Millisecond)
		p.nothingIsLeft()
	})
}

// A master keeps an entry that has no waiter, or says that there is one. The waiter behind it has the lock
// nevertheless.
func TestQueueThatDoesNotMoveIsBypassed(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(func(m *fakeMaster) {
			m.lines[queueKey("k")] = []string{"ghost"}
			m.keys[queueKey("k")+":ghost:alive"] = fakeKey{"", clock.Forever}
		}, all(5)...)
		p := newProcesses(t, r, c.NewMutex("k", time.Hour))
		require.NoError(t, p.holder.TryLock(t.Context()))
		for i := range 3 {
			p.join()
			p.wait(i, t.Context())
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(5 * lookInterval)
		require.Empty(t, p.took(), "it is held")
		_, after := p.release(3)
		require.Less(t, after[2], 2*lookInterval+2*line.EntryPause)
	})
}

// The queue master hangs, is lost, or forgets. Nobody stalls, and all have the lock.
func TestNobodyStallsWhenTheQueueMasterFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *fakeMaster)
		down   bool          // the processes see it
		most   time.Duration // until all have had the lock, as is documented
	}{
		"hangs":          {freeze, false, 1300 * time.Millisecond},
		"is lost":        {fail, true, 100 * time.Millisecond},
		"flushed":        {func(m *fakeMaster) { clear(m.lines); m.drop(queueKey("k")) }, false, 100 * time.Millisecond},
		"refuses queues": {func(m *fakeMaster) { m.deny = denyQueues }, false, 100 * time.Millisecond},
		"a wrong type":   {func(m *fakeMaster) { m.deny = wrongQueueKeys }, false, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			queued(t, 4, func(t *testing.T, p *processes) {
				master := p.queueMaster("k")
				p.r.set(c.change, master)
				if c.down {
					for _, r := range p.rounds {
						r.loses(master)
					}
				}
				order, after := p.release(4)
				slices.Sort(order)
				require.Equal(t, all(4), order)
				require.Less(t, after[3], c.most)
			})
		})
	}
}

var (
	denyQueues     = denyScript(kind.EnterScript.Hash, "NOPERM this user has no permissions to access one of the keys used as arguments")
	wrongQueueKeys = denyScript(kind.EnterScript.Hash, "WRONGTYPE Operation against a key holding the wrong kind of value")
)

// A master that refuses queues is asked once a minute, whoever waits.
func TestMasterThatRefusesQueuesIsNotAskedAgain(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
		asked := 0
		r.set(func(m *fakeMaster) {
			m.deny = func(args []string) string {
				text := denyQueues(args)
				if text != "" {
					asked++
				}
				return text
			}
		}, all(5)...)
		holder, _ := another(t, r, Config{})
		c, _ := another(t, r, Config{})
		for range 20 {
			m := holder.NewMutex("k", time.Hour)
			require.NoError(t, m.Lock(t.Context()))
			done := make(chan error, 1)
			w := c.NewMutex("k", time.Hour)
			go func() { done <- w.Lock(t.Context()) }()
			time.Sleep(1100 * time.Millisecond)
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, <-done)
			require.NoError(t, w.Unlock(t.Context()))
		}
		require.LessOrEqual(t, asked, 2*3, "one of each client, and the fake asks three times")
	})
}

// Two processes that see different masters have two queues, and both have the lock.
func TestTwoQueuesForOneKey(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		p := newProcesses(t, r, c.NewMutex("k", time.Hour))
		require.NoError(t, p.holder.TryLock(t.Context()))
		p.join()
		master := p.queueMaster("k")
		p.join()
		p.rounds[1].loses(master)
		for i := range 2 {
			p.wait(i, t.Context())
			time.Sleep(20 * time.Millisecond)
			require.True(t, p.contends(i, "k"), i)
		}
		order, after := p.release(2)
		require.Len(t, order, 2)
		require.Less(t, after[1], 200*time.Millisecond)
		p.nothingIsLeft()
	})
}

// contends reports whether a process watches the lock.
func (p *processes) contends(i int, key string) bool {
	_, is := p.clients[i].tracking.Keys()[key]
	return is
}

// A process that is the first and finds no quorum does not keep the others from the lock.
func TestWhoFindsNoQuorumGoesToTheEnd(t *testing.T) {
	queued(t, 3, func(t *testing.T, p *processes) {
		p.rounds[0].turn(&p.rounds[0].lame, true)
		first := p.entries("k")[0]
		go func() {
			time.Sleep(12 * time.Millisecond)
			took, ids := p.took(), p.entries("k")
			if len(took) != 1 || len(ids) != 2 {
				t.Error("it is not behind the last", took, ids)
			}
			if slices.Contains(ids, first) {
				t.Error("its leave would end that entry, too, if it came late")
			}
		}()
		order, after := p.release(2)
		require.Equal(t, []int{1, 2}, order)
		require.Less(t, after[1], 200*time.Millisecond)
		p.rounds[0].turn(&p.rounds[0].lame, false)
		time.Sleep(time.Second)
		require.Equal(t, []int{1, 2, 0}, p.took())
		p.nothingIsLeft()
	})
}

// TryLock, and a client that cannot be notified, bypass the queue. Everybody has the lock all the same.
func TestQueueIsBypassed(t *testing.T) {
	queued(t, 3, func(t *testing.T, p *processes) {
		p.join()
		p.rounds[3].silent = true
		p.wait(3, t.Context())
		passer, _ := another(t, p.r, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		taken := 0
		go func() {
			m := passer.NewMutex("k", time.Hour)
			for ctx.Err() == nil {
				if err := m.TryLock(t.Context()); err == nil {
					taken++
					time.Sleep(10 * time.Millisecond)
					m.Unlock(t.Context())
				} else if !errors.Is(err, ErrHeld) {
					t.Error(err)
				}
				time.Sleep(3 * time.Millisecond)
			}
		}()
		time.Sleep(100 * time.Millisecond)
		p.release(4)
		cancel()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		require.Positive(t, taken)
		p.nothingIsLeft()
	})
}

// lap is between a release and the next Lock of one process. On this clock two commands that are sent
// at the same moment arrive in one order always: whoever has released the lock would be the faster.
func lap() { time.Sleep(rand.N(2*time.Millisecond).Truncate(time.Millisecond) / 10) }

// Nobody is starved who waits for several keys, whatever the others want.
func TestSetsOfKeysAreNotStarvedBetweenProcesses(t *testing.T) {
	t.Parallel()
	simulated(t, 5, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
		p := newProcesses(t, r, nil)
		sets := [][]string{{"a", "b"}, {"b", "a"}, {"b", "c"}, {"c", "a"}, {"a"}, {"b"}, {"c"}, {"a"}, {"b"}, {"c"}}
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		total, had, most := 0, make([]int, len(sets)), 0
		var running sync.WaitGroup
		for i, set := range sets {
			c := p.join()
			running.Go(func() {
				m := c.NewMutex(set[0], time.Hour)
				if len(set) > 1 {
					m = c.NewMutex(set[0], time.Hour, WithKeys(set[1:]...))
				}
				for ctx.Err() == nil {
					mu.Lock()
					since := total
					mu.Unlock()
					if m.Lock(ctx) != nil {
						return
					}
					mu.Lock()
					most = max(most, total-since)
					total++
					had[i]++
					mu.Unlock()
					time.Sleep(5 * time.Millisecond)
					m.Unlock(context.Background())
					lap()
				}
			})
		}
		time.Sleep(bearably(5 * time.Second))
		cancel()
		running.Wait()
		t.Log(total, had, most)
		require.Greater(t, slices.Min(had), total/len(sets)/3)
		require.LessOrEqual(t, most, 4*len(sets), "locks of others while one waits")
		r.gone(t, 100*time.Millisecond)
		for _, key := range []string{"a", "b", "c"} {
			require.Empty(t, p.entries(key))
		}
	})
}

// Processes that want one lock again and again have it equally often.
func TestProcessesShareALock(t *testing.T) {
	t.Parallel()
	simulated(t, 5, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
		p := newProcesses(t, r, nil)
		ctx, cancel := context.WithCancel(t.Context())
		const n = 10
		had, begin := make([]int, n), r.now()+time.Second // until then one may be faster than the head of the queue
		var running sync.WaitGroup
		for i := range had {
			c := p.join()
			running.Go(func() {
				m := c.NewMutex("k", time.Hour)
				for m.Lock(ctx) == nil {
					if r.now() >= begin {
						had[i]++
					}
					time.Sleep(time.Millisecond)
					m.Unlock(context.Background())
					lap()
				}
			})
		}
		time.Sleep(time.Second + bearably(5*time.Second))
		cancel()
		running.Wait()
		t.Log(had)
		require.LessOrEqual(t, slices.Max(had)-slices.Min(had), slices.Max(had)/10)
		p.nothingIsLeft()
	})
}

// contenders returns which processes watch the lock.
func (p *processes) contenders(key string) (who []int) {
	for i := range p.clients {
		if p.contends(i, key) {
			who = append(who, i)
		}
	}
	return who
}

// When the queue master is seen to be lost, or to be back, all move to the queue of another, and one
// contends. Nothing is left where they were.
func TestQueueMovesToAnotherMaster(t *testing.T) {
	queued(t, 4, func(t *testing.T, p *processes) {
		require.Equal(t, []int{0}, p.contenders("k"))
		for range 3 {
			master := p.queueMaster("k")
			for _, r := range p.rounds {
				r.loses(master)
			}
			time.Sleep(line.EntryPause + 100*time.Millisecond)
			require.NotEqual(t, master, p.queueMaster("k"))
			require.Len(t, p.contenders("k"), 1)
			require.Len(t, p.entries("k"), 4)
			for _, r := range p.rounds {
				r.finds(master)
			}
			time.Sleep(line.EntryPause + 100*time.Millisecond)
			require.Equal(t, master, p.queueMaster("k"))
			require.Len(t, p.contenders("k"), 1)
			require.Len(t, p.entries("k"), 4)
		}
		order, after := p.release(4)
		slices.Sort(order)
		require.Equal(t, all(4), order)
		require.Less(t, after[3], 100*time.Millisecond)
		p.nothingIsLeft()
	})
}

// Entries that end whenever a waiter begins to watch them have it contend. It does not ask for ever.
func TestEntriesThatEndAtOnceAreNotAskedForForEver(t *testing.T) {
	queued(t, 2, func(t *testing.T, p *processes) {
		p.r.set(func(m *fakeMaster) {
			m.deny = func(args []string) string {
				if args[0] == "PTTL" && args[1] != "k" {
					delete(m.keys, args[1])
				}
				return ""
			}
		}, all(5)...)
		before := p.rounds[1].ordered()
		master := p.queueMaster("k")
		p.r.hook(func() { p.clients[1].tracking.Disconnected(master) }) // it asks again
		time.Sleep(line.EntryPause / 2)
		require.Equal(t, all(2), p.contenders("k"))
		require.Less(t, p.rounds[1].ordered()-before, 4*(enterTries+1))
		p.r.set(func(m *fakeMaster) { m.deny = nil }, all(5)...)
		p.release(2)
	})
}

// A master that hangs is not asked for its queues for a second, whoever waits. One that answers with an
// error, or is not waited for, is not to blame.
func TestWhichMastersQueuesAreNotUsed(t *testing.T) {
	wait := func(t *testing.T, c *Client) (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.NewMutex("k", time.Hour).Lock(ctx)
		}()
		return func() { cancel(); <-done }
	}
	for name, c := range map[string]struct {
		change func(m *fakeMaster)
		waits  time.Duration
		used   bool
	}{
		"hangs":          {freeze, 2 * minQueueTimeout, false},
		"not waited for": {freeze, minQueueTimeout / 2, true},
		"a wrong type":   {func(m *fakeMaster) { m.deny = wrongQueueKeys }, 2 * minQueueTimeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, holder *Client, r *fakeRounds) {
				require.NoError(t, holder.NewMutex("k", time.Hour).TryLock(t.Context()))
				client, _ := another(t, r, Config{})
				master, used := client.globalQueues.QueueMaster("k")
				require.True(t, used)
				r.set(c.change, master)
				end := wait(t, client)
				time.Sleep(c.waits)
				end()
				_, used = client.globalQueues.QueueMaster("k")
				require.Equal(t, c.used, used)
				r.set(thaw, master)
				time.Sleep(line.EntryPause)
				_, used = client.globalQueues.QueueMaster("k")
				require.True(t, used)
			})
		})
	}
}

// A queue master that is late once costs nobody its place: who has had no answer has it still when it asks again.
func TestOneLateAnswerCostsNoPlace(t *testing.T) {
	queued(t, 4, func(t *testing.T, p *processes) {
		master, stood := p.queueMaster("k"), p.entries("k")
		for range 2 {
			p.r.set(freeze, master)
			time.Sleep(line.EntryPause + minQueueTimeout + 100*time.Millisecond) // each asks, but for the head
			p.r.set(thaw, master)
			require.Equal(t, all(4), p.contenders("k"))
			time.Sleep(line.EntryPause + 2*minQueueTimeout)
			require.Equal(t, stood, p.entries("k"))
			require.Equal(t, []int{0}, p.contenders("k"))
		}
		order, _ := p.release(4)
		require.Equal(t, all(4), order)
		p.nothingIsLeft()
	})
}

// A waiter that was the first, and has moved to the end of another master's queue, waits for each before
// it there.
func TestWhoWasTheFirstElsewhereWaitsItsTurn(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		p := newProcesses(t, r, c.NewMutex("k", time.Hour))
		require.NoError(t, p.holder.TryLock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 4 {
			p.join()
			if i == 3 {
				p.wait(i, ctx)
			} else {
				p.wait(i, t.Context())
			}
			time.Sleep(20 * time.Millisecond)
		}
		master := p.queueMaster("k")
		for _, i := range []int{1, 2, 3, 0} {
			p.rounds[i].loses(master)
			time.Sleep(line.EntryPause + 100*time.Millisecond)
		}
		require.Equal(t, []int{1}, p.contenders("k"))
		cancel()
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, []int{1}, p.contenders("k"), "the last waits for the one before that")
		order, after := p.release(3)
		require.Equal(t, []int{1, 2, 0}, order)
		require.Less(t, after[2], 100*time.Millisecond)
		p.nothingIsLeft()
	})
}

// enterRounds calls after once, when a question about the queue was answered.
type enterRounds struct {
	*notifiedRounds
	after atomic.Pointer[func()]
}

func (r *enterRounds) Wait(ctx context.Context, op *mux.Op) error {
	err := r.notifiedRounds.Wait(ctx, op)
	if asks(op, kind.EnterScript) {
		if after := r.after.Swap(nil); after != nil {
			(*after)()
		}
	}
	return err
}

// A waiter that contends without a queue, and asks for its place again, misses no release meanwhile: not that
// to the one before it, which is gone when it asks once more.
func TestReleaseWhileAContenderRenewsItsEntryIsNotLost(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		holder := c.NewMutex("k", time.Hour)
		require.NoError(t, holder.TryLock(t.Context()))
		busy := func(args []string) string {
			if len(args) > 3 && args[3] == queueKey("k") {
				return "BUSY for a moment"
			}
			return ""
		}
		r.set(func(m *fakeMaster) { m.deny = busy }, all(5)...)
		told := &enterRounds{notifiedRounds: &notifiedRounds{fakeRounds: r}}
		told.client = newClient(Config{}, told, r.now)
		t.Cleanup(func() { told.client.Close() })
		var had time.Duration
		done := make(chan error, 1)
		go func() {
			err := told.client.NewMutex("k", time.Hour).Lock(t.Context())
			had = r.now()
			done <- err
		}()
		time.Sleep(100 * time.Millisecond) // it contends without a queue
		r.set(func(m *fakeMaster) { m.deny = nil }, all(5)...)
		first, _ := another(t, r, Config{})
		m := first.NewMutex("k", time.Hour)
		taken := locks(t, m)
		time.Sleep(100 * time.Millisecond) // it is the head of the queue
		after := func() {
			require.NoError(t, holder.Unlock(context.Background()))
			require.NoError(t, <-taken)
			time.Sleep(5 * time.Millisecond)
		}
		told.after.Store(&after)
		time.Sleep(2 * time.Second)
		require.Nil(t, told.after.Load())
		released := r.now()
		require.NoError(t, m.Unlock(context.Background()))
		require.NoError(t, <-done)
		require.Less(t, had-released, time.Second)
	})
}

// A writer that is behind another leaves no intent: readers may be ahead of it.
func TestWhoHasLostItsEntryWithdrawsItsIntent(t *testing.T) {
	queued(t, 2, func(t *testing.T, p *processes) {
		master := p.queueMaster("k")
		var withdrawn atomic.Int32
		p.r.set(func(m *fakeMaster) {
			m.deny = func(args []string) string {
				if len(args) > 1 && args[1] == kind.WithdrawScript.Hash {
					withdrawn.Add(1)
				}
				return ""
			}
		}, all(5)...)
		p.r.set(freeze, (master+1)%5)
		time.Sleep(2 * lookInterval) // the first has asked for readers: the frozen one may have some
		require.Zero(t, withdrawn.Load())
		p.rounds[1].loses(master)
		time.Sleep(line.EntryPause)
		p.rounds[0].loses(master)
		time.Sleep(line.EntryPause + 100*time.Millisecond)
		require.Equal(t, []int{1}, p.contenders("k"))
		require.Positive(t, withdrawn.Load())
		p.r.set(thaw, (master+1)%5)
		order, _ := p.release(2)
		require.Equal(t, []int{1, 0}, order)
	})
}

// A client that is nearer to the masters, and takes the lock again as soon as it has let go, would be
// faster each time than the head of the queue. It does not keep that out for long.
func TestWhoIsNearerKeepsNobodyOut(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
		p := newProcesses(t, r, nil)
		near := p.join().NewMutex("k", time.Hour)
		p.join()
		p.rounds[1].far = 5 * time.Millisecond
		require.NoError(t, near.Lock(t.Context()))
		p.wait(1, t.Context())
		begun := r.now()
		for len(p.took()) == 0 && r.now() < begun+time.Minute {
			time.Sleep(2 * time.Millisecond)
			require.NoError(t, near.Unlock(t.Context()))
			require.NoError(t, near.Lock(t.Context()))
		}
		require.Less(t, r.now()-begun, 2*streakMax)
		require.NoError(t, near.Unlock(t.Context()))
		p.nothingIsLeft()
	})
}

// A client that has a lock again and again looks at the queue now and then, and one that has it at times
// does not.
func TestTheQueueIsLookedAtNowAndThen(t *testing.T) {
	for name, pause := range map[string]time.Duration{"again and again": 0, "at times": 2 * streakGap} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
				p := newProcesses(t, r, nil)
				m := p.join().NewMutex("k", time.Hour)
				const often = 1000
				begun := r.now()
				for range often {
					require.NoError(t, m.Lock(t.Context()))
					require.NoError(t, m.Unlock(t.Context()))
					time.Sleep(pause)
				}
				looks := p.rounds[0].ordered() - 2*often
				if pause == 0 {
					const parts = 3 // it stands, looks, and leaves
					require.Positive(t, looks)
					require.LessOrEqual(t, looks, parts*int((r.now()-begun)/streakMax))
				} else {
					require.Zero(t, looks)
				}
				p.nothingIsLeft()
			})
		})
	}
}
