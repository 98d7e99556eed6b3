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
			op := &mux.Op{Command: resp.AppendCommand(nil, "SET", fmt.Sprint("big", g), value), Verdict: verdictOK, All: true}
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
