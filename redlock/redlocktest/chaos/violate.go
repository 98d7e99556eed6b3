//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/internal/story"
)

// violate does what Redlock warns of: masters lose a lock that is held, and another client is
// given it. It does so without a fence, for each kind of lock, and with one. It also sets clocks off, freezes a holder, and gives two
// clients two lists of masters. It returns exitFine if the checker has found that both hold the lock, if the fence has
// stopped whom it should, and if the flight records tell of all that, and of its cause.
func violate(ctx context.Context, out io.Writer) (status int, err error) {
	status = exitFine
	found, err := violateRules(ctx, out)
	if err != nil {
		return 0, err
	}
	if !found {
		fmt.Fprintln(out, "the checker has not found each of them, and nothing else")
		status = exitFailed
	} else {
		fmt.Fprintln(out, "these violations are as they should be: the checker can fail")
	}
	as, err := violateClocks(ctx, out)
	if err != nil {
		return 0, err
	}
	if !as {
		fmt.Fprintln(out, "what the clocks do is not as it should be")
		status = exitFailed
	}
	parts := []func(context.Context, io.Writer) (bool, error){violateFrozen, violateLists}
	for _, o := range oblivions {
		parts = append(parts, o.violate)
	}
	for i, part := range parts {
		if i == len(parts)-len(oblivions) {
			fmt.Fprintln(out, "the first again with a fence, which the masters have forgotten, too")
		}
		as, err := part(ctx, out)
		if err != nil {
			return 0, err
		}
		if !as {
			fmt.Fprintln(out, "that is not as it should be")
			status = exitFailed
		}
	}
	return status, nil
}

// A breach is a rule that is broken: a lock is given to another client, though those who hold it, or
// its key, exclude that.
type breach struct {
	rule string
	held []lockable // each by a client of its own
	then lockable
}

// breaches have a key each. All are done at once.
var breaches = []breach{
	{"two writers", []lockable{violated(plain, "violated")}, shorter(plain, "violated")},
	{"a writer and another library's", []lockable{violated(plain, "theirs")}, violated(foreign, "theirs")},
	{"a writer beside a reader", []lockable{violated(shared, "read")}, shorter(plain, "read")},
	{"a reader beside a writer", []lockable{violated(plain, "written")}, shorter(shared, "written")},
	{"a key beside several", []lockable{violated(several, "one", "two")}, shorter(plain, "two")},
	{"several beside a key", []lockable{violated(plain, "four")}, shorter(several, "three", "four")},
	{"more than there are permits", []lockable{violated(permits, "permitted"), violated(permits, "permitted")}, shorter(permits, "permitted")},
}

// violated is a lock with a TTL that is longer than this can take.
func violated(k kind, keys ...string) lockable {
	return lockable{Kind: k, Keys: keys, TTL: 5 * time.Minute, Permits: 2}
}

// shorter is one of a client that does not know how long others hold it. A master that has forgotten locks has no vote
// for as long as the client would hold its own, which is too short.
func shorter(k kind, keys ...string) lockable {
	l := violated(k, keys...)
	l.TTL = 3 * time.Second // and long enough for what is to be seen meanwhile, on a busy machine
	return l
}

// key is the one that too many have.
func (b breach) key() string { return b.then.Keys[len(b.then.Keys)-1] }

// violateRules restarts a master without its keys, while locks that need it are held for longer than B knows.
//
//	masters     0 1 2 3 4
//	A holds     x x x . .    3 and 4 cannot be reached
//	restart         .
//	B is given      x x x
//
// It does so for each kind of lock, and reports whether the checker has found that A and B hold what
// they must not hold at once, and nothing else.
func violateRules(ctx context.Context, out io.Writer) (found bool, err error) {
	var locks []lockable
	for _, b := range breaches {
		locks = append(locks, b.held...)
	}
	first := len(locks)
	for _, b := range breaches {
		locks = append(locks, b.then)
	}
	a, began, err := holdOnThree(ctx, locks, first, false, func(seen []outcomeCounts) bool { return all(seen, opTry, ok) })
	if err != nil {
		return false, err
	}
	defer a.close()
	a.plant(2)
	a.masters.Restart(2)
	a.masters.Heal(3)
	a.masters.Heal(4)
	for i := range breaches {
		if err := a.startHolder(first + i); err != nil {
			return false, err
		}
	}
	// The writers go on incrementing, until one of the first two is overtaken.
	both := func(seen []outcomeCounts) bool {
		return all(seen, opTry, ok) && seen[0][opWrote][overtaken]+seen[first][opWrote][overtaken] > 0
	}
	if err := a.await(ctx, both); err != nil {
		return false, err
	}
	f, err := a.finish(ctx, trial{Began: began})
	if err != nil {
		return false, err
	}
	fmt.Fprintln(out, "a master of a quorum was restarted at once, without its keys")
	report(out, f, map[fault]int{"master restarted at once": 1})
	var recorded []string
	found = len(f.Overlaps) == len(breaches) && len(f.Disorders) == len(breaches)
	for _, b := range breaches {
		line(out, "breach", "%s: %d found, and %d by its history", b.rule, f.Overlaps[b.key()], f.disorders(b.key()))
		found = found && f.Overlaps[b.key()] == 1 && f.disorders(b.key()) == 1
		if b.then.Kind != foreign { // the other library records nothing
			recorded = append(recorded, b.key())
		}
	}
	explained, err := a.explains(out, story.Forgot, recorded...)
	return found && explained, err
}

// all reports whether each of the clients has had this outcome.
func all(seen []outcomeCounts, o op, outcome string) bool {
	return !slices.ContainsFunc(seen, func(c outcomeCounts) bool { return c[o][outcome] == 0 })
}

// An oblivion is a way in which no quorum remembers the fence of a lock that is held.
//
//	masters     0 1 2 3 4
//	A holds     x x x . .    3 and 4 cannot be reached
//	down        . . .        for the downtime; or 2 alone, and 0 and 1 are cut off for good
//	B is given  x x x x x    by a clock that is behind A's
type oblivion struct {
	what    string
	restart []int
	cutOff  []int
	behind  time.Duration
}

// downtime is how long the masters are down, at least.
const downtime = 500 * time.Millisecond

var (
	majorityForgets = oblivion{what: "all three masters of the lock restarted", restart: []int{0, 1, 2}}
	oneForgets      = oblivion{what: "one of the three restarted, and the others cut off,", restart: []int{2}, cutOff: []int{0, 1}}
)

// oblivions are with clocks in step, and apart by less than the downtime and by far more.
var oblivions = []oblivion{
	majorityForgets, majorityForgets.with(downtime / 2), majorityForgets.with(time.Minute),
	oneForgets, oneForgets.with(time.Minute),
}

func (o oblivion) with(behind time.Duration) oblivion {
	o.behind = behind
	return o
}

// violate reports whether the fence has stopped A, the earlier holder, if the clocks differ by
// less than the downtime, and B if they do by more.
func (o oblivion) violate(ctx context.Context, out io.Writer) (as bool, err error) {
	locks := []lockable{violated(plain, "violated"), shorter(plain, "violated")} // A's, and B's
	a, began, err := holdOnThree(ctx, locks, 1, true, func(seen []outcomeCounts) bool { return all(seen, opWrote, ok) })
	if err != nil {
		return false, err
	}
	defer a.close()
	for _, i := range o.cutOff {
		a.masters.Break(i)
	}
	a.plant(o.restart...)
	for _, i := range o.restart {
		a.masters.Kill(i)
	}
	if !sleep(ctx, downtime) {
		return false, errInterrupted
	}
	for _, i := range o.restart {
		a.masters.Restart(i)
	}
	a.masters.Heal(3)
	a.masters.Heal(4)
	a.fleet.config.Skew = -o.behind
	// Both go on incrementing, until one of them is refused, and the other has written after that.
	before := -1
	enough := func(seen []outcomeCounts) bool {
		stopped := 0
		if seen[1][opWrote][refused] > 0 {
			stopped = 1
		}
		goesOn := seen[1-stopped][opWrote][ok]
		if before < 0 && seen[stopped][opWrote][refused] > 0 {
			before = goesOn
		}
		return before >= 0 && goesOn > before
	}
	if err := a.startHolder(1); err != nil {
		return false, err
	}
	if err := a.await(ctx, enough); err != nil {
		return false, err
	}
	f, err := a.finish(ctx, trial{Began: began})
	if err != nil {
		return false, err
	}
	return o.report(out, a, f)
}

// report says whose fence was greater, and whom that stopped.
func (o oblivion) report(out io.Writer, a *arena, f finding) (as bool, err error) {
	logs, err := a.fleet.logs()
	if err != nil {
		return false, err
	}
	fences, writes := make([]time.Duration, 2), make([]outcomeCounts, 2)
	for i, l := range logs {
		writes[i] = make(outcomeCounts)
		for _, r := range l.Records {
			if r.Fence != 0 {
				fences[i] = time.Duration(r.Fence) * time.Microsecond // since 1970
			}
			writes[i].add(r)
		}
	}
	refusals := func(i int) int { return writes[i][opWrote][refused] }
	more := (fences[1] - fences[0]).Round(time.Millisecond)
	line(out, "fence", "%s after %v; B's clock is %v behind A's", o.what, downtime, o.behind)
	if more > 0 {
		line(out, "", "B's fence is %v greater. It stops A, the earlier holder: %d writes of A and %d of B were refused", more, refusals(0), refusals(1))
	} else {
		line(out, "", "B's fence is %v lower. It stops B, the later holder: %d writes of A and %d of B were refused", -more, refusals(0), refusals(1))
	}
	line(out, "", "it is greater if B's clock is less than %v behind: the time between their locks", more+o.behind)
	stopped := 0
	if o.behind > downtime {
		stopped = 1
	}
	as = len(f.Overlaps) > 0 && len(f.Disorders) > 0 && len(f.Harm) == 0 && f.Backward == stopped && refusals(stopped) > 0 && refusals(1-stopped) == 0
	explained, err := a.explains(out, story.Forgot, "violated")
	if as = as && explained; !as {
		report(out, f, nil)
	}
	return as, err
}

// holdOnThree starts the clients that hold the first of these locks, so many, while masters 3 and 4
// cannot be reached. It returns when enough was seen of what each has recorded.
func holdOnThree(ctx context.Context, locks []lockable, first int, fenced bool, enough func([]outcomeCounts) bool) (a *arena, began time.Duration, err error) {
	if a, err = newArena(masterCount, locks, clientConfig{Holder: true, Fenced: fenced}, false, nil); err != nil {
		return nil, 0, err
	}
	began = clock.Now()
	a.masters.Break(3)
	a.masters.Break(4)
	for i := 0; i < first && err == nil; i++ {
		err = a.startHolder(i)
	}
	if err == nil {
		err = a.await(ctx, enough)
	}
	if err != nil {
		a.close()
		return nil, 0, err
	}
	return a, began, nil
}

// finish ends the clients, and has the checker judge them. One that has died is an error: a violation that it leads to is
// none that was planted.
func (a *arena) finish(ctx context.Context, t trial) (finding, error) {
	a.fleet.finish(ctx)
	if ctx.Err() != nil {
		return finding{}, errInterrupted
	}
	f, err := a.judge(t)
	if err == nil && len(f.Deaths) > 0 {
		err = errors.New(strings.Join(f.Deaths, "\n"))
	}
	return f, err
}

// startHolder starts the client that holds lock i.
func (a *arena) startHolder(i int) error {
	a.fleet.config.Held = i
	_, err := a.fleet.start(i)
	return err
}

// await waits until enough was seen of what each client has recorded. It does so for a limited
// time: if that never happens, the checker has something to say of it.
func (a *arena) await(ctx context.Context, enough func([]outcomeCounts) bool) error {
	for deadline := clock.Now() + 2*patience; clock.Now() < deadline; {
		var seen []outcomeCounts
		for _, p := range a.fleet.all {
			records, err := readJournal(p.journal)
			if err != nil {
				return err
			}
			counts := make(outcomeCounts)
			for _, r := range records {
				counts.add(r)
			}
			seen = append(seen, counts)
		}
		if enough(seen) {
			return nil
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return errInterrupted
		}
	}
	return nil
}
