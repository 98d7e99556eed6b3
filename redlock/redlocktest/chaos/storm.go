//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/internal/story"
)

const (
	workerCount = 16 // in each client
	serverCount = masterCount + 1

	// progressBound is within how long each key is to be taken while a majority
	// of the masters is up. It is ten times what is usual, for busy machines.
	progressBound = 15 * time.Second

	// clockSpread is how far the clients' wall clocks are apart. A client whose clock is behind
	// counts on from the masters' numbers, which differ where a master has missed some.
	clockSpread = 800 * time.Millisecond

	// leastLate is how many late writes the fence must have refused, or, if it is ignored, how
	// many increments must be lost. If there are not so many yet when the faults are over, the
	// clients go on until there are.
	leastLate = 3
)

// spoiledKey is that whose fence's counter is spoiled now and then.
const (
	spoiledKey     = "hot"
	spoiledCounter = "{" + spoiledKey + "}:fence"
)

// stormLocks are what the clients fight for. Those that are used in the same way are on the same keys.
var stormLocks = []lockable{
	{Kind: plain, Keys: []string{spoiledKey}, TTL: 300 * time.Millisecond}, // the one that they want most
	{Kind: plain, Keys: []string{"a"}, TTL: 400 * time.Millisecond},
	{Kind: plain, Keys: []string{"b"}, TTL: 800 * time.Millisecond},
	{Kind: plain, Keys: []string{"c"}, TTL: 1600 * time.Millisecond},
	{Kind: several, Keys: []string{"a", "b"}, TTL: 400 * time.Millisecond},
	{Kind: several, Keys: []string{"c", "b"}, TTL: 1600 * time.Millisecond},
	{Kind: several, Keys: []string{"b", "a", "c"}, TTL: 800 * time.Millisecond},
	{Kind: shared, Keys: []string{"a"}, TTL: 400 * time.Millisecond},
	{Kind: shared, Keys: []string{"b"}, TTL: 400 * time.Millisecond},
	{Kind: shared, Keys: []string{"b"}, TTL: 1600 * time.Millisecond},
	{Kind: permits, Keys: []string{"three"}, TTL: 400 * time.Millisecond, Permits: 3},
	{Kind: foreign, Keys: []string{"a"}, TTL: 400 * time.Millisecond},
	{Kind: foreign, Keys: []string{"b"}, TTL: 800 * time.Millisecond},
	// These end soon, so that much happens to them at the end of their validity.
	{Kind: plain, Keys: []string{"d"}, TTL: 150 * time.Millisecond},
	{Kind: plain, Keys: []string{"e"}, TTL: 200 * time.Millisecond},
	{Kind: several, Keys: []string{"e", "d"}, TTL: 150 * time.Millisecond},
	{Kind: shared, Keys: []string{"e"}, TTL: 150 * time.Millisecond},
	{Kind: permits, Keys: []string{"four"}, TTL: 150 * time.Millisecond, Permits: 4},
	// These are held all the time, by those who have left them.
	{Kind: plain, Keys: []string{"r"}, TTL: 1600 * time.Millisecond, Left: true},
	{Kind: plain, Keys: []string{"s"}, TTL: 1200 * time.Millisecond, Left: true},
	{Kind: several, Keys: []string{"t", "u"}, TTL: 1600 * time.Millisecond, Left: true},
	{Kind: plain, Keys: []string{"u"}, TTL: 800 * time.Millisecond, Left: true},
	{Kind: shared, Keys: []string{"t"}, TTL: 400 * time.Millisecond, Left: true},
	{Kind: shared, Keys: []string{"x"}, TTL: 1200 * time.Millisecond, Left: true},
	{Kind: shared, Keys: []string{"x"}, TTL: 200 * time.Millisecond, Left: true},
	{Kind: plain, Keys: []string{"x"}, TTL: 150 * time.Millisecond, Left: true},
	{Kind: several, Keys: []string{"y", "z"}, TTL: 200 * time.Millisecond, Left: true},
	{Kind: plain, Keys: []string{"z"}, TTL: 150 * time.Millisecond, Left: true},
	{Kind: plain, Keys: []string{"v"}, TTL: 100 * time.Millisecond, Extended: true},
	{Kind: several, Keys: []string{"w", "v"}, TTL: 150 * time.Millisecond, Extended: true},
	{Kind: shared, Keys: []string{"w"}, TTL: 100 * time.Millisecond, Extended: true},
	// Those who come first with a number of permits have theirs, and those with another none. These are
	// refused again and again, and the others never, so that they go on relying on what they know.
	{Kind: permits, Keys: []string{"two"}, TTL: 800 * time.Millisecond, Permits: 2, Side: even, Left: true},
	{Kind: permits, Keys: []string{"two"}, TTL: 800 * time.Millisecond, Permits: 3, Side: odd, Left: true},
	{Kind: plain, Keys: []string{"m"}, TTL: 200 * time.Millisecond, MinHold: 500 * time.Millisecond},
	{Kind: plain, Keys: []string{"p"}, TTL: 400 * time.Millisecond, Second: true},
	{Kind: plain, Keys: []string{"q"}, TTL: 150 * time.Millisecond, Second: true},
	{Kind: plain, Keys: []string{"l"}, TTL: 400 * time.Millisecond, Led: true},
	{Kind: plain, Keys: []string{"n"}, TTL: 300 * time.Millisecond, Led: true},
	{Kind: plain, Keys: []string{"o"}, TTL: 150 * time.Millisecond, HandedOver: true},
	{Kind: shared, Keys: []string{"o"}, TTL: 150 * time.Millisecond, HandedOver: true},
	{Kind: shared, Keys: []string{"o"}, TTL: 400 * time.Millisecond, Left: true},
	{Kind: plain, Keys: []string{"g"}, TTL: 300 * time.Millisecond, Passed: true},
	{Kind: several, Keys: []string{"h", "i"}, TTL: 150 * time.Millisecond, Passed: true},
}

// An order says what storm is to do.
type order struct {
	arena    string
	masters  int // that are roaming
	duration time.Duration
	seed     uint64
	clients  int
	unfenced bool // the resource looks at no fence
	linked   bool // links carry the traffic, also where network namespaces are permitted
}

// storm tests the lock. It returns the exit status, or why there is none.
func storm(ctx context.Context, out io.Writer, o order) (status int, err error) {
	duration, seed, clients, unfenced := o.duration, o.seed, o.clients, o.unfenced
	longest := longestOf(stormLocks)
	config := clientConfig{Seed: seed, Workers: workerCount, RestartGuard: restartGuard(longest)}
	a, strikes, said, err := o.enter(config, longest)
	if err != nil {
		return 0, err
	}
	a.fleet.spread = clockSpread
	defer a.close()
	masters := a.voters()
	fmt.Fprintf(out, "%v of faults, seed %d: %d masters, %d clients with %d workers each\n", duration, seed, masters.N(), clients, workerCount)
	again := fmt.Sprintf("go run ./redlock/redlocktest/chaos -seed %d -duration %v -clients %d", seed, duration, clients)
	if unfenced {
		again += " -unfenced"
	}
	switch {
	case a.roaming != nil:
		again += fmt.Sprintf(" -arena %s -masters %d", o.arena, o.masters)
	case a.spaces == nil:
		again += " -links"
	}
	line(out, "the same again", "%s", again)
	fmt.Fprint(out, said)
	t, began := trial{Began: clock.Now(), Bound: progressBound, LongEnough: progressBound}, wallClock()
	if clients > 1 { // otherwise nobody is there while it is frozen
		t.LeastLate = leastLate
	}
	t.EachKey = clients > doubledPlace // in the places before, some take only what is safe without a RestartGuard
	for i := range clients {
		if _, err := a.fleet.start(i); err != nil {
			return 0, err
		}
	}
	n := newNemesis(masters, a.fleet, a.resource, longest)
	n.traffic, n.users, n.alone = a.traffic, a.users, a.spaces != nil
	s := startSampler(masters, n, a.locks, a.fleet.config.Prefix)
	defer s.cancel() // without waiting for it, which may wait for a frozen master
	err = n.run(ctx, strikes)
	if ctx.Err() != nil {
		return 0, errInterrupted
	}
	if err != nil {
		return 0, err
	}
	sleep(ctx, t.Began+duration-clock.Now()) // the plan may end earlier
	n.lateWrites(ctx, t.LeastLate, longest)
	if t.LeastLate == 0 { // so nothing has waited for a lock
		if err := a.await(ctx, hasLock); err != nil {
			return 0, err
		}
	}
	t.Up, t.Forgot, t.Unread = n.majorityUp(), n.forgot, n.unread
	a.fleet.finish(ctx)
	if ctx.Err() != nil {
		return 0, errInterrupted
	}
	s.stop()
	t.Masters, t.Roaming, t.Seen = masters.N(), a.roaming != nil, s.seen
	f, told, missing, err := a.verdict(ctx, t, longest)
	if err != nil {
		return 0, err
	}
	f.Violations = append(f.Violations, s.violations...)
	for _, kind := range o.faults(a) {
		if n.faults[kind] += 0; n.faults[kind] == 0 && duration >= longRun {
			f.Violations = append(f.Violations, fmt.Sprintf("%q never happened", kind))
		}
	}
	switch {
	case !unfenced:
		f.Violations, f.Harm = append(f.Violations, f.Harm...), nil
	case f.Lost < t.LeastLate:
		f.Violations = append(f.Violations, fmt.Sprintf("%d increments are lost, though the fence is ignored: the test cannot fail", f.Lost))
	}
	report(out, f, n.faults)
	if len(missing) > 0 {
		line(out, "explain", "without %s: killed before their flight records had a head", strings.Join(missing, ", "))
	}
	line(out, "told", "%s", counts(kinds(told)))
	line(out, "keys", "%d samples of a PTTL", s.samples)
	// The masters expire keys by it, so that it explains much if it jumps forward.
	line(out, "clock", "the wall clock gained %v", wallClock()-began)
	if len(f.Violations)+len(f.Disorders) == 0 {
		if unfenced {
			fmt.Fprintln(out, "what was lost is as it should be: the fence was ignored")
		}
		fmt.Fprintln(out, "no violation")
		return exitFine, nil
	}
	dir := a.keep()
	if err := f.draw(dir); err != nil {
		return 0, err
	}
	fmt.Fprintf(out, "%d violations; the clients' records are in %s\nFor the same faults again: %s\n", len(f.Violations)+len(f.Disorders), dir, again)
	return exitFailed, nil
}

// hasLock reports whether some client has taken a lock.
func hasLock(seen []outcomeCounts) bool {
	return slices.ContainsFunc(seen, func(c outcomeCounts) bool { return c[opTry][ok]+c[opLock][ok] > 0 })
}

// verdict judges what a storm has left. An error beside the judge's own is a violation: it must not hide what the
// judge has found.
func (a *arena) verdict(ctx context.Context, t trial, longest time.Duration) (f finding, told []story.Finding, missing []string, err error) {
	left, err := a.keysLeft(ctx, longest)
	switch {
	case ctx.Err() != nil:
		return f, nil, nil, errInterrupted
	case err != nil:
		left = append(left, "keys: "+err.Error())
	}
	if f, err = a.judge(t); err != nil {
		return f, nil, nil, fmt.Errorf("%w; the clients' records are in %s", err, a.keep())
	}
	if len(f.Taken) == 0 {
		left = append(left, "no lock was taken")
	}
	told, missing, err = a.explain()
	if err != nil {
		left = append(left, "explain: "+err.Error())
	}
	for _, t := range told {
		if t.Matter == story.Overlap && !t.Maybe {
			f.Violations = append(f.Violations, "explain: "+t.Text)
		}
	}
	f.Violations = append(f.Violations, left...)
	return f, told, missing, nil
}

// enter makes the arena, and the schedule of the faults. said is what the report says of the arena.
func (o order) enter(config clientConfig, longest time.Duration) (a *arena, strikes []strike, said string, err error) {
	if o.arena != ofMasters {
		if a, err = newRoamingArena(o.arena, o.masters, roamingLocks(), config, o.unfenced); err != nil {
			return nil, nil, "", err
		}
		return a, siege(o.seed, o.duration, o.masters, o.clients, longest, a.roaming.faults()), "", nil
	}
	clocks, noClocks, err := ownClocks()
	if err != nil {
		return nil, nil, "", err
	}
	spaces, why, err := spacesFor(o.clients, o.linked)
	if err != nil {
		return nil, nil, "", err
	}
	if a, err = newArena(serverCount, stormLocks, config, o.unfenced, spaces, append(clocks, masterArgs)...); err != nil {
		return nil, nil, "", err
	}
	a.fleet.unlike, a.clocks = true, noClocks == nil
	strikes = plan(o.seed, o.duration, masterCount, o.clients, longest, a.forgetting())
	if spaces != nil {
		strikes = slices.Concat(strikes, partitions(o.seed, o.duration, masterCount, o.clients))
		slices.SortStableFunc(strikes, byTime)
	}
	var out strings.Builder
	line(&out, "network", "%s", why)
	if noClocks == nil {
		line(&out, "clocks", "the masters' gain on ours %s", a.drift(drifts(o.seed, serverCount)))
	} else {
		line(&out, "clocks", "all go alike: %v", noClocks)
	}
	return a, strikes, out.String(), nil
}

// longRun is for how long a run must last at least so that each fault must have happened in it.
const longRun = 10 * time.Minute

// faults are those that are to happen in the arena.
func (o order) faults(a *arena) (all []fault) {
	if a.roaming != nil {
		all = slices.Concat(a.roaming.faults(), ofClients, []fault{reset, junk})
	} else {
		all = slices.Concat(lasting, passing, ofClients, a.forgetting())
	}
	if a.voters().N() > 1 {
		all = append(all, junkBeside)
	}
	if a.spaces != nil {
		for _, f := range partial {
			all = append(all, f.ways()...)
		}
		all = append(all, renamed)
	}
	if o.clients == 1 { // nobody is there while a writer is frozen
		all = slices.DeleteFunc(all, func(f fault) bool { return f == freezeWriter })
	}
	return all
}

// forgetting are the ways in which the arena's masters can forget.
func (a *arena) forgetting() (all []fault) {
	for _, f := range forgetting {
		if (f != bootClock || a.clocks) && (f != withACL || a.users.deployed != "") {
			all = append(all, f)
		}
	}
	return all
}

// wallClock is the wall clock, less clock.Now.
func wallClock() time.Duration { return time.Duration(time.Now().UnixNano()) - clock.Now() }
