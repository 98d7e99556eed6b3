package rights

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

func TestAnErrorIsExplained(t *testing.T) {
	t.Parallel()
	const refused = "ERR The user executing the script can't run this command or subcommand"
	lineOf := func(r *kind.Request, call string) string {
		text, _, found := strings.Cut(scriptOf(lastCommand(r.Command)), call)
		require.True(t, found, call)
		return strconv.Itoa(strings.Count(text, "\n") + 1)
	}
	var zcard, mend kind.Request
	kind.NewShared("lock:a").Acquire(&zcard, kind.Grant{Key: "lock:a"})
	kind.NewFenced("lock:a", 1, &kind.Counters{}).Mend(&mend, kind.Grant{Key: "lock:a"})
	line := lineOf(&zcard, "redis.call('ZCARD'")
	keys := func(n int) (out []byte) {
		s := script.NewRare("return 1")
		return s.AppendText(resp.AppendCommand(nil, "CLIENT", "CACHING", "YES"), 0, strings.Split("abcdef", "")[:n]...)
	}
	const noKey = "NOPERM this user has no permissions to access one of the keys used as arguments"
	for name, test := range map[string]struct {
		text string
		sent []byte
		want string
	}{
		"a command that is named":      {"NOPERM this user has no permissions to run the 'set' command", nil, "the user lacks +set, which is for all locks"},
		"one that was called":          {"ERR ACL failure in script: User locker has no permissions to run the 'zcard' command script: on @user_script:9.", nil, "the user lacks +zcard, which is for shared locks"},
		"one of several kinds":         {"NOPERM User a has no permissions to run the 'exists' command", nil, "the user lacks +exists, which is for locks on several keys, locks with permits and masters that tell a holder of a loss"},
		"one that nothing needs":       {"NOPERM User a has no permissions to run the 'config|get' command", nil, "the user lacks +config|get"},
		"a line, as by Redis 7.0":      {refused + " script: 0123, on @user_script:" + line + ".", zcard.Command, "the user lacks +zcard, which is for shared locks"},
		"the same of a text":           {refused + " script: 0123, on @user_script:" + line + ".", zcard.Fallback, "the user lacks +zcard, which is for shared locks"},
		"a line, as by Redis 6":        {"ERR Error running script (call to f_0123): @user_script:" + line + ": @user_script: " + line + ": The user executing the script can't run this command or subcommand", zcard.Command, "the user lacks +zcard, which is for shared locks"},
		"a line of a mend":             {refused + " script: 0123, on @user_script:" + lineOf(&mend, "redis.call('SET'") + ".", mend.Command, "the user lacks +set, which is for all locks"},
		"a line that is not there":     {refused + " script: 0123, on @user_script:99.", zcard.Command, ""},
		"a line without a call":        {refused + " script: 0123, on @user_script:2.", zcard.Command, ""},
		"a script that nobody knows":   {refused + " script: 0123, on @user_script:1.", nil, ""},
		"one that was caught":          {refused, zcard.Command, "the user lacks +get, which is for all locks"},
		"another that was caught":      {refused + " (ZADD)", zcard.Command, "the user lacks +zadd, which is for shared locks and queues between processes"},
		"one caught as by Redis 6":     {"@user_script: 3: The user executing the script can't run this command or subcommand", zcard.Command, "the user lacks +get, which is for all locks"},
		"a key":                        {noKey, resp.AppendCommand(nil, "SET", "a\n", "token"), `the user may not use the key "a\n"`},
		"a long key":                   {noKey, resp.AppendCommand(nil, "GET", strings.Repeat("k", 101)), `the user may not use the key "` + strings.Repeat("k", 100) + `"...`},
		"one of a script's keys":       {"NOPERM No permissions to access a key", zcard.Command, `the user may not use one of the keys "lock:a" and "{lock:a}:writer"`},
		"the one key of a script":      {noKey, keys(1), `the user may not use the key "a"`},
		"one of many":                  {noKey, keys(6), `the user may not use one of the keys "a", "b", "c" and 3 more`},
		"a key that a script made up":  {"ERR ACL failure in script: No permissions to access a key", keys(1), ""},
		"a key of nothing":             {noKey, nil, ""},
		"what is none of our commands": {noKey, []byte("*2\r\n$3\r\nGET\r\n$9\r\na"), ""},
		"something else":               {"NOPERM no", zcard.Command, ""},
	} {
		require.Equal(t, test.want, Explain(test.text, test.sent), name)
	}
}

// A line of a script tells which command has failed.
func TestEachLineCallsOneCommand(t *testing.T) {
	t.Parallel()
	for _, text := range script.Texts {
		for line := range strings.Lines(text) {
			found := map[string]bool{}
			for _, m := range calls.FindAllStringSubmatch(line, -1) {
				found[m[1]] = true
			}
			require.LessOrEqual(t, len(found), 1, line)
		}
	}
}
