package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// observed are events for some Observers alone.
func observed(t *testing.T, all ...Observer) *events {
	q := new(events)
	q.init(all, clock.Now)
	t.Cleanup(q.close)
	return q
}

// drain returns when all Observers were told all. close does not wait for that on a machine that is busy.
func drain(t *testing.T, q *events) {
	t.Helper()
	require.Eventually(t, func() bool { _, waiting := q.stats(); return waiting == 0 }, hanging, time.Millisecond)
	q.close()
}

// An Observer that hangs, as a logger does whose pipe is full, keeps nobody from anything: locks are renewed, taken and
// released, lost ones end, and other Observers are told.
func TestAnObserverThatHangsDelaysNobody(t *testing.T) {
	const locks = 4
	for _, op := range []string{opLock, opRenew, opUnlock} {
		t.Run(string(op), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, r := newFake(t, 3, Config{})
				hang := make(chan struct{})
				var renewed, lost, released atomic.Int64
				hangs := onEvent(EventRound, func(e *Event) {
					if e.Op == op {
						select { // not for ever: whoever is made to wait fails by what it was to do meanwhile
						case <-hang:
						case <-time.After(time.Hour):
						}
					}
				})
				c := newClient(Config{Observers: append(hangs, func(_ context.Context, e *Event) {
					switch {
					case e.Kind == EventLost:
						lost.Add(1)
					case e.Op == opRenew && e.Err == nil:
						renewed.Add(1)
					case e.Op == opUnlock:
						released.Add(1)
					}
				})}, r, r.now)
				var all []*Mutex
				var held []context.Context
				for i := range locks {
					m := c.NewMutex(fmt.Sprint("k", i), ttl)
					require.NoError(t, m.TryLock(t.Context()))
					ctx, stop := m.KeepAlive(t.Context())
					defer stop()
					all, held = append(all, m), append(held, ctx)
				}
				time.Sleep(5 * ttl)
				for _, m := range all {
					require.Positive(t, m.Remaining(), "it is renewed")
				}
				time.Sleep(2 * tellPause)
				require.GreaterOrEqual(t, renewed.Load(), int64(10*locks))
				require.NoError(t, all[0].Unlock(t.Context()))
				require.NoError(t, all[1].Release())
				r.set(fail, 0, 1, 2)
				began := time.Now()
				for _, ctx := range held {
					<-ctx.Done()
				}
				require.Less(t, time.Since(began), ttl)
				time.Sleep(2 * tellPause)
				require.Equal(t, int64(2), released.Load())
				require.Equal(t, int64(locks-2), lost.Load())
				r.set(restart, 0, 1, 2)

				began = time.Now()
				require.NoError(t, c.Close())
				require.GreaterOrEqual(t, time.Since(began), observerEnd, "it is given a while")
				require.Less(t, time.Since(began), observerEnd+time.Second)
				require.False(t, behind.Tell(c, t.Context(), "k"), "nobody is told any more")
				close(hang)
			})
		})
	}
}

// The same with a real pipe, real masters, and a log of what they do.
func TestALogThatNobodyReadsLosesNoLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	read, written, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	defer written.Close()
	require.NoError(t, written.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err == nil {
		_, err = written.Write(make([]byte, 1<<16))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, written.SetWriteDeadline(time.Time{}))
	logger := slog.New(slog.NewTextHandler(written, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := opened(t, masters.Addrs(), []Observer{SlogObserver(logger)})
	m := c.NewMutex("k", time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	require.Eventually(t, func() bool { return c.Stats().Renewals > 4 }, hanging, 5*time.Millisecond)
	if !errors.Is(context.Cause(held), ErrLost) { // a machine that is busy
		require.Positive(t, m.Remaining())
	}
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, c.Close())
	require.NoError(t, read.Close()) // the one that is being written fails
}

// Of what an Observer is too slow for, the oldest is left out, in one place; it is told how much that is, and when it was.
func TestWhatIsLeftOutIsCounted(t *testing.T) {
	const more = 100
	began, hang := make(chan struct{}), make(chan struct{})
	var slow, quick []Event
	q := observed(t, func(_ context.Context, e *Event) {
		if e.Key == "first" {
			close(began)
			<-hang
		}
		slow = append(slow, *e)
	}, func(_ context.Context, e *Event) { quick = append(quick, *e) })
	require.True(t, q.tell(t.Context(), behind.Note, "first"))
	conntest.Soon(t, "it is called", began)
	for i := range mostEvents + more {
		require.True(t, q.tell(t.Context(), behind.Note, fmt.Sprint(i)))
		if i%1000 == 0 { // the other one keeps up
			require.Eventually(t, func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				return q.observers[1].next == q.next
			}, hanging, time.Millisecond)
		}
	}
	close(hang)
	drain(t, q)
	require.Len(t, quick, 1+mostEvents+more)
	require.Len(t, slow, 2+mostEvents)
	require.EqualValues(t, behind.Dropped, slow[1].Kind)
	require.Equal(t, uint64(more), slow[1].more.Dropped)
	require.Equal(t, quick[1].more.Boot, slow[1].more.Started, "the first that was left out")
	require.Equal(t, quick[more].more.Boot, slow[1].more.Boot, "the last")
	require.Equal(t, quick[more].Time, slow[1].Time)
	for i, e := range slow[2:] {
		require.Equal(t, fmt.Sprint(more+i), e.Key, "in order")
	}
}

// Each Observer is told everything, in the order in which it happened, whoever tells, and with the time.
func TestEachObserverIsToldAllInOrder(t *testing.T) {
	const tellers, each = 8, 500
	var seen [3][]Event
	var all []Observer
	for i := range seen {
		all = append(all, func(_ context.Context, e *Event) {
			e.Votes = slices.Clone(e.Votes)
			seen[i] = append(seen[i], *e)
		})
	}
	q := observed(t, append(all, nil)...)
	before := clock.Now()
	var running sync.WaitGroup
	for who := range tellers {
		running.Go(func() {
			for n := range each {
				e := q.begin(context.Background(), EventRound, fmt.Sprint(who))
				e.more.Fence = uint64(n)
				for v := range n % 7 {
					e.Votes = append(e.Votes, Vote{Addr: fmt.Sprint(n, v)})
				}
				q.end(e)
			}
		})
	}
	running.Wait()
	drain(t, q)
	for _, events := range seen {
		require.Equal(t, tellers*each, len(events))
		next := map[string]uint64{}
		last := before
		for _, e := range events {
			require.Equal(t, next[e.Key], e.more.Fence)
			next[e.Key]++
			require.GreaterOrEqual(t, e.more.Boot, last)
			last = e.more.Boot
			require.Len(t, e.Votes, int(e.more.Fence%7))
			for v := range e.Votes {
				require.Equal(t, fmt.Sprint(e.more.Fence, v), e.Votes[v].Addr)
			}
			require.Less(t, time.Since(e.Time), time.Minute)
		}
	}
	require.Equal(t, seen[0], seen[1])
	require.Equal(t, seen[0], seen[2])
}

// An Observer may change what it is told, to hide an address for one: the others are told what has happened.
func TestAnObserverMayChangeWhatItIsTold(t *testing.T) {
	var seen [2][]string
	var all []Observer
	for i := range seen {
		all = append(all, func(_ context.Context, e *Event) {
			seen[i] = append(seen[i], e.Master.Addr, e.Votes[0].Addr)
			e.Master.Addr, e.Votes[0].Addr = "hidden", "hidden"
		})
	}
	q := observed(t, all...)
	for range 3 {
		e := q.begin(t.Context(), EventMaster, "")
		e.Master, e.Votes = &MasterStats{Addr: "m"}, append(e.Votes, Vote{Addr: "v"})
		q.end(e)
	}
	drain(t, q)
	for _, addrs := range seen {
		require.Equal(t, []string{"m", "v", "m", "v", "m", "v"}, addrs)
	}
}

// Events that follow each other are told together: an Observer's goroutine is not started for each.
func TestEventsAreToldTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []time.Time
		q := observed(t, func(context.Context, *Event) { told = append(told, time.Now()) })
		began := time.Now()
		for range 3 {
			q.tell(t.Context(), behind.Note, "k")
			time.Sleep(tellPause / 4)
		}
		time.Sleep(tellPause)
		q.tell(t.Context(), behind.Note, "k")
		q.close()
		first := began.Add(tellPause)
		require.Equal(t, []time.Time{first, first, first, began.Add(tellPause/4*3 + tellPause)}, told, "Close does not wait for the pause")
	})
}

// Close tells an Observer that is slow all that has happened, and calls none after it has returned.
func TestCloseTellsWhatHasHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		var told atomic.Int64
		q := observed(t, func(context.Context, *Event) {
			time.Sleep(observerEnd / n / 2)
			told.Add(1)
		})
		for range n {
			q.tell(t.Context(), behind.Note, "k")
		}
		q.close()
		require.Equal(t, int64(n), told.Load())
		require.False(t, q.tell(t.Context(), behind.Note, "k"))

		told.Store(0)
		q = observed(t, func(context.Context, *Event) {
			time.Sleep(observerEnd * 2 / 3)
			told.Add(1)
		})
		for range n {
			q.tell(t.Context(), behind.Note, "k")
		}
		began := time.Now()
		q.close()
		require.Equal(t, observerEnd, time.Since(began))
		time.Sleep(time.Hour)
		require.Equal(t, int64(2), told.Load(), "the one that is under way goes on, and there is no other")
		began = time.Now()
		q.close()
		require.Equal(t, began, time.Now(), "it has ended")
	})
}

// What was told is not kept alive: contexts and errors may have much behind them.
func TestWhatWasToldIsForgotten(t *testing.T) {
	var told atomic.Int64
	count := func(context.Context, *Event) { told.Add(1) }
	q := observed(t, count, count)
	const n = 100
	var freed atomic.Int64
	for range n {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := &RoundError{Votes: make([]Vote, 1)}
		for _, p := range []func(){func() { runtime.AddCleanup(err, func(int) { freed.Add(1) }, 0) }} {
			p()
		}
		e := q.begin(ctx, EventRound, "k")
		e.Err, e.Votes = err, append(e.Votes, Vote{Err: err})
		q.end(e)
	}
	require.Eventually(t, func() bool { return told.Load() == 2*n }, hanging, time.Millisecond)
	require.Eventually(t, func() bool { runtime.GC(); return freed.Load() == n }, hanging, time.Millisecond)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.ring {
		require.Nil(t, q.ring[i].ctx)
	}
}

// Many events at once take room for as long as they are there.
func TestRoomForManyEventsIsGivenBack(t *testing.T) {
	hang := make(chan struct{})
	q := observed(t, func(context.Context, *Event) { <-hang })
	for range 2 * mostEvents {
		q.tell(t.Context(), behind.Note, "k")
	}
	require.Len(t, q.ring, mostEvents)
	close(hang)
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.ring) == keptEvents
	}, hanging, time.Millisecond)
}

// An Observer may do with the client what it likes, also while it is being closed.
func TestAnObserverMayCallTheClient(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	var c *Client
	ready, done := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	c = opened(t, masters.Addrs(), []Observer{func(_ context.Context, e *Event) {
		if e.Kind != EventLost {
			return
		}
		<-ready
		once.Do(func() {
			m := c.NewMutex("l", time.Minute)
			done <- errors.Join(m.Lock(context.Background()), m.Unlock(context.Background()), c.Close())
		})
	}})
	close(ready)
	m := c.NewMutex("k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	require.NoError(t, c.Revoke(t.Context(), "k", "the test's"))
	conntest.Soon(t, "the loss", held.Done())
	require.NoError(t, conntest.Soon(t, "it has used the client", done))
}
