//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// taken is a lock that was taken from..until, left at left (0: never), by hold
// number hold.
func taken(hold int, from, until, left time.Duration) []record {
	all := []record{{T: from, Op: opTry, Key: "k", Hold: hold, Until: until, Outcome: ok}}
	if left != 0 {
		all = append(all, record{T: left, Op: opLeave, Hold: hold}, record{T: left + 1, Op: opUnlock, Hold: hold, Outcome: ok})
	}
	return all
}

// incremented is a write of a counter that had the value v.
func incremented(hold int, at time.Duration, v int, outcome string, valid bool) []record {
	return []record{
		{T: at - 1, Op: opWrite, Hold: hold, Version: v},
		{T: at, Op: opWrote, Hold: hold, Version: v, Outcome: outcome, Valid: valid},
	}
}

// log is a client that has ended as it should.
func log(name string, parts ...[]record) clientLog {
	l := killed(name, parts...)
	l.Killed = false
	l.Records = append(l.Records, record{Op: opEnd, Outcome: ok})
	return l
}

// killed is a client that the nemesis has killed.
func killed(name string, parts ...[]record) clientLog {
	l := clientLog{Client: name, Killed: true}
	for _, p := range parts {
		l.Records = append(l.Records, p...)
	}
	return l
}

// judge has the checker judge logs in which the key k has a TTL of 100 ms.
func judge(count int, logs ...clientLog) finding {
	return check(trial{Keys: []lockKey{{"k", 100 * ms}}, Logs: logs, Counters: map[string]int{"k": count}})
}

func TestOverlapsAreFound(t *testing.T) {
	for _, test := range []struct {
		what     string
		logs     []clientLog
		overlaps int
	}{
		{"one after the other", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 20*ms)), log("b", taken(1, 30*ms, 120*ms, 40*ms))}, 0},
		{"touching: taken when the other has left", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 20*ms)), log("b", taken(1, 20*ms, 110*ms, 40*ms))}, 0},
		{"touching: taken when the other's validity ends", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 0)), log("b", taken(1, 100*ms, 190*ms, 150*ms))}, 0},
		{"a nanosecond before the other leaves", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 20*ms)), log("b", taken(1, 20*ms-1, 110*ms, 40*ms))}, 1},
		{"a nanosecond before the other's validity ends, of a client that was killed", []clientLog{
			killed("a", taken(1, 10*ms, 100*ms, 0)), log("b", taken(1, 100*ms-1, 190*ms, 150*ms))}, 1},
		{"left late, when the validity had ended", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 500*ms)), log("b", taken(1, 200*ms, 290*ms, 210*ms))}, 0},
		{"no validity at all", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 50*ms)), log("b", taken(1, 20*ms, 20*ms, 0))}, 0},
		{"within the other", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 90*ms)), log("b", taken(1, 20*ms, 110*ms, 30*ms))}, 1},
		{"three within one", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 90*ms)),
			log("b", taken(1, 20*ms, 110*ms, 30*ms), taken(2, 40*ms, 130*ms, 50*ms), taken(3, 60*ms, 150*ms, 70*ms))}, 3},
		{"in one client", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 90*ms), taken(2, 89*ms, 150*ms, 95*ms))}, 1},
		{"after a look that found it extended", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 0), []record{{T: 90 * ms, Op: opLook, Hold: 1, Until: 180 * ms}}),
			log("b", taken(1, 170*ms, 260*ms, 175*ms))}, 1},
		{"after it was extended", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 0), []record{{T: 90 * ms, Op: opExtend, Hold: 1, Until: 180 * ms, Outcome: ok}}),
			log("b", taken(1, 180*ms-1, 260*ms, 185*ms))}, 1},
		{"after an extend that has failed", []clientLog{
			log("a", taken(1, 10*ms, 100*ms, 0), []record{{T: 90 * ms, Op: opExtend, Hold: 1, Outcome: "no quorum"}}),
			log("b", taken(1, 101*ms, 190*ms, 175*ms))}, 0},
	} {
		f := judge(0, test.logs...)
		require.Equal(t, test.overlaps, f.Overlaps, test.what)
		require.Len(t, f.Violations, test.overlaps, "%s: %v", test.what, f.Violations)
	}
}

func TestClaimsOfDifferentKeysDoNotOverlap(t *testing.T) {
	other := taken(1, 10*ms, 100*ms, 90*ms)
	other[0].Key = "other"
	f := check(trial{
		Keys: []lockKey{{"k", 100 * ms}, {"other", 100 * ms}},
		Logs: []clientLog{log("a", taken(1, 10*ms, 100*ms, 90*ms)), log("b", other)},
	})
	require.Empty(t, f.Violations)
	require.Equal(t, 2, f.Outcomes[opTry][ok])
}

func TestIncrementsAreAccountedFor(t *testing.T) {
	a, b := taken(1, 10*ms, 100*ms, 50*ms), taken(1, 60*ms, 150*ms, 90*ms)
	for _, test := range []struct {
		what      string
		count     int
		logs      []clientLog
		violation string // a part of it; empty if there is none
	}{
		{"all there", 2, []clientLog{
			log("a", a, incremented(1, 20*ms, 0, ok, true)), log("b", b, incremented(1, 70*ms, 1, ok, true))}, ""},
		{"the last one lost", 1, []clientLog{
			log("a", a, incremented(1, 20*ms, 0, ok, true)), log("b", b, incremented(1, 70*ms, 1, ok, true))}, "is lost"},
		{"one overwritten", 1, []clientLog{
			log("a", a, incremented(1, 20*ms, 0, ok, true)), log("b", b, incremented(1, 70*ms, 0, ok, true))}, "written by a at 0.020000s, and again by b"},
		{"one that nobody has written", 2, []clientLog{
			log("a", a, incremented(1, 20*ms, 0, ok, true)), log("b", b)}, "nobody has written increment 1"},
		{"one of a client that was killed before it could say so", 2, []clientLog{
			killed("a", a, incremented(1, 20*ms, 0, "", true)[:1]), log("b", b, incremented(1, 70*ms, 1, ok, true))}, ""},
		{"none, of a client that was killed before it wrote", 1, []clientLog{
			killed("a", a, incremented(1, 20*ms, 0, "", true)[:1]), log("b", b, incremented(1, 70*ms, 0, ok, true))}, ""},
		{"a write without an end, of a client that was not killed", 1, []clientLog{
			log("a", a, incremented(1, 20*ms, 0, "", true)[:1])}, "the end of a write is missing"},
		{"overtaken, and late itself", 1, []clientLog{
			log("a", a, incremented(1, 120*ms, 0, overtaken, false)), log("b", b, incremented(1, 70*ms, 0, ok, true))}, ""},
		{"overtaken because of one who was late", 1, []clientLog{
			log("a", a, incremented(1, 70*ms, 0, ok, false)), log("b", b, incremented(1, 71*ms, 0, overtaken, true))}, ""},
		{"overtaken because of one who was killed", 1, []clientLog{
			killed("a", a, incremented(1, 70*ms, 0, "", false)[:1]), log("b", b, incremented(1, 71*ms, 0, overtaken, true))}, ""},
		{"overtaken, though both were in time", 1, []clientLog{
			log("a", a, incremented(1, 20*ms, 0, ok, true)), log("b", b, incremented(1, 70*ms, 0, overtaken, true))}, "both held valid locks"},
		{"given up", 0, []clientLog{log("a", a, incremented(1, 20*ms, 0, gaveUp, false))}, ""},
		{"an end of a write without its beginning", 0, []clientLog{
			log("a", a, incremented(1, 20*ms, 0, gaveUp, false)[1:])}, "not begun"},
	} {
		f := judge(test.count, test.logs...)
		if test.violation == "" {
			require.Empty(t, f.Violations, test.what)
			continue
		}
		require.Len(t, f.Violations, 1, test.what)
		require.Contains(t, f.Violations[0], test.violation, test.what)
	}
}

func TestLocksAreNotLostBeforeTheirValidityEnds(t *testing.T) {
	for _, r := range []record{
		{Op: opUnlock, Hold: 1, Outcome: "not held"},
		{Op: opExtend, Hold: 1, Outcome: "not held"},
		{Op: opLost, Hold: 1, Outcome: "lost+not held"},
	} {
		r.T = 99 * ms
		f := judge(0, log("a", taken(1, 10*ms, 100*ms, 0), []record{r}))
		require.Len(t, f.Violations, 1, r.Op)
		require.Contains(t, f.Violations[0], "though it was valid until 0.100000s", r.Op)

		r.T = 100 * ms
		f = judge(0, log("a", taken(1, 10*ms, 100*ms, 0), []record{r}))
		require.Empty(t, f.Violations, r.Op)
	}
}

func TestOutcomesMustHaveNames(t *testing.T) {
	for _, r := range []record{
		{Op: opTry, Outcome: `"connection refused"`},
		{Op: opTry, Outcome: "not held"},
		{Op: opLock, Outcome: "held"}, // Lock waits until its context ends
		{Op: opUnlock, Hold: 1, Outcome: "held"},
		{Op: opExtend, Hold: 1, Outcome: "lost"},
		{Op: opDone, Outcome: "not held"},
		{Op: opOpen, Outcome: "closed"},
		{Op: opWhole, Outcome: "a master is down"},
	} {
		f := judge(0, log("a", taken(1, 10*ms, 100*ms, 50*ms), []record{r}))
		require.Len(t, f.Violations, 1, "%s %s", r.Op, r.Outcome)
		require.Contains(t, f.Violations[0], "ended in "+r.Outcome)
	}
	for _, r := range []record{
		{Op: opTry, Outcome: "held"},
		{Op: opTry, Outcome: "no quorum+cancelled"},
		{Op: opTry, Outcome: "cancelled"},
		{Op: opLock, Outcome: "held+deadline"},
		{Op: opDone, Outcome: "lost+no quorum"},
		{Op: opDone, Outcome: "deadline"},
		{Op: opOpen, Outcome: "no quorum+deadline"},
	} {
		f := judge(0, log("a", []record{r}))
		require.Empty(t, f.Violations, "%s %s", r.Op, r.Outcome)
		require.Equal(t, 1, f.Outcomes[r.Op][r.Outcome])
	}
}

func TestLogsMustBeWhole(t *testing.T) {
	whole := log("a", taken(1, 10*ms, 100*ms, 20*ms))
	cut := whole
	cut.Records = whole.Records[:2]
	require.Empty(t, judge(0, whole).Violations)
	require.Len(t, judge(0, cut).Violations, 1)
	cut.Killed = true
	require.Empty(t, judge(0, cut).Violations)

	dead := whole
	dead.Death = "exit status 2"
	require.Len(t, judge(0, dead).Violations, 1)
	require.Len(t, judge(0, log("a", []record{{Op: opLeave, Hold: 7}})).Violations, 1)
	require.Len(t, judge(0, log("a", taken(1, 10*ms, 111*ms, 20*ms))).Violations, 1, "valid for longer than the TTL")
}

func TestProgressIsDemandedWhileAMajorityIsUp(t *testing.T) {
	for _, test := range []struct {
		what  string
		up    []span
		stall time.Duration
	}{
		{"never up", nil, 0},
		{"before the first", []span{{0, 40 * ms}}, 40 * ms},
		{"between two", []span{{150 * ms, 400 * ms}}, 150 * ms},
		{"after the last", []span{{300 * ms, 700 * ms}}, 400 * ms},
		{"in pieces", []span{{310 * ms, 400 * ms}, {410 * ms, 500 * ms}}, 90 * ms},
		{"all the time", []span{{0, 500 * ms}}, 200 * ms},
	} {
		for _, bound := range []time.Duration{0, test.stall - 1, test.stall} {
			f := check(trial{
				Keys: []lockKey{{"k", 100 * ms}}, Up: test.up, Bound: bound,
				Logs: []clientLog{log("a", taken(1, 50*ms, 51*ms, 0), taken(2, 100*ms, 101*ms, 0), taken(3, 300*ms, 301*ms, 0))},
			})
			require.Equal(t, test.stall, f.Stall, test.what)
			require.Equal(t, bound > 0 && bound < test.stall, len(f.Violations) > 0, "%s: %v", test.what, f.Violations)
		}
	}
}
