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
		"another server at the same address":    func(now *conn.Server) { now.RunID = "2" },
		"another server at another address":     func(now *conn.Server) { now.RunID, now.Endpoint = "2", "b:1" },
		"it is the master again":                func(now *conn.Server) { now.ReplID = "s" },
		"it does not say who it is":             func(now *conn.Server) { now.RunID, now.ReplID = "", "" },
		"it has a fixed place and was promoted": func(now *conn.Server) { now.Group, now.ReplID, now.ReplID2 = "", "s", "r" },
		"it does not, and never forgets":        func(now *conn.Server) { now.RunID, now.ReplID, now.Durable = "", "", true },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(&Config{RestartGuard: time.Second, Durable: true})
			g.use(uses)
			now := before
			change(&now)
			d, _, doubt := g.quarantine(0, before, now)
			require.Equal(t, uses, d)
			require.True(t, doubt)
		})
	}
}

func TestFirstConnectionToAMasterThatWasAReplica(t *testing.T) {
	const guarded, uses, old = 20 * time.Second, time.Minute, 24 * time.Hour
	now := conn.Server{Endpoint: "a:1", RunID: "1", ReplID: "r", Uptime: old, Durable: true}
	bar := func(before, now conn.Server, cfg Config) time.Duration {
		g := newGuard(&cfg)
		g.use(uses)
		d, _, doubt := g.quarantine(0, before, now)
		require.False(t, doubt, "it has given no vote yet")
		return d
	}
	seen, promoted, group := conn.Server{Role: "replica"}, now, now
	promoted.ReplID2 = "s"
	group.ReplID2, group.Group, group.Reign = "s", "g", old
	require.Equal(t, uses, bar(seen, now, Config{}), "it has said so before it was connected")
	require.Equal(t, uses, bar(seen, now, Config{RestartGuard: guarded, Durable: true}))
	require.Equal(t, guarded, bar(conn.Server{}, promoted, Config{RestartGuard: guarded, Durable: true}))
	require.Zero(t, bar(conn.Server{}, promoted, Config{}), "no guard is wanted for what was before us")
	require.Zero(t, bar(conn.Server{}, group, Config{RestartGuard: guarded}), "that of a group is known by its reign")
	require.Zero(t, bar(conn.Server{}, now, Config{RestartGuard: guarded}))
}

func TestWhatHasForgottenNothingVotes(t *testing.T) {
	before := conn.Server{Endpoint: "a:1", RunID: "1", ReplID: "r", Uptime: time.Hour}
	for name, change := range map[string]func(before, now *conn.Server){
		"it is the same":                       func(_, _ *conn.Server) {},
		"it has got its first replica":         func(_, now *conn.Server) { now.ReplID = "s" },
		"it persists every write":              func(before, now *conn.Server) { now.RunID, before.Durable, now.Durable = "2", true, true },
		"it does not tell its replication id":  func(before, now *conn.Server) { before.ReplID, now.ReplID = "", "" },
		"it was promoted before we knew of it": func(before, now *conn.Server) { before.ReplID2, now.ReplID2 = "o", "o" },
	} {
		t.Run(name, func(t *testing.T) {
			before := before
			now := before
			change(&before, &now)
			g := newGuard(&Config{RestartGuard: time.Second})
			g.use(time.Minute)
			d, why, doubt := g.quarantine(0, before, now)
			require.Zero(t, d, why)
			require.False(t, doubt)
		})
	}
}
