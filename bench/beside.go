package main

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

// releasing is redburst where Unlock waits for no master.
func releasing() Contestant {
	open := openRedburst()
	return Contestant{Name: ours + "-release", waits: true, quick: true, group: groupRelease,
		Open: func(f *Fleet, goroutines int) (Locker, error) {
			l, err := open(f, goroutines)
			return releasingLocker{l}, err
		}}
}

// releasingFloors are the floor where it waits for its release, and where it does not: a ratio of the two is the least that ours
// can have.
func releasingFloors() []Contestant {
	open := openFloor(waitEpoll)
	return []Contestant{
		{Name: floor + "-unlock", plain: true, serial: true, quick: true, group: groupRelease, Open: open},
		{Name: floor + "-release", plain: true, serial: true, quick: true, group: groupRelease,
			Open: func(f *Fleet, goroutines int) (Locker, error) {
				l, err := open(f, goroutines)
				return releasingFloor{l}, err
			}},
	}
}

type releasingFloor struct{ Locker }

func (l releasingFloor) Mutex(key string) (Mutex, error) {
	m, err := l.Locker.Mutex(key)
	if err != nil {
		return nil, err
	}
	return releasingFloorMutex{m.(*floorMutex)}, nil
}

type releasingFloorMutex struct{ *floorMutex }

func (m releasingFloorMutex) Unlock(context.Context) error {
	_, err := m.send(m.release, len(":1\r\n"))
	return err
}

type releasingLocker struct{ Locker }

func (l releasingLocker) Mutex(key string) (Mutex, error) {
	m, err := l.Locker.Mutex(key)
	if err != nil {
		return nil, err
	}
	return releasingMutex{m.(redburstMutex)}, nil
}

type releasingMutex struct{ redburstMutex }

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
