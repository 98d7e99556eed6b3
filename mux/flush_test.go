package mux_test

import (
	"context"
	"fmt"
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

func TestManyCallersAndBurstsBeyondTheSocketBuffer(t *testing.T) {
	t.Parallel()
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
			} else if granted(op) {
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
			op := &mux.Op{Command: resp.AppendCommand(nil, "SET", fmt.Sprint("big", g), value), Verdict: verdictOK, All: true}
			if err := m.Do(context.Background(), op); err != nil || !granted(op) {
				t.Error(err, op.Votes)
			}
		})
	}
	conntest.AllEnd(t, "all are decided", &wg)
	// And replies larger than what is read at once, while more is written.
	for g := range 8 {
		wg.Go(func() {
			op := &mux.Op{Command: resp.AppendCommand(nil, "GETRANGE", fmt.Sprint("big", g), "0", "60000"), All: true, Keep: true,
				Verdict: func(resp.Value) mux.Verdict { return mux.VerdictYes }}
			for range 20 {
				if err := m.Do(context.Background(), op); err != nil || len(op.Votes[2].Reply.Bytes()) != 60001 {
					t.Error(err, op.Votes[2].Verdict)
				}
			}
		})
	}
	conntest.AllEnd(t, "all are decided", &wg)
}

// A caller whose operation is decided does not go on writing what others submit.
func TestCallerIsNotKeptToWriteForOthers(t *testing.T) {
	t.Parallel()
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

// counted is a master that answers nothing, and how many commands and writes have reached it.
func counted(t *testing.T) (m *mux.Mux, f *fakeMaster, commands, writes *atomic.Int64) {
	commands, writes = new(atomic.Int64), new(atomic.Int64)
	f = newFake(t, "silent", func() script {
		return func([]string) (string, bool) {
			commands.Add(1)
			return "", true
		}
	})
	m = open(t, mux.Config{Masters: []string{f.addr()}, StallTime: time.Hour, Conn: conn.Options{
		Wrap: wrapWrites(func(p []byte, write func([]byte) (int, error)) (int, error) {
			writes.Add(1)
			return write(p)
		})}})
	return m, f, commands, writes
}

// crowdOf has callers wait, and returns when their commands are queued.
func crowdOf(t *testing.T, m *mux.Mux, wg *sync.WaitGroup, callers int) {
	was := m.Masters()[0].Owed
	for range callers {
		wg.Go(func() { m.Do(context.Background(), vote("a")) }) // it ends with the mux
	}
	eventually(t, "their commands are queued", func() bool { return m.Masters()[0].Owed == was+callers })
}

// held is a crowd whose driver has parked since it is one. It holds what comes for that time from then on; 0 for its own.
func held(t *testing.T, m *mux.Mux, f *fakeMaster, commands *atomic.Int64, wg *sync.WaitGroup, hold time.Duration) {
	crowdOf(t, m, wg, mux.Crowd+1)
	eventually(t, "the crowd's own are written", func() bool { return commands.Load() == mux.Crowd+1 })
	if hold > 0 { // not before: it may hold the last of them
		m.HoldFor(hold)
	}
	f.send(t, ":1\r\n")
	eventually(t, "one is decided, and the driver is parked again", func() bool { return m.Masters()[0].Owed == mux.Crowd && m.Holding() })
}

func TestCallersOfACrowdShareAWrite(t *testing.T) {
	t.Parallel()
	m, f, commands, writes := counted(t)
	var wg sync.WaitGroup
	held(t, m, f, commands, &wg, time.Hour)
	before, written := writes.Load(), commands.Load()
	const more = 50
	crowdOf(t, m, &wg, more)
	m.Send(vote("a")) // as a release that nobody waits for
	require.Equal(t, before, writes.Load(), "the driver writes them when replies come")
	f.send(t, ":1\r\n")
	eventually(t, "all are written", func() bool { return commands.Load() == written+more+1 })
	require.Equal(t, before+1, writes.Load())
	require.NoError(t, m.Close())
	conntest.AllEnd(t, "all are decided", &wg)
}

// Whoever comes to a crowd that is answered nothing is not kept waiting: masters may be far away.
func TestACrowdKeepsNoCommandForLong(t *testing.T) {
	t.Parallel()
	m, f, commands, _ := counted(t)
	var wg sync.WaitGroup
	held(t, m, f, commands, &wg, 0)
	for range 3 {
		written := commands.Load()
		crowdOf(t, m, &wg, 1)
		eventually(t, "it is written without a reply", func() bool { return commands.Load() == written+1 })
	}
	require.NoError(t, m.Close())
	conntest.AllEnd(t, "all are decided", &wg)
}
