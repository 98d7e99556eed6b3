//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"strconv"
	"syscall"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/internal/story"
)

// A belief is what a client believes of a failover that it has not seen. Each has a key of its own.
type belief struct {
	what  string
	key   string
	ttl   time.Duration // of who holds the lock
	then  time.Duration // of who comes, if that is shorter
	guard time.Duration // its Config.RestartGuard
	sure  bool          // its Config.Durable
	wrong bool          // so it takes what another holds
}

// declaredTTL is short, as whoever declares the cluster durable waits until it is as old. A lock that is taken at
// declaredAge is held for so much longer than that.
const (
	declaredTTL = 12 * time.Second
	declaredAge = 8 * time.Second
)

// beliefs have a cluster that has forgotten a lock.
var beliefs = []belief{
	{what: "it is declared that a failover forgets nothing (Config.Durable)", key: "declared", ttl: declaredTTL, guard: declaredTTL, sure: true, wrong: true},
	{what: "the TTL of the others is longer than its own, and not known (no Config.RestartGuard)", key: "unknown", ttl: 5 * time.Minute, then: time.Second, wrong: true},
	{what: "the TTL of the others is that of its own (no Config.RestartGuard)", key: "alike", ttl: declaredTTL},
	{what: "it is said to be shorter than it is (Config.RestartGuard)", key: "shorter", ttl: 5 * time.Minute, guard: 20 * time.Millisecond, wrong: true},
	{what: "it is known (Config.RestartGuard)", key: "known", ttl: 5 * time.Minute, guard: 5 * time.Minute},
	{what: "it is known, and nothing is declared (Config.RestartGuard)", key: "undeclared", ttl: declaredTTL, guard: declaredTTL},
}

// violateFailover has a cluster forget until the clients have seen what they must. On a busy machine a holder's time may
// be over before.
func violateFailover(ctx context.Context, out io.Writer) (status int, err error) {
	var said bytes.Buffer // in the last try
	for late, tries := true, 3; late && tries > 0; tries-- {
		said.Reset()
		status, late, err = failOver(ctx, &said)
	}
	said.WriteTo(out)
	return status, err
}

// failOver has a cluster forget locks in a failover, while their holders are frozen.
//
//	owner                      P P R R
//	A holds                    x x x x    R has heard nothing from P, and has no lock
//	B comes, and asks                x
//
// It reports whether B was given just what it must be given, by what it believes; or whether it has come too late for
// some of that.
func failOver(ctx context.Context, out io.Writer) (status int, late bool, err error) {
	var locks []lockable
	for _, b := range beliefs {
		held := violated(plain, b.key)
		held.TTL = b.ttl
		then := held
		if b.then > 0 {
			then.TTL = b.then
		}
		if b.guard > 0 {
			then.TTL = min(b.ttl, b.guard) // it may be no longer
		}
		locks = append(locks, held, then)
	}
	a, err := newRoamingArena(ofClusters, 1, locks, clientConfig{Holder: true}, false)
	if err != nil {
		return 0, false, err
	}
	defer a.close()
	c := a.roaming.(*clusters)
	began := clock.Now()
	owner := c.at(0)
	c.StopReplication(0, owner^1, true)
	c.awaitAge(ctx, 0, owner^1, declaredAge)
	for i := range beliefs {
		if err := a.startHolder(2 * i); err != nil {
			return 0, false, err
		}
	}
	if err := a.await(ctx, func(seen []outcomeCounts) bool { return all(seen, opTry, ok) }); err != nil {
		return 0, false, err
	}
	holders := a.fleet.all
	for _, p := range holders {
		p.signal(syscall.SIGSTOP)
	}
	a.plant(0)
	c.takeOver(ctx, 0, owner^1)
	c.StopReplication(0, owner^1, false)
	c.settle(ctx, 0)
	for i, b := range beliefs {
		a.fleet.config.RestartGuard, a.fleet.config.Durable = b.guard, b.sure
		if err := a.startHolder(2*i + 1); err != nil {
			return 0, false, err
		}
		if i == 0 { // what it declares counts from when it is the first there
			if err := a.await(ctx, func(seen []outcomeCounts) bool { return len(seen[len(beliefs)][opTry]) > 0 }); err != nil {
				return 0, false, err
			}
		}
	}
	const refusals = 20
	err = a.await(ctx, func(seen []outcomeCounts) bool {
		for i, b := range beliefs {
			tried := seen[len(beliefs)+i][opTry]
			if b.wrong && tried[ok] == 0 || !b.wrong && tried["no quorum"] < refusals {
				return false
			}
		}
		return true
	})
	if err != nil {
		return 0, false, err
	}
	for _, p := range holders {
		p.signal(syscall.SIGCONT)
	}
	f, err := a.finish(ctx, trial{Began: began})
	if err != nil {
		return 0, false, err
	}
	fmt.Fprintln(out, "a cluster has forgotten all locks in a failover")
	report(out, f, map[fault]int{lateTakeover: 1})
	expected := make(map[string]int)
	var keys []string // as the masters have them
	for _, b := range beliefs {
		line(out, "belief", "%s: %d overlaps, and %d by its history", b.what, f.Overlaps[b.key], f.disorders(b.key))
		if b.wrong {
			expected[b.key] = 1
			keys = append(keys, roamingPrefix+b.key)
		}
	}
	if !maps.Equal(f.Overlaps, expected) || len(f.Disorders) != len(expected) {
		fmt.Fprintln(out, "the checker has not found each of them, and nothing else")
		maps.DeleteFunc(f.Overlaps, func(key string, n int) bool { return n == expected[key] })
		return exitFailed, len(f.Overlaps) == 0 && len(f.Disorders) <= len(expected), nil
	}
	explained, err := a.explains(out, story.Forgot, keys...)
	if err != nil {
		return 0, false, err
	}
	if !explained {
		fmt.Fprintln(out, "the flight records do not tell of each of them, and of nothing else")
		return exitFailed, false, nil
	}
	fmt.Fprintln(out, "these violations are as they should be: the checker can fail")
	return exitFine, false, nil
}

// awaitAge waits until a node was started that long ago.
func (f *clusters) awaitAge(ctx context.Context, i, node int, age time.Duration) {
	patiently(ctx, "grow old", func() error {
		info, err := f.Nodes(i).Do(node, "INFO", "server")
		if err != nil {
			return err
		}
		is, err := strconv.Atoi(field(info.(string), "uptime_in_seconds"))
		if err == nil && time.Duration(is)*time.Second < age {
			err = fmt.Errorf("it is %d s old", is)
		}
		return err
	})
}
