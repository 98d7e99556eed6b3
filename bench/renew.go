package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Names of what the renewal case measures, in Sample.Extra.
const (
	cores      = "cores"         // of CPU time, in use by this process
	lockBytes  = "B/lock"        // of heap and stacks, the Mutex included
	goroutines = "goroutines"    // that renew
	lost       = "lost"          // locks
	leastLeft  = "least left ms" // of any key's TTL, over a sample of the keys
)

// renew measures what holding many locks costs.
func renew(r *slice) error {
	errs := make(chan error, r.Keys)
	took := make([]time.Duration, r.Keys) // by TryLock, 0 if it failed
	kept := make([]context.Context, r.Keys)
	stops := make([]func(), r.Keys)
	ms := make([]Mutex, r.Keys)
	idle, idleBytes := runtime.NumGoroutine(), inUse()
	for i := range ms {
		var err error
		if ms[i], err = r.locker.Mutex(r.Key(i)); err != nil {
			r.sample.Fail(err)
			return nil
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	var (
		held    sync.WaitGroup // keepers that run
		losses  atomic.Int64
		next    atomic.Int64
		acquire sync.WaitGroup
	)
	for range r.Goroutines {
		acquire.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(ms) {
					return
				}
				start := time.Now()
				if err := ms[i].TryLock(ctx); err != nil {
					errs <- err
					continue
				}
				took[i] = time.Since(start)
				if k, ok := ms[i].(KeepAliver); ok {
					kept[i], stops[i] = k.KeepAlive(ctx)
					continue
				}
				held.Go(func() {
					if keep(ctx, ms[i], r.fleet.ttl()/3) != nil {
						losses.Add(1)
					}
				})
			}
		})
	}
	acquire.Wait()

	m := meter{fleet: r.fleet}
	if err := m.start(); err != nil {
		return err
	}
	r.sample.Extra[goroutines] = float64(runtime.NumGoroutine() - idle)
	r.sample.Extra[lockBytes] = (inUse() - idleBytes) / float64(r.Keys)
	time.Sleep(r.length)
	if err := m.stop(r.sample); err != nil {
		return err
	}
	r.sample.Extra[cores] = r.sample.CPU.Seconds() / r.sample.Wall.Seconds()
	for _, ctx := range kept {
		if ctx != nil && ctx.Err() != nil {
			losses.Add(1)
		}
	}
	r.sample.Extra[lost] = float64(losses.Load())
	least, err := r.leastLeft()
	if err != nil {
		return err
	}
	r.sample.Extra[leastLeft] = least
	cancel()
	held.Wait()
	for _, stop := range stops {
		if stop != nil {
			stop()
		}
	}
	for _, d := range took {
		if d > 0 {
			r.sample.Record(d)
		}
	}
	close(errs)
	for err := range errs {
		r.sample.Fail(err)
	}
	return nil
}

// keep renews a lock until ctx is done or the lock is lost, as users of a
// library without renewal write it.
func keep(ctx context.Context, m Mutex, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if err := m.Extend(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// inUse is the memory that heap objects and stacks take.
func inUse() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// leastLeft returns the shortest time to live that a sample of the keys has
// on any master, in milliseconds, -2 if one is missing.
func (r *slice) leastLeft() (float64, error) {
	least := r.fleet.ttl().Milliseconds()
	for i := range r.fleet.N {
		for k := 0; k < r.Keys; k += max(1, r.Keys/200) {
			v, err := r.fleet.Do(i, "PTTL", r.Key(k))
			if err != nil {
				return 0, fmt.Errorf("time to live on master %d: %w", i, err)
			}
			if n, ok := v.(int64); ok {
				least = min(least, n)
			}
		}
	}
	return float64(least), nil
}
