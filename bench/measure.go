package main

import (
	"runtime"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Sample is what one contestant did in one case, in one round or in all.
type Sample struct {
	Latency *hdrhistogram.Histogram // of the operations that succeeded, in nanoseconds
	Errors  int64
	Err     string // the first error

	Wall     time.Duration
	CPU      time.Duration // of this process, user and system
	Allocs   uint64
	Bytes    uint64
	Commands int64
	Reads    int64

	Extra map[string]float64 // of the case alone, by name
}

func newSample() *Sample {
	return &Sample{
		// To three digits, which is a fixed relative error of 0.1 %.
		Latency: hdrhistogram.New(1, int64(2*time.Minute), 3),
		Extra:   map[string]float64{},
	}
}

// Record adds the latency of an operation that succeeded.
func (s *Sample) Record(d time.Duration) {
	// The range ends where no case goes; a latency beyond counts as its end.
	if s.Latency.RecordValue(int64(d)) != nil {
		s.Latency.RecordValue(s.Latency.HighestTrackableValue())
	}
}

// Fail adds an operation that failed.
func (s *Sample) Fail(err error) {
	if s.Errors++; s.Err == "" {
		s.Err = err.Error()
	}
}

// Merge adds t to s.
func (s *Sample) Merge(t *Sample) {
	s.Latency.Merge(t.Latency)
	s.Errors += t.Errors
	if s.Err == "" {
		s.Err = t.Err
	}
	s.Wall += t.Wall
	s.CPU += t.CPU
	s.Allocs += t.Allocs
	s.Bytes += t.Bytes
	s.Commands += t.Commands
	s.Reads += t.Reads
	for k, v := range t.Extra {
		if was, ok := s.Extra[k]; ok {
			v = worse(k, was, v)
		}
		s.Extra[k] = v
	}
}

// worse is the worse of two rounds' figures.
func worse(extra string, v, w float64) float64 {
	if extra == leastLeft || extra == leastTurns || extra == medianTurns {
		return min(v, w)
	}
	return max(v, w)
}

// Ops is the number of operations that succeeded.
func (s *Sample) Ops() int64 { return s.Latency.TotalCount() }

// Quantile returns the latency that a share q of the operations kept within.
func (s *Sample) Quantile(q float64) time.Duration {
	return time.Duration(s.Latency.ValueAtQuantile(100 * q))
}

// Mean returns the mean latency.
func (s *Sample) Mean() time.Duration { return time.Duration(s.Latency.Mean()) }

// Per returns total per operation, failed ones included: they cost as well.
func (s *Sample) Per(total float64) float64 {
	if n := s.Ops() + s.Errors; n > 0 {
		return total / float64(n)
	}
	return 0
}

// Throughput returns operations in a second.
func (s *Sample) Throughput() float64 {
	if s.Wall <= 0 {
		return 0
	}
	return float64(s.Ops()) / s.Wall.Seconds()
}

// A meter takes what an operation costs this process and the masters.
type meter struct {
	fleet   *Fleet
	fault   Fault
	traffic Traffic
	cpu     time.Duration
	mem     runtime.MemStats
	at      time.Time
}

// start begins to measure. The collection beforehand gives every contestant
// the same clean heap.
func (m *meter) start() (err error) {
	if m.traffic, _, err = m.fleet.Traffic(m.fault); err != nil {
		return err
	}
	runtime.GC()
	runtime.ReadMemStats(&m.mem)
	m.cpu = cpuTime()
	m.at = time.Now()
	return nil
}

// stop adds what was spent since start to s.
func (m *meter) stop(s *Sample) error {
	s.Wall += time.Since(m.at)
	s.CPU += cpuTime() - m.cpu
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	s.Allocs += mem.Mallocs - m.mem.Mallocs
	s.Bytes += mem.TotalAlloc - m.mem.TotalAlloc
	now, asked, err := m.fleet.Traffic(m.fault)
	if err != nil {
		return err
	}
	spent := now.since(m.traffic, asked)
	s.Commands += spent.Commands
	s.Reads += spent.Reads
	return nil
}

// cpuTime is what this process has spent on all its threads.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
