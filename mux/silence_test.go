package mux_test

import (
	"context"
	"fmt"
	"io"
	"net"
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

func TestHungMasterDelaysNobodyIsResetAndComesBack(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	// Long enough that none of the others is ever silent for so long.
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: 3 * time.Second})
	waitUp(t, m, 5)
	masters.Pause(1)
	op := acquire("k", "t")
	k := 0
	eventually(t, "it is found out", func() bool {
		k++
		op.Command = resp.AppendCommand(op.Command[:0], "SET", fmt.Sprint("k", k), "t", "NX", "PX", "60000")
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, granted(op))
		if k == 1 {
			require.Equal(t, mux.VerdictPending, op.Votes[1].Verdict, "it was not waited for, not even until it is found out")
		}
		return m.Masters()[1].Phase == mux.Stalled
	})
	s := m.Masters()[1]
	require.ErrorIs(t, s.Err, mux.ErrStalled)
	require.Zero(t, s.Owed)
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

// The driver has parked while no reply was owed. What is asked since then has a stall time
// as well.
func TestSilenceIsNoticedByADriverThatSleptBefore(t *testing.T) {
	t.Parallel()
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: 50 * time.Millisecond})
	listener := new(mux.Op)
	m.Post(listener)
	go m.Wait(context.Background(), listener)
	defer m.Forget(listener)
	eventually(t, "the listener drives, and is parked", func() bool { return m.ParkedFor() > time.Minute })
	op := vote("a")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, m.Do(ctx, op), "the silent master is given up")
	require.ErrorIs(t, op.Votes[0].Err, mux.ErrStalled)
}

// What a dialer delivers has a stall time as well, though the driver has parked before.
func TestSilenceAfterADeliveryIsNoticedByADriverThatSleptBefore(t *testing.T) {
	t.Parallel()
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

// If this process stands still before it has written what is queued, the masters are not
// silent.
func TestPauseBeforeTheWriteIsNotTakenForSilence(t *testing.T) {
	t.Parallel()
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
		return granted(op)
	}
	// After the pause the masters have a quarter of the stall time to answer. That may be too
	// short for these on a busy machine. But if the pause is taken for their silence, no time
	// is long enough.
	stall = 100 * time.Millisecond
	for !won() {
		stall *= 2
		require.Less(t, stall, 10*time.Second)
	}
}

// A master that owes replies, and sends pushes without end instead, is silent.
func TestMasterThatOnlyPushesIsReset(t *testing.T) {
	t.Parallel()
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
	op := &mux.Op{Verdict: verdictAnyInt, Timeout: time.Minute}
	eventually(t, "it is reset", func() bool {
		op.Command = resp.AppendCommand(op.Command[:0], "VOTE", "x")
		require.NoError(t, m.Do(t.Context(), op))
		s := m.Masters()[2]
		return s.Phase != mux.Up || s.Connects > 1
	})
}

// The driver has asked the sockets, and then does not get the lock for long. What has come in between
// is unread, so nobody is judged before the sockets are asked again.
func TestMasterIsNotJudgedBySocketsThatWereAskedLongAgo(t *testing.T) {
	t.Parallel()
	var stall time.Duration
	won := func() bool {
		var fakes []*fakeMaster
		var addrs []string
		for i := range 3 {
			fakes = append(fakes, newFake(t, fmt.Sprint("m", i), silent))
			addrs = append(addrs, fakes[i].addr())
		}
		m := open(t, mux.Config{Masters: addrs, StallTime: stall})
		defer m.Close()
		waitUp(t, m, 3)
		op := vote("a")
		decided := make(chan error, 1)
		go func() { decided <- m.Do(context.Background(), op) }()
		eventually(t, "all are suspected", func() bool { return m.Suspects(0) && m.Suspects(1) && m.Suspects(2) || upCount(m) < 3 })
		m.Locked(func() { // what is written to one that was given up is lost
			fakes[0].write(push)
			time.Sleep(stall / 16) // the driver has found that, and waits for the lock
			fakes[1].write(":1\r\n")
			fakes[2].write(":1\r\n")
			time.Sleep(stall / 4)
		})
		require.NoError(t, conntest.Soon(t, "it is decided", decided))
		return granted(op)
	}
	// On a busy machine they may be given up before they answer. But if that is taken for their silence,
	// no time is long enough.
	stall = 200 * time.Millisecond
	for !won() {
		stall *= 2
		require.Less(t, stall, 10*time.Second)
	}
}

// What has piled up while nobody drove is read before the reply behind it is missed.
func TestReplyBehindManyPushesIsFound(t *testing.T) {
	t.Parallel()
	var fakes []*fakeMaster
	var addrs []string
	for i, script := range []func() script{steady(0), steady(1), silent} {
		fakes = append(fakes, newFake(t, fmt.Sprint("m", i), script))
		addrs = append(addrs, fakes[i].addr())
	}
	var pushes atomic.Int64
	m := open(t, mux.Config{Masters: addrs, StallTime: patience, OnPush: func(int, resp.Value) { pushes.Add(1) }})
	waitUp(t, m, 3)
	m.HoldTick()
	op := &mux.Op{Command: resp.AppendCommand(nil, "VOTE", "x"), Verdict: verdictAnyInt, Timeout: patience}
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, 1, m.Masters()[2].Owed)
	const many, reads = 5000, 10 // as a read takes 500
	fakes[2].send(t, strings.Repeat(push, many)+":1\r\n")
	ticks := 0 // that have found something
	eventually(t, "it owes nothing", func() bool {
		before := pushes.Load()
		m.HoldTick()
		m.Tick()
		if pushes.Load() > before {
			ticks++
		}
		return m.Masters()[2].Owed == 0
	})
	require.EqualValues(t, many, pushes.Load())
	require.Less(t, ticks, reads/2)
	require.EqualValues(t, 1, m.Masters()[2].Connects)
}

// The connection to a master that hangs is reset. If it were closed in order, the system
// would go on sending what the master has not taken yet, and the master would execute, when
// it thaws, all that was long given up and undone. If the Mux is closed, everything arrives.
func TestConnectionOfAHungMasterIsReset(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stall time.Duration
		end   func(m *mux.Mux)
		want  error
	}{
		"hung": {50 * time.Millisecond, func(m *mux.Mux) {
			eventually(t, "it is given up", func() bool { return m.Masters()[0].Connects == 2 })
		}, syscall.ECONNRESET},
		"closed": {patience, func(m *mux.Mux) { require.NoError(t, m.Close()) }, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			frozen, ended := make(chan struct{}), make(chan error, 1)
			thaw := sync.OnceFunc(func() { close(frozen) })
			var connects atomic.Int64
			addr := conntest.Listen(t, func(peer net.Conn) {
				first := connects.Add(1) == 1
				conntest.Answer(peer, func(args []string) (string, bool) {
					reply, ok := new(fakeMaster).handshake(args)
					return reply, ok || !first
				})
				if !first {
					return
				}
				<-frozen
				for buf := make([]byte, 1<<16); ; {
					if _, err := peer.Read(buf); err != nil {
						ended <- err
						return
					}
				}
			})
			t.Cleanup(thaw)
			m := open(t, mux.Config{Masters: []string{addr}, StallTime: c.stall})
			fill(m) // its buffers, and ours
			c.end(m)
			thaw()
			require.ErrorIs(t, conntest.Soon(t, "it has read all", ended), c.want)
		})
	}
}
