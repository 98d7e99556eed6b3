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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const deadline = 30 * time.Second

// TestMain removes what the tests have built and made.
func TestMain(m *testing.M) {
	status := m.Run()
	for _, dir := range made {
		os.RemoveAll(dir)
	}
	os.Exit(status)
}

// made are folders of all tests. once makes one.
var (
	made   []string
	making sync.Mutex
)

func once() (string, error) {
	making.Lock()
	defer making.Unlock()
	dir, err := os.MkdirTemp("", "redlock-deploy")
	made = append(made, dir)
	return dir, err
}

var build = sync.OnceValues(func() (string, error) {
	dir, err := once()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "redlock")
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

// block is the block of commands in the README that has this text.
func block(t *testing.T, text string) string {
	var found []string
	for _, m := range blocks.FindAllStringSubmatch(read(t, "README.md"), -1) {
		if strings.Contains(m[1], text) {
			found = append(found, m[1])
		}
	}
	require.Len(t, found, 1, text)
	return found[0]
}

var blocks = regexp.MustCompile("(?s)```sh\n(.*?)```")

// shell runs commands of the README in a folder.
func shell(t *testing.T, dir, commands string) {
	if _, err := exec.LookPath("openssl"); err != nil && strings.Contains(commands, "openssl") {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cmd := exec.Command("sh", "-ec", commands)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

var (
	passwordsMade sync.Mutex
	passwordsDir  string
)

// withPasswords is a copy of this folder's files, with the passwords that the README's commands make.
func withPasswords(t *testing.T) string {
	passwordsMade.Lock()
	defer passwordsMade.Unlock()
	if passwordsDir == "" {
		dir, err := once()
		require.NoError(t, err)
		for _, name := range []string{"redis.conf", "tls.conf", "users.acl"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(read(t, name)), 0o600))
		}
		require.NoError(t, os.CopyFS(filepath.Join(dir, "systemd"), os.DirFS("systemd")))
		shell(t, dir, block(t, "locker operator admin probe"))
		passwordsDir = dir
	}
	return passwordsDir
}

// password is that of a user.
func password(t *testing.T, user string) string {
	return strings.TrimSuffix(read(t, passwordFile(t, user)), "\n")
}

func passwordFile(t *testing.T, user string) string {
	return filepath.Join(withPasswords(t), user+".password")
}

// login is the command that logs a user in.
func login(t *testing.T, user string) string { return "AUTH " + user + " " + password(t, user) }

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

// limited reports whether the server knows maxmemory-clients, or else is Redis 6.
func limited(t *testing.T) bool {
	out, err := exec.Command(server(t), "--version").Output()
	require.NoError(t, err)
	return !strings.HasPrefix(string(out), "Redis server v=6.")
}

var limitOfClients = regexp.MustCompile(`(?m)^maxmemory-clients .*\n`)

// A deployment is three masters that were started with files of this folder, or with changed ones.
type deployment struct {
	dir   string // their files
	addrs []string
	ports []int
	again []func() // starts each once more
}

// deploy starts masters as their systemd unit does. change may change redis.conf or users.acl.
func deploy(t *testing.T, change func(conf, users string) (string, string)) *deployment {
	dir := t.TempDir()
	conf, users := read(t, "redis.conf"), read(t, filepath.Join(withPasswords(t), "users.acl"))
	if change != nil {
		conf, users = change(conf, users)
	}
	if !limited(t) { // as the README says
		conf = limitOfClients.ReplaceAllString(conf, "")
	}
	for name, text := range map[string]string{"redis.conf": conf, "users.acl": users} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return startMasters(t, dir, "redlock-master@.service", alive)
}

// startMasters starts masters with the files in dir, by the ExecStart of a unit or of a part of one.
func startMasters(t *testing.T, dir, unit string, ready func(port int) bool) *deployment {
	executable, d := server(t), &deployment{dir: dir}
	for i := range 3 {
		host := fmt.Sprintf("127.0.0.%d", i+2) // its own, for the doctor
		port := 0
		for started := false; !started; {
			port = freePort(t)
			home := filepath.Join(dir, "redlock-"+strconv.Itoa(port)) // the StateDirectory
			require.NoError(t, os.Mkdir(home, 0o700))
			argv := execStart(t, unit, strconv.Itoa(port), "%S", dir, "/usr/bin/redis-server", executable,
				"/etc/redlock", dir, "$LISTEN", "127.0.0.1 "+host)
			argv = append(argv, "--aclfile", filepath.Join(dir, "users.acl"), "--supervised", "no")
			started = start(t, argv, filepath.Join(home, "log"), func() bool { return ready(port) })
			d.again = append(d.again[:i], func() {
				require.True(t, start(t, argv, filepath.Join(home, "again"), func() bool { return ready(port) }))
			})
		}
		d.ports = append(d.ports, port)
		d.addrs = append(d.addrs, fmt.Sprintf("%s:%d", host, port))
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
func start(t *testing.T, argv []string, logFile string, ready func() bool) bool {
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
	require.Eventually(t, func() bool { return taken() || ready() }, deadline, 10*time.Millisecond, logFile)
	return !taken()
}

func alive(port int) bool { return talk(port, "PING") == "-NOAUTH Authentication required." }

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

// redlockCommand runs the command line in the environment of the files, and returns its output and exit status.
func (d *deployment) redlockCommand(t *testing.T, argv ...string) (string, int) {
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = withPasswords(t)
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

// replaced returns a change of what stands exactly once in redis.conf, or in the rights of the user locker.
func replaced(t *testing.T, old, new string) func(conf, users string) (string, string) {
	return func(conf, users string) (string, string) {
		line := regexp.MustCompile(`(?m)^user locker .*$`).FindString(users)
		require.Equal(t, 1, strings.Count(conf+line, old), old)
		return strings.Replace(conf, old, new, 1), strings.Replace(users, line, strings.Replace(line, old, new, 1), 1)
	}
}

// client returns a client of the user that the page names, until the test ends.
func (d *deployment) client(t *testing.T) *redlock.Client {
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: d.addrs, Username: "locker", Password: redlock.NewSecret(password(t, "locker")),
		DialTimeout: deadline, RoundTimeout: deadline})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// age has the masters be known for days, as those are that a guard is not for: their witnesses are set back.
func (d *deployment) age(t *testing.T) {
	client := d.client(t)
	defer client.Close()
	m := client.NewMutex("lock:age", time.Second)
	require.NoError(t, m.Lock(t.Context()))
	for _, port := range d.ports {
		require.Eventually(t, func() bool {
			words := strings.Fields(talk(port, login(t, "admin"), "GET {}:since"))
			if len(words) != 11 || !strings.Contains(words[10], "used") {
				return false
			}
			for _, at := range []int{4, 5, 8, 9} { // the moments: of the process and of the birth, by two clocks
				moment, err := strconv.ParseInt(words[at], 10, 64)
				require.NoError(t, err)
				words[at] = strconv.FormatInt(moment-(48*time.Hour).Microseconds(), 10)
			}
			return talk(port, login(t, "admin"), `SET {}:since "`+strings.Join(words, " ")+`"`) == "+OK"
		}, deadline, 5*time.Millisecond)
	}
}

func TestTheDoctorIsContent(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	d.contents(t, doctorLine(t, "redis-a:6379"))
}

// doctorLine is the README's examination of these masters, but for their addresses.
func doctorLine(t *testing.T, masters string) []string {
	for line := range strings.Lines(block(t, " --masters "+masters)) {
		if argv := strings.Fields(line); strings.Contains(line, "--masters") {
			require.Equal(t, []string{"redlock", "doctor"}, argv[:2])
			i := slices.Index(argv, "--masters")
			return append([]string{commandLine(t)}, slices.Delete(argv, i, i+2)[1:]...)
		}
	}
	t.Fatal("there is none")
	return nil
}

// contents has the doctor examine the masters, who finds nothing.
func (d *deployment) contents(t *testing.T, doctor []string) {
	require.Contains(t, doctor, "--strict")
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
		{" +role", " +role +config|get", "would show the user any password"},
		{"maxmemory-policy noeviction", "maxmemory-policy allkeys-lru", "drops locks when its memory is full"},
		{" +info", "", "lacks run id and uptime"},
		{" +evalsha", "", "refuses EVALSHA"},
		{" +client|tracking", "", "lacks CLIENT TRACKING"},
	} {
		t.Run(c.old, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, replaced(t, c.old, c.new))
			out, status := d.redlockCommand(t, append(doctorLine(t, "redis-a:6379"), "--span", "10ms")...)
			require.Equal(t, 1, status, out)
			require.Contains(t, strings.Join(strings.Fields(out), " "), c.says)
		})
	}
}

// Clients that may not ask, and were not told, go on.
func TestWhoMayNotAskForPersistenceTakesLocks(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	client := d.client(t)
	m := client.NewMutex("lock:a", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	require.Contains(t, talk(d.ports[0], login(t, "locker"), "CONFIG GET requirepass"), "-NOPERM")
}

func TestTheUserMayTakeEveryKindOfLock(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	open := func() *redlock.Client { return d.client(t) }
	holder, waiters := open(), []*redlock.Client{open(), open()} // who wait in the queue
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
			require.Eventually(t, func() bool { return waiter.Stats().Waiting == 1 }, deadline, 5*time.Millisecond, name)
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
	login := login(t, "locker")
	for _, port := range d.ports {
		native := strings.Count(talk(port, login, "DELEX a")+talk(port, login, "DELIFEQ a b"), "unknown command") < 2
		if refused := talk(port, login, "INFO errorstats"); !native { // newer servers have commands that README.md leaves out
			require.NotContains(t, refused, "NOPERM", "it may do all that it tries")
		}
	}
}

// A master that is killed comes back with all that it had answered, whatever kind of lock it was: what a script has
// written by several commands, it replays as the user default. Who starts then does not get what is held.
func TestARestartedMasterForgetsNoLock(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	open := func() *redlock.Client { return d.client(t) }
	holder := open()
	kinds := map[string][]redlock.Option{
		"plain":   nil,
		"fence":   {redlock.WithFence()},
		"keys":    {redlock.WithKeys("lock:more"), redlock.WithFence()},
		"shared":  {redlock.WithShared(), redlock.WithFence()},
		"permits": {redlock.WithPermits(1)},
	}
	var held []*redlock.Mutex
	for name, opts := range kinds {
		m := holder.NewMutex("lock:"+name, time.Hour, opts...)
		require.NoError(t, m.TryLock(t.Context()), name)
		require.NoError(t, m.Extend(t.Context()), name)
		held = append(held, m)
	}
	released := holder.NewMutex("lock:released", time.Hour, redlock.WithFence())
	require.NoError(t, released.TryLock(t.Context()))
	require.NoError(t, released.Unlock(t.Context()))

	// What there is, but for how long it will be there.
	const script = `EVAL "local all, keys = {}, redis.call('KEYS', '*lock:*') table.sort(keys) for _, k in ipairs(keys) do ` +
		`all[#all + 1] = k .. '=' .. redis.sha1hex(redis.call('DUMP', k)) .. (redis.call('PTTL', k) > 0 and '' or '!') end return table.concat(all, ' ')" 0`
	keys := func(i int) string { return talk(d.ports[i], login(t, "admin"), script) }
	var before []string
	for i := range d.ports {
		require.Eventually(t, func() bool { // the minority has it, too
			return strings.Count(keys(i), "lock:") >= 9 && !strings.Contains(keys(i), "lock:released=")
		}, deadline, 5*time.Millisecond, keys(i))
		before = append(before, keys(i))
	}
	for i, port := range d.ports {
		_, pid, _ := strings.Cut(talk(port, login(t, "admin"), "INFO server"), "process_id:")
		pid, _, _ = strings.Cut(pid, "\r")
		process, err := strconv.Atoi(pid)
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(process, syscall.SIGKILL))
		require.Eventually(t, func() bool { return strings.Contains(talk(port, "PING"), "refused") }, deadline, 5*time.Millisecond)
		d.again[i]()
		require.Eventually(t, func() bool { return !strings.Contains(keys(i), "LOADING") }, deadline, 5*time.Millisecond)
		require.Equal(t, before[i], keys(i))
		require.Contains(t, talk(port, login(t, "admin"), "INFO stats")+"unexpected_error_replies:0", "unexpected_error_replies:0")
	}
	next := open()
	for name, opts := range kinds {
		if name == "shared" {
			opts = nil // a writer
		}
		require.Error(t, next.NewMutex("lock:"+name, time.Hour, opts...).TryLock(t.Context()), name)
	}
	for _, m := range held {
		require.Positive(t, m.Remaining())
	}
}

func TestOthersMayOnlyPing(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	port := d.ports[0]
	require.Equal(t, "+PONG", talk(port, login(t, "probe"), "PING"))
	for _, command := range []string{"GET lock:a", "INFO", "CONFIG GET dir", "SHUTDOWN", "REPLICAOF NO ONE", "ACL LIST"} {
		require.Contains(t, talk(port, login(t, "probe"), command), "-NOPERM", command)
		require.Contains(t, talk(port, command), "-NOAUTH", command)
	}
	for _, user := range []string{"locker", "operator", "admin", "probe"} {
		for _, password := range []string{"wrong", "none", "change-me", user} {
			require.Contains(t, talk(port, "AUTH "+user+" "+password), "-WRONGPASS")
		}
	}
	for _, command := range []string{"SET a b", "FLUSHALL", "CONFIG SET dir /", "SHUTDOWN", "REPLICAOF NO ONE"} {
		require.Contains(t, talk(port, login(t, "locker"), command), "-NOPERM", command)
	}
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("no redis-cli to run the probe with")
	}
	ping := func(file string, port int) (string, error) {
		argv := probe(t)
		texts := strings.NewReplacer("/etc/redlock/probe.password", file, "redis-cli", cli+" -p "+strconv.Itoa(port))
		for i := range argv {
			argv[i] = texts.Replace(argv[i])
			require.NotContains(t, argv[i], password(t, "probe"), "everybody can read it")
		}
		out, err := exec.Command(argv[0], argv[1:]...).Output()
		return string(out), err
	}
	out, err := ping(passwordFile(t, "probe"), port)
	require.NoError(t, err)
	require.Equal(t, "PONG\n", out)
	_, err = ping(passwordFile(t, "locker"), port)
	require.Error(t, err, "another's password")
	_, err = ping(passwordFile(t, "probe"), freePort(t))
	require.Error(t, err, "no server")
}

// With the files as they are, nobody gets in: there is no server.
func TestNoServerStartsWithoutPasswords(t *testing.T) {
	t.Parallel()
	users, err := filepath.Abs("users.acl")
	require.NoError(t, err)
	conf := filepath.Join(t.TempDir(), "redis.conf")
	require.NoError(t, os.WriteFile(conf, []byte(limitOfClients.ReplaceAllString(read(t, "redis.conf"), "")), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	out, err := exec.CommandContext(ctx, server(t), conf, "--aclfile", users, "--port", strconv.Itoa(freePort(t)), "--dir", t.TempDir()).CombinedOutput()
	require.Error(t, err)
	require.NoError(t, ctx.Err())
	require.Contains(t, string(out), "The password hash must be exactly 64 characters")
	for _, user := range strings.Split(strings.TrimSpace(read(t, "users.acl")), "\n") {
		require.NotContains(t, user, "nopass")
		require.NotContains(t, user, ">")
	}
}
