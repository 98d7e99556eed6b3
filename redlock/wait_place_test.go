package redlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A Lock that has run out of time says where it stood, and who held the lock.
func TestLockThatTimesOutSaysItsPlace(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openWith(t, masters, redlock.Config{Owner: "reports@web-3"})
	take(t, c, "k")
	done := make(chan error)
	cancelled, cancel := context.WithCancel(t.Context())
	defer cancel()
	late := &deadline{Context: t.Context(), done: make(chan struct{})}
	for i, ctx := range []context.Context{cancelled, late, cancelled} {
		w := openWith(t, masters, redlock.Config{Owner: fmt.Sprint("w", i)})
		go func() { done <- w.NewMutex("k", time.Minute).Lock(ctx) }()
		require.Eventually(t, func() bool { return listedOne(t, c, "k").Waiting == i+1 }, time.Minute, 5*time.Millisecond)
	}
	close(late.done)
	last := <-done
	var e *redlock.RoundError
	require.ErrorAs(t, last, &e)
	require.ErrorIs(t, last, redlock.ErrHeld)
	require.Equal(t, "reports@web-3", e.HeldBy)
	require.Contains(t, last.Error(), "; held by reports@web-3 on 3 of 3 masters")
	require.Contains(t, last.Error(), "; number 2 of 3 in line")
	require.Eventually(t, func() bool { return listedOne(t, c, "k").Waiting == 2 }, time.Minute, 5*time.Millisecond, "it has left the line")
	cancel()
	for range 2 {
		last = <-done
		require.ErrorIs(t, last, context.Canceled)
		require.NotContains(t, last.Error(), "in line", "it was cancelled")
	}
}

// deadline is a context whose deadline passes when it is told.
type deadline struct {
	context.Context
	done chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.done }

func (d *deadline) Err() error {
	select {
	case <-d.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestLockBehindOthersOfItsProcessSaysSo(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	other := openWith(t, masters, redlock.Config{})
	take(t, other, "k")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for i := range 2 {
		go func() { done <- c.NewMutex("k", time.Minute).Lock(ctx) }()
		require.Eventually(t, func() bool { return c.Stats().Waiting == i+1 }, time.Minute, time.Millisecond)
	}
	last := &deadline{Context: t.Context(), done: make(chan struct{})}
	go func() { done <- c.NewMutex("k", time.Minute).Lock(last) }()
	require.Eventually(t, func() bool { return c.Stats().Waiting == 3 }, time.Minute, time.Millisecond)
	close(last.done)
	err := <-done
	require.NotContains(t, err.Error(), "in line")
	require.Contains(t, err.Error(), "; 2 of this process were ahead of it")
	cancel()
	<-done
	<-done
}
