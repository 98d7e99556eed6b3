package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// show runs the steps. Each of them checks what it says.
func (d *demo) show(ctx context.Context) error {
	lock := d.alice.NewMutex(d.key, demoTTL)
	defer func() {
		if lock.Token() != "" { // the show was stopped
			lock.Unlock(context.WithoutCancel(ctx))
		}
	}()
	for _, step := range []func(context.Context, *redlock.Mutex) error{
		d.showTaking, d.showRefusal, d.showFailures, d.showRelease,
	} {
		if err := step(ctx, lock); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) title(text string) { d.printf("%s\n", d.paint(bold, text)) }

func (d *demo) step(n int, text string) {
	d.printf("\n%s\n\n", d.paint(bold, fmt.Sprintf("%d. %s", n, text)))
}

func (d *demo) quorum() int { return quorum.Majority(len(d.masters)) }

func (d *demo) showTaking(ctx context.Context, lock *redlock.Mutex) error {
	d.step(1, fmt.Sprintf("alice takes the lock, with a TTL of %v", demoTTL))
	if _, err := d.measure(ctx); err != nil { // warm up
		return err
	}
	if err := lock.TryLock(ctx); err != nil {
		return err
	}
	round, validity := d.last(), lock.Remaining()
	// Nobody has waited for the late votes, so they have no time. Holders waits for them.
	info, err := d.alice.Holders(ctx, d.key)
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, h := range info.Holders {
		for _, addr := range h.Masters {
			has[addr] = has[addr] || h.Token.Reveal() == lock.Token()
		}
	}
	slices.SortStableFunc(round.Votes, func(a, b redlock.Vote) int { // in the order of arrival
		return cmp.Compare(cmp.Or(a.RTT, time.Hour), cmp.Or(b.RTT, time.Hour))
	})
	late := 0
	yes := 0
	rows := [][]cell{header("MASTER", "AFTER", "VOTE")}
	for _, v := range round.Votes {
		row := []cell{{v.Addr, plain}, {"-", dim}, {}}
		switch {
		case v.Verdict == "yes":
			yes++
			row[1], row[2] = cell{brief(v.RTT), plain}, cell{"yes", green}
			if yes == d.quorum() {
				row[2].text = fmt.Sprintf("yes   %d of %d: taken", yes, len(d.masters))
			}
		case v.Verdict == "pending" && has[v.Addr]:
			late++
			row[1], row[2] = cell{"late", dim}, cell{"yes", dim}
		case v.Verdict == "failed":
			row[2] = cell{without(v.Err, v.Addr), red}
		default:
			row[2] = cell{"no", red}
		}
		rows = append(rows, row)
	}
	if last := len(round.Votes) - 1; d.ours != nil { // a vote that came too late counts only once an extension has confirmed it
		d.frozen, d.killed = slices.Index(d.masters, round.Votes[last-1].Addr), slices.Index(d.masters, round.Votes[last].Addr)
	}
	d.table("   ", 1, rows)
	d.printf("\n   %d of %d decided in %s.", d.quorum(), len(d.masters), brief(round.Took))
	if late > 0 {
		d.printf(" %s came late, and nobody waited.", plural(late, "vote"))
	}
	d.printf("\n   token     %s\n", lock.Token())
	d.say("   validity  ", plain, fmt.Sprintf("%.3fs: the TTL, less the time it took, less 1 %% and 2ms for clocks that differ", validity.Seconds()))
	if yes < d.quorum() || validity <= 0 || validity >= demoTTL {
		return fmt.Errorf("the lock was taken with %d votes, and a validity of %v", yes, validity)
	}
	return nil
}

func (d *demo) showRefusal(ctx context.Context, _ *redlock.Mutex) error {
	d.step(2, "bob wants it as well")
	if err := d.bob.Do(ctx, d.key+roundsKey, demoTTL, func(context.Context) error { return nil }); err != nil { // warm up
		return err
	}
	asked := time.Now()
	err := d.bob.NewMutex(d.key, demoTTL).TryLock(ctx)
	took := time.Since(asked)
	if err == nil {
		return errors.New("bob got the lock that alice holds")
	}
	if !errors.Is(err, redlock.ErrHeld) {
		return fmt.Errorf("bob was refused for a wrong reason: %w", err)
	}
	info, err := d.bob.Holders(ctx, d.key)
	if err != nil {
		return err
	}
	if !info.Held || info.Holders[0].Owner != "alice" {
		return errors.New("the lock is not held by alice")
	}
	h := info.Holders[0]
	d.say("   ", plain, fmt.Sprintf("refused after %s: held by %s, on %d of %d masters, %s",
		brief(took), h.Owner, len(h.Masters), info.Masters, leftText(h.TTL)))
	return nil
}

func (d *demo) showFailures(ctx context.Context, _ *redlock.Mutex) error {
	d.step(3, "Masters fail: how long it takes to lock and to release another key")
	rows := [][]cell{header("MEDIANS", "LOCK", "RELEASE", "ROUNDS")}
	var first, slowest time.Duration
	measureRow := func(what string) error {
		m, err := d.measure(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		rows = append(rows, []cell{{what, plain}, {brief(m.lock), plain}, {brief(m.release), plain}, {strconv.Itoa(m.rounds), dim}})
		first, slowest = cmp.Or(first, m.lock), max(slowest, m.lock)
		return nil
	}
	if d.ours == nil {
		err := measureRow("your masters as they are")
		d.table("   ", 1, rows)
		d.printf("\n   Skipped on masters of yours: freezing one, killing one.\n")
		return err
	}
	if err := measureRow("all 5 are up"); err != nil {
		return err
	}
	if err := d.ours.Pause(d.frozen); err != nil {
		return fmt.Errorf("freeze %s: %w", d.masters[d.frozen], err)
	}
	how := ""
	if d.ours.PID(d.frozen) != 0 {
		how = " (SIGSTOP)"
	}
	if err := measureRow("one is frozen" + how); err != nil {
		return err
	}
	if err := d.ours.Kill(d.killed); err != nil {
		return fmt.Errorf("kill %s: %w", d.masters[d.killed], err)
	}
	if err := measureRow("... and another one killed"); err != nil {
		return err
	}
	d.table("   ", 1, rows)
	if slowest > demoPatient/2 {
		return fmt.Errorf("a lock took %v while masters were down, and %v before", slowest, first)
	}
	d.printf("\n   Three are a majority, and nobody waits for the others.\n")
	return nil
}

// roundsKey is appended to the demo's key for the locks that measure takes.
const roundsKey = ":rounds"

// A measurement is the median times that a lock and a release took.
type measurement struct {
	lock, release time.Duration
	rounds        int
}

// measure locks and releases another key, many times.
func (d *demo) measure(ctx context.Context) (measurement, error) {
	mutex := d.alice.NewMutex(d.key+roundsKey, demoTTL)
	var locks, releases []time.Duration
	for end := time.Now().Add(demoRowTime); len(locks) == 0 || len(locks) < demoRounds && time.Now().Before(end); {
		if err := mutex.TryLock(ctx); err != nil {
			return measurement{}, err
		}
		locks = append(locks, d.last().Took)
		if err := mutex.Unlock(ctx); err != nil {
			return measurement{}, err
		}
		releases = append(releases, d.last().Took)
	}
	slices.Sort(locks)
	slices.Sort(releases)
	n := len(locks)
	return measurement{locks[n/2], releases[n/2], n}, nil
}

func (d *demo) showRelease(ctx context.Context, lock *redlock.Mutex) error {
	d.step(4, "alice extends her lock, and releases it")
	before := lock.Remaining()
	if err := lock.Extend(ctx); err != nil {
		return err
	}
	after := lock.Remaining()
	d.printf("   extended in %s: valid for %.3fs instead of %.3fs\n", brief(d.last().Took), after.Seconds(), before.Seconds())
	if after <= before {
		return fmt.Errorf("the lock was valid for %v before it was extended, and for %v afterwards", before, after)
	}
	if err := lock.Unlock(ctx); err != nil {
		return err
	}
	d.printf("   released in %s\n", brief(d.last().Took))
	back := map[string]string{}
	if d.ours != nil {
		if err := errors.Join(d.ours.Resume(d.frozen), d.ours.Restart(d.killed)); err != nil {
			return fmt.Errorf("start %s and %s again: %w", d.masters[d.frozen], d.masters[d.killed], err)
		}
		back[d.masters[d.frozen]] = ": it was resumed, and then got the release"
		back[d.masters[d.killed]] = ", like everything that it had when it was killed"
	}
	// A frozen master gets the release when it goes on.
	var all []answer
	left := func(h answer) bool { return !h.Token.IsZero() || h.Err != nil && d.ours != nil }
	gone := func(key string) bool {
		all = d.holders(ctx, key)
		return !slices.ContainsFunc(all, left)
	}
	err := d.until(ctx, 5*time.Second, func() bool { return gone(d.key+roundsKey) && gone(d.key) })
	if err != nil {
		return err
	}
	rows := [][]cell{header("MASTER", "THE KEY")}
	for _, h := range all {
		row := []cell{{h.Addr, plain}, {"is gone" + back[h.Addr], plain}}
		switch {
		case h.Err != nil:
			row[1] = cell{without(h.Err, h.Addr), red}
		case !h.Token.IsZero():
			row[1] = cell{"is still there", red}
		}
		rows = append(rows, row)
	}
	d.printf("\n")
	d.table("   ", 1, rows)
	if slices.ContainsFunc(all, left) {
		return errors.New("the lock was released, and a key is left")
	}
	return nil
}
