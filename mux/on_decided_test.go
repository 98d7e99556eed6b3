package mux_test

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// told makes an operation one that nobody waits for.
func told(op *mux.Op) (*mux.Op, chan error) {
	decided := make(chan error, 1)
	op.OnDecided = func(err error) { decided <- err }
	return op, decided
}

func TestOnDecidedIsCalledThoughNobodyDrives(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 5)
	for i := range 20 {
		op, decided := told(acquire(fmt.Sprint("k", i), "t"))
		m.Post(op)
		require.NoError(t, conntest.Soon(t, "the decision", decided))
		require.True(t, granted(op))
	}
	require.Zero(t, m.Masters()[0].RTT, "nobody has waited for these answers: when they were read says nothing")
}

// A caller's next operation follows on each connection, and whoever drives for it reads both answers.
func TestWhatIsDecidedIsNotOvertaken(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	take := acquire("k", "t")
	for range 100 {
		require.NoError(t, m.Do(t.Context(), take))
		require.True(t, granted(take))
		give := release("k", "t")
		give.Command = give.Fallback // which every master knows
		op, decided := told(give)
		m.Post(op)
		require.NoError(t, m.Do(t.Context(), take))
		require.True(t, granted(take), "the release was before it")
		require.NoError(t, conntest.Soon(t, "the decision", decided))
		require.True(t, granted(op))
		require.NoError(t, m.Do(t.Context(), release("k", "t")))
	}
}

func TestOnDecidedIsCalledWhateverEndsAnOperation(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Minute})
	waitUp(t, m, 3)
	masters.Pause(0)
	masters.Pause(1)

	op, decided := told(acquire("k", "t"))
	op.Timeout = 10 * time.Millisecond
	m.Post(op)
	require.ErrorIs(t, conntest.Soon(t, "the timeout", decided), mux.ErrTimeout)
	require.False(t, granted(op))

	op, decided = told(acquire("k", "t"))
	m.Post(op)
	m.Forget(op)
	require.ErrorIs(t, conntest.Soon(t, "the end", decided), mux.ErrForgotten)

	op, decided = told(acquire("k", "t"))
	m.Post(op)
	require.NoError(t, m.Close())
	require.ErrorIs(t, conntest.Soon(t, "the end", decided), mux.ErrClosed)
	op, decided = told(acquire("k", "t"))
	m.Post(op)
	require.ErrorIs(t, conntest.Soon(t, "the refusal", decided), mux.ErrClosed)
	masters.Resume(0)
	masters.Resume(1)
}

// Whoever is told may give the operation to another caller at once. What that one sets in it must say
// nothing of how this one is written.
func TestOpDecidedAtOnceIsNotLookedAtAfterwards(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var n atomic.Int64 // writes to the one that is up
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{
		Wrap: func(master string, rw io.ReadWriter) io.ReadWriter {
			if master != masters.Addr(0) {
				return rw
			}
			return writes{rw, &n}
		},
	}})
	waitUp(t, m, 3)
	masters.Kill(1)
	masters.Kill(2)
	eventually(t, "two are down", func() bool { return upCount(m) == 1 })
	op := acquire("k", "t")
	op.Persist = time.Minute // so it is written, though too few masters are up
	decided, next := 0, make(chan struct{})
	op.OnDecided = func(error) {
		decided++
		op.Awaited = true // the next caller's, who writes what is queued
		go func() {       // the race detector sees who looks at it now
			op.Awaited = true
			close(next)
		}()
	}
	before := n.Load()
	m.Post(op)
	require.Equal(t, before+1, n.Load(), "its caller waits for nothing, so Post writes it")
	<-next
	require.Equal(t, 1, decided)
}

// Close lingers for a release, and tells how it was decided.
func TestCloseReportsHowAReleaseWasDecided(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	lingered := 0
	for range 20 {
		m := open(t, mux.Config{Masters: masters.Addrs()})
		waitUp(t, m, 3)
		take := acquire("k", "t")
		take.All = true
		require.NoError(t, m.Do(context.Background(), take))
		op := release("k", "t")
		op.Persist = time.Minute
		op, decided := told(op)
		m.Post(op)
		require.NoError(t, m.Close())
		select {
		case err := <-decided:
			if err == nil {
				require.True(t, granted(op))
				lingered++
			} else { // the masters were too busy to answer in time
				require.ErrorIs(t, err, mux.ErrClosed)
				eventually(t, "the key is gone", func() bool {
					return keysOn(t, masters, 0)+keysOn(t, masters, 1)+keysOn(t, masters, 2) == 0
				})
			}
		default:
			require.Fail(t, "Close has returned, and nobody was told")
		}
	}
	require.Positive(t, lingered)
}
