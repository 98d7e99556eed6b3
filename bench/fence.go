package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Names of what the fence case measures besides, in Sample.Extra. Its operations are those of one
// caller. A share is that of the acquisitions that took a second round to agree on their fence.
const (
	pairTime    = "ns/pair, many goroutines" // the time over the pairs of acquire and release
	passTime    = "ns/hand-over"             // the median, of processes that want one lock
	raisedAlone = "raised/lock, alone"       // nobody contends
	raisedPass  = "raised/lock, contended"   // processes want one lock
	raisedHung  = "raised/lock, after hung"  // a minority hung for a while, and is back
	raisedDead  = "raised/lock, after dead"  // ... died, and is back without its memory
)

const (
	fenceCallers   = 256
	fenceProcesses = 5
	fenceKeys      = 32              // that are locked while a minority is away
	fenceTTL       = 2 * time.Second // of those: a master that has died votes when it has passed
)

// compareFence measures what a fence costs: time, and second rounds.
func compareFence(r *slice) error {
	if err := measure(r); err != nil {
		return err
	}
	many := *r
	many.Goroutines, many.Keys, many.sample = fenceCallers, fenceCallers, newSample()
	if err := measure(&many); err != nil {
		return err
	}
	r.sample.Extra[pairTime] = float64(many.sample.Wall) / float64(max(many.sample.Ops(), 1))
	r.sample.Extra[raisedAlone] = share(fences(r.locker))
	pass := *r
	pass.Processes, pass.Hold, pass.length, pass.sample = fenceProcesses, time.Millisecond, 4*r.length, newSample()
	if err := passRound(&pass); err != nil {
		return err
	}
	r.sample.Extra[passTime] = float64(pass.sample.Quantile(0.50))
	r.sample.Extra[raisedPass] = pass.sample.Extra[raisedPerLock]
	r.sample.addErrors(many.sample, pass.sample)
	if r.contestant.group != groupFence {
		return nil
	}
	back := *r
	back.Keys = fenceKeys
	for fault, name := range map[Fault]string{Hung: raisedHung, Dead: raisedDead} {
		if err := back.afterFault(fault, name); err != nil {
			return fmt.Errorf("a minority that is %s: %w", fault, err)
		}
	}
	return nil
}

// fences returns how many locks the lockers have taken, and how many of these took a second round.
func fences(lockers ...Locker) (acquired, raised uint64) {
	for _, l := range lockers {
		s := l.(redburstLocker).client.Stats()
		acquired, raised = acquired+s.Acquired, raised+s.FenceRaised
	}
	return acquired, raised
}

func share(acquired, raised uint64) float64 { return float64(raised) / float64(max(acquired, 1)) }

// addErrors adds the errors of the parts of a case.
func (s *Sample) addErrors(parts ...*Sample) {
	for _, part := range parts {
		if s.Errors += part.Errors; s.Err == "" {
			s.Err = part.Err
		}
	}
}

// afterFault counts second rounds from the moment on at which a minority of the masters comes
// back. Two clients take locks on the same keys all the time, in turns, so that neither knows all
// the numbers.
func (r *slice) afterFault(fault Fault, name string) (err error) {
	r.fleet.Flush()
	fleet := *r.fleet
	fleet.TTL = fenceTTL
	var lockers [2]Locker
	for i := range lockers {
		if lockers[i], err = r.contestant.Open(&fleet, fenceKeys); err != nil {
			r.sample.Fail(fmt.Errorf("open: %w", err))
			return nil
		}
		defer lockers[i].Close()
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	failed := make([]error, fenceKeys)
	for i := range failed {
		all.Go(func() { failed[i] = takeTurns(r.Key(i), lockers[:], &stop) })
	}
	away := (r.fleet.N - 1) / 2
	time.Sleep(r.length / 4)
	for i := range away {
		r.fleet.Break(i, fault)
	}
	time.Sleep(r.length)
	acquired, raised := fences(lockers[:]...)
	for i := range away {
		err = errors.Join(err, r.fleet.Heal(i, fault))
	}
	for end := time.Now().Add(slack); err == nil && !allUp(lockers[:]); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			err = errors.New("the masters were not back in time")
		}
	}
	time.Sleep(r.length)
	stop.Store(true)
	all.Wait()
	for _, err := range failed {
		if err != nil {
			r.sample.Fail(err)
		}
	}
	nowAcquired, nowRaised := fences(lockers[:]...)
	if nowAcquired == acquired {
		r.sample.Fail(errors.New("no lock was taken after a minority was back"))
	}
	r.sample.Extra[name] = share(nowAcquired-acquired, nowRaised-raised)
	return err
}

// takeTurns takes a lock with one client after the other until it is to stop.
func takeTurns(key string, lockers []Locker, stop *atomic.Bool) error {
	for {
		for _, l := range lockers {
			m, err := l.Mutex(key)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), slack)
			if err = m.Lock(ctx); err == nil {
				m.Unlock(ctx) // which nobody may confirm while masters come and go
			}
			cancel()
			if err != nil || stop.Load() {
				return err
			}
		}
	}
}

// allUp reports whether all masters vote, for each of the lockers.
func allUp(lockers []Locker) bool {
	for _, l := range lockers {
		for _, m := range l.(redburstLocker).client.Stats().Masters {
			if m.Phase != "up" {
				return false
			}
		}
	}
	return true
}

func (r Result) writeFence(b *bytes.Buffer) {
	fmt.Fprintf(b, "The first column is of one caller; \"per pair\" is the time over the pairs of %d goroutines, a key each; "+
		"the hand-over is that between %d processes. Times are the medians of the rounds, and ÷ without compares figures of "+
		"the same round. The other columns are the worst round's share of the acquisitions that took a second round.\n\n"+
		"| contestant | p50 | ÷ without | per pair | ÷ without | hand-over | ÷ without | alone | %d processes | "+
		"a minority hung before | a minority died before | CPU/op | failed |\n"+
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n", fenceCallers, fenceProcesses, fenceProcesses)
	for i, c := range r.Contestants {
		total := r.Total(i)
		fmt.Fprintf(b, "| %s |", c.Name)
		for _, of := range []func(*Sample) float64{r.Case.metric.of, extra(pairTime), extra(passTime)} {
			r.writeAgainst(b, i, of, of)
		}
		for _, name := range []string{raisedAlone, raisedPass, raisedHung, raisedDead} {
			if c.group != groupFence {
				b.WriteString(" — |")
				continue
			}
			fmt.Fprintf(b, " %.3f %% |", 100*total.Extra[name])
		}
		fmt.Fprintf(b, " %s | %s |\n", short(time.Duration(total.Per(float64(total.CPU)))), failedCell(total))
	}
}
