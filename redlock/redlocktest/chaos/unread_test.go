//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClientsGoOnWhileTheirLogIsBlocked(t *testing.T) {
	const at, to = 100 * ms, 900 * ms
	unreads := []unread{{"a", span{at, to}}, {"b", span{at, to}}, {"c", span{at, to}}}
	kept := func(hold int, looks time.Duration) []record {
		return append(taken(hold, 20*ms, 90*ms, 0), record{T: looks, Op: opLook, Hold: hold, Until: looks + 50*ms})
	}
	var lost []record
	for hold := range leastUnkept {
		lost = append(lost, taken(hold+1, 20*ms, 110*ms, 0)...)
		lost = append(lost, record{T: 600 * ms, Op: opLost, Hold: hold + 1, Outcome: "lost+expired"})
	}
	for _, test := range []struct {
		what    string
		unreads []unread
		logs    []clientLog
		found   string
	}{
		{"none goes on", unreads, []clientLog{log("a", taken(1, 20*ms, 100*ms, 30*ms)), log("b"), log("c", kept(1, 950*ms))}, "no client did anything"},
		{"one goes on", unreads, []clientLog{log("a"), log("b", kept(1, 800*ms)), log("c")}, ""},
		{"they go on, and lose what they keep", unreads, []clientLog{killed("b", lost)}, "none was kept"},
		{"one is kept", unreads, []clientLog{killed("b", lost), log("c", kept(9, 300*ms))}, ""},
		{"too few to say", unreads[:2], []clientLog{log("a"), log("b")}, ""},
		{"nothing was blocked", nil, []clientLog{log("a")}, ""},
	} {
		c := checker{trial: trial{Unread: test.unreads, Logs: test.logs}}
		for _, l := range test.logs {
			for _, r := range l.Records {
				if r.Op == opTry {
					c.claims = append(c.claims, &claim{client: l.Client, hold: r.Hold, lock: one("k"), span: span{From: r.T, To: r.Until}})
				}
			}
		}
		c.checkLogs()
		if test.found == "" {
			require.Empty(t, c.Violations, test.what)
			continue
		}
		require.Len(t, c.Violations, 1, test.what)
		require.Contains(t, c.Violations[0], test.found, test.what)
	}
}
