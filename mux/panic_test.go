package mux_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
)

// A brittle context panics at one of the calls of its methods.
type brittle struct {
	context.Context
	calls atomic.Int64 // that go well
}

func (c *brittle) use() {
	if c.calls.Add(-1) == -1 {
		panic("the caller's context")
	}
}

func (c *brittle) Done() <-chan struct{} { c.use(); return c.Context.Done() }
func (c *brittle) Err() error            { c.use(); return c.Context.Err() }
func (c *brittle) Value(key any) any     { c.use(); return c.Context.Value(key) }

// A caller whose context panics, and who recovers, is in nobody's way, and may use its
// operation again. Who drives, and waits for long, has the context call it when it ends.
func TestPanicOfAContextLeavesTheMuxUsable(t *testing.T) {
	answer := make(chan struct{})
	free := sync.OnceFunc(func() { close(answer) })
	f := newFake(t, "slow", func() script {
		return func(args []string) (string, bool) {
			if args[1] == "slow" {
				<-answer
			}
			return ":1\r\n", true
		}
	})
	t.Cleanup(free)
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}}))
	require.NoError(t, err)
	op := vote("slow")
	op.Timeout = 100 * time.Millisecond // long enough for a driver to have looked 16 times
	for name, use := range map[string]func(ctx context.Context) error{
		"Do":   func(ctx context.Context) error { return m.Do(ctx, op) },
		"Wait": func(ctx context.Context) error { m.Post(op); return m.Wait(ctx, op) },
	} {
		panics := 0
		for calls := int64(0); ; calls++ {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(50*time.Millisecond, cancel)
			c := &brittle{Context: ctx}
			c.calls.Store(calls)
			var panicked any
			used := make(chan error, 1)
			go func() {
				defer func() {
					if p := recover(); p != nil {
						panicked = p
						used <- mux.ErrForgotten
					}
				}()
				used <- use(c)
			}()
			require.Error(t, conntest.Soon(t, fmt.Sprint(name, " ends after a panic in call ", calls), used))
			cancel()
			decided := make(chan error, 1)
			go func() { decided <- m.Do(context.Background(), &mux.Op{Timeout: time.Nanosecond}) }()
			require.ErrorIs(t, conntest.Soon(t, fmt.Sprint(name, ": the next one is served after a panic in call ", calls), decided), mux.ErrTimeout)
			if panicked == nil {
				break
			}
			panics++
		}
		require.GreaterOrEqual(t, panics, 4, "%s: nobody has waited for the context", name)
	}
	free()
	require.NoError(t, m.Do(context.Background(), vote("last")))
	require.NoError(t, m.Close())
}

func TestNilContextLeavesTheOpUsable(t *testing.T) {
	var none context.Context
	f := newFake(t, "steady", steady(0))
	m := open(t, mux.Config{Masters: []string{f.addr()}})
	op := vote("a")
	require.Panics(t, func() { m.Do(none, op) })
	m.Post(op)
	require.Panics(t, func() { m.Wait(none, op) })
	require.NoError(t, m.Do(context.Background(), op))
	require.Panics(t, func() { mux.Open(none, mux.Config{Masters: []string{f.addr()}}) })
}
