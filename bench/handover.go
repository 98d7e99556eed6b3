package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// handOver measures how long a lock takes from the process that releases it
// to the process that waits for it, the heir.
func handOver(r *slice) error {
	heir, err := startChild("heir", heirTask{r.contestant.Name, r.fleet.endpoints})
	if err != nil {
		return err
	}
	defer heir.Close()
	m, err := r.locker.Mutex(r.Key(0))
	if err != nil {
		r.sample.Fail(err)
		return nil
	}
	end := time.Now().Add(r.length)
	ctx, cancel := context.WithDeadline(context.Background(), end.Add(slack))
	defer cancel()
	meter := meter{fleet: r.fleet}
	if err := meter.start(); err != nil {
		return err
	}
	for time.Now().Before(end) {
		if err := m.Lock(ctx); err != nil {
			r.sample.Fail(fmt.Errorf("lock what is to be handed over: %w", err))
			break
		}
		if err := heir.tell("lock"); err != nil {
			return err
		}
		// Long enough that the heir has found the lock taken, and not of one
		// length, or it would beat with the heir's retries.
		time.Sleep(30*time.Millisecond + rand.N(30*time.Millisecond))
		released := clock.Now()
		if err := m.Unlock(ctx); err != nil {
			r.sample.Fail(fmt.Errorf("unlock: %w", err))
		}
		word, err := heir.hear()
		if err != nil {
			return fmt.Errorf("heir: %w", err)
		}
		locked, err := strconv.ParseInt(word, 10, 64)
		switch took := time.Duration(locked) - released; {
		case err != nil:
			r.sample.Fail(fmt.Errorf("heir: %s", word))
		case took < 0:
			r.sample.Fail(fmt.Errorf("heir: had the lock %v before it was released", -took))
		default:
			r.sample.Record(took)
		}
	}
	return meter.stop(r.sample)
}

type heirTask struct {
	Contestant string
	Endpoints  []Endpoint
}

// open returns the lock of a process that takes part.
func (t heirTask) open(n *roundCount) (Mutex, Locker, error) {
	c, err := choose(t.Contestant, Contestants(), contestantName)
	if err != nil {
		return nil, nil, err
	}
	l, err := c[0].Open(&Fleet{N: len(t.Endpoints), endpoints: t.Endpoints, rounds: n}, 1)
	if err != nil {
		return nil, nil, err
	}
	m, err := l.Mutex(Case{Keys: 1}.Key(0))
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return m, l, nil
}

// serveHeir takes the lock whenever it is told to and releases it again. It answers
// with the time at which it had the lock.
func serveHeir(in *bufio.Reader, out io.Writer) error {
	var task heirTask
	if err := readTask(in, &task); err != nil {
		return err
	}
	m, l, err := task.open(nil)
	if err != nil {
		return err
	}
	defer l.Close()
	for {
		if _, err := hear(in); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), slack)
		err := m.Lock(ctx)
		locked := clock.Now()
		if err == nil {
			err = m.Unlock(ctx)
		}
		cancel()
		if err != nil {
			fmt.Fprintf(out, "%q\n", err)
			continue
		}
		fmt.Fprintln(out, int64(locked))
	}
}
