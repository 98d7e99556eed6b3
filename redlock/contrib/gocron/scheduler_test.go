package gocron_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/redburst/redburst/redlock"
	redgocron "github.com/redburst/redburst/redlock/contrib/gocron"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const (
	period   = time.Minute // of the jobs, on clocks that the tests move
	deadline = 30 * time.Second
	ttl      = 1500 * time.Millisecond // a busy machine renews late
)

func open(t *testing.T, masters *redlocktest.Masters) *redlock.Client {
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: deadline, RoundTimeout: deadline})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, deadline, 2*time.Millisecond, what)
}

// An instance is a scheduler with one job, which runs whenever its clock says so.
type instance struct {
	scheduler gocron.Scheduler
	job       gocron.Job
	locks     bool // by a Locker
	clock     *clockwork.FakeClock
	count     sync.Map // of gocron.JobStatus: *atomic.Int64
	ticks     int64
}

// IncrementJob makes it a gocron.Monitor.
func (i *instance) IncrementJob(_ uuid.UUID, _ string, _ []string, status gocron.JobStatus) {
	n, _ := i.count.LoadOrStore(status, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

func (i *instance) RecordJobTiming(time.Time, time.Time, uuid.UUID, string, []string) {}

func (i *instance) counted(status gocron.JobStatus) int64 {
	n, ok := i.count.Load(status)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

func (i *instance) ran() int64     { return i.counted(gocron.Success) }
func (i *instance) skipped() int64 { return i.counted(gocron.Skip) }

// start starts a scheduler whose job is shared by a gocron.Locker or a gocron.Elector.
func start(t *testing.T, job, by any, opts ...gocron.JobOption) *instance {
	i := &instance{clock: clockwork.NewFakeClock()}
	var shared gocron.SchedulerOption
	switch by := by.(type) {
	case gocron.Locker:
		shared, i.locks = gocron.WithDistributedLocker(by), true
	case gocron.Elector:
		shared = gocron.WithDistributedElector(by)
	}
	var err error
	i.scheduler, err = gocron.NewScheduler(shared, gocron.WithClock(i.clock), gocron.WithMonitor(i), gocron.WithStopTimeout(deadline))
	require.NoError(t, err)
	i.job, err = i.scheduler.NewJob(gocron.DurationJob(period), gocron.NewTask(job), append(opts, gocron.WithName("report"))...)
	require.NoError(t, err)
	i.scheduler.Start()
	t.Cleanup(func() { require.NoError(t, i.scheduler.Shutdown()) })
	return i
}

// tick lets the job become due. The scheduler has set the timer for it before.
func (i *instance) tick(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	require.NoError(t, i.clock.BlockUntilContext(ctx, 1), "the job is not scheduled")
	i.clock.Advance(period)
	i.ticks++
}

// settled waits until the job of each tick has run, or was skipped. The scheduler must also have forgotten
// the tick (after an Elector it never does): at the next one it would forget all, and count from the year 1 on.
func (i *instance) settled(t *testing.T) {
	t.Helper()
	eventually(t, "a tick came to nothing", func() bool {
		next, err := i.job.NextRun()
		return i.ran()+i.skipped() == i.ticks && err == nil && (!i.locks || next.After(i.clock.Now()))
	})
}

// pass has the masters forget the least hold, as they do when it has passed.
func pass(t *testing.T, masters *redlocktest.Masters) {
	for i := range masters.N() {
		_, err := masters.Do(i, "DEL", "lock:report")
		require.NoError(t, err)
	}
}

func released(client *redlock.Client, n uint64) func() bool {
	return func() bool { return client.Stats().Released == n }
}

func TestEachTickRunsOnce(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var all []*instance
	for range 3 { // of which each can have the vote of one master
		locker := redgocron.NewLocker(open(t, masters), "lock:", 10*time.Second,
			redlock.WithMinHold(time.Hour), redlock.WithWait(time.Second))
		all = append(all, start(t, func() {}, locker))
	}
	for n := int64(1); n <= 4; n++ {
		for _, i := range all {
			i.tick(t)
		}
		ran := int64(0)
		for _, i := range all {
			i.settled(t)
			ran += i.ran()
		}
		require.Equal(t, n, ran, "in %d ticks", n)
		pass(t, masters)
	}
}

func TestALateClockDoesNotRepeatAJob(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	client, other := open(t, masters), open(t, masters)
	punctual := start(t, func() {}, redgocron.NewLocker(client, "lock:", 10*time.Second, redlock.WithMinHold(time.Hour)))
	late := start(t, func() {}, redgocron.NewLocker(other, "lock:", 10*time.Second, redlock.WithMinHold(time.Hour)))
	punctual.tick(t)
	punctual.settled(t)
	eventually(t, "it is not unlocked", released(client, 1))
	late.tick(t)
	late.settled(t)
	require.Equal(t, []int64{1, 0}, []int64{punctual.ran(), late.ran()})
	pass(t, masters)
	late.tick(t)
	late.settled(t)
	require.EqualValues(t, 1, late.ran(), "in the next period")
}

func TestAJobIsToldThatItsLockIsLost(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	locker := redgocron.NewLocker(open(t, masters), "lock:", ttl, redlock.WithFence())
	fences, ends := make(chan uint64, 1), make(chan error, 1)
	i := start(t, func() {
		ctx := locker.Held("report")
		fences <- redlock.FenceFrom(ctx)
		<-ctx.Done()
		ends <- context.Cause(ctx)
	}, locker)
	i.tick(t)
	require.NotZero(t, <-fences)
	pass(t, masters)
	require.ErrorIs(t, <-ends, redlock.ErrLost)
	i.settled(t)
}

func TestHeldEndsWithTheContextOfTheJob(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	locker := redgocron.NewLocker(open(t, masters), "lock:", ttl)
	require.ErrorContains(t, context.Cause(locker.Held("report")), `no job "report" has the lock here`)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	lock, err := locker.Lock(ctx, "report")
	require.NoError(t, err)
	held := locker.Held("report")
	require.NoError(t, held.Err())
	stopped := errors.New("the scheduler stops")
	cancel(stopped)
	<-held.Done()
	require.ErrorIs(t, context.Cause(held), stopped)
	for begun := time.Now(); time.Since(begun) < 2*ttl; time.Sleep(ttl / 10) {
		_, err = locker.Lock(t.Context(), "report")
		require.ErrorIs(t, err, redlock.ErrHeld, "the job still runs")
	}
	require.ErrorIs(t, lock.Unlock(ctx), stopped, "it was not waited for")
	eventually(t, "it is released all the same", func() bool {
		lock, err := locker.Lock(t.Context(), "report")
		return err == nil && lock.Unlock(t.Context()) == nil
	})
}

// A lapse is the context of a lock that ends when it is looked at: no timer has noticed.
type lapse struct {
	context.Context
	end  context.CancelFunc
	over atomic.Bool
}

func (l *lapse) Err() error {
	if l.over.Load() {
		l.end()
	}
	return l.Context.Err()
}

// lapsing is a second system whose one lock lapses.
type lapsing struct{ lapse *lapse }

func (l lapsing) TryLock(context.Context, string) (redlock.SecondLock, error) { return l, nil }
func (l lapsing) Lock(context.Context, string) (redlock.SecondLock, error)    { return l, nil }
func (l lapsing) Context() context.Context                                    { return l.lapse }
func (l lapsing) Fence() uint64                                               { return 0 }
func (l lapsing) Unlock(context.Context) error                                { return nil }

func TestHeldNeedsNoTimer(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(ctx context.Context) error{
		"Err": context.Context.Err,
		"Done": func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			default:
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lapse{}
			l.Context, l.end = context.WithCancel(t.Context())
			locker := redgocron.NewLocker(open(t, redlocktest.Embedded(t, 1)), "lock:", time.Hour, redlock.WithSecond(lapsing{l}))
			lock, err := locker.Lock(t.Context(), "report")
			require.NoError(t, err)
			held := locker.Held("report")
			require.NoError(t, look(held))
			l.over.Store(true)
			require.Error(t, look(held))
			require.ErrorIs(t, lock.Unlock(t.Context()), redlock.ErrLost)
		})
	}
}

func TestALockThatWasLostIsAnErrorOfUnlock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	locker := redgocron.NewLocker(open(t, masters), "lock:", ttl)
	first, err := locker.Lock(t.Context(), "report")
	require.NoError(t, err)
	lost := locker.Held("report")
	pass(t, masters)
	<-lost.Done()
	second, err := locker.Lock(t.Context(), "report")
	require.NoError(t, err)
	require.ErrorIs(t, first.Unlock(t.Context()), redlock.ErrLost)
	require.NoError(t, locker.Held("report").Err(), "of the second run")
	require.NoError(t, second.Unlock(t.Context()))
	require.NoError(t, second.Unlock(t.Context()), "again")
}

func TestWhyAJobIsSkipped(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	client := open(t, masters)
	why := make(chan error, 1)
	i := start(t, func() {}, redgocron.NewLocker(client, "lock:", 10*time.Second),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { why <- err })))
	require.NoError(t, client.NewMutex("lock:report", 10*time.Second).TryLock(t.Context()))
	i.tick(t)
	require.ErrorIs(t, <-why, redlock.ErrHeld)
	i.settled(t)
	for m := range masters.N() {
		masters.Kill(m)
	}
	i.tick(t)
	require.ErrorIs(t, <-why, redlock.ErrNoQuorum)
	i.settled(t)
	require.Zero(t, i.ran())
}

func elect(t *testing.T, client *redlock.Client, ttl time.Duration) *redgocron.Elector {
	e := redgocron.NewElector(client, "lock:leader", ttl)
	t.Cleanup(e.Close)
	return e
}

func leads(e *redgocron.Elector) func() bool {
	return func() bool { return e.IsLeader(context.Background()) == nil }
}

func TestTheLeaderAloneRunsJobs(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	first := elect(t, open(t, masters), 10*time.Second)
	eventually(t, "nobody leads", leads(first))
	second := elect(t, open(t, masters), 10*time.Second)
	leader := start(t, func() {}, first)
	follower := start(t, func() {}, second)
	for range 5 {
		leader.tick(t)
		follower.tick(t)
		leader.settled(t)
		follower.settled(t)
	}
	require.Equal(t, []int64{5, 0}, []int64{leader.ran(), follower.ran()})
	require.ErrorIs(t, second.IsLeader(t.Context()), redgocron.ErrNotLeader)
	require.ErrorIs(t, context.Cause(second.Term()), redgocron.ErrNotLeader)
	old := redlock.FenceFrom(first.Term())
	require.NotZero(t, old)

	first.Close()
	require.Error(t, first.Term().Err())
	eventually(t, "nobody follows", leads(second))
	require.Greater(t, redlock.FenceFrom(second.Term()), old)
	leader.tick(t)
	follower.tick(t)
	leader.settled(t)
	follower.settled(t)
	require.Equal(t, []int64{5, 1}, []int64{leader.ran(), follower.ran()})
}

func TestALeaderThatLosesItsTermStopsAtOnce(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	e := elect(t, open(t, masters), ttl)
	eventually(t, "nobody leads", leads(e))
	term := e.Term()
	require.NoError(t, term.Err())
	for m := range masters.N() {
		masters.Pause(m)
	}
	<-term.Done()
	require.ErrorIs(t, context.Cause(term), redlock.ErrLost)
	require.ErrorIs(t, e.IsLeader(t.Context()), redgocron.ErrNotLeader)
	for m := range masters.N() {
		masters.Resume(m)
	}
	eventually(t, "it does not lead again", leads(e))
}

func TestACampaignThatIsOverSaysWhy(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	client := open(t, masters)
	e := redgocron.NewElector(client, "lock:leader", 10*time.Second, redlock.WithMinHold(time.Minute))
	defer e.Close()
	eventually(t, "it says nothing", func() bool {
		return strings.Contains(e.IsLeader(t.Context()).Error(), "Lead refuses WithMinHold")
	})
	require.ErrorIs(t, e.IsLeader(t.Context()), redgocron.ErrNotLeader)

	e = elect(t, client, 10*time.Second)
	eventually(t, "nobody leads", leads(e))
	require.NoError(t, client.Close())
	eventually(t, "it says nothing", func() bool { return errors.Is(e.IsLeader(t.Context()), redlock.ErrClosed) })
}
