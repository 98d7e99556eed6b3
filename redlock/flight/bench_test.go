package flight

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func BenchmarkRound(b *testing.B) {
	for name, file := range map[string]string{"memory": "", "file": b.TempDir() + "/record"} {
		rec := newRecorder(b, Options{File: file})
		cfg, err := rec.Attach(redlock.Config{})
		require.NoError(b, err)
		r := redlock.Round{Op: redlock.OpLock, Key: "orders:42", Took: 100 * time.Microsecond, Votes: make([]redlock.Vote, 5), TTL: ttl, Validity: ttl, Started: clock.Now()}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				cfg.Observer.Round(context.Background(), r)
			}
		})
	}
}

// A pair of TryLock and Unlock with and without a Recorder, in turns: what is reported is the ratio of the medians of both.
func BenchmarkPair(b *testing.B) {
	for _, n := range []int{1, 5} {
		b.Run(fmt.Sprint("masters=", n), func(b *testing.B) {
			masters := redlocktest.Start(b, n)
			var mutexes [2]*redlock.Mutex
			var took [2][]time.Duration
			for i, size := range []int{minSize, defaultSize} {
				rec := newRecorder(b, Options{Size: size})
				c := recorded(b, rec, redlock.Config{Masters: masters.Addrs()})
				if i == 0 { // the one beside it is not recorded
					var err error
					c, err = redlock.Open(b.Context(), redlock.Config{Masters: masters.Addrs()})
					require.NoError(b, err)
					defer c.Close()
				}
				mutexes[i] = c.NewMutex(fmt.Sprint("k", i), ttl)
			}
			for n := 0; b.Loop(); n++ {
				for i := range mutexes {
					i ^= n & 1 // each is the first as often
					m := mutexes[i]
					began := clock.Now()
					if m.TryLock(b.Context()) != nil || m.Unlock(b.Context()) != nil {
						b.Fatal("no lock")
					}
					took[i] = append(took[i], clock.Now()-began)
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			median := func(i int) float64 { return float64(took[i][len(took[i])/2]) }
			b.ReportMetric(median(1)/median(0), "recorded/not")
			b.ReportMetric(median(0)/1000, "µs/pair")
		})
	}
}
