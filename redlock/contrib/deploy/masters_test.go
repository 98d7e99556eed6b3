package deploy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const deadline = 30 * time.Second

// TestMain removes the command line that the tests have built.
func TestMain(m *testing.M) {
	status := m.Run()
	if binaries != "" {
		os.RemoveAll(binaries)
	}
	os.Exit(status)
}

var binaries string // the folder of redlock

var build = sync.OnceValues(func() (string, error) {
	var err error
	if binaries, err = os.MkdirTemp("", "redlock-deploy"); err != nil {
		return "", err
	}
	path := filepath.Join(binaries, "redlock")
	cmd := exec.Command("go", "build", "-o", path, "./redlock/cmd/redlock")
	cmd.Dir = filepath.Join("..", "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// commandLine returns the path of redlock.
func commandLine(t *testing.T) string {
	path, err := build()
	require.NoError(t, err)
	return path
}

// read returns a file of this folder.
func read(t *testing.T, name string) string {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// server returns the path of a redis-server, as package redlocktest chooses it.
func server(t *testing.T) string {
	if err := redlocktest.Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	names := []string{"redis-server", "valkey-server"}
	if name := os.Getenv("REDLOCKTEST_SERVER"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("there is no redis-server")
	return ""
}

// A deployment is three masters that were started with files of this folder, or with changed ones.
type deployment struct {
	addrs []string
	ports []int
}

// deploy starts masters as their systemd unit does. change may change redis.conf or users.acl.
func deploy(t *testing.T, change func(conf, users string) (string, string)) *deployment {
	executable, dir, d := server(t), t.TempDir(), &deployment{}
	conf, users := "redis.conf", "users.acl"
	textOfConf, textOfUsers := read(t, conf), read(t, users) // or go test does not know that it depends on them
	if change != nil {
		textOfConf, textOfUsers = change(textOfConf, textOfUsers)
		conf, users = filepath.Join(dir, conf), filepath.Join(dir, users)
		require.NoError(t, os.WriteFile(conf, []byte(textOfConf), 0o600))
		require.NoError(t, os.WriteFile(users, []byte(textOfUsers), 0o600))
	}
	here, err := filepath.Abs(users)
	require.NoError(t, err)
	for i := range 3 {
		port := 0
		for started := false; !started; {
			port = freePort(t)
			home := filepath.Join(dir, "redlock-"+strconv.Itoa(port)) // the StateDirectory
			require.NoError(t, os.Mkdir(home, 0o700))
			argv := execStart(t, "redlock-master@.service", strconv.Itoa(port), "%S", dir,
				"/usr/bin/redis-server", executable, "/etc/redlock/redis.conf", conf)
			started = start(t, append(argv, "--aclfile", here, "--supervised", "no"), port, filepath.Join(home, "log"))
		}
		d.ports = append(d.ports, port)
		d.addrs = append(d.addrs, fmt.Sprintf("127.0.0.%d:%d", i+1, port)) // a host of its own, for the doctor
	}
	return d
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs a server until the test ends, or until this process dies: then the pipe ends. It reports
// false if somebody has taken the port meanwhile.
func start(t *testing.T, argv []string, port int, logFile string) bool {
	log, err := os.Create(logFile)
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command("sh", append([]string{"-c", `"$@" & read _; kill -9 $!; wait`, "sh"}, argv...)...)
	alive, err := cmd.StdinPipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	said := func() string { return read(t, logFile) }
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%v: %s", argv, said()[max(0, len(said())-300):])
		}
		alive.Close()
		cmd.Wait()
	})
	taken := func() bool { return strings.Contains(said(), "Address already in use") }
	require.Eventually(t, func() bool {
		return taken() || talk(port, "PING") == "-NOAUTH Authentication required."
	}, deadline, 10*time.Millisecond)
	return !taken()
}

// talk sends lines to a server, and returns the last answer, or an error's text.
func talk(port int, lines ...string) string {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(deadline))
	answers, answer := bufio.NewReader(c), ""
	for _, line := range lines {
		if _, err := c.Write([]byte(line + "\r\n")); err != nil {
			return err.Error()
		}
		if answer, err = answers.ReadString('\n'); err != nil {
			return "no answer: " + err.Error()
		}
		if length, ok := strings.CutPrefix(answer, "$"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(length))
			text := make([]byte, n+len("\r\n"))
			if _, err := io.ReadFull(answers, text); err != nil {
				return err.Error()
			}
			answer = string(text)
		}
	}
	return strings.TrimSpace(answer)
}

// redlockCommand runs the command line with the credentials of the files, and returns its output and
// exit status.
func (d *deployment) redlockCommand(t *testing.T, argv ...string) (string, int) {
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), clientEnv(t)...)
	cmd.Env = append(cmd.Env, "REDLOCK_MASTERS="+strings.Join(d.addrs, ","))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// clientEnv is what clients get of systemd.
func clientEnv(t *testing.T) []string {
	return strings.Fields(read(t, "systemd/client.env"))
}

// replaced returns a change of what stands exactly once in one of the files.
func replaced(t *testing.T, old, new string) func(conf, users string) (string, string) {
	return func(conf, users string) (string, string) {
		require.Equal(t, 1, strings.Count(conf+users, old), old)
		return strings.Replace(conf, old, new, 1), strings.Replace(users, old, new, 1)
	}
}

func TestTheDoctorIsContent(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	doctor := []string{commandLine(t), "doctor", "--strict", "--try", "lock:doctor", "--ttl", "1m"}
	out, status := d.redlockCommand(t, doctor...)
	for begun := time.Now(); strings.Contains(out, "later than a round waits") && time.Since(begun) < deadline; { // as a busy machine does
		out, status = d.redlockCommand(t, doctor...)
	}
	require.Zero(t, status, out)
	require.Contains(t, out, "Nothing is wrong.")
}

func TestTheDoctorSeesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ old, new, says string }{
		{"appendonly yes", "appendonly no", "forgets all locks in a restart"},
		{"appendfsync always", "appendfsync everysec", "can forget the latest locks in a restart"},
		{"maxmemory-policy noeviction", "maxmemory-policy allkeys-lru", "drops locks when its memory is full"},
		{" +info", "", "lacks run id and uptime"},
		{" +evalsha", "", "refuses EVALSHA"},
		{" +client|tracking", "", "lacks CLIENT TRACKING"},
	} {
		t.Run(c.old, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, replaced(t, c.old, c.new))
			out, status := d.redlockCommand(t, commandLine(t), "doctor", "--strict", "--try", "lock:doctor", "--ttl", "1m", "--span", "10ms")
			require.Equal(t, 1, status, out)
			require.Contains(t, out, c.says)
		})
	}
}

func TestTheUserMayTakeEveryKindOfLock(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	open := func() *redlock.Client {
		client, err := redlock.Open(t.Context(), redlock.Config{Masters: d.addrs, Username: "locker", Password: redlock.NewSecret("change-me"),
			DialTimeout: deadline, RoundTimeout: deadline})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		return client
	}
	holder, waiters := open(), []*redlock.Client{open(), open()} // who stand in line
	for name, opts := range map[string][]redlock.Option{
		"plain":   nil,
		"fence":   {redlock.WithFence()},
		"keys":    {redlock.WithKeys("lock:more"), redlock.WithFence()},
		"shared":  {redlock.WithShared(), redlock.WithFence()},
		"permits": {redlock.WithPermits(1)},
		"held":    {redlock.WithMinHold(time.Millisecond)},
	} {
		first := holder.NewMutex("lock:"+name, time.Minute, opts...)
		require.NoError(t, first.TryLock(t.Context()), name)
		if name == "shared" {
			opts = nil // writers wait for it
		}
		next := make(chan error, len(waiters))
		for _, waiter := range waiters {
			go func() {
				next <- waiter.Do(t.Context(), "lock:"+name, time.Minute, func(context.Context) error { return nil }, opts...)
			}()
			require.Eventually(t, func() bool { return waiter.Stats().Waiting == 1 }, deadline, time.Millisecond, name)
		}
		require.NoError(t, first.Extend(t.Context()), name)
		require.NoError(t, first.Unlock(t.Context()), name)
		for range waiters {
			require.NoError(t, <-next, name)
		}
	}
	for _, c := range append(waiters, holder) {
		for _, m := range c.Stats().Masters {
			require.Empty(t, m.Err)
		}
	}
	const login = "AUTH locker change-me"
	for _, port := range d.ports {
		native := strings.Count(talk(port, login, "DELEX a")+talk(port, login, "DELIFEQ a b"), "unknown command") < 2
		if refused := talk(port, login, "INFO errorstats"); !native { // newer servers have commands that README.md leaves out
			require.NotContains(t, refused, "NOPERM", "it may do all that it tries")
		}
	}
}

func TestOthersMayOnlyPing(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	port := d.ports[0]
	require.Equal(t, "+PONG", talk(port, "AUTH probe none", "PING"))
	for _, command := range []string{"GET lock:a", "INFO", "CONFIG GET dir", "SHUTDOWN", "REPLICAOF NO ONE", "ACL LIST"} {
		require.Contains(t, talk(port, "AUTH probe none", command), "-NOPERM", command)
		require.Contains(t, talk(port, command), "-NOAUTH", command)
	}
	require.Contains(t, talk(port, "AUTH locker wrong"), "-WRONGPASS")
	for _, command := range []string{"SET a b", "FLUSHALL", "CONFIG SET dir /", "SHUTDOWN", "REPLICAOF NO ONE"} {
		require.Contains(t, talk(port, "AUTH locker change-me", command), "-NOPERM", command)
	}
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("no redis-cli to run the probe with")
	}
	probe := probe(t)
	require.Equal(t, "redis-cli", probe[0])
	out, err := exec.Command(cli, append([]string{"-p", strconv.Itoa(port)}, probe[1:]...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "PONG\n", string(out))
}
