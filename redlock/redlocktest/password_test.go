package redlocktest_test

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// whatAStrangerGets is what a server says to who does not log in.
func whatAStrangerGets(t *testing.T, address string) string {
	t.Helper()
	said := answerTo(t, address, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
	if strings.HasPrefix(said, "-ERR unknown") { // a sentinel
		said = answerTo(t, address, "*1\r\n$4\r\nINFO\r\n")
	}
	return said
}

func answerTo(t *testing.T, address, command string) string {
	t.Helper()
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	c, err := new(net.Dialer).DialContext(t.Context(), network, address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(c, command)
	require.NoError(t, err)
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	return line
}

// servesWhoKnows takes a lock on masters that demand a password, and sees that strangers get nothing.
func servesWhoKnows(t *testing.T, password, prefix string, masters, servers []string) {
	t.Helper()
	for _, address := range servers {
		require.True(t, strings.HasPrefix(whatAStrangerGets(t, address), "-NOAUTH"), address)
	}
	for _, address := range masters {
		require.NotContains(t, address, password)
	}
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters, Prefix: prefix,
		Password: redlock.NewSecret(password), SentinelPassword: redlock.NewSecret(password)})
	require.NoError(t, err)
	defer client.Close()
	m := client.NewMutex("k", time.Minute)
	require.NoError(t, m.Lock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
}

func TestMastersWithAPassword(t *testing.T) {
	t.Parallel()
	password := rand.Text()
	secret := redlocktest.WithPassword(password)
	for _, opts := range [][]redlocktest.Option{{secret}, {secret, redlocktest.WithLinks()}, {secret, redlocktest.WithUnixSockets()}} {
		m := redlocktest.Start(t, 3, opts...)
		servesWhoKnows(t, password, "", m.Addrs(), m.Addrs())
		m.Kill(0)
		m.Restart(0)
		require.True(t, strings.HasPrefix(whatAStrangerGets(t, m.Addr(0)), "-NOAUTH"), "also after a restart")
		_, err := m.Do(0, "PING")
		require.NoError(t, err)
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", m.PID(0))); err == nil {
			require.NotContains(t, string(line), password, "all users see it")
		}
	}
	m := redlocktest.Embedded(t, 3, secret)
	servesWhoKnows(t, password, "", m.Addrs(), m.Addrs())
	open := redlocktest.Start(t, 1)
	require.True(t, strings.HasPrefix(whatAStrangerGets(t, open.Addr(0)), "$"), "without the option all is as it was")
}

func TestGroupsWithAPassword(t *testing.T) {
	t.Parallel()
	password := rand.Text()
	g := redlocktest.StartGroups(t, 1, redlocktest.WithPassword(password))
	servesWhoKnows(t, password, "", g.Addrs(), append(g.Sentinels().Addrs(), g.Servers(0).Addrs()...))
	was := g.Master(0)
	g.Switch(0)
	require.NotEqual(t, was, g.Master(0))
}

func TestClustersWithAPassword(t *testing.T) {
	t.Parallel()
	password := rand.Text()
	c := redlocktest.StartClusters(t, 1, 2, redlocktest.WithPassword(password))
	servesWhoKnows(t, password, "{k}:", c.Addrs(), c.Nodes(0).Addrs())
	const slot = 7629 // of k
	owner := c.Owner(0, slot)
	_, err := c.Nodes(0).Do(owner, "SET", "k", "v")
	require.NoError(t, err)
	to := 2
	if owner == 2 {
		to = 0
	}
	require.NoError(t, c.Move(0, slot, to, nil))
	c.Owner(0, slot, owner)
	v, err := c.Nodes(0).Do(to, "GET", "k")
	require.NoError(t, err)
	require.Equal(t, "v", v)
	c.StopReplication(0, to+1, true)
	c.StopReplication(0, to+1, false)
	require.Eventually(t, func() bool { return c.Ready(0) == nil }, time.Minute, 10*time.Millisecond)
}
