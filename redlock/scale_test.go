package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Much of everything: Mutexes, locks, waiters, clients, masters. Nothing is left, and nothing grows.

// How much of everything there is: make scale sets it. Otherwise there is a twentieth, and half of
// that where the race detector watches.
var atFullScale = os.Getenv("REDLOCK_SCALE") == "full"

func scaled(n int) int {
	switch {
	case atFullScale:
		return n
	case redlock.Raced:
		return n / 40
	}
	return n / 20
}

// A footprint is what the process uses.
type footprint struct {
	heap       int // bytes that are in use after a collection
	stacks     int
	rss        int // of all that it has; 0 where there is no /proc
	goroutines int
	files      int
}

func measure() footprint {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools have kept until now
	runtime.ReadMemStats(&m)
	f := footprint{heap: int(m.HeapAlloc), stacks: int(m.StackInuse), goroutines: runtime.NumGoroutine(), files: openFiles()}
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		fmt.Sscan(strings.Fields(string(statm))[1], &f.rss)
		f.rss *= os.Getpagesize()
	}
	return f
}

// logs says what n things of a kind have cost.
func (f footprint) logs(t *testing.T, began time.Time, before footprint, n int, what string) {
	t.Logf("%-40s %6.1fs  heap %6.1f MB (%+d B each)  stacks %+d B each  rss %d MB  %+d goroutines  %+d descriptors", what, time.Since(began).Seconds(),
		float64(f.heap)/1e6, (f.heap-before.heap)/n, (f.stacks-before.stacks)/n, f.rss>>20, f.goroutines-before.goroutines, f.files-before.files)
}

// patient is for rounds that may take long, as there are so many.
var patient = redlock.Config{RoundTimeout: time.Minute, DialTimeout: time.Minute, StallTime: time.Minute}

func openPatiently(t *testing.T, masters *redlocktest.Masters) *redlock.Client {
	t.Helper()
	return openWith(t, masters, patient)
}

// inTurn calls f with 0 to n-1, from a few goroutines.
func inTurn(n int, f func(i int)) {
	var all sync.WaitGroup
	for first := range 64 {
		all.Go(func() {
			for i := first; i < n; i += 64 {
				f(i)
			}
		})
	}
	all.Wait()
}

// comesBack waits until there are no more goroutines and descriptors than before.
func comesBack(t *testing.T, before footprint) (now footprint) {
	t.Helper()
	// It asks now and then, and returns what is left in the end.
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if now = measure(); now.goroutines <= before.goroutines && now.files <= before.files {
			return now
		}
	}
	require.Fail(t, "goroutines or descriptors are left", "%+v, and before: %+v", now, before)
	return now
}

// nothingGrows runs n things of a kind, three times or more. They leave no goroutine and no descriptor,
// and sooner or later no memory: in one of two rounds less than the least that can be kept of each.
func nothingGrows(t *testing.T, n int, what string, run func(round int, peak func(string))) {
	t.Helper()
	start := measure()
	var after [rounds]footprint
	kept := 0
	for round := range after {
		before, began := measure(), time.Now()
		run(round, func(name string) { measure().logs(t, began, before, n, name) })
		after[round] = comesBack(t, start)
		after[round].logs(t, began, before, n, what+", over")
		// What grows without end grows each time. The first round also fills what is used again: pools,
		// maps, the runtime's records of goroutines. Buffers grow whenever more is in them than ever before.
		if round < 2 {
			continue
		}
		kept = min(after[round].heap-after[round-1].heap, after[round-1].heap-after[round-2].heap)
		if kept < slack+n*leastKept {
			return
		}
	}
	require.Fail(t, "memory grows", "by %d B for each", kept/n)
}

// rounds is enough for buffers to have their size: a waiter's first burst is as large as chance has it.
const rounds = 10

const (
	leastKept = 48      // bytes: an entry of a map has more
	slack     = 1 << 19 // of the runtime, of what is being sent, and of pools
)

func TestScaleMutexes(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	c := openPatiently(t, masters)
	n := scaled(1_000_000)
	nothingGrows(t, n, "Mutexes", func(round int, peak func(string)) {
		all := make([]*redlock.Mutex, n)
		for i := range all {
			all[i] = c.NewMutex("k"+strconv.Itoa(round)+"-"+strconv.Itoa(i), time.Minute)
		}
		peak("made")
		inTurn(n/100, func(i int) {
			ctx := context.Background()
			m := all[i*100]
			if err := m.TryLock(ctx); err != nil {
				t.Error(err)
			}
			if err := m.Unlock(ctx); err != nil {
				t.Error(err)
			}
		})
		peak("one of a hundred used")
		runtime.KeepAlive(all)
	})
}

func TestScaleKeys(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	c := openPatiently(t, masters)
	n := scaled(100_000)
	nothingGrows(t, n, "locks", func(round int, peak func(string)) {
		all := make([]*redlock.Mutex, n)
		stops := make([]context.CancelFunc, n)
		inTurn(n, func(i int) {
			all[i] = c.NewMutex("k"+strconv.Itoa(round)+"-"+strconv.Itoa(i), 10*time.Minute)
			if err := all[i].TryLock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		peak("held")
		for i, m := range all {
			_, stops[i] = m.KeepAlive(t.Context())
		}
		peak("kept alive")
		require.Equal(t, n, c.Stats().Kept)
		require.GreaterOrEqual(t, keysOn(t, masters), 3*n, "each lock is on a majority")
		inTurn(n, func(i int) {
			stops[i]()
			if err := all[i].Unlock(context.Background()); err != nil {
				t.Error(err)
			}
		})
		peak("released")
		require.Zero(t, c.Stats().Kept)
		require.Eventually(t, func() bool { return keysOn(t, masters) == 0 }, time.Minute, 10*time.Millisecond)
		runtime.KeepAlive(all)
	})
}

// keysOn counts the keys on all masters.
func keysOn(t *testing.T, masters *redlocktest.Masters) (n int) {
	for i := range masters.N() {
		size, err := masters.Do(i, "EVAL", lockKeys, "0")
		if err != nil {
			t.Error(err)
			return -1
		}
		n += int(size.(int64))
	}
	return n
}

func TestScaleWaiters(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	n := scaled(10_000)
	for _, keys := range []int{1, n / 10, n} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			holder, c := openPatiently(t, masters), openPatiently(t, masters)
			nothingGrows(t, n, "waiters", func(round int, peak func(string)) {
				key := func(i int) string { return fmt.Sprint("k", round, "-", i%keys) }
				held := make([]*redlock.Mutex, keys)
				inTurn(keys, func(i int) {
					held[i] = holder.NewMutex(key(i), 10*time.Minute)
					if err := held[i].TryLock(t.Context()); err != nil {
						t.Error(err)
					}
				})
				var all sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				got, cancelled := make(chan struct{}, n), make(chan struct{}, n)
				for i := range n {
					all.Go(func() {
						m := c.NewMutex(key(i), 10*time.Minute)
						if m.Lock(ctx) != nil {
							cancelled <- struct{}{}
							return
						}
						got <- struct{}{}
						if err := m.Unlock(context.Background()); err != nil {
							t.Error(err)
						}
					})
				}
				require.Eventually(t, func() bool { return c.Stats().Waiting == n }, time.Minute, 5*time.Millisecond)
				peak("waiting")
				if round == 1 { // nobody gets it
					cancel()
					all.Wait()
					require.Len(t, cancelled, n)
				}
				inTurn(keys, func(i int) {
					if err := held[i].Unlock(context.Background()); err != nil {
						t.Error(err)
					}
				})
				all.Wait()
				require.Equal(t, n, len(got)+len(cancelled))
				require.Zero(t, c.Stats().Waiting)
			})
		})
	}
}

func TestScaleClients(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	n := scaled(1000)
	nothingGrows(t, n, "clients", func(round int, peak func(string)) {
		all := make([]*redlock.Client, n)
		inTurn(n, func(i int) {
			cfg := patient
			cfg.Masters = masters.Addrs()
			c, err := redlock.Open(t.Context(), cfg)
			if err != nil {
				t.Error(err)
				return
			}
			all[i] = c
		})
		require.False(t, t.Failed())
		peak("open")
		inTurn(n, func(i int) {
			m := all[i].NewMutex("k"+strconv.Itoa(i%(n/2)), time.Minute)
			if err := m.Lock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := m.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		peak("used")
		inTurn(n, func(i int) { all[i].Close() })
	})
}

// All kinds of rounds work with as many masters as there can be, while as many as may fail are
// frozen, for many keys at once.
func TestScaleMasters(t *testing.T) {
	most := 12 // so many servers start soon
	if atFullScale {
		most = 64
	}
	masters := redlocktest.Start(t, most)
	for _, name := range []string{"all up", "a minority frozen"} {
		t.Run(name, func(t *testing.T) {
			c := openPatiently(t, masters)
			if name != "all up" {
				for i := range most/2 - 1 {
					masters.Pause(i)
					defer masters.Resume(i)
				}
			}
			n := scaled(2000)
			for kind, opts := range map[string][]redlock.Option{
				"plain": nil, "fenced": {redlock.WithFence()}, "several": {redlock.WithKeys("another")}, "shared": {redlock.WithShared()},
				"permits": {redlock.WithPermits(2)},
			} {
				m := c.NewMutex(kind, time.Minute, opts...)
				require.NoError(t, m.TryLock(t.Context()), kind)
				require.NoError(t, m.Extend(t.Context()), kind)
				require.NoError(t, m.Unlock(t.Context()), kind)
			}
			all := make([]*redlock.Mutex, n)
			steps := []struct {
				what string
				do   func(m *redlock.Mutex) error
			}{
				{"lock", func(m *redlock.Mutex) error { return m.Lock(t.Context()) }},
				{"held", func(m *redlock.Mutex) error {
					if err := c.NewMutex(m.Key(), time.Minute).TryLock(t.Context()); !errors.Is(err, redlock.ErrHeld) {
						return fmt.Errorf("not held, but %w", err)
					}
					return nil
				}},
				{"extend", func(m *redlock.Mutex) error { return m.Extend(t.Context()) }},
				{"release", func(m *redlock.Mutex) error { return m.Unlock(t.Context()) }},
			}
			for i := range all {
				all[i] = c.NewMutex(fmt.Sprint("k", i), time.Minute)
			}
			for _, s := range steps {
				began := time.Now()
				inTurn(n, func(i int) {
					if err := s.do(all[i]); err != nil {
						t.Errorf("%s: %v", s.what, err)
					}
				})
				t.Logf("%s: %v each", s.what, time.Since(began)/time.Duration(n))
			}
		})
	}
}
