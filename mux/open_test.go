package mux_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// cluster is a server that can never be the master of a lock.
func cluster(t *testing.T) string {
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	return masters.Addr(0)
}

// A minority that can never serve does not hinder the majority, and is reported.
func TestRefusedMinorityIsTolerated(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	var mu sync.Mutex
	var told []mux.State
	cfg := mux.Config{Masters: append(masters.Addrs(), cluster(t)), OnState: func(i int, s mux.State) {
		mu.Lock()
		defer mu.Unlock()
		if i == 2 {
			told = append(told, s)
		}
	}}
	m := open(t, cfg)
	eventually(t, "it is refused", func() bool { return m.Masters()[2].Phase == mux.Refused })
	s := m.Masters()[2]
	require.ErrorIs(t, s.Err, conn.ErrRefused)
	require.Equal(t, "refused", s.Phase.String())
	eventually(t, "it is told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) == 1 && told[0].Phase == mux.Refused
	})
	waitUp(t, m, 2)
	op := acquire("k", "t")
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, granted(op))
	require.ErrorIs(t, op.Votes[2].Err, conn.ErrRefused)
}

// Open ends at once if so many masters can never serve that no majority is left.
func TestRefusedMajorityEndsOpenAtOnce(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	_, err := mux.Open(t.Context(), patiently(mux.Config{Masters: append(masters.Addrs(), cluster(t), cluster(t))}))
	require.ErrorIs(t, err, conn.ErrRefused)
	require.NotErrorIs(t, err, mux.ErrNoQuorum)
}

// One of three is refused and one is down: trying again may help.
func TestOpenWithoutMajorityMayBeTriedAgainThoughOneIsRefused(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	masters.Kill(0)
	cfg := mux.Config{Masters: append(masters.Addrs(), cluster(t)), Conn: conn.Options{DialTimeout: 3 * time.Second}}
	_, err := mux.Open(t.Context(), cfg)
	require.ErrorIs(t, err, mux.ErrNoQuorum)
	require.ErrorContains(t, err, masters.Addr(0))
	require.NotContains(t, err.Error(), masters.Addr(1))
	require.ErrorContains(t, err, "Cluster")
}

// If the context ends before a majority has become impossible, its error is the only cause.
func TestOpenThatItsContextEndsSaysSo(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	masters.Pause(0) // these do not answer, and nobody knows yet whether they will
	masters.Pause(1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := mux.Open(ctx, patiently(mux.Config{Masters: masters.Addrs()}))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, mux.ErrNoQuorum)
	var open *mux.OpenError
	require.ErrorAs(t, err, &open)
	require.Len(t, open.Masters, 3)

	cancel()
	_, err = mux.Open(ctx, patiently(mux.Config{Masters: masters.Addrs()}))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, mux.ErrNoQuorum)

	masters.Kill(0)
	masters.Kill(1)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	var seen sync.Map
	go func() {
		_, err := mux.Open(ctx, patiently(mux.Config{Masters: masters.Addrs(), OnState: func(i int, s mux.State) { seen.Store(i, s.Err) }}))
		ended <- err
	}()
	eventually(t, "both have failed", func() bool {
		a, _ := seen.Load(0)
		b, _ := seen.Load(1)
		return a != nil && b != nil
	})
	cancel()
	err = conntest.Soon(t, "Open ends", ended)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, mux.ErrNoQuorum)
}

// The error names every master that is not connected, and says what is known of it.
func TestOpenNamesAHungMaster(t *testing.T) {
	t.Parallel()
	hung := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	for range 20 {
		_, err := mux.Open(t.Context(), mux.Config{Masters: []string{hung}, Conn: conn.Options{DialTimeout: 20 * time.Millisecond}})
		require.ErrorIs(t, err, mux.ErrNoQuorum)
		require.ErrorContains(t, err, hung)
	}
}

// A lateContext is asked for its channel late, as by a goroutine that has to wait for a processor.
type lateContext struct {
	context.Context
	wait func()
}

func (c lateContext) Done() <-chan struct{} {
	c.wait()
	return c.Context.Done()
}

// Open sees masters that were connected before it began to wait for them.
func TestOpenSeesWhatCameBeforeItWaits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	up := make(chan struct{}, 3)
	opened := make(chan error, 1)
	go func() {
		m, err := mux.Open(lateContext{t.Context(), func() {
			for range 3 {
				<-up
			}
		}}, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{DialTimeout: time.Hour}, OnState: func(_ int, s mux.State) {
			if s.Phase == mux.Up {
				up <- struct{}{}
			}
		}})
		if err == nil {
			m.Close()
		}
		opened <- err
	}()
	require.NoError(t, conntest.Soon(t, "it is open", opened))
}

// A majority was connected and is lost before Open has returned. Open waits for it to come
// back, until the dial timeout.
func TestOpenGoesOnWhenItsMajorityIsLost(t *testing.T) {
	t.Parallel()
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

// New waits for nobody, and serves as soon as a majority is there.
func TestNewConnectsInTheBackground(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i := range 3 {
		masters.Kill(i)
	}
	m, err := mux.New(patiently(mux.Config{Masters: masters.Addrs()}))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	op := acquire("k", "t")
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, granted(op))
	require.Zero(t, op.Asked)
	masters.Restart(0)
	masters.Restart(2)
	waitUp(t, m, 2)
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, granted(op))
}
