//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestALockThatIsHandedOverIsClaimedUntilItIsAskedFor(t *testing.T) {
	left := record{T: 40 * ms, Op: opLeave, Hold: 1}
	asked := func(at, until time.Duration, outcome string) record {
		return record{T: at, Op: opAdopt, Hold: 1, Until: until, Outcome: outcome}
	}
	a := taken(1, 10*ms, 100*ms, 0)
	for _, test := range []struct {
		what      string
		records   []record
		from      time.Duration // when another takes it
		violation string        // a part of it; empty if there is none
	}{
		{"after it was asked for", []record{left}, 40 * ms, ""},
		{"before", []record{left}, 40*ms - 1, "had it at once"},
		{"after it was asked for in vain", []record{left, asked(60*ms, 0, "no quorum"), asked(61*ms, 0, "deadline")}, 40 * ms, ""},
		{"within what was taken over", []record{left, asked(60*ms, 150*ms, ok)}, 150*ms - 1, "had it at once"},
		{"... though not at once", []record{left, asked(60*ms, 0, "deadline"), asked(61*ms, 150*ms, ok)}, 50 * ms, "had it at once"},
		{"after what was taken over", []record{left, asked(60*ms, 150*ms, ok)}, 150 * ms, ""},
		{"after what was taken over was left", []record{left, asked(60*ms, 150*ms, ok), {T: 80 * ms, Op: opLeave, Hold: 1}}, 80 * ms, ""},
		{"taken over when it was over", []record{left, asked(190*ms, 0, revived)}, 200 * ms, "adopt  ended in valid again"},
		{"with a lower fence", []record{left, asked(60*ms, 0, fenceFell)}, 200 * ms, "adopt  ended in lower fence"},
		{"lost while it was valid", []record{left, asked(60*ms, 0, "not held")}, 200 * ms, "though it was valid until"},
		{"lost when it was over", []record{left, asked(190*ms, 0, "not held")}, 200 * ms, ""},
	} {
		f := judge(0, log("a", a, test.records), log("b", taken(1, test.from, test.from+90*ms, test.from+ms)))
		if test.violation == "" {
			require.Empty(t, f.Violations, test.what)
			continue
		}
		require.Len(t, f.Violations, 1, "%s: %v", test.what, f.Violations)
		require.Contains(t, f.Violations[0], test.violation, test.what)
	}
}
