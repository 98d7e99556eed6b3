//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/redburst/redburst/conn"
)

// violate does what Redlock warns of: a master is restarted at once, without
// its keys, while a lock that needs it is held.
//
//	masters     0 1 2 3 4
//	A holds     x x x . .    3 and 4 cannot be reached
//	restart         .
//	B is given      x x x
//
// It returns exitFine if the checker has found that both hold the lock.
func violate(ctx context.Context, out io.Writer) (status int, err error) {
	keys := []lockKey{{"violated", 5 * time.Minute}} // for longer than this can take
	a, err := newArena(keys, clientConfig{Holder: true}, false)
	if err != nil {
		return 0, err
	}
	defer a.close(false)
	t := trial{Began: conn.Now()}
	a.masters.Break(3)
	a.masters.Break(4)
	one := func(seen outcomeCounts) bool { return seen[opTry][ok] == 1 }
	if err := a.startHolder(ctx, 0, one); err != nil {
		return 0, err
	}
	a.masters.Restart(2)
	a.masters.Heal(3)
	a.masters.Heal(4)
	// Both go on incrementing, until one of them is overtaken.
	both := func(seen outcomeCounts) bool { return seen[opTry][ok] == 2 && seen[opWrote][overtaken] > 0 }
	if err := a.startHolder(ctx, 1, both); err != nil {
		return 0, err
	}
	a.fleet.finish(ctx)
	if ctx.Err() != nil {
		return 0, errInterrupted
	}
	f, err := a.judge(t)
	if err != nil {
		return 0, err
	}
	fmt.Fprintln(out, "a master of a quorum was restarted at once, without its keys")
	report(out, f, map[fault]int{"master restarted at once": 1})
	if f.Overlaps == 0 {
		fmt.Fprintln(out, "the checker has not found that two clients hold one lock")
		return exitFailed, nil
	}
	fmt.Fprintln(out, "these violations are as they should be: the checker can fail")
	return exitFine, nil
}

// startHolder starts a client and waits until enough was seen of what the clients have recorded.
// It waits for a limited time: if that never happens, the checker has something to say of it.
func (a *arena) startHolder(ctx context.Context, i int, enough func(outcomeCounts) bool) error {
	if _, err := a.fleet.start(i); err != nil {
		return err
	}
	for deadline := conn.Now() + 2*patience; conn.Now() < deadline; {
		seen := make(outcomeCounts)
		for _, p := range a.fleet.all {
			records, err := readJournal(p.journal)
			if err != nil {
				return err
			}
			for _, r := range records {
				seen.add(r)
			}
		}
		if enough(seen) {
			return nil
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return errInterrupted
		}
	}
	return nil
}
