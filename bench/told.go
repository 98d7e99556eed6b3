package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// groupRevoke is redburst whose lock another client revokes, beside redburst whose lock is deleted.
const groupRevoke = "revoke"

// toldTTL is that of a lock that is taken away. Whoever is not told finds out when it renews: every third of that.
const toldTTL = 3 * time.Second

func tolds(k *Case) {
	k.drive, k.noFloor, k.peers, k.table, k.TTL, k.least, k.rounds = told, true, sampled, Result.writeTimes, toldTTL, toldTTL, leastRounds
}

// told measures for how long a holder that renews its lock does not know that another has deleted it on all masters, or
// has revoked it: from then until the context of the lock has ended, or its extension has failed.
func told(r *slice) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.length+slack)
	defer cancel()
	take := func() error { return r.fleet.everywhere("DEL", r.Key(0)) }
	if r.contestant.group == groupRevoke {
		another, err := r.contestant.Open(r.fleet, 1)
		if err != nil {
			r.sample.Fail(err)
			return nil
		}
		defer another.Close()
		take = func() error { return another.(redburstLocker).client.Revoke(ctx, r.Key(0), "it is measured") }
	}
	began := time.Now()
	defer func() { r.sample.Wall = time.Since(began) }()
	for time.Since(began) < r.length {
		m, err := r.locker.Mutex(r.Key(0))
		if err == nil {
			err = m.TryLock(ctx)
		}
		if err != nil {
			r.sample.Fail(err)
			continue
		}
		held, stop := keepAlive(ctx, m, r.fleet.ttl())
		time.Sleep(rand.N(r.fleet.ttl() / 3)) // so it is at no certain time between two renewals
		taken, err := time.Now(), context.Cause(held)
		if err == nil {
			err = take()
		}
		if err == nil {
			<-held.Done()
			r.sample.Record(time.Since(taken))
		} else {
			r.sample.Fail(err)
		}
		stop()
		m.Unlock(ctx) // it takes a revoked key away
	}
	return nil
}

// keepAlive renews a lock in the way of its contestant until stop is called. The context ends when the lock is lost.
func keepAlive(ctx context.Context, m Mutex, ttl time.Duration) (held context.Context, stop func()) {
	if k, ok := m.(KeepAliver); ok {
		return k.KeepAlive(ctx)
	}
	held, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		keep(held, m, ttl/3)
	}()
	return held, cancel
}
