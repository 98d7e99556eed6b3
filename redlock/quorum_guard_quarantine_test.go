package redlock_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// hasOnTwo takes a lock on the masters 0 and 1 of three, and frees the key on the third.
func hasOnTwo(t *testing.T, masters *redlocktest.Masters, m *redlock.Mutex) {
	t.Helper()
	redlock.Says(t, masters, 2, "SET", m.Key(), "foreign")
	require.NoError(t, m.TryLock(t.Context()))
	redlock.Says(t, masters, 2, "DEL", m.Key())
}

// Masters that do not say who they are count as restarted whenever they are connected again.
// In doubt the lock is not given away.
func TestMasterThatDoesNotSayWhoItIsCountsAsRestarted(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	for _, c := range []struct {
		name   string
		rights string
		want   string
	}{
		{"without INFO", strings.Replace(lockRights, " +info", "", 1), "quarantined"},
		{"with INFO", lockRights, "quarantined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			masters := startACL(t, 3, c.rights)
			cfg := acl(masters)
			client := openUp(t, cfg)
			first, second := client.NewMutex("lock:k", ttl), client.NewMutex("lock:k", ttl)
			hasOnTwo(t, masters, first)
			connected := func(i int) bool { // again
				list, err := masters.Do(i, "CLIENT", "LIST")
				return err == nil && strings.Contains(list.(string), "user=locker")
			}
			for _, i := range []int{0, 1} {
				masters.Restart(i)
				require.Eventually(t, func() bool { return connected(i) }, time.Minute, 5*time.Millisecond)
				reaches(t, client, i, c.want)
			}
			err := second.TryLock(t.Context())
			require.Positive(t, first.Remaining())
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
			var why *mux.QuarantineError
			require.ErrorAs(t, err, &why)
		})
	}
	t.Run("only the connection was lost", func(t *testing.T) {
		masters := startACL(t, 3, strings.Replace(lockRights, " +info", "", 1))
		client := openUp(t, acl(masters))
		used(t, client, ttl)
		redlock.Says(t, masters, 0, "CLIENT", "KILL", "USER", "locker")
		reaches(t, client, 0, "quarantined") // nobody can tell
	})
}

// replicate makes a master another's replica, and returns when it has that one's data.
func replicate(t *testing.T, masters *redlocktest.Masters, i, of int) {
	t.Helper()
	redlock.Says(t, masters, of, "CONFIG", "SET", "repl-diskless-sync-delay", "0") // or it waits 5 s for other replicas
	host, port, _ := strings.Cut(masters.Addr(of), ":")
	redlock.Says(t, masters, i, "REPLICAOF", host, port)
	require.Eventually(t, func() bool {
		info, err := masters.Do(i, "INFO", "replication")
		return err == nil && strings.Contains(info.(string), "master_link_status:up")
	}, time.Minute, 5*time.Millisecond)
}

func promote(t *testing.T, masters *redlocktest.Masters, i int) {
	t.Helper()
	redlock.Says(t, masters, i, "REPLICAOF", "NO", "ONE")
}

// A master that was made a replica for a moment, by hand or by a tool, has another's data: it
// does not vote until what it has lost must have expired.
func TestMasterThatWasAReplicaForAMomentDoesNotVote(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	for name, meanwhile := range map[string]func(t *testing.T, masters *redlocktest.Masters, c *redlock.Client){
		"who asks it meanwhile is told": func(t *testing.T, _ *redlocktest.Masters, c *redlock.Client) {
			m := c.NewMutex("other", ttl)
			require.NoError(t, m.TryLock(t.Context()))
			reaches(t, c, 0, "refused")
			require.NoError(t, m.Unlock(t.Context()))
		},
		"its replication id tells at the next connect": func(t *testing.T, masters *redlocktest.Masters, _ *redlock.Client) {
			promote(t, masters, 0)
			redlock.Says(t, masters, 0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		},
		"it tells that it has lost its keys, on its connection": func(t *testing.T, masters *redlocktest.Masters, c *redlock.Client) {
			promote(t, masters, 0)
			require.Error(t, c.NewMutex("k", ttl).TryLock(t.Context()), "it is asked for something, and had not been")
		},
	} {
		t.Run(name, func(t *testing.T) {
			masters := redlocktest.Start(t, 3)
			cfg := redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy}
			a, b := openUp(t, cfg), openUp(t, cfg)
			used(t, b, ttl)
			m := a.NewMutex("k", ttl)
			hasOnTwo(t, masters, m)
			replicate(t, masters, 0, 2)
			require.Equal(t, int64(0), redlock.Says(t, masters, 0, "EXISTS", "k"), "it has forgotten the lock")
			meanwhile(t, masters, b)
			promote(t, masters, 0)
			reaches(t, b, 0, "quarantined")
			require.Error(t, b.NewMutex("k", ttl).TryLock(t.Context()))
			require.Positive(t, m.Remaining())
		})
	}
}

// A client that comes while it is a replica has never been connected to it, and one that comes later finds a
// master as old as the others.
func TestMasterThatWasAReplicaBeforeTheFirstConnectionDoesNotVote(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second
	masters := redlocktest.Start(t, 3)
	guarded := declared(t, masters, redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
	old := openUp(t, redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
	m := old.NewMutex("k", ttl)
	hasOnTwo(t, masters, m)
	replicate(t, masters, 0, 2)
	during := openConfig(t, redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
	used(t, during, ttl)
	reaches(t, during, 0, "refused")
	promote(t, masters, 0)
	reaches(t, during, 0, "quarantined")
	require.Error(t, during.NewMutex("k", ttl).TryLock(t.Context()))

	after := openConfig(t, guarded)
	for i, want := range []string{"quarantined", "up", "up"} {
		reaches(t, after, i, want)
	}
}

// A master that gets a replica, or is copied (redis-cli --rdb), gets another replication id,
// and has forgotten nothing.
func TestMasterThatHasGotAReplicaVotes(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	phases := make(chan string, 100)
	c := openConfig(t, redlock.Config{Masters: masters.Addrs()[:1], RoundTimeout: busy,
		Observers: onEvent(redlock.EventMaster, func(e *redlock.Event) { m := *e.Master; phases <- m.Phase })})
	reaches(t, c, 0, "up")
	used(t, c, 30*time.Second)
	replicate(t, masters, 1, 0)
	redlock.Says(t, masters, 0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	reach := func(want string) {
		t.Helper()
		for {
			p := conntest.Soon(t, want, phases)
			require.NotEqual(t, "quarantined", p)
			if p == want {
				return
			}
		}
	}
	reach("up") // at first
	reach("down")
	reach("up")
}

// A TTL that nobody uses costs nothing, however long it is, and one that is used counts from
// then.
func TestOnlyTTLsThatAreUsedCount(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openUp(t, redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
	for i := range 3 {
		masters.Kill(i)
		reaches(t, c, i, "down")
		masters.Restart(i)
		reaches(t, c, i, "up")
	}
	unused := c.NewMutex("unused", 365*24*time.Hour)
	other := c.NewMutex("unused", time.Hour, redlock.WithToken("x"))
	m := c.NewMutex("k", long)
	for i := range 3 {
		require.Equal(t, "up", phase(c, i))
	}
	require.Equal(t, 365*24*time.Hour, 365*24*time.Hour+unused.Remaining())
	require.Error(t, m.TryLock(t.Context()), "this one is used, and all three may have forgotten one like it")
	for i := range 3 {
		require.Equal(t, "quarantined", phase(c, i))
	}
	untilOf := func(i int) time.Time {
		var round *redlock.RoundError
		var why *mux.QuarantineError
		require.ErrorAs(t, m.TryLock(t.Context()), &round)
		require.ErrorAs(t, round.Votes[i].Err, &why)
		return why.Until
	}
	require.Less(t, time.Until(untilOf(0)), long)
	require.Error(t, other.Extend(t.Context())) // the first Extend of what was handed over uses its TTL
	require.Greater(t, time.Until(untilOf(0)), long)
}

// A demoted master's error is a master's, and not the lock's.
func TestDemotedMasterIsRefusedWithARemedy(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openUp(t, redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
	replicate(t, masters, 0, 2)
	used(t, c, long)
	reaches(t, c, 0, "refused")
	require.Contains(t, c.Stats().Masters[0].Err, "it is a replica")
	masters.Kill(1)
	reaches(t, c, 1, "down")
	err := c.NewMutex("k", long).TryLock(context.Background())
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrRefused, "one refuses, the other one is down")
	require.ErrorIs(t, err, conn.ErrNotMaster)
	var refusal *conn.RefusedError
	require.ErrorAs(t, err, &refusal)
}

// What was declared durable, and does not deny it, needs only be as old as the guard with its disk. What merely says so
// when it is asked tells nothing of the time before.
func TestDurableMasterVotesAtOnceAfterARestart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		durable  bool // on disk
		declared bool
		denied   string // a right that the user lacks
		want     string
	}{
		{"as is declared", true, true, "", "up"},
		{"as it is, and nobody has declared", true, false, "", "quarantined"},
		{"it has no append-only file", false, true, "", "quarantined"},
		{"it does not say so", true, true, "+info", "quarantined"},
		{"the witness is not ours", true, true, "+eval ", "quarantined"},
		{"not durable", false, false, "", "quarantined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var opts []redlocktest.Option
			if c.durable {
				opts = append(opts, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
			}
			masters := redlocktest.Start(t, 3, opts...)
			for i := range 3 {
				redlock.Says(t, masters, i, "ACL", "SETUSER", "locker", "on", ">password", "~*", "-@all", "+set", "+eval", "+evalsha", "+script", "+get", "+del", "+pexpire", "+pttl", "+info", "+client")
			}
			denied := func(i int) {
				if c.denied != "" {
					redlock.Says(t, masters, i, "ACL", "SETUSER", "locker", "-"+strings.TrimSpace(c.denied)[1:])
				}
			}
			for i := range 3 {
				denied(i)
			}
			cfg := acl(masters)
			cfg.Username, cfg.Password = "", redlock.Secret{}
			if c.denied != "" {
				cfg = acl(masters)
			}
			const guard = 3 * time.Second
			cfg.Durable, cfg.RestartGuard = c.declared, guard
			var quarantined, up atomic.Int64 // when it was so last: an Observer is told late
			cfg.Observers = onEvent(redlock.EventMaster, func(e *redlock.Event) {
				if e.Master.Addr == masters.Addr(0) && e.Master.Phase == "quarantined" {
					quarantined.Store(e.Time.UnixNano())
				}
				if e.Master.Addr == masters.Addr(0) && e.Master.Phase == "up" {
					up.Store(e.Time.UnixNano())
				}
			})
			client := openConfig(t, cfg)
			m := client.NewMutex("k", guard)
			require.NoError(t, m.Lock(t.Context()))
			allUp(t, client)
			killed := time.Now().UnixNano()
			masters.Kill(0)
			reaches(t, client, 0, "down")
			masters.Restart(0)
			if c.denied != "" {
				redlock.Says(t, masters, 0, "ACL", "SETUSER", "locker", "on", ">password", "~*", "-@all", "+set", "+eval", "+evalsha", "+script", "+get", "+del", "+pexpire", "+pttl", "+info", "+client")
				denied(0)
			}
			reaches(t, client, 0, "up")
			require.Eventually(t, func() bool { return up.Load() > killed }, time.Minute, time.Millisecond)
			require.Equal(t, c.want == "quarantined", quarantined.Load() > killed)
		})
	}
}

// A release reaches a master in quarantine, and nothing else does.
func TestQuarantinedMasterIsToldOfReleases(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openUp(t, redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
	m := c.NewMutex("k", long)
	require.NoError(t, m.TryLock(t.Context()))
	redlock.Confirmed(t, m)
	masters.Restart(0)
	reaches(t, c, 0, "quarantined")
	redlock.Says(t, masters, 0, "SET", "k", m.Token()) // as if it had remembered
	other := c.NewMutex("other", long)
	require.NoError(t, other.TryLock(t.Context()))
	require.NoError(t, m.Extend(t.Context()))
	require.NoError(t, m.Unlock(t.Context()), "two of three still had it")
	redlock.SoonSays(t, masters, 0, int64(0), "EVAL", lockKeys, "0")
	require.NoError(t, other.Unlock(t.Context()))
}
