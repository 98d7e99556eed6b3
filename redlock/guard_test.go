package redlock

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// A server that may have forgotten locks may have forgotten one that was taken just now,
// however long ago it was started: a replica that was promoted, or that has taken over
// behind the same address, is older than what it lacks.
func TestQuarantineIsAWholeTTLHoweverOldTheServerIs(t *testing.T) {
	const uses, old = time.Minute, 24 * time.Hour
	before := conn.Server{Endpoint: "a:1", RunID: "1", ReplID: "r", Group: "g", Uptime: old, Reign: old}
	for name, change := range map[string]func(now *conn.Server){
		"another server at the same address": func(now *conn.Server) { now.RunID = "2" },
		"another server at another address":  func(now *conn.Server) { now.RunID, now.Endpoint = "2", "b:1" },
		"it is the master again":             func(now *conn.Server) { now.ReplID = "s" },
		"it does not say who it is":          func(now *conn.Server) { now.RunID, now.ReplID = "", "" },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(&Config{RestartGuard: time.Second})
			g.use(uses)
			now := before
			change(&now)
			d, _, doubt := g.quarantine(0, before, now)
			require.Equal(t, uses, d)
			require.True(t, doubt)
		})
	}
}
