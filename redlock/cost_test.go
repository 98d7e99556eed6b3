package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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
		info := redlock.Says(b, masters, i, "INFO", "cpu")
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

// What distance costs: the median time of a lock with its release, by the round trip to the masters and the kind of the
// lock. Of three masters "10,10,50" has one that is farther away, and "0,50,50" one that is near.
func BenchmarkDistance(b *testing.B) {
	const ms = time.Millisecond
	kinds := []struct {
		name    string
		release bool
		opts    []redlock.Option
	}{
		{name: "Unlock"}, {"Release", true, nil}, {"fence", false, []redlock.Option{redlock.WithFence()}},
		{"two keys", false, []redlock.Option{redlock.WithKeys("other")}}, {"reader", false, []redlock.Option{redlock.WithShared()}},
		{"permit", false, []redlock.Option{redlock.WithPermits(4)}},
	}
	for _, trips := range [][]time.Duration{{0, 0, 0}, {ms, ms, ms}, {10 * ms, 10 * ms, 10 * ms}, {50 * ms, 50 * ms, 50 * ms}, {10 * ms, 10 * ms, 50 * ms}, {0, 50 * ms, 50 * ms}} {
		masters := redlocktest.Start(b, len(trips), redlocktest.WithLinks())
		c := openOn(b, masters, nil)
		var name []string
		for i, trip := range trips {
			masters.Delay(i, trip/2)
			name = append(name, strconv.FormatInt(trip.Milliseconds(), 10))
		}
		for _, kind := range kinds {
			b.Run(strings.Join(name, ",")+"/"+kind.name, func(b *testing.B) {
				m := c.NewMutex("k", time.Minute, kind.opts...)
				took := make([]float64, 0, b.N)
				for b.Loop() {
					start := time.Now()
					require.NoError(b, m.TryLock(b.Context()))
					if kind.release {
						require.NoError(b, m.Release())
					} else {
						require.NoError(b, m.Unlock(b.Context()))
					}
					took = append(took, float64(time.Since(start)))
				}
				b.ReportMetric(median(took)/1e6, "ms")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// What the masters remember, in bytes of one master for each lock. Give it a fixed number of locks, of which there are many:
// -benchtime 20000x. Of a few locks, the buffers of the connections would be the most.
func BenchmarkMasterMemory(b *testing.B) {
	for name, opts := range map[string][]redlock.Option{
		"lock":       nil,
		"two keys":   nil,
		"reader":     {redlock.WithShared()},
		"permit":     {redlock.WithPermits(4)},
		"fenced":     {redlock.WithFence()},
		"fence":      {redlock.WithFence()}, // what is left of it
		"kept alive": nil,
		"waiter":     nil,
	} {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			masters := redlocktest.Start(b, 3)
			holder, other := openOn(b, masters, nil), openOn(b, masters, nil)
			before := masterMemory(b, masters, holder)
			ctx, stop := context.WithCancel(context.Background())
			var waiters sync.WaitGroup
			defer waiters.Wait()
			defer stop()
			for i := range b.N {
				key, opts := fmt.Sprintf("lock:orders:%07d", i), opts
				if name == "two keys" {
					opts = []redlock.Option{redlock.WithKeys(key + "b")}
				}
				m := holder.NewMutex(key, time.Hour, opts...)
				require.NoError(b, m.TryLock(ctx))
				switch name {
				case "fence":
					require.NoError(b, m.Unlock(ctx))
				case "kept alive":
					m.KeepAlive(ctx)
				case "waiter":
					waiters.Go(func() { _ = other.NewMutex(key, time.Hour).Lock(ctx) })
				}
			}
			notified := 0 // of how many keys each master will notify
			if name == "kept alive" || name == "waiter" {
				notified = b.N
			}
			require.Eventually(b, func() bool {
				for i := range masters.N() {
					if told(b, masters, i, "stats", "tracking_total_keys") < notified {
						return false
					}
				}
				return true
			}, 5*time.Minute, time.Second)
			used := masterMemory(b, masters, holder) - before
			b.ReportMetric(float64(used)/float64(b.N*masters.N()), "master-B/op")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// masterMemory is the memory that the masters use, all together, when they have answered the client.
func masterMemory(b *testing.B, masters *redlocktest.Masters, c *redlock.Client) (bytes int) {
	b.Helper()
	settled(b, c)
	for i := range masters.N() {
		bytes += told(b, masters, i, "memory", "used_memory")
	}
	return bytes
}

// told is a number in a section of INFO.
func told(b *testing.B, masters *redlocktest.Masters, i int, section, name string) int {
	b.Helper()
	_, rest, _ := strings.Cut(redlock.Says(b, masters, i, "INFO", section).(string), "\n"+name+":")
	number, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(number)
	require.NoError(b, err)
	return n
}
