package conn_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/resp"
)

// patient is for dials whose length is not what is tested.
const patient = time.Minute

const oneScript = "return redis.call('get', KEYS[1])"

func TestServerSaysWhoItIs(t *testing.T) {
	t.Parallel()
	m := start(t)
	opt := conn.Options{ClientName: "locker-1", Scripts: []string{oneScript, "return 1"}, Tracking: true}
	c := dial(t, m.addr(), opt)
	s := c.Server()
	require.Regexp(t, regexp.MustCompile(`^[0-9a-f]{40}$`), s.RunID)
	require.Regexp(t, regexp.MustCompile(`^\d+\.\d+\.\d+$`), s.Version)
	require.Equal(t, "standalone", s.Mode)
	require.Equal(t, "master", s.Role)
	require.Equal(t, 3, s.Proto)
	require.Positive(t, s.ClientID)
	require.True(t, s.Tracking)
	require.Empty(t, s.Missing)

	l := newLine(t, c)
	require.True(t, l.do("CLIENT", "GETNAME").Is("locker-1"))
	require.Equal(t, fmt.Sprintf(":%d\r\n", s.ClientID), string(l.do("CLIENT", "ID").Raw()))
	require.True(t, l.do("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0").Kind() == resp.Integer)

	other := dial(t, m.addr(), conn.Options{}).Server()
	require.Equal(t, s.RunID, other.RunID)
	require.Greater(t, other.ClientID, s.ClientID)
	require.False(t, other.Tracking)
	require.Empty(t, other.Missing)
	require.NotEqual(t, s.RunID, dial(t, start(t).addr(), conn.Options{}).Server().RunID)
}

func TestTrackedKeysAreTold(t *testing.T) {
	t.Parallel()
	m := start(t)
	waiter := newLine(t, dial(t, m.addr(), conn.Options{Tracking: true}))
	holder := newLine(t, dial(t, m.addr(), conn.Options{}))
	require.True(t, holder.do("SET", "lock:a", "x").Is("OK"))
	require.True(t, waiter.do("CLIENT", "CACHING", "YES").Is("OK"))
	require.True(t, waiter.do("GET", "lock:a").Is("x"))
	holder.do("DEL", "lock:a")
	for {
		v, err := waiter.Next()
		if err == nil {
			require.Equal(t, resp.Push, v.Kind())
			require.Contains(t, string(v.Raw()), "lock:a")
			return
		}
		_, err = waiter.poller.Wait(clock.Forever)
		require.NoError(t, err)
		_, err = waiter.Receive()
		require.NoError(t, err)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	acl := filepath.Join(dir, "users.acl")
	require.NoError(t, os.WriteFile(acl, []byte("user default on >s%3Acret@ ~* +@all\nuser ann on >annpass ~* +@all\nuser off off >x ~* +@all\n"), 0o600))
	m := start(t, "aclfile "+acl)

	ask := func(username, password string) func(context.Context, string) (conn.Credentials, error) {
		return func(context.Context, string) (conn.Credentials, error) {
			return conn.Credentials{Username: username, Password: conn.NewSecret(password)}, nil
		}
	}
	for name, tt := range map[string]struct {
		addr, user string
		opt        conn.Options
	}{
		"of the options":        {m.addr(), "ann", conn.Options{Username: "ann", Password: conn.NewSecret("annpass")}},
		"password only":         {m.addr(), "default", conn.Options{Password: conn.NewSecret("s%3Acret@")}},
		"of the address":        {"redis://ann:annpass@" + m.addr(), "ann", conn.Options{Password: conn.NewSecret("wrong")}},
		"encoded":               {"redis://:s%253Acret%40@" + m.addr(), "default", conn.Options{}},
		"of the func":           {"redis://ann:wrong@" + m.addr(), "ann", conn.Options{Credentials: ask("ann", "annpass")}},
		"of the func, no name":  {m.addr(), "default", conn.Options{Credentials: ask("", "s%3Acret@")}},
		"with a client name":    {m.addr(), "ann", conn.Options{Username: "ann", Password: conn.NewSecret("annpass"), ClientName: "x"}},
		"with another database": {"redis://ann:annpass@" + m.addr() + "/3", "ann", conn.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t, dial(t, tt.addr, tt.opt))
			require.True(t, l.do("ACL", "WHOAMI").Is(tt.user))
		})
	}

	for name, tt := range map[string]struct {
		addr, want string
		opt        conn.Options
	}{
		"none":          {m.addr(), "NOAUTH", conn.Options{}},
		"wrong":         {m.addr(), "WRONGPASS", conn.Options{Password: conn.NewSecret("hunter2")}},
		"wrong, by url": {"redis://ann:hunter2@" + m.addr(), "WRONGPASS", conn.Options{}},
		"unknown user":  {m.addr(), "WRONGPASS", conn.Options{Username: "eve", Password: conn.NewSecret("hunter2")}},
		"disabled user": {m.addr(), "WRONGPASS", conn.Options{Username: "off", Password: conn.NewSecret("x")}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.opt.Scripts = []string{oneScript}
			err := refuse(t, tt.addr, tt.opt)
			requireRefused(t, err, tt.want, "password")
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func requireRefused(tb testing.TB, err error, reason, remedy string) {
	tb.Helper()
	require.ErrorIs(tb, err, conn.ErrRefused)
	var r *conn.RefusedError
	require.ErrorAs(tb, err, &r)
	require.Contains(tb, r.Reason, reason)
	require.Contains(tb, r.Remedy, remedy)
	require.Contains(tb, err.Error(), r.Reason)
	require.Contains(tb, err.Error(), r.Remedy)
}

func TestServersThatCanBeNoMasterAreRefused(t *testing.T) {
	t.Parallel()
	opt := conn.Options{Scripts: []string{oneScript}, Tracking: true}
	plain := start(t)
	t.Run("cluster", func(t *testing.T) {
		m := start(t, "cluster-enabled yes")
		requireRefused(t, refuse(t, m.addr(), opt), "Cluster", "independent")
		requireRefused(t, refuse(t, "redis://"+m.addr()+"/1", opt), "Cluster", "independent")
	})
	t.Run("replica", func(t *testing.T) {
		m := start(t, fmt.Sprintf("replicaof 127.0.0.1 %d", plain.port))
		requireRefused(t, refuse(t, m.addr(), opt), "replica", "independent")
	})
	t.Run("replica without its master", func(t *testing.T) {
		m := start(t, "replicaof 127.0.0.1 1", "replica-serve-stale-data no") // where nobody will ever listen
		requireRefused(t, refuse(t, m.addr(), opt), "replica", "independent")
	})
	t.Run("sentinel", func(t *testing.T) {
		m := startArgs(t, []string{"--sentinel"}, fmt.Sprintf("sentinel monitor m 127.0.0.1 %d 1", plain.port))
		requireRefused(t, refuse(t, m.addr(), opt), "Sentinel", "port")
		requireRefused(t, refuse(t, m.addr(), conn.Options{}), "Sentinel", "port")
	})
	t.Run("database", func(t *testing.T) {
		requireRefused(t, refuse(t, "redis://"+plain.addr()+"/99", opt), "SELECT: ERR DB index is out of range", "database")
	})
	t.Run("script", func(t *testing.T) {
		requireRefused(t, refuse(t, plain.addr(), conn.Options{Scripts: []string{"syntax error"}}), "SCRIPT LOAD", "script")
	})
	t.Run("client name", func(t *testing.T) {
		for _, name := range []string{"a b", "a\n", "é", "\x7f"} {
			requireRefused(t, refuse(t, plain.addr(), conn.Options{ClientName: name}), "client name", "another")
		}
	})
}

// The permissions in the package's documentation are enough, and each of them is needed.
func TestSmallestACL(t *testing.T) {
	t.Parallel()
	const must = "+set +eval +evalsha +script|load +get +del +pexpire +pttl +info"
	const key = "lock:a"
	script := `if redis.call('get', KEYS[1]) == ARGV[1] then
		redis.call('pexpire', KEYS[1], 1000)
		redis.call('pttl', KEYS[1])
		redis.call('set', KEYS[1], ARGV[1])
		return redis.call('del', KEYS[1])
	end`
	m := start(t)
	admin := newLine(t, dial(t, m.addr(), conn.Options{}))
	allow := func(rights string) {
		admin.do("ACL", "DELUSER", "locker")
		args := append([]string{"ACL", "SETUSER", "locker", "on", ">pw", "resetkeys", "~lock:*", "-@all"}, strings.Fields(rights)...)
		require.True(t, admin.do(args...).Is("OK"))
	}
	opt := conn.Options{Username: "locker", Password: conn.NewSecret("pw"), ClientName: "x", Tracking: true, Scripts: []string{script}}
	// use sends the commands of one lock, and returns the first error reply.
	use := func(l *line) string {
		for _, command := range [][]string{
			{"SET", key, "t", "NX", "PX", "1000"},
			{"EVALSHA", "0000000000000000000000000000000000000000", "1", key, "t"},
			{"EVAL", script, "1", key, "t"},
		} {
			if v := l.do(command...); v.IsError() && string(v.ErrorCode()) != "NOSCRIPT" {
				return string(v.Bytes())
			}
		}
		return ""
	}

	allow(must)
	c := dial(t, m.addr(), opt)
	require.Equal(t, 3, c.Server().Proto)
	require.Equal(t, "master", c.Server().Role)
	require.NotEmpty(t, c.Server().RunID)
	require.False(t, c.Server().Tracking)
	require.Len(t, c.Server().Missing, 1)
	require.Contains(t, c.Server().Missing[0], "CLIENT TRACKING: NOPERM")
	require.Empty(t, use(newLine(t, c)))

	for _, right := range strings.Fields(must) {
		allow(strings.Replace(must, right, "", 1))
		if right == "+script|load" {
			requireRefused(t, refuse(t, m.addr(), opt), "NOPERM", "let the user run SCRIPT LOAD")
			continue
		}
		if right == "+info" { // nobody knows who it is
			s := dial(t, m.addr(), opt).Server()
			require.Empty(t, s.RunID)
			require.Contains(t, strings.Join(s.Missing, "\n"), "run id and uptime: INFO: NOPERM")
			continue
		}
		require.NotEmpty(t, use(newLine(t, dial(t, m.addr(), opt))), right)
	}

	// A master that may be asked to track, and not to promise, tells nothing.
	allow(must + " +client|tracking")
	s := dial(t, m.addr(), opt).Server()
	require.False(t, s.Tracking)
	require.Len(t, s.Missing, 1)
	require.Contains(t, s.Missing[0], "CLIENT CACHING: NOPERM")

	allow(must)
	requireRefused(t, refuse(t, "redis://"+m.addr()+"/1", opt), "NOPERM", "let the user run SELECT")
	allow(must + " +select +client|tracking +client|caching")
	c = dial(t, "redis://"+m.addr()+"/1", opt)
	require.Empty(t, c.Server().Missing)
	require.NotEmpty(t, c.Server().RunID)
	require.True(t, c.Server().Tracking)
	l := newLine(t, c)
	require.True(t, l.do("CLIENT", "CACHING", "YES").Is("OK"))
	require.True(t, l.do("GET", key).IsNull())
	require.Empty(t, use(l))
}

// What does not take our name serves as it does without.
func TestAServerThatRefusesTheClientNameServes(t *testing.T) {
	t.Parallel()
	opt := conn.Options{Password: conn.NewSecret("hunter2"), ClientName: "x", Tracking: true}
	const refusal = "-ERR Syntax error in HELLO option 'setname'\r\n"
	s := script(t, map[string]string{"HELLO 3 AUTH default hunter2 SETNAME": refusal})
	got := dial(t, s.addr, opt).Server()
	require.Equal(t, 3, got.Proto)
	require.True(t, got.Tracking)
	require.Contains(t, got.Missing, "client name: HELLO: ERR Syntax error in HELLO option 'setname'")

	s = script(t, map[string]string{"HELLO": "-ERR unknown command 'HELLO'\r\n", "CLIENT SETNAME": "close"})
	got = dial(t, s.addr, opt).Server()
	require.Equal(t, 2, got.Proto)
	require.False(t, slices.Contains(s.seen()[len(s.seen())-5:], "CLIENT SETNAME x"), "%q", s.seen())

	s = script(t, map[string]string{"HELLO": "-ERR max number of clients reached\r\n"})
	require.ErrorContains(t, refuse(t, s.addr, opt), "max number of clients")
	require.False(t, s.saw("AUTH"))
}

func TestServersWithoutHELLOAreSpokenToInRESP2(t *testing.T) {
	t.Parallel()
	const info = "$84\r\nredis_version:5.0.7\r\nredis_mode:standalone\r\nrun_id:abc\r\nuptime_in_seconds:7\r\nrole:master\r\n"
	opt := conn.Options{Password: conn.NewSecret("hunter2"), ClientName: "x", Tracking: true, Scripts: []string{oneScript}}
	const unknown = "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `hunter2`, \r\n"
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	text := strings.TrimPrefix(info, "$84\r\n")

	for _, refusal := range []string{unknown, "-NOPROTO unsupported protocol version\r\n", "-ERR syntax error\r\n", "-NOAUTH Authentication required.\r\n"} {
		s := script(t, map[string]string{"HELLO": refusal, "INFO": bulk(text)})
		got := dial(t, "redis://"+s.addr+"/2", opt).Server()
		require.Equal(t, conn.Server{
			RunID: "abc", Version: "5.0.7", Mode: "standalone", Role: "master", Proto: 2, Uptime: 7 * time.Second, Endpoint: s.addr, Remote: s.addr,
			Missing: []string{"CLIENT TRACKING: the server does not speak RESP3"},
		}, got)
		resp3 := []string{"SELECT 2", "CLIENT TRACKING ON OPTIN", "CLIENT CACHING YES", "SCRIPT LOAD " + oneScript, "INFO server", "INFO replication"}
		want := append([]string{"HELLO 3 AUTH default hunter2 SETNAME x"}, resp3...)
		if strings.Contains(refusal, "syntax") { // that could be about the name
			want = append(append(want, "HELLO 3 AUTH default hunter2"), resp3...)
		}
		require.Equal(t, append(want, "AUTH hunter2", "CLIENT SETNAME x", "SELECT 2", "SCRIPT LOAD "+oneScript, "INFO", "ROLE"), s.seen())
	}

	for name, tt := range map[string]struct {
		answers        map[string]string
		reason, remedy string
	}{
		"replica by INFO":   {map[string]string{"INFO": bulk("role:slave\r\n"), "ROLE": "-ERR unknown command 'ROLE'\r\n"}, "replica", "independent"},
		"replica by ROLE":   {map[string]string{"INFO": "-NOPERM no\r\n", "ROLE": "*1\r\n$5\r\nslave\r\n"}, "replica", "independent"},
		"sentinel by ROLE":  {map[string]string{"INFO": bulk("x:y\r\n"), "ROLE": "*1\r\n$8\r\nsentinel\r\n"}, "Sentinel", "sentinel://"},
		"sentinel by INFO":  {map[string]string{"INFO": bulk("redis_mode:sentinel\r\n"), "ROLE": "-ERR unknown\r\n"}, "Sentinel", "port"},
		"cluster by INFO":   {map[string]string{"INFO": bulk("redis_mode:cluster\r\nrole:master\r\n")}, "Cluster", "independent"},
		"Valkey's cluster":  {map[string]string{"INFO": bulk("redis_version:7.2.4\r\nvalkey_version:9.1.2\r\nserver_mode:cluster\r\nrole:master\r\n")}, "Cluster", "independent"},
		"too old":           {map[string]string{"INFO": bulk("redis_version:2.6.11\r\nrole:master\r\n")}, "2.6.11", "2.6.12"},
		"wrong password":    {map[string]string{"AUTH": "-ERR invalid password\r\n"}, "AUTH: ERR invalid password", "password"},
		"needless password": {map[string]string{"AUTH": "-ERR Client sent AUTH, but no password is set\r\n"}, "no password is set", "password"},
		"renamed AUTH":      {map[string]string{"AUTH": "-ERR unknown command `AUTH`, with args beginning with: `hunter2`, \r\n"}, "unknown command `AUTH`", "password"},
		"echoed password":   {map[string]string{"AUTH": "-ERR what is hunter2\r\n"}, "what is ***", "password"},
		"no scripts":        {map[string]string{"SCRIPT": "-ERR unknown command 'SCRIPT'\r\n"}, "SCRIPT LOAD", "script"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.answers["HELLO"] = unknown
			err := refuse(t, script(t, tt.answers).addr, opt)
			requireRefused(t, err, tt.reason, tt.remedy)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}

	t.Run("nothing said", func(t *testing.T) {
		s := script(t, map[string]string{"HELLO": unknown, "INFO": "-ERR no\r\n", "ROLE": "-ERR no\r\n", "CLIENT": "-ERR no\r\n"})
		got := dial(t, s.addr, conn.Options{ClientName: "x"}).Server()
		require.Equal(t, conn.Server{Proto: 2, Endpoint: s.addr, Remote: s.addr, Missing: []string{"CLIENT SETNAME: ERR no", "run id and uptime: INFO: ERR no", "ROLE: ERR no"}}, got)
	})
	t.Run("password needed", func(t *testing.T) {
		const noauth = "-NOAUTH Authentication required.\r\n"
		s := script(t, map[string]string{"HELLO": unknown, "": noauth, "INFO": noauth, "ROLE": noauth})
		requireRefused(t, refuse(t, s.addr, conn.Options{}), "NOAUTH", "password")
		s = script(t, map[string]string{"HELLO": noauth})
		requireRefused(t, refuse(t, s.addr, conn.Options{}), "NOAUTH", "password")
	})
	t.Run("username", func(t *testing.T) {
		s := script(t, map[string]string{"HELLO": unknown})
		dial(t, s.addr, conn.Options{Username: "ann", Password: conn.NewSecret("pw")})
		require.Contains(t, s.seen(), "AUTH ann pw")
		s = script(t, map[string]string{"HELLO": unknown, "AUTH": "-ERR wrong number of arguments for 'auth' command\r\n"})
		requireRefused(t, refuse(t, s.addr, conn.Options{Username: "ann", Password: conn.NewSecret("pw")}), "number of arguments", "without a username")
	})
}

func TestPassingTroublesAreNotRefusals(t *testing.T) {
	t.Parallel()
	opt := conn.Options{Scripts: []string{oneScript}, Password: conn.NewSecret("pw")}
	for command, answer := range map[string]string{
		"HELLO":     "-ERR max number of clients reached\r\n",
		"HELLO ":    "-LOADING Redis is loading the dataset in memory\r\n",
		"SCRIPT":    "-LOADING Redis is loading the dataset in memory\r\n",
		"SCRIPT ":   "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
		"SCRIPT L":  "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
		"SCRIPT LO": "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
	} {
		err := refuse(t, script(t, map[string]string{command: answer}).addr, opt)
		require.NotErrorIs(t, err, conn.ErrRefused)
		require.ErrorContains(t, err, strings.TrimSpace(answer[1:]))
	}

	t.Run("busy", func(t *testing.T) {
		m := start(t, "lua-time-limit 1") // busy-reply-threshold, by the name that each version knows
		busy := newLine(t, dial(t, m.addr(), conn.Options{}))
		_, err := busy.Send(resp.AppendCommand(nil, "EVAL", "while true do end", "0"))
		require.NoError(t, err)
		until(t, func() bool {
			c, err := conn.Dial(t.Context(), parse(t, m.addr()), conn.Options{Scripts: opt.Scripts, DialTimeout: patient})
			if err == nil {
				c.Close()
				return false
			}
			require.NotErrorIs(t, err, conn.ErrRefused)
			return strings.Contains(err.Error(), "BUSY")
		})
	})
	t.Run("full", func(t *testing.T) {
		m := start(t, "maxclients 1")
		dial(t, m.addr(), conn.Options{})
		err := refuse(t, m.addr(), conn.Options{})
		require.NotErrorIs(t, err, conn.ErrRefused)
		require.ErrorContains(t, err, "max number of clients reached")
	})
	t.Run("protected mode is final", func(t *testing.T) {
		s := script(t, map[string]string{"HELLO": "-DENIED Redis is running in protected mode\r\n"})
		requireRefused(t, refuse(t, s.addr, conn.Options{}), "DENIED", "protected mode")
	})
}

func TestAnswersThatAreNotRESPAreExplained(t *testing.T) {
	t.Parallel()
	say := func(s string) func(net.Conn) {
		return func(c net.Conn) {
			io.WriteString(c, s)
			io.Copy(io.Discard, c)
		}
	}
	for answer, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n\r\n": `beginning "HTTP/1.1 400 Bad Request", is not the Redis protocol`,
		"SSH-2.0-OpenSSH_9.2\r\n":          `beginning "SSH-2.0`,
		"\x15\x03\x01\x00\x02\x02\x46":     "rediss://",
		"$-2\r\n":                          "not the Redis protocol",
		"%3000000000\r\n":                  "the answer to HELLO exceeds the limits",
		"+OK\n":                            "not the Redis protocol",
	} {
		err := refuse(t, conntest.Listen(t, say(answer)), conn.Options{})
		require.ErrorContains(t, err, want)
		var syntax *resp.SyntaxError
		require.ErrorAs(t, err, &syntax)
	}
}

func TestConnectionsClosedInTheHandshake(t *testing.T) {
	t.Parallel()
	for i := range len(hello) {
		addr := conntest.Listen(t, func(c net.Conn) {
			c.Read(make([]byte, 1024))
			io.WriteString(c, hello[:i])
		})
		err := refuse(t, addr, conn.Options{})
		require.NotErrorIs(t, err, conn.ErrRefused)
		require.ErrorContains(t, err, "handshake: ")
	}
}

func TestAnswersThatComeByteByByte(t *testing.T) {
	t.Parallel()
	addr := conntest.Listen(t, func(c net.Conn) {
		c.Read(make([]byte, 1024))
		io.WriteString(c, hello+">2\r\n$1\r\na\r\n$1\r\nb\r\n"+"$8\r\nrun_id:a\r\n"+"$15\r\nmaster_replid:b\r\n")
		io.Copy(io.Discard, c)
	})
	s := dial(t, addr, conn.Options{Wrap: (&conntest.Faults{Most: 1, Idle: 0.5}).Wrap}).Server()
	require.Equal(t, "7.0.0", s.Version)
	require.Equal(t, "a", s.RunID)
	require.Equal(t, "b", s.ReplID)
}

func TestEmbeddedMasters(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	c := dial(t, m.Addr(), conn.Options{Scripts: []string{oneScript}, ClientName: "x"})
	require.Equal(t, 3, c.Server().Proto)
	require.Equal(t, "master", c.Server().Role)
	require.True(t, newLine(t, c).do("SET", "a", "b", "NX", "PX", "100").Is("OK"))
	m.RequireUserAuth("ann", "pw")
	requireRefused(t, refuse(t, m.Addr(), conn.Options{Username: "ann", Password: conn.NewSecret("no")}), "WRONGPASS", "password")
	dial(t, m.Addr(), conn.Options{Username: "ann", Password: conn.NewSecret("pw"), Tracking: true})
}
