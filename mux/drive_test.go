package mux_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// The driver is parked while another caller's write finds the connection broken. That decides the
// driver's operation, and must wake it.
func TestDriverIsWokenWhenAnothersWriteDecidesItsOperation(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: time.Hour, Conn: conn.Options{
		Wrap: wrapWrites(func(p []byte, write func([]byte) (int, error)) (int, error) {
			if broken.Load() {
				return 0, syscall.ENOBUFS
			}
			return write(p)
		})}})
	decided := make(chan error, 1)
	op := vote("a")
	go func() { decided <- m.Do(context.Background(), op) }()
	eventually(t, "the command is written, and the driver is parked", func() bool { return m.Masters()[0].Owed == 1 && m.ParkedFor() > 0 })
	broken.Store(true)
	m.Send(vote("b"))
	require.NoError(t, conntest.Soon(t, "the driver's operation has been decided, and it returns", decided))
	require.ErrorIs(t, op.Votes[0].Err, syscall.ENOBUFS)
}

// An operation without a command waits, drives for the others meanwhile, and
// is ended from outside.
func TestListenerDrivesWhileOthersCall(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	listener := new(mux.Op)
	m.Post(listener)
	ended := make(chan error, 1)
	go func() { ended <- m.Wait(context.Background(), listener) }()
	for k := range 100 {
		op := acquire(fmt.Sprint("k", k), "t")
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, granted(op))
	}
	m.Forget(listener)
	require.ErrorIs(t, conntest.Soon(t, "the listener is ended", ended), mux.ErrForgotten)
}

// Nobody waits more than a few bursts behind callers that came later.
//
// It is not parallel: its callers need the processors.
func TestLateComersDoNotOvertakeForLong(t *testing.T) {
	var addrs []string
	for i := range 3 {
		addrs = append(addrs, newFake(t, fmt.Sprint("fair", i), steady(i)).addr())
	}
	m := open(t, mux.Config{Masters: addrs})
	waitUp(t, m, 3)
	const callers, each = 32, 200
	overtaken := func() int64 { // by how many one was at most
		var done, worst atomic.Int64
		var wg sync.WaitGroup
		for g := range callers {
			wg.Go(func() {
				op := &mux.Op{Verdict: verdictBallot}
				for k := range each {
					before := done.Load()
					op.Command = resp.AppendCommand(op.Command[:0], "VOTE", fmt.Sprintf("%d-%d", g, k))
					if err := m.Do(context.Background(), op); err != nil {
						t.Error(err)
					}
					passed := done.Add(1) - before
					for w := worst.Load(); passed > w && !worst.CompareAndSwap(w, passed); w = worst.Load() {
					}
				}
			})
		}
		conntest.AllEnd(t, "all are decided", &wg)
		return worst.Load()
	}
	// Each of the others can have been served a few times while one waits:
	// once before it in the same burst, and while it waits for its goroutine
	// to be scheduled. Starvation would be in the thousands, each time. A busy machine
	// may take a thread away from one while the others run, now and then.
	var all []int64
	for range 5 {
		all = append(all, overtaken())
		if all[len(all)-1] < callers*each/4 {
			return
		}
	}
	t.Errorf("so many operations ended during one, at most: %d", all)
}

// Whoever waits in a crowd leaves it to the driver to look at its context. If nothing is answered, it looks itself.
func TestContextsEndInACrowd(t *testing.T) {
	t.Parallel()
	m, _, _, _ := counted(t)
	m.HoldFor(time.Hour)
	var wg sync.WaitGroup
	crowdOf(t, m, &wg, mux.Crowd)
	caller := func() (leave context.CancelFunc, left chan error) {
		before := m.Masters()[0].Owed
		ctx, cancel := context.WithCancel(t.Context())
		left = make(chan error, 1)
		go func() { left <- m.Do(ctx, vote("a")) }()
		eventually(t, "it waits", func() bool { return m.Masters()[0].Owed == before+1 })
		return cancel, left
	}
	hasLeft := func(left chan error) {
		t.Helper()
		select {
		case err := <-left:
			require.Equal(t, context.Canceled, err)
		case <-time.After(patience / 3): // before the test's own time is over
			t.Fatal("it does not leave")
		}
	}
	leave, left := caller()
	leaveLater, leftLater := caller()
	leave()
	hasLeft(left)
	eventually(t, "the driver looks at no context any more", func() bool { return m.ParkedFor() > time.Minute })
	leaveLater()
	hasLeft(leftLater)
	require.NoError(t, m.Close())
	conntest.AllEnd(t, "all are decided", &wg)
}
