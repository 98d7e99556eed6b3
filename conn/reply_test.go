package conn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

// value is the one frame in s.
func value(tb testing.TB, s string) resp.Value {
	tb.Helper()
	r := resp.NewReader(len(s), resp.Limits{})
	r.Advance(copy(r.Free(len(s)), s))
	v, err := r.Next()
	require.NoError(tb, err)
	return v.Clone()
}

// Servers before Redis 7 wrap the error of a command inside a script; later ones do not.
func TestErrorCodeIsTheInnerOneOfAScript(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"NOREPLICAS Not enough good replicas to write.": "NOREPLICAS",
		"ERR Error running script (call to f_1028a5dba704e1d8a01fd96efeba25bb78f62df2): @user_script:2: @user_script: 2: " +
			"-NOREPLICAS Not enough good replicas to write. ": "NOREPLICAS",
		"ERR Error running script (call to f_1028a5dba704e1d8a01fd96efeba25bb78f62df2): @user_script:4: @user_script: 4: " +
			"-READONLY You can't write against a read only replica.": "READONLY",
		"ERR Error running script (call to d8f2fad9f8e86a53d2a6ebd960b33c4972cacc37): @user_script:2: " +
			"-OOM command not allowed when used memory > 'maxmemory'.": "OOM",
		"NOREPLICAS Not enough good replicas to write. script: d223ed8c, on @user_script:1.":                    "NOREPLICAS",
		"ERR Error running script (call to f_10): @user_script:1: @user_script: 1: Wrong number of args":        "ERR",
		"ERR Error running script (call to f_10): @user_script:1: attempt to compare nil with number -1 -x -A":  "ERR",
		"ERR The user executing the script can't run this command or subcommand script: 49, on @user_script:1.": "NOPERM",
		"@user_script: 1: The user executing the script can't run this command or subcommand":                   "NOPERM",
		"@user_script: 3: -NOREPLICAS Not enough good replicas to write.":                                       "NOREPLICAS",
		"@user_script: 1: Wrong number of args":                                                                 "ERR",
		"ERR ACL failure in script: User locker has no permissions to run the 'get' command":                    "NOPERM",
		"ERR unknown option -READONLY": "ERR",
		"ERR":                          "ERR",
		"NOSCRIPT No matching script. Please use EVAL.": "NOSCRIPT",
	} {
		require.Equal(t, want, conn.ErrorCode(value(t, "-"+text+"\r\n")), text)
		passing := want == "NOREPLICAS" || want == "OOM"
		require.Equal(t, passing, conn.IsTransient(value(t, "-"+text+"\r\n")), text)
	}
	require.Empty(t, conn.ErrorCode(value(t, "+READONLY\r\n")))
}

// The name of a key or a token must not be taken for an error code.
func TestErrorCodeIsNotTakenFromArguments(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"rror running script -READONLY ", "ACL failure in script", "max number of clients"} {
		v := value(t, "-ERR unknown command 'EVALSHA', with args beginning with: 'a' '1' '"+arg+"' \r\n")
		require.Equal(t, "ERR", conn.ErrorCode(v), arg)
		require.False(t, conn.IsTransient(v), arg)
	}
}

func TestErrorTextCanBeLogged(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"-NOPERM this user has no permissions\r\n":                                                    "NOPERM this user has no permissions",
		"-ERR unknown command 'EVALSHA', with args beginning with: 'aaa' '1' 'k' 'owner/secret' \r\n": "ERR unknown command 'EVALSHA'",
		"-ERR unknown command `EVALSHA`, with args beginning with: `aaa`, `owner/secret`, \r\n":       "ERR unknown command `EVALSHA`",
		"-ERR \x1b[2J\x1b]0;title\x07\r\n":                                                            `ERR \x1b[2J\x1b]0;title\a`,
		"!27\r\nERR one\n2026 lock released\x00\r\n":                                                  `ERR one\n2026 lock released\x00`,
		"-ERR \xff \u202e \u00e9 \u65e5\r\n":                                                          `ERR \xff \u202e é 日`,
	} {
		require.Equal(t, want, new(conn.Conn).ErrorText(value(t, reply)))
	}
	for _, long := range []string{strings.Repeat("x", 10_000), strings.Repeat("é", 10_000), strings.Repeat("\x1b", 10_000)} {
		got := new(conn.Conn).ErrorText(value(t, "-"+long+"\r\n"))
		require.LessOrEqual(t, len(got), 4*256+3)
		require.True(t, strings.HasSuffix(got, "..."))
	}
}

// The words with which a server describes itself can hold anything.
func TestWhatAServerSaysOfItselfIsPrintable(t *testing.T) {
	t.Parallel()
	const nasty = "7.0\x1b[2J\n2026-01-01 all is well"
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	s := script(t, map[string]string{
		"HELLO": "%3\r\n" + bulk("version") + bulk(nasty) + bulk("mode") + bulk("a\x1bbc") + bulk("role") + bulk("master"),
		"INFO":  bulk("run_id:\x1b]0;" + strings.Repeat("x", 200) + "\r\n"),
	})
	got := dial(t, s.addr, conn.Options{}).Server()
	require.Equal(t, `7.0\x1b[2J\n2026-01-01 all is well`, got.Version)
	require.Equal(t, `a\x1bbc`, got.Mode)
	require.Less(t, len(got.RunID), 80)
	require.NotContains(t, got.RunID, "\x1b")
}

// A short password is hidden where it is a word of its own, so that the server's words stay
// intact. A long one is hidden everywhere.
func TestPasswordIsHiddenInWhatAServerQuotes(t *testing.T) {
	t.Parallel()
	const wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
	for _, c := range []struct{ password, said, want string }{
		{"p", wrong, "WRONGPASS invalid username-password pair or user is disabled."},
		{"user", wrong, "WRONGPASS invalid username-password pair or *** is disabled."},
		{"pass", wrong, "WRONGPASS invalid username-password pair or user is disabled."},
		{"hunter2", "-ERR what is hunter2, hunter2? 'hunter2' hunter22\r\n", "ERR what is ***, ***? '***' hunter22"},
		{"s.cret!", "-ERR (s.cret!) as.cret! s.cret!!\r\n", "ERR (***) as.cret! ***!"},
		{"hunter2", `-ERR what is 'AUTH\r\nhunter2\x20hunter2'` + "\r\n", `ERR what is 'AUTH\r\n***\x20***'`}, // the server's escapes
		{"hunter2", "!29\r\nERR what is 'AUTH\r\nhunter2\r\n'\r\n", `ERR what is 'AUTH\r\n***\r\n'`},          // ours
		{"hunter2!hunter2", "-ERR what is userhunter2!hunter2s\r\n", "ERR what is user***s"},
	} {
		err := refuse(t, script(t, map[string]string{"HELLO": "-ERR unknown command\r\n", "AUTH": c.said}).addr, conn.Options{Password: conn.NewSecret(c.password)})
		require.ErrorContains(t, err, "AUTH: "+c.want, c.password)
	}
}

// It is hidden after the handshake, too, and so is one that the server was told since.
func TestAPasswordThatIsRenewedIsHidden(t *testing.T) {
	t.Parallel()
	addr := parse(t, script(t, nil).addr)
	c, err := conn.Dial(t.Context(), addr, conn.Options{Password: conn.NewSecret("battery staple")})
	require.NoError(t, err)
	defer c.Close()
	said := value(t, "-ERR battery staple, c0rrect-h0rse\r\n")
	require.Equal(t, "ERR ***, c0rrect-h0rse", c.ErrorText(said))
	c.Renewal(conn.Credentials{Username: "u", Password: conn.NewSecret("c0rrect-h0rse")}).Append(nil)
	require.Equal(t, "ERR ***, ***", c.ErrorText(said))
}

// It is hidden in the words with which a server describes itself. One that says something of the server is
// none that it quotes.
func TestPasswordIsHiddenInWhatAServerSaysOfItself(t *testing.T) {
	t.Parallel()
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	const quotes = "run_id:%[1]s\r\nmaster_replid:x/%[1]s\r\nmaster_replid2:%[1]s/x\r\nrole:%[1]s\r\nserver_mode:%[1]s\r\nredis_version:%[1]s\r\n"
	for _, password := range []string{"hunter2", "correct horse", strings.Repeat("long", 20)} {
		info := fmt.Sprintf(quotes, password)
		for _, hello := range []string{
			"%3\r\n" + bulk("version") + bulk(password) + bulk("mode") + bulk("a "+password) + bulk("role") + bulk("master"),
			"-ERR unknown command\r\n",
		} {
			s := script(t, map[string]string{"HELLO": hello, "INFO": bulk(info), "INFO replication": bulk(info), "AUTH": "+OK\r\n"})
			c, err := conn.Dial(t.Context(), parse(t, s.addr), conn.Options{Password: conn.NewSecret(password)})
			if err == nil {
				got := c.Server()
				require.NotContains(t, fmt.Sprintf("%+v", got), password)
				require.Equal(t, []string{"***", "***", "x/***"}, []string{got.Version, got.RunID, got.ReplID})
				c.Close()
				continue
			}
			require.ErrorContains(t, err, "***") // it is a replica
			require.NotContains(t, err.Error(), password)
		}
	}
	const node = "%3\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
	for _, password := range []string{"cluster", "master"} {
		err := refuse(t, script(t, map[string]string{"HELLO": node}).addr, conn.Options{Password: conn.NewSecret(password)})
		require.ErrorContains(t, err, "a node of a Redis Cluster", password)
	}
}

// An error reply may be made of nothing but passwords. It is gone through once, as it is read while others wait.
func TestHidingManyPasswordsTakesOneWay(t *testing.T) {
	const password = "hunter2!"
	c := dial(t, script(t, map[string]string{"HELLO": hello, "AUTH": "+OK\r\n"}).addr, conn.Options{Password: conn.NewSecret(password)})
	v := value(t, "-ERR "+strings.Repeat(password, 8000)+"\r\n")
	require.Equal(t, "ERR "+strings.Repeat("***", 84)+"...", c.ErrorText(v))
	require.Less(t, testing.AllocsPerRun(1, func() { c.ErrorText(v) }), 100.0)
}

// It is hidden in the places that sentinels and nodes name, if no majority does.
func TestPasswordIsHiddenInAPlace(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	sentinels := group(t, sentinelAt(t, password+".example:6379").addr, sentinelAt(t, "127.0.0.1:1").addr)
	nodes, at := nodesOf(t, 2)
	nodes[1].answer("CLUSTER SLOTS", slotsAt(password+".example:6379"))
	opt := ofLocks
	opt.Password, opt.SentinelPassword, opt.DialTimeout = conn.NewSecret(password), conn.NewSecret(password), patient
	for _, address := range []conn.Address{sentinels, parse(t, "cluster://"+strings.Join(at, ","))} {
		_, err := conn.Dial(t.Context(), address, opt)
		require.ErrorContains(t, err, "***.example:6379")
		require.NotContains(t, err.Error(), password)
	}
	// Nor does an error say where a node is that was asked because others have named it.
	_, err := conn.Dial(t.Context(), parse(t, "cluster://"+at[0]).WithNodes([]string{password + ":1", password + ".example:1"}), opt)
	require.ErrorContains(t, err, "***")
	require.NotContains(t, err.Error(), password)
}

// The same holds for the beginning of an answer that is no RESP.
func TestPasswordIsHiddenInWhatIsNoRedis(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ said, want string }{
		{"?AUTH hunter2\r\n", `"?AUTH ***\r\n`},
		{"?\r\nhunter2\r\n", `"?\r\n***\r\n`},
		{"?" + strings.Repeat("x", 20) + " hunter2\r\n", `"?xxxxxxxxxxxxxxxxxxxx **", is not the Redis protocol`},
	} {
		for _, answers := range []map[string]string{
			{"HELLO": c.said},
			{"HELLO": "-ERR unknown command\r\n", "AUTH": c.said}, // in RESP2
		} {
			err := refuse(t, script(t, answers).addr, conn.Options{Username: "u", Password: conn.NewSecret("hunter2")})
			require.ErrorContains(t, err, "the answer, beginning "+c.want)
		}
	}
}

// An answer beyond the limits still comes from Redis.
func TestAnswerThatIsTooLongIsCalledSo(t *testing.T) {
	t.Parallel()
	s := script(t, map[string]string{"INFO": "$100\r\n" + strings.Repeat("x", 100) + "\r\n"})
	err := refuse(t, s.addr, conn.Options{Limits: resp.Limits{Bulk: 99}})
	require.ErrorContains(t, err, "the answer to INFO exceeds the limits")
	require.ErrorIs(t, err, resp.TooLong)
	require.NotContains(t, err.Error(), "not the Redis protocol")
	s = script(t, map[string]string{"SELECT": "*9\r\n" + strings.Repeat(":1\r\n", 9)})
	err = refuse(t, s.addr+"/1", conn.Options{Limits: resp.Limits{Elements: 8}})
	require.ErrorContains(t, err, "the answer to SELECT exceeds the limits")
	require.ErrorIs(t, err, resp.TooMany)
	s = script(t, map[string]string{"SELECT": "*1\r\n*1\r\n*0\r\n"})
	err = refuse(t, s.addr+"/1", conn.Options{Limits: resp.Limits{Depth: 2}})
	require.ErrorContains(t, err, "the answer to SELECT exceeds the limits")
	require.ErrorIs(t, err, resp.TooDeep)
}
