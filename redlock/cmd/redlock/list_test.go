//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

type listJSON struct {
	Time    *time.Time
	Key     string
	Kind    string
	State   state
	Holders []struct {
		Owner  string
		State  state
		Permit int
		LeftMS *int64 `json:"left_ms"`
		On     []string
	}
	Since   time.Time
	Waiting *int
	Waiters []waiterJSON
	Permits int `json:"permits_in_all"`
	Used    int `json:"permits_held"`
	Silent  []string
}

func listOf(t *testing.T, env []string, args ...string) (exit int, all []listJSON) {
	t.Helper()
	exit, stdout, _ := do(t, env, append([]string{"ls", "--json"}, args...)...)
	for _, line := range lines(stdout) {
		var l listJSON
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		all = append(all, l)
	}
	return exit, all
}

// waitInLine begins runs that wait for a lock, one after the other.
func waitInLine(t *testing.T, env []string, key string, owners ...string) (all []*invocation) {
	t.Helper()
	for i, owner := range owners {
		all = append(all, begin(t, env, "run", atOnce, "--wait", "forever", "--owner", owner, key, "--", "true"))
		require.Eventually(t, func() bool {
			_, all := listOf(t, env, key)
			return len(all) == 1 && len(all[0].Waiters) == i+1
		}, patient, 20*time.Millisecond)
	}
	return all
}

func TestListShowsHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	exit, stdout, stderr := do(t, env, "ls")
	require.Equal(t, exitNo, exit)
	require.Empty(t, stdout+stderr)

	holder := begin(t, env, "hold", atOnce, "--owner", "reports@web-3", "lock:report")
	holder.assigned("REDLOCK_TOKEN")
	permit := begin(t, env, "hold", atOnce, "--owner", "gpu@web-4", "--permits", "4", "lock:gpu")
	token := permit.assigned("REDLOCK_TOKEN")
	waiters := waitInLine(t, env, "lock:report", "a@web-1", "b@web-2")

	exit, stdout, stderr = do(t, env, "ls", "lock:*")
	require.Zero(t, exit)
	require.Empty(t, stderr)
	requireReadable(t, stdout)
	require.NotContains(t, stdout, token[strings.LastIndexByte(token, '/')+1:])
	require.Len(t, lines(stdout), 3)
	require.Regexp(t, `(?m)^1 of 4 permits +permits +- +\d+\.\ds +- +- +lock:gpu$`, stdout)
	require.Regexp(t, `(?m)^reports@web-3 +plain +[23] of 3 +\d+\.\ds +\d+s +2 +lock:report$`, stdout)

	exit, stdout, _ = do(t, env, "ls", "lock:report")
	require.Zero(t, exit)
	requireReadable(t, stdout)
	require.Regexp(t, `(?s)^lock:report: plain, held by reports@web-3, fence \d+\ntaken at [-0-9: ]+ UTC, \d+s ago, as its fence says\n.*of 3 .*reports@web-3\n.*PLACE +WAITED +WAITER\n +1 +\d+\.\ds +a@web-1\n +2 +\d+\.\ds +b@web-2\n$`, stdout)

	exit, all := listOf(t, env, "lock:r*")
	require.Zero(t, exit)
	require.Len(t, all, 1)
	require.Equal(t, "plain", all[0].Kind)
	require.Equal(t, held, all[0].State)
	require.Equal(t, "reports@web-3", all[0].Holders[0].Owner)
	require.Equal(t, 2, *all[0].Waiting)
	require.Equal(t, "a@web-1", all[0].Waiters[0].Owner)
	require.Nil(t, all[0].Time)

	for _, bad := range []string{"[", `a\`, "", "{k}:line"} {
		exit, _, stderr = do(t, env, "ls", bad)
		require.Equal(t, exitUsage, exit, bad)
		require.NotEmpty(t, stderr)
	}
	for _, s := range append(waiters, holder, permit) {
		s.endBy(syscall.SIGTERM)
	}
}

func TestListSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 5)
	holder := begin(t, env, "hold", atOnce, "--owner", "me", "lock:report")
	holder.assigned("REDLOCK_TOKEN")
	masters.Kill(0)
	masters.Pause(1)
	exit, stdout, stderr := do(t, env, "ls")
	require.Zero(t, exit)
	require.Contains(t, stdout, "lock:report")
	require.Contains(t, stderr, masters.Addr(0))
	require.Contains(t, stderr, masters.Addr(1))
	require.Contains(t, stderr, "every lock that is held was listed")
	masters.Kill(2)
	exit, stdout, stderr = do(t, env, "ls")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stdout, "lock:report")
	require.Contains(t, stderr, "too few masters answered")
	for i := range 5 {
		masters.Kill(i)
	}
	exit, stdout, _ = do(t, env, "ls")
	require.Equal(t, exitNoQuorum, exit)
	require.Empty(t, stdout)
}

func TestListIsWatched(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 1)
	s := begin(t, env, "ls", "--watch", "lock:*")
	j := begin(t, env, "ls", "--watch", "--json", "lock:*")
	s.awaitStdout("0 locks")
	ask(t, masters, 0, "SET", "lock:a", "me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "PX", "600000")
	s.awaitStdout("lock:a")
	j.awaitStdout(`"key":"lock:a"`)
	require.NotContains(t, s.out.String(), "\x1b", "it is no terminal")
	for _, s := range []*invocation{s, j} {
		s.endBy(os.Kill)
	}
	var l listJSON
	require.NoError(t, json.Unmarshal([]byte(lines(j.out.String())[0]), &l))
	require.NotNil(t, l.Time)
}

func TestLongListsHaveOneTable(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	ask(t, masters, 0, "EVAL", `for i=1,2500 do redis.call('SET', 'k'..i, 'me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0', 'PX', 600000) end`, "0")
	env := []string{mastersEnv(masters)}
	exit, stdout, _ := do(t, env, "ls")
	require.Zero(t, exit)
	keys := func(lines []string) (all []string) {
		for _, line := range lines {
			all = append(all, line[strings.LastIndexByte(line, ' ')+1:])
		}
		return all
	}
	require.Len(t, lines(stdout), 2501)
	all := keys(lines(stdout)[1:])
	require.True(t, slices.IsSorted(all))
	s := begin(t, env, "ls", "--watch").awaitStdout("the first 1000 of 2500 locks")
	const above = 3 // the time, a line without text, and the heading
	require.Eventually(t, func() bool { return len(lines(s.out.String())) > above+1000 }, patient, 5*time.Millisecond)
	require.Equal(t, all[:1000], keys(lines(s.out.String())[above:above+1000]))
	s.endBy(os.Kill)
}

func TestListIsSorted(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 1)
	exit, stdout, _ := do(t, env, "ls", "--waiting", "--sort", "age")
	require.Equal(t, exitNo, exit)
	require.Empty(t, stdout)
	now := time.Now()
	for i, key := range []string{"a", "b", "c", "d"} { // a and d have no fence, c is older than b; d has one waiter, b two, c too
		set := [][]string{{"SET", key, "me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "PX", "600000"}}
		if at := now.Add(-time.Duration(i) * time.Hour); key == "b" || key == "c" {
			set[0] = []string{"EVAL", `redis.call('SET', KEYS[1], 'me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0', 'PX', 600000); redis.call('SET', KEYS[2], ARGV[1], 'PX', 4200000)`,
				"2", key, "{" + key + "}:fence", fmt.Sprint(at.UnixMicro())}
		}
		for j := range []int{0, 2, 2, 1}[i] {
			id := fmt.Sprint(j)
			set = append(set, []string{"ZADD", "{" + key + "}:line", id, id}, []string{"SET", "{" + key + "}:line:" + id + ":alive", "5000 w", "PX", "600000"})
		}
		for _, args := range set {
			ask(t, masters, 0, args...)
		}
	}
	for words, want := range map[string]string{
		"": "abcd", "--sort key": "abcd", "--sort age": "cbad", "--sort waiting": "bcda", "--waiting": "bcd", "--waiting --sort age": "cbd",
	} {
		exit, stdout, stderr := do(t, env, append([]string{"ls"}, strings.Fields(words)...)...)
		require.Zero(t, exit)
		require.Empty(t, stderr)
		got := ""
		for _, line := range lines(stdout)[1:] {
			got += line[len(line)-1:]
		}
		require.Equal(t, want, got, words)
	}
	_, all := listOf(t, env, "--sort", "age")
	require.Len(t, all, 4)
	require.WithinDuration(t, now.Add(-2*time.Hour), all[0].Since, time.Second)
	require.Equal(t, 2, len(all[0].Waiters))
	require.Zero(t, all[3].Since)
	_, stdout, _ = do(t, env, "ls", "--sort", "age")
	require.Regexp(t, `(?m) 2h +2 +c$`, stdout)

	// Who may not read the line is told that the list lacks what it hides.
	_, err := masters.Do(0, "ACL", "SETUSER", "some", "on", ">password", "+@all", "~?", "%R~*:fence")
	if err != nil {
		t.Skip(err) // a server before ACLs of Redis 7
	}
	exit, _, stderr := do(t, append(env, "REDLOCK_USERNAME=some", "REDLOCK_PASSWORD=password", "REDLOCK_RESTART_GUARD=0"), "ls", "--waiting", "?")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stderr, "of 4 locks it may not be read who waits")
}

func TestStatusShowsWhoWaitsAndSinceWhen(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	begun := time.Now()
	holder := begin(t, env, "hold", atOnce, "--owner", "reports@web-3", "lock:report")
	holder.assigned("REDLOCK_TOKEN")
	waiters := waitInLine(t, env, "lock:report", "a@web-1", "b@web-2")
	var s struct {
		Since   time.Time
		Waiters []waiterJSON
	}
	_, stdout, _ := do(t, env, "status", "--json", "lock:report")
	require.NoError(t, json.Unmarshal([]byte(stdout), &s))
	require.WithinDuration(t, begun, s.Since, patient)
	require.Len(t, s.Waiters, 2)
	require.Equal(t, "b@web-2", s.Waiters[1].Owner)
	require.GreaterOrEqual(t, s.Waiters[0].WaitedMS, s.Waiters[1].WaitedMS)
	exit, stdout, _ := do(t, env, "status", "lock:report")
	require.Zero(t, exit)
	requireReadable(t, stdout)
	require.Regexp(t, `(?s)taken at .*PLACE +WAITED +WAITER\n +1 .* a@web-1\n +2 .* b@web-2\n`, stdout)
	for _, s := range append(waiters, holder) {
		s.endBy(syscall.SIGTERM)
	}

	// The fence of an earlier holder says nothing about one that has none.
	for i := range 3 {
		for _, args := range [][]string{{"SET", "lock:report", "me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "PX", "61234"}, {"SET", "{lock:report}:fence", fmt.Sprint(begun.UnixMicro()), "PX", "100000"}} {
			ask(t, masters, i, args...)
		}
	}
	exit, stdout, _ = do(t, env, "status", "lock:report")
	require.Zero(t, exit)
	require.NotContains(t, stdout, "taken at")
}

func TestStatusShowsWhoWaitsForPermits(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 1)
	for _, args := range [][]string{
		{"ZADD", "{gpu}:permit:line", "1", "a", "2", "r:", "2", "r:b", "3", "dead"},
		{"SET", "{gpu}:permit:line:a:alive", "5000 a@web-1", "PX", "3000"}, {"SET", "{gpu}:permit:line:r:b:alive", "", "PX", "60000"},
	} {
		ask(t, masters, 0, args...)
	}
	_, stdout, _ := do(t, env, "status", "--permits", "2", "gpu")
	require.Regexp(t, `(?s)PLACE +WAITED +WAITER\n +1 +[5-9]\.\ds  a@web-1\n +2 +0.0s  somebody who left no name, to read\n$`, stdout)
}

func TestStatusOfAPatternHasAHint(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 1)
	exit, _, stderr := do(t, env, "status", "lock:*")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stderr, `'redlock ls 'lock:*''`)
	for _, key := range []string{"lock:a", `lock:\*`} {
		_, _, stderr = do(t, env, "status", key)
		require.Empty(t, stderr)
	}
	ask(t, masters, 0, "SET", "lock:*", "me", "PX", "60000")
	exit, _, stderr = do(t, env, "status", "lock:*")
	require.Zero(t, exit)
	require.Empty(t, stderr, "there is such a key")
}

// A job that is over has left its lock for its --min-hold. It is shown as nobody's, and can be taken away under the token
// that the job had.
func TestLockThatIsOnlyLeftThere(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	exit, stdout, _ := do(t, env, "run", atOnce, "--owner", "reports@web-3", "--min-hold", "10h", "lock:stats", "--", "sh", "-c", "echo $REDLOCK_TOKEN")
	require.Zero(t, exit)
	token := strings.TrimSpace(stdout)

	exit, stdout, _ = do(t, env, "status", "lock:stats")
	require.Zero(t, exit, "it is held for all others")
	requireReadable(t, stdout)
	text := strings.Join(strings.Fields(stdout), " ") // how it is wrapped depends on the time of day
	require.Regexp(t, `^lock:stats is left until [-0-9 ]*\d\d:\d\d UTC by reports@web-3, on \d of 3 masters, and nobody runs it `, text)
	_, stdout, _ = do(t, env, "status", "--json", "lock:stats")
	require.Contains(t, stdout, `"lingers": true`)
	require.Contains(t, stdout, `"owner": "reports@web-3"`)
	_, stdout, _ = do(t, env, "ls")
	require.Regexp(t, `(?m)^left by reports@web-3 +plain .* lock:stats$`, stdout)
	_, stdout, _ = do(t, env, "ls", "lock:stats")
	require.Contains(t, stdout, "lock:stats: left by reports@web-3, and nobody runs it")
	requireRefused(t, env, "by reports@web-3, and nobody runs it", "lock:stats")

	exit, _, _ = do(t, env, "release", "--token", "reports@web-3", "lock:stats")
	require.Equal(t, exitHeld, exit)
	exit, stdout, _ = do(t, env, "release", "--token", token, "lock:stats")
	require.Zero(t, exit)
	require.Contains(t, stdout, "was taken from")
	exit, _, _ = do(t, env, "status", "-q", "lock:stats")
	require.Equal(t, exitNo, exit)
}

// A name has one type in what all commands write as JSON.
func TestJSONHasOneSchema(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := []string{mastersEnv(masters)}
	record := filepath.Join(t.TempDir(), "record")
	for _, args := range [][]string{
		{"--fence", "--owner", "a", "--flight", record, "lock:plain"}, {"--shared", "--owner", "b", "lock:read"}, {"--permits", "2", "--owner", "c", "lock:permits"},
	} {
		begin(t, env, append([]string{"hold", atOnce}, args...)...)
		require.Eventually(t, func() bool {
			_, all := listOf(t, env, args[len(args)-1])
			return len(all) == 1 && len(all[0].Holders) == 1 && all[0].Holders[0].State == held && len(all[0].Holders[0].On) == 3
		}, patient, 20*time.Millisecond, "all have it: one is killed below")
	}
	waitInLine(t, env, "lock:plain", "waiter")
	var said []string
	write := func(args ...string) {
		_, stdout, stderr := do(t, env, args...)
		require.NotEmpty(t, stdout, "%v: %s", args, stderr)
		require.True(t, json.Valid([]byte(lines(stdout)[0])) || json.Valid([]byte(stdout)), "%v: %s%s", args, stdout, stderr)
		said = append(said, stdout)
	}
	write("status", "--json", "lock:plain")
	masters.Kill(2)
	write("status", "--json", "lock:read")
	write("status", "--json", "--permits", "2", "lock:permits")
	write("ls", "--json")
	write("fence", "--json", "lock:plain")
	write("doctor", "--json")
	write("clients", "--json")
	write("explain", "--json", record)
	write("revoke", "--json", "--wait", "0", "--reason", "why", "lock:read")
	for _, args := range [][]string{{"status", "--watch", "--json", "lock:plain"}, {"ls", "--watch", "--json"}} {
		s := begin(t, env, args...).awaitStdout("\n")
		s.endBy(os.Kill)
		said = append(said, lines(s.out.String())[0])
	}
	schema := map[string]string{
		"key": "text", "key_base64": "text", "kind": "text", "state": "text", "level": "text", "token": "text", "owner": "text", "reason": "text", "revoked": "text",
		"master": "text", "error": "text", "time": "text", "since": "text", "what": "text", "remedy": "text", "matter": "text", "cause": "text",
		"list": "text", "program": "text", "version": "text", "from": "text", "run_id": "text", "mode": "text", "role": "text", "aof": "text",
		"replay": "text", "maxmemory_policy": "text", "counter": "text",
		"left_ms": "number", "waited_ms": "number", "after_ms": "number", "ahead_ms": "number", "age_s": "number", "idle_s": "number", "uptime_s": "number",
		"latency_us": "number", "latency_max_us": "number", "clock_rate": "number", "clock_rate_error": "number", "clock_ahead_s": "number",
		"clock_set_forward_s": "number", "clock_set_back_s": "number", "votes": "number", "answered": "number", "quorum": "number", "asked": "number",
		"fence": "number", "waiting": "number", "free": "number", "taken": "number", "others": "number", "permit": "number", "permits_in_all": "number",
		"permits_held": "number", "readers_held": "number",
		"ok": "truth", "lingers": "truth", "reader": "truth", "believed": "truth", "certain": "truth", "let_go": "truth", "client_tracking": "truth",
		"clients_listed": "truth",
		"masters":        "objects", "holders": "objects", "readers": "objects", "permits": "objects", "waiters": "objects", "clients": "objects", "lists": "objects",
		"findings": "objects", "on": "texts", "owners": "texts", "silent": "texts", "records": "texts",
	}
	seen := map[string]bool{}
	var walk func(v any, by string)
	walk = func(v any, by string) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e, by)
			}
		case map[string]any:
			for name, value := range v {
				kind := kindOf(value)
				if kind == "null" || kind == "none" {
					continue
				}
				seen[name] = true
				require.Equal(t, schema[name], kind, "%s in %s", name, by)
				walk(value, by)
			}
		}
	}
	for _, text := range said {
		for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
			var v any
			require.NoError(t, d.Decode(&v))
			walk(v, text)
		}
	}
	for _, name := range []string{"masters", "on", "state", "owner", "owners", "holders", "readers", "permits", "permits_in_all", "waiters", "findings", "clients"} {
		require.True(t, seen[name], name)
	}
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "text"
	case float64:
		return "number"
	case bool:
		return "truth"
	case []any:
		if len(v) == 0 {
			return "none"
		}
		return kindOf(v[0]) + "s"
	}
	return "object"
}
