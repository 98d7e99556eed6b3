package redlock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/stretchr/testify/require"
)

// waitsForKeys has a process wait for a set of keys, and hold it for a moment. It is had when it has it.
func (p *processes) waitsForKeys(i int, had *[]int, mu *sync.Mutex, keys ...string) {
	p.running.Go(func() {
		m := p.clients[i].NewMutex(keys[0], time.Hour, WithKeys(keys[1:]...))
		if m.Lock(context.Background()) != nil {
			return
		}
		mu.Lock()
		*had = append(*had, i)
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		m.Unlock(context.Background())
	})
}

// inSets runs a test with processes that wait for sets of keys, in their order, while "a" is held.
func inSets(t *testing.T, sets [][]string, f func(p *processes, r *fakeRounds), want ...int) {
	t.Helper()
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		p := newProcesses(t, r, c.NewMutex("a", time.Hour, WithKeys("b", "c")))
		require.NoError(t, p.holder.TryLock(t.Context()))
		var mu sync.Mutex
		var had []int
		for i, keys := range sets {
			p.join()
			p.waitsForKeys(i, &had, &mu, keys...)
			time.Sleep(20 * time.Millisecond)
		}
		f(p, r)
		require.NoError(t, p.holder.Unlock(t.Context()))
		time.Sleep(200 * time.Millisecond)
		mu.Lock()
		require.Equal(t, want, had)
		mu.Unlock()
		require.Zero(t, r.keys())
		for _, key := range []string{"a", "b", "c"} {
			require.Empty(t, p.entries(key), key)
		}
	})
}

// A process waits in the queue of its keys in their order, however it names them, and in the next only
// while it is the first of those before. So of two that share keys, one waits for the other in the
// first queue that they share, and in no other.
func TestQueuesOfSetsOfKeysAreEnteredInTheirOrder(t *testing.T) {
	sets := [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "a"}, {"c", "b"}}
	inSets(t, sets, func(p *processes, r *fakeRounds) {
		for range 30 {
			require.Len(t, p.entries("a"), 3)
			require.Len(t, p.entries("b"), 2)
			require.Len(t, p.entries("c"), 1)
			time.Sleep(line.EntryPause / 3)
		}
	}, 0, 3, 1, 2) // the last stands behind the first alone
}

// A waiter that loses its entry in one queue gives up its places in the later ones. Otherwise two waiters
// could wait for each other.
func TestLostEntryOfAQueueIsLostInTheLaterOnes(t *testing.T) {
	sets := [][]string{{"a", "b"}, {"b", "a"}}
	inSets(t, sets, func(p *processes, r *fakeRounds) {
		r.set(func(m *fakeMaster) { // and not the queue of b
			delete(m.lines, queueKey("a"))
			m.drop(queueKey("a"))
		}, p.queueMaster("a"))
		time.Sleep(line.EntryPause + 10*time.Millisecond)
		require.True(t, p.contends(0, "a"), "it does not know yet")
		for since := r.now(); p.contends(0, "a"); time.Sleep(time.Millisecond) {
			require.Less(t, r.now()-since, 3*lookInterval, "it asks again")
		}
		time.Sleep(20 * time.Millisecond)
		require.True(t, p.contends(1, "a"), "the other has its entry in all queues")
	}, 1, 0)
}

// A waiter that contends as the queue of one of its keys is none is not in those of the others.
func TestWhoHasNoQueueOfOneKeyIsInNoOther(t *testing.T) {
	sets := [][]string{{"a", "b"}}
	inSets(t, sets, func(p *processes, r *fakeRounds) {
		require.Len(t, p.entries("a"), 1)
		r.set(func(m *fakeMaster) {
			m.deny = func(args []string) string {
				if args[0] != "SET" && len(args) > 3 && args[3] == queueKey("b") {
					return wrongQueueKeys(args)
				}
				return ""
			}
		}, all(5)...)
		r.hook(func() { p.clients[0].tracking.Disconnected(0) })
		for range 20 {
			time.Sleep(lookInterval / 10)
			for since := r.now(); !p.contends(0, "a"); time.Sleep(time.Millisecond) { // during an attempt
				require.Less(t, r.now()-since, lookInterval/10)
			}
		}
		require.Empty(t, p.entries("a"))
		r.set(func(m *fakeMaster) { delete(m.lines, queueKey("b")); m.drop(queueKey("b")) }, all(5)...)
	}, 0)
}
