//go:build !race

package redlock_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The race detector makes sync.Pool forget on purpose: these run without it.

// allocRuns is enough: what each run allocates is seen in a few, and what one of many does in none.
const allocRuns = 50

// allocs is what a run allocates in the steady state: a master that lags behind
// makes the pools grow for a while.
func allocs(f func()) float64 {
	least := testing.AllocsPerRun(allocRuns, f)
	for range 20 {
		if least == 0 {
			break
		}
		least = min(least, testing.AllocsPerRun(allocRuns, f))
	}
	return least
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	_, client := started(t, 5)
	cancellable, cancel := context.WithCancel(t.Context())
	defer cancel()
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	around := client.NewMutex("around", time.Hour)
	must(around.Lock(cancellable))
	held, stop := around.KeepAlive(cancellable)
	defer stop()
	for kind, m := range map[string]*redlock.Mutex{
		"plain":           client.NewMutex("k", 30*time.Second),
		"long":            client.NewMutex(strings.Repeat("k", 512), 30*time.Second),
		"fenced":          client.NewMutex("f", 30*time.Second, redlock.WithFence()),
		"several":         client.NewMutex("s", 30*time.Second, redlock.WithKeys("t", "u")),
		"several, fenced": client.NewMutex("v", 30*time.Second, redlock.WithKeys("w"), redlock.WithFence()),
		"shared":          client.NewMutex("r", 30*time.Second, redlock.WithShared()),
		"shared, fenced":  client.NewMutex("x", 30*time.Second, redlock.WithShared(), redlock.WithFence()),
		"permit":          client.NewMutex("p", 30*time.Second, redlock.WithPermits(4)),
	} {
		for name, ctx := range map[string]context.Context{"background": context.Background(), "cancellable": cancellable, "lock's": held} {
			for what, f := range map[string]func(){
				"TryLock, Unlock": func() { must(m.TryLock(ctx)); must(m.Unlock(ctx)) },
				"Lock, Unlock":    func() { must(m.Lock(ctx)); must(m.Unlock(ctx)) },
				"Lock, Release":   func() { must(m.Lock(ctx)); must(m.Release()) },
				"Extend":          func() { must(m.TryLock(ctx)); must(m.Extend(ctx)); must(m.Extend(ctx)); must(m.Unlock(ctx)) },
			} {
				require.Zero(t, allocs(f), "%s, %s, with a %s context", kind, what, name)
			}
		}
	}
}

// Nor if several Observers are told of it, one of which would log it at a level that is disabled.
func TestObserversAllocateNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	var rounds atomic.Int64
	logger := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelWarn}))
	observer := redlock.SlogObserver(logger)
	client := openOn(t, masters, append(onEvent(redlock.EventRound, func(e *redlock.Event) {
		if redlock.Outcome(e.Err) == "ok" {
			rounds.Add(1)
		}
	}), observer, observer))
	ctx := context.Background()
	m := client.NewMutex("k", 30*time.Second)
	require.Zero(t, allocs(func() {
		if m.TryLock(ctx) != nil || m.Unlock(ctx) != nil {
			t.Error("it is free")
		}
	}))
	require.Eventually(t, func() bool { return rounds.Load() >= 2*allocRuns }, busy, time.Millisecond)
	require.NoError(t, m.TryLock(ctx))
	other := client.NewMutex("k", 30*time.Second)
	outcome := 0
	require.LessOrEqual(t, allocs(func() { outcome += len(redlock.Outcome(other.TryLock(ctx))) }), 2.0)

	e := redlock.Event{Kind: redlock.EventWaited, Key: "k", Err: other.TryLock(ctx)}
	up := redlock.Event{Kind: redlock.EventMaster, Master: &redlock.MasterStats{Addr: "a", Phase: "up"}}
	require.Zero(t, allocs(func() {
		observer(ctx, &e)
		observer(ctx, &up)
	}))
}

func TestRefusalAllocatesLittle(t *testing.T) {
	_, client := started(t, 5)
	ctx := context.Background()
	require.NoError(t, client.NewMutex("k", time.Hour).TryLock(ctx))
	m := client.NewMutex("k", time.Hour)
	var err error
	require.LessOrEqual(t, allocs(func() { err = m.TryLock(ctx) }), 2.0)
	require.ErrorIs(t, err, redlock.ErrHeld)
	require.Zero(t, testing.AllocsPerRun(500, func() {
		if e, ok := err.(*redlock.RoundError); !ok || !e.Is(redlock.ErrHeld) {
			t.Error(err)
		}
	}))
}

// A Lock that others contend for allocates nothing either, but for the error of an attempt that was
// refused. (A context that can end costs three more when its waiter reads for all: that is
// context.AfterFunc.)
func TestAContendedLockAllocatesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it empties the pools
	for kind, of := range map[string]struct {
		clients int
		opts    func(key string) []redlock.Option
	}{
		"plain":             {1, func(string) []redlock.Option { return nil }},
		"fenced":            {1, func(string) []redlock.Option { return []redlock.Option{redlock.WithFence()} }},
		"several":           {1, func(key string) []redlock.Option { return []redlock.Option{redlock.WithKeys(key+"t", key+"u")} }},
		"permits":           {1, func(string) []redlock.Option { return []redlock.Option{redlock.WithPermits(4)} }},
		"between processes": {3, func(string) []redlock.Option { return nil }},
	} {
		for name, most := range map[string]float64{"background": 0.1, "cancellable": 3} {
			mostBytes := 64 * most
			if of.clients > 1 { // a master that answers late keeps what is in use, so the pools grow for longer, and errors tell of it
				most, mostBytes = max(most, 0.5), max(mostBytes, 128)
			}
			t.Run(kind+", with a "+name+" context", func(t *testing.T) {
				var clients []*redlock.Client
				for range of.clients {
					clients = append(clients, openOn(t, masters, nil))
				}
				held := func() (n uint64) {
					for _, client := range clients {
						n += client.Stats().Held
					}
					return n
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if name == "background" {
					ctx = context.Background()
				}
				var locked atomic.Int64
				// contend has so many contenders take the locks of so many keys, until stop is called.
				contend := func(n, keys int) (stop func()) {
					var over atomic.Bool
					var contenders sync.WaitGroup
					for i := range n {
						key := fmt.Sprint(kind, i%keys)
						m := clients[i%of.clients].NewMutex(key, 30*time.Second, of.opts(key)...)
						contenders.Go(func() {
							for !over.Load() {
								if err := m.Lock(ctx); err != nil {
									t.Error(err)
									return
								}
								locked.Add(1)
								time.Sleep(time.Millisecond) // the work
								if err := m.Unlock(ctx); err != nil {
									t.Error(err)
								}
							}
						})
					}
					return func() {
						over.Store(true)
						contenders.Wait()
					}
				}
				taken := func(n int64) {
					for first := locked.Load(); locked.Load() < first+n && !t.Failed(); {
						time.Sleep(time.Millisecond) // between two looks; require.Eventually would allocate
					}
				}
				// The pools grow to what is in use at once, and that is more at times on a busy machine. So more than
				// is measured fills them first.
				stop := contend(256, 32)
				taken(1000)
				stop()
				defer contend(64, 8)()
				locks := func(n int64) (allocs, bytes float64) {
					var before, after runtime.MemStats
					refused := held()
					runtime.ReadMemStats(&before)
					first := locked.Load()
					taken(n)
					n = locked.Load() - first
					runtime.ReadMemStats(&after)
					refused = held() - refused
					per := func(total, refusal uint64) float64 {
						return (float64(total) - float64(refusal*refused)) / float64(n)
					}
					return per(after.Mallocs-before.Mallocs, 2), per(after.TotalAlloc-before.TotalAlloc, 512)
				}
				allocs, bytes := locks(500)
				for tries := 0; (allocs > most || bytes > mostBytes) && tries < 50; tries++ { // some grow later
					a, b := locks(200)
					allocs, bytes = min(allocs, a), min(bytes, b)
				}
				require.LessOrEqual(t, allocs, most)
				require.LessOrEqual(t, bytes, mostBytes)
			})
		}
	}
}

// Nor does a lock while a master hangs, be it that the master owes more and more replies, or that
// its connection was reset and the releases are kept for it.
func TestAHungMasterAllocatesNothing(t *testing.T) {
	ctx := context.Background()
	for kind, opts := range map[string][]redlock.Option{
		"plain":           nil,
		"fenced":          {redlock.WithFence()},
		"several, fenced": {redlock.WithKeys("t", "u"), redlock.WithFence()},
	} {
		t.Run(kind, func(t *testing.T) {
			masters := redlocktest.Start(t, 5)
			client := openWith(t, masters, redlock.Config{StallTime: time.Second})
			m := client.NewMutex("k", 30*time.Second, opts...)
			pair := func() {
				if err := m.TryLock(ctx); err != nil {
					t.Error(err)
				}
				if err := m.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
			require.Zero(t, allocs(pair))
			masters.Pause(4)
			require.Zero(t, testing.AllocsPerRun(500, pair), "it owes replies")
			require.Eventually(t, func() bool {
				pair()
				return client.Stats().Masters[4].Phase == "stalled"
			}, time.Minute, 5*time.Millisecond)
			require.Zero(t, testing.AllocsPerRun(500, pair), "its connection was reset")
			require.GreaterOrEqual(t, client.Stats().Masters[4].Debts, 500)
			masters.Resume(4)
		})
	}
}
