//go:build linux

package main

import (
	"slices"
	"strings"
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

// fenced is a lock as of taken, with a fence.
func fenced(fence uint64, lock []record) []record {
	lock = slices.Clone(lock)
	lock[0].Fence = fence
	return lock
}

// arrived is the write of incremented, hold 1's, at the resource.
func arrived(client string, fence uint64, at time.Duration, v int, taken bool) arrival {
	return arrival{T: at, Client: client, Hold: 1, Key: "k", Fence: fence, Count: v + 1, Late: !taken, Taken: taken}
}

func TestFencesGrow(t *testing.T) {
	a, b := taken(1, 10*ms, 100*ms, 20*ms), taken(1, 30*ms, 120*ms, 40*ms)
	other := taken(1, 30*ms, 120*ms, 40*ms)
	other[0].Key = "other"
	for _, test := range []struct {
		what      string
		logs      []clientLog
		violation string // a part of it; empty if there is none
	}{
		{"a greater one", []clientLog{log("a", fenced(7, a)), log("b", fenced(8, b))}, ""},
		{"a greater one, of who is recorded first", []clientLog{log("b", fenced(8, b)), log("a", fenced(7, a))}, ""},
		{"none between", []clientLog{log("a", fenced(7, a)), log("b", b)}, ""},
		{"a lower one", []clientLog{log("a", fenced(7, a)), log("b", fenced(6, b))}, "b (hold 1) has the fence 6 from 0.030000s on, and a (hold 1) had 7"},
		{"the same", []clientLog{log("a", fenced(7, a)), log("b", fenced(7, b))}, "have the same fence, 7"},
		{"the same, when the validity had ended", []clientLog{
			log("a", fenced(7, a)), log("b", fenced(7, taken(1, 130*ms, 130*ms, 0)))}, "have the same fence, 7"},
		{"a lower one, when the validity had ended", []clientLog{
			log("a", fenced(7, a)), log("b", fenced(6, taken(1, 130*ms, 130*ms, 0)))}, ""},
		{"lower than that before the last", []clientLog{
			log("a", fenced(7, a)), log("b", fenced(9, b)), log("c", fenced(8, taken(1, 50*ms, 140*ms, 60*ms)))}, "c (hold 1) has the fence 8"},
		{"a lower one, of another key", []clientLog{log("a", fenced(7, a)), log("b", fenced(6, other))}, ""},
	} {
		f := check(trial{Keys: []lockKey{{"k", 100 * ms}, {"other", 100 * ms}}, Logs: test.logs})
		require.Equal(t, strings.Contains(test.violation, "has the fence"), f.Backward == 1, test.what)
		if test.violation == "" {
			require.Empty(t, f.Violations, test.what)
			continue
		}
		require.Len(t, f.Violations, 1, test.what)
		require.Contains(t, f.Violations[0], test.violation, test.what)
	}
}

func TestTheResourceIsAccountedFor(t *testing.T) {
	a, b := fenced(7, taken(1, 10*ms, 100*ms, 0)), fenced(8, taken(1, 110*ms, 200*ms, 190*ms))
	for _, test := range []struct {
		what      string
		count     int
		logs      []clientLog
		arrivals  []arrival
		lost      int
		violation string   // a part of it; empty if there is none
		harm      []string // likewise, of each
	}{
		{"all there", 2, []clientLog{log("a", a, incremented(1, 20*ms, 0, ok, true)), log("b", b, incremented(1, 120*ms, 1, ok, true))},
			[]arrival{arrived("a", 7, 20*ms, 0, true), arrived("b", 8, 120*ms, 1, true)}, 0, "", nil},
		{"a late one refused", 1, []clientLog{log("a", a, incremented(1, 130*ms, 0, refused, false)), log("b", b, incremented(1, 120*ms, 0, ok, true))},
			[]arrival{arrived("b", 8, 120*ms, 0, true), arrived("a", 7, 130*ms, 0, false)}, 0, "", nil},
		{"one refused though its lock was valid", 1, []clientLog{log("a", a, incremented(1, 90*ms, 0, refused, true)), log("b", b, incremented(1, 80*ms, 0, ok, true))},
			[]arrival{arrived("b", 8, 80*ms, 0, true), arrived("a", 7, 90*ms, 0, false)}, 0, "though its lock was valid", nil},
		{"a late one taken", 1, []clientLog{log("a", a, incremented(1, 130*ms, 0, ok, false)), log("b", b, incremented(1, 120*ms, 0, ok, true))},
			[]arrival{arrived("b", 8, 120*ms, 0, true), arrived("a", 7, 130*ms, 0, true)}, 1, "",
			[]string{"with the fence 7 was taken after one with 8", "a has written 1 at 0.130000s, when the count was 1"}},
		{"a late one taken, which happens to fit", 2, []clientLog{log("a", a, incremented(1, 130*ms, 1, ok, false)), log("b", b, incremented(1, 120*ms, 0, ok, true))},
			[]arrival{arrived("b", 8, 120*ms, 0, true), arrived("a", 7, 130*ms, 1, true)}, 0, "", []string{"was taken after one with 8"}},
		{"two lost at once", 1, []clientLog{log("a", a, incremented(1, 20*ms, 0, ok, true), incremented(1, 21*ms, 1, ok, true)),
			log("b", b, incremented(1, 120*ms, 0, ok, true))},
			[]arrival{arrived("a", 7, 20*ms, 0, true), arrived("a", 7, 21*ms, 1, true), arrived("b", 8, 120*ms, 0, true)}, 2, "",
			[]string{"b has written 1 at 0.120000s, when the count was 2"}},
		{"one that came twice", 1, []clientLog{log("a", a, incremented(1, 20*ms, 0, ok, true))},
			[]arrival{arrived("a", 7, 20*ms-1, 0, true), arrived("a", 7, 20*ms, 0, true)}, 1, "what that one does not say",
			[]string{"a has written 1 at 0.020000s, when the count was 1"}},
		{"one that was acknowledged and never came", 0, []clientLog{log("a", a, incremented(1, 20*ms, 0, ok, true))}, nil, 0, "the resource has not had it", nil},
		{"one that came after it was acknowledged", 1, []clientLog{killed("a", a, incremented(1, 20*ms, 0, ok, true))},
			[]arrival{arrived("a", 7, 20*ms+1, 0, true)}, 0, "what that one does not say", nil},
		{"one that came before it was begun", 1, []clientLog{killed("a", a, incremented(1, 20*ms, 0, "", true)[:1])},
			[]arrival{arrived("a", 7, 20*ms-2, 0, true)}, 0, "what that one does not say", nil},
		{"one that was refused, says the client", 1, []clientLog{killed("a", a, incremented(1, 20*ms, 0, refused, false))},
			[]arrival{arrived("a", 7, 20*ms, 0, true)}, 0, "what that one does not say", nil},
		{"one with another lock's fence", 1, []clientLog{killed("a", a, incremented(1, 20*ms, 0, "", false)[:1])},
			[]arrival{arrived("a", 8, 20*ms, 0, true)}, 0, "what that one does not say", nil},
		{"one that nobody has written", 1, []clientLog{log("a", a)}, []arrival{arrived("a", 7, 20*ms, 0, true)}, 0, "what that one does not say", nil},
		{"one of a client that was killed before it could say so", 1, []clientLog{killed("a", a, incremented(1, 20*ms, 0, "", true)[:1])},
			[]arrival{arrived("a", 7, 20*ms, 0, true)}, 0, "", nil},
		{"none, of a client that was killed before it wrote", 0, []clientLog{killed("a", a, incremented(1, 20*ms, 0, "", true)[:1])}, nil, 0, "", nil},
		{"given up", 0, []clientLog{log("a", a, incremented(1, 20*ms, 0, gaveUp, false))}, nil, 0, "", nil},
		{"lost without a write", 0, []clientLog{log("a", a, incremented(1, 20*ms, 0, ok, true))},
			[]arrival{arrived("a", 7, 20*ms, 0, true)}, 0, "the resource's count is 0, and 1 was written last", nil},
	} {
		f := check(trial{Keys: []lockKey{{"k", 100 * ms}}, Logs: test.logs, Arrivals: test.arrivals, Counts: map[string]int{"k": test.count}})
		require.Equal(t, test.lost, f.Lost, test.what)
		require.Len(t, f.Harm, len(test.harm), "%s: %v", test.what, f.Harm)
		for i, h := range test.harm {
			require.Contains(t, f.Harm[i], h, test.what)
		}
		if test.violation == "" {
			require.Empty(t, f.Violations, test.what)
			continue
		}
		seen := strings.Join(f.Violations, "\n")
		require.Contains(t, seen, test.violation, test.what)
		require.LessOrEqual(t, len(f.Violations), 2, "%s: %s", test.what, seen)
	}
}

func TestLateWritesAreDemanded(t *testing.T) {
	late := trial{
		Keys: []lockKey{{"k", 100 * ms}}, LeastLate: 1, Counts: map[string]int{"k": 1},
		Logs: []clientLog{
			log("a", fenced(7, taken(1, 10*ms, 100*ms, 0)), incremented(1, 130*ms, 0, refused, false)),
			log("b", fenced(8, taken(1, 110*ms, 200*ms, 190*ms)), incremented(1, 120*ms, 0, ok, true)),
		},
		Arrivals: []arrival{arrived("b", 8, 120*ms, 0, true), arrived("a", 7, 130*ms, 0, false)},
	}
	f := check(late)
	require.Empty(t, f.Violations)
	require.Equal(t, 1, f.Late)
	late.LeastLate = 2
	f = check(late)
	require.Len(t, f.Violations, 1)
	require.Contains(t, f.Violations[0], "its fence was not tested")
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
