package mux_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

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
					if err := m.Do(context.Background(), acq); err != nil || !granted(acq) {
						b.Error(err, acq.Votes)
					}
					if err := m.Do(context.Background(), rel); err != nil || !granted(rel) {
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
