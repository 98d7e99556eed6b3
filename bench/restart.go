package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	restartCallers = 400
	restartTTL     = 3 * time.Second
	restartPause   = 100 * time.Millisecond // of a caller after each call, on average
)

func restarts(k *Case) {
	k.note = fmt.Sprintf("The masters forget nothing: they have each change on their disk before they answer (appendfsync always). "+
		"redburst is told so (Config.Durable, with a RestartGuard of the TTL), or it would give no lock before the TTL of %v has passed; "+
		"peers believe masters that have forgotten, too. What stood on the masters when they died is in the way until it is released, or "+
		"for its TTL. The start of the servers is part of the time. A caller pauses for %v after each release and each failure, on average.",
		restartTTL, restartPause)
	k.drive, k.noFloor, k.durable, k.peers, k.table = restart, true, true, failFast.or(sampled), Result.writeTimes
	k.Goroutines, k.Keys, k.TTL, k.least, k.rounds = restartCallers, restartCallers, restartTTL, time.Second, 3
}

// restart measures how long it takes from the moment at which all masters, which have died, are started again until every
// caller has had a lock again.
func restart(r *slice) error {
	ms, err := r.mutexes()
	if err != nil {
		r.sample.Fail(err)
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer cancel()
	var died atomic.Bool
	var without atomic.Int64
	without.Store(int64(len(ms)))
	all := make(chan struct{})
	call := func(m Mutex) {
		for had := false; ctx.Err() == nil; time.Sleep(restartPause/2 + rand.N(restartPause)) {
			again := died.Load()
			if m.TryLock(ctx) != nil {
				continue
			}
			m.Unlock(ctx)
			if again && !had && without.Add(-1) == 0 {
				close(all)
			}
			had = again
		}
	}
	for i, m := range ms {
		callers.Go(func() { call(m) })
		if _, ok := r.locker.(redburstLocker); ok && i == 0 {
			time.Sleep(2 * restartTTL) // until its masters have been known for the RestartGuard
		}
	}
	time.Sleep(r.length)
	for i := range r.fleet.N {
		r.fleet.Break(i, Dead)
	}
	died.Store(true)
	began := time.Now()
	var starting sync.WaitGroup
	errs := make([]error, r.fleet.N)
	for i := range errs {
		starting.Go(func() { errs[i] = r.fleet.Heal(i, Dead) })
	}
	select {
	case <-all:
		r.sample.Record(time.Since(began))
	case <-time.After(slack):
		r.sample.Fail(fmt.Errorf("%d callers of %d have had no lock after %v", without.Load(), len(ms), slack))
	}
	starting.Wait()
	return errors.Join(errs...)
}
