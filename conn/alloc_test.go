package conn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

// The steady state of a connection allocates nothing: neither a round trip (Send, Now,
// Wait, Receive, Next) nor the other calls of a round.
func TestTheSteadyStateAllocatesNothing(t *testing.T) {
	m := start(t)
	r := newRoundTrip(t, dial(t, m.addr(), conn.Options{}))
	failed := false
	for name, do := range map[string]func(){
		"round trip": func() { failed = failed || !r.do() },
		"now":        func() { clock.Now() },
		"unsent":     func() { r.c.Unsent() },
		"flush":      func() { r.c.Flush() },
		"receive":    func() { r.c.Receive() },
		"poll":       func() { r.p.Poll() },
		"modify":     func() { r.p.Modify(r.c, 1, conn.Readable) },
		"timeout":    func() { r.p.Wait(clock.Now() + 10_000) },
		"wake": func() {
			r.p.Wake()
			r.p.Wait(clock.Forever)
		},
	} {
		require.Zero(t, testing.AllocsPerRun(200, do), name)
	}
	require.False(t, failed)
}
