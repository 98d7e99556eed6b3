package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// What locks cost the masters: processor time for a pair, and what the options add.

// masterCPU is the processor time that the masters have used, all together, as Redis tells.
func masterCPU(b *testing.B, masters *redlocktest.Masters) (d time.Duration) {
	b.Helper()
	for i := range masters.N() {
		info, err := masters.Do(i, "INFO", "cpu")
		require.NoError(b, err)
		for line := range strings.Lines(info.(string)) {
			for _, part := range []string{"used_cpu_user:", "used_cpu_sys:"} {
				if rest, ok := strings.CutPrefix(line, part); ok {
					s, err := time.ParseDuration(strings.TrimSpace(rest) + "s")
					require.NoError(b, err)
					d += s
				}
			}
		}
	}
	return d
}

// pairs makes n pairs of TryLock and Unlock, from a goroutine for each of the Mutexes. It returns
// how long each took.
func pairs(b *testing.B, ms []*redlock.Mutex, n int) []time.Duration {
	ctx := context.Background()
	took := make([]time.Duration, n)
	var all sync.WaitGroup
	for i, m := range ms {
		all.Go(func() {
			for at := i; at < n; at += len(ms) {
				start := time.Now()
				if m.TryLock(ctx) != nil || m.Unlock(ctx) != nil {
					b.Error("a round failed")
				}
				took[at] = time.Since(start)
			}
		})
	}
	all.Wait()
	return took
}

// mutexes returns one for each caller, on a key each.
func mutexes(c *redlock.Client, callers int, key string, opts ...redlock.Option) []*redlock.Mutex {
	ms := make([]*redlock.Mutex, callers)
	for i := range ms {
		ms[i] = c.NewMutex(fmt.Sprint(key, i), time.Minute, opts...)
	}
	return ms
}

// What a pair of TryLock and Unlock costs the masters.
func BenchmarkServerCPU(b *testing.B) {
	native := nativeRelease(b)
	for _, callers := range []int{1, 256} {
		for name, args := range map[string][]string{"native": nil, "scripts": {"--rename-command", native, ""}} {
			masters := redlocktest.Start(b, 5, redlocktest.WithArgs(args...))
			c := openOn(b, masters, nil)
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				before := masterCPU(b, masters)
				pairs(b, mutexes(c, callers, "k"), b.N)
				b.ReportMetric(float64((masterCPU(b, masters)-before).Nanoseconds())/float64(b.N)/5, "master-ns/op")
			})
		}
	}
}

// What a fence costs: ratios of a pair with it to one without, the medians of ten blocks. Both take
// turns, block by block, so a noisy moment hits both alike.
func BenchmarkFence(b *testing.B) { compare(b, redlock.WithFence()) }

// A permit below capacity: each caller has a key of its own, and a Mutex that it uses again.
func BenchmarkPermit(b *testing.B) { compare(b, redlock.WithPermits(4)) }

// compare takes and releases locks with an option and without, in turns.
func compare(b *testing.B, opt redlock.Option) {
	const blocks = 10
	for _, callers := range []int{1, 256} {
		masters := redlocktest.Start(b, 5)
		c := openOn(b, masters, nil)
		without, with := mutexes(c, callers, "k"), mutexes(c, callers, "f", opt)
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			var p50, perPair, cpu [2][]float64
			n := max(b.N/(2*blocks), callers)
			for i := range 2 * blocks {
				kind := (i + i/2) % 2 // not always in the same order
				ms := [...][]*redlock.Mutex{without, with}[kind]
				used, start := masterCPU(b, masters), time.Now()
				took := pairs(b, ms, n)
				wall := time.Since(start)
				slices.Sort(took)
				p50[kind] = append(p50[kind], float64(took[n/2]))
				perPair[kind] = append(perPair[kind], float64(wall)/float64(n))
				cpu[kind] = append(cpu[kind], float64(masterCPU(b, masters)-used)/float64(n)/float64(masters.N()))
			}
			report := func(name string, v [2][]float64) {
				ratios := make([]float64, blocks)
				for i := range ratios {
					ratios[i] = v[1][i] / v[0][i]
				}
				b.ReportMetric(median(ratios), name+"-ratio")
				b.ReportMetric(median(v[0]), name+"-ns")
			}
			report("p50", p50)
			report("pair", perPair)
			report("master", cpu)
			b.ReportMetric(0, "ns/op")
			require.Zero(b, c.Stats().FenceRaised)
		})
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
