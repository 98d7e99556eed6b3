package flight

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func BenchmarkRound(b *testing.B) {
	for name, file := range map[string]string{"memory": "", "file": b.TempDir() + "/record"} {
		rec := newRecorder(b, Options{File: file})
		cfg, err := rec.Attach(redlock.Config{})
		require.NoError(b, err)
		r := redlock.Event{Kind: redlock.EventRound, Op: record.OpLock, Key: "orders:42", Took: 100 * time.Microsecond, Votes: make([]redlock.Vote, 5)}
		*behind.OfEvent(&r) = behind.Event{TTL: ttl, Validity: ttl, Started: clock.Now()}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				cfg.Observers[0](context.Background(), &r)
			}
		})
	}
}

// A pair of TryLock and Unlock of clients that differ only in what is recorded, in turns. What is reported is the ratio of
// the medians to that of a client that is not recorded. "control" is a second client that is not recorded: what it differs by
// is the error of the measurement. The clients are opened in an order by chance, as it makes a difference: run it often.
func BenchmarkPair(b *testing.B) {
	for _, n := range []int{1, 5} {
		b.Run(fmt.Sprint("masters=", n), func(b *testing.B) {
			masters := redlocktest.Start(b, n)
			arms := []string{"none", "control", "observed", "memory", "file"}
			mutexes, took := make([]*redlock.Mutex, len(arms)), make([][]time.Duration, len(arms))
			for _, i := range rand.Perm(len(arms)) {
				arm, cfg := arms[i], redlock.Config{Masters: masters.Addrs()}
				var opt *Options
				switch arm {
				case "observed":
					cfg.Observers = []redlock.Observer{func(context.Context, *redlock.Event) {}}
				case "memory":
					opt = new(Options)
				case "file":
					opt = &Options{File: b.TempDir() + "/record"}
				}
				if opt != nil {
					var err error
					cfg, err = newRecorder(b, *opt).Attach(cfg)
					require.NoError(b, err)
				}
				mutexes[i] = opened(b, cfg).NewMutex(fmt.Sprint("k", i), ttl)
			}
			for b.Loop() {
				for _, i := range rand.Perm(len(arms)) {
					m := mutexes[i]
					began := clock.Now()
					if m.TryLock(b.Context()) != nil || m.Unlock(b.Context()) != nil {
						b.Fatal("no lock")
					}
					took[i] = append(took[i], clock.Now()-began)
				}
			}
			median := func(i int) float64 {
				slices.Sort(took[i])
				return float64(took[i][len(took[i])/2])
			}
			for i, arm := range arms[1:] {
				b.ReportMetric(median(i+1)/median(0), arm)
			}
			b.ReportMetric(median(0)/1000, "µs/pair")
		})
	}
}
