//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/redlock/redlocktest/internal/ci"
)

// promised is by how much the masters' clocks may run faster than ours, or slower, without harm: a
// little less than the default of redlock.Config.DriftFactor.
const promised = 0.009

// ownClocks has the masters have clocks of their own. Where these are not to be had, it says why.
// The gate has them.
func ownClocks() (opts []redlocktest.Option, missing, err error) {
	missing = redlocktest.Available(redlocktest.WithClocks())
	if missing == nil {
		return []redlocktest.Option{redlocktest.WithClocks()}, nil, nil
	}
	if ci.Runs() {
		return nil, nil, missing
	}
	return nil, missing, nil
}

// drifts are what the masters' clocks gain on ours while a storm lasts: of about half of them, all that
// is promised. They follow from the arguments.
func drifts(seed uint64, masters int) []float64 {
	rng := rand.New(rand.NewPCG(seed, 2))
	all := make([]float64, masters)
	for i := range all {
		all[i] = promised
		if rng.IntN(2) == 0 {
			all[i] *= 2*rng.Float64() - 1
		}
	}
	return all
}

// drift sets the masters' clocks off, and returns what it has done.
func (a *arena) drift(shares []float64) string {
	var said []string
	for i, share := range shares {
		a.masters.Drift(i, share)
		said = append(said, fmt.Sprintf("%+.2f %%", 100*share))
	}
	return strings.Join(said, ", ")
}

// violateClocks sets the masters' clocks off, by no more than what is promised and by more. It reports
// whether there were two holders where there must be, and one where not.
func violateClocks(ctx context.Context, out io.Writer) (as bool, err error) {
	opts, missing, err := ownClocks()
	if missing != nil {
		line(out, "clocks", "not set off: %v", missing)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	parts := []func(context.Context, io.Writer, []redlocktest.Option) (bool, error){runWithin, runBeyond, jump}
	outs, found, errs := make([]bytes.Buffer, len(parts)), make([]bool, len(parts)), make([]error, len(parts))
	var running sync.WaitGroup
	for i, part := range parts {
		running.Go(func() { found[i], errs[i] = part(ctx, &outs[i], opts) })
	}
	running.Wait()
	as = true
	for i := range parts {
		out.Write(outs[i].Bytes())
		as = as && found[i]
	}
	return as, errors.Join(errs...)
}

// driftTTL is long enough for an overlap that a busy machine does not miss: at 30 % fast, a key is gone
// 660 ms before the validity ends.
const driftTTL = 3 * time.Second

// runWithin has all masters run as fast as they may.
func runWithin(ctx context.Context, out io.Writer, opts []redlocktest.Option) (as bool, err error) {
	const fast = promised
	a, f, err := takeTurns(ctx, opts, []float64{fast, fast, fast, fast, fast}, driftLock{"within", 0})
	if err != nil {
		return false, err
	}
	defer a.close()
	line(out, "clocks", "all masters %.1f %% fast: %d overlaps, and %d other violations", 100*fast, f.Overlaps["within"], len(f.Violations)-f.Overlaps["within"])
	explained, err := a.explains(out, story.ClockSet)
	return explained && len(f.Violations) == 0, err
}

// runBeyond has a majority of the masters run 30 % fast. Those who allow for that are not harmed.
func runBeyond(ctx context.Context, out io.Writer, opts []redlocktest.Option) (as bool, err error) {
	const fast, tries = 0.3, 3
	for range tries { // the second holder may come late, on a busy machine
		began := time.Now()
		a, f, err := takeTurns(ctx, opts, []float64{fast, fast, fast, 0, 0}, driftLock{"default", 0}, driftLock{"allowed", fast + 0.01})
		if err != nil {
			return false, err
		}
		defer a.close()
		a.plant(0, 1, 2)
		a.planted.at = began
		line(out, "clocks", "a majority %.0f %% fast: %d overlaps with the default drift, %d with a DriftFactor of %.2f",
			100*fast, f.Overlaps["default"], f.Overlaps["allowed"], fast+0.01)
		switch {
		case maps.Equal(f.Overlaps, map[string]int{"default": 1}):
			return a.explains(out, story.ClockSet, "default")
		case len(f.Overlaps) > 0:
			return false, nil
		}
	}
	return false, nil
}

// A driftLock is a key whose holders allow for a drift.
type driftLock struct {
	key    string
	factor float64 // redlock.Config.DriftFactor
}

// takeTurns has a client hold each lock until its validity ends, and another take it as soon as it is to be
// had, while the masters' clocks run so fast. The arena is the caller's to close.
func takeTurns(ctx context.Context, opts []redlocktest.Option, shares []float64, turns ...driftLock) (_ *arena, f finding, err error) {
	var locks []lockable
	for _, l := range turns {
		locks = append(locks, lockable{Kind: plain, Keys: []string{l.key}, TTL: driftTTL})
	}
	a, err := newArena(masterCount, locks, clientConfig{Holder: true}, false, nil, opts...)
	if err != nil {
		return nil, finding{}, err
	}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	a.drift(shares)
	for range 2 {
		for i, l := range turns {
			a.fleet.config.DriftFactor = l.factor
			if err := a.startHolder(i); err != nil {
				return nil, finding{}, err
			}
		}
		if err := a.await(ctx, func(seen []outcomeCounts) bool { return all(seen, opTry, ok) }); err != nil {
			return nil, finding{}, err
		}
	}
	f, err = a.finish(ctx, trial{})
	return a, f, err
}

// jump sets the masters' clocks while A holds a lock for five minutes, and B, whose own wall clock is an hour
// behind, tries for it.
//
//	masters              0 1 2 3 4
//	A holds              x x x x x
//	set an hour back     x x x x x    B is refused
//	set forward                x x    B is refused
//	set forward              x        B is given the lock, and a greater fence
func jump(ctx context.Context, out io.Writer, opts []redlocktest.Option) (as bool, err error) {
	locks := []lockable{violated(plain, "jumped"), violated(plain, "jumped")} // A's, and B's
	a, err := newArena(masterCount, locks, clientConfig{Holder: true, Fenced: true, Everywhere: true}, false, nil, opts...)
	if err != nil {
		return false, err
	}
	defer a.close()
	if err := a.startHolder(0); err != nil {
		return false, err
	}
	if err := a.await(ctx, func(seen []outcomeCounts) bool { return all(seen, opTry, ok) }); err != nil {
		return false, err
	}
	a.fleet.config.Skew = -time.Hour
	if err := a.startHolder(1); err != nil {
		return false, err
	}
	// refusals is how often B is refused after the clocks were set, if it is not given the lock.
	refusals := func(by time.Duration, masters ...int) (n int, err error) {
		for _, i := range masters {
			a.masters.Jump(i, by)
		}
		before := -1
		err = a.await(ctx, func(seen []outcomeCounts) bool {
			if before < 0 {
				before = seen[1][opTry]["held"]
			}
			n = seen[1][opTry]["held"] - before
			return n >= 20 || seen[1][opTry][ok] > 0
		})
		return n, err
	}
	back, err := refusals(-time.Hour, 0, 1, 2, 3, 4)
	if err != nil {
		return false, err
	}
	minority, err := refusals(2*time.Hour, 3, 4)
	if err != nil {
		return false, err
	}
	a.plant(2, 3, 4)
	a.masters.Jump(2, 2*time.Hour)
	if err := a.await(ctx, func(seen []outcomeCounts) bool { return all(seen, opTry, ok) && seen[1][opWrote][ok] > 0 }); err != nil {
		return false, err
	}
	f, err := a.finish(ctx, trial{})
	if err != nil {
		return false, err
	}
	line(out, "clocks", "all masters set back by an hour: B was refused %d times; then a minority set forward: %d times", back, minority)
	line(out, "", "then a majority set forward: %d overlaps. B's clock is an hour behind A's; %d fences are lower than an earlier one", f.Overlaps["jumped"], f.Backward)
	explained, err := a.explains(out, story.ClockSet, "jumped")
	return explained && back >= 20 && minority >= 20 && f.Overlaps["jumped"] == 1 && f.Backward == 0, err
}
