package redlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A fuse panics at one of the calls that pass it; below zero calls there is none.
type fuse struct{ calls atomic.Int64 }

func (f *fuse) use() {
	if f.calls.Load() >= 0 && f.calls.Add(-1) == -1 {
		f.calls.Store(-1 << 32)
		panic("the caller's")
	}
}

// A brittle context passes a fuse with each of its methods.
type brittle struct {
	context.Context
	fuse *fuse
}

func (c brittle) Done() <-chan struct{}       { c.fuse.use(); return c.Context.Done() }
func (c brittle) Err() error                  { c.fuse.use(); return c.Context.Err() }
func (c brittle) Value(key any) any           { c.fuse.use(); return c.Context.Value(key) }
func (c brittle) Deadline() (time.Time, bool) { c.fuse.use(); return c.Context.Deadline() }

// everyPanic does something again and again, each time with a panic one call later, until
// there is none, and calls check after each. It returns the number of panics.
func everyPanic(t *testing.T, f *fuse, do func(), check func(panicked bool, at string)) (panics int) {
	t.Helper()
	for calls := int64(0); ; calls++ {
		f.calls.Store(calls)
		panicked := func() (panicked bool) {
			defer func() { panicked = recover() != nil }()
			do()
			return false
		}()
		f.calls.Store(-1)
		check(panicked, fmt.Sprint("call ", calls))
		if !panicked {
			return panics
		}
		panics++
		require.Less(t, calls, int64(1000))
	}
}

// nothingIsLeft requires that nobody is kept from anything by a caller that has panicked.
func nothingIsLeft(t *testing.T, c *Client, at string) {
	t.Helper()
	require.Zero(t, c.localQueues.Size(), at)
	require.Zero(t, c.Stats().Waiting, at)
	require.True(t, c.attempts.TryLock(), at)
	c.attempts.Unlock()
	innocent := c.NewMutex("innocent", ttl)
	require.NoError(t, innocent.TryLock(t.Context()), at)
	require.NoError(t, innocent.Unlock(t.Context()), at)
}
