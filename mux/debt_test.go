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

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// heap is what is in use after everything that can be is given back.
func heap() uint64 {
	var s runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// A master is away, and is owed releases of long keys. What they take is bounded, and is
// given back when it has had them.
func TestDebtsAreBoundedByBytesAndGivenBack(t *testing.T) {
	const most = 32 << 20
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	before := heap()
	masters.Kill(2)
	eventually(t, "down", func() bool { return upCount(m) == 2 })
	op := release("", "t")
	for k := range 10_000 { // 160 MiB of keys
		key := fmt.Sprint(k) + strings.Repeat("k", 16<<10)
		op.Command = resp.AppendCommand(op.Command[:0], "EVALSHA", strings.Repeat("0", 40), "1", key, "t")
		op.Fallback = resp.AppendCommand(op.Fallback[:0], "EVAL", releaseScript, "1", key, "t")
		require.NoError(t, m.Do(t.Context(), op)) // answered by the two: nothing piles up there
	}
	s := m.Masters()[2]
	require.Positive(t, s.Dropped)
	require.Greater(t, s.Debts, 300, "8 MiB of them")
	require.Less(t, int64(heap()-before), int64(most))
	masters.Restart(2)
	waitUp(t, m, 3)
	eventually(t, "nothing is owed", func() bool { s := m.Masters()[2]; return s.Debts == 0 && s.Owed == 0 })
	require.Less(t, int64(heap()-before), int64(4<<20))
}

// An outage with many small operations leaves nothing of them behind either.
func TestFlightsOfAnOutageAreGivenBack(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	before := heap()
	masters.Kill(0)
	eventually(t, "down", func() bool { return upCount(m) == 0 })
	for k := range 16_000 {
		m.Send(release(fmt.Sprint(strings.Repeat("k", 300), k), "t"))
	}
	require.Greater(t, int64(heap()-before), int64(4<<20))
	masters.Restart(0)
	waitUp(t, m, 1)
	eventually(t, "nothing is owed", func() bool { s := m.Masters()[0]; return s.Debts == 0 && s.Owed == 0 })
	require.Less(t, int64(heap()-before), int64(4<<20))
}

// One operation cannot fill the buffers of all others.
func TestOperationThatIsTooLongIsWrittenToNobody(t *testing.T) {
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

// Redis before 7 wraps the error of a command inside of a script: what it speaks of passes
// all the same, and the release is repeated.
func TestReleaseThatAScriptHasRefusedForAMomentIsRepeated(t *testing.T) {
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

// What a master says of our command is shown without its arguments.
func TestErrorOfAMasterQuotesNoToken(t *testing.T) {
	f := newFake(t, "renamed", func() script {
		return func(args []string) (string, bool) {
			return "-ERR unknown command 'EVALSHA', with args beginning with: '" + strings.Join(args[1:], "' '") + "' \r\n", true
		}
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}})
	op := release("k", "owner/secret")
	require.NoError(t, m.Do(context.Background(), op))
	require.EqualError(t, op.Votes[0].Err, "ERR unknown command 'EVALSHA'")
}

// A master that calls itself one in every handshake, and a replica in every answer, such as a
// proxy in front of one. What it is owed ends.
func TestDebtsOfAMasterThatTakesNoWritesEnd(t *testing.T) {
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
