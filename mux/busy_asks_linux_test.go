//go:build linux && !redburst_portable

package mux_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// busyPoll is a limit that tests have where the system can poll busily.
const busyPoll = 300 * time.Microsecond

// requireParks requires that the driver does not ask again and again.
func requireParks(t testing.TB, m *mux.Mux) {
	t.Helper()
	n, until := m.Hurried()
	require.Zero(t, n)
	require.Zero(t, until)
}

func TestTheDriverAsksOnlyForWhatACallerWaitsFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		submit func(m *mux.Mux, op *mux.Op)
		asks   int
	}{
		"Do":                  {func(m *mux.Mux, op *mux.Op) { go m.Do(context.Background(), op) }, 1},
		"Post":                {func(m *mux.Mux, op *mux.Op) { m.Post(op) }, 1},
		"awaited":             {func(m *mux.Mux, op *mux.Op) { op.Awaited = true; m.Post(op) }, 1},
		"patient":             {func(m *mux.Mux, op *mux.Op) { op.Patient = true; m.Post(op) }, 0},
		"nobody waits for it": {func(m *mux.Mux, op *mux.Op) { op.OnDecided = func(error) {}; m.Post(op) }, 0},
		"sent":                {func(m *mux.Mux, op *mux.Op) { m.Send(op) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var arrived atomic.Int64
			f := newFake(t, "silent", func() script {
				return func([]string) (string, bool) { arrived.Add(1); return "", true }
			})
			m := open(t, mux.Config{Masters: []string{f.addr()}, BusyPoll: 10 * time.Millisecond})
			m.AskFor(time.Hour)
			op := vote("a")
			c.submit(m, op)
			eventually(t, "it counts", func() bool { n, _ := m.Hurried(); return n == c.asks })
			if c.asks == 0 {
				eventually(t, "it is written", func() bool { return arrived.Load() == 1 })
				requireParks(t, m)
				return
			}
			_, until := m.Hurried()
			require.Positive(t, until)
			m.Forget(op)
			requireParks(t, m)
		})
	}
}

// A caller that only waits parks, however many pushes come. So does a waiter behind another's lock.
func TestTheDriverDoesNotAskForPushes(t *testing.T) {
	t.Parallel()
	f := newFake(t, "pushing", steady(0))
	var m *mux.Mux
	pushes := make(chan bool, 100)
	m = open(t, mux.Config{Masters: []string{f.addr()}, BusyPoll: 10 * time.Millisecond, OnPush: func(int, resp.Value) {
		n, until := m.HurriedInHook()
		pushes <- n == 0 && until == 0
	}})
	require.NoError(t, m.Do(t.Context(), vote("a"))) // replies come in time
	listener := new(mux.Op)
	m.Post(listener)
	ended := make(chan error, 1)
	go func() { ended <- m.Wait(context.Background(), listener) }()
	for range 20 {
		f.send(t, push)
		require.True(t, conntest.Soon(t, "the push is read", pushes))
		conntest.Parked(t, 1, "(*Poller).Wait(", "mux_test.TestTheDriverDoesNotAskForPushes")
	}
	m.Forget(listener)
	require.ErrorIs(t, conntest.Soon(t, "the listener is ended", ended), mux.ErrForgotten)
}

// A master that is behind, and has not answered what the others have decided, is not asked.
func TestTheDriverDoesNotAskForStragglers(t *testing.T) {
	t.Parallel()
	m := open(t, mux.Config{BusyPoll: 10 * time.Millisecond, StallTime: time.Hour, Masters: []string{
		newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(0)).addr(), newFake(t, "silent", silent).addr(),
	}})
	waitUp(t, m, 3)
	for range 20 {
		require.NoError(t, m.Do(t.Context(), vote("a")))
		requireParks(t, m)
	}
	require.Equal(t, 20, m.Masters()[2].Owed)
}

// Nor for the answers to what a master is still owed.
func TestTheDriverDoesNotAskForDebts(t *testing.T) {
	t.Parallel()
	asked := make(chan bool, 10)
	var opened atomic.Pointer[mux.Mux]
	f := newFake(t, "a", func() script {
		return func(args []string) (string, bool) {
			switch args[0] {
			case "EVALSHA":
				return "", false // the connection ends, and the release is owed
			case "EVAL":
				n, until := opened.Load().Hurried()
				asked <- n == 0 && until == 0
			}
			return ":1\r\n", true
		}
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}, BusyPoll: 10 * time.Millisecond})
	opened.Store(m)
	require.NoError(t, m.Do(t.Context(), vote("a")))
	m.Send(release("k", "t"))
	require.True(t, conntest.Soon(t, "the debt is delivered", asked))
}

// While the driver asks it takes notice of whatever ends its operation.
func TestADriverThatAsksTakesNotice(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		end     func(m *mux.Mux, op *mux.Op, cancel context.CancelFunc)
		err     error
	}{
		"of its context": {end: func(_ *mux.Mux, _ *mux.Op, cancel context.CancelFunc) { cancel() }, err: context.Canceled},
		"of a timeout":   {timeout: 100 * time.Millisecond, end: func(*mux.Mux, *mux.Op, context.CancelFunc) {}, err: mux.ErrTimeout},
		"of Close":       {end: func(m *mux.Mux, _ *mux.Op, _ context.CancelFunc) { m.Close() }, err: mux.ErrClosed},
		"of Drain":       {end: func(m *mux.Mux, _ *mux.Op, _ context.CancelFunc) { m.Drain() }, err: mux.ErrClosed},
		"of Forget":      {end: func(m *mux.Mux, op *mux.Op, _ context.CancelFunc) { m.Forget(op) }, err: mux.ErrForgotten},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, "silent", silent)
			m := open(t, mux.Config{Masters: []string{f.addr()}, BusyPoll: time.Millisecond, StallTime: time.Hour})
			m.AskFor(time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			op := vote("a")
			op.Timeout = c.timeout
			decided := make(chan error, 1)
			go func() { decided <- m.Do(ctx, op) }()
			if c.timeout == 0 {
				conntest.Inside(t, 1, "(*Poller).askAgain(", "mux_test.TestADriverThatAsksTakesNotice")
			}
			c.end(m, op, cancel)
			require.ErrorIs(t, conntest.Soon(t, "it is decided", decided), c.err)
			requireParks(t, m)
		})
	}
}

// Who only waits, and drives, is parked. It asks while another's operation is under way.
func TestAListenerAsksForOthers(t *testing.T) {
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, BusyPoll: time.Millisecond})
	m.AskFor(time.Hour)
	listener := new(mux.Op)
	ended := make(chan error, 1)
	go listens(m, listener, ended)
	conntest.Parked(t, 1, "(*Poller).Wait(", "mux_test.listens")
	for range 3 {
		op := vote("a")
		decided := make(chan error, 1)
		go func() { decided <- m.Do(context.Background(), op) }()
		conntest.Inside(t, 1, "(*Poller).askAgain(", "mux_test.listens")
		m.Forget(op)
		require.ErrorIs(t, conntest.Soon(t, "it is decided", decided), mux.ErrForgotten)
		conntest.Parked(t, 1, "(*Poller).Wait(", "mux_test.listens")
	}
	m.Forget(listener)
	require.ErrorIs(t, conntest.Soon(t, "the listener is ended", ended), mux.ErrForgotten)
}

func listens(m *mux.Mux, listener *mux.Op, ended chan<- error) {
	ended <- m.Do(context.Background(), listener)
}

// A window that is over is over: the driver parks though its caller still waits.
func TestADriverParksWhenItsWindowIsOver(t *testing.T) {
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, BusyPoll: 10 * time.Millisecond})
	decided := make(chan error, 1)
	op := vote("a")
	go func() { decided <- m.Do(context.Background(), op) }()
	conntest.Parked(t, 1, "(*Poller).Wait(", "mux_test.TestADriverParksWhenItsWindowIsOver")
	n, _ := m.Hurried()
	require.Equal(t, 1, n)
	m.Forget(op)
	require.ErrorIs(t, conntest.Soon(t, "it is forgotten", decided), mux.ErrForgotten)
}

// An operation that ends within the limit, but without the replies, has asked in vain.
func TestWhatEndsWithoutRepliesClosesTheWindow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout time.Duration // of the operation
		context time.Duration
		err     error
	}{
		"timeout": {timeout: time.Millisecond, context: time.Hour, err: mux.ErrTimeout},
		"context": {context: time.Millisecond, err: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := open(t, mux.Config{Masters: []string{newFake(t, "silent", silent).addr()}, BusyPoll: 10 * time.Millisecond, StallTime: time.Hour})
			waitUp(t, m, 1)
			for range 10 {
				op := vote("a")
				op.Timeout = c.timeout
				ctx, cancel := context.WithTimeout(t.Context(), c.context)
				require.ErrorIs(t, m.Do(ctx, op), c.err)
				cancel()
				require.Zero(t, m.Window())
			}
		})
	}
}

func TestBusyPollingAllocatesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), BusyPoll: 10 * time.Millisecond, Conn: conn.Options{Scripts: []string{releaseScript}}})
	waitUp(t, m, 3)
	acq, rel := acquire("k", "t"), release("k", "t")
	rel.Command = releaseSHA("k", "t")
	pair := func() {
		require.NoError(t, errors.Join(m.Do(context.Background(), acq), m.Do(context.Background(), rel)))
	}
	require.Zero(t, testing.AllocsPerRun(500, pair))
}
