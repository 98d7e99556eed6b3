package redlock

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A server that may have forgotten locks may have forgotten one that was taken just now,
// however long ago it was started: a replica that was promoted, or that has taken over
// behind the same address, is older than what it lacks.
func TestQuarantineIsAWholeTTLHoweverOldTheServerIs(t *testing.T) {
	const uses, old = time.Minute, 24 * time.Hour
	before := conn.Server{Endpoint: "a:1", RunID: "1", ReplID: "r", Group: "g", Uptime: old, MasterFor: old}
	for name, change := range map[string]func(now *conn.Server){
		"another server at the same address":    func(now *conn.Server) { now.RunID = "2" },
		"another server at another address":     func(now *conn.Server) { now.RunID, now.Endpoint = "2", "b:1" },
		"it is the master again":                func(now *conn.Server) { now.ReplID = "s" },
		"it does not say who it is":             func(now *conn.Server) { now.RunID, now.ReplID = "", "" },
		"it has a fixed place and was promoted": func(now *conn.Server) { now.Group, now.ReplID, now.ReplID2 = "", "s", "r" },
		"it does not, and never forgets":        func(now *conn.Server) { now.RunID, now.ReplID, now.Durable = "", "", true },
	} {
		t.Run(name, func(t *testing.T) {
			g := &guard{restart: time.Second, durable: true}
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
		g := &guard{restart: cfg.RestartGuard, durable: cfg.Durable}
		g.use(uses)
		d, _, doubt := g.quarantine(0, before, now)
		require.False(t, doubt, "it has given no vote yet")
		return d
	}
	seen, promoted, group := conn.Server{Role: "replica"}, now, now
	promoted.ReplID2 = "s"
	group.ReplID2, group.Group, group.MasterFor = "s", "g", old
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
			g := &guard{restart: time.Second}
			g.use(time.Minute)
			d, why, doubt := g.quarantine(0, before, now)
			require.Zero(t, d, why)
			require.False(t, doubt)
		})
	}
}

// B has used only shorter TTLs, or none at all, when a master comes back that may have
// forgotten a longer lock.
func TestRestartedMasterIsBarredByTheFirstLongerTTL(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	was := c.rounds.Masters()[0].Server.RunID
	masters.Restart(0)
	require.Eventually(t, func() bool {
		s := c.rounds.Masters()[0]
		return s.Phase == mux.Up && s.Server.RunID != was
	}, hanging, 5*time.Millisecond, "no lock is long enough to have been forgotten")
	command(t, masters, 2, "SET", "k", "foreign")
	m := c.NewMutex("k", 30*time.Second)
	require.Equal(t, mux.Up, c.rounds.Masters()[0].Phase, "a TTL that nobody has used costs nothing")
	var why *mux.QuarantineError
	require.ErrorAs(t, m.TryLock(t.Context()), &why)
	require.Equal(t, mux.Quarantined, c.rounds.Masters()[0].Phase)
}

func TestGuardListensToNobodyWhoMayHaveForgotten(t *testing.T) {
	const guarded, uses = time.Hour, time.Minute
	one := conn.Server{Endpoint: "a:1", RunID: "1", Uptime: 24 * time.Hour}
	silent := conn.Server{Endpoint: "a:1"}
	with := func(s conn.Server, change func(*conn.Server)) conn.Server { change(&s); return s }
	restarted := with(one, func(s *conn.Server) { s.RunID, s.Uptime = "2", 0 })
	durable := func(s *conn.Server) { s.Durable = true }
	of := func(s *conn.Server) { s.Group, s.ReplID, s.MasterFor = "g", "r", 24*time.Hour }
	node := with(one, func(s *conn.Server) { s.Group, s.Cluster, s.ReplID, s.Epoch = "cluster", true, "r", "7" })
	for name, c := range map[string]struct {
		cfg         Config
		before, now conn.Server
		d           time.Duration
		doubt       bool
	}{
		"first":                        {Config{}, conn.Server{}, restarted, 0, false},
		"first, guarded":               {Config{RestartGuard: guarded}, conn.Server{}, restarted, guarded, false},
		"first, guarded, old":          {Config{RestartGuard: guarded}, conn.Server{}, one, 0, false},
		"first, guarded, half":         {Config{RestartGuard: guarded}, conn.Server{}, with(one, func(s *conn.Server) { s.Uptime = guarded / 2 }), guarded/2 + time.Second, false},
		"first, guarded, durable":      {Config{RestartGuard: guarded}, conn.Server{}, with(restarted, durable), 0, false},
		"first, guarded, says nothing": {Config{RestartGuard: guarded}, conn.Server{}, conn.Server{Endpoint: "a:1"}, guarded, false},
		"first, guarded, promoted": {Config{RestartGuard: guarded}, conn.Server{},
			with(with(one, of), func(s *conn.Server) { s.MasterFor = guarded / 4 }), guarded - guarded/4, false},
		"again":                       {Config{}, one, one, 0, false},
		"restarted":                   {Config{}, one, restarted, uses, true},
		"restarted, guarded":          {Config{RestartGuard: guarded}, one, restarted, guarded, true},
		"restarted, durable":          {Config{}, with(one, durable), with(restarted, durable), 0, false},
		"restarted, durable only now": {Config{}, one, with(restarted, durable), uses, true},
		"restarted, durable, elsewhere": {Config{}, with(with(one, durable), func(s *conn.Server) { s.Remote = "10.0.0.1:1" }),
			with(with(restarted, durable), func(s *conn.Server) { s.Remote = "10.0.0.2:1" }), uses, true},
		"restarted, declared durable, elsewhere": {Config{Durable: true}, with(one, func(s *conn.Server) { s.Remote = "10.0.0.1:1" }),
			with(restarted, func(s *conn.Server) { s.Remote = "10.0.0.2:1" }), 0, false},
		"the same, by another of its addresses": {Config{}, with(one, func(s *conn.Server) { s.Remote = "10.0.0.1:1" }),
			with(one, func(s *conn.Server) { s.Remote = "10.0.0.2:1" }), 0, false},
		"restarted, declared durable":                  {Config{Durable: true}, one, restarted, 0, false},
		"again, says nothing":                          {Config{}, silent, silent, uses, true},
		"again, says nothing any more":                 {Config{}, one, silent, uses, true},
		"again, says it now":                           {Config{}, silent, one, uses, true},
		"again, guarded, says nothing":                 {Config{RestartGuard: guarded}, silent, silent, guarded, true},
		"again, says nothing, but is declared durable": {Config{Durable: true}, silent, silent, 0, false},
		"again, says nothing, but that it is durable":  {Config{}, with(silent, durable), with(silent, durable), 0, false},
		"was a replica, as it has said": {Config{Durable: true}, with(one, func(s *conn.Server) { s.Role = "replica" }),
			with(one, func(s *conn.Server) { s.Role = "master" }), uses, true},
		"was a replica, as its id shows": {Config{Durable: true}, with(one, func(s *conn.Server) { s.ReplID = "r" }),
			with(one, func(s *conn.Server) { s.ReplID, s.ReplID2 = "s", "r" }), uses, true},
		"again, its id is known only now": {Config{}, one, with(one, func(s *conn.Server) { s.ReplID = "s" }), 0, false},
		"restarted, durable, with another id": {Config{}, with(with(one, durable), func(s *conn.Server) { s.ReplID = "r" }),
			with(with(restarted, durable), func(s *conn.Server) { s.ReplID = "s" }), 0, false},
		"replaced, however durable": {Config{Durable: true}, with(with(one, of), durable),
			with(with(one, of), func(s *conn.Server) { s.Endpoint, s.Durable = "b:1", true }), uses, true},
		"replaced, and back":          {Config{Durable: true}, with(one, of), with(one, func(s *conn.Server) { of(s); s.ReplID = "s" }), uses, true},
		"first of a cluster":          {Config{}, conn.Server{}, node, 0, false},
		"first of a cluster, guarded": {Config{RestartGuard: guarded}, conn.Server{}, node, guarded, false},
		"first of a cluster, guarded, promoted": {Config{RestartGuard: guarded}, conn.Server{},
			with(node, func(s *conn.Server) { s.ReplID2, s.Durable = "q", true }), guarded, false},
		"first of a cluster, guarded, with a young witness": {Config{RestartGuard: guarded}, conn.Server{},
			with(node, func(s *conn.Server) { s.MasterFor = guarded / 4 }), guarded - guarded/4, false},
		"first of a cluster, guarded, promoted, with an old witness": {Config{RestartGuard: guarded}, conn.Server{},
			with(node, func(s *conn.Server) { s.ReplID2, s.MasterFor = "q", guarded }), 0, false},
		"again of a cluster":           {Config{}, node, node, 0, false},
		"of a cluster, replaced":       {Config{}, node, with(node, func(s *conn.Server) { s.Endpoint = "b:1" }), uses, true},
		"of a cluster, with new slots": {Config{}, node, with(node, func(s *conn.Server) { s.Epoch = "8" }), uses, true},
		"of a cluster, no epoch":       {Config{}, with(node, func(s *conn.Server) { s.Epoch = "" }), with(node, func(s *conn.Server) { s.Epoch = "" }), uses, true},
		"of a cluster, durable": {Config{}, with(node, durable),
			with(with(node, durable), func(s *conn.Server) { s.Endpoint = "b:1" }), uses, true},
		"of a cluster that forgets nothing": {Config{Durable: true, RestartGuard: guarded}, node, with(restarted, func(s *conn.Server) { s.Cluster = true }), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guard{restart: c.cfg.RestartGuard, durable: c.cfg.Durable}
			g.use(uses)
			g.use(time.Second)
			d, why, doubt := g.quarantine(0, c.before, c.now)
			require.Equal(t, c.d, d)
			require.Equal(t, c.doubt, doubt)
			require.Equal(t, d > 0, why != "")
		})
	}
}
