//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// A nemesis carries out a plan, and knows when a majority of the masters was up
// and reachable.
type nemesis struct {
	masters  *redlocktest.Masters
	fleet    *fleet
	resource *resource // nil if there are no clients

	// Whoever strikes holds the lock of the one that is struck: on a busy machine
	// a strike may last until after the next one's beginning.
	masterTurn []sync.Mutex
	clientTurn []sync.Mutex

	quarantine time.Duration // until a master that was restarted votes again

	mu     sync.Mutex
	harmed []bool
	since  time.Duration // when a majority became unharmed; 0 while none is
	up     []span
	faults map[fault]int
	killed []time.Duration // when a master was
	err    error           // why the plan could not be carried out
}

// A span is a stretch of time.
type span struct{ From, To time.Duration }

func newNemesis(masters *redlocktest.Masters, fleet *fleet, resource *resource, ttl time.Duration) *nemesis {
	return &nemesis{
		masters: masters, fleet: fleet, resource: resource, quarantine: quarantine(ttl),
		masterTurn: make([]sync.Mutex, masters.N()), clientTurn: make([]sync.Mutex, len(fleet.current)),
		harmed: make([]bool, masters.N()), since: conn.Now(), faults: make(map[fault]int),
	}
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
	if s.Fault != freezeWriter { // there may be none
		n.count(s.Fault)
	}
	i := s.Target
	switch s.Fault {
	case reset: // at any time
	case freezeClient, freezeWriter, killClient:
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
		n.masters.Pause(i)
		if sleep(ctx, s.For) {
			n.masters.Resume(i)
			n.heal(i)
		}
	case kill:
		n.harm(i)
		n.mu.Lock()
		n.killed = append(n.killed, conn.Now())
		n.mu.Unlock()
		n.masters.Kill(i)
		if !sleep(ctx, s.For-n.quarantine) {
			return
		}
		n.masters.Restart(i)
		if sleep(ctx, n.quarantine) {
			n.heal(i)
		}
	case cut, cutRequests, cutReplies, refuse, delay:
		n.harm(i)
		switch s.Fault {
		case cut:
			n.masters.Cut(i)
		case cutRequests:
			n.masters.CutRequests(i)
		case cutReplies:
			n.masters.CutReplies(i)
		case refuse:
			n.masters.Break(i)
		case delay:
			n.masters.Delay(i, s.For/10)
		}
		if sleep(ctx, s.For) {
			n.masters.Heal(i)
			n.masters.Delay(i, 0)
			n.heal(i)
		}
	case reset:
		n.masters.Reset(i)
	case flush:
		if _, err := n.masters.Do(i, "SCRIPT", "FLUSH"); err != nil {
			panic(err)
		}
	case freezeClient:
		p := n.fleet.client(i)
		p.signal(syscall.SIGSTOP)
		if sleep(ctx, s.For) {
			p.signal(syscall.SIGCONT)
		}
	case freezeWriter:
		n.freezeWriter(ctx, n.fleet.client(i), s.For)
	case killClient:
		n.fleet.client(i).kill()
		if _, err := n.fleet.start(i); err != nil {
			panic(err)
		}
	default:
		panic("no such fault")
	}
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
	for end := conn.Now() + most; conn.Now() < end && !n.resource.isLate(w); {
		if !sleep(ctx, time.Millisecond) {
			return
		}
	}
	sleep(ctx, rand.N(20*time.Millisecond))
}

// lateWrites freezes writers until enough late writes were seen, or patience is over. It freezes
// all clients but one at once, so that it takes less time.
func (n *nemesis) lateWrites(ctx context.Context, enough int, ttl time.Duration) {
	deadline := conn.Now() + patience
	for n.resource.tested() < enough && conn.Now() < deadline && ctx.Err() == nil {
		var strikes sync.WaitGroup
		for i := range len(n.clientTurn) - 1 {
			strikes.Go(func() { n.strike(ctx, strike{For: 2 * ttl, Fault: freezeWriter, Target: i}) })
		}
		strikes.Wait()
		// The writes that are late now are on their way.
		for end := conn.Now() + time.Second; n.resource.tested() < enough && conn.Now() < end; {
			sleep(ctx, 10*time.Millisecond)
		}
	}
}

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
func (n *nemesis) harm(i int) { n.set(i, true) }
func (n *nemesis) heal(i int) { n.set(i, false) }

func (n *nemesis) set(i int, harmed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.harmed[i] = harmed
	well := 0
	for _, h := range n.harmed {
		if !h {
			well++
		}
	}
	switch now := conn.Now(); {
	case well > len(n.harmed)/2 && n.since == 0:
		n.since = now
	case well <= len(n.harmed)/2 && n.since != 0:
		n.up = append(n.up, span{n.since, now})
		n.since = 0
	}
}

func (n *nemesis) isHarmed(i int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.harmed[i]
}

// majorityUp returns when a majority was up, until now.
func (n *nemesis) majorityUp() []span {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.since == 0 {
		return n.up
	}
	return append(n.up, span{n.since, conn.Now()})
}
