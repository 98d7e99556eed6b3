package mux_test

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// greetings records what Config.Quarantine is asked about one master.
type greetings struct {
	mu  sync.Mutex
	all [][2]conn.Server // before, now
}

func (g *greetings) hook(of int) func(int, conn.Server, conn.Server) (d time.Duration, why string, doubt bool) {
	return func(i int, before, now conn.Server) (time.Duration, string, bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if i == of {
			g.all = append(g.all, [2]conn.Server{before, now})
		}
		return 0, "", false
	}
}

func (g *greetings) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all)
}

// at returns the k-th greeting.
func (g *greetings) at(k int) (before, now conn.Server) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all[k][0], g.all[k][1]
}

// A master with a fixed place is made a replica, and says so to the next command. It is not
// asked until it is a master again, and then the hook is told that it was a replica.
func TestMasterThatWasAReplicaInBetweenIsKnownByIt(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var g greetings
	m := open(t, mux.Config{Masters: masters.Addrs(), Quarantine: g.hook(0)})
	waitUp(t, m, 3)
	host, port, _ := strings.Cut(masters.Addr(2), ":")
	_, err := masters.Do(0, "REPLICAOF", host, port)
	require.NoError(t, err)
	op := acquire("k", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, op.Won())
	var reply *mux.ReplyError
	require.ErrorAs(t, op.Votes[0].Err, &reply)
	require.Equal(t, "READONLY", reply.Code)
	eventually(t, "it is refused", func() bool { return m.Masters()[0].Phase == mux.Refused })
	require.ErrorIs(t, m.Masters()[0].Err, conn.ErrNotMaster)
	_, err = masters.Do(0, "REPLICAOF", "NO", "ONE")
	require.NoError(t, err)
	waitUp(t, m, 3)
	require.Equal(t, 2, g.count())
	before, now := g.at(1)
	require.Equal(t, "replica", before.Role)
	require.Equal(t, "master", now.Role)
	require.Equal(t, before.RunID, now.RunID)
	require.NotEqual(t, before.ReplID, now.ReplID)
}

// If nobody has asked the master while it was a replica, and its connection has lasted, the
// replication id tells at the next connect.
func TestReplicationIDTellsOfAReplicaInBetween(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var g greetings
	m := open(t, mux.Config{Masters: masters.Addrs(), Quarantine: g.hook(0)})
	waitUp(t, m, 3)
	host, port, _ := strings.Cut(masters.Addr(2), ":")
	for _, args := range [][]string{{"REPLICAOF", host, port}, {"REPLICAOF", "NO", "ONE"}, {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}} {
		_, err := masters.Do(0, args...)
		require.NoError(t, err)
	}
	eventually(t, "it is connected again", func() bool { return g.count() == 2 })
	before, now := g.at(1)
	require.Equal(t, before.RunID, now.RunID)
	require.Len(t, now.ReplID, 40)
	require.NotEqual(t, before.ReplID, now.ReplID)
}

// A server that does not tell a replication id is known to be a replica by what it says
// itself: in the answer to a command, in that to a script of Redis before 7, and in a
// handshake.
func TestReplicaInBetweenIsKnownByItsOwnWordAlone(t *testing.T) {
	t.Parallel()
	const wrapped = "ERR Error running script (call to f_10): @user_script:2: @user_script: 2: -READONLY You can't write against a read only replica."
	for name, said := range map[string]string{"a command": "READONLY You can't write against a read only replica.", "a script": wrapped} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			f := newFake(t, "a", func() script {
				return func([]string) (string, bool) {
					if asked.Add(1) == 1 {
						return "-" + said + "\r\n", true
					}
					return ":1\r\n", true
				}
			})
			var g greetings
			m := open(t, mux.Config{Masters: []string{f.addr()}, Quarantine: g.hook(0)})
			require.NoError(t, m.Do(t.Context(), vote("a")))
			eventually(t, "it is connected again", func() bool { return g.count() == 2 })
			before, _ := g.at(1)
			require.Equal(t, "replica", before.Role)
			require.Empty(t, before.ReplID)
		})
	}
	t.Run("a handshake", func(t *testing.T) {
		f := newFake(t, "a", steady(0))
		var g greetings
		m := open(t, mux.Config{Masters: []string{f.addr()}, Quarantine: g.hook(0)})
		f.setRole("replica")
		f.cut()
		eventually(t, "it is refused", func() bool { return m.Masters()[0].Phase == mux.Refused })
		f.setRole("master")
		eventually(t, "it is connected again", func() bool { return g.count() == 2 })
		before, _ := g.at(1)
		require.Equal(t, "replica", before.Role)
	})
}

// A quarantine counts from the connection for which it was asked, and not from the server's
// start.
func TestQuarantineCountsFromTheConnection(t *testing.T) {
	t.Parallel()
	const d = time.Hour
	f := newFake(t, "old", steady(0)) // it says that it was started 1000 s ago
	begun := time.Now()
	m := open(t, mux.Config{Masters: []string{f.addr()}, Quarantine: func(int, conn.Server, conn.Server) (time.Duration, string, bool) {
		return d, "it may have forgotten", true
	}})
	const inaccuracy = time.Minute // of two clocks that are read one after the other, at most
	lasts := func(d time.Duration) {
		t.Helper()
		var s mux.State
		eventually(t, "it is connected", func() bool { s = m.Masters()[0]; return s.Phase != mux.Down })
		require.Positive(t, s.Server.Uptime)
		var why *mux.QuarantineError
		require.ErrorAs(t, s.Err, &why)
		require.WithinRange(t, why.Until, begun.Add(d-inaccuracy), time.Now().Add(d))
	}
	lasts(d)
	begun = time.Now()
	f.cut()
	eventually(t, "it is connected again", func() bool { return m.Masters()[0].Connects == 2 })
	lasts(d)
	m.ExtendQuarantine(2 * d)
	lasts(2 * d)
}

// Doubt prolongs a quarantine that has ended already, and that ends again.
func TestQuarantineIsExtended(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), Quarantine: func(i int, _, _ conn.Server) (time.Duration, string, bool) {
		return 0, "it may have forgotten", i == 0
	}})
	for i := range 3 {
		eventually(t, "all are up", func() bool { return m.Masters()[i].Phase == mux.Up })
	}
	m.ExtendQuarantine(time.Since(begun) + 3*time.Second) // from when it was connected
	s := m.Masters()
	require.Equal(t, []mux.Phase{mux.Quarantined, mux.Up, mux.Up}, []mux.Phase{s[0].Phase, s[1].Phase, s[2].Phase})
	var why *mux.QuarantineError
	require.ErrorAs(t, s[0].Err, &why)
	require.Equal(t, "it may have forgotten", why.Reason)
	m.ExtendQuarantine(time.Nanosecond) // which shortens nothing
	require.Equal(t, mux.Quarantined, m.Masters()[0].Phase)
	op := acquire("k", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	require.ErrorAs(t, op.Votes[0].Err, &why, "it does not vote")
	eventually(t, "it votes again", func() bool { return m.Masters()[0].Phase == mux.Up })
}

// Each connection of a master in quarantine that breaks leaves no goroutine behind.
func TestQuarantineLeavesNoGoroutineBehindForEachConnection(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs(), Quarantine: func(_ int, before, _ conn.Server) (time.Duration, string, bool) {
		if before.Endpoint == "" {
			return time.Hour, "new", false
		}
		return 0, "", false
	}})
	const times = 10
	for n := range uint64(times) {
		eventually(t, "it is connected", func() bool {
			s := m.Masters()[0]
			return s.Connects == n+1 && s.Phase == mux.Quarantined
		})
		_, err := masters.Do(0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		require.NoError(t, err)
	}
	eventually(t, "one waits for the end of the quarantine", func() bool {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), ").awaitQuarantineEnd(") == 1
	})
}
