package mux_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
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

// heap returns the bytes that are in use once everything unused was given back.
func heap() uint64 {
	var s runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// Wherever an acquire and its release are cut, on the way there or on the way
// back, the key is gone once the master is connected again.
func TestDebtIsPaidWhereverTheStreamIsCut(t *testing.T) {
	t.Parallel()
	const lanes = 16 // side by side, each with a master of its own
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

// A release for a master that is down is delivered when the master is back, before anything
// else, but not after its time.
func TestDebtOfADownMasterIsDeliveredFirstAndInTime(t *testing.T) {
	t.Parallel()
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
	require.True(t, granted(op), "the debt was not delivered first")
	op = acquire("kept", "other")
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, granted(op), "a debt was delivered after its time")
}

// A master's vote fails when its connection ends; the delivery after the reconnect is not a
// second vote.
func TestDebtDoesNotVoteASecondTime(t *testing.T) {
	t.Parallel()
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
	m.Post(op)
	eventually(t, "the debt is paid", func() bool { s := m.Masters()[2]; return s.Connects == 2 && s.Replies == 1 })
	close(answer)
	eventually(t, "the slow one has answered", func() bool { return m.Masters()[0].Replies == 1 })
	m.Forget(op)
	require.ErrorIs(t, m.Wait(t.Context(), op), mux.ErrForgotten, "decided although master 1 has not voted")
}

// A master is down, and has debts with long keys. The memory that they take is bounded, and
// is given back when they were delivered.
func TestDebtsAreBoundedByBytesAndGivenBack(t *testing.T) {
	const most = 32 << 20
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	before := heap()
	masters.Kill(2)
	eventually(t, "down", func() bool { return upCount(m) == 2 })
	op := release("", "t")
	op.Thorough = true     // or the first of the two to answer decides, and the other falls behind
	for k := range 2_500 { // 40 MiB of keys
		key := fmt.Sprint(k) + strings.Repeat("k", 16<<10)
		op.Command = resp.AppendCommand(op.Command[:0], "EVALSHA", strings.Repeat("0", 40), "1", key, "t")
		op.Fallback = resp.AppendCommand(op.Fallback[:0], "EVAL", releaseScript, "1", key, "t")
		require.NoError(t, m.Do(t.Context(), op)) // answered by the two: nothing piles up there
	}
	s := m.Masters()[2]
	require.Greater(t, s.Debts, 300, "8 MiB of them")
	require.Less(t, int64(heap()-before), int64(most))
	masters.Restart(2)
	waitUp(t, m, 3)
	eventually(t, "nothing is owed", func() bool { s := m.Masters()[2]; return s.Debts == 0 && s.Owed == 0 })
	require.Less(t, int64(heap()-before), int64(4<<20))
}

func TestDebtKeptBackByABacklogIsPaidWhileNobodyCalls(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
	masters.Pause(0)
	fill(m)
	m.Send(release("k", "t"))
	require.Equal(t, 1, m.Masters()[0].Debts)
	masters.Resume(0)
	eventually(t, "all is answered", func() bool { return m.Masters()[0].Owed == 0 })
	eventually(t, "the debt is paid", func() bool { return m.Masters()[0].Debts == 0 })
	op := acquire("other", "t")
	eventually(t, "an operation is won again", func() bool {
		require.NoError(t, m.Do(t.Context(), op))
		return granted(op)
	})
}

// Redis before 7 wraps the error of a command inside a script. If the inner error passes,
// the release is repeated.
func TestReleaseThatAScriptHasRefusedForAMomentIsRepeated(t *testing.T) {
	t.Parallel()
	const wrapped = "-ERR Error running script (call to f_1028a5dba704e1d8a01fd96efeba25bb78f62df2): " +
		"@user_script:2: @user_script: 2: -NOREPLICAS Not enough good replicas to write. \r\n"
	var asked atomic.Int32
	f := newFake(t, "old", func() script {
		return func(args []string) (string, bool) {
			if asked.Add(1) == 1 {
				return wrapped, true
			}
			return ":1\r\n", true
		}
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}})
	op := release("k", "t")
	require.NoError(t, m.Do(t.Context(), op))
	var reply *mux.ReplyError
	require.ErrorAs(t, op.Votes[0].Err, &reply)
	require.Equal(t, "NOREPLICAS", reply.Code)
	eventually(t, "it is repeated", func() bool { s := m.Masters()[0]; return asked.Load() == 2 && s.Debts == 0 && s.Owed == 0 })
}

// A debt is delivered after its time, because the master may have done only now what the
// debt undoes. If the master refuses it for a moment, it is repeated.
func TestLateDeliveryThatIsRefusedIsRepeated(t *testing.T) {
	t.Parallel()
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
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: 200 * time.Millisecond})
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

// A server calls itself a master in every handshake and a replica in every answer, as a
// proxy in front of a replica does. Its debts end.
func TestDebtsOfAMasterThatTakesNoWritesEnd(t *testing.T) {
	t.Parallel()
	f := newFake(t, "proxy", func() script {
		return func([]string) (string, bool) { return readOnly, true }
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}, BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond})
	listener := &mux.Op{} // somebody drives, as in every client that is in use
	m.Post(listener)
	var listening sync.WaitGroup
	listening.Go(func() { m.Wait(context.Background(), listener) })
	defer listening.Wait()
	defer m.Forget(listener)
	for k := range 100 {
		op := release(fmt.Sprint(k), "t")
		op.Persist = 100 * time.Millisecond
		m.Send(op)
	}
	eventually(t, "nothing is owed", func() bool { s := m.Masters()[0]; return s.Debts == 0 && s.Owed == 0 })
}

// What a master has refused, as it is to be tried again or as it is a replica now, is delivered before what it still owed.
func TestDebtsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	keys := []string{"busy", "read only", "owed", "the last"}
	var connects atomic.Int32
	asked, delivered := make(chan string, 10), make(chan string, 10)
	f := newFake(t, "a", func() script {
		to, replies := asked, map[string]string{"busy": "-BUSY Redis is busy running a script.\r\n", "read only": readOnly}
		if connects.Add(1) > 1 {
			to, replies = delivered, map[string]string{}
		}
		return func(args []string) (string, bool) {
			key := args[3]
			to <- key
			return replies[key], true
		}
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}})
	m.HoldTick()
	for _, key := range keys {
		m.Send(release(key, "t"))
	}
	for _, key := range keys { // the last has come when the first two were answered
		require.Equal(t, key, conntest.Soon(t, "it is asked", asked))
	}
	m.Tick()
	for _, key := range keys {
		require.Equal(t, key, conntest.Soon(t, "it is delivered", delivered))
	}
}
