package redlock

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// What a lock costs by itself, on masters that say yes at once, and what it costs beside real ones: in
// time, and in memory.

// willing says yes to everything at once, and keeps nothing.
type willing struct{ n int }

func (w willing) Post(ops ...*mux.Op) {
	for _, op := range ops {
		if op.Votes == nil {
			op.Votes = make([]mux.Vote, w.n)
		}
		for i := range op.Votes {
			op.Votes[i] = mux.Vote{Verdict: mux.VerdictYes, Int: 1}
		}
		op.Started = clock.Now()
		op.Decided = op.Started + 1
		if op.OnDecided != nil {
			op.OnDecided(nil)
		}
	}
}

func (w willing) Do(_ context.Context, op *mux.Op) error  { w.Post(op); return nil }
func (w willing) Wait(_ context.Context, _ *mux.Op) error { return nil }
func (w willing) Send(*mux.Op)                            {}
func (w willing) Forget(*mux.Op)                          {}
func (w willing) ForgetInHook(*mux.Op)                    {}
func (w willing) Heard(of mux.Sent) (answered, soon, never mux.Set) {
	return of.To, of.To, 0
}
func (w willing) Leading(mux.Set) int  { return 0 }
func (w willing) RTT() time.Duration   { return time.Millisecond }
func (w willing) Masters() []mux.State { return make([]mux.State, w.n) }
func (w willing) AppendMasters(dst []mux.State) []mux.State {
	return append(dst, w.Masters()...)
}
func (w willing) Drain()       {}
func (w willing) Close() error { return nil }

// 30,000 locks that are kept alive are a few hundred bytes each, and no goroutine.
func TestKeptLocksAreSmall(t *testing.T) {
	n := bearable(30_000)
	c := newClient(Config{}, willing{5}, clock.Now)
	defer c.Close()
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	locks := make([]*Mutex, 0, n)
	kept := make([]context.Context, 0, n)
	keys := make([]string, 0, n)
	for i := range n {
		keys = append(keys, fmt.Sprint("orders:", i))
	}
	measure := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines, before := runtime.NumGoroutine(), measure()
	for _, key := range keys {
		m := c.NewMutex(key, time.Hour)
		require.NoError(t, m.TryLock(parent))
		locks = append(locks, m)
	}
	held := measure()
	for _, m := range locks {
		ctx, _ := m.KeepAlive(parent)
		kept = append(kept, ctx)
	}
	after := measure()
	t.Logf("%d bytes for each lock that is held, and %d to keep it alive", int(held-before)/n, int(after-held)/n)
	require.Less(t, int(held-before)/n, 370)
	require.Less(t, int(after-held)/n, 600)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+1)
	require.Equal(t, n, c.Stats().Kept)
	runtime.KeepAlive(kept)
}

// must has a benchmark fail: what does not succeed costs something else.
func must(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}

// What the package itself costs, without masters.
func BenchmarkOverhead(b *testing.B) {
	c := newClient(Config{}, willing{5}, clock.Now)
	defer c.Close()
	ctx := b.Context()
	m := c.NewMutex("orders:42", 10*time.Second)
	b.Run("TryLock+Unlock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must(b, m.TryLock(ctx))
			must(b, m.Unlock(ctx))
		}
	})
	b.Run("Lock+Unlock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must(b, m.Lock(ctx))
			must(b, m.Unlock(ctx))
		}
	})
	b.Run("Extend", func(b *testing.B) {
		b.ReportAllocs()
		must(b, m.TryLock(ctx))
		for b.Loop() {
			must(b, m.Extend(ctx))
		}
		must(b, m.Unlock(ctx))
	})
	b.Run("KeepAlive+Unlock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must(b, m.TryLock(ctx))
			m.KeepAlive(ctx)
			must(b, m.Unlock(ctx))
		}
	})
	b.Run("Err of a kept lock", func(b *testing.B) {
		must(b, m.TryLock(ctx))
		held, stop := m.KeepAlive(ctx)
		defer stop()
		for b.Loop() {
			must(b, held.Err())
		}
	})
}

// The whole, on real masters.
func BenchmarkMasters(b *testing.B) {
	for _, n := range []int{1, 3, 5} {
		masters := redlocktest.Start(b, n)
		c, err := Open(b.Context(), Config{Masters: masters.Addrs()})
		require.NoError(b, err)
		ctx := b.Context()
		m := c.NewMutex("orders:42", time.Minute)
		b.Run(fmt.Sprint("TryLock+Unlock/N=", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must(b, m.TryLock(ctx))
				must(b, m.Unlock(ctx))
			}
		})
		b.Run(fmt.Sprint("Extend/N=", n), func(b *testing.B) {
			b.ReportAllocs()
			must(b, m.TryLock(ctx))
			for b.Loop() {
				must(b, m.Extend(ctx))
			}
			must(b, m.Unlock(ctx))
		})
		c.Close()
	}
}
