package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/stretchr/testify/require"
)

// clientsJSON is what clients --json writes.
type clientsJSON struct {
	OK    bool
	List  string
	Lists []struct {
		List   string
		Owners []string
		On     []string
	}
	Masters []struct {
		Master, Error string
		Clients       []struct{ Program, Version, List, Owner, From string }
		Others        int
	}
	Findings []finding
}

func listed(t *testing.T, env []string, args ...string) (exit int, c clientsJSON) {
	t.Helper()
	exit, stdout, _ := do(t, env, append([]string{"clients", "--json"}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(stdout), &c), stdout)
	return exit, c
}

// connectAs opens a client of the library that is connected to all these masters.
func connectAs(t *testing.T, owner string, cfg redlock.Config) {
	t.Helper()
	cfg.Owner, cfg.DialTimeout = owner, patient
	c, err := redlock.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	awaitAllUp(t, c)
}

func awaitAllUp(t *testing.T, c *redlock.Client) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, m := range c.Stats().Masters {
			if m.Phase != "up" {
				return false
			}
		}
		return true
	}, patient, 5*time.Millisecond)
}

func TestClientsShowsWhoIsConnected(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := []string{mastersEnv(masters)}
	exit, stdout, _ := do(t, env, "clients")
	require.Zero(t, exit)
	require.Contains(t, stdout, "No client with a list of masters is connected.")

	connected := begin(t, env, "hold", "lock:b").awaitStdout("REDLOCK_TOKEN=")
	exit, stdout, _ = do(t, nil, "clients", "-m", strings.ReplaceAll(strings.Join(masters.Addrs(), ","), "127.0.0.1", "localhost"))
	require.Zero(t, exit)
	require.Regexp(t, `1 client with a list of masters: all have \S+, which is yours \(\S+\) written in another way`, stdout)
	connected.endBy(os.Kill)

	secret := "sesame-7"
	ask(t, masters, 0, "ACL", "SETUSER", "reader", "on", ">"+secret, "~*", "+@all")
	addrs := masters.Addrs()
	connectAs(t, "odd%name", redlock.Config{Masters: []string{addrs[2], "redis://reader:" + secret + "@" + addrs[0], addrs[1]}})
	connectAs(t, "", redlock.Config{Masters: addrs, ClientName: "billing"})
	begin(t, env, "hold", "lock:a").awaitStdout("REDLOCK_TOKEN=")
	exit, c := listed(t, env)
	require.Zero(t, exit)
	require.True(t, c.OK)
	require.Empty(t, c.Findings)
	require.Equal(t, clientname.List(addrs), c.List)
	require.Len(t, c.Lists, 1)
	require.Len(t, c.Lists[0].Owners, 3)
	for i, m := range c.Masters {
		require.Equal(t, masters.Addr(i), m.Master)
		require.Len(t, m.Clients, 3)
		found := map[string]string{}
		for _, cl := range m.Clients {
			require.Equal(t, c.List, cl.List)
			require.NotEmpty(t, cl.From)
			name, _, _ := strings.Cut(cl.Owner, "@")
			found[name] = cl.Program
		}
		require.Equal(t, map[string]string{"odd%name": "lib", "billing": "lib", "redlock-hold": "cmd"}, found)
	}
	exit, stdout, _ = do(t, env, "clients")
	require.Zero(t, exit)
	require.Contains(t, stdout, "3 clients with a list of masters: all have yours, "+c.List+".")
	require.Equal(t, 3, strings.Count(stdout, "odd%name"))
	requireReadable(t, stdout)

	require.NotContains(t, ask(t, masters, 0, "CLIENT", "LIST"), secret)
	foreign, err := net.Dial("tcp", addrs[0])
	require.NoError(t, err)
	defer foreign.Close()
	_, err = foreign.Write([]byte("CLIENT SETNAME worker-7\r\n"))
	require.NoError(t, err)
	_, err = foreign.Read(make([]byte, 1))
	require.NoError(t, err)
	_, c = listed(t, env)
	require.Equal(t, 1, c.Masters[0].Others, "one that is none of ours")
}

func TestClientsFindsWhoHasAnotherList(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	addrs, env := masters.Addrs(), []string{mastersEnv(masters)}
	for _, owner := range []string{"a", "b"} {
		connectAs(t, owner, redlock.Config{Masters: addrs})
	}
	local := strings.ReplaceAll(strings.Join(addrs, ","), "127.0.0.1", "localhost")
	connectAs(t, "spells", redlock.Config{Masters: strings.Split(local, ",")})
	exit, c := listed(t, env)
	require.Zero(t, exit)
	require.True(t, c.OK)
	f := requireFindingOf(t, c.Findings, risky, "the same masters, written in another way", addrs...)
	require.Contains(t, f.What, "1 client (spells)")

	connectAs(t, "old", redlock.Config{Masters: addrs[:2]})
	exit, c = listed(t, env)
	require.Equal(t, exitNo, exit)
	require.False(t, c.OK)
	f = requireFindingOf(t, c.Findings, wrong, "do not exclude each other", addrs[:2]...)
	require.Contains(t, f.What, "1 client (old)")
	require.NotContains(t, f.What, "unless", "nobody replaces a master by none")
	require.Equal(t, []string{"a", "b"}, c.Lists[0].Owners)

	exit, stdout, _ := do(t, env, "clients")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "2 of 4 clients with a list of masters have "+c.List+".")
	requireReadable(t, stdout)

	exit, d := diagnosed(t, env)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "do not exclude each other", addrs[:2]...)
	require.True(t, d.Masters[0].Listed)

	// With a list of one's own the others are wrong, too.
	more := durable(t, 1)
	exit, c = listed(t, nil, "-m", strings.Join(append(more.Addrs(), addrs...), ","))
	require.Equal(t, exitNo, exit)
	requireFindingOf(t, c.Findings, wrong, "are another list than that of the clients", append(more.Addrs(), addrs...)...)
}

// While a master is replaced, some have the old list still, or are between the two. They exclude each other.
func TestClientsKnowsThatAMasterMayBeReplaced(t *testing.T) {
	t.Parallel()
	masters := durable(t, 4)
	addrs := masters.Addrs()
	after := []string{addrs[0], addrs[1], addrs[3]}
	for _, owner := range []string{"a", "b"} {
		connectAs(t, owner, redlock.Config{Masters: after})
	}
	connectAs(t, "old", redlock.Config{Masters: addrs[:3]})
	masters.Kill(2)
	exit, c := listed(t, nil, "-m", strings.Join(after, ","))
	require.Equal(t, exitNo, exit, "it has another list still")
	f := requireFindingOf(t, c.Findings, wrong, "1 client (old) with another list", addrs[:2]...)
	require.Contains(t, f.What, "do not exclude each other, unless these lists differ only by a master that is shut down for good")
}

func requireFindingOf(t *testing.T, all []finding, l level, what string, masters ...string) finding {
	t.Helper()
	return requireFinding(t, doctorJSON{Findings: all}, l, what, masters...)
}

func TestClientsNeedsAMajorityThatTells(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := grant(t, masters, "locker", lockerRules("lock:*"))
	exit, stdout, stderr := do(t, env, "clients")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stdout, "CLIENT LIST: NOPERM")
	require.Contains(t, stderr, "only 0 of 3 masters answered")
	require.Contains(t, stderr, "+client|list")

	exit, stdout, _ = doctor(t, env, "--try", "lock:a")
	require.Zero(t, exit)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "3 of 3 masters did not say who is connected")
	_, d := diagnosed(t, env, "--try", "lock:a")
	require.False(t, d.Masters[0].Listed)

	env = grant(t, masters, "operator", rights.Rules("", rights.Clients, rights.Lock, rights.Restarts))
	masters.Kill(2)
	exit, c := listed(t, env)
	require.Zero(t, exit)
	require.Contains(t, c.Masters[2].Error, "refused")
	_, stdout, _ = do(t, env, "clients")
	require.Contains(t, strings.Join(strings.Fields(stdout), " "),
		"0 clients with a list of masters: who is connected to "+masters.Addr(2)+", and with which list, is not known.")
	require.NotContains(t, stdout, "No client")
}

func TestMostIsTheListThatMostHave(t *testing.T) {
	t.Parallel()
	on := func(address string, clients ...string) (c connected) {
		c.address = address
		for _, cl := range clients {
			who, list, _ := strings.Cut(cl, " ")
			c.clients = append(c.clients, connection{Name: clientname.Name{Owner: who, List: list}, from: address})
		}
		return c
	}
	most := func(own string, all ...connected) string {
		lists := usages(all, own)
		require.NotEmpty(t, lists)
		return lists[0].list
	}
	require.Equal(t, "2-b", most("2-a", on("x", "p 2-a", "q 2-b", "r 2-b"), on("y", "p 2-a", "q 2-b")))
	require.Equal(t, "2-b", most("2-a", on("x", "p 2-a"), on("y", "p 2-a", "q 2-b", "q 2-b")), "two of one process")
	require.Equal(t, "2-b", most("2-b", on("x", "p 2-a", "q 2-b")), "ours is before another")
	require.Equal(t, "2-a", most("2-c", on("x", "p 2-b", "q 2-a")))
	require.Empty(t, usages([]connected{on("x", "p "), {address: "y", err: errors.New("down")}}, "1-a"), "it takes no locks")

	// As many masters, and not the same: there is one that it is not connected to.
	levels := func(all []finding) (out []level) {
		for _, f := range all {
			out = append(out, f.Level)
		}
		return out
	}
	require.Equal(t, []level{wrong}, levels(findLists([]connected{on("x", "p 2-a", "q 2-a", "r 2-b"), on("y", "p 2-a")}, "2-a")))
	require.Equal(t, []level{risky}, levels(findLists([]connected{on("x", "p 2-a", "q 2-a", "r 2-b"), on("y", "p 2-a", "r 2-b")}, "2-a")))
	require.Equal(t, []level{wrong}, levels(findLists([]connected{on("x", "p 2-a", "q 2-a", "r 3-b"), on("y", "p 2-a", "r 3-b")}, "2-a")), "and one more")
	require.Equal(t, []level{wrong}, levels(findLists([]connected{on("x", "p 2-a", "q 2-a", "r 2-b"), on("y", "p 2-a", "s 2-b")}, "2-a")), "no one is connected to both")
	require.Empty(t, findLists([]connected{on("x", "p 2-a"), on("y", "p 2-a")}, "2-a"))
	require.Empty(t, findLists([]connected{on("x", "p 2-b"), on("y", "p 2-b")}, "2-a"), "we write them in another way")
	require.Equal(t, []level{wrong}, levels(findLists([]connected{on("x", "p 2-b"), on("y", "q 2-b")}, "2-a")))
	require.Equal(t, []level{risky}, levels(findLists([]connected{on("x", "p 3-b"), on("y", "p 3-b")}, "2-a")), "we ask some of their masters")
	require.Equal(t, []level{wrong}, levels(findLists([]connected{on("x", "p 3-b"), on("y")}, "2-a")))
}
