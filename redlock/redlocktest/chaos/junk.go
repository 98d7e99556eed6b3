//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// Something strange has a name that a lock uses, on a minority of the masters: a program keeps its data there, or somebody
// has mistaken one key for another.
const (
	junk       fault = "strange value under a lock's name"
	junkBeside fault = "strange value beside a lock"
)

// strangeThings make such a value of a key.
var strangeThings = []string{
	`redis.call('SET', KEYS[1], string.rep('x', 102400))`,
	`redis.call('RPUSH', KEYS[1], string.rep('x', 102400), 'y')`,
	`redis.call('HSET', KEYS[1], 'x', 'y')`,
	`redis.call('SADD', KEYS[1], 'x', 'y')`,
	`redis.call('ZADD', KEYS[1], 1, string.rep('x', 102400), 2, 'y')`,
	`redis.call('XADD', KEYS[1], '*', 'x', 'y')`,
	`redis.call('PFADD', KEYS[1], 'x')`,
	`redis.call('SET', KEYS[1], '')`,
}

// besides are the ends of the names of what is kept beside a lock.
var besides = []string{"}:fence", "}:writer", "}:line", "}:permits", "}:permit:line"}

const (
	// A lock's own name is taken only where it is free: who overwrites a lock has ended it. No TTL is shorter.
	placeJunk = `if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end %s redis.call('PEXPIRE', KEYS[1], 100) return 1`
	junkTime  = 100 * time.Millisecond

	// What is beside a lock makes way, and comes back, unless the master has forgotten all in between.
	swapJunk = `if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[2]) end %s ` +
		`redis.call('SET', KEYS[3], '') return 1`
	restoreJunk = `if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[1]) ` +
		`elseif redis.call('EXISTS', KEYS[3]) == 1 then redis.call('DEL', KEYS[1]) end redis.call('DEL', KEYS[3]) return 1`
)

// strew puts strange values under names of a lock, or beside it, for so long, on a minority of the masters that are well.
func (n *nemesis) strew(ctx context.Context, long time.Duration) {
	n.spoiling.Lock() // the counters are among them
	defer n.spoiling.Unlock()
	var there []int
	for _, i := range rand.Perm(n.masters.N()) {
		if (!n.isHarmed(i) || n.masters.N() == 1) && len(there) < max(1, (n.masters.N()-1)/2) {
			there = append(there, i)
		}
	}
	l, thing := n.fleet.config.Locks[rand.IntN(len(n.fleet.config.Locks))], strangeThings[rand.IntN(len(strangeThings))]
	if rand.IntN(2) == 0 || n.masters.N() == 1 {
		names := l.on(n.fleet.config.Prefix)
		n.strewOn(ctx, there, names[rand.IntN(len(names))], thing, long)
		return
	}
	begin := "{" + l.Keys[0]
	if prefix := n.fleet.config.Prefix; prefix != "" { // which has a tag
		begin = prefix + l.Keys[0]
	}
	n.strewBeside(ctx, there, begin+besides[rand.IntN(len(besides))], thing, long)
}

func (n *nemesis) strewOn(ctx context.Context, there []int, name, thing string, long time.Duration) {
	for end := clock.Now() + long; clock.Now() < end && sleep(ctx, junkTime/4); {
		for _, i := range there {
			if reply, err := n.masters.Do(i, "EVAL", fmt.Sprintf(placeJunk, thing), "1", name); err == nil && reply == int64(1) {
				n.count(junk)
			}
		}
	}
}

func (n *nemesis) strewBeside(ctx context.Context, there []int, name, thing string, long time.Duration) {
	do := func(script string) []string {
		return []string{"EVAL", script, "3", name, name + ":kept", name + ":junk"}
	}
	for _, i := range there {
		if _, err := n.masters.Do(i, do(fmt.Sprintf(swapJunk, thing))...); err == nil {
			n.count(junkBeside)
		}
	}
	sleep(ctx, long)
	for _, i := range there {
		n.insist(ctx, i, do(restoreJunk)...)
	}
}
