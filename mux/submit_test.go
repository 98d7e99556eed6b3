package mux_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

func TestOnlyTheMastersOfTheSetAreAsked(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	op := acquire("k", "t")
	op.Only, op.Quorum = 1<<1, 1
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, granted(op))
	require.Equal(t, []mux.Verdict{mux.VerdictPending, mux.VerdictYes, mux.VerdictPending}, verdicts(op))
	op.Only, op.Quorum = 1|1<<2, 2
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, granted(op))
	require.Equal(t, []mux.Verdict{mux.VerdictYes, mux.VerdictPending, mux.VerdictYes}, verdicts(op))
	require.EqualValues(t, 1|1<<2, op.Asked)
	op.Only, op.Quorum = 1<<1, 1
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, granted(op))
}

func TestPostedOperationsShareABurst(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	ops := make([]*mux.Op, 100)
	for i := range ops {
		ops[i] = acquire(fmt.Sprint("k", i), "t")
	}
	m.Post(ops...)
	m.Forget(ops[99])
	for i, op := range ops {
		if err := m.Wait(t.Context(), op); i == 99 && err != nil {
			require.ErrorIs(t, err, mux.ErrForgotten)
		} else {
			require.NoError(t, err)
			require.True(t, granted(op))
		}
	}
}

// One operation cannot use up the buffers of all others.
func TestOperationThatIsTooLongIsWrittenToNobody(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	op := acquire("k", strings.Repeat("t", 64<<20))
	require.ErrorIs(t, m.Do(t.Context(), op), mux.ErrTooLong)
	require.Zero(t, op.Asked)
	m.Send(op)
	m.Post(op)
	require.ErrorIs(t, m.Wait(t.Context(), op), mux.ErrTooLong)
	require.Zero(t, m.Masters()[0].Owed)
	op = acquire("k", "t")
	op.Fallback = make([]byte, 2<<20)
	require.ErrorIs(t, m.Do(t.Context(), op), mux.ErrTooLong)
	require.NoError(t, m.Do(t.Context(), acquire("k", strings.Repeat("t", 1<<20))))
}

func TestContextEndsAtAnyPointAndOrderIsKept(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for k := range 200 {
				key := fmt.Sprintf("k%d-%d", g, k)
				ctx, cancel := context.WithCancel(context.Background())
				timer := time.AfterFunc(time.Duration(k)*2*time.Microsecond, cancel)
				err := m.Do(ctx, acquire(key, "t"))
				if err != nil && err != context.Canceled {
					t.Error(err)
				}
				timer.Stop()
				cancel()
				m.Send(release(key, "t"))
			}
		})
	}
	wg.Wait()
	op := release("none", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	for i := range 3 {
		require.Zero(t, keysOn(t, masters, i))
	}
}

// A caller that waits on a hung majority leaves when its context ends, whether
// it drives or waits.
func TestContextEndsWhileAMajorityHangs(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
	waitUp(t, m, 3)
	masters.Pause(0)
	masters.Pause(1)
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			op := acquire(fmt.Sprint("k", g), "t")
			if err := m.Do(ctx, op); err != context.Canceled {
				t.Error(err)
			}
		})
	}
	eventually(t, "all are waiting, and the driver looks at its context no more", func() bool {
		return m.Masters()[0].Owed == 8 && m.ParkedFor() > time.Second
	})
	cancel(nil)
	conntest.AllEnd(t, "all have left", &wg)
	op := acquire("timeout", "t")
	op.Timeout = 10 * time.Millisecond
	require.ErrorIs(t, m.Do(t.Context(), op), mux.ErrTimeout)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	require.ErrorIs(t, m.Do(ctx, acquire("deadline", "t")), context.DeadlineExceeded)
	masters.Resume(0)
	masters.Resume(1)
	require.NoError(t, m.Do(t.Context(), acquire("again", "t")))
}

// A nosy context calls the Mux to say whether it has ended. A context may, if it belongs to
// something that calls the Mux under a lock of its own.
type nosy struct {
	context.Context
	m *mux.Mux
}

func (c nosy) Err() error { c.m.Masters(); return c.Context.Err() }

func TestContextIsNotAskedUnderTheLock(t *testing.T) {
	t.Parallel()
	f := newFake(t, "silent", silent)
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}, StallTime: 50 * time.Millisecond}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	decided := make(chan error, 1)
	go func() { decided <- m.Do(nosy{ctx, m}, vote("a")) }()
	conntest.Soon(t, "it is decided", decided)
	m.Close()
}

func TestDeadlineExceededIsTheContextsError(t *testing.T) {
	t.Parallel()
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: time.Hour})
	cause := errors.New("the cause")
	for range 50 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Millisecond, cause)
		err := m.Do(ctx, vote("a"))
		ended, why := ctx.Err(), context.Cause(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, err, ended, "the operation ended before its context")
		require.Equal(t, cause, why)
	}
}

func TestEndlessTimesDoNotOverflow(t *testing.T) {
	f := newFake(t, "slow", func() script {
		return func([]string) (string, bool) { time.Sleep(5 * time.Millisecond); return ":1\r\n", true }
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}})
	t.Run("Timeout", func(t *testing.T) {
		op := vote("a")
		op.Timeout = math.MaxInt64
		require.NoError(t, m.Do(context.Background(), op))
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithDeadline(t.Context(), time.Now().AddDate(400, 0, 0))
		defer cancel()
		require.NoError(t, m.Do(ctx, vote("a")))
	})
	t.Run("Persist", func(t *testing.T) {
		f := newFake(t, "down", steady(0))
		m := open(t, mux.Config{Masters: []string{f.addr()}})
		f.stop()
		eventually(t, "down", func() bool { return upCount(m) == 0 })
		op := vote("a")
		op.Persist = math.MaxInt64
		m.Send(op)
		m.Send(op)
		require.Equal(t, 2, m.Masters()[0].Debts)
	})
	t.Run("StallTime", func(t *testing.T) {
		f := newFake(t, "silent", silent)
		m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: math.MaxInt64})
		op := vote("a")
		op.Timeout = 500 * time.Millisecond
		before := cpu()
		require.ErrorIs(t, m.Do(context.Background(), op), mux.ErrTimeout)
		require.Less(t, cpu()-before, op.Timeout/2) // with what others do, such as the garbage collector
	})
}
