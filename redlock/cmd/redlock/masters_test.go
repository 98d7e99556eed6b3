package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
	wire "github.com/tidwall/resp"
)

func TestMastersComeFromFlagFileAndEnvironment(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	file := filepath.Join(t.TempDir(), "masters")
	require.NoError(t, os.WriteFile(file, []byte("# ours\n"+masters.Addr(0)+"\n\n  "+masters.Addr(1)+"   # the second\nvalkey://"+masters.Addr(2)+"\n"), 0o600))
	t.Run("stdin", func(t *testing.T) {
		s := begin(t, nil, "status", "k", "--masters-file", "-")
		_, err := s.in.Write([]byte("# ours\n" + strings.Join(masters.Addrs(), "\n") + "\n"))
		require.NoError(t, err)
		s.in.Close()
		require.Equal(t, exitNo, s.end())
		require.Contains(t, s.out.String(), masters.Addr(2))
		status, _, stderr := do(t, nil, "status", "k", "--masters-file", "-")
		require.Equal(t, exitUsage, status)
		require.Contains(t, stderr, "no masters in stdin")
	})
	for name, test := range map[string]struct{ env, args []string }{
		"flag":                    {nil, []string{"--masters", strings.Join(masters.Addrs(), ", ")}},
		"flags":                   {nil, []string{"-m", masters.Addr(0), "-m", masters.Addr(1), "-m", masters.Addr(2)}},
		"file":                    {nil, []string{"--masters-file", file}},
		"environment":             {[]string{mastersEnv(masters)}, nil},
		"with whitespace":         {[]string{"REDLOCK_MASTERS=\n" + strings.Join(masters.Addrs(), "\n") + "\n"}, nil},
		"file of the environment": {[]string{"REDLOCK_MASTERS=127.0.0.1:1", "REDLOCK_MASTERS_FILE=" + file}, nil},
		"file before the other":   {[]string{"REDLOCK_MASTERS_FILE=/nowhere"}, []string{"--masters-file", file}},
		"flag before file":        {[]string{"REDLOCK_MASTERS=127.0.0.1:1"}, []string{"--masters-file", file}},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, _ := do(t, test.env, append([]string{"status", "k"}, test.args...)...)
			require.Equal(t, exitNo, status)
			for _, address := range masters.Addrs() {
				require.Contains(t, stdout, address)
			}
		})
	}
}

func TestTheSocketOfAMasterMayHoldAnAt(t *testing.T) {
	t.Parallel()
	status, _, stderr := do(t, nil, "status", "-m", "unix:///nowhere/a:b@c", "k")
	require.Equal(t, exitNoQuorum, status, stderr)
}

func TestAddressesOfGroupsMayHoldCommas(t *testing.T) {
	require.Equal(t, []string{"a", "sentinel://b,c:1/g", "rediss+SENTINEL://u@d/h", "e"},
		rejoined([]string{"a", "sentinel://b", "c:1/g", "rediss+SENTINEL://u@d/h", "e"}))
}

func TestPasswordsComeFromEverywhereButTheCommandLine(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--requirepass", "open#sesame"))
	dir := t.TempDir()
	password, list := filepath.Join(dir, "password"), filepath.Join(dir, "masters")
	require.NoError(t, os.WriteFile(password, []byte("open#sesame\n"), 0o600))
	require.NoError(t, os.WriteFile(list, []byte("redis://:open#sesame@"+masters.Addr(0)+" # ours\n"), 0o600))
	for name, test := range map[string]struct{ env, args []string }{
		"environment":            {[]string{mastersEnv(masters), "REDLOCK_PASSWORD=open#sesame"}, nil},
		"with a username":        {[]string{mastersEnv(masters), "REDLOCK_PASSWORD=open#sesame", "REDLOCK_USERNAME=default"}, nil},
		"file":                   {[]string{mastersEnv(masters), "REDLOCK_PASSWORD=wrong"}, []string{"--password-file", password}},
		"URL in the list":        {nil, []string{"--masters-file", list}},
		"URL in the environment": {[]string{"REDLOCK_MASTERS=redis://:open%23sesame@" + masters.Addr(0)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := do(t, test.env, append([]string{"status", "k"}, test.args...)...)
			require.Equal(t, exitNo, status)
			require.NotContains(t, stdout+stderr, "sesame")
			status, _, stderr = do(t, test.env, append([]string{"run", atOnce}, append(test.args, "k", "--", binary, "--version")...)...)
			require.Zero(t, status)
			require.NotContains(t, stderr, "sesame")
		})
	}
	status, _, stderr := do(t, []string{mastersEnv(masters), "REDLOCK_PASSWORD=sesame?"}, "run", "k", "--", binary, "--version")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "password")
	require.NotContains(t, stderr, "sesame")
}

// Editors of Windows begin a file with a byte order mark.
func TestFilesMayBeginWithAByteOrderMark(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--requirepass", "sesame"))
	dir := t.TempDir()
	password, list, mark := filepath.Join(dir, "password"), filepath.Join(dir, "masters"), filepath.Join(dir, "mark")
	require.NoError(t, os.WriteFile(password, []byte("\ufeffsesame\r\n"), 0o600))
	require.NoError(t, os.WriteFile(list, []byte("\ufeff"+masters.Addr(0)+"\r\n"), 0o600))
	require.NoError(t, os.WriteFile(mark, []byte("\ufeff\r\n"), 0o600))
	for _, given := range []struct{ env, args []string }{
		{nil, []string{"--masters-file", list}},
		{[]string{fileVariable + "=" + list}, nil},
	} {
		status, stdout, stderr := do(t, given.env, append([]string{"status", "k", "--password-file", password}, given.args...)...)
		require.Equal(t, exitNo, status, stdout+stderr)
		require.Contains(t, stdout, masters.Addr(0))
	}
	status, _, stderr := do(t, nil, "status", "k", "--masters-file", list, "--password-file", mark)
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "is empty")
	require.NoError(t, os.WriteFile(list, []byte("\ufeffshut down: "+masters.Addr(0)+"\n127.0.0.1:1\n"), 0o600))
	all, down, err := new(mastersFlags).readMasters(list)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:1"}, all)
	require.Equal(t, []string{masters.Addr(0)}, down)
}

// Sentinels have credentials of their own, and are told no others. The command that is run is told
// none of them. Any sentinel is trusted only on demand.
func TestSentinelsHaveTheirOwnPassword(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--requirepass", "masters"))
	told := make(chan string, 100)
	host, port, err := net.SplitHostPort(masters.Addr(0))
	require.NoError(t, err)
	sentinel := conntest.Listen(t, func(c net.Conn) {
		commands := wire.NewReader(c)
		for known := false; ; {
			v, _, err := commands.ReadValue()
			if err != nil {
				return
			}
			switch command := v.Array()[0].String(); {
			case command == "AUTH":
				known = true
				told <- fmt.Sprint(v.Array()[1:])
				fmt.Fprint(c, "+OK\r\n")
			case !known:
				fmt.Fprint(c, "-NOAUTH Authentication required.\r\n")
			case command == "SUBSCRIBE":
				fmt.Fprint(c, "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")
			default:
				fmt.Fprintf(c, "*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
			}
		}
	})
	group := "sentinel://" + sentinel + "/g"
	env := []string{"REDLOCK_MASTERS=" + group, "REDLOCK_PASSWORD=masters", "REDLOCK_SENTINEL_PASSWORD=watch"}
	for _, test := range []struct{ env, args []string }{
		{env, []string{"--sentinel-username", "watcher"}},
		{append(env, "REDLOCK_SENTINEL_USERNAME=watcher"), nil},
	} {
		status, stdout, _ := do(t, test.env, append([]string{"status", "k"}, test.args...)...)
		require.Equal(t, exitNo, status)
		require.NotContains(t, stdout, "sentinel: ")
		status, stdout, _ = do(t, test.env, append([]string{"run", atOnce, "k"}, append(test.args, "--", "env")...)...)
		require.Zero(t, status)
		require.NotContains(t, stdout, "REDLOCK_PASSWORD")
		require.NotContains(t, stdout, "REDLOCK_SENTINEL_PASSWORD")
		for len(told) > 0 {
			require.Equal(t, "[watcher watch]", <-told)
		}
	}
	_, d := diagnosed(t, env[:2])
	require.Contains(t, requireFinding(t, d, wrong, "NOAUTH", group).Remedy, "REDLOCK_SENTINEL_PASSWORD")
	require.Empty(t, told)

	two := "REDLOCK_MASTERS=sentinel://" + sentinel + ",127.0.0.1:1/g"
	status, _, stderr := do(t, append(env, two), "run", "-n", "k", "--", "env")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "2 of 2 sentinels must name the same master")
	status, _, _ = do(t, append(env, two), "run", "--wait", "1m", atOnce, "--trust-any-sentinel", "k", "--", "env")
	require.Zero(t, status)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	proxy := newTLSProxy(t, masters.Addr(0))
	args := []string{"--masters", proxy.address, "--cacert", proxy.certFile, "--cert", proxy.certFile, "--key", proxy.keyFile}
	status, _, _ := do(t, nil, append([]string{"run", atOnce}, append(args, "k", "--", binary, "--version")...)...)
	require.Zero(t, status)
	status, _, stderr := do(t, nil, "run", "-n", "--masters", proxy.address, "--tls", "k", "--", binary, "--version")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "certificate")
}

// Who denies it on the command line is believed, whatever the environment has.
func TestFlagDeniesADeclarationOfTheEnvironment(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	declared := func(args ...string) bool {
		_, stdout, _ := doctor(t, []string{mastersEnv(masters), "REDLOCK_DURABLE=true"}, append(args, "--json")...)
		return strings.Contains(stdout, "was declared to forget nothing")
	}
	require.True(t, declared())
	require.False(t, declared("--durable=false"))
}

func TestTheMastersAreHandedOnWithTheirTLS(t *testing.T) {
	given := []string{"a", "redis://u:p@b/1", "rediss://c:1", "unix://u:p@/d", "sentinel://u:p@e,f/g"}
	require.Equal(t, "a:6379,redis://b:6379/1,rediss://c:1,unix:///d,sentinel://e:26379,f:26379/g", (&masterSet{masters: given}).handedOn())
	require.Equal(t, "rediss://a:6379,rediss://b:6379/1,rediss://c:1,unix:///d,sentinels://e:26379,f:26379/g",
		(&masterSet{masters: given, connect: conn.Options{TLS: new(tls.Config)}}).handedOn())
	for _, given := range [][]string{{"cluster://u:p@a,b", "c:6379"}, {"cluster://a?db=2", "clusters://b"}, {"cluster"}} {
		set := &masterSet{masters: given}
		split := rejoined(strings.Split(set.handedOn(), ","))
		require.Equal(t, conn.RedactAll(given), conn.RedactAll(split), "the nodes of a cluster end somewhere")
		set.connect.TLS = new(tls.Config)
		require.NotContains(t, set.handedOn(), "cluster://")
	}
}

// A cluster is a master like any other. The prefix stands before the keys on the masters, and is seen nowhere else.
func TestCommandsTakeACluster(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3) // one is to be down, and more than half must answer
	list := clusters.Addrs()[0]
	exit, d := diagnosed(t, []string{"REDLOCK_PREFIX={locks}:"}, "-m", list, "--try", "k")
	require.Zero(t, exit)
	requireFinding(t, d, risky, "forgets the latest locks in a failover", list)
	require.Equal(t, placeJSON{Slot: 1236, Node: clusters.Nodes(0).Addr(0), Replicas: 1}, *d.Masters[0].Place)
	_, stdout, _ := doctor(t, []string{"REDLOCK_PREFIX={locks}:"}, "-m", list)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "slot 1236, at "+clusters.Nodes(0).Addr(0)+" with 1 replica")
	requireReadable(t, stdout)
	exit, d = diagnosed(t, nil, "-m", list)
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "no hash tag", list).Remedy, "{locks}:")
	exit, d = diagnosed(t, nil, "-m", clusters.Nodes(0).Addr(0))
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "a node of a Redis Cluster", clusters.Nodes(0).Addr(0)).Remedy, "cluster://")

	env := []string{"REDLOCK_MASTERS=" + list}
	exit, stdout, stderr := do(t, env, "run", "--prefix", "{locks}:", atOnce, "k", "--", "env")
	require.Zero(t, exit, stderr)
	require.Contains(t, stdout, "REDLOCK_KEY=k\n")
	require.Contains(t, stdout, "REDLOCK_PREFIX={locks}:\n")
	exit, stdout, _ = do(t, append(env, "REDLOCK_PREFIX={locks}:"), "fence", "k")
	require.Zero(t, exit)
	require.Regexp(t, `[0-9]{16}`, stdout, "the counter")
	ask(t, clusters.Nodes(0), 0, "SET", "{locks}:k", "token", "PX", "60000")
	exit, stdout, _ = do(t, append(env, "REDLOCK_PREFIX={locks}:"), "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held")
	require.NotContains(t, stdout, "{locks}")

	clusters.Nodes(0).Kill(1)
	require.Eventually(t, func() bool { // the master notices
		_, d = diagnosed(t, []string{"REDLOCK_PREFIX={locks}:"}, "-m", list)
		return d.Masters[0].Place != nil && d.Masters[0].Place.Replicas == 0
	}, patient, 5*time.Millisecond)
	requireFinding(t, d, risky, "has no replica of the node with its slot", list)
}
