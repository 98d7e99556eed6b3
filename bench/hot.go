package main

import (
	"context"
	"fmt"
	"time"
)

// hotCases are goroutines of one process that all want one key, again and again, and do nothing under it: on five
// masters, and on one, where those take part that know no more.
func hotCases(with func(name, about string, change func(k *Case)) Case) (cases []Case) {
	for _, n := range []int{5, 1} {
		for _, g := range []int{1, 4, 64, 1024} {
			name := fmt.Sprintf("hot=%d", g)
			if n == 1 {
				name += "-N=1"
			}
			cases = append(cases, with(name, fmt.Sprintf("%d goroutines of one process take one lock again and again, on %s; Lock and Unlock together", g, masterCount(n)),
				func(k *Case) {
					k.N = n
					hot(k, g)
				}))
		}
	}
	return cases
}

func hot(k *Case, goroutines int) {
	k.Goroutines, k.op, k.waits, k.peers, k.metric, k.least = goroutines, goRound, true, hasty, mean, 200*time.Millisecond
}

// goRound is Lock and Unlock, together. Whoever still waits at the end is not counted: what counts is how many had the
// lock.
func goRound(*slice) op {
	return func(ctx context.Context, m Mutex, t *tally) {
		start := time.Now()
		err := m.Lock(t.ends)
		if err != nil && !time.Now().Before(t.end) {
			return
		}
		if err == nil {
			err = m.Unlock(ctx)
		}
		t.note(time.Since(start), err)
	}
}
