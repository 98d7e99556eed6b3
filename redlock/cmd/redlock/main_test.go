package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	wire "github.com/tidwall/resp"
)

var (
	binary string // the command, built once
	tags   string // with which it is built: those of the tests
)

func TestMain(m *testing.M) {
	// The tests mostly wait, for processes and for time to pass, so more of them run at
	// once than there are cores. A -parallel on the command line comes later and wins.
	flag.Set("test.parallel", "8")
	// Whoever runs the tests may ignore hangups (nohup), or interrupts (a job in
	// the background of a script), and children inherit that; but not a signal
	// that is caught.
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "redlock")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "redlock")
		if runtime.GOOS == "windows" {
			binary += ".exe"
		}
		if out, err := exec.Command("go", "build", "-tags", tags, "-o", binary, ".").CombinedOutput(); err != nil {
			panic(string(out))
		}
		return m.Run()
	}())
}

// patient is how long a test waits for what must come.
const patient = 60 * time.Second

// atOnce is for masters that were just started, where a run would wait for its TTL.
const atOnce = "--restart-guard=0"

// An invocation is one run of the command.
type invocation struct {
	*exec.Cmd
	t      *testing.T
	in     io.WriteCloser
	out    *output
	err    *output
	exited chan struct{}
}

// An output is what a command has written until now.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

// environment is ours, without what the command looks at, and with more.
func environment(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "REDLOCK_") || strings.HasPrefix(v, "NO_COLOR=")
	})
	return append(env, more...)
}

func inFleet(m *redlocktest.Masters) string {
	return "REDLOCK_MASTERS=" + strings.Join(m.Addrs(), ",")
}

// begin starts the command.
func begin(t *testing.T, env []string, args ...string) *invocation {
	t.Helper()
	return beginBy(t, env, binary, args...)
}

// beginBy starts a program that becomes the command.
func beginBy(t *testing.T, env []string, program string, args ...string) *invocation {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	s := &invocation{Cmd: exec.CommandContext(ctx, program, args...), t: t, out: new(output), err: new(output), exited: make(chan struct{})}
	s.Env, s.Stdout, s.Stderr, s.WaitDelay = environment(env...), s.out, s.err, patient
	var err error
	s.in, err = s.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, s.Start())
	go func() {
		s.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		cancel()
		s.in.Close() // or what a failed test leaves behind keeps the output open
		<-s.exited
	})
	return s
}

// end waits for the command's end and returns its exit status.
func (s *invocation) end() int {
	s.t.Helper()
	<-s.exited
	s.t.Logf("%v: %v\n%s%s", s.Args[1:], s.ProcessState, s.out, s.err)
	return s.ProcessState.ExitCode()
}

// reads waits until the command has written text to stdout.
func (s *invocation) reads(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.out.String(), text) }, patient, time.Millisecond,
		"%q in what the command writes; stderr: %s", text, s.err)
}

// do runs the command to its end, without input.
func do(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	s := begin(t, env, args...)
	s.in.Close()
	status = s.end()
	return status, s.out.String(), s.err.String()
}

// requireReadable fails if a line is too long for a terminal, or coloured where
// no terminal is.
func requireReadable(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
	}
	require.NotContains(t, text, "\x1b")
}

func TestHelpHasExamplesAndFitsIntoATerminal(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"", "demo", "run", "lead", "hold", "release", "fence", "status", "doctor", "version", "man"} {
		status, stdout, _ := do(t, nil, append(strings.Fields(command), "--help")...)
		require.Zero(t, status)
		require.Contains(t, stdout, "Examples:")
		requireReadable(t, stdout)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	t.Parallel()
	status, stdout, _ := do(t, nil, "--version")
	require.Zero(t, status)
	require.Regexp(t, `^redlock \S+\n$`, stdout)
	status, same, _ := do(t, nil, "version")
	require.Zero(t, status)
	require.Equal(t, stdout, same)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		status, stdout, _ = do(t, nil, "completion", shell)
		require.Zero(t, status)
		require.Contains(t, stdout, "redlock")
	}
}

func TestTheManualHasEveryCommandAndFlag(t *testing.T) {
	t.Parallel()
	status, page, _ := do(t, nil, "man")
	require.Zero(t, status)
	require.Regexp(t, `^\.TH REDLOCK 1 `, page)
	for _, cmd := range newRoot().Commands() {
		require.Contains(t, page, `\fBredlock `+cmd.Name()+`\fR`)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.Contains(t, page, `\fB\-\-`+strings.ReplaceAll(f.Name, "-", `\-`)+`\fR`)
		})
	}
	require.Equal(t, 1, strings.Count(page, "sentinels://"), "what all commands share is said once")
	for _, line := range lines(page) {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			require.Regexp(t, `^\.(TH|SH|PP|TP|B|nf|fi)\b`, line)
		}
		require.NotRegexp(t, `[^\\]-`, strings.Replace(line, `(devel)`, "", 1), "a minus, as it is to be copied")
	}
}

// The child of a test speaks the protocol of the shells' scripts.
func TestTheShellCompletesCommandsAndFlags(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{"st": "status\t", "run --min": "--min-hold\t", "completion f": "fish\t", "run k --": "--grace\t"} {
		status, stdout, _ := do(t, nil, append([]string{"__complete"}, strings.Split(words, " ")...)...)
		require.Zero(t, status)
		require.Contains(t, stdout, want)
	}
}

func TestWrongUsageExitsWith64AndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"unknown command":      {[]string{"sing"}, "unknown command"},
		"unknown flag":         {[]string{"status", "--loud", "k"}, "unknown flag"},
		"run without key":      {[]string{"run", "--", "true"}, "KEY is missing"},
		"run without command":  {[]string{"run", "k"}, "COMMAND is missing"},
		"run with an empty":    {[]string{"run", "", "--", "true"}, "KEY is empty"},
		"run with two keys":    {[]string{"run", "k", "l", "--", "true"}, "2 words before the --"},
		"run without --":       {[]string{"run", "k", "ls", "-l"}, "behind a --"},
		"run both waits":       {[]string{"run", "-n", "-w", "1s", "k", "--", "true"}, "wait"},
		"lead no command":      {[]string{"lead", "k"}, "COMMAND is missing"},
		"lead without --":      {[]string{"lead", "k", "ls", "-l"}, "behind a --"},
		"lead a bad TTL":       {[]string{"lead", "--ttl", "10", "k", "--", "true"}, "--ttl 10 has no unit"},
		"lead a short guard":   {[]string{"lead", "-m", "127.0.0.1:1", "--restart-guard", "9s", "k", "--", "true"}, "below the --ttl"},
		"lead no grace":        {[]string{"lead", "--grace", "-1s", "k", "--", "true"}, "below zero"},
		"hold a command":       {[]string{"hold", "k", "--", "true"}, "one KEY is wanted, 2 were given"},
		"hold both waits":      {[]string{"hold", "-n", "-w", "1s", "k"}, "wait"},
		"status an empty key":  {[]string{"status", "k", ""}, "KEY is empty"},
		"watch permits":        {[]string{"status", "--watch", "--permits", "2", "k"}, "--watch goes neither"},
		"watch quietly":        {[]string{"status", "--watch", "-q", "k"}, "--watch goes neither"},
		"release whose":        {[]string{"release", "k"}, "give the lock's --token, or --force"},
		"release both":         {[]string{"release", "--token", "t", "--force", "k"}, "token"},
		"release permits":      {[]string{"release", "--permits", "2", "--force", "k"}, "name the permit by its --token"},
		"release no permits":   {[]string{"release", "--permits", "0", "--token", "t", "k"}, "1 to 1000 are"},
		"release no token":     {[]string{"release", "-m", "127.0.0.1:1", "--token", "-", "k"}, "stdin is empty"},
		"run no exit status":   {[]string{"run", "-E", "256", "k", "--", "true"}, "0 to 255"},
		"run a negative wait":  {[]string{"run", "-w", "-1s", "k", "--", "true"}, "below zero"},
		"run a bad TTL":        {[]string{"run", "-m", "127.0.0.1:1", "--ttl", "10", "k", "--", "true"}, "--ttl 10 has no unit\n  write 10s"},
		"run a bad wait":       {[]string{"run", "-w", "10", "k", "--", "true"}, "--wait 10 has no unit\n  write 10s"},
		"doctor a bad TTL":     {[]string{"doctor", "--ttl", "10"}, "--ttl 10 has no unit\n  write 10s"},
		"-v is no --version":   {[]string{"-v"}, "unknown shorthand flag"},
		"version of what":      {[]string{"version", "k"}, "unknown command"},
		"run an unlikely TTL":  {[]string{"run", "-m", "EMBEDDED", "--ttl", "1ms", "k", "--", "true"}, "TTL 1ms"},
		"run a short guard":    {[]string{"run", "-m", "127.0.0.1:1", "--restart-guard", "9s", "k", "--", "true"}, "--restart-guard 9s is below the --ttl of 10s"},
		"run a bad owner":      {[]string{"run", "-m", "127.0.0.1:1", "--owner", "a b", "k", "--", "true"}, "owner"},
		"run no permits":       {[]string{"run", "--permits", "0", "k", "--", "true"}, "--permits 0 is not possible: 1 to 1000 are"},
		"run too many permits": {[]string{"run", "--permits", "1001", "k", "--", "true"}, "--permits 1001 is not possible: 1 to 1000 are"},
		"run x permits":        {[]string{"run", "--permits", "x", "k", "--", "true"}, `"x" for "--permits"`},
		"run shared hold":      {[]string{"run", "--min-hold", "1m", "--shared", "k", "--", "true"}, "--shared and --min-hold do not go together"},
		"run a negative hold":  {[]string{"run", "--min-hold", "-1s", "k", "--", "true"}, "below zero"},
		"run hold for nothing": {[]string{"run", "--hold-on-error", "k", "--", "true"}, "only with --min-hold"},
		"run waits never":      {[]string{"run", "--wait", "never", "k", "--", "true"}, "never"},
		"run also nothing":     {[]string{"run", "--also", "", "k", "--", "true"}, "a KEY of --also is empty"},
		"run shared permits":   {[]string{"run", "--permits", "2", "--shared", "k", "--", "true"}, "--permits and --shared do not go together"},
		"run also permits":     {[]string{"run", "--permits", "2", "--also", "l", "k", "--", "true"}, "--permits and --also do not go together"},
		"run fenced permits":   {[]string{"run", "--permits", "2", "--fence", "k", "--", "true"}, "--permits and --fence do not go together"},
		"run also shared":      {[]string{"run", "--shared", "--also", "l", "k", "--", "true"}, "--shared and --also do not go together"},
		"run too many keys":    {append(manyKeys(64), "k", "--", "true"), "65 keys, and 64 are the most"},
		"status no permits":    {[]string{"status", "--permits", "0", "k"}, "--permits 0 is not possible: 1 to 1000 are"},
		"status many permits":  {[]string{"status", "--permits", "1001", "k"}, "--permits 1001 is not possible: 1 to 1000 are"},
		"status x permits":     {[]string{"status", "--permits", "x", "k"}, `"x" for "--permits"`},
		"no masters":           {[]string{"doctor"}, "REDLOCK_MASTERS"},
		"no such file":         {[]string{"doctor", "--masters-file", missing}, "no such file"},
		"no such certificate":  {[]string{"doctor", "-m", "127.0.0.1:1", "--cacert", missing}, "no such file"},
		"a cert without key":   {[]string{"doctor", "-m", "127.0.0.1:1", "--cert", missing}, "cert"},
		"no such password":     {[]string{"doctor", "-m", "127.0.0.1:1", "--password-file", missing}, "no such file"},
		"masters twice":        {[]string{"doctor", "-m", "127.0.0.1:1", "--masters-file", missing}, "masters-file"},
		"a list":               {[]string{"doctor", "-m", "a;b;c"}, "list"},
		"a bad address":        {[]string{"doctor", "-m", "127.0.0.1:0"}, "port"},
		"a password":           {[]string{"doctor", "-m", "redis://u:secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, bare":     {[]string{"doctor", "-m", "u:secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, a comma":  {[]string{"doctor", "--masters=redis://u:1,secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, flags":    {[]string{"doctor", "-m", "redis://u:1", "-m", "secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, quoted":   {[]string{"doctor", "-m", `"redis://u:1,secret@127.0.0.1:1"`}, "REDLOCK_PASSWORD"},
		"a password, spaces":   {[]string{"doctor", "-m", "127.0.0.1:1, redis://u:1 secret@127.0.0.1:1 "}, "REDLOCK_PASSWORD"},
		"a password, a slash":  {[]string{"doctor", "-m", "redis:///:secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, encoded":  {[]string{"doctor", "-m", "redis://u%3Asecret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, an @":     {[]string{"doctor", "-m", "redis://u:secret@secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, alone":    {[]string{"doctor", "-m", "redis://secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, socket":   {[]string{"doctor", "-m", "unix://u:1,secret@/run/redis"}, "REDLOCK_PASSWORD"},
		"a password, group":    {[]string{"doctor", "-m", "sentinel://u:1,secret@127.0.0.1:1,127.0.0.2:1/g"}, "REDLOCK_PASSWORD"},
		"a password, a quote":  {[]string{"doctor", "-m", `redis://u:x"secret@127.0.0.1:1`}, "REDLOCK_PASSWORD"},
		"a password, no @":     {[]string{"doctor", "-m", "redis://127.0.0.1:1?password=secret"}, "after the ?"},
		"status without key":   {[]string{"status", "-m", "127.0.0.1:1"}, "KEY"},
		"doctor with a key":    {[]string{"doctor", "k"}, "unknown command"},
		"doctor without a TTL": {[]string{"doctor", "-m", "127.0.0.1:1", "--ttl", "0s"}, "--ttl"},
	} {
		t.Run(name, func(t *testing.T) {
			if i := slices.Index(test.args, "EMBEDDED"); i >= 0 {
				test.args[i] = redlocktest.Embedded(t, 1).Addr(0)
			}
			status, stdout, stderr := do(t, nil, test.args...)
			require.Equal(t, exitUsage, status)
			require.Empty(t, stdout)
			require.Contains(t, stderr, test.says)
			require.Regexp(t, "^redlock: ", stderr)
			require.NotContains(t, stderr, "secret")
		})
	}
}

func TestTheSocketOfAMasterMayHoldAnAt(t *testing.T) {
	t.Parallel()
	status, _, stderr := do(t, nil, "status", "-m", "unix:///nowhere/a:b@c", "k")
	require.Equal(t, exitNoQuorum, status, stderr)
}

// Everybody can read the arguments of a command (ps).
func TestNoExampleGivesASecretAsAnArgument(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`--token[ =]"?\$|(?i)password[ =]"?\$`)
	for _, cmd := range append(newRoot().Commands(), newRoot()) {
		require.NotRegexp(t, secret, cmd.Example, cmd.Name())
		require.NotRegexp(t, secret, cmd.Long, cmd.Name())
	}
	for _, name := range []string{"../../../README.md", "../../doc.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotRegexp(t, secret, string(text))
	}
}

// manyKeys begins the command line of a run with n further keys, which needs a master.
func manyKeys(n int) []string {
	args := []string{"run", "-m", "EMBEDDED"}
	for i := range n {
		args = append(args, "--also", strconv.Itoa(i))
	}
	return args
}

func TestMastersComeFromFlagFileAndEnvironment(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	file := filepath.Join(t.TempDir(), "masters")
	require.NoError(t, os.WriteFile(file, []byte("# ours\n"+masters.Addr(0)+"\n\n  "+masters.Addr(1)+"   # the second\nredis://"+masters.Addr(2)+"\n"), 0o600))
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
		"flag":             {nil, []string{"--masters", strings.Join(masters.Addrs(), ", ")}},
		"flags":            {nil, []string{"-m", masters.Addr(0), "-m", masters.Addr(1), "-m", masters.Addr(2)}},
		"file":             {nil, []string{"--masters-file", file}},
		"environment":      {[]string{inFleet(masters)}, nil},
		"with whitespace":  {[]string{"REDLOCK_MASTERS=\n" + strings.Join(masters.Addrs(), "\n") + "\n"}, nil},
		"flag before file": {[]string{"REDLOCK_MASTERS=127.0.0.1:1"}, []string{"--masters-file", file}},
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

func TestPasswordsComeFromEverywhereButTheCommandLine(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--requirepass", "open#sesame"))
	dir := t.TempDir()
	password, list := filepath.Join(dir, "password"), filepath.Join(dir, "masters")
	require.NoError(t, os.WriteFile(password, []byte("open#sesame\n"), 0o600))
	require.NoError(t, os.WriteFile(list, []byte("redis://:open#sesame@"+masters.Addr(0)+" # ours\n"), 0o600))
	for name, test := range map[string]struct{ env, args []string }{
		"environment":            {[]string{inFleet(masters), "REDLOCK_PASSWORD=open#sesame"}, nil},
		"with a username":        {[]string{inFleet(masters), "REDLOCK_PASSWORD=open#sesame", "REDLOCK_USERNAME=default"}, nil},
		"file":                   {[]string{inFleet(masters), "REDLOCK_PASSWORD=wrong"}, []string{"--password-file", password}},
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
	status, _, stderr := do(t, []string{inFleet(masters), "REDLOCK_PASSWORD=sesame?"}, "run", "k", "--", binary, "--version")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "password")
	require.NotContains(t, stderr, "sesame")
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
	_, d := examined(t, env[:2])
	require.Contains(t, requireFinding(t, d, wrong, "NOAUTH", group).Remedy, "REDLOCK_SENTINEL_PASSWORD")
	require.Empty(t, told)

	two := "REDLOCK_MASTERS=sentinel://" + sentinel + ",127.0.0.1:1/g"
	status, _, stderr := do(t, append(env, two), "run", "-n", "k", "--", "env")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "2 of 2 sentinels must name the same master")
	status, _, _ = do(t, append(env, two), "run", "-n", atOnce, "--trust-any-sentinel", "k", "--", "env")
	require.Zero(t, status)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	front := newTLSFront(t, masters.Addr(0))
	args := []string{"--masters", front.address, "--cacert", front.certFile, "--cert", front.certFile, "--key", front.keyFile}
	status, _, _ := do(t, nil, append([]string{"run", atOnce}, append(args, "k", "--", binary, "--version")...)...)
	require.Zero(t, status)
	status, _, stderr := do(t, nil, "run", "-n", "--masters", front.address, "--tls", "k", "--", binary, "--version")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "certificate")
}

func TestTextsAreShort(t *testing.T) {
	require.Equal(t, "74.2µs", brief(74213*time.Nanosecond))
	require.Equal(t, "1.24ms", brief(1236*time.Microsecond))
	require.Equal(t, "999ns", brief(999))
	require.Equal(t, "0s", brief(0))
	require.Equal(t, "59s", age(59*time.Second))
	require.Equal(t, "3h", age(200*time.Minute))
	require.Equal(t, "12d", age(300*time.Hour))
	require.Equal(t, "abc", clip("abc", 3))
	require.Equal(t, "a…d", clip("abcd", 3))
	var out bytes.Buffer
	(&terminal{Writer: &out}).say("lead  ", red, strings.Repeat("word ", 40))
	requireReadable(t, out.String())
	require.Equal(t, 40, strings.Count(out.String(), "word"))
	for line := range strings.Lines(out.String()) {
		require.Regexp(t, `^(lead| {4})  word`, line)
	}
}

func TestTablesFitIntoATerminal(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("long", 30)} {
		var out bytes.Buffer
		(&terminal{Writer: &out}).table("   ", 1, [][]cell{header("FIRST", "SECOND", "THIRD"), {{text, red}, {"middle", plain}, {text, plain}}})
		requireReadable(t, out.String())
		require.Contains(t, out.String(), "middle")
		var last string
		for _, line := range lines(out.String())[1:] {
			last += line[strings.LastIndexByte(line, ' ')+1:]
		}
		require.Equal(t, text, last, "it is not cut")
	}
}

func TestForeignTextsAreEscaped(t *testing.T) {
	var out bytes.Buffer
	screen := &terminal{Writer: &out}
	screen.say("lead", plain, "a\x1b[2Jb\nc")
	screen.table("", 1, [][]cell{{{"a\x1b[2J", plain}, {"b\nc\x07", plain}}})
	require.Equal(t, `leada\x1b[2Jb\nc`+"\n"+`a\x1b[2J  b\nc\a`+"\n", out.String())
}

func TestFailuresKnowTheirCause(t *testing.T) {
	err := usageError("", "%w", io.EOF)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, "exit status 3", exitWith(3).Error())
	require.NoError(t, exitWith(0))
	var f *failure
	require.True(t, errors.As(err, &f))
}

// lines are the lines of a text.
func lines(text string) (all []string) {
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		all = append(all, s.Text())
	}
	return all
}
