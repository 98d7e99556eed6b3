//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/redburst/redburst/redlock/internal/story"
)

// frozenTTL is long enough for a client to be caught in a write on a busy machine.
const frozenTTL = 3 * time.Second

// violateFrozen has a holder frozen amid a write until another has had its lock. The masters are well, and so no two have it at
// once; but the write comes late. It reports whether the fence has refused it, and whether the flight records tell of it.
func violateFrozen(ctx context.Context, out io.Writer) (as bool, err error) {
	l := lockable{Kind: plain, Keys: []string{"frozen"}, TTL: frozenTTL}
	a, err := newArena(masterCount, []lockable{l, l}, clientConfig{Holder: true, Fenced: true}, false, nil)
	if err != nil {
		return false, err
	}
	defer a.close()
	amid := make(chan *caught, 1)
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	go func() { amid <- a.resource.catch(patient, clientName+"1") }()
	if err := a.startHolder(0); err != nil {
		return false, err
	}
	write := <-amid
	switch {
	case ctx.Err() != nil:
		return false, errInterrupted
	case write == nil:
		return false, errors.New("no client could be frozen in a write")
	}
	holder := a.fleet.client(0)
	a.plant()
	if err := processes.Stop(holder.cmd.Process); err != nil {
		return false, err
	}
	close(write.released)
	if err := a.startHolder(1); err != nil {
		return false, err
	}
	if err := a.await(ctx, func(seen []outcomeCounts) bool { return seen[1][opWrote][ok] > 0 }); err != nil {
		return false, err
	}
	holder.signal(syscall.SIGCONT)
	late := 0
	err = a.await(ctx, func(seen []outcomeCounts) bool {
		late = seen[0][opWrote][refused]
		return late > 0
	})
	if err != nil {
		return false, err
	}
	f, err := a.finish(ctx, trial{})
	if err != nil {
		return false, err
	}
	line(out, "frozen", "a holder was frozen amid a write until another had its lock: %d overlaps, %d late writes were refused", len(f.Overlaps), late)
	explained, err := a.explains(out, story.Frozen, "frozen")
	return explained && late == 1 && len(f.Violations)+len(f.Disorders) == 0, err
}

// violateLists has two clients whose lists of masters have one in common.
//
//	masters     0 1 2 3 4
//	A's list    x x x
//	B's list        x x x
//
// Each list has a majority without the other's. So both hold one lock, once B has no doubt of those which only it knows: the
// one that they share says that its list is used.
func violateLists(ctx context.Context, out io.Writer) (as bool, err error) {
	a, err := newArena(masterCount, []lockable{violated(plain, "listed"), shorter(plain, "listed")}, clientConfig{Holder: true}, false, nil)
	if err != nil {
		return false, err
	}
	defer a.close()
	masters, runs := a.fleet.config.Masters, a.fleet.config.Runs
	for i := range 2 {
		a.plant()
		a.fleet.config.Masters, a.fleet.config.Runs = masters[2*i:2*i+3], runs[2*i:2*i+3]
		if err := a.startHolder(i); err != nil {
			return false, err
		}
		if err := a.await(ctx, func(seen []outcomeCounts) bool { return all(seen, opTry, ok) }); err != nil {
			return false, err
		}
	}
	f, err := a.finish(ctx, trial{})
	if err != nil {
		return false, err
	}
	line(out, "lists", "two clients with two lists of masters: %d overlaps, and %d by its history", f.Overlaps["listed"], f.disorders("listed"))
	explained, err := a.explains(out, story.TwoLists, "listed")
	return explained && f.Overlaps["listed"] == 1 && f.disorders("listed") == 1, err
}
