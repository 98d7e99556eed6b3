package main

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The token and the texts of a server are not ours: they can hold whatever a terminal obeys,
// and the line end with which a line in a log is forged.
func TestWhatIsNotOursDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\x1b]0;title\x07\nredlock: all is well\x7f\u0080\u009b31m\u009f\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041 ü 界"
	masters := redlocktest.Embedded(t, 1)
	_, err := masters.Do(0, "SET", evil, evil+"/ABCDEFGHIJKLMNOPQRSTUVWXYZ0")
	require.NoError(t, err)
	env := []string{mastersEnv(masters)}
	_, stdout, stderr := do(t, env, "status", evil)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "is held by somebody who left no name")
	_, out, errs := do(t, env, "run", atOnce, "-n", evil, "--", binary, "--version")
	require.Contains(t, errs, "held by another")
	_, more, notes := do(t, env, "run", atOnce, "-v", evil+"2", "--", binary, "--version")
	_, object, _ := do(t, env, "status", "--json", evil)
	_, permits, _ := do(t, env, "status", "--json", "--permits", "2", evil)
	_, none, refusal := do(t, env, "release", "--token", "another", evil)
	list, ls, more2 := listsOf(t, masters, evil+"3")
	texts := []string{list, ls, more2, stdout, stderr, out, errs, more, notes, object, permits, none, refusal}
	for _, flags := range [][]string{{"--watch"}, {"--watch", "--json"}} {
		s := begin(t, env, append(append([]string{"status"}, flags...), evil)...)
		s.awaitStdout("held")
		require.NoError(t, s.Process.Kill())
		s.end()
		texts = append(texts, s.out.String())
	}
	for _, text := range texts {
		for _, r := range text {
			require.True(t, r == '\n' || strconv.IsPrint(r), "%q in %q", r, text)
		}
		require.NotContains(t, text, "\nredlock: all is well")
	}
	for _, text := range []string{object, permits, texts[len(texts)-1]} {
		require.Contains(t, text, "ü 界", "it is not all escaped")
		var said struct{ Key string }
		require.NoError(t, json.Unmarshal([]byte(text), &said))
		require.Equal(t, evil, said.Key)
	}
}

// listsOf returns what ls writes of the keys: as a table, as JSON, and of the one key.
func listsOf(t *testing.T, masters *redlocktest.Masters, key string) (table, object, detail string) {
	t.Helper()
	_, err := masters.Do(0, "SET", key, "me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0")
	require.NoError(t, err)
	env := []string{mastersEnv(masters)}
	exit, table, _ := do(t, env, "ls", "*")
	require.Zero(t, exit)
	require.Contains(t, table, "redlock: all is")
	_, object, _ = do(t, env, "ls", "--json", "*")
	var said struct{ Key string }
	require.NoError(t, json.Unmarshal([]byte(object), &said))
	require.Equal(t, key, said.Key)
	_, detail, _ = do(t, env, "ls", strings.ReplaceAll(key, "[", `\[`))
	require.Contains(t, detail, "redlock: all")
	return table, object, detail
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
			return len(all) == 1 && len(all[0].Holders) == 1 && all[0].Holders[0].State == held
		}, patient, 20*time.Millisecond)
	}
	waitInLine(t, env, "lock:plain", "waiter")
	var said []string
	write := func(args ...string) {
		_, stdout, stderr := do(t, env, args...)
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
		s := begin(t, env, args...)
		s.awaitStdout("\n")
		require.NoError(t, s.Process.Kill())
		s.end()
		said = append(said, lines(s.out.String())[0])
	}
	schema := map[string]string{
		"key": "text", "kind": "text", "state": "text", "level": "text", "token": "text", "owner": "text", "reason": "text", "revoked": "text",
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
