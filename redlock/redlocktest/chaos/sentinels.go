//go:build linux

package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
)

// What befalls a group that Sentinel watches over. Its master is not frozen: one that goes on after it was replaced
// takes writes for a while, though it has no replica. Only clients that hear from the sentinels in time know better.
const (
	masterKilled    fault = "master killed, and replaced" // it comes back as a replica
	masterRestarted fault = "master restarted"            // at once and without its keys: it may remain the master
	switched        fault = "master switched"             // by the sentinels, though it is well
	sentinelFrozen  fault = "sentinel frozen"
	majorityFrozen  fault = "most sentinels frozen"
)

// longestNap is for how long sentinels are frozen at most. One that is frozen for two seconds does nothing for the next
// thirty.
const longestNap = 1500 * time.Millisecond

// groups are roaming masters: each is that of a Sentinel group.
type groups struct {
	*redlocktest.Groups
	*seats
}

// groupArgs have a master that has lost its replica take no writes, as the sentinels may have replaced it.
var groupArgs = redlocktest.WithArgs("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1", "--repl-ping-replica-period", "1")

func newGroups(g *redlocktest.Groups) *groups {
	f := &groups{g, &seats{make([]atomic.Int64, len(g.Addrs())), func(i int) (int, error) { return g.FindMaster(i) }, g.Ready}}
	for i := range f.now {
		f.settle(context.Background(), i)
	}
	return f
}

func (f *groups) Do(i int, args ...string) (any, error) {
	return f.Servers(i).Do(f.at(i), args...)
}

func (f *groups) faults() []fault {
	return []fault{masterKilled, masterRestarted, switched, sentinelFrozen, majorityFrozen}
}

func (f *groups) befall(ctx context.Context, n *nemesis, s strike) {
	i := s.Target
	defer n.forgetting(ctx)()
	f.settle(ctx, i) // on a busy machine a group may fail over by itself
	at := f.at(i)
	switch s.Fault {
	case masterKilled:
		f.Servers(i).Kill(at)
		f.await(ctx, i, 1-at)
		sleep(ctx, s.For/4)
		f.Servers(i).Restart(at)
	case masterRestarted:
		f.Servers(i).Restart(at)
	case switched:
		f.replace(ctx, i, 1-at, 10*time.Second, func() error { // it may be given up, if the machine is busy
			_, err := f.Sentinels().Do(0, "SENTINEL", "FAILOVER", fmt.Sprint("group", i))
			return err
		})
	case sentinelFrozen:
		f.Sentinels().Pause(0)
		sleep(ctx, min(s.For, longestNap))
		f.Sentinels().Resume(0)
	case majorityFrozen:
		f.Sentinels().Pause(0)
		f.Sentinels().Pause(1)
		sleep(ctx, min(s.For, longestNap))
		f.Sentinels().Resume(0)
		f.Sentinels().Resume(1)
	}
	f.settle(ctx, i)
}

func (f *groups) impose(strike) (lift func()) { panic("groups have no such fault") }

func (f *groups) reset(s strike) {
	f.Do(s.Target, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
}

func (f *groups) end(int) {}
