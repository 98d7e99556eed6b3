package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// starts starts n goroutines in Lock, in order, and returns the order in which
// they get it; each holds it for a moment.
func starts(t *testing.T, c *Client, n int) <-chan int {
	t.Helper()
	order := make(chan int, n)
	for i := range n {
		go func() {
			m := c.NewMutex("k", ttl)
			if m.Lock(t.Context()) == nil {
				order <- i
				time.Sleep(10 * time.Millisecond)
				m.Unlock(t.Context())
			}
		}()
		synctest.Wait()
	}
	return order
}

func TestWaitersOfOneClientAreServedInOrder(t *testing.T) {
	simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		order := starts(t, c, 50)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 50, c.Stats().Waiting)
		since := r.now()
		require.NoError(t, m.Unlock(t.Context()))
		for want := range 50 {
			require.Equal(t, want, conntest.Soon(t, "the next one has the lock", order))
		}
		// 49 times held for 10 ms. The hand-overs wait for no master, but for the first Unlock's round.
		require.InDelta(t, 49*10, (r.now() - since).Milliseconds(), 2)
		time.Sleep(time.Second)
		require.Zero(t, c.localQueues.Size())
		require.Zero(t, c.Stats().Waiting)
		require.Zero(t, r.keys())
	})
}

func TestOnlyTheHeadOfAQueueContends(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c2 := newClient(Config{}, r, r.now) // another process
		taken(t, c2).KeepAlive(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				err := c.NewMutex("k", ttl).Lock(ctx)
				require.ErrorIs(t, err, ErrHeld)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		all.Wait()
		// At most a poll in 100 ms on average, once the pause is the longest.
		polls := c.Stats().Held
		require.Greater(t, polls, uint64(40))
		require.Less(t, polls, uint64(160))
		c2.held.Close()
	})
}

func TestPollsComeMoreAndMoreSeldom(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		w := wait{mutex: c.NewMutex("k", ttl)}
		for range 1000 {
			w.polls = 0
			most := pollMin
			for range 20 {
				d := w.pause()
				require.GreaterOrEqual(t, d, r.RTT(), "a poll in less than a round's time")
				require.Less(t, d, pollMin/2+most)
				most = min(2*most, pollMax)
			}
		}
		slow := newClient(Config{}, slowRounds{r}, r.now)
		w = wait{mutex: slow.NewMutex("k", ttl)}
		for range 100 {
			require.GreaterOrEqual(t, w.pause(), time.Second)
		}
	})
}

type slowRounds struct{ round.Mux }

func (slowRounds) RTT() time.Duration { return time.Second }

func TestLockTakesWhatAnotherProcessReleases(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c2 := newClient(Config{}, r, r.now)
		other := taken(t, c2)
		time.AfterFunc(time.Second, func() { other.Unlock(context.Background()) })
		since := r.now()
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.Lock(t.Context()))
		require.Less(t, r.now()-since, time.Second+pollMax+10*time.Millisecond)
		require.Positive(t, m.Remaining())
	})
}

func TestLockThatTimesOutSaysWhoHoldsIt(t *testing.T) {
	simulated(t, 5, Config{Owner: "svc-a@host-7:311"}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCause)
		defer cancel()
		var all sync.WaitGroup
		for range 3 { // the head of the queue, and others
			all.Go(func() {
				since := r.now()
				err := c.NewMutex("k", ttl).Lock(ctx)
				require.ErrorIs(t, err, ErrHeld)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, errCause)
				require.NotErrorIs(t, err, ErrNoQuorum)
				require.Contains(t, err.Error(), "held by svc-a@host-7:311 on 5 of 5 masters, 2.0 s left")
				var round *RoundError
				require.ErrorAs(t, err, &round)
				require.Equal(t, "svc-a@host-7:311", round.HeldBy)
				require.InDelta(t, 2*time.Second, round.HeldFor, float64(10*time.Millisecond))
				require.LessOrEqual(t, r.now()-since, time.Second+2*time.Millisecond)
			})
		}
		all.Wait()
	})
}

func TestAskingWhoHoldsItTakesNoLongTime(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(990*time.Millisecond, func() { r.set(freeze, 0, 1, 2, 3, 4) })
		since := r.now()
		err := c.NewMutex("k", ttl).Lock(ctx)
		require.ErrorIs(t, err, ErrHeld)
		require.LessOrEqual(t, r.now()-since, time.Second+explainMin)
	})
}

func TestCancelledWaitersLeaveAtOnce(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		ctx, cancel := context.WithCancelCause(t.Context())
		errs := make(chan error, 100)
		for range 100 {
			go func() { errs <- c.NewMutex("k", ttl).Lock(ctx) }()
		}
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 100, c.Stats().Waiting)
		since := r.now()
		cancel(errCause)
		for range 100 {
			err := conntest.Soon(t, "a waiter leaves", errs)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, errCause)
			require.ErrorIs(t, err, ErrHeld)
			require.NotContains(t, err.Error(), "left", "nobody was asked who holds it")
			var round *RoundError
			require.ErrorAs(t, err, &round)
			require.Zero(t, round.HeldFor)
		}
		require.Equal(t, since, r.now())
		require.Zero(t, c.localQueues.Size())
		require.NoError(t, m.Unlock(t.Context()))
		r.gone(t, 10*time.Millisecond)
	})
}

// A waiter that leaves must not take the lock's news with it.
func TestWaitersThatLeaveLoseNoWakeUp(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for round := range 100 {
			m := taken(t, c)
			ctx, cancel := context.WithCancel(t.Context())
			var leaving sync.WaitGroup
			for range 5 {
				leaving.Go(func() {
					m := c.NewMutex("k", ttl)
					if m.Lock(ctx) == nil {
						m.Unlock(context.Background())
					}
				})
			}
			synctest.Wait()
			done := make(chan error, 1)
			last := c.NewMutex("k", ttl)
			go func() { done <- last.Lock(t.Context()) }()
			synctest.Wait()
			since := r.now()
			go m.Unlock(t.Context())
			time.Sleep(time.Duration(round) * 50 * time.Microsecond)
			cancel()
			require.NoError(t, conntest.Soon(t, "it has the lock", done))
			require.Less(t, r.now()-since, 20*time.Millisecond)
			leaving.Wait()
			require.NoError(t, last.Unlock(t.Context()))
		}
	})
}

func TestLockOutlastsMastersThatAreAway(t *testing.T) {
	for name, change := range map[string]func(m *fakeMaster){"down": fail, "hanging": freeze} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				r.set(change, 0, 1)
				time.AfterFunc(5*time.Second, func() {
					r.set(func(m *fakeMaster) { m.frozen, m.down = false, nil }, 0, 1)
				})
				since := r.now()
				require.NoError(t, c.NewMutex("k", ttl).Lock(t.Context()))
				require.Less(t, r.now()-since, 6*time.Second)
				require.Positive(t, c.Stats().NoQuorum)
			})
		})
	}
}

func TestLockSaysWhyTheMastersDidNotAnswer(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(fail, 1, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 3 { // the head of the queue, and others
			all.Go(func() {
				err := c.NewMutex("k", ttl).Lock(ctx)
				require.ErrorIs(t, err, ErrNoQuorum)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, errFake)
				require.NotErrorIs(t, err, ErrHeld)
				var e *RoundError
				require.ErrorAs(t, err, &e)
				require.Len(t, e.Votes, 3)
			})
		}
		all.Wait()
		require.Empty(t, r.logs(0), "nothing was asked")
		for _, m := range r.masters {
			require.Empty(t, m.debts, "nothing was written, so nothing is owed")
		}
	})
}

func TestLockGivesUpWhereItIsRefused(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(func(m *fakeMaster) { m.refusal = "NOPERM this user may not" }, 0, 1)
		since := r.now()
		err := c.NewMutex("k", ttl).Lock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		var reply *mux.ReplyError
		require.ErrorAs(t, err, &reply)
		require.Equal(t, "NOPERM", reply.Code)
		require.Less(t, r.now()-since, 10*time.Millisecond)
	})
}

func TestCloseWakesEveryWaiter(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		errs := make(chan error, 10)
		for range 10 {
			go func() { errs <- c.NewMutex("k", ttl).Lock(t.Context()) }()
		}
		time.Sleep(100 * time.Millisecond)
		c.Close()
		for range 10 {
			err := conntest.Soon(t, "a waiter is woken", errs)
			require.ErrorIs(t, err, ErrClosed)
			require.NotErrorIs(t, err, ErrHeld)
		}
		require.ErrorIs(t, c.NewMutex("k", ttl).Lock(t.Context()), ErrClosed)
		require.Zero(t, c.localQueues.Size())
	})
}

func TestOthersGetTheirChance(t *testing.T) {
	simulated(t, 3, Config{Handovers: 4}, func(t *testing.T, c *Client, r *fakeRounds) {
		c2 := newClient(Config{}, r, r.now)
		m := taken(t, c)
		order := starts(t, c, 40)
		got := make(chan struct{})
		go func() {
			other := c2.NewMutex("k", ttl)
			for other.TryLock(t.Context()) != nil {
				time.Sleep(time.Millisecond)
			}
			close(got)
			other.Unlock(t.Context())
		}()
		require.NoError(t, m.Unlock(t.Context()))
		conntest.Soon(t, "the other has the lock", got)
		require.LessOrEqual(t, len(order), 5)
		for range 40 {
			conntest.Soon(t, "the next one has the lock", order)
		}
		time.Sleep(100 * time.Millisecond)
	})
}

func TestTwoLocksOnOneMutexAreTwoContenders(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.Lock(t.Context()))
		first := m.Token()
		err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrHeld)
		require.EqualError(t, err, `redlock: lock "k": held by this Mutex already`)
		second := make(chan error, 1)
		go func() { second <- m.Lock(t.Context()) }()
		time.Sleep(time.Second)
		select {
		case <-second:
			require.Fail(t, "it has been taken twice")
		default:
		}
		require.Equal(t, first, m.Token(), "an attempt must not touch what is held")
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, conntest.Soon(t, "the second has it", second))
		require.NotEqual(t, first, m.Token())
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// Who locks and unlocks a Mutex again and again keeps out no other Lock of that Mutex, though that waits in no queue.
func TestALockInItsOwnWayHasItsTurn(t *testing.T) {
	_, c := started(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, opt := range map[string]Option{"permits": WithPermits(4), "readers": WithShared()} {
		m := c.NewMutex(name, time.Minute, opt)
		require.NoError(t, m.Lock(ctx))
		for range 2 {
			others := make(chan error, 3)
			for range cap(others) {
				go func() {
					err := m.Lock(ctx)
					if err == nil {
						err = m.Unlock(ctx)
					}
					others <- err
				}()
			}
			require.Eventually(t, func() bool { return c.Stats().Waiting == cap(others) }, 10*time.Second, time.Millisecond)
			for n := 0; len(others) < cap(others); n++ {
				require.Less(t, n, 20, name)
				require.NoError(t, m.Unlock(ctx))
				require.NoError(t, m.Lock(ctx))
				time.Sleep(15 * time.Millisecond) // it works
			}
			for range cap(others) {
				require.NoError(t, <-others)
			}
		}
		require.NoError(t, m.Unlock(ctx))
	}
}

// Whose context ends while another Lock of its Mutex is ahead is told why that one has not got it.
func TestALockBehindAnotherOfItsMutexIsToldWhy(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c, err := Open(t.Context(), Config{Masters: masters.Addrs(), RoundTimeout: 200 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.NewMutex("met", time.Minute).Lock(t.Context()))
	for i := range 2 {
		for name, world := range map[string]func(key string) (back func()){
			"masters are silent": func(string) func() {
				masters.Pause(0)
				masters.Pause(1)
				return func() { masters.Resume(0); masters.Resume(1) }
			},
			"another number of permits": func(key string) func() {
				other := c.NewMutex(key, 3*time.Second, WithPermits(3))
				require.NoError(t, other.Lock(t.Context()))
				return func() { require.NoError(t, other.Unlock(t.Context())) }
			},
		} {
			key := fmt.Sprint(name, i) // what was refused lately is looked at first
			back := world(key)
			m := c.NewMutex(key, 3*time.Second, WithPermits(4))
			first := make(chan error, 1)
			ahead, stop := context.WithCancel(t.Context())
			go func() { first <- m.Lock(ahead) }()
			require.Eventually(t, func() bool { return m.turn.failure.Load() != nil }, 10*time.Second, time.Millisecond, name)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err := m.Lock(ctx)
			cancel()
			require.ErrorIs(t, err, ErrNoQuorum, name)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NotErrorIs(t, err, ErrHeld, name)
			stop()
			require.ErrorIs(t, conntest.Soon(t, "the first ends", first), ErrNoQuorum, name)
			back()
			require.Nil(t, m.turn.failure.Load())
		}
	}
}

// A usedAgain context is that of somebody else by now, as those of pools are: it is done, and says no error.
type usedAgain struct {
	context.Context
	done chan struct{}
}

func (c usedAgain) Done() <-chan struct{} { return c.done }

// Whoever gives up takes no turn from another Lock of its Mutex.
func TestALockWhoseContextIsUsedAgainTakesNoTurn(t *testing.T) {
	_, c := started(t, 3)
	m := c.NewMutex("k", time.Minute, WithShared())
	for range 2 {
		require.NoError(t, m.Lock(t.Context()))
		first := locks(t, m)
		ctx := usedAgain{t.Context(), make(chan struct{})}
		close(ctx.done)
		gaveUp := make(chan error, 1)
		go func() { gaveUp <- m.Lock(ctx) }()
		require.Eventually(t, func() bool { return len(gaveUp) == 1 }, 10*time.Second, time.Millisecond)
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		require.Empty(t, first)
		require.NoError(t, m.Unlock(t.Context()))
		require.Eventually(t, func() bool { return len(first) == 1 }, 10*time.Second, time.Millisecond)
		require.NoError(t, <-first)
		require.NoError(t, m.Unlock(t.Context()))
	}
}

// An attempt that another of its Mutex was faster than is told so, though the masters have said yes.
func TestAnAttemptBesideAnotherOfItsMutexIsInItsOwnWay(t *testing.T) {
	_, c := started(t, 3)
	m := c.NewMutex("k", time.Minute, WithShared())
	for range 200 { // most of them meet on the masters
		results := make(chan error, 2)
		for range 2 {
			go func() { results <- m.TryLock(t.Context()) }()
		}
		err := errors.Join(<-results, <-results)
		require.ErrorIs(t, err, ErrHeld)
		require.NotErrorIs(t, err, ErrSplit)
		require.ErrorContains(t, err, byThisMutex)
		require.NoError(t, m.Unlock(t.Context()))
	}
}

// A Lock that waits in the queue, and whose Mutex has a lock meanwhile, leaves the queue to the others.
func TestALockWhoseMutexIsTakenMeanwhileStandsAside(t *testing.T) {
	masters, c := started(t, 3)
	far := openedWith(t, Config{Masters: masters.Addrs()})
	holders := openedWith(t, Config{Masters: masters.Addrs()})
	first, second := holders.NewMutex("k", time.Minute, WithPermits(2)), holders.NewMutex("k", time.Minute, WithPermits(2))
	require.NoError(t, first.Lock(t.Context()))
	require.NoError(t, second.Lock(t.Context()))
	m := c.NewMutex("k", time.Minute, WithPermits(2), WithToken(first.Token()))
	waits := queuesUp(t, masters, m, 0)
	next := far.NewMutex("k", time.Minute, WithPermits(2))
	behind := queuesUp(t, masters, next, 1)
	require.NoError(t, m.Extend(t.Context()), "it has the permit of the first")
	require.NoError(t, second.Unlock(t.Context()))
	require.Eventually(t, func() bool { return len(behind) == 1 }, lookInterval/2, time.Millisecond, "before it looks despite the queue")
	require.NoError(t, <-behind)
	require.Empty(t, waits)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, conntest.Soon(t, "it has its turn", waits))
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, next.Unlock(t.Context()))
}

// Whoever waited with a bound is told of another error than the Observers of its last attempt, which may still read theirs.
func TestTheEndOfABoundedWaitChangesNoErrorThatWasTold(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ctx := range []context.Context{t.Context(), ended} {
			told := unasked(opLock, "k", ErrRefused, "").endedBy(ended, context.DeadlineExceeded)
			was := *told
			e := m.outOfTime(ctx, &options{wait: time.Second}, told)
			require.NotEqual(t, was.Error(), e.Error())
			require.Equal(t, was, *told)
		}
	})
}

// A Lock that waits for its own Mutex keeps nobody from what that does not need: another permit, or the lock beside a reader.
func TestALockInItsOwnWayIsInNobodyElses(t *testing.T) {
	masters, c := started(t, 3)
	far := openedWith(t, Config{Masters: masters.Addrs()})
	for name, opt := range map[string]Option{"permits": WithPermits(4), "readers": WithShared()} {
		lock := func(m *Mutex) error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return m.Lock(ctx)
		}
		m := c.NewMutex(name, time.Minute, opt)
		for range 2 {
			require.NoError(t, lock(m))
			second := make(chan error, 1)
			go func() { second <- m.Lock(t.Context()) }()
			require.Eventually(t, func() bool { return c.Stats().Waiting == 1 }, 10*time.Second, time.Millisecond)
			for range 2 {
				for _, by := range []*Client{c, far} {
					other := by.NewMutex(name, time.Minute, opt)
					require.NoError(t, lock(other), name)
					require.NoError(t, other.Unlock(t.Context()))
				}
			}
			require.Empty(t, second)
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, conntest.Soon(t, "the second has it", second))
			require.NoError(t, m.Unlock(t.Context()))
		}
		require.NoError(t, lock(m))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := m.Lock(ctx)
		require.ErrorIs(t, err, ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, byThisMutex)
		require.NoError(t, m.Unlock(t.Context()))
		require.Zero(t, c.Stats().Waiting)
		require.Zero(t, c.localQueues.Size())
	}
}

// Masters that can be read and not written to (no memory, no replicas, no disk)
// let the look say that the key is free, again and again.
func TestLockDoesNotHurryWhereSetsAreRefused(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var rounds atomic.Int64
	c := opened(t, masters.Addrs(), onEvent(EventRound, func(_ *Event) { rounds.Add(1) }))
	for i := range 3 {
		Says(t, masters, i, "CONFIG", "SET", "maxmemory", "1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorIs(t, c.NewMutex("k", 30*time.Second).Lock(ctx), ErrNoQuorum)
	require.Less(t, rounds.Load(), int64(100)) // with pauses of up to 200 ms it is about 20
}

// A Mutex that holds the lock by its clock is refused by itself, while the
// masters, which were flushed, say that the key is free.
func TestLockDoesNotHurryWhereItsOwnMutexHolds(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 1)
	m := c.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	Says(t, masters, 0, "FLUSHALL")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorIs(t, m.Lock(ctx), ErrHeld)
	require.Less(t, c.Stats().more.WokenHeld, uint64(100))
}

// The master that is asked first says no, and too few others are there: that is
// no quorum, though a key is in the way as well.
func TestLockWithoutAQuorumDoesNotLookHeld(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openedBy(t, Config{Masters: masters.Addrs()}, believing) // they may vote as soon as they are back
	for up := range 3 {
		key := "k" + strconv.Itoa(up)
		Says(t, masters, up, "SET", key, "foreign")
		for i := range 3 {
			if i != up {
				masters.Kill(i)
				require.Eventually(t, func() bool { return c.round.Mux.Masters()[i].Phase == mux.Down }, hanging, 5*time.Millisecond)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := c.NewMutex(key, 30*time.Second).Lock(ctx)
		cancel()
		require.ErrorIs(t, err, ErrNoQuorum)
		for i := range 3 {
			if i != up {
				masters.Restart(i)
				comesUp(t, c, i)
			}
		}
	}
}

// A waiter that was cancelled knows that the lock is held, though it only looked.
func TestCancelledWaiterSaysThatItIsHeld(t *testing.T) {
	notifying(t, 3, func(t *testing.T, c *Client, r *notifiedRounds) {
		r.set(func(m *fakeMaster) { m.put("k", "another's", "3600000") }, 0, 1, 2)
		for range 3 { // from the second on the key is known to be contended
			ctx, cancel := context.WithCancel(t.Context())
			errs := make(chan error, 2)
			for range cap(errs) {
				go func() { errs <- c.NewMutex("k", 30*time.Second).Lock(ctx) }()
			}
			settle()
			require.EqualValues(t, 2, c.Stats().Waiting)
			cancel()
			for range cap(errs) {
				err := <-errs
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, ErrHeld)
			}
		}
	})
}

// A waiter that leaves a queue whose first was refused, and has looked since, gets the votes.
func TestFollowersKnowTheVotes(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for i := range 3 {
		Says(t, masters, i, "SET", "k", "another's")
	}
	first := parked(t, c, "k")
	ctx, cancel := context.WithCancel(t.Context())
	follower := make(chan error, 1)
	go func() { follower <- c.NewMutex("k", 30*time.Second).Lock(ctx) }()
	require.Eventually(t, func() bool { return c.Stats().Waiting == 2 }, hanging, 5*time.Millisecond)
	cancel()
	var e *RoundError
	require.ErrorAs(t, conntest.Soon(t, "the follower leaves", follower), &e)
	require.ErrorIs(t, e, ErrHeld)
	require.Len(t, e.Votes, 3)
	require.NoError(t, c.Close())
	require.ErrorIs(t, conntest.Soon(t, "the first is woken", first), ErrClosed)
}
