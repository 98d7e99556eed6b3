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
	all := []record{{T: from, Began: from - ms, Op: opTry, Lock: "k", Hold: hold, Until: until, Outcome: ok}}
	if left != 0 {
		all = append(all, record{T: left, Op: opLeave, Hold: hold}, record{T: left + 1, Op: opUnlock, Hold: hold, Outcome: ok})
	}
	return all
}

// incremented is a write of a counter that had the value v.
func incremented(hold int, at time.Duration, v int, outcome string, valid bool) []record {
	return []record{
		{T: at - 1, Op: opWrite, Key: "k", Hold: hold, Version: v},
		{T: at, Op: opWrote, Key: "k", Hold: hold, Version: v, Outcome: outcome, Valid: valid},
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

// one is a plain lock.
func one(key string) lockable { return lockable{Kind: plain, Keys: []string{key}, TTL: 100 * ms} }

// judge has the checker judge logs in which the key k has a TTL of 100 ms.
func judge(count int, logs ...clientLog) finding {
	return check(trial{Locks: []lockable{one("k")}, Logs: logs, Counters: map[string]int{"k": count}})
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
			log("a", taken(1, 10*ms, 100*ms, 0), []record{{T: 500 * ms, Op: opLeave, Hold: 1}, {T: 501 * ms, Op: opUnlock, Hold: 1, Outcome: "not held"}}),
			log("b", taken(1, 200*ms, 290*ms, 210*ms))}, 0},
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
		require.Equal(t, test.overlaps, f.Overlaps["k"], test.what)
		// What has no validity left claims nothing, but was taken while the other had it.
		require.Equal(t, test.overlaps > 0 || test.what == "no validity at all", f.disorders("k") > 0, test.what)
		require.Len(t, f.Violations, test.overlaps, "%s: %v", test.what, f.Violations)
	}
}

// takenOf is taken, of another lock than that on k.
func takenOf(lock string, hold int, from, until, left time.Duration) []record {
	all := taken(hold, from, until, left)
	all[0].Lock = lock
	return all
}

func TestWhoMayHaveAKeyTogether(t *testing.T) {
	locks := []lockable{
		one("k"), one("l"), one("m"),
		{Kind: several, Keys: []string{"k", "l"}, TTL: 100 * ms},
		{Kind: several, Keys: []string{"m", "l"}, TTL: 100 * ms},
		{Kind: several, Keys: []string{"k", "l", "m"}, TTL: 100 * ms},
		{Kind: shared, Keys: []string{"k"}, TTL: 100 * ms},
		{Kind: shared, Keys: []string{"l"}, TTL: 100 * ms},
		{Kind: foreign, Keys: []string{"k"}, TTL: 100 * ms},
		{Kind: permits, Keys: []string{"p"}, TTL: 100 * ms, Permits: 2},
		{Kind: permits, Keys: []string{"q"}, TTL: 100 * ms, Permits: 3},
		{Kind: permits, Keys: []string{"p"}, TTL: 100 * ms, Permits: 3},
		{Kind: plain, Keys: []string{"n"}, TTL: 100 * ms, MinHold: 200 * ms},
	}
	type overlaps map[string]int
	// Each is by a client of its own, from..until.
	type lock struct {
		name        string
		from, until time.Duration
	}
	for _, test := range []struct {
		what  string
		locks []lock
		overlaps
		atOnce int // of the first one's first key
	}{
		{"readers", []lock{{"shared k 100ms", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 110 * ms}, {"shared k 100ms", 30 * ms, 40 * ms}}, nil, 3},
		{"a writer within a reader", []lock{{"shared k 100ms", 10 * ms, 100 * ms}, {"k", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},
		{"a reader within a writer", []lock{{"k", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},
		{"two readers within a writer", []lock{{"k", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 50 * ms}, {"shared k 100ms", 30 * ms, 40 * ms}}, overlaps{"k": 2}, 3},
		{"a writer after one reader, and within another that came first",
			[]lock{{"shared k 100ms", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 30 * ms}, {"k", 40 * ms, 50 * ms}}, overlaps{"k": 1}, 2},
		{"a writer within two readers", []lock{{"shared k 100ms", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 90 * ms}, {"k", 40 * ms, 50 * ms}}, overlaps{"k": 1}, 3},
		{"a writer when the last reader has left", []lock{{"shared k 100ms", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 60 * ms}, {"k", 100 * ms, 150 * ms}}, nil, 2},
		{"a writer a nanosecond before", []lock{{"shared k 100ms", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 60 * ms}, {"k", 100*ms - 1, 150 * ms}}, overlaps{"k": 1}, 2},
		{"a reader when the writer has left", []lock{{"k", 10 * ms, 100 * ms}, {"shared k 100ms", 100 * ms, 150 * ms}, {"shared k 100ms", 101 * ms, 150 * ms}}, nil, 2},
		{"a reader a nanosecond before", []lock{{"k", 10 * ms, 100 * ms}, {"shared k 100ms", 100*ms - 1, 150 * ms}}, overlaps{"k": 1}, 2},
		{"a reader of another key", []lock{{"k", 10 * ms, 100 * ms}, {"shared l 100ms", 20 * ms, 30 * ms}}, nil, 1},

		{"another library's beside a writer", []lock{{"k", 10 * ms, 100 * ms}, {"foreign k", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},
		{"another library's beside another library's", []lock{{"foreign k", 10 * ms, 100 * ms}, {"foreign k", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},
		{"a reader beside another library's", []lock{{"foreign k", 10 * ms, 100 * ms}, {"shared k 100ms", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},
		{"several keys beside another library's", []lock{{"foreign k", 10 * ms, 100 * ms}, {"k+l", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},

		{"one of several keys: the first", []lock{{"k+l", 10 * ms, 100 * ms}, {"k", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},
		{"one of several keys: the last", []lock{{"k+l", 10 * ms, 100 * ms}, {"l", 20 * ms, 30 * ms}}, overlaps{"l": 1}, 1},
		{"several keys within one of them", []lock{{"l", 10 * ms, 100 * ms}, {"k+l", 20 * ms, 30 * ms}}, overlaps{"l": 1}, 2},
		{"several keys, and a key that is none of them", []lock{{"k+l", 10 * ms, 100 * ms}, {"m", 20 * ms, 30 * ms}}, nil, 1},
		{"several keys, of which one is the same", []lock{{"k+l", 10 * ms, 100 * ms}, {"m+l", 20 * ms, 30 * ms}}, overlaps{"l": 1}, 1},
		{"several keys, of which two are the same", []lock{{"m+l", 10 * ms, 100 * ms}, {"k+l+m", 20 * ms, 30 * ms}}, overlaps{"l": 1, "m": 1}, 2},
		{"several keys after those that were held", []lock{{"k", 10 * ms, 50 * ms}, {"m+l", 20 * ms, 60 * ms}, {"k+l+m", 60 * ms, 90 * ms}, {"l", 90 * ms, 95 * ms}}, nil, 1},
		{"a reader of one of several keys", []lock{{"k+l", 10 * ms, 100 * ms}, {"shared l 100ms", 20 * ms, 30 * ms}}, overlaps{"l": 1}, 1},
		{"several keys within a reader of one", []lock{{"shared k 100ms", 10 * ms, 100 * ms}, {"k+l", 20 * ms, 30 * ms}}, overlaps{"k": 1}, 2},

		{"as many as there are permits", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 2", 20 * ms, 110 * ms}}, nil, 2},
		{"one more", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 2", 20 * ms, 110 * ms}, {"permits p of 2", 30 * ms, 40 * ms}}, overlaps{"p": 1}, 3},
		{"two more", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 2", 20 * ms, 110 * ms}, {"permits p of 2", 30 * ms, 120 * ms}, {"permits p of 2", 40 * ms, 130 * ms}},
			overlaps{"p": 2}, 4},
		{"one when another has left", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 2", 20 * ms, 60 * ms}, {"permits p of 2", 60 * ms, 110 * ms}}, nil, 2},
		{"one a nanosecond before", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 2", 20 * ms, 60 * ms}, {"permits p of 2", 60*ms - 1, 110 * ms}}, overlaps{"p": 1}, 3},
		{"three of three", []lock{{"permits q of 3", 10 * ms, 100 * ms}, {"permits q of 3", 20 * ms, 110 * ms}, {"permits q of 3", 30 * ms, 40 * ms}}, nil, 3},
		{"those who do not agree on how many there are", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 3", 20 * ms, 30 * ms}}, overlaps{"p": 1}, 2},
		{"... one after the other", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 3", 100 * ms, 130 * ms}}, nil, 1},
		// The validity is the TTL here, so it was taken at from.
		{"one within the least hold of another", []lock{{"n", 10 * ms, 50 * ms}, {"n", 189 * ms, 200 * ms}}, overlaps{"n": 1}, 2},
		{"one after the least hold of another", []lock{{"n", 10 * ms, 50 * ms}, {"n", 210 * ms, 250 * ms}}, nil, 1},
		{"permits of two keys", []lock{{"permits p of 2", 10 * ms, 100 * ms}, {"permits p of 2", 20 * ms, 110 * ms}, {"permits q of 3", 30 * ms, 40 * ms}}, nil, 2},
	} {
		for range 2 { // in the order of their beginnings, and in the other
			var logs []clientLog
			for i, l := range test.locks {
				logs = append(logs, log(string(rune('a'+i)), takenOf(l.name, 1, l.from, l.from+100*ms, l.until)))
			}
			f := check(trial{Locks: locks, Logs: logs})
			want := 0
			for key, n := range test.overlaps {
				require.Equal(t, n, f.Overlaps[key], "%s: %s", test.what, key)
				want += n
			}
			require.Len(t, f.Violations, want, "%s: %v", test.what, f.Violations)
			for _, key := range keysOf(locks) {
				require.Equal(t, f.Overlaps[key] > 0, f.disorders(key) > 0, "%s: %s: %v", test.what, key, f.Disorders)
			}
			for _, l := range locks {
				if l.String() == test.locks[0].name {
					require.Equal(t, test.atOnce, f.AtOnce[l.Keys[0]], test.what)
				}
			}
			slices.Reverse(logs)
		}
	}
}

// Where no validity is left, nobody knows when the lock was taken.
func TestALeastHoldCountsFromWhenTheLockWasTaken(t *testing.T) {
	n := lockable{Kind: plain, Keys: []string{"n"}, TTL: 100 * ms, MinHold: 200 * ms}
	for until, overlaps := range map[time.Duration]int{110 * ms: 0, 150 * ms: 1} {
		f := check(trial{Locks: []lockable{n}, Logs: []clientLog{
			log("a", takenOf("n", 1, 110*ms, until, 120*ms)), log("b", takenOf("n", 1, 220*ms, 300*ms, 230*ms))}})
		require.Equal(t, overlaps, f.Overlaps["n"], "valid until %v", until)
	}
}

func TestClaimsOfDifferentKeysDoNotOverlap(t *testing.T) {
	other := taken(1, 10*ms, 100*ms, 90*ms)
	other[0].Lock = "other"
	f := check(trial{
		Locks: []lockable{one("k"), one("other")},
		Logs:  []clientLog{log("a", taken(1, 10*ms, 100*ms, 90*ms)), log("b", other)},
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
	other, both := takenOf("other", 1, 30*ms, 120*ms, 40*ms), takenOf("m+k", 1, 30*ms, 120*ms, 40*ms)
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
		{"a greater one, of several keys", []clientLog{log("a", fenced(7, a)), log("b", fenced(8, both))}, ""},
		{"a lower one, of several keys", []clientLog{log("a", fenced(7, a)), log("b", fenced(6, both))}, "k: b (hold 1) has the fence 6"},
		{"a lower one than that of several keys", []clientLog{log("a", fenced(7, takenOf("m+k", 1, 10*ms, 100*ms, 20*ms))), log("b", fenced(6, b))}, "k: b (hold 1) has the fence 6"},
		{"the same as that of several keys", []clientLog{log("a", fenced(7, takenOf("m+k", 1, 10*ms, 100*ms, 20*ms))), log("b", fenced(7, b))}, "k: a (hold 1) and b (hold 1) have the same fence"},
	} {
		f := check(trial{Locks: []lockable{one("k"), one("other"), {Kind: several, Keys: []string{"m", "k"}, TTL: 100 * ms}}, Logs: test.logs})
		require.Equal(t, strings.Contains(test.violation, "has the fence"), f.Backward == 1, test.what)
		// Only an order tells when a lock was taken whose validity had ended.
		require.Equal(t, test.violation != "" || strings.HasSuffix(test.what, "when the validity had ended"), len(f.Disorders) > 0, "%s: %v", test.what, f.Disorders)
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
		f := check(trial{Locks: []lockable{one("k")}, Logs: test.logs, Arrivals: test.arrivals, Counts: map[string]int{"k": test.count}})
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
		Locks: []lockable{one("k")}, LeastLate: 1, Counts: map[string]int{"k": 1},
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

		for at, violations := range map[time.Duration]int{9 * time.Second: 1, 10*time.Second - 900*ms: 0, 10 * time.Second: 0, 11 * time.Second: 1} {
			r.T = 10*time.Second + 89*ms
			f = check(trial{
				Locks: []lockable{one("k")}, Counters: map[string]int{"k": 0}, Forgot: []time.Duration{ms, at},
				Logs: []clientLog{log("a", taken(1, 10*time.Second+10*ms, 10*time.Second+100*ms, 0), []record{r})},
			})
			require.Len(t, f.Violations, violations, "%s, a master has forgotten its keys at %v", r.Op, at)
		}
	}
}

// The holder of a lock that was revoked may leave it to its TTL. Its client has let go all the same.
func TestARevokedLockIsFreeWhenItsHolderIsTold(t *testing.T) {
	for told, overlaps := range map[record]int{
		{Op: opLost, Outcome: "lost+revoked"}: 0, {Op: opLost, Outcome: "lost"}: 1,
		{Op: opExtend, Outcome: "lost+revoked+not held"}: 0, {Op: opExtend, Outcome: "no quorum"}: 1,
	} {
		told.T, told.Hold = 50*ms, 1
		all := taken(1, 10*ms, 100*ms, 0)
		all[0].Token = "mine"
		f := check(trial{Locks: []lockable{one("k")}, Counters: map[string]int{"k": 0}, Logs: []clientLog{
			log("a", all, []record{told}),
			log("b", taken(1, 60*ms, 100*ms, 90*ms)),
			log("c", []record{{Began: 40 * ms, T: 45 * ms, Op: opRevoke, Lock: "k", Token: "mine", Outcome: ok}}),
		}})
		require.Len(t, f.Overlaps, overlaps, "%v: %v", told, f)
	}
}

func TestWhatWasRevokedIsNotExtended(t *testing.T) {
	const ttl = 90 * ms // of what is taken at 10 ms until 100 ms
	lock := lockable{Kind: plain, Keys: []string{"k"}, TTL: ttl}
	told := func(outcome string) record { return record{T: 60 * ms, Op: opExtend, Hold: 1, Outcome: outcome} }
	extended := func(until time.Duration) record {
		return record{T: 70 * ms, Op: opExtend, Hold: 1, Outcome: ok, Until: until}
	}
	revoked := func(token, outcome string) record {
		return record{Began: 40 * ms, T: 50 * ms, Op: opRevoke, Lock: "k", Token: token, Outcome: outcome}
	}
	for name, test := range map[string]struct {
		records    []record
		violations int
	}{
		"told":                               {[]record{revoked("mine", ok), told("lost+revoked+not held")}, 0},
		"told of all":                        {[]record{revoked("", ok), told("lost+revoked+not held")}, 0},
		"it may have been done":              {[]record{revoked("mine", "no quorum"), told("not held")}, 0},
		"nobody has revoked it":              {[]record{told("lost+revoked+not held")}, 1},
		"another was":                        {[]record{revoked("another's", ok), told("lost+revoked+not held")}, 1},
		"extended at that time":              {[]record{revoked("mine", ok), extended(50*ms + ttl)}, 0},
		"extended after that":                {[]record{revoked("mine", ok), extended(51*ms + ttl)}, 1},
		"it was only tried":                  {[]record{revoked("mine", "no quorum"), extended(51*ms + ttl)}, 0},
		"an outcome of its own is not known": {[]record{revoked("mine", "held")}, 1},
	} {
		all := taken(1, 10*ms, 100*ms, 0)
		all[0].Token = "mine"
		f := check(trial{Locks: []lockable{lock}, Logs: []clientLog{log("a", all, test.records)}})
		require.Len(t, f.Violations, test.violations, "%s: %v", name, f.Violations)
	}
}

func TestALockThatIsPassedOnMayHaveBeenRevokedBefore(t *testing.T) {
	for passed, violations := range map[bool]int{true: 0, false: 1} {
		lock := one("k")
		lock.Passed = passed
		f := check(trial{Locks: []lockable{lock}, Logs: []clientLog{log("a",
			[]record{{Began: 3 * ms, T: 4 * ms, Op: opRevoke, Lock: "k", Outcome: ok}},
			taken(1, 10*ms, 100*ms, 0), []record{{T: 60 * ms, Op: opExtend, Hold: 1, Outcome: "lost+revoked+not held"}})}})
		require.Len(t, f.Violations, violations, f.Violations)
	}
}

func TestALeastHoldIsCountedFromWhenItWasAskedForAtTheLatest(t *testing.T) {
	lock := one("k")
	lock.MinHold = 300 * ms
	for roaming, overlaps := range map[bool]int{false: 1, true: 0} { // a recheck has prolonged it by 60 ms, perhaps
		first := taken(1, 71*ms, 165*ms, 80*ms)
		first[0].Began = 5 * ms
		f := check(trial{Locks: []lockable{lock}, Roaming: roaming, Logs: []clientLog{log("a", first), log("b", taken(1, 310*ms, 400*ms, 320*ms))}})
		require.Equal(t, overlaps, f.Overlaps["k"])
	}
}

func TestWhatWasLostWasNotHeldUntilItWasUnlocked(t *testing.T) {
	unlocked := record{T: 60 * ms, Op: opUnlock, Hold: 1, Outcome: ok}
	for outcome, violations := range map[string]int{"not held": 1, "no quorum": 0, "expired": 0} {
		extended := record{T: 50 * ms, Op: opExtend, Hold: 1, Outcome: outcome}
		f := check(trial{Locks: []lockable{one("k")}, Forgot: []time.Duration{ms}, // so it may be lost
			Logs: []clientLog{log("a", taken(1, 10*ms, 100*ms, 0), []record{extended, unlocked})}})
		require.Len(t, f.Violations, violations, outcome)
	}
}

// Whoever is told that it had the lock until the release had it alone, also when the validity had ended by then.
func TestNobodyHadWhatWasHeldUntilTheRelease(t *testing.T) {
	done := func(outcome string) []record { // by Do
		return []record{{T: 10 * ms, Op: opDo, Lock: "k", Hold: 1, Outcome: ok}, {T: 20 * ms, Op: opLook, Hold: 1, Until: 20 * ms},
			{T: 90 * ms, Op: opLeave, Hold: 1}, {T: 95 * ms, Op: opDone, Lock: "k", Hold: 1, Outcome: outcome}}
	}
	for _, test := range []struct {
		what  string
		one   []record
		other []record
		found int
	}{
		{"after the validity, before the release", taken(1, 10*ms, 50*ms, 90*ms), taken(1, 60*ms, 85*ms, 70*ms), 1},
		{"it has it until after the release", taken(1, 10*ms, 50*ms, 90*ms), taken(1, 60*ms, 120*ms, 100*ms), 1},
		{"two in a row", taken(1, 10*ms, 50*ms, 90*ms), append(taken(1, 60*ms, 85*ms, 65*ms), taken(2, 70*ms, 120*ms, 100*ms)...), 2},
		{"Do has told of no loss", done(ok), taken(1, 60*ms, 85*ms, 70*ms), 1},
		{"Do has told of it", done("lost"), taken(1, 60*ms, 85*ms, 70*ms), 0},
		{"after the release", taken(1, 10*ms, 50*ms, 90*ms), taken(1, 90*ms, 120*ms, 100*ms), 0},
		{"nothing was said", taken(1, 10*ms, 50*ms, 0), taken(1, 60*ms, 85*ms, 70*ms), 0},
		{"it was told of the loss", append(taken(1, 10*ms, 50*ms, 0), record{T: 90 * ms, Op: opLeave, Hold: 1},
			record{T: 91 * ms, Op: opUnlock, Hold: 1, Outcome: "not held"}), taken(1, 60*ms, 85*ms, 70*ms), 0},
	} {
		f := judge(0, log("a", test.one), log("b", test.other))
		require.Len(t, f.Violations, test.found, test.what)
		require.Empty(t, f.Overlaps, test.what)
		for _, v := range f.Violations {
			require.Contains(t, v, "until the release", test.what)
		}
	}
}

func TestWhatWasUnlockedStaysSo(t *testing.T) {
	unlocked := func(outcome string) clientLog {
		all := taken(1, 10*ms, 100*ms, 0)
		all[0].Token = "token"
		return log("a", all, []record{{T: 50 * ms, Op: opUnlock, Hold: 1, Outcome: outcome}})
	}
	for _, test := range []struct {
		what       string
		log        clientLog
		seen       []time.Duration // by master
		violations int
	}{
		{"a minority has it still", unlocked(ok), []time.Duration{60 * ms, 51 * ms, 50 * ms}, 0},
		{"a majority has it again", unlocked(ok), []time.Duration{60 * ms, 51 * ms, 50*ms + 1}, 1},
		{"nobody knows what the release has done", unlocked("no quorum"), []time.Duration{60 * ms, 51 * ms, 52 * ms}, 0},
		{"it was there before", unlocked(ok), []time.Duration{40 * ms, 41 * ms, 42 * ms, 43 * ms, 44 * ms}, 0},
	} {
		seen := make(sightings)
		for i, asked := range test.seen {
			seen.add(i, "token", asked)
			seen.add(i, "another", time.Second)
		}
		f := check(trial{Locks: []lockable{one("k")}, Logs: []clientLog{test.log}, Masters: 5, Seen: seen})
		require.Len(t, f.Violations, test.violations, "%s: %v", test.what, f.Violations)
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
		{Op: opExtend, Hold: 1, Outcome: revived},
		{Op: opLost, Hold: 1, Outcome: outlived},
		{Op: opUnlock, Hold: 1, Outcome: keptAlive},
		{Op: opUnlock, Hold: 1, Outcome: stillValid},
		{Op: opDone, Outcome: lossUntold},
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
		{Op: opDone, Outcome: "no quorum"}, // the release has not found out whether it was lost
		{Op: opDone, Outcome: "no quorum+deadline"},
		{Op: opDone, Outcome: "deadline"},
		{Op: opOpen, Outcome: "no quorum+deadline"},
	} {
		f := judge(0, log("a", []record{r}))
		require.Empty(t, f.Violations, "%s %s", r.Op, r.Outcome)
		require.Equal(t, 1, f.Outcomes[r.Op][r.Outcome])
	}
}

func TestWhoWantsAnotherNumberOfPermitsDoesNotWait(t *testing.T) {
	two := lockable{Kind: permits, Keys: []string{"p"}, TTL: 100 * ms, Permits: 2}
	three := two
	three.Permits = 3
	for _, o := range []op{opLock, opDo} {
		l := log("a", []record{{Op: o, Lock: two.String(), Outcome: "no quorum"}})
		require.Empty(t, check(trial{Locks: []lockable{two, three}, Logs: []clientLog{l}}).Violations)
		require.Len(t, check(trial{Locks: []lockable{two, one("p")}, Logs: []clientLog{l}}).Violations, 1)
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

func TestEachKindIsToBeTaken(t *testing.T) {
	kinds := trial{
		Locks: []lockable{one("k"), {Kind: shared, Keys: []string{"k"}, TTL: 100 * ms}, {Kind: foreign, Keys: []string{"k"}, TTL: 100 * ms}},
		Logs:  []clientLog{log("a", taken(1, 10*ms, 100*ms, 20*ms), fenced(7, taken(2, 30*ms, 100*ms, 40*ms)), takenOf("foreign k", 3, 50*ms, 100*ms, 60*ms))},
		Up:    []span{{0, 40 * ms}, {50 * ms, 80 * ms}}, // 70 ms in all
	}
	f := check(kinds)
	require.Empty(t, f.Violations)
	require.Equal(t, map[string]int{"plain": 1, "plain fenced": 1, "foreign": 1, "shared": 0}, f.Kinds)
	require.Equal(t, map[string]int{"k": 2, "foreign k": 1}, f.Taken)

	kinds.LongEnough = 70*ms + 1
	require.Empty(t, check(kinds).Violations, "a short run shows nothing")
	kinds.LongEnough = 70 * ms
	f = check(kinds)
	require.Len(t, f.Violations, 1)
	require.Contains(t, f.Violations[0], "no lock of the kind shared was taken")

	nobody := kinds
	nobody.Locks, nobody.Masters, nobody.EachKey = append(slices.Clone(kinds.Locks), one("other")), 1, true
	require.Len(t, check(nobody).Violations, 2, "a run that is not long shows no key")
	nobody.Up = []span{{0, 140 * ms}}
	f = check(nobody)
	require.Len(t, f.Violations, 3)
	require.Contains(t, f.Violations[1], "no lock of the key other was taken")
	require.Contains(t, f.Violations[2], "no key was seen on a master")

	kinds.Logs = append(kinds.Logs, log("b", takenOf("shared k 100ms", 1, 70*ms, 100*ms, 75*ms)))
	require.Empty(t, check(kinds).Violations)
	kinds.Logs[0].Records = slices.Delete(kinds.Logs[0].Records, 3, 6)
	f = check(kinds)
	require.Len(t, f.Violations, 1)
	require.Contains(t, f.Violations[0], "no lock of the kind plain fenced was taken")
}

func TestARecordOfAnUnknownLockIsAViolation(t *testing.T) {
	f := judge(0, killed("a", takenOf("what", 1, 10*ms, 100*ms, 0)))
	require.Len(t, f.Violations, 1)
	require.Contains(t, f.Violations[0], `of "what", of which nothing is known`)
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
				Locks: []lockable{one("k")}, Up: test.up, Bound: bound,
				Logs: []clientLog{log("a", taken(1, 50*ms, 51*ms, 0), taken(2, 100*ms, 101*ms, 0), taken(3, 300*ms, 301*ms, 0))},
			})
			require.Equal(t, test.stall, f.Stall, test.what)
			require.Equal(t, bound > 0 && bound < test.stall, len(f.Violations) > 0, "%s: %v", test.what, f.Violations)
		}
	}
}
