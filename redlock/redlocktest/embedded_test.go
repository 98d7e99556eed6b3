package redlocktest

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
)

// info returns what a master says in one answer to INFO.
func info(t *testing.T, m *Masters, sections ...string) map[string]string {
	t.Helper()
	text, err := m.Do(0, append([]string{"INFO"}, sections...)...)
	require.NoError(t, err)
	said := map[string]string{}
	for line := range strings.Lines(text.(string)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			said[key] = value
		}
	}
	return said
}

func TestEveryStartHasAnIdentityOfItsOwn(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		type identity struct{ run, replication string }
		seen := map[identity]bool{}
		look := func() identity {
			t.Helper()
			all := info(t, m)
			id := identity{all["run_id"], all["master_replid"]}
			require.Regexp(t, "^[0-9a-f]{40}$", id.run)
			require.Regexp(t, "^[0-9a-f]{40}$", id.replication)
			require.NotEqual(t, id.run, id.replication)
			return id
		}
		fresh := func() {
			t.Helper()
			id := look()
			require.False(t, seen[id])
			for old := range seen {
				require.True(t, old.run != id.run && old.replication != id.replication)
			}
			seen[id] = true
		}
		fresh()
		m.Pause(0)
		m.Resume(0)
		require.True(t, seen[look()], "it is the same after a pause")
		m.Restart(0)
		fresh()
		m.Kill(0)
		m.Restart(0)
		fresh()
		m.Pause(0)
		m.Restart(0)
		fresh()
	})
}

func TestMastersSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		for _, sections := range [][]string{nil, {"all"}, {"default"}, {"everything"}, {"server", "replication"}} {
			if _, err := m.Do(0, append([]string{"INFO"}, sections...)...); len(sections) > 1 && err != nil {
				require.EqualError(t, err, "ERR syntax error") // before Redis 7 there is one section at most
				continue
			}
			all := info(t, m, sections...)
			require.Equal(t, "standalone", cmp.Or(all["redis_mode"], all["server_mode"]), sections) // Valkey's name
			require.Equal(t, "master", all["role"], sections)
		}
		server, replication := info(t, m, "SERVER"), info(t, m, "Replication")
		require.Len(t, server["run_id"], 40)
		require.NotContains(t, server, "role")
		require.Len(t, replication["master_replid"], 40)
		require.NotContains(t, replication, "run_id")
		require.Contains(t, info(t, m, "clients"), "connected_clients")
		require.Contains(t, info(t, m, "stats"), "total_commands_processed")
		require.Contains(t, info(t, m), "connected_clients")

		hello, err := m.Do(0, "HELLO", "3")
		require.NoError(t, err)
		require.Contains(t, hello, cmp.Or(server["valkey_version"], server["redis_version"]), "the version of HELLO")

		reply, err := m.Do(0, "EVAL", "return redis.call('INFO', 'server')", "0")
		require.NoError(t, err)
		require.Contains(t, reply, server["run_id"], "scripts are told, too")
	})
}

func TestMastersSaySinceWhenTheyAreUp(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		began := time.Now()
		m := start(1)
		uptime := func() time.Duration {
			t.Helper()
			seconds, err := strconv.Atoi(info(t, m, "server")["uptime_in_seconds"])
			require.NoError(t, err)
			return time.Duration(seconds) * time.Second
		}
		eventually(t, func() bool { return uptime() >= time.Second }, "it counts")
		require.Less(t, uptime(), time.Since(began)+2*time.Second) // Redis computes it from whole seconds
		began = time.Now()
		m.Restart(0)
		require.Less(t, uptime(), time.Since(began)+2*time.Second)
	})
}

// A stalledConn writes when it is told to.
type stalledConn struct {
	net.Conn
	write chan struct{}
}

func (stalledConn) SetWriteDeadline(time.Time) error { return nil }

func (c stalledConn) Write(p []byte) (int, error) { <-c.write; return len(p), nil }

func TestEmbeddedMasterIsPausedWhenNothingIsBeingWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate, write := newGate(), make(chan struct{})
		c := &gatedConn{stalledConn{write: write}, gate}
		written, shut := false, false
		go func() { c.Write([]byte("+OK\r\n")); written = true }()
		synctest.Wait()
		go func() { gate.close(); shut = true }()
		synctest.Wait()
		require.False(t, shut, "a reply is still on its way")
		close(write)
		synctest.Wait()
		require.True(t, written && shut)

		written = false
		go func() { c.Write([]byte("+OK\r\n")); written = true }()
		synctest.Wait()
		require.False(t, written, "the next one waits")
		gate.open(false)
		synctest.Wait()
		require.True(t, written)
	})
}

func TestConnectionsKnowEmbeddedMasters(t *testing.T) {
	t.Parallel()
	m := Embedded(t, 2)
	server := func(i int) conn.Server {
		t.Helper()
		addr, err := conn.ParseAddress(m.Addr(i))
		require.NoError(t, err)
		c, err := conn.Dial(t.Context(), addr, conn.Options{DialTimeout: patience})
		require.NoError(t, err)
		defer c.Close()
		return c.Server()
	}
	first := server(0)
	require.Equal(t, info(t, m)["run_id"], first.RunID)
	require.Equal(t, "standalone", first.Mode)
	require.Equal(t, "master", first.Role)
	require.Empty(t, first.Missing)
	require.NotEqual(t, first.RunID, server(1).RunID)
	eventually(t, func() bool { return server(0).Uptime >= time.Second }, "its uptime grows")
	began := time.Now()
	m.Restart(0)
	restarted := server(0)
	require.NotEqual(t, first.RunID, restarted.RunID)
	require.LessOrEqual(t, restarted.Uptime, time.Since(began))
}

// A lock that two of three masters had is forgotten by one of them, and the third
// comes up. Who would let the forgetful one vote would be given the lock, too.
func TestRestartedEmbeddedMasterDoesNotVote(t *testing.T) {
	t.Parallel()
	m := Embedded(t, 3)
	open := func() *redlock.Client {
		client, err := redlock.Open(t.Context(), redlock.Config{Masters: m.Addrs()})
		require.NoError(t, err)
		t.Cleanup(func() { client.Close() })
		return client
	}
	one, other := open(), open()
	const ttl = time.Minute
	require.NoError(t, other.NewMutex("another", ttl).TryLock(t.Context())) // the other knows the TTL
	m.Kill(2)
	require.NoError(t, one.NewMutex("key", ttl).TryLock(t.Context()))
	m.Restart(1)
	m.Restart(2)
	eventually(t, func() bool {
		masters := other.Stats().Masters
		return masters[1].Phase == "quarantined" && masters[2].Phase == "quarantined"
	}, "the other knows that two were restarted")
	require.Error(t, other.NewMutex("key", ttl).TryLock(t.Context()))
}
