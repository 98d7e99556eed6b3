package redlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// woken returns how often each client's waiters were notified that they may try.
func woken(clients []*Client) (n []uint64) {
	for _, c := range clients {
		s := c.Stats()
		n = append(n, s.more.WokenFree+s.more.WokenHeld+s.more.WokenExpiry+s.more.WokenLocal) // no polls: a look may go unanswered
	}
	return n
}

// Processes that wait for a permit have it in the order in which they came, and each release wakes one
// of them. Several that are released together wake as many.
func TestPermitsAreHadInTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	for k := 2; k <= 3; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			const n = 6
			masters := redlocktest.Start(t, 3)
			held := takenPermits(t, opened(t, masters.Addrs(), nil), "k", k, k)
			took := make(chan int, n)
			var clients []*Client
			var ms []*Mutex
			for i := range n {
				c := opened(t, masters.Addrs(), nil)
				m := c.NewMutex("k", term30, WithPermits(k))
				clients, ms = append(clients, c), append(ms, m)
				done := queuesUp(t, masters, m, i)
				go func() {
					if <-done == nil {
						took <- i
					}
				}()
			}
			asleep(t, clients[0], ms[0].spec().Names()[0])
			before := woken(clients)
			next := 0
			for ; next < 2; next++ { // one after the other
				require.NoError(t, held[next].Unlock(t.Context()))
				require.Equal(t, next, conntest.Soon(t, "the next has it", took))
				require.Eventually(t, func() bool { return queueLength(t, masters, ms[0].spec().Names()[0]) == n-1-next }, hanging, 5*time.Millisecond)
				time.Sleep(50 * time.Millisecond) // nothing says that nobody else will come
				require.Empty(t, took)
			}
			after := woken(clients)
			// The next one is the first now, and may have been notified of a permit that was just taken.
			require.Equal(t, before[3:], after[3:], "nobody else was woken")
			for range 2 { // together
				for _, i := range []int{next - 2, next - 1} {
					go ms[i].Unlock(context.Background())
				}
				got := []int{conntest.Soon(t, "the next has it", took), conntest.Soon(t, "and the one behind it", took)}
				require.ElementsMatch(t, []int{next, next + 1}, got)
				next += 2
			}
			for _, m := range ms[n-2:] {
				require.NoError(t, m.Unlock(t.Context()))
			}
			noQueue(t, masters)
		})
	}
}

// A client that comes, and finds that its slot is taken, looks for another only after those who wait in
// the queue.
func TestNoPermitIsTakenAheadOfTheQueue(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c, other := opened(t, masters.Addrs(), nil), openedWith(t, Config{Masters: masters.Addrs(), RoundTimeout: 10 * time.Second}) // it is refused, be it late
	held := takenPermits(t, c, "k", 2, 1)[0]
	m := other.NewMutex("k", term30, WithPermits(2))
	_, slot, _ := kind.CutSlot(held.Token())
	m.hold.SetNextSlot(slot - 1)

	master, queue := queueMasterOf(t, other, m.spec().Names()[0]), queueKey(m.spec().Names()[0])
	Says(t, masters, master, "ZADD", queue, "1", "another's")
	Says(t, masters, master, "SET", queue+":another's:alive", "")
	done := queuesUp(t, masters, m, 1)
	SoonSays(t, masters, master, int64(1), "EXISTS", queue+":another's") // it waits for the other
	require.Empty(t, done)
	Says(t, masters, master, "DEL", queue+":another's:alive", queue+":another's")
	comes(t, done)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, held.Unlock(t.Context()))
}

// The head of the queue is notified of a lock that another process releases by its token, of every kind. The
// first of each client's own queue waits for all of its goroutines, and all of them have it.
func TestLockThatIsHandedOverByItsTokenGoesToTheHeadOfTheQueue(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	clients := openedTimes(t, 4, Config{Masters: masters.Addrs()})
	for name, opts := range map[string][]Option{
		"plain": nil, "fenced": {WithFence()}, "several": {WithKeys("z")}, "several fenced": {WithKeys("y"), WithFence()}, "permit": {WithPermits(1)},
	} {
		t.Run(name, func(t *testing.T) {
			key := "a " + name
			holder := clients[0].NewMutex(key, term30, opts...)
			require.NoError(t, holder.TryLock(t.Context()))
			const each = 3
			type taken struct {
				client int
				m      *Mutex
			}
			took := make(chan taken, 2*each)
			for i, c := range clients[1:3] {
				for g := range each {
					m := c.NewMutex(key, term30, opts...)
					var done <-chan error
					if g == 0 {
						done = queuesUp(t, masters, m, i)
					} else {
						done = locks(t, m)
					}
					go func() {
						if <-done == nil {
							took <- taken{i, m}
						}
					}()
				}
			}
			require.Equal(t, 2, queueLength(t, masters, holder.spec().Names()[0]))
			fence, had := holder.Fence(), [2]int{}
			for i := range 2 * each {
				other := clients[3].NewMutex(key, term30, append(opts, WithToken(holder.Token()))...)
				require.NoError(t, other.Unlock(t.Context()))
				next := conntest.Soon(t, "the next has it", took)
				had[next.client]++
				if i == 0 {
					require.Zero(t, next.client, "the head of the queue")
				}
				if fence != 0 {
					require.Greater(t, next.m.Fence(), fence)
					fence = next.m.Fence()
				}
				holder = next.m
			}
			require.Equal(t, [2]int{each, each}, had)
			require.NoError(t, holder.Unlock(t.Context()))
			noQueue(t, masters)
		})
	}
}
