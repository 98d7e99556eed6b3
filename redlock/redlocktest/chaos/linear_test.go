//go:build linux

package main

import (
	"cmp"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asked is a lock as of taken, that was asked for then.
func asked(began time.Duration, lock []record) []record {
	lock = slices.Clone(lock)
	lock[0].Began = began
	return lock
}

// over is a lock that had no validity left when its taker came to look.
func over(began, at time.Duration) []record { return asked(began, taken(1, at, at, 0)) }

// What one judge sees and the other does not, or not in this way.
func TestHistoriesAreLinearizable(t *testing.T) {
	a := asked(10*ms, fenced(7, taken(1, 20*ms, 100*ms, 90*ms)))
	for _, test := range []struct {
		what     string
		logs     []clientLog
		overlaps bool // as the first judge sees it
		fences   bool // likewise: they do not grow
		order    bool // there is one
	}{
		{"one after the other, asked for at once", []clientLog{
			log("a", a), log("b", asked(10*ms, fenced(8, taken(1, 90*ms, 180*ms, 0))))}, false, false, true},
		{"two at once", []clientLog{
			log("a", a), log("b", asked(10*ms, fenced(8, taken(1, 90*ms-1, 180*ms, 0))))}, true, false, false},
		{"the release is after the next lock", []clientLog{
			log("a", a), log("b", asked(21*ms, taken(1, 89*ms, 100*ms, 0)))}, true, false, false},

		{"taken within another's, with nothing left: before it", []clientLog{log("a", a), log("b", over(19*ms, 90*ms))}, false, false, true},
		{"after it", []clientLog{log("a", a), log("b", over(21*ms, 90*ms))}, false, false, true},
		{"at no time", []clientLog{log("a", a), log("b", over(20*ms+1, 90*ms-1))}, false, false, false},
		{"two that had nothing left, in between", []clientLog{
			log("a", a), log("b", over(10*ms, 30*ms)), log("c", over(10*ms, 40*ms)), log("d", asked(100*ms, taken(1, 110*ms, 190*ms, 0)))}, false, false, true},
		{"a reader within a reader's, with nothing left", []clientLog{
			log("a", takenOf("shared k 100ms", 1, 20*ms, 100*ms, 90*ms)), log("b", rename("shared k 100ms", over(30*ms, 40*ms)))}, false, false, true},
		{"a reader within a writer's, with nothing left", []clientLog{
			log("a", a), log("b", rename("shared k 100ms", over(30*ms, 40*ms)))}, false, false, false},
		{"one more than there are permits, with nothing left", []clientLog{
			log("a", takenOf("permits p of 2", 1, 20*ms, 100*ms, 90*ms)), log("b", takenOf("permits p of 2", 1, 20*ms, 100*ms, 80*ms)),
			log("c", rename("permits p of 2", over(30*ms, 40*ms)))}, false, false, false},

		{"a lower fence, with nothing left, asked for before the greater one was there", []clientLog{
			log("a", a), log("b", fenced(6, over(19*ms, 130*ms)))}, false, false, true},
		{"asked for after that", []clientLog{log("a", a), log("b", fenced(6, over(95*ms, 130*ms)))}, false, false, false},
		{"a greater one, after that", []clientLog{log("a", a), log("b", fenced(8, over(95*ms, 130*ms)))}, false, false, true},
		{"the same", []clientLog{log("a", a), log("b", fenced(7, over(0, 130*ms)))}, false, true, false},
		{"a lower one than that of which nothing was left", []clientLog{
			log("a", a), log("b", fenced(9, over(95*ms, 130*ms))), log("c", asked(131*ms, fenced(8, taken(1, 140*ms, 230*ms, 0))))}, false, false, false},
		{"a lower fence", []clientLog{log("a", a), log("b", asked(10*ms, fenced(6, taken(1, 90*ms, 180*ms, 0))))}, false, true, false},
		{"a lower fence, much later", []clientLog{log("a", a), log("b", asked(10*time.Second, fenced(6, taken(1, 11*time.Second, 11*time.Second+50*ms, 0))))},
			false, true, false},

		{"a claim that does not fit what was asked: the round began within the other's lock", []clientLog{
			log("a", a), log("b", asked(0, taken(1, 80*ms, 130*ms, 0)))}, true, false, false},
		{"lost before the validity has ended", []clientLog{
			log("a", a, []record{{T: 99 * ms, Op: opUnlock, Hold: 1, Outcome: "not held"}})}, false, false, true},
	} {
		for range 2 {
			f := check(trial{Logs: test.logs, Locks: []lockable{
				one("k"), {Kind: shared, Keys: []string{"k"}, TTL: 100 * ms}, {Kind: permits, Keys: []string{"p"}, TTL: 100 * ms, Permits: 2},
			}})
			require.Equal(t, test.overlaps, len(f.Overlaps) > 0, "%s: %v", test.what, f.Violations)
			require.Equal(t, test.order, len(f.Disorders) == 0, "%s: %v", test.what, f.Disorders)
			fences := slices.ContainsFunc(f.Violations, func(v string) bool { return strings.Contains(v, "fence") })
			require.Equal(t, test.fences, fences, "%s: %v", test.what, f.Violations)
			slices.Reverse(test.logs)
		}
	}
}

// rename makes it another lock.
func rename(lock string, records []record) []record {
	records[0].Lock = lock
	return records
}

// Of claims that last, both judges see the same in any history.
func TestBothJudgesAgree(t *testing.T) {
	locks := []lockable{
		one("k"), one("l"), {Kind: several, Keys: []string{"k", "l"}, TTL: 100 * ms},
		{Kind: shared, Keys: []string{"k"}, TTL: 100 * ms}, {Kind: foreign, Keys: []string{"l"}, TTL: 100 * ms},
		{Kind: permits, Keys: []string{"p"}, TTL: 100 * ms, Permits: 2},
	}
	seed := rand.Uint64()
	good, bad := 0, 0
	for i := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, i))
		upTo := func(n int) time.Duration { return time.Duration(r.IntN(n)) * ms }
		fence := uint64(0)
		var logs []clientLog
		from := 10 * ms
		for n := range 1 + r.IntN(8) {
			l := locks[r.IntN(len(locks))]
			from += upTo(60)
			until := from + ms + upTo(99)
			left := from + ms + upTo(60)
			record := asked(from-upTo(50), takenOf(l.String(), 1, from, until, left))
			if left > until { // what it is told then is for the first judge alone
				record[len(record)-1].Outcome = "not held"
			}
			if l.mayFence() && r.IntN(2) == 0 {
				if fence++; r.IntN(10) == 0 {
					fence -= min(fence, 2)
				}
				record = fenced(max(fence, 1), record)
			}
			logs = append(logs, log("client-"+strconv.Itoa(n), record))
		}
		f := check(trial{Locks: locks, Logs: logs})
		if len(f.Violations) == 0 {
			good++
		} else {
			bad++
		}
		require.Equal(t, len(f.Violations) > 0, len(f.Disorders) > 0, "seed %d, history %d: %v, %v", seed, i, f.Violations, f.Disorders)
		for _, key := range keysOf(locks) {
			seen := slices.ContainsFunc(f.Violations, func(v string) bool { return v[:1] == key })
			require.Equal(t, seen, f.disorders(key) > 0, "seed %d, history %d: %s: %v, %v", seed, i, key, f.Violations, f.Disorders)
		}
	}
	require.Greater(t, min(good, bad), 50, "good and bad histories")
}

// What was cut has the same order as a whole: the cuts hide nothing.
func TestHistoriesAreCutWhereNobodyHasTheKey(t *testing.T) {
	lasting := func(began, from, to time.Duration, fence uint64) *claim {
		return &claim{lock: one("k"), began: began, span: span{From: from, To: to}, fence: fence}
	}
	claims := []*claim{
		lasting(10*ms, 20*ms, 30*ms, 7), lasting(30*ms, 31*ms, 35*ms, 0), // asked for when the other ended
		lasting(36*ms, 37*ms, 39*ms, 8),
		lasting(40*ms, 55*ms, 55*ms, 9), lasting(54*ms, 56*ms, 57*ms, 0),
		lasting(58*ms, 59*ms, 60*ms, 10),
	}
	slices.SortFunc(claims, func(a, b *claim) int { return cmp.Compare(b.began, a.began) })
	all := historiesOf("k", claims)
	var sizes []int
	var fences []uint64
	for _, k := range all {
		sizes, fences = append(sizes, len(k.claims)), append(fences, k.fence)
	}
	require.Equal(t, []int{2, 1, 2, 1}, sizes)
	require.Equal(t, []uint64{0, 7, 8, 9}, fences)

	f := judge(0, log("a", asked(0, taken(1, 10*ms, 100*ms, 20*ms))), log("b", asked(0, taken(1, 130*ms, 220*ms, 140*ms))))
	require.Equal(t, 2, f.Histories, "the round that has taken the second began when the first was over")
	require.Equal(t, 1, f.Longest)
	f = judge(0, log("a", asked(0, taken(1, 10*ms, 100*ms, 20*ms))), log("b", asked(30*ms, taken(1, 40*ms, 101*ms, 50*ms))))
	require.Equal(t, 2, f.Histories, "it was asked for when the first was over")
	f = judge(0, log("a", asked(0, taken(1, 10*ms, 100*ms, 20*ms))), log("b", over(0, 130*ms)))
	require.Equal(t, 1, f.Histories, "nobody knows when the round began")
	require.Equal(t, 2, f.Longest)
}

func TestADisorderIsDrawn(t *testing.T) {
	f := judge(0, log("a", taken(1, 10*ms, 100*ms, 50*ms)), log("b", fenced(8, taken(1, 20*ms, 110*ms, 30*ms))))
	require.Len(t, f.Disorders, 1)
	require.Contains(t, f.Disorders[0].String(), "k: these are in no order: a (hold 1 of k, 0.010000s to 0.050000s), b (hold 1")
	dir := t.TempDir()
	require.NoError(t, f.draw(dir))
	page, err := os.ReadFile(filepath.Join(dir, "history-k-1.html"))
	require.NoError(t, err)
	require.Contains(t, string(page), "b, hold 1: k taken, fence 8")
	require.ErrorIs(t, f.draw(filepath.Join(dir, "nowhere")), os.ErrNotExist)
}
