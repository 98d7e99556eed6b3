package main

import (
	"encoding/json"
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
