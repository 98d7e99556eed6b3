package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// The names in Sample.Extra of what passRound measures. Per lock means per acquisition,
// of all processes together.
const (
	kept            = "kept"              // the share of acquisitions that followed one of the same process
	attemptsPerLock = "attempts/lock"     // those included that asked one master only
	roundsPerLock   = "rounds/lock"       // attempts that asked more than one master
	commandsPerLock = "commands/lock"     // that the masters executed, for taking, waiting and releasing
	cpuPerLock      = "CPU ns/lock"       // of all processes, without the masters
	leastTurns      = "least turns"       // of a process
	medianTurns     = "median turns"      // of the processes
	mostTurns       = "most turns"        // of a process
	longestWait     = "longest wait ms"   // of any process
	overlaps        = "overlapping holds" // of two processes at the same time
	raisedPerLock   = "raised/lock"       // second rounds for a fence
)

// passRound measures how a lock passes between processes, each of which wants it again
// as soon as it has released it.
func passRound(r *slice) (err error) {
	var runners []*child
	defer func() {
		for _, c := range runners {
			err = errors.Join(err, c.Close())
		}
	}()
	task := runnerTask{heirTask{r.contestant.Name, r.fleet.endpoints}, r.Hold}
	for range r.Processes {
		c, err := startChild("runner", task)
		if err != nil {
			return err
		}
		runners = append(runners, c)
	}
	for _, c := range runners {
		if word, err := c.hear(); err != nil || word != "ready" {
			return fmt.Errorf("runner: %q, %w", word, err)
		}
	}
	before, _, err := r.fleet.Traffic(Healthy)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, c := range runners {
		if err := c.tell("go"); err != nil {
			return err
		}
	}
	time.Sleep(r.length)
	for _, c := range runners {
		if err := c.tell("stop"); err != nil {
			return err
		}
	}
	runs := make([]run, len(runners))
	for i, c := range runners {
		word, err := c.hear()
		if err != nil {
			return fmt.Errorf("runner: %w", err)
		}
		if err := json.Unmarshal([]byte(word), &runs[i]); err != nil {
			return fmt.Errorf("runner: %w", err)
		}
	}
	r.sample.Wall = time.Since(began)
	after, asked, err := r.fleet.Traffic(Healthy)
	if err != nil {
		return err
	}
	spent := after.since(before, asked)
	r.sample.Commands, r.sample.Reads = spent.Commands, spent.Reads
	r.sample.addRuns(runs)
	return nil
}

// A turn is one process's hold of the lock.
type turn struct {
	Locked, Released time.Duration // Lock returned, Unlock was called
	runner           int
}

// A run is what one process did.
type run struct {
	Turns            []turn
	Longest          time.Duration // wait in Lock, ended or not
	Attempts, Rounds int64
	Raised           uint64 // second rounds for a fence
	CPU              time.Duration
	Errors           []string
}

// addRuns adds what the runners of one slice did.
func (s *Sample) addRuns(runs []run) {
	var all []turn
	var counts []int
	var longest time.Duration
	var attempts, rounds int64
	var raised uint64
	for i, run := range runs {
		for _, t := range run.Turns {
			t.runner = i
			all = append(all, t)
		}
		counts = append(counts, len(run.Turns))
		longest = max(longest, run.Longest)
		attempts += run.Attempts
		rounds += run.Rounds
		raised += run.Raised
		s.CPU += run.CPU
		for _, e := range run.Errors {
			s.Fail(errors.New(e))
		}
	}
	slices.SortFunc(all, func(a, b turn) int { return int(a.Locked - b.Locked) })
	again, both := 0, 0
	for i := 1; i < len(all); i++ {
		switch last, t := all[i-1], all[i]; {
		case t.Locked < last.Released:
			both++
			s.Fail(fmt.Errorf("a process had the lock %v before another released it", last.Released-t.Locked))
		case t.runner == last.runner:
			again++
		default:
			s.Record(t.Locked - last.Released)
		}
	}
	slices.Sort(counts)
	s.Extra[leastTurns] = float64(counts[0])
	s.Extra[medianTurns] = float64(counts[len(counts)/2])
	s.Extra[mostTurns] = float64(counts[len(counts)-1])
	s.Extra[longestWait] = float64(longest.Microseconds()) / 1000
	s.Extra[overlaps] = float64(both)
	if n := float64(len(all)); n > 0 {
		s.Extra[kept] = float64(again) / n
		s.Extra[attemptsPerLock] = float64(attempts) / n
		s.Extra[roundsPerLock] = float64(rounds) / n
		s.Extra[commandsPerLock] = float64(s.Commands) / n
		s.Extra[cpuPerLock] = float64(s.CPU) / n
		s.Extra[raisedPerLock] = float64(raised) / n
	}
}

type runnerTask struct {
	heirTask
	Hold time.Duration
}

// serveRunner locks, holds and unlocks from the word go to the word stop.
func serveRunner(in *bufio.Reader, out io.Writer) error {
	var task runnerTask
	if err := readTask(in, &task); err != nil {
		return err
	}
	counted := new(roundCount)
	m, l, err := task.open(counted)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(out, "ready")
	if _, err := hear(in); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		hear(in) // also its end
		cancel()
	}()
	var r run
	cpu := cpuTime()
	for ctx.Err() == nil {
		asked := clock.Now()
		err := m.Lock(ctx)
		t := turn{Locked: clock.Now()}
		r.Longest = max(r.Longest, t.Locked-asked)
		if err != nil && ctx.Err() != nil {
			break
		} else if err != nil {
			r.Errors = append(r.Errors, err.Error())
			continue
		}
		time.Sleep(task.Hold)
		t.Released = clock.Now()
		r.Turns = append(r.Turns, t)
		if err := m.Unlock(context.WithoutCancel(ctx)); err != nil {
			r.Errors = append(r.Errors, err.Error())
		}
	}
	r.CPU = cpuTime() - cpu
	r.Attempts, r.Rounds = counted.attempts.Load(), counted.rounds.Load()
	if l, ok := l.(redburstLocker); ok {
		_, r.Raised = fences(l)
	}
	return json.NewEncoder(out).Encode(r)
}

// A roundCount counts what redburst does to take locks.
type roundCount struct{ attempts, rounds atomic.Int64 }

func (n *roundCount) told(_ context.Context, e *redlock.Event) {
	if e.Kind != redlock.EventRound || e.Op != "lock" || len(e.Votes) == 0 {
		return
	}
	n.attempts.Add(1)
	if len(e.Votes) > 1 {
		n.rounds.Add(1)
	}
}
