package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A slice is one contestant's turn in one round of one case. It opens its own
// connections and closes them, so that no contestant's idle clients disturb
// another.
type slice struct {
	Case
	contestant Contestant
	fleet      *Fleet
	locker     Locker
	length     time.Duration
	sample     *Sample
}

// slack is how much longer than its slice an operation may take before its
// context ends, so that a contestant that hangs is reported and not waited for.
const slack = lockTTL

// run measures the slice. What goes wrong with the contestant is in the
// Sample; the error is of the benchmark itself.
func (r *slice) run() (*Sample, error) {
	r.length = max(r.length, r.least)
	r.sample = newSample()
	r.fleet.Flush()
	var err error
	if r.locker, err = r.contestant.Open(r.fleet, r.Goroutines); err != nil {
		r.sample.Fail(fmt.Errorf("open: %w", err))
		return r.sample, nil
	}
	err = r.drive(r)
	if cerr := r.locker.Close(); cerr != nil {
		r.sample.Fail(fmt.Errorf("close: %w", cerr))
	}
	return r.sample, err
}

// mutexes returns one for each goroutine.
func (r *slice) mutexes() ([]Mutex, error) {
	ms := make([]Mutex, r.Goroutines)
	for i := range ms {
		var err error
		if ms[i], err = r.locker.Mutex(r.Key(i)); err != nil {
			return nil, fmt.Errorf("mutex: %w", err)
		}
	}
	return ms, nil
}

// harmless names in Sample.Extra the case's figure in the same turn, before what the case does to the masters.
const harmless = "before"

// measure calls the case's op from every goroutine until the slice is over,
// warmed up first, and takes what it cost. If the case does something to the masters, it is measured before that,
// too.
func measure(r *slice) error {
	op := r.op(r)
	ms, err := r.mutexes()
	if err != nil {
		r.sample.Fail(err)
		return nil
	}
	r.work(ms, newTallies(len(ms)), r.length/4, op)
	tallies := newTallies(len(ms))
	if r.harms() {
		r.work(ms, tallies, r.length, op)
		well := newSample()
		for _, t := range tallies {
			t.into(well)
		}
		r.sample.Extra[harmless] = r.metric.of(well)
		tallies = newTallies(len(ms))
	}
	r.fleet.Break(0, r.Fault)
	if err := r.fleet.Persist(r.Fsync); err != nil {
		return err
	}
	m := meter{fleet: r.fleet, fault: r.Fault}
	if err := m.start(); err != nil {
		return err
	}
	r.work(ms, tallies, r.length, op)
	if err := m.stop(r.sample); err != nil {
		return err
	}
	for _, t := range tallies {
		t.into(r.sample)
	}
	return errors.Join(r.fleet.Heal(0, r.Fault), r.fleet.Forget(r.Fsync))
}

// work calls op from a goroutine for each of the mutexes.
func (r *slice) work(ms []Mutex, tallies []*tally, length time.Duration, op op) {
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for i, m := range ms {
		t := tallies[i]
		t.end = end
		wg.Go(func() {
			// A context for each goroutine, as callers have it: one for all
			// would be a lock between them.
			ctx, cancel := context.WithDeadline(context.Background(), end.Add(slack))
			defer cancel()
			var stop func()
			t.ends, stop = context.WithDeadline(ctx, end)
			defer stop()
			for {
				op(ctx, m, t)
				if !time.Now().Before(end) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// A tally is one goroutine's notes. They are put together afterwards, so that
// taking them costs no lock and next to no time.
type tally struct {
	end  time.Time
	ends context.Context // then; one for all that waits, as it allocates
	took []time.Duration
	errs []error
}

// newTallies has room for more notes than a slice makes, so that taking them
// allocates nothing.
func newTallies(n int) []*tally {
	ts := make([]*tally, n)
	for i := range ts {
		ts[i] = &tally{took: make([]time.Duration, 0, 1<<17/n)}
	}
	return ts
}

func (t *tally) note(took time.Duration, err error) {
	if err != nil {
		t.errs = append(t.errs, err)
		return
	}
	t.took = append(t.took, took)
}

func (t *tally) into(s *Sample) {
	for _, d := range t.took {
		s.Record(d)
	}
	for _, err := range t.errs {
		s.Fail(err)
	}
}

// An op is one operation of a case, noted in t.
type op func(ctx context.Context, m Mutex, t *tally)

// acquire is TryLock and Unlock, together.
func acquire(*slice) op {
	return func(ctx context.Context, m Mutex, t *tally) {
		start := time.Now()
		err := m.TryLock(ctx)
		if err == nil {
			err = m.Unlock(ctx)
		}
		t.note(time.Since(start), err)
	}
}

// contend is Lock where others hold the key. Whoever still waits at the end is
// counted with the time it has waited by then, or the longest waits would not
// show.
func contend(r *slice) op {
	return func(ctx context.Context, m Mutex, t *tally) {
		start := time.Now()
		err := m.Lock(t.ends)
		took := time.Since(start)
		if !time.Now().Before(t.end) && err != nil {
			t.note(took, nil)
			return
		}
		t.note(took, err)
		if err != nil {
			return
		}
		time.Sleep(r.Hold)
		if err := m.Unlock(ctx); err != nil {
			t.errs = append(t.errs, err)
		}
	}
}

// extend is Extend of a lock that is held throughout.
func extend(*slice) op {
	held := false
	return func(ctx context.Context, m Mutex, t *tally) {
		if !held {
			if err := m.TryLock(ctx); err != nil {
				t.note(0, fmt.Errorf("acquire what is to be extended: %w", err))
				return
			}
			held = true
		}
		start := time.Now()
		err := m.Extend(ctx)
		t.note(time.Since(start), err)
		held = err == nil
	}
}
