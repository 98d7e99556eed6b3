package main

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// Names of what the waiting case measures besides, in Sample.Extra.
const inIO = "goroutines in I/O"

// What stands for the other holder of all keys: one command per master.
const (
	holdAll = `for i = 0, ARGV[1] - 1 do redis.call('SET', 'bench:{' .. i .. '}', 'another', 'PX', 600000) end`
	freeAll = `for i = 0, ARGV[1] - 1 do redis.call('DEL', 'bench:{' .. i .. '}') end`
)

// await measures what it costs to wait for keys that another holds, and, as
// the operation, how long after their release each of them is had.
func await(r *slice) error {
	if err := r.fleet.everywhere("EVAL", holdAll, "0", fmt.Sprint(r.Keys)); err != nil {
		return err
	}
	idle, idleBytes := runtime.NumGoroutine(), inUse()
	ms, err := r.mutexes()
	if err != nil {
		r.sample.Fail(err)
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var waiting sync.WaitGroup
	locked := make([]time.Duration, len(ms))
	errs := make([]error, len(ms))
	for i, m := range ms {
		waiting.Go(func() {
			errs[i] = m.Lock(ctx)
			locked[i] = clock.Now()
		})
	}
	time.Sleep(min(r.length, time.Second)) // until all have looked
	meter := meter{fleet: r.fleet}
	if err := meter.start(); err != nil {
		return err
	}
	r.sample.Extra[goroutines] = float64(runtime.NumGoroutine() - idle)
	r.sample.Extra[lockBytes] = (inUse() - idleBytes) / float64(len(ms))
	time.Sleep(r.length / 2)
	r.sample.Extra[inIO] = float64(goroutinesInIO())
	time.Sleep(r.length / 2)
	if err := meter.stop(r.sample); err != nil {
		return err
	}
	r.sample.Extra[cores] = r.sample.CPU.Seconds() / r.sample.Wall.Seconds()
	released := clock.Now()
	if err := r.fleet.everywhere("EVAL", freeAll, "0", fmt.Sprint(r.Keys)); err != nil {
		return err
	}
	stop := time.AfterFunc(slack, cancel)
	waiting.Wait()
	stop.Stop()
	for i, err := range errs {
		switch took := locked[i] - released; {
		case err != nil:
			r.sample.Fail(err)
		case took < 0:
			r.sample.Fail(fmt.Errorf("had a lock that another held"))
		default:
			r.sample.Record(took)
		}
	}
	return nil
}

// goroutinesInIO is the number of goroutines that wait for a descriptor in the
// runtime's poller. Those in system calls wait for the masters' processes.
func goroutinesInIO() int {
	buf := make([]byte, 16<<20)
	n := 0
	for stack := range bytes.SplitSeq(buf[:runtime.Stack(buf, true)], []byte("\n\n")) {
		head, _, _ := strings.Cut(string(stack), "\n")
		if strings.Contains(head, "[IO wait") {
			n++
		}
	}
	return n
}
