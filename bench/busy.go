package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// groupBusy is redburst that polls busily, beside redburst as it is. Its figures need a CPU for the client
// that the masters do not want: -cpuset masters=1,clients=0.
const groupBusy = "busy"

// busyLimit is Config.BusyPoll where it is set.
const busyLimit = 200 * time.Microsecond

// busyFloor is the name of the floor of that.
const busyFloor = floor + "-busy"

// polling is redburst that polls busily.
func polling() Contestant {
	open := openRedburstWith(func(cfg *redlock.Config) { cfg.BusyPoll = busyLimit })
	return Contestant{Name: ours + "-busy", Open: open, waits: true, quick: true, group: groupBusy}
}

// pollingFloor is the least that busy polling can come to: raw sockets that are read again and again, by who does
// nothing else. It never parks, so it takes part where the others do not park either.
func pollingFloor() Contestant {
	return Contestant{Name: busyFloor, Open: openFloor(waitBusy), plain: true, serial: true, quick: true, group: groupBusy}
}

// busyCases are those of the group: cases that there are without it, and what busy polling may not cost.
func busyCases(with func(name, about string, change func(k *Case)) Case) []Case {
	beside := func(name, about string, change func(k *Case)) Case {
		return with("busy-"+name, about, func(k *Case) {
			k.group, k.table, k.least = groupBusy, Result.writeBusy, 100*time.Millisecond
			change(k)
		})
	}
	away := func(ms time.Duration) Case {
		return beside(fmt.Sprintf("delay=%dms", ms), fmt.Sprintf("masters %d ms away, where it must have switched itself off", ms), func(k *Case) {
			k.Delay, k.least = ms*time.Millisecond, time.Second
		})
	}
	return []Case{
		beside("serial", fmt.Sprintf("one goroutine, five masters, with Config.BusyPoll of %v and without", busyLimit), func(*Case) {}),
		beside("N=1", "the same on one master", func(k *Case) { k.N = 1 }),
		beside("N=3", "the same on three masters", func(k *Case) { k.N = 3 }),
		beside("paced", "the same on one master, with 500 µs between two pairs", func(k *Case) { k.N, k.op = 1, paced }),
		beside("goroutines=32", "32 goroutines, a key each", func(k *Case) { k.Goroutines, k.Keys, k.metric = 32, 32, mean }),
		beside("hung", "one of five masters hangs", func(k *Case) { k.Fault = Hung }),
		away(1),
		away(10),
		away(50),
		beside("handover", "a lock passes from one process to another that waits for it", func(k *Case) {
			handedOver(k)
			k.peers = nil
		}),
		beside("idle", "a lock with a TTL of 3 s is kept alive, and a goroutine waits for another's; then until it has that", func(k *Case) {
			k.N, k.Goroutines, k.Keys, k.TTL = 1, 2, 2, 3*time.Second
			k.drive, k.waits, k.rounds, k.least = keepAndWait, true, leastRounds, 4*time.Second
		}),
	}
}

// paced is acquire with a pause before it.
func paced(r *slice) op {
	pair := acquire(r)
	return func(ctx context.Context, m Mutex, t *tally) {
		time.Sleep(500 * time.Microsecond)
		pair(ctx, m, t)
	}
}

// keepAndWait measures what it costs to keep a lock alive, and to wait for one that another holds. Its
// operation is the hand-over to who waits.
func keepAndWait(r *slice) error {
	another := []string{"SET", r.Key(1), "another", "PX", "600000"}
	if err := r.fleet.everywhere(another...); err != nil {
		return err
	}
	ms, err := r.mutexes()
	if err != nil {
		r.sample.Fail(err)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.length+slack)
	defer cancel()
	if err := ms[0].TryLock(ctx); err != nil {
		r.sample.Fail(err)
		return nil
	}
	held, stop := ms[0].(KeepAliver).KeepAlive(ctx)
	defer stop()
	locked := make(chan error, 1)
	var at time.Duration
	go func() {
		err := ms[1].Lock(ctx)
		at = clock.Now()
		locked <- err
	}()
	time.Sleep(min(r.length/4, 500*time.Millisecond)) // until it has looked
	meter := meter{fleet: r.fleet}
	if err := meter.start(); err != nil {
		return err
	}
	time.Sleep(r.length)
	if err := meter.stop(r.sample); err != nil {
		return err
	}
	r.sample.Extra[cores] = r.sample.CPU.Seconds() / r.sample.Wall.Seconds()
	released := clock.Now()
	if err := r.fleet.everywhere("DEL", r.Key(1)); err != nil {
		return err
	}
	switch err := errors.Join(<-locked, context.Cause(held)); {
	case err != nil:
		r.sample.Fail(err)
	case at < released:
		r.sample.Fail(errors.New("had a lock that another held"))
	default:
		r.sample.Record(at - released)
	}
	return nil
}

func (r Result) writeBusy(b *bytes.Buffer) {
	b.WriteString("The ratios compare figures of the same round; those to floor-busy compare p50. The CPU is that of this process.\n\n" +
		"| contestant | p50 | ÷ redburst | ÷ floor-busy | mean | ÷ redburst | p99 | CPU/op | ÷ redburst | CPU (cores) | allocs/op | failed |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	cpu := func(s *Sample) float64 { return s.Per(float64(s.CPU)) }
	least := r.best(named(busyFloor))
	for i, c := range r.Contestants {
		s := r.Total(i)
		fmt.Fprintf(b, "| %s |", c.Name)
		r.writeAgainst(b, i, p50.of, p50.of)
		fmt.Fprintf(b, " %s |", ratioCell(r.against(i, least)))
		r.writeAgainst(b, i, mean.of, mean.of)
		fmt.Fprintf(b, " %s |", short(time.Duration(p99.of(s))))
		r.writeAgainst(b, i, cpu, cpu)
		fmt.Fprintf(b, " %.3f | %.1f | %s |\n", s.CPU.Seconds()/s.Wall.Seconds(), s.Per(float64(s.Allocs)), failedCell(s))
	}
}
