package redlock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// More goroutines that want one lock never have it less often than one alone. While it is hot, the masters are asked
// less than one command for a lock, all of them together.
func TestMoreGoroutinesHaveNoFewerLocks(t *testing.T) {
	t.Parallel()
	const masters = 5
	for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFence()}} {
		for _, work := range []time.Duration{0, 100 * time.Microsecond, time.Millisecond} {
			t.Run(fmt.Sprint(name, ", work of ", work), func(t *testing.T) {
				alone := int64(0)
				for _, n := range []int{1, 2, 3, 4, 8, 16, 64} {
					simulated(t, masters, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
						c, told := another(t, r, Config{})
						var all sync.WaitGroup
						var had atomic.Int64
						end := r.now() + bearably(time.Second)
						for range n {
							all.Go(func() {
								m := c.NewMutex("k", ttl, opts...)
								for r.now() < end && had.Load() < 20_000 {
									require.NoError(t, m.Lock(t.Context()))
									had.Add(1)
									time.Sleep(work)
									require.NoError(t, m.Unlock(t.Context()))
								}
							})
						}
						all.Wait()
						if n == 1 {
							alone = had.Load()
						}
						require.GreaterOrEqual(t, had.Load(), alone, "%d goroutines", n)
						t.Log(n, "goroutines:", had.Load(), "locks,", told.ordered(), "rounds")
						if n == 64 && opts == nil && work == 0 {
							require.Less(t, int64(masters*told.ordered()), had.Load(), "commands")
						}
					})
				}
			})
		}
	}
}

// A waiter in another process is told of no hand-over: it asks nothing while the lock stays in the process.
func TestHandOversWakeNobodyElse(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFence()}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
				c, _ := another(t, r, Config{Handovers: -1})
				other, told := another(t, r, Config{})
				var all sync.WaitGroup
				m := c.NewMutex("k", ttl, opts...)
				require.NoError(t, m.Lock(t.Context()))
				waits := waitsFor(t, other, context.Background(), opts...)
				time.Sleep(50 * time.Millisecond) // until it sleeps
				asked, end := told.ordered(), r.now()+ttl/4
				var had atomic.Int64
				for range 64 { // so that somebody waits while the others wait for their Unlock
					all.Go(func() {
						m := c.NewMutex("k", ttl, opts...)
						for r.now() < end {
							require.NoError(t, m.Lock(t.Context()))
							had.Add(1)
							time.Sleep(100 * time.Microsecond)
							if r.now() >= end {
								require.Equal(t, asked, told.ordered())
							}
							require.NoError(t, m.Unlock(t.Context()))
						}
					})
				}
				time.Sleep(10 * time.Millisecond)
				require.NoError(t, m.Unlock(t.Context()))
				all.Wait()
				require.Greater(t, had.Load(), int64(100))
				require.NoError(t, soon(t, waits.locked))
				require.NoError(t, waits.Unlock(t.Context()))
			})
		})
	}
}

// A Lock is refused while another of its process has the lock. That alone has no later Lock enter the queue and look
// before it tries, once the queue master has said that nobody else waits.
func TestALockThatOnlyOneProcessWantsIsNotContended(t *testing.T) {
	for name, others := range map[string]bool{"nobody else": false, "another process waits": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
				c, _ := another(t, r, Config{})
				other, _ := another(t, r, Config{})
				first := taken(t, c)
				next := waitsFor(t, c, t.Context())
				contended := func() bool { return c.looks.Contended(c.now(), "k") }
				require.True(t, contended())
				var last *runner
				if others {
					last = waitsFor(t, other, t.Context())
				}
				require.NoError(t, first.Unlock(t.Context()))
				require.NoError(t, soon(t, next.locked))
				time.Sleep(2 * time.Millisecond) // until the queue master has answered
				require.Equal(t, others, contended())
				require.NoError(t, next.Unlock(t.Context()))
				if others {
					require.NoError(t, soon(t, last.locked))
					require.NoError(t, last.Unlock(t.Context()))
				}
			})
		})
	}
}
