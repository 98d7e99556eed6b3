package conn_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
)

// master is a real server started for one test.
type master struct {
	port   int
	tls    int    // its port for TLS, if it has one
	socket string // its Unix socket
	exited chan struct{}

	mu  sync.Mutex
	log []byte
}

func (m *master) addr() string { return fmt.Sprintf("127.0.0.1:%d", m.port) }

// Write takes what the server logs.
func (m *master) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, p...)
	return len(p), nil
}

func (m *master) logged() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return string(m.log)
}

// ready reports whether the server answers, be it with an error, and serves. It is asked over its Unix
// socket: another process may have its port, but not its directory, and it opens the socket last. Nobody can
// rely on its log: KeyDB does not say there when it serves. When ready returns true, the server has done with
// this connection, and counts it no more.
func (m *master) ready() bool {
	c, err := net.Dial("unix", m.socket)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patient))
	io.WriteString(c, "PING\r\n")
	c.(*net.UnixConn).CloseWrite()
	answer, err := io.ReadAll(c)
	return err == nil && len(answer) > 0 && !bytes.HasPrefix(answer, []byte("-LOADING"))
}

// start starts a redis-server with the given lines of configuration and waits until
// it accepts. It ends with the test, or with this process. A line "tls-port" gets a port.
func start(tb testing.TB, config ...string) *master {
	tb.Helper()
	return startArgs(tb, nil, config...)
}

func startArgs(tb testing.TB, args []string, config ...string) *master {
	tb.Helper()
	var m *master
	for range 5 { // a free port can be taken before the server has it
		m = tryStart(tb, args, config)
		ready := false
		until(tb, func() bool {
			select {
			case <-m.exited:
				return true
			default:
				ready = m.ready()
				return ready
			}
		})
		if ready {
			return m
		}
	}
	tb.Fatalf("redis-server does not start:\n%s", m.logged())
	return nil
}

func tryStart(tb testing.TB, args, config []string) *master {
	tb.Helper()
	binary, err := exec.LookPath(cmp.Or(os.Getenv("REDLOCKTEST_SERVER"), "redis-server")) // as redlocktest does
	require.NoError(tb, err, "these tests need redis-server")
	dir, err := os.MkdirTemp("", "conn") // tb.TempDir is too long for the path of a socket
	require.NoError(tb, err)
	tb.Cleanup(func() { os.RemoveAll(dir) })
	m := &master{port: freePort(tb), socket: filepath.Join(dir, "r.sock"), exited: make(chan struct{})}
	lines := append([]string{
		fmt.Sprintf("port %d", m.port), "bind 127.0.0.1", "save \"\"", "appendonly no",
		"dir " + dir, "daemonize no", "unixsocket " + m.socket,
	}, config...)
	for i, line := range lines {
		if line == "tls-port" { // chosen here, since it too can be taken before the server has it
			m.tls = freePort(tb)
			lines[i] = fmt.Sprintf("tls-port %d", m.tls)
		}
	}
	file := filepath.Join(dir, "redis.conf")
	require.NoError(tb, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	cmd := exec.Command(binary, append([]string{file}, args...)...)
	cmd.Stdout, cmd.Stderr = m, m
	endWithParent(cmd)
	require.NoError(tb, cmd.Start())
	go func() {
		cmd.Wait()
		close(m.exited)
	}()
	tb.Cleanup(func() {
		cmd.Process.Kill()
		<-m.exited
		if tb.Failed() {
			tb.Logf("%s", m.log)
		}
	})
	return m
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// until waits for a condition. The limit is there to end a hung test, not to be met.
func until(tb testing.TB, done func() bool) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		require.True(tb, time.Now().Before(end), "this does not come about")
	}
}

// soon receives from c, under the same limit.
func soon[T any](tb testing.TB, c <-chan T) (v T) {
	tb.Helper()
	return conntest.Soon(tb, "what the test waits for", c)
}

func parse(tb testing.TB, s string) conn.Address {
	tb.Helper()
	a, err := conn.ParseAddress(s)
	require.NoError(tb, err)
	return a
}
