package mux_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A patient listener reads the pushes while nobody else drives. Callers drive themselves: none has to be woken by it.
func TestPatientListenerStepsAside(t *testing.T) {
	t.Parallel()
	f := newFake(t, "m", steady(0))
	var pushes atomic.Int64
	m := open(t, mux.Config{Masters: []string{f.addr()}, OnPush: func(int, resp.Value) { pushes.Add(1) }})
	waitUp(t, m, 1)
	listener := &mux.Op{Patient: true}
	m.Post(listener)
	over := make(chan error, 1)
	go func() { over <- m.Wait(context.Background(), listener) }()
	driven := func() (byItself bool) {
		op := vote("x")
		op.Timeout = patience
		judge := op.Verdict
		op.Verdict = func(v resp.Value) mux.Verdict {
			byItself = m.DrivesLocked(op)
			return judge(v)
		}
		require.NoError(t, m.Do(t.Context(), op))
		return byItself
	}
	for n := range int64(3) {
		eventually(t, "the listener drives", func() bool { return m.Drives(listener) })
		f.send(t, push)
		eventually(t, "it reads a push", func() bool { return pushes.Load() == n+1 })
		m.HoldTick()
		eventually(t, "it has stepped aside", driven)
		for range 10 {
			require.True(t, driven())
			require.False(t, m.Drives(listener))
		}
		m.Tick() // this one may find that operations were under way
		m.HoldTick()
		m.Tick()
	}
	m.Forget(listener)
	require.ErrorIs(t, <-over, mux.ErrForgotten)
}
