//go:build linux

package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeadersMustKeepTheirLocksWhileTheyCleanUp(t *testing.T) {
	for _, test := range []struct{ kept, notKept, violations int }{
		{0, leastCleaned, 1}, {0, leastCleaned - 1, 0}, {1, leastCleaned, 0}, {leastCleaned, 0, 0},
	} {
		office := taken(1, 10*ms, 100*ms, 50*ms)
		office[0].Op = opLead
		records := slices.Concat(office,
			slices.Repeat([]record{{T: 60 * ms, Op: opClean, Hold: 1, Outcome: ok}}, test.kept),
			slices.Repeat([]record{{T: 60 * ms, Op: opClean, Hold: 1, Outcome: notKept}}, test.notKept))
		f := judge(0, log("a", records))
		require.Len(t, f.Violations, test.violations, "%+v: %v", test, f.Violations)
		require.Equal(t, 1, f.Taken["k"])
	}
}

func TestATermOfOfficeIsAClaim(t *testing.T) {
	office := taken(1, 10*ms, 100*ms, 0)
	office[0].Op = opLead
	f := judge(0, log("a", office), log("b", taken(1, 50*ms, 140*ms, 60*ms)))
	require.Equal(t, 1, f.Overlaps["k"])
}
