package mux_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
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

// A wrapped stream does to its writes what the test wants.
type wrapped struct {
	io.ReadWriter
	write func(p []byte, write func([]byte) (int, error)) (int, error)
}

func (w wrapped) Write(p []byte) (int, error) { return w.write(p, w.ReadWriter.Write) }

func wrapWrites(write func(p []byte, write func([]byte) (int, error)) (int, error)) func(string, io.ReadWriter) io.ReadWriter {
	return func(_ string, s io.ReadWriter) io.ReadWriter { return wrapped{s, write} }
}

func silent() script { return func([]string) (string, bool) { return "", true } }

func vote(id string) *mux.Op {
	return &mux.Op{Command: resp.AppendCommand(nil, "VOTE", id), Judge: judgeAnyInt}
}

// The driver sleeps in the poller while a rider's write finds the connection
// broken: that decides the driver's operation, and must wake it.
func TestDriverIsWokenWhenARidersWriteDecidesItsOperation(t *testing.T) {
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
	eventually(t, "the command is written", func() bool { return m.Masters()[0].Owed == 1 })
	time.Sleep(50 * time.Millisecond) // the driver is parked
	broken.Store(true)
	m.Send(vote("b"))
	require.NoError(t, conntest.Soon(t, "the driver's operation has been decided, and it returns", decided))
	require.ErrorIs(t, op.Votes[0].Err, syscall.ENOBUFS)
}

// The driver went to sleep when nothing was owed. What is asked since then has
// a stall time as well.
func TestSilenceIsNoticedByADriverThatSleptBefore(t *testing.T) {
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: 50 * time.Millisecond})
	listener := new(mux.Op)
	m.Post(listener)
	go m.Wait(context.Background(), listener)
	defer m.Forget(listener)
	time.Sleep(50 * time.Millisecond) // the listener drives, and is parked
	decided := make(chan error, 1)
	op := vote("a")
	go func() { decided <- m.Do(context.Background(), op) }()
	require.NoError(t, conntest.Soon(t, "the silent master is given up", decided))
	require.ErrorIs(t, op.Votes[0].Err, mux.ErrStalled)
}

func TestDebtKeptBackByABacklogIsPaidWhileNobodyCalls(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
	masters.Pause(0)
	fill(m)
	m.Send(release("k", "t"))
	require.Equal(t, 1, m.Masters()[0].Debts)
	masters.Resume(0)
	eventually(t, "all is answered", func() bool { return m.Masters()[0].Owed == 0 })
	eventually(t, "the debt is paid", func() bool { return m.Masters()[0].Debts == 0 })
}

// A backlog that is over must not go on refusing what comes.
func TestMajorityThatHadABacklogServesAgain(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
	masters.Pause(0)
	fill(m)
	m.Send(release("k", "t"))
	masters.Resume(0)
	eventually(t, "all is answered", func() bool { return m.Masters()[0].Owed == 0 })
	op := acquire("other", "t")
	eventually(t, "an operation is won again", func() bool {
		require.NoError(t, m.Do(t.Context(), op))
		return op.Won()
	})
}

// More is owed after an outage than may be queued at once.
func TestMasterThatComesBackToManyDebtsServesAgain(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	masters.Kill(0)
	eventually(t, "down", func() bool { return upCount(m) == 0 })
	for k := range 16_000 {
		m.Send(release(fmt.Sprint(strings.Repeat("k", 300), k), "t"))
	}
	masters.Restart(0)
	waitUp(t, m, 1)
	eventually(t, "what was written is answered", func() bool { return m.Masters()[0].Owed == 0 })
	op := acquire("other", "t")
	eventually(t, "an operation is won again", func() bool {
		require.NoError(t, m.Do(t.Context(), op))
		return op.Won()
	})
}

func fill(m *mux.Mux) {
	op := acquire("k", "t")
	op.Command = resp.AppendCommand(nil, "SET", "big", strings.Repeat("x", 8000))
	for m.Masters()[0].Failures == 0 {
		m.Send(op)
	}
}

// A master's vote was failed when its connection ended; the delivery after the
// reconnect is not a second vote.
func TestDebtDoesNotVoteASecondTime(t *testing.T) {
	answer := make(chan struct{})
	slow := func() script {
		return func([]string) (string, bool) { <-answer; return ":1\r\n", true }
	}
	never := make(chan struct{})
	hung := func() script {
		return func([]string) (string, bool) { <-never; return "", false }
	}
	var cut atomic.Bool
	cut.Store(true)
	cutting := func() script {
		return func([]string) (string, bool) { return ":1\r\n", !cut.Swap(false) }
	}
	first := func() script { // ends the connection instead of its first answer
		answer := cutting()
		return func(args []string) (string, bool) {
			reply, goOn := answer(args)
			if !goOn {
				return "", false
			}
			return reply, true
		}
	}
	m := open(t, mux.Config{StallTime: time.Hour, Masters: []string{
		newFake(t, "slow", slow).addr(), newFake(t, "hung", hung).addr(), newFake(t, "first", first).addr()}})
	t.Cleanup(func() { close(never) })
	waitUp(t, m, 3)
	op := vote("a")
	op.All, op.Persist = true, time.Minute
	decided := make(chan error, 1)
	go func() { decided <- m.Do(context.Background(), op) }()
	eventually(t, "the debt is paid", func() bool { s := m.Masters()[2]; return s.Connects == 2 && s.Replies == 1 })
	close(answer)
	eventually(t, "the slow one has answered", func() bool { return m.Masters()[0].Replies == 1 })
	select {
	case err := <-decided:
		t.Errorf("decided (%v) although master 1 has not voted: %v", err, op.Votes)
	case <-time.After(100 * time.Millisecond):
	}
}

// A nosy context needs the Mux to say whether it has ended, as a context may
// that is tied to something which calls the Mux under a lock of its own.
type nosy struct {
	context.Context
	m *mux.Mux
}

func (c nosy) Err() error { c.m.Masters(); return c.Context.Err() }

func TestContextIsNotAskedUnderTheLock(t *testing.T) {
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

// A pause of this process before what was queued is written is not the
// masters' silence.
func TestPauseBeforeTheWriteIsNotTakenForSilence(t *testing.T) {
	var stall time.Duration
	var pause atomic.Bool
	var addrs []string
	for i := range 3 {
		addrs = append(addrs, newFake(t, fmt.Sprint("far", i), func() script {
			return func([]string) (string, bool) { time.Sleep(5 * time.Millisecond); return ":1\r\n", true }
		}).addr())
	}
	won := func() bool {
		m := open(t, mux.Config{Masters: addrs, StallTime: stall, Conn: conn.Options{
			Wrap: wrapWrites(func(p []byte, write func([]byte) (int, error)) (int, error) {
				if pause.Swap(false) {
					time.Sleep(2 * stall) // the process stands still
				}
				return write(p)
			})}})
		defer m.Close()
		waitUp(t, m, 3)
		pause.Store(true)
		op := vote("a")
		require.NoError(t, m.Do(context.Background(), op))
		return op.Won()
	}
	// The masters have a quarter of the stall time to answer after the pause, which
	// may be too short for those of this test on a busy machine. If it is taken for
	// their silence, no time is long enough.
	stall = 100 * time.Millisecond
	for !won() {
		stall *= 2
		require.Less(t, stall, 10*time.Second)
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
		op.Timeout = time.Second
		before := cpu()
		require.ErrorIs(t, m.Do(context.Background(), op), mux.ErrTimeout)
		require.Less(t, cpu()-before, 500*time.Millisecond) // with what others do, such as the garbage collector
	})
}

// A straggler is read when somebody looks, which says nothing of its master.
func TestRoundTripsAreNotThoseOfTheTick(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 5)
	var took time.Duration
	for k := range 30 {
		op := acquire(fmt.Sprint("k", k), "t")
		require.NoError(t, m.Do(t.Context(), op))
		took = max(took, op.Decided-op.Started)
		time.Sleep(30 * time.Millisecond)
	}
	require.LessOrEqual(t, m.RTT(), took, "the estimate is above the longest round")
}

// Every master that is not connected is named, with what is known of it.
func TestOpenNamesAHungMaster(t *testing.T) {
	hung := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	for range 20 {
		_, err := mux.Open(t.Context(), mux.Config{Masters: []string{hung}, Conn: conn.Options{DialTimeout: 20 * time.Millisecond}})
		require.ErrorIs(t, err, mux.ErrNoQuorum)
		require.ErrorContains(t, err, hung)
	}
}

// A caller that survives the panic of its judge must not leave the Mux locked.
func TestPanicOfAJudgeLeavesTheMuxUsable(t *testing.T) {
	f := newFake(t, "steady", steady(0))
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}}))
	require.NoError(t, err)
	op := vote("a")
	op.Judge = func(resp.Value) mux.Verdict { panic("judge") }
	func() {
		defer func() { recover() }()
		m.Do(context.Background(), op)
	}()
	decided := make(chan error, 1)
	go func() { decided <- m.Do(context.Background(), vote("b")) }()
	conntest.Soon(t, "the next operation is decided", decided)
	m.Close()
}

// Nor must that of a hook, which runs on the goroutine of whoever drives.
func TestPanicOfAHookLeavesTheMuxUsable(t *testing.T) {
	f := newFake(t, "pushing", func() script {
		return func([]string) (string, bool) { return ">1\r\n+hello\r\n:1\r\n", true }
	})
	var pushed atomic.Bool
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}, OnPush: func(int, resp.Value) {
		if !pushed.Swap(true) {
			panic("hook")
		}
	}}))
	require.NoError(t, err)
	func() {
		defer func() { recover() }()
		m.Do(context.Background(), vote("a"))
	}()
	decided := make(chan error, 1)
	go func() { decided <- m.Do(context.Background(), vote("b")) }()
	conntest.Soon(t, "the next operation is decided", decided)
	m.Close()
}

// An operation that is submitted twice must not damage the others' list.
func TestOpSubmittedTwiceDoesNotHangTheMux(t *testing.T) {
	f := newFake(t, "silent", silent)
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}}))
	require.NoError(t, err)
	op, other := vote("a"), vote("b")
	m.Post(op, other)
	func() {
		defer func() { recover() }()
		m.Post(op) // without a Wait before
	}()
	ended := make(chan error, 1)
	go func() { ended <- m.Wait(context.Background(), other) }()
	time.Sleep(20 * time.Millisecond)
	go m.Close()
	require.ErrorIs(t, conntest.Soon(t, "the other one is ended", ended), mux.ErrClosed)
}

// What a dialer delivers has a stall time too, whoever sleeps meanwhile.
func TestSilenceAfterADeliveryIsNoticedByADriverThatSleptBefore(t *testing.T) {
	var connects atomic.Int64
	f := newFake(t, "mute", func() script {
		connects.Add(1)
		return func([]string) (string, bool) { return "", true }
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: 50 * time.Millisecond})
	listener := new(mux.Op)
	m.Post(listener)
	go m.Wait(context.Background(), listener)
	defer m.Forget(listener)
	f.cut()
	op := vote("a")
	op.Persist = time.Minute
	m.Send(op)
	eventually(t, "the debt is delivered", func() bool { s := m.Masters()[0]; return s.Connects >= 2 && s.Owed == 1 })
	eventually(t, "the silent master is given up", func() bool { return connects.Load() >= 3 })
}

// The second submission panics; the first is as it was.
func TestOpSubmittedTwiceKeepsItsFirstDeadline(t *testing.T) {
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: time.Hour})
	op := vote("a")
	op.Timeout = 20 * time.Millisecond
	m.Post(op)
	require.Panics(t, func() { m.Post(op) })
	ended := make(chan error, 1)
	go func() { ended <- m.Wait(context.Background(), op) }()
	require.ErrorIs(t, conntest.Soon(t, "its timeout ends it", ended), mux.ErrTimeout)
}

// Replies are read as fast as they come although nobody waits for them: a
// master that has answered everything does not lag behind.
func TestMasterThatAnswersAllIsNotRefusedForALackOfReaders(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	op := release("k", "t")
	op.Command, op.Judge = resp.AppendCommand(nil, "GET", "k"), func(resp.Value) mux.Verdict { return mux.VerdictYes }
	for sent := 0; sent < 160_000; {
		for range 4000 {
			m.Send(op)
			sent++
		}
		eventually(t, "the master has answered", func() bool {
			stats, err := masters.Do(0, "INFO", "commandstats")
			require.NoError(t, err)
			var calls int
			_, after, _ := strings.Cut(fmt.Sprint(stats), "cmdstat_get:calls=")
			fmt.Sscan(strings.SplitN(after, ",", 2)[0], &calls)
			return calls+int(m.Masters()[0].Failures) >= sent
		})
	}
	s := m.Masters()[0]
	require.Zero(t, s.Failures)
	require.Zero(t, s.Dropped)
}

// A caller whose answer is there does not go on writing what others submit.
func TestCallerIsNotKeptToWriteForOthers(t *testing.T) {
	var m *mux.Mux
	var storm atomic.Int64
	f := newFake(t, "steady", steady(0))
	m = open(t, mux.Config{Masters: []string{f.addr()}, Conn: conn.Options{
		Wrap: wrapWrites(func(p []byte, write func([]byte) (int, error)) (int, error) {
			if storm.Add(-1) >= 0 {
				m.Send(vote("another")) // there is always more
			}
			return write(p)
		})}})
	storm.Store(500_000)
	require.NoError(t, m.Do(context.Background(), vote("a")))
	require.Positive(t, storm.Load())
}

func TestDeadlineExceededIsTheContextsError(t *testing.T) {
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

// A majority was up and is lost before Open has returned: the dial timeout is
// what bounds the waiting for it to come back.
func TestOpenGoesOnWhenItsMajorityIsLost(t *testing.T) {
	steadyAt := func(i int) *fakeMaster { return newFake(t, fmt.Sprint("open", i), steady(i)) }
	hung := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	behind := steadyAt(1)
	var first sync.Once
	var begun time.Time
	flapping := conntest.Listen(t, func(c net.Conn) {
		cut := false
		first.Do(func() { begun, cut = time.Now(), true })
		if !cut && time.Since(begun) < 200*time.Millisecond {
			return
		}
		out, err := net.Dial("tcp", behind.addr())
		if err != nil {
			return
		}
		defer out.Close()
		go func() { pipe(out, c, newBudget(-1)); out.Close() }()
		if cut {
			time.AfterFunc(10*time.Millisecond, func() { out.Close() })
		}
		pipe(c, out, newBudget(-1))
	})
	m, err := mux.Open(t.Context(), mux.Config{
		Masters: []string{steadyAt(0).addr(), flapping, hung}, Conn: conn.Options{DialTimeout: patience}})
	require.NoError(t, err)
	m.Close()
}

// A master in quarantine whose connection breaks again and again leaves nothing behind
// each time.
func TestQuarantineLeavesNoGoroutineBehindForEachConnection(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs(), Quarantine: func(_ int, before, _ conn.Server) (time.Duration, string, bool) {
		if before.Endpoint == "" {
			return time.Hour, "new", false
		}
		return 0, "", false
	}})
	const times = 10
	for n := range uint64(times) {
		eventually(t, "it is connected", func() bool {
			s := m.Masters()[0]
			return s.Connects == n+1 && s.Phase == mux.Quarantined
		})
		_, err := masters.Do(0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		require.NoError(t, err)
	}
	eventually(t, "one waits for the end of the quarantine", func() bool {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), ").outlast(") <= 1
	})
}

// A quarantine that proves too short is prolonged, also when it is over, and ends.
func TestDoubtProlongsAQuarantine(t *testing.T) {
	begun := time.Now()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), Quarantine: func(i int, _, _ conn.Server) (time.Duration, string, bool) {
		return 0, "it may have forgotten", i == 0
	}})
	for i := range 3 {
		eventually(t, "all are up", func() bool { return m.Masters()[i].Phase == mux.Up })
	}
	m.Doubt(time.Since(begun) + 3*time.Second) // from when it was connected
	s := m.Masters()
	require.Equal(t, []mux.Phase{mux.Quarantined, mux.Up, mux.Up}, []mux.Phase{s[0].Phase, s[1].Phase, s[2].Phase})
	var why *mux.QuarantineError
	require.ErrorAs(t, s[0].Err, &why)
	require.Equal(t, "it may have forgotten", why.Reason)
	m.Doubt(time.Millisecond) // which shortens nothing
	require.Equal(t, mux.Quarantined, m.Masters()[0].Phase)
	eventually(t, "it votes again", func() bool { return m.Masters()[0].Phase == mux.Up })
}

// endless always has something to read, and never what is asked for.
type endless struct{ io.ReadWriter }

func (endless) Read(p []byte) (n int, err error) {
	for len(p)-n >= len(push) {
		n += copy(p[n:], push)
	}
	return n, nil
}

const push = ">1\r\n+a\r\n"

// A master that answers a handshake with pushes without end keeps nobody: the dial ends
// in time, and so does Close.
func TestHandshakeOfAMasterThatOnlyPushesEnds(t *testing.T) {
	addrs := []string{newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(1)).addr(), newFake(t, "c", steady(2)).addr()}
	m := open(t, mux.Config{Masters: addrs, Conn: conn.Options{DialTimeout: 2 * time.Second,
		Wrap: func(master string, s io.ReadWriter) io.ReadWriter {
			if master == addrs[2] {
				return endless{s}
			}
			return s
		}}})
	eventually(t, "the dial has timed out", func() bool { return errors.Is(m.Masters()[2].Err, os.ErrDeadlineExceeded) })
	require.NoError(t, m.Close())
}

// A master that owes replies, and sends pushes without end instead, is silent.
func TestMasterThatOnlyPushesIsReset(t *testing.T) {
	addrs := []string{newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(1)).addr(), newFake(t, "c", steady(2)).addr()}
	var bad atomic.Bool
	m := open(t, mux.Config{Masters: addrs, StallTime: 200 * time.Millisecond, Conn: conn.Options{
		Wrap: func(master string, s io.ReadWriter) io.ReadWriter {
			if master == addrs[2] {
				return &turning{s, &bad}
			}
			return s
		}}})
	waitUp(t, m, 3)
	bad.Store(true)
	op := &mux.Op{Judge: judgeAnyInt, Timeout: time.Minute}
	eventually(t, "it is reset", func() bool {
		op.Command = resp.AppendCommand(op.Command[:0], "VOTE", "x")
		require.NoError(t, m.Do(t.Context(), op))
		s := m.Masters()[2]
		return s.Phase != mux.Up || s.Connects > 1
	})
}

// turning is a stream that becomes endless.
type turning struct {
	io.ReadWriter
	bad *atomic.Bool
}

func (s *turning) Read(p []byte) (int, error) {
	if s.bad.Load() { // the reply stays unread, so the socket stays readable
		return endless{}.Read(p)
	}
	return s.ReadWriter.Read(p)
}

// A hook that panics fails the dial, and takes nobody down.
func TestPanicOfAHookFailsTheDial(t *testing.T) {
	addrs := []string{newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(1)).addr(), newFake(t, "c", steady(2)).addr()}
	for name, cfg := range map[string]mux.Config{
		"Quarantine": {Quarantine: func(i int, _, _ conn.Server) (time.Duration, string, bool) {
			if i == 2 {
				panic("the user's")
			}
			return 0, "", false
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Masters = addrs
			m := open(t, cfg)
			eventually(t, "it is said", func() bool {
				err := m.Masters()[2].Err
				return err != nil && strings.Contains(err.Error(), "the user's")
			})
			require.Equal(t, mux.Up, m.Masters()[0].Phase)
		})
	}
}

// What is delivered after its time, as the master may have done only now what it undoes,
// and is refused for a moment, is repeated.
func TestLateDeliveryThatIsRefusedIsRepeated(t *testing.T) {
	const persist = 2 * time.Second
	var connects, deliveries atomic.Int32
	late := make(chan struct{})
	f := newFake(t, "a", func() script {
		if connects.Add(1) == 1 {
			return silent()
		}
		<-late // it is frozen for longer than that
		return func(args []string) (string, bool) {
			if args[0] == "EVAL" && deliveries.Add(1) == 1 {
				return "-BUSY Redis is busy running a script.\r\n", true
			}
			return ":1\r\n", true
		}
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: 50 * time.Millisecond})
	m.Send(acquire("k", "t"))
	op := release("k", "t")
	op.Persist = persist
	m.Send(op)
	eventually(t, "it is reset", func() bool { return connects.Load() > 1 })
	time.Sleep(persist)
	close(late)
	eventually(t, "it is delivered, and again", func() bool { return deliveries.Load() == 2 })
	eventually(t, "nothing is owed", func() bool {
		s := m.Masters()[0]
		return s.Owed == 0 && s.Debts == 0
	})
}
