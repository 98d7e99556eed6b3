//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// voters are the masters of an arena: servers with a fixed place, or roaming ones.
type voters interface {
	N() int
	Addrs() []string
	Do(i int, args ...string) (any, error) // has the master do something that is the master now
	Close()
}

// Roaming masters have no fixed place: each is one of several servers, and another can take its place.
type roaming interface {
	voters
	traffic
	// faults are what befalls them, beside what is reset.
	faults() []fault
	// befall carries out one of these that is not common, and returns when the master is well again, or ctx has ended.
	befall(ctx context.Context, n *nemesis, s strike)
}

// seats are the servers that are roaming masters.
type seats struct {
	now   []atomic.Int64             // of each master, when it was settled last
	find  func(i int) (int, error)   // which it is
	ready func(i int) (reason error) // nil if it has a replica in step
}

func (s *seats) N() int { return len(s.now) }

func (s *seats) at(i int) int { return int(s.now[i].Load()) }

// await waits until a server is the master.
func (s *seats) await(ctx context.Context, i, server int) {
	patiently(ctx, "await the master", func() error {
		now, err := s.find(i)
		if err == nil && now != server {
			err = fmt.Errorf("server %d is the master, and not %d", now, server)
		}
		return err
	})
}

// replace has another server be the master: ask asks for that, and again if nothing has come of it for so long.
func (s *seats) replace(ctx context.Context, i, server int, long time.Duration, ask func() error) {
	patiently(ctx, "replace the master", func() error {
		if now, err := s.find(i); err == nil && now == server { // it has come late
			return nil
		}
		if err := ask(); err != nil {
			return err
		}
		tried, cancel := context.WithTimeout(ctx, long)
		defer cancel()
		s.await(tried, i, server)
		return tried.Err()
	})
}

// settle waits until all agree on the master, and it has a replica in step.
func (s *seats) settle(ctx context.Context, i int) {
	patiently(ctx, "settle", func() error {
		at, err := s.find(i)
		if err == nil {
			err = s.ready(i)
		}
		if err == nil {
			s.now[i].Store(int64(at))
		}
		return err
	})
}

// The arenas.
const (
	ofMasters   = "masters"
	ofClusters  = "cluster"
	ofSentinels = "sentinel"
)

// newRoaming starts so many roaming masters.
func newRoaming(arena string, masters int, password string) (roaming, error) {
	secret := redlocktest.WithPassword(password)
	switch arena {
	case ofSentinels:
		g, err := redlocktest.RunGroups(masters, groupArgs, secret)
		if err != nil {
			return nil, err
		}
		return newGroups(g), nil
	case ofClusters:
		c, err := redlocktest.RunClusters(masters, clusterShards, redlocktest.WithLinks(), secret)
		if err != nil {
			return nil, err
		}
		other, err := redlocktest.RunClusters(1, 1, redlocktest.WithLinks(), secret)
		if err != nil {
			c.Close()
			return nil, err
		}
		return newClusters(c, other), nil
	}
	return nil, fmt.Errorf("no arena %q", arena)
}

// roamingPrefix is that of all keys there: it says in which slot of a cluster they are.
const roamingPrefix = "{chaos}:"

// roamingLocks are what the clients fight for there. Another library does not follow the masters.
func roamingLocks() []lockable {
	return slices.DeleteFunc(slices.Clone(stormLocks), func(l lockable) bool { return l.Kind == foreign })
}

// common are faults that all masters know.
var common = append([]fault{cut, cutReplies, delay, answersLost, lateLost, reset, junk}, ofClients...)

// siege makes the schedule of a test with roaming masters. It follows from its arguments alone. A master that was struck
// has no vote for a long time. Some strikes come while that lasts, and some when locks are taken again. Mostly one
// master is struck; now and then all are at once.
func siege(seed uint64, duration time.Duration, masters, clients int, ttl time.Duration, faults []fault) []strike {
	p := planner{rng: rand.New(rand.NewPCG(seed, 1)), duration: duration, ttl: ttl, free: make([]time.Duration, masters)}
	next := p.deck(faults)
	for at := time.Second; at < duration; {
		victims := p.rng.Perm(masters)
		if p.rng.IntN(6) > 0 {
			victims = victims[:1]
		}
		var end time.Duration
		for _, i := range victims {
			s := strike{
				At:     at + p.between(0, 200*time.Millisecond),
				For:    p.between(100*time.Millisecond, 4*time.Second),
				Fault:  next(),
				Target: i,
			}
			if s.Fault == strayAnswers { // the first cluster has the stray node
				s.Target = 0
			}
			p.add(s)
			end = max(end, s.At+s.For)
		}
		p.add(strike{At: p.between(at, end), For: p.between(50*time.Millisecond, 200*time.Millisecond), Fault: junk})
		for range p.rng.IntN(3) {
			p.add(strike{At: p.between(at, end), Fault: reset, Target: p.rng.IntN(masters)})
		}
		pause := p.between(0, 2*time.Second)
		if p.rng.IntN(2) > 0 { // locks are taken again
			pause += roamingQuarantine(ttl) / time.Duration(masters)
		}
		at = end + pause
	}
	p.strikeClients(clients)
	slices.SortStableFunc(p.all, byTime)
	return p.all
}

// roamingQuarantine is until when a master that was settled is certain to vote again: clients hear of it a second
// later, and others may rely on the server before it for so long.
func roamingQuarantine(ttl time.Duration) time.Duration {
	return quarantine(ttl) + conn.SlotTrust + time.Second
}

// besiege carries out a strike that only roaming masters know. The next one may begin while the master is still in
// quarantine.
func (n *nemesis) besiege(ctx context.Context, s strike) {
	i := s.Target
	n.harm(i)
	func() {
		n.masterTurn[i].Lock()
		defer n.masterTurn[i].Unlock()
		if ctx.Err() == nil {
			n.roaming.befall(ctx, n, s)
		}
	}()
	if sleep(ctx, roamingQuarantine(n.ttl)) {
		n.heal(i)
	}
}

// patiently repeats what fails until it does not, or ctx has ended.
func patiently(ctx context.Context, what string, do func() error) {
	for deadline := clock.Now() + 2*patience; ctx.Err() == nil; sleep(ctx, 20*time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if clock.Now() > deadline {
			panic(fmt.Errorf("%s: %w", what, err))
		}
	}
}
