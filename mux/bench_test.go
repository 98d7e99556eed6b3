package mux_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// BenchmarkPair is an acquire and a release at five masters, each returning at
// a majority, on keys of their own.
func BenchmarkPair(b *testing.B) {
	masters := redlocktest.Start(b, 5)
	for _, callers := range []int{1, 4, 32, 256} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			m := open(b, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Scripts: []string{releaseScript}}})
			waitUp(b, m, 5)
			var id atomic.Int64
			b.ReportAllocs()
			b.SetParallelism((callers + 1) / 2)
			before := cpu()
			b.ResetTimer()
			pair := func(next func() bool) {
				key := fmt.Sprint("bench", id.Add(1))
				acq, rel := acquire(key, "token"), release(key, "token")
				rel.Command = releaseSHA(key, "token")
				for next() {
					if err := m.Do(context.Background(), acq); err != nil || !acq.Won() {
						b.Error(err, acq.Votes)
					}
					if err := m.Do(context.Background(), rel); err != nil || !rel.Won() {
						b.Error(err, rel.Votes)
					}
				}
			}
			if callers == 1 {
				pair(b.Loop)
			} else {
				b.RunParallel(func(pb *testing.PB) { pair(pb.Next) })
			}
			b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

func TestSteadyPathAllocatesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Scripts: []string{releaseScript}}})
	waitUp(t, m, 5)
	acq, rel := acquire("k", "t"), release("k", "t")
	rel.Command = releaseSHA("k", "t")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pair := func() {
		if err := m.Do(ctx, acq); err != nil || !acq.Won() {
			t.Error(err, acq.Votes)
		}
		if err := m.Do(ctx, rel); err != nil || !rel.Won() {
			t.Error(err, rel.Votes)
		}
	}
	// A busy machine makes operations long, and long ones may allocate, to see the
	// end of their context: one series of short ones is the proof.
	allocs := testing.AllocsPerRun(500, pair)
	for tries := 0; allocs > 0 && tries < 50; tries++ {
		allocs = testing.AllocsPerRun(50, pair)
	}
	require.Zero(t, allocs)
}
