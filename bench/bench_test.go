package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if playRole() {
		return
	}
	os.Exit(m.Run())
}

// The benchmarks measure the cases of the program one contestant after the
// other, for benchstat: go test -bench Acquire -count 10 | benchstat -col /lib -
// What takes two processes or holds ten thousand locks is left to the program. With
// -short they only show that they work.

func BenchmarkAcquire(b *testing.B) {
	benchmarkCases(b, masterKey, "serial", "N=1")
}

func BenchmarkGoroutines(b *testing.B) {
	benchmarkCases(b, nameKey, "goroutines=4", "goroutines=32", "goroutines=256")
}

func BenchmarkContended(b *testing.B) {
	benchmarkCases(b, masterKey, "contended", "contended-N=1")
}

func BenchmarkFence(b *testing.B) {
	benchmarkCases(b, nameKey, "fence-hot=64", "fence-hot=1024")
}

func BenchmarkFault(b *testing.B) {
	benchmarkCases(b, faultKey, string(Hung), string(Dead))
}

func BenchmarkMasters(b *testing.B) {
	benchmarkCases(b, nameKey, "N=1", "N=3", "N=7")
}

func BenchmarkTransport(b *testing.B) {
	benchmarkCases(b, transportKey, string(Unix), string(TLS))
}

func BenchmarkCluster(b *testing.B) {
	benchmarkCases(b, masterKey, "cluster", "cluster-N=3")
}

func BenchmarkDistance(b *testing.B) {
	benchmarkCases(b, nameKey, "delay=1ms", "delay=10ms", "delay=50ms")
}

func BenchmarkExtend(b *testing.B) {
	benchmarkCases(b, masterKey, "extend")
}

// These name the cases of a benchmark in the form that benchstat reads.
func nameKey(k Case) string      { return k.Name }
func masterKey(k Case) string    { return fmt.Sprintf("N=%d", k.N) }
func faultKey(k Case) string     { return fmt.Sprintf("fault=%s", k.Fault) }
func transportKey(k Case) string { return fmt.Sprintf("transport=%s", k.Transport) }

// benchmarkCases runs a sub-benchmark for each contestant in each of the cases.
func benchmarkCases(b *testing.B, key func(k Case) string, names ...string) {
	for _, name := range names {
		ks, err := choose(name, Cases(), caseName)
		require.NoError(b, err)
		k := ks[0]
		start := sync.OnceValues(func() (*Fleet, error) { return StartFleet(k) })
		for _, c := range Contestants() {
			if !c.Takes(k) {
				continue
			}
			b.Run(fmt.Sprintf("lib=%s/%s", c.Name, key(k)), func(b *testing.B) {
				f, err := start()
				require.NoError(b, err)
				benchmarkContestant(b, k, c, f)
			})
		}
		if f, err := start(); err == nil {
			require.NoError(b, f.Close())
		}
	}
}

func benchmarkContestant(b *testing.B, k Case, c Contestant, f *Fleet) {
	f.Flush()
	l, err := c.Open(f, k.Goroutines)
	require.NoError(b, err)
	defer l.Close()
	r := slice{Case: k, contestant: c, fleet: f, locker: l}
	ms, err := r.mutexes()
	require.NoError(b, err)
	op := r.op(&r)
	warmUp := 50 * time.Millisecond
	if testing.Short() {
		warmUp = 0 // each goroutine once
	}
	r.work(ms, newTallies(len(ms)), warmUp, op)
	tallies := newTallies(len(ms))
	f.Break(0, k.Fault)
	defer f.Heal(0, k.Fault)

	sample, m := newSample(), meter{fleet: f, fault: k.Fault}
	require.NoError(b, m.start())
	b.ReportAllocs()
	var next atomic.Int64
	b.SetParallelism((k.Goroutines + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	body := func(more func() bool) {
		i := int(next.Add(1)-1) % len(ms)
		m, t := ms[i], tallies[i]
		t.end = time.Now().Add(slack)
		var stop func()
		t.ends, stop = context.WithDeadline(context.Background(), t.end)
		defer stop()
		for more() {
			op(context.Background(), m, t)
		}
	}
	if k.Goroutines == 1 {
		n := 0
		body(func() bool { n++; return n <= b.N })
	} else {
		b.RunParallel(func(pb *testing.PB) { body(pb.Next) })
	}
	b.StopTimer()
	require.NoError(b, m.stop(sample))
	for _, t := range tallies {
		t.into(sample)
	}
	b.ReportMetric(float64(sample.Quantile(0.50)), "p50-ns")
	b.ReportMetric(float64(sample.Quantile(0.99)), "p99-ns")
	b.ReportMetric(sample.Per(float64(sample.CPU)), "cpu-ns/op")
	b.ReportMetric(sample.Per(float64(sample.Commands)), "cmds/op")
	if sample.Errors > 0 {
		b.ReportMetric(sample.Per(float64(sample.Errors)), "failed/op")
		b.Logf("failed first: %s", sample.Err)
	}
}
