//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// A nemesis carries out a plan, and knows when a majority of the masters was up
// and reachable, for each client.
type nemesis struct {
	masters  voters
	servers  *redlocktest.Masters // that have the places, unless they are roaming
	places   *places              // the same; nil if there is none but the servers' own
	alone    bool                 // each server has a network to itself
	users    users
	roaming  roaming // the same, if they are
	traffic  traffic
	fleet    *fleet
	resource *resource // nil if there are no clients

	// Whoever strikes holds the lock of the one that is struck: on a busy machine
	// a strike may last until after the next one's beginning.
	masterTurn []sync.Mutex
	clientTurn []sync.Mutex
	spoiling   sync.Mutex // likewise, of the counter
	replacing  sync.Mutex // likewise, of the spare server
	starting   sync.Mutex // a server reads the file of its users

	ttl        time.Duration // the longest one
	quarantine time.Duration // until a master that was restarted, or a replica, votes again

	mu     sync.Mutex
	harmed []int         // how many strikes each master is hit by
	apart  map[pair]int  // how many strikes each pair is hit by
	since  time.Duration // when a majority became unharmed, for each client; 0 while none is
	up     []span
	faults map[fault]int
	unread []unread
	forgot []time.Duration // when a master has begun to forget its keys
	err    error           // why the plan could not be carried out
}

// A span is a stretch of time.
type span struct{ From, To time.Duration }

func newNemesis(masters voters, fleet *fleet, resource *resource, ttl time.Duration) *nemesis {
	n := &nemesis{
		masters: masters, fleet: fleet, resource: resource, ttl: ttl, quarantine: quarantine(ttl),
		masterTurn: make([]sync.Mutex, masters.N()), clientTurn: make([]sync.Mutex, len(fleet.current)),
		harmed: make([]int, masters.N()), apart: make(map[pair]int), since: clock.Now(), faults: make(map[fault]int),
	}
	switch m := masters.(type) {
	case roaming:
		n.roaming, n.traffic = m, m
	case *places:
		n.servers, n.places = m.servers, m
	case *redlocktest.Masters:
		n.servers = m
		n.traffic = links{m, nil}
	}
	return n
}

// run returns when all strikes are over. If ctx ends, it leaves masters and
// clients as they are.
func (n *nemesis) run(ctx context.Context, plan []strike) error {
	var strikes sync.WaitGroup
	began := time.Now()
	for _, s := range plan {
		if !sleep(ctx, time.Until(began.Add(s.At))) {
			break
		}
		strikes.Go(func() {
			defer func() { // redlocktest panics if it cannot do what it is told
				if r := recover(); r != nil {
					n.mu.Lock()
					n.err = fmt.Errorf("%s %d: %v", s.Fault, s.Target, r)
					n.mu.Unlock()
				}
			}()
			n.strike(ctx, s)
		})
	}
	strikes.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// strike carries out one strike.
func (n *nemesis) strike(ctx context.Context, s strike) {
	if !slices.Contains(uncertain, s.Fault) {
		n.count(s.Fault.by(s.Way))
	}
	if s.Pairs != nil {
		n.strikePairs(ctx, s)
		return
	}
	if n.roaming != nil && !slices.Contains(common, s.Fault) {
		n.besiege(ctx, s)
		return
	}
	i := s.Target
	switch s.Fault {
	case reset, spoil, junk: // at any time
	case freezeClient, freezeWriter, killClient, killEarly, blockLog:
		n.clientTurn[i].Lock()
		defer n.clientTurn[i].Unlock()
	default:
		n.masterTurn[i].Lock()
		defer n.masterTurn[i].Unlock()
	}
	if ctx.Err() != nil {
		return
	}
	switch s.Fault {
	case freeze:
		n.harm(i)
		n.servers.Pause(n.server(i))
		if sleep(ctx, s.For) {
			n.servers.Resume(n.server(i))
			n.heal(i)
		}
	case kill, demote, newDisk, flushKeys, bootClock, withACL, replaced:
		n.harm(i)
		if n.forget(ctx, s) && sleep(ctx, n.quarantine) {
			n.heal(i)
		}
	case cut, cutRequests, cutReplies, refuse, delay, answersLost, lateLost:
		n.harm(i)
		if n.hinder(ctx, s) {
			n.heal(i)
		}
	case block:
		n.harm(i)
		if n.block(ctx, i, s.For) {
			n.heal(i)
		}
	case reset:
		n.traffic.reset(s)
	case spoil:
		n.spoil(ctx, s.For)
	case junk:
		n.strew(ctx, s.For)
	case rewrite: // it forks
		n.try(rewrite, i, "BGREWRITEAOF")
	case flush:
		n.try(flush, i, "SCRIPT", "FLUSH")
	case freezeClient:
		p := n.fleet.client(i)
		p.signal(syscall.SIGSTOP)
		if sleep(ctx, s.For) {
			p.signal(syscall.SIGCONT)
		}
	case freezeWriter:
		n.freezeWriter(ctx, n.fleet.client(i), s.For)
	case killClient:
		n.killClient(i)
	case blockLog:
		n.blockLog(ctx, n.fleet.client(i), s.For)
	case killEarly:
		n.killClient(i)
		if sleep(ctx, s.For) {
			n.killClient(i)
		}
	default:
		panic("no such fault")
	}
}

// killClient kills a client, and starts another one in its place.
func (n *nemesis) killClient(i int) {
	n.fleet.client(i).kill()
	if _, err := n.fleet.start(i); err != nil {
		panic(err)
	}
}

// uncertain are faults that are counted when they have happened.
var uncertain = []fault{freezeWriter, spoil, rewrite, flush, replaced, junk}

// try has a master do something. On a busy machine it may not answer in time, or do so already.
func (n *nemesis) try(f fault, i int, command ...string) {
	if _, err := n.masters.Do(i, command...); err == nil {
		n.count(f)
	}
}

// strikePairs carries out a strike on the traffic of pairs, whatever else their masters and clients
// suffer meanwhile.
func (n *nemesis) strikePairs(ctx context.Context, s strike) {
	n.part(s.Pairs, 1)
	if n.hinder(ctx, s) {
		n.part(s.Pairs, -1)
	}
}

// hinder strikes the traffic for as long as the strike lasts. It is false if ctx has ended.
func (n *nemesis) hinder(ctx context.Context, s strike) bool {
	lift := n.traffic.impose(s)
	if !sleep(ctx, s.For) {
		return false
	}
	if s.Fault == answersLost || s.Fault == lateLost { // before they can arrive
		n.traffic.reset(s)
	}
	lift()
	return true
}

// block runs a script on a master for so long. It is false if ctx has ended.
func (n *nemesis) block(ctx context.Context, i int, long time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.masters.Do(i, "EVAL", "while true do end", "0") // it is killed
	}()
	goes := sleep(ctx, long)
	for {
		// The script may not have begun yet.
		n.masters.Do(i, "SCRIPT", "KILL")
		select {
		case <-ended:
			return goes
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// insist has a master do something, as soon as it answers, unless ctx ends before.
func (n *nemesis) insist(ctx context.Context, i int, command ...string) {
	patiently(ctx, command[0], func() error {
		_, err := n.masters.Do(i, command...)
		return err
	})
}

// spoil puts what is no number in the place of a fence's counter, on a majority of the masters. Nobody knows
// then which fence was the last, so none can be given until each master has its own counter again.
func (n *nemesis) spoil(ctx context.Context, long time.Duration) {
	n.spoiling.Lock()
	defer n.spoiling.Unlock()
	was := make(map[int]string)
	for i := 0; i < n.masters.N() && len(was) <= n.masters.N()/2; i++ {
		if n.isHarmed(i) {
			continue
		}
		if count, err := n.masters.Do(i, "GET", spoiledCounter); err == nil && count != nil {
			was[i] = count.(string)
		}
	}
	for i := range was {
		before, err := n.masters.Do(i, "SET", spoiledCounter, "spoiled", "XX", "KEEPTTL", "GET")
		if count, is := before.(string); is && err == nil {
			was[i] = count // it may have grown
			n.count(spoil)
		}
	}
	sleep(ctx, long)
	for i, count := range was {
		n.insist(ctx, i, "SET", spoiledCounter, count, "XX", "KEEPTTL") // the master may have forgotten it
	}
}

// forgets is called when a master may forget its keys from now on.
func (n *nemesis) forgets() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgot = append(n.forgot, clock.Now())
}

// forgetting is called when a master may forget its keys at any moment from now on, until ended is called.
func (n *nemesis) forgetting(ctx context.Context) (ended func()) {
	ctx, ended = context.WithCancel(ctx)
	go func() {
		for ok := true; ok; ok = sleep(ctx, 100*time.Millisecond) {
			n.forgets()
		}
	}()
	return ended
}

func (n *nemesis) count(f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[f]++
}

// freezeWriter freezes a client in the middle of a write until a later holder has been there, and
// perhaps others after it, so that the rest of the write is late. It waits for the write, and for
// the later holder, no longer than most.
func (n *nemesis) freezeWriter(ctx context.Context, p *process, most time.Duration) {
	patient, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	w := n.resource.catch(patient, p.name)
	if w == nil {
		return
	}
	defer close(w.released)
	n.count(freezeWriter)
	p.signal(syscall.SIGSTOP)
	defer p.signal(syscall.SIGCONT)
	for end := clock.Now() + most; clock.Now() < end && !n.resource.isLate(w); {
		if !sleep(ctx, time.Millisecond) {
			return
		}
	}
	sleep(ctx, rand.N(20*time.Millisecond))
}

// lateWrites freezes writers until enough late writes were seen, or patience is over. It freezes
// all clients but one at once, so that it takes less time.
func (n *nemesis) lateWrites(ctx context.Context, enough int, ttl time.Duration) {
	deadline := clock.Now() + patience
	for n.resource.tested() < enough && clock.Now() < deadline && ctx.Err() == nil {
		var strikes sync.WaitGroup
		for i := range len(n.clientTurn) - 1 {
			strikes.Go(func() { n.strike(ctx, strike{For: 2 * ttl, Fault: freezeWriter, Target: i}) })
		}
		strikes.Wait()
		// The writes that are late now are on their way.
		for end := clock.Now() + time.Second; n.resource.tested() < enough && clock.Now() < end; {
			sleep(ctx, 10*time.Millisecond)
		}
	}
}

// server returns the server that has a master's place.
func (n *nemesis) server(i int) int { return n.places.server(i) }

// sleep is false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// harm is called before a master is harmed, heal when it is well again.
func (n *nemesis) harm(i int) { n.strikes(i, 1) }
func (n *nemesis) heal(i int) { n.strikes(i, -1) }

func (n *nemesis) strikes(i, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.harmed[i] += more
	n.note()
}

// part is called with 1 before the traffic of these pairs is struck, and with -1 when it is well again.
func (n *nemesis) part(pairs []pair, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range pairs {
		n.apart[p] += by
	}
	n.note()
}

// note notes since when each client has had a majority, or until when.
func (n *nemesis) note() {
	up := n.hasMajority(0) // also where there are no clients
	for client := range n.clientTurn {
		up = up && n.hasMajority(client)
	}
	switch now := clock.Now(); {
	case up && n.since == 0:
		n.since = now
	case !up && n.since != 0:
		n.up = append(n.up, span{n.since, now})
		n.since = 0
	}
}

// hasMajority says whether a majority of the masters is well, and the client can reach it.
func (n *nemesis) hasMajority(client int) bool {
	well := 0
	for master, harmed := range n.harmed {
		if harmed == 0 && n.apart[pair{client, master}] == 0 {
			well++
		}
	}
	return well > len(n.harmed)/2
}

func (n *nemesis) isHarmed(i int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.harmed[i] > 0
}

// majorityUp returns when a majority was up, until now.
func (n *nemesis) majorityUp() []span {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.since == 0 {
		return n.up
	}
	return append(n.up, span{n.since, clock.Now()})
}
