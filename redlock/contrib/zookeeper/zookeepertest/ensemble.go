//go:build unix

// Package zookeepertest starts ZooKeeper ensembles for tests, from Debian's package zookeeper.
package zookeepertest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
	"github.com/redburst/redburst/redlock/internal/processes"
)

// Tick is the servers' tickTime. The shortest session timeout is two of it.
const Tick = 200 * time.Millisecond

// jars are where Debian has ZooKeeper, which names what else it needs, and a logger.
var jars = []string{"/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"}

// Available returns nil if there is a ZooKeeper on this machine, and says else how to get it.
func Available() error {
	_, err := exec.LookPath("java")
	for _, jar := range jars {
		_, missing := os.Stat(jar)
		err = errors.Join(err, missing)
	}
	if err != nil {
		return fmt.Errorf("there is no ZooKeeper: install it (apt-get install zookeeper default-jre-headless): %w", err)
	}
	return nil
}

// Need skips the test if there is no ZooKeeper, or fails it if CI is set to true.
func Need(t testing.TB) {
	t.Helper()
	err := Available()
	switch {
	case err != nil && os.Getenv("CI") == "true":
		require.NoError(t, err)
	case err != nil:
		t.Skip(err)
	}
}

// An Ensemble is ZooKeeper servers, each a process.
type Ensemble struct {
	Servers   []*secondtest.Server
	Addrs     []string // of their clients
	processes *processes.Group
}

// Start starts an ensemble of n servers.
func Start(n int) (*Ensemble, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	group, err := processes.NewGroup("secondtest")
	if err != nil {
		return nil, err
	}
	e := &Ensemble{processes: group}
	var peers strings.Builder
	for i := range n {
		e.Addrs = append(e.Addrs, secondtest.FreeAddr())
		if n > 1 {
			_, quorum, _ := net.SplitHostPort(secondtest.FreeAddr())
			_, election, _ := net.SplitHostPort(secondtest.FreeAddr())
			fmt.Fprintf(&peers, "server.%d=127.0.0.1:%s:%s\n", i+1, quorum, election)
		}
	}
	for i, addr := range e.Addrs {
		dir := filepath.Join(group.Dir, fmt.Sprint(i+1))
		_, port, _ := net.SplitHostPort(addr)
		config := fmt.Sprintf("tickTime=%d\ninitLimit=20\nsyncLimit=10\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\n"+
			"admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\nforceSync=no\nmaxSessionTimeout=60000\n%s",
			Tick/time.Millisecond, dir, port, &peers)
		err = errors.Join(err, os.Mkdir(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "myid"), []byte(fmt.Sprintln(i+1)), 0o600),
			os.WriteFile(filepath.Join(dir, "zoo.cfg"), []byte(config), 0o600))
		e.Servers = append(e.Servers, &secondtest.Server{Group: group, Name: fmt.Sprint("zookeeper", i+1), Command: func() *exec.Cmd {
			return exec.Command("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
				"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.jmx.log4j.disable=true", "-Dzookeeper.forceSync=no",
				"-cp", strings.Join(jars, ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg"))
		}, Ready: func() error { return serving(addr) }})
	}
	if err := secondtest.StartAll(e.Servers); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Mode is what a server says it is: standalone, leader, follower; "" if it does not serve.
func Mode(addr string) string { return stat(addr, "Mode: ") }

// Zxid is the last transaction that a server knows of.
func Zxid(addr string) string { return stat(addr, "Zxid: ") }

// stat is what a server says after a label.
func stat(addr, label string) string {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	io.WriteString(c, "srvr")
	text, _ := io.ReadAll(c)
	_, value, _ := strings.Cut(string(text), label)
	value, _, _ = strings.Cut(value, "\n")
	return value
}

func serving(addr string) error {
	if Mode(addr) == "" {
		return errors.New("it does not serve")
	}
	return nil
}

// Close kills all servers.
func (e *Ensemble) Close() { e.processes.Close() }

// Client returns a client of the ensemble that is closed with the test.
func (e *Ensemble) Client(t testing.TB) *zk.Conn {
	client, _, err := zk.Connect(e.Addrs, 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

type silent struct{}

func (silent) Printf(string, ...any) {}
