package mux_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

const releaseScript = `if redis.call("GET",KEYS[1])==ARGV[1] then return redis.call("DEL",KEYS[1]) end return 0`

// patience is for what a test does not measure: a loaded machine may need it.
const patience = 60 * time.Second

// patiently is a configuration in which what is not said does not depend on how fast
// the machine is: not how long a dial may take, nor how long a master may be silent.
func patiently(cfg mux.Config) mux.Config {
	if cfg.StallTime == 0 {
		cfg.StallTime = patience
	}
	if cfg.Conn.DialTimeout == 0 {
		cfg.Conn.DialTimeout = patience
	}
	return cfg
}

func open(t testing.TB, cfg mux.Config) *mux.Mux {
	t.Helper()
	m, err := mux.Open(context.Background(), patiently(cfg))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// eventually waits for a condition, however long a loaded machine may take.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func waitUp(t testing.TB, m *mux.Mux, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " masters up"), func() bool { return upCount(m) == n })
}

func upCount(m *mux.Mux) int {
	up := 0
	for _, s := range m.Masters() {
		if s.Phase == mux.Up {
			up++
		}
	}
	return up
}

func judgeOK(v resp.Value) mux.Verdict {
	switch {
	case v.Is("OK"):
		return mux.VerdictYes
	case v.IsNull():
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}

func judgeOne(v resp.Value) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && n == 1:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	case string(v.ErrorCode()) == "NOSCRIPT":
		return mux.VerdictAgain
	}
	return mux.VerdictFailed
}

func acquire(key, token string) *mux.Op {
	return &mux.Op{
		Command: resp.AppendCommand(nil, "SET", key, token, "NX", "PX", "60000"),
		Judge:   judgeOK,
		Timeout: 30 * time.Second,
	}
}

func release(key, token string) *mux.Op {
	return &mux.Op{
		Command:  resp.AppendCommand(nil, "EVALSHA", strings.Repeat("0", 40), "1", key, token),
		Fallback: resp.AppendCommand(nil, "EVAL", releaseScript, "1", key, token),
		Judge:    judgeOne,
		Timeout:  30 * time.Second,
		Persist:  time.Minute,
	}
}

func keysOn(t testing.TB, masters *redlocktest.Masters, i int) int64 {
	t.Helper()
	n, err := masters.Do(i, "DBSIZE")
	require.NoError(t, err)
	return n.(int64)
}

func TestAQuorumOfYesDecidesAndTheRestAreStragglers(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 5)
	require.Equal(t, 5, m.Len())
	for k := range 200 {
		key := fmt.Sprint("key", k)
		op := acquire(key, "a")
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, op.Won())
		yes, no, failed, _ := op.Count()
		require.Equal(t, 3, yes)
		require.Zero(t, no+failed)
		require.GreaterOrEqual(t, op.Decided, op.Started)

		op = acquire(key, "b")
		require.NoError(t, m.Do(t.Context(), op))
		require.False(t, op.Won())

		op = release(key, "a") // never overtakes the acquire: all five must say yes
		op.All = true
		require.NoError(t, m.Do(t.Context(), op))
		yes, _, _, _ = op.Count()
		require.Equal(t, 5, yes, "release overtook the acquire: %v", op.Votes)
	}
	eventually(t, "all replies in", func() bool {
		owed := 0
		for _, s := range m.Masters() {
			owed += s.Owed
		}
		return owed == 0
	})
	var stragglers uint64
	for _, s := range m.Masters() {
		stragglers += s.Stragglers
		require.Positive(t, s.RTT)
	}
	require.Positive(t, stragglers)
	require.Positive(t, m.RTT())
}

func TestFallbackIsSentOncePerMaster(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	op := release("k", "t")
	op.All = true
	op.Judge = func(resp.Value) mux.Verdict { return mux.VerdictAgain } // never content
	require.NoError(t, m.Do(t.Context(), op))
	_, _, failed, _ := op.Count()
	require.Equal(t, 3, failed)
	for i := range 3 {
		stats, err := masters.Do(i, "INFO", "commandstats")
		require.NoError(t, err)
		require.Contains(t, stats, "cmdstat_eval:calls=1,")
	}
}

func TestHungMasterDelaysNobodyIsResetAndComesBack(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	// Long enough that none of the others is ever silent for so long.
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: 2 * time.Second})
	waitUp(t, m, 5)
	masters.Pause(1)
	op := acquire("k", "t")
	sawStall := false
	for k := 0; !sawStall; k++ {
		op.Command = resp.AppendCommand(op.Command[:0], "SET", fmt.Sprint("k", k), "t", "NX", "PX", "60000")
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, op.Won())
		s := m.Masters()[1]
		sawStall = s.Phase == mux.Stalled
		if sawStall {
			require.ErrorIs(t, s.Err, mux.ErrStalled)
			require.Zero(t, s.Owed)
		}
	}
	// Known to be down now: it is not asked.
	op.All = true
	op.Command = resp.AppendCommand(op.Command[:0], "SET", "another", "t", "NX", "PX", "60000")
	require.NoError(t, m.Do(t.Context(), op))
	require.ErrorContains(t, op.Votes[1].Err, "")
	require.Equal(t, mux.VerdictFailed, op.Votes[1].Verdict)
	masters.Resume(1)
	waitUp(t, m, 5)
	op.Command = resp.AppendCommand(op.Command[:0], "SET", "last", "t", "NX", "PX", "60000")
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, mux.VerdictYes, op.Votes[1].Verdict)
}

// Nobody calls: the tick notices the silence, and the sentry the restart.
func TestFaultsAreNoticedWhileNobodyCalls(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: 2 * time.Second}) // which the others are never silent for
	waitUp(t, m, 3)
	masters.Pause(0)
	m.Send(acquire("k", "t"))
	eventually(t, "the silent master's connection is reset", func() bool { return m.Masters()[0].Phase == mux.Stalled })
	masters.Resume(0)
	waitUp(t, m, 3)
	for i := range 3 {
		masters.Restart(i)
	}
	eventually(t, "all are redialled", func() bool {
		for i, s := range m.Masters() {
			if want := uint64(2); i == 0 && s.Connects < want+1 || s.Connects < want || s.Phase != mux.Up {
				return false
			}
		}
		return true
	})
	op := acquire("k", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	yes, _, _, _ := op.Count()
	require.Equal(t, 3, yes)
}

func TestDeadMajorityFailsAtOnceWithCausesAndServiceReturns(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 5)
	for i := range 3 {
		masters.Kill(i)
	}
	eventually(t, "three are down", func() bool { return upCount(m) == 2 })
	op := acquire("k", "t")
	op.Timeout = time.Hour // it is not the timeout that ends it
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, op.Won())
	for i := range 3 {
		require.Equal(t, mux.VerdictFailed, op.Votes[i].Verdict)
		require.ErrorContains(t, op.Votes[i].Err, masters.Addr(i))
	}
	// It could not succeed, so nothing was written that would have to be undone.
	require.Equal(t, mux.VerdictPending, op.Votes[3].Verdict)
	require.Zero(t, op.Asked)
	require.Zero(t, keysOn(t, masters, 3))
	for i := range 3 {
		masters.Restart(i)
	}
	waitUp(t, m, 5)
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, op.Won())
}

func TestOpenWithoutMajorityNamesEachMastersCause(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	masters.Kill(0)
	masters.Kill(2)
	// Long enough for the one that is up, however busy the machine is.
	_, err := mux.Open(t.Context(), mux.Config{Masters: masters.Addrs(), Conn: conn.Options{DialTimeout: 3 * time.Second}})
	require.ErrorIs(t, err, mux.ErrNoQuorum)
	require.ErrorContains(t, err, masters.Addr(0))
	require.ErrorContains(t, err, masters.Addr(2))
	require.NotContains(t, err.Error(), masters.Addr(1))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = mux.Open(ctx, mux.Config{Masters: masters.Addrs()})
	require.ErrorIs(t, err, context.Canceled)
}

func TestOpenRefusesBadLists(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	for name, list := range map[string][]string{
		"none":           {},
		"twice":          {"127.0.0.1:6379", "redis://127.0.0.1:6379"},
		"unknown scheme": {"http://127.0.0.1:6379"},
		"too many":       make([]string, 65),
	} {
		_, err := mux.Open(t.Context(), mux.Config{Masters: list})
		require.Error(t, err, name)
	}
	_, port, _ := net.SplitHostPort(masters.Addr(0))
	_, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{masters.Addr(0), "localhost:" + port}}))
	require.ErrorIs(t, err, mux.ErrDuplicate)
}

// A proxy that passes bytes between the Mux and a real master and cuts both
// connections after a given number of bytes in a given direction.
type cutter struct {
	l      net.Listener
	target string
	toward atomic.Int64 // bytes that may still go to the master; below zero: no limit
	back   atomic.Int64 // ... and from it
	wg     sync.WaitGroup
}

func newCutter(t testing.TB, target string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{l: l, target: target}
	c.toward.Store(-1)
	c.back.Store(-1)
	c.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			var once sync.Once
			end := func() {
				once.Do(func() {
					in.(*net.TCPConn).SetLinger(0)
					in.Close()
					out.Close()
				})
			}
			c.wg.Go(func() { defer end(); pipe(out, in, &c.toward) })
			c.wg.Go(func() { defer end(); pipe(in, out, &c.back) })
		}
	})
	t.Cleanup(func() { l.Close(); c.wg.Wait() })
	return c
}

func pipe(to io.Writer, from io.Reader, budget *atomic.Int64) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if left := budget.Load(); left >= 0 {
			if int64(n) >= left {
				to.Write(buf[:left])
				budget.Store(-1)
				return
			}
			budget.Store(left - int64(n))
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// Wherever an acquire and its release are cut, on the way there or on the way
// back, the key is gone once the master is connected again.
func TestDebtIsPaidWhereverTheStreamIsCut(t *testing.T) {
	const lanes = 8 // side by side, each with a master of its own
	masters := redlocktest.Start(t, lanes)
	total := int64(len(acquire("k", "t").Command) + len(release("k", "t").Command) + len(release("k", "t").Fallback))
	var wg sync.WaitGroup
	for lane := range lanes {
		proxy := newCutter(t, masters.Addr(lane))
		m := open(t, mux.Config{Masters: []string{proxy.l.Addr().String()}, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond})
		wg.Go(func() {
			for _, way := range []*atomic.Int64{&proxy.toward, &proxy.back} {
				for at := int64(lane); at < total; at += lanes {
					waitUp(t, m, 1)
					way.Store(at)
					m.Do(t.Context(), acquire("k", "t"))
					m.Send(release("k", "t"))
					eventually(t, "the debt is paid", func() bool {
						s := m.Masters()[0]
						return s.Phase == mux.Up && s.Debts == 0 && s.Owed == 0
					})
					way.Store(-1)
					if n := keysOn(t, masters, lane); n != 0 {
						t.Errorf("cut after %d bytes: %d keys are left", at, n)
					}
				}
			}
		})
	}
	wg.Wait()
}

// A release for a master that is down is delivered when it is back, before
// anything else; but not after its time.
func TestDebtOfADownMasterIsDeliveredFirstAndInTime(t *testing.T) {
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
	// A server that still loads its data answers a handshake without a script.
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Scripts: []string{"return 1"}}})
	waitUp(t, m, 1)
	for _, key := range []string{"kept", "released"} {
		require.NoError(t, m.Do(t.Context(), acquire(key, "t")))
	}
	masters.Kill(0)
	eventually(t, "down", func() bool { return upCount(m) == 0 })
	m.Send(release("released", "t"))
	late := release("kept", "t")
	late.Persist = time.Nanosecond
	m.Send(late)
	require.Positive(t, m.Masters()[0].Debts)
	masters.Restart(0)
	waitUp(t, m, 1)
	op := acquire("released", "other")
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, op.Won(), "the debt was not delivered first")
	op = acquire("kept", "other")
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, op.Won(), "a debt was delivered after its time")
}

func TestContextEndsAtAnyPointAndOrderIsKept(t *testing.T) {
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
// it drives or rides.
func TestContextEndsWhileAMajorityHangs(t *testing.T) {
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
	eventually(t, "all are waiting", func() bool { return m.Masters()[0].Owed == 8 })
	time.Sleep(50 * time.Millisecond) // past the driver's looks: it sleeps by callback now
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

func TestPostedOperationsShareABurst(t *testing.T) {
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
			require.True(t, op.Won())
		}
	}
}

// An operation without a command waits, drives for the others meanwhile, and
// is ended from outside.
func TestListenerDrivesWhileOthersCall(t *testing.T) {
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
		require.True(t, op.Won())
	}
	m.Forget(listener)
	require.ErrorIs(t, conntest.Soon(t, "the listener is ended", ended), mux.ErrForgotten)
}

func TestManyCallersAndBurstsBeyondTheSocketBuffer(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Minute})
	waitUp(t, m, 3)
	const callers = 10_000
	var won atomic.Int64
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			op := acquire(fmt.Sprint("k", g), "t")
			op.Timeout = 0
			if err := m.Do(context.Background(), op); err != nil {
				t.Error(err)
			} else if op.Won() {
				won.Add(1)
			} else {
				t.Error(op.Votes)
			}
		})
	}
	conntest.AllEnd(t, "all are decided", &wg)
	require.EqualValues(t, callers, won.Load())

	// Fewer, but each larger than what a socket takes at once.
	value := strings.Repeat("v", 300<<10)
	for g := range 8 {
		wg.Go(func() {
			op := &mux.Op{Command: resp.AppendCommand(nil, "SET", fmt.Sprint("big", g), value), Judge: judgeOK, All: true}
			if err := m.Do(context.Background(), op); err != nil || !op.Won() {
				t.Error(err, op.Votes)
			}
		})
	}
	conntest.AllEnd(t, "all are decided", &wg)
	// And replies larger than what is read at once, while more is written.
	for g := range 8 {
		wg.Go(func() {
			op := &mux.Op{Command: resp.AppendCommand(nil, "GETRANGE", fmt.Sprint("big", g), "0", "60000"), All: true, Keep: true,
				Judge: func(resp.Value) mux.Verdict { return mux.VerdictYes }}
			for range 20 {
				if err := m.Do(context.Background(), op); err != nil || len(op.Votes[2].Reply.Bytes()) != 60001 {
					t.Error(err, op.Votes[2].Verdict)
				}
			}
		})
	}
	conntest.AllEnd(t, "all are decided", &wg)
}

// A hung master's backlog is bounded, its operations fail there at once, and a
// release that found no room is delivered when it answers again.
func TestBacklogOfAHungMasterIsBounded(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
	waitUp(t, m, 3)
	masters.Pause(2)
	op := acquire("k", "t")
	full := false
	for k := 0; !full; k++ {
		op.Command = resp.AppendCommand(op.Command[:0], "SET", "k", strings.Repeat("x", 8000))
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, op.Won())
		full = op.Votes[2].Verdict == mux.VerdictFailed
		require.Less(t, k, 1<<15)
	}
	require.ErrorIs(t, op.Votes[2].Err, mux.ErrBacklog)
	rel := release("k", strings.Repeat("x", 8000))
	require.NoError(t, m.Do(t.Context(), rel))
	require.True(t, rel.Won())
	require.Equal(t, 1, m.Masters()[2].Debts)
	masters.Resume(2)
	eventually(t, "the debt is paid", func() bool {
		s := m.Masters()[2]
		if s.Owed == 0 && s.Debts > 0 {
			m.Do(t.Context(), release("other", "t")) // whoever calls next pays it
		}
		return s.Debts == 0 && s.Owed == 0
	})
	require.Zero(t, keysOn(t, masters, 2))
}

func TestCloseWakesEveryoneAndLeavesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	fds, goroutines := openFiles(), runtime.NumGoroutine()
	for round := range 10 {
		m, err := mux.Open(context.Background(), patiently(mux.Config{Masters: masters.Addrs(), StallTime: time.Hour}))
		require.NoError(t, err)
		for i := range 3 {
			masters.Pause(i)
		}
		if round%2 == 0 { // with dials under way as well
			masters.Kill(3)
		}
		var wg sync.WaitGroup
		for g := range 20 {
			wg.Go(func() {
				for k := 0; ; k++ {
					op := acquire(fmt.Sprintf("k%d-%d-%d", round, g, k), "t")
					op.All = true
					if err := m.Do(context.Background(), op); err != nil {
						if err != mux.ErrClosed {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		eventually(t, "operations are in flight", func() bool { return m.Masters()[0].Owed > 0 || m.Masters()[0].Phase != mux.Up })
		for range 3 {
			wg.Go(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		conntest.AllEnd(t, "all have returned", &wg)
		require.ErrorIs(t, m.Do(context.Background(), acquire("k", "t")), mux.ErrClosed)
		require.ErrorIs(t, m.Do(context.Background(), acquire("k", "t")), os.ErrClosed)
		m.Send(acquire("k", "t"))
		for i := range 3 {
			masters.Resume(i)
		}
		if round%2 == 0 {
			masters.Restart(3)
		}
	}
	eventually(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines })
	if fds > 0 {
		eventually(t, "descriptors are gone", func() bool { return openFiles() <= fds })
	}
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// Releases that are on their way when the Mux is closed arrive, unless a master is too
// slow for the 100 ms that they are given.
func TestCloseLetsReleasesArrive(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	inTime := 0
	for k := range 20 {
		m := open(t, mux.Config{Masters: masters.Addrs()})
		waitUp(t, m, 3)
		key := fmt.Sprint("k", k)
		require.NoError(t, m.Do(t.Context(), acquire(key, "t")))
		m.Send(release(key, "t"))
		began := time.Now()
		require.NoError(t, m.Close())
		if time.Since(began) >= 100*time.Millisecond {
			for i := range 3 {
				masters.Flush(i)
			}
			continue
		}
		inTime++
		for i := range 3 {
			require.Zero(t, keysOn(t, masters, i))
		}
	}
	require.Positive(t, inTime)
}

func TestStateChangesAreObservedInOrder(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	var mu sync.Mutex
	seen := map[int][]mux.Phase{}
	m := open(t, mux.Config{Masters: masters.Addrs(), OnState: func(i int, s mux.State) {
		mu.Lock()
		defer mu.Unlock()
		seen[i] = append(seen[i], s.Phase)
	}})
	waitUp(t, m, 3)
	masters.Kill(1)
	eventually(t, "down", func() bool { return upCount(m) == 2 })
	masters.Restart(1)
	waitUp(t, m, 3)
	eventually(t, "all told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen[1]) >= 3 && seen[1][len(seen[1])-1] == mux.Up
	})
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []mux.Phase{mux.Up}, seen[0])
	require.Equal(t, mux.Up, seen[1][0])
	require.Equal(t, mux.Down, seen[1][1])
}

func releaseSHA(key, token string) []byte {
	sum := sha1.Sum([]byte(releaseScript))
	return resp.AppendCommand(nil, "EVALSHA", hex.EncodeToString(sum[:]), "1", key, token)
}

func TestOnlyTheMastersOfTheSetAreAsked(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	op := acquire("k", "t")
	op.Only, op.Quorum = 1<<1, 1
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, op.Won())
	require.Equal(t, []mux.Verdict{mux.VerdictPending, mux.VerdictYes, mux.VerdictPending}, verdicts(op))
	op.Only, op.Quorum = 1|1<<2, 2
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, op.Won())
	require.Equal(t, []mux.Verdict{mux.VerdictYes, mux.VerdictPending, mux.VerdictYes}, verdicts(op))
	require.EqualValues(t, 1|1<<2, op.Asked)
	op.Only, op.Quorum = 1<<1, 1
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, op.Won())
}

func TestThoroughOperationHearsEveryMasterBeforeItFails(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	for _, taken := range [][]int{{0, 1}, {0, 2}, {1, 2}} {
		want := []mux.Verdict{mux.VerdictYes, mux.VerdictYes, mux.VerdictYes}
		for i := range want {
			masters.Flush(i)
		}
		for _, i := range taken {
			_, err := masters.Do(i, "SET", "k", "another's")
			require.NoError(t, err)
			want[i] = mux.VerdictNo
		}
		op := acquire("k", "t")
		op.Thorough = true
		require.NoError(t, m.Do(t.Context(), op))
		require.False(t, op.Won())
		require.Equal(t, want, verdicts(op))
	}
}

func verdicts(op *mux.Op) (all []mux.Verdict) {
	for _, v := range op.Votes {
		all = append(all, v.Verdict)
	}
	return all
}
