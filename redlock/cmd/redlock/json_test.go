package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The token and the texts of a server are not ours: they can hold whatever a terminal obeys,
// and the line end with which a line in a log is forged.
func TestWhatIsNotOursDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\x1b]0;title\x07\nredlock: all is well\x7f\u0080\u009b31m\u009f\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041 ü 界"
	masters := redlocktest.Embedded(t, 1)
	ask(t, masters, 0, "SET", evil, evil+"/ABCDEFGHIJKLMNOPQRSTUVWXYZ0")
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
		s := begin(t, env, append(append([]string{"status"}, flags...), evil)...).awaitStdout("held")
		s.endBy(os.Kill)
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
	ask(t, masters, 0, "SET", key, "me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0")
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

// A key is any bytes. What JSON names can be given back to the commands, whatever it holds.
func TestKeysThatAreNotUTF8CanBeNamedFromJSON(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	const token = "me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0"
	take := func(key string) {
		onAll(t, masters, "SET", key, token)
	}
	type object struct {
		Key    string
		Base64 *string `json:"key_base64"`
	}
	base64s := map[string]string{} // of the keys
	for _, key := range []string{"\xff", "a\xc3\nb\xff\n", "\n\x00\xfe\x00", "-\xff", "\xed\xa0\x80"} {
		take(key)
		base64s[key] = base64.StdEncoding.EncodeToString([]byte(key))
	}
	take("plain ü\x00\ufffd")
	_, stdout, stderr := do(t, env, "ls", "--json")
	found := map[string]string{}
	for _, line := range lines(stdout) {
		var said object
		require.NoError(t, json.Unmarshal([]byte(line), &said), stderr)
		if said.Base64 == nil {
			require.Equal(t, "plain ü\x00\ufffd", said.Key)
			continue
		}
		key, err := base64.StdEncoding.DecodeString(*said.Base64)
		require.NoError(t, err)
		require.Equal(t, strings.ToValidUTF8(said.Key, "\ufffd"), said.Key)
		found[string(key)] = *said.Base64
	}
	require.Equal(t, base64s, found)
	for key, text := range base64s {
		says := func(exit int, args ...string) {
			t.Helper()
			status, stdout, stderr := do(t, env, append(args, "--key-base64", text)...)
			require.Equal(t, exit, status, "%v: %s%s", args, stdout, stderr)
			var said object
			require.NoError(t, json.Unmarshal([]byte(stdout), &said))
			require.Equal(t, &text, said.Base64, args)
		}
		says(0, "status", "--json")
		says(exitNo, "status", "--json", "--permits", "2")
		says(0, "fence", "--json")
		watch := begin(t, env, "status", "--watch", "--json", "--key-base64", text).awaitStdout(`"key_base64":"` + text + `","state":"held"`)
		watch.endBy(os.Kill)
		for i := range masters.N() { // what never ends cannot be revoked
			ask(t, masters, i, "PEXPIRE", key, "3600000")
		}
		says(0, "revoke", "--json", "--wait", "0", "--reason", "why")
		take(key)
		status, _, stderr := do(t, env, "release", "--token", token, "--key-base64", text)
		require.Zero(t, status, stderr)
		for i := range masters.N() {
			require.Zero(t, ask(t, masters, i, "EXISTS", key))
		}
	}
	for _, wrong := range []string{"_w", "k k"} {
		status, _, stderr := do(t, env, "status", "--key-base64", wrong)
		require.Equal(t, exitUsage, status)
		require.Contains(t, stderr, "is no base64")
	}
	status, _, stderr := do(t, env, "status", "--key-base64", "\n")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "the KEY is empty")
}
