package mux_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// counting answers like steady, and counts the commands.
func counting(commands *atomic.Int64) func() script {
	return func() script {
		return func([]string) (string, bool) {
			commands.Add(1)
			return ":1\r\n", true
		}
	}
}

func awaited(key string) *mux.Op {
	op := vote(key)
	op.Awaited = true
	return op
}

// writes counts the writes to a socket.
type writes struct {
	io.ReadWriter
	n *atomic.Int64
}

func (w writes) Write(p []byte) (int, error) {
	w.n.Add(1)
	return w.ReadWriter.Write(p)
}

// A Post of awaited operations leaves them to the first Wait, which writes them all at once.
func TestAwaitedOperationsAreWrittenByTheWait(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	f := newFake(t, "a", steady(0))
	m := open(t, mux.Config{Masters: []string{f.addr()}, Conn: conn.Options{
		Wrap: func(_ string, rw io.ReadWriter) io.ReadWriter { return writes{rw, &n} },
	}})
	a, b := awaited("a"), awaited("b")
	for {
		eventually(t, "no tick is due", func() bool { return !m.TickArmed() })
		began, before := clock.Now(), n.Load()
		m.Post(a)
		m.Post(b)
		posted := n.Load()
		require.NoError(t, m.Wait(t.Context(), a))
		require.NoError(t, m.Wait(t.Context(), b))
		if clock.Now()-began > 20*time.Millisecond {
			continue // the tick may have written them
		}
		require.Equal(t, before, posted)
		require.Equal(t, before+1, n.Load())
		return
	}
}

// Whatever becomes of the Wait, or of the operation before it, what was posted is written: a release
// that stays behind would keep the key until the TTL has passed.
func TestAwaitedOperationIsWrittenHoweverItsWaitEnds(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	blocks := func(t *testing.T, m *mux.Mux, op *mux.Op) {
		c := &stuck{Context: t.Context(), blocks: make(chan struct{}), goOn: make(chan struct{})}
		t.Cleanup(func() { close(c.goOn) })
		go m.Wait(c, op)
		<-c.blocks
	}
	for name, end := range map[string]func(t *testing.T, m *mux.Mux, op *mux.Op){
		"context ended": func(t *testing.T, m *mux.Mux, op *mux.Op) {
			require.ErrorIs(t, m.Wait(ended, op), context.Canceled)
		},
		"context panics": func(t *testing.T, m *mux.Mux, op *mux.Op) {
			c := &brittle{Context: t.Context()}
			require.Panics(t, func() { m.Wait(c, op) })
		},
		"context blocks":                         blocks,
		"context blocks while another is parked": blocks,
		"forgotten":                              func(_ *testing.T, m *mux.Mux, op *mux.Op) { m.Forget(op) },
		"forgotten, and waited for": func(t *testing.T, m *mux.Mux, op *mux.Op) {
			m.Forget(op)
			require.ErrorIs(t, m.Wait(t.Context(), op), mux.ErrForgotten)
		},
		"closed": func(t *testing.T, m *mux.Mux, _ *mux.Op) { require.NoError(t, m.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var commands atomic.Int64
			f := newFake(t, "a", counting(&commands))
			m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: 2 * time.Hour})
			if strings.Contains(name, "parked") {
				go m.Do(t.Context(), &mux.Op{Timeout: time.Hour})
				eventually(t, "it is parked", func() bool { return m.ParkedFor() > time.Minute })
			}
			op := awaited("a")
			op.Persist = time.Minute
			m.Post(op)
			end(t, m, op)
			eventually(t, "written", func() bool { return commands.Load() == 1 })
		})
	}
}

// An operation that is decided when it is submitted, as too many masters are down, is for the others
// all the same.
func TestAwaitedOperationThatIsDecidedAtOnceIsWritten(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	require.NoError(t, m.Do(t.Context(), acquire("k", "t")))
	eventually(t, "the key is there", func() bool { return keysOn(t, masters, 0) == 1 })
	masters.Kill(1)
	masters.Kill(2)
	eventually(t, "down", func() bool { return upCount(m) == 1 })
	for _, submit := range []func(op *mux.Op) error{
		func(op *mux.Op) error { m.Post(op); return m.Wait(t.Context(), op) },
		func(op *mux.Op) error { return m.Do(t.Context(), op) },
	} {
		op := release("k", "t")
		op.Awaited = true
		// The tick would write it, and is armed for a moment more.
		eventually(t, "nothing is owed", func() bool { return outstanding(m) == 0 && !m.TickArmed() })
		require.NoError(t, submit(op))
		require.False(t, granted(op))
		eventually(t, "the key is gone", func() bool { return keysOn(t, masters, 0) == 0 })
		says(t, masters, 0, "SET", "k", "t")
	}
}
