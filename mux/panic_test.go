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
	"github.com/redburst/redburst/resp"
)

// A brittle context panics at one of the calls of its methods.
type brittle struct {
	context.Context
	calls   atomic.Int64  // that go well
	settled chan struct{} // told when it is about to be called back at its end: it is asked for nothing more before that; nil for nobody
}

func (c *brittle) use() {
	if c.calls.Add(-1) == -1 {
		panic("the caller's context")
	}
}

func (c *brittle) Done() <-chan struct{} { c.use(); return c.Context.Done() }
func (c *brittle) Err() error            { c.use(); return c.Context.Err() }
func (c *brittle) Value(key any) any     { c.use(); settle(c.settled); return c.Context.Value(key) }

func settle(settled chan struct{}) {
	select {
	case settled <- struct{}{}:
	default:
	}
}

// A caller whose context panics, and who recovers, is in nobody's way and may use its
// operation again. A driver that waits for long uses its context once more, to be called
// when it ends.
func TestPanicOfAContextLeavesTheMuxUsable(t *testing.T) {
	t.Parallel()
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
	for name, use := range map[string]func(ctx context.Context) error{
		"Do":   func(ctx context.Context) error { return m.Do(ctx, op) },
		"Wait": func(ctx context.Context) error { m.Post(op); return m.Wait(ctx, op) },
	} {
		// Long enough for a driver to look 16 times, which takes longer on a busy machine.
		for long := 50 * time.Millisecond; ; long *= 2 {
			op.Timeout = 2 * long
			panics := 0
			for calls := int64(0); panicsAt(t, m, name, use, long, calls); calls++ {
				panics++
			}
			if panics >= 4 {
				break
			}
			require.Less(t, long, 10*time.Second, "%s: nobody has waited for the context", name)
		}
	}
	free()
	require.NoError(t, m.Do(context.Background(), vote("last")))
	require.NoError(t, m.Close())
}

// panicsAt uses a context that panics after so many calls, and that ends after a time. It
// reports whether the context has panicked, and requires that the Mux is usable either way.
func panicsAt(t *testing.T, m *mux.Mux, name string, use func(context.Context) error, long time.Duration, calls int64) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
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
	decided := make(chan error, 1)
	go func() { decided <- m.Do(context.Background(), &mux.Op{Timeout: time.Nanosecond}) }()
	require.ErrorIs(t, conntest.Soon(t, fmt.Sprint(name, ": the next one is served after a panic in call ", calls), decided), mux.ErrTimeout)
	return panicked != nil
}

// A listener that steps aside for a caller uses its context once more, when it has put the drive down already.
func TestPanicOfAListenersContextLeavesTheMuxUsable(t *testing.T) {
	t.Parallel()
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{newFake(t, "steady", steady(0)).addr()}}))
	require.NoError(t, err)
	op := &mux.Op{Patient: true}
	for calls, panics := int64(0), 0; ; calls++ {
		ctx, cancel := context.WithCancel(t.Context())
		c := &brittle{Context: ctx, settled: make(chan struct{}, 1)}
		c.calls.Store(calls)
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			m.Do(c, op)
		}()
		serve := func() {
			decided := make(chan error, 1)
			go func() { decided <- m.Do(context.Background(), vote("a")) }()
			require.NoError(t, conntest.Soon(t, fmt.Sprint("the next one is served after a panic in call ", calls), decided))
		}
		for range 20 {
			serve()
		}
		// It drives only when nobody else does.
		eventually(t, "it has panicked, or is to be called back", func() bool { return len(ended) > 0 || len(c.settled) > 0 })
		serve()
		cancel()
		if <-ended == nil {
			require.GreaterOrEqual(t, panics, 4)
			break
		}
		panics++
		done, cancel := context.WithCancel(t.Context())
		cancel()
		require.NotPanics(t, func() { require.Error(t, m.Do(done, op)) }, "after a panic in call %d", calls)
	}
	require.NoError(t, m.Close())
}

// A stuck context blocks at one of the calls of its methods.
type stuck struct {
	context.Context
	calls        atomic.Int64 // that go well
	blocks, goOn chan struct{}
	settled      chan struct{} // see brittle
}

func (c *stuck) use() {
	if c.calls.Add(-1) == -1 {
		close(c.blocks)
		<-c.goOn
	}
}

func (c *stuck) Done() <-chan struct{} { c.use(); return c.Context.Done() }
func (c *stuck) Value(key any) any     { c.use(); settle(c.settled); return c.Context.Value(key) }

// A context that blocks keeps its own caller waiting, and nobody else: neither that of a caller that drives for long, nor that
// of a listener.
func TestAContextThatBlocksIsInNobodysWay(t *testing.T) {
	t.Parallel()
	silent := func() script { return func([]string) (string, bool) { return "", true } }
	m := open(t, patiently(mux.Config{Masters: []string{newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(1)).addr(), newFake(t, "c", silent).addr()}}))
	waitUp(t, m, 3)
	slow := vote("slow")
	slow.Quorum = 3
	for name, op := range map[string]*mux.Op{"a listener": {Patient: true}, "who only waits": {}, "a long operation": slow} {
		op.Timeout = time.Hour
		blocked := 0
		for calls := int64(0); ; calls++ {
			ctx, cancel := context.WithCancel(t.Context())
			c := &stuck{Context: ctx, blocks: make(chan struct{}), goOn: make(chan struct{}), settled: make(chan struct{}, 1)}
			c.calls.Store(calls)
			goOn := sync.OnceFunc(func() { close(c.goOn) })
			t.Cleanup(goOn)
			ended := make(chan error, 1)
			go func() { ended <- m.Do(c, op) }()
			is := false
			select {
			case <-c.blocks:
				is = true
			case <-c.settled:
			case <-time.After(time.Minute):
				require.Fail(t, "its context is to call back", "%s: after %d calls", name, calls)
			}
			if is {
				blocked++
				for range 3 {
					served := make(chan error, 1)
					go func() { served <- m.Do(context.Background(), vote("a")) }()
					require.NoError(t, conntest.Soon(t, fmt.Sprint(name, ": the next one is served while call ", calls, " blocks"), served))
				}
			}
			cancel()
			goOn()
			conntest.Soon(t, "it ends with its context", ended)
			if !is {
				break
			}
		}
		require.GreaterOrEqual(t, blocked, 3, name)
	}
}

func TestNilContextLeavesTheOpUsable(t *testing.T) {
	t.Parallel()
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

// A panic of a hook, which runs on the goroutine of whoever drives, does not leave the Mux locked.
func TestPanicOfAHookLeavesTheMuxUsable(t *testing.T) {
	t.Parallel()
	f := newFake(t, "pushing", func() script {
		return func([]string) (string, bool) { return ">1\r\n+hello\r\n:1\r\n", true }
	})
	var pushed atomic.Bool
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}, OnPush: func(int, resp.Value) {
		if !pushed.Swap(true) {
			panic("hook")
		}
	}}))
	require.NoError(t, err)
	func() {
		defer func() { recover() }()
		m.Do(context.Background(), vote("a"))
	}()
	decided := make(chan error, 1)
	go func() { decided <- m.Do(context.Background(), vote("b")) }()
	conntest.Soon(t, "the next operation is decided", decided)
	m.Close()
}

// A hook that panics for a new connection fails the dial, and nothing else.
func TestPanicOfAHookFailsTheDial(t *testing.T) {
	t.Parallel()
	addrs := []string{newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(1)).addr(), newFake(t, "c", steady(2)).addr()}
	for name, cfg := range map[string]mux.Config{
		"Keeper": {Keeper: keeps(func(i int, _, _ conn.Server) (time.Duration, string) {
			if i == 2 {
				panic("the user's")
			}
			return 0, ""
		})},
		"Standing": {Keeper: &brittleKeeper{keeper: votesAtOnce(), panics: "Standing", of: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Masters = addrs
			m := open(t, cfg)
			eventually(t, "it is said", func() bool {
				err := m.Masters()[2].Err
				return err != nil && strings.Contains(err.Error(), "the user's")
			})
			require.Equal(t, mux.Up, m.Masters()[0].Phase)
		})
	}
}

// A brittleKeeper panics in one of its methods, for one of the masters if that is asked for a master.
type brittleKeeper struct {
	*keeper
	mu     sync.Mutex
	panics string // the method
	of     int
}

func (k *brittleKeeper) breaks(method string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.panics = method
}

func (k *brittleKeeper) use(method string, of int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.panics == method && k.of == of {
		panic("the user's")
	}
}

func (k *brittleKeeper) News() bool {
	k.use("News", k.of)
	return k.keeper.News()
}

func (k *brittleKeeper) Standing(i int) mux.Standing {
	k.use("Standing", i)
	return k.keeper.Standing(i)
}

func (k *brittleKeeper) Answered(i int, v resp.Value, at time.Duration) {
	k.use("Answered", i)
	k.keeper.Answered(i, v, at)
}

// A Keeper that panics has not said how far a master is believed. So the connection ends that it was asked for, or each if it was
// asked for all. Whoever drives then goes on.
func TestPanicOfAKeeperEndsTheConnection(t *testing.T) {
	t.Parallel()
	for method, ended := range map[string][]int{"News": {0, 1}, "Standing": {1}, "Answered": {1}} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			pushing := func() script { // which has the Keeper asked for news
				return func([]string) (string, bool) { return ">1\r\n+hello\r\n:1\r\n", true }
			}
			k := &brittleKeeper{keeper: votesAtOnce(), of: 1}
			var told [2]atomic.Bool
			m, err := mux.Open(t.Context(), patiently(mux.Config{Keeper: k,
				Masters: []string{newFake(t, "a", pushing).addr(), newFake(t, "b", pushing).addr()},
				OnState: func(i int, s mux.State) {
					if s.Phase == mux.Down && strings.Contains(s.Err.Error(), "the user's") {
						told[i].Store(true)
					}
				}}))
			require.NoError(t, err)
			waitUp(t, m, 2)
			do := func(op *mux.Op) (panicked any) {
				done := make(chan any, 1)
				go func() {
					defer func() { done <- recover() }()
					m.Do(context.Background(), op)
				}()
				return conntest.Soon(t, "the operation is decided", done)
			}
			all := func() *mux.Op { op := vote("a"); op.All = true; return op }
			k.keeper.mu.Lock() // it is asked for when a master is
			k.stands[1], k.news = mux.Standing{Ask: resp.AppendCommand(nil, "GET", "k"), Replies: 1}, true
			k.keeper.mu.Unlock()
			k.breaks(method)
			require.Nil(t, do(all()))
			for _, i := range ended {
				eventually(t, "its connection ends", told[i].Load)
			}
			k.breaks("")
			waitUp(t, m, 2)
			op := all()
			require.Nil(t, do(op))
			require.Equal(t, []mux.Verdict{mux.VerdictYes, mux.VerdictYes}, verdicts(op))
			s := m.Masters()
			require.Equal(t, len(ended) == 1, s[0].Connects == 1, "the other is not asked for")
			require.NoError(t, m.Close())
		})
	}
}
