package main

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

// releasing are redburst and the floor where Unlock waits for no master, and the floor where it does: a ratio of the floor's two is
// the least that ours can have.
func releasing() []Contestant {
	without := func(open func(*Fleet, int) (Locker, error)) func(*Fleet, int) (Locker, error) {
		return func(f *Fleet, goroutines int) (Locker, error) {
			l, err := open(f, goroutines)
			return releasingLocker{l}, err
		}
	}
	park := openFloor(waitEpoll)
	return []Contestant{
		{Name: ours + "-release", waits: true, quick: true, group: groupRelease, Open: without(openRedburst())},
		{Name: floor + "-unlock", plain: true, serial: true, quick: true, group: groupRelease, Open: park},
		{Name: floor + "-release", plain: true, serial: true, quick: true, group: groupRelease, Open: without(park)},
	}
}

type releasingLocker struct{ Locker }

func (l releasingLocker) Mutex(key string) (Mutex, error) {
	m, err := l.Locker.Mutex(key)
	if err != nil {
		return nil, err
	}
	return releasingMutex{m.(releaser)}, nil
}

// A releaser can release its lock without waiting for a master.
type releaser interface {
	Mutex
	Release() error
}

type releasingMutex struct{ releaser }

func (m releasingMutex) Unlock(context.Context) error { return m.Release() }

// writeBeside writes the table of a group that is measured beside redburst as it is.
func (r Result) writeBeside(b *bytes.Buffer) {
	b.WriteString("÷ redburst compares figures of the same round.\n\n" +
		"| contestant | p50 | ÷ redburst | mean | ÷ redburst | p99 | CPU/op | allocs/op | commands/op | master reads/op | failed |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for i, c := range r.Contestants {
		s := r.Total(i)
		fmt.Fprintf(b, "| %s |", c.Name)
		for _, m := range []metric{p50, mean} {
			r.writeAgainst(b, i, m.of, m.of)
		}
		fmt.Fprintf(b, " %s | %s | %.1f | %.1f | %.1f | %s |\n", short(time.Duration(p99.of(s))), short(time.Duration(s.Per(float64(s.CPU)))),
			s.Per(float64(s.Allocs)), s.Per(float64(s.Commands)), s.Per(float64(s.Reads)), failedCell(s))
	}
}
