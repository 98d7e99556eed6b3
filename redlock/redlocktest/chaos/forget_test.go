//go:build linux

package main

import (
	"crypto/rand"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/redlock/redlocktest/internal/network"
	"github.com/stretchr/testify/require"
)

// forgetful returns a nemesis of two masters and a spare, behind links, whose users are those of a storm.
func forgetful(t *testing.T, opts ...redlocktest.Option) *nemesis {
	redlocktest.Start(t, 0) // skips, or fails, where there is no Redis
	password := rand.Text()
	users, err := newUsers(filepath.Join(t.TempDir(), "users.acl"), password)
	require.NoError(t, err)
	require.NotEmpty(t, users.deployed, "the tests are in the source")
	masters := redlocktest.Start(t, 3, append(opts, redlocktest.WithLinks(), masterArgs, users.option(), redlocktest.WithPassword(password))...)
	p, err := newPlaces(masters, 2, "")
	require.NoError(t, err)
	n := newNemesis(p, new(fleet), nil, time.Second)
	n.traffic, n.users, n.quarantine = links{masters, p}, users, 0
	n.fleet.config.Masters, n.fleet.config.Direct = p.Addrs(), make([]string, 2)
	return n
}

// says returns what a master says to a command.
func (n *nemesis) says(t *testing.T, i int, command ...string) any {
	reply, err := n.masters.Do(i, command...)
	require.NoError(t, err, command)
	return reply
}

// Nothing that is set by one command before is there afterwards, but with the deployed ACL. A client reaches the master.
func TestAMasterForgets(t *testing.T) {
	t.Parallel()
	all := forgetting
	opts, missing, err := ownClocks()
	require.NoError(t, err)
	n := forgetful(t, opts...)
	for _, f := range all {
		if f == bootClock && missing != nil {
			continue
		}
		began := time.Now()
		info := n.says(t, 1, "INFO", "all").(string)
		n.says(t, 1, "SET", "held", "by somebody")
		n.says(t, 1, "EVAL", "redis.call('SET', 'held1', 'x'); return redis.call('SET', 'held2', 'x')", "0")
		require.NoError(t, n.run(t.Context(), []strike{{Fault: f, Target: 1}}), f)
		require.False(t, n.isHarmed(1))
		require.NotEmpty(t, n.forgot)
		require.NotZero(t, n.faults[f], f)
		n.forgot = nil
		left := n.says(t, 1, "KEYS", "*").([]any)
		after := n.says(t, 1, "INFO", "all").(string)
		require.NotEqual(t, identity(info)+flushesIn(info), identity(after)+flushesIn(after), f)
		require.Equal(t, "everysec", n.says(t, 1, "CONFIG", "GET", "appendfsync").([]any)[1], f)
		up, err := strconv.Atoi(field(after, "uptime_in_seconds"))
		require.NoError(t, err)
		switch f {
		case bootClock:
			require.Greater(t, up, 3599)
		case withACL:
			require.Contains(t, left, "held")
			errors := field(after, "unexpected_error_replies")
			require.Equal(t, errors == "0", len(left) == 3, "it counts what it could not replay: %s, %v", errors, left)
		default:
			require.Empty(t, left, f)
			require.LessOrEqual(t, up, int(time.Since(began).Seconds())+60, f)
		}
		if f == bootClock { // it is an hour old from now on, and after a flush
			n.servers.Restart(n.server(1))
		}
		c, err := net.Dial("tcp", n.masters.Addrs()[1])
		require.NoError(t, err)
		require.NoError(t, c.Close())
		n.says(t, 1, "FLUSHALL")
	}
}

// The one place is another server's, which was up all the while; the one that had it is the next spare, and empty.
func TestAPlaceIsGivenToTheSpare(t *testing.T) {
	t.Parallel()
	n := forgetful(t)
	was := n.places.Addrs()
	for i := range 3 {
		n.servers.Do(i, "SET", "key", strconv.Itoa(i))
	}
	n.says(t, 0, "PING")
	n.replace(t.Context(), 0)
	require.Equal(t, []string{n.servers.Addr(2), was[1]}, n.places.Addrs())
	require.Equal(t, n.places.Addrs(), n.fleet.config.Masters)
	require.Equal(t, "2", n.says(t, 0, "GET", "key"))
	require.Equal(t, "1", n.says(t, 1, "GET", "key"))
	require.True(t, n.places.hasSpare())
	left, err := n.servers.Do(0, "DBSIZE")
	require.NoError(t, err)
	require.Zero(t, left)
	require.Equal(t, map[fault]int{replaced: 1}, n.faults)

	n.replace(t.Context(), 1)
	require.Equal(t, []string{n.servers.Addr(2), n.servers.Addr(0)}, n.places.Addrs())
	n.places.setSpare(-1)
	n.replace(t.Context(), 1)
	require.Equal(t, map[fault]int{replaced: 2}, n.faults, "there was no spare")
}

func TestANameLeadsToTheServerThatHasThePlace(t *testing.T) {
	t.Parallel()
	redlocktest.Start(t, 0) // skips, or fails, where there is no Redis
	_, nodes := network.Start(t, 2)
	masters := redlocktest.Start(t, 2, redlocktest.WithHosts(nodes[0], nodes[1]))
	file := filepath.Join(t.TempDir(), "names")
	p, err := newPlaces(masters, 1, file)
	require.NoError(t, err)
	require.Equal(t, []string{"m0.chaos:6379"}, p.Addrs())
	leads := func() string {
		ips, err := resolver(file).LookupHost(t.Context(), "m0.chaos")
		require.NoError(t, err)
		require.Len(t, ips, 1)
		return ips[0] + ":6379"
	}
	require.Equal(t, masters.Addr(0), leads())
	require.NoError(t, p.give(0))
	require.Equal(t, []string{"m0.chaos:6379"}, p.Addrs())
	require.Equal(t, masters.Addr(1), leads())
	_, err = resolver(file).LookupHost(t.Context(), "m9.chaos")
	require.Error(t, err)
}

func TestUnguardedClientsTakeWhatHasOneTTL(t *testing.T) {
	var names []string
	for _, l := range unguarded(stormLocks) {
		names = append(names, l.String())
	}
	require.Contains(t, names, "hot")
	require.Contains(t, names, "permits three of 3")
	for _, name := range names {
		require.NotContains(t, strings.Split(name, "+"), "b")
		require.NotContains(t, []string{"m", "l", "shared o 400ms"}, name)
	}
}
