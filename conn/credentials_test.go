package conn_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

// renew tells the master of a connection new credentials, with a command behind them, and
// returns that command's reply.
func renew(l *line, with conn.Credentials, then ...string) (resp.Value, error) {
	l.tb.Helper()
	r := l.Renewal(with)
	commands := resp.AppendCommand(r.Append(nil), then...)
	for more := true; more; commands = nil {
		v, err := l.exchange(commands)
		require.NoError(l.tb, err)
		var ok bool
		more, ok = r.Take(v)
		require.True(l.tb, ok, "%q", v.Raw())
	}
	v, err := l.exchange(nil)
	require.NoError(l.tb, err)
	return v, r.Err()
}

// A connection is told new credentials, and keeps those that it has if the new ones are
// refused. No right is needed, and what stands behind them gets its own reply.
func TestCredentialsOfAConnectionAreRenewed(t *testing.T) {
	t.Parallel()
	acl := filepath.Join(t.TempDir(), "users.acl")
	require.NoError(t, os.WriteFile(acl, []byte("user default on >defaultpass ~* +@all\nuser ann on >annpass -@all +acl\n"), 0o600))
	m := start(t, "aclfile "+acl)
	until := time.Now().Add(time.Hour)
	c := dial(t, m.addr(), conn.Options{Credentials: func(context.Context, string) (conn.Credentials, error) {
		return conn.Credentials{Username: "default", Password: conn.NewSecret("defaultpass"), Until: until}, nil
	}})
	require.True(t, c.CredentialsEnd().Equal(until))
	l := newLine(t, c)
	for _, tt := range []struct {
		new  conn.Credentials
		want string // the user
	}{
		{conn.Credentials{Username: "ann", Password: conn.NewSecret("annpass")}, "ann"},
		{conn.Credentials{Password: conn.NewSecret("defaultpass")}, "default"},
		{conn.Credentials{Username: "ann", Password: conn.NewSecret("annpass")}, "ann"},
	} {
		who, err := renew(l, tt.new, "ACL", "WHOAMI")
		require.NoError(t, err)
		require.True(t, who.Is(tt.want))
	}
	for _, bad := range []conn.Credentials{{Password: conn.NewSecret("hunter2hunter2")}, {Username: "ann", Password: conn.NewSecret("hunter2hunter2")}} {
		who, err := renew(l, bad, "ACL", "WHOAMI")
		require.ErrorIs(t, err, conn.ErrRefused)
		require.ErrorContains(t, err, "WRONGPASS")
		require.True(t, who.Is("ann"))
	}
	require.Empty(t, c.Renewal(conn.Credentials{}).Append(nil))
	require.Zero(t, dial(t, m.addr(), conn.Options{Password: conn.NewSecret("defaultpass")}).CredentialsEnd())
}

// What is no reply to a Renewal is not taken for one, and a reply that the server has dropped
// is not waited for.
func TestRenewalKnowsItsReplies(t *testing.T) {
	t.Parallel()
	const (
		taken   = "+OK\r\n"
		refused = "-WRONGPASS no\r\n"
		user    = "%1\r\n+proto\r\n:3\r\n"
		noperm  = "-NOPERM no\r\n"
	)
	for proto, hello := range map[int]string{3: hello, 2: "-ERR unknown command 'HELLO'\r\n"} {
		s := script(t, map[string]string{"HELLO": hello})
		c := dial(t, s.addr, conn.Options{})
		require.Equal(t, proto, c.Server().Proto)
		for _, tt := range []struct {
			replies []string
			proto   int // that it is for; 0 for both
			ok      bool
			err     string
		}{
			{[]string{taken, user}, 3, true, ""},
			{[]string{taken, noperm}, 3, true, ""},
			{[]string{refused, user}, 3, true, "WRONGPASS"},
			{[]string{refused, noperm}, 3, true, "WRONGPASS"},
			{[]string{user}, 3, true, "dropped"},
			{[]string{taken, taken}, 3, false, ""},
			{[]string{refused, refused}, 3, false, ""},
			{[]string{refused, ":1\r\n"}, 3, false, ""},
			{[]string{taken}, 2, true, ""},
			{[]string{refused}, 2, true, "WRONGPASS"},
			{[]string{user}, 2, false, ""},
			{[]string{":1\r\n"}, 0, false, ""},
			{[]string{"$3\r\nann\r\n"}, 0, false, ""},
		} {
			if tt.proto != 0 && tt.proto != proto {
				continue
			}
			r := c.Renewal(conn.Credentials{Password: conn.NewSecret("p")})
			for i, reply := range tt.replies {
				more, ok := r.Take(value(t, reply))
				last := i == len(tt.replies)-1
				require.Equal(t, tt.ok || !last, ok, "%q", tt.replies)
				if ok {
					require.Equal(t, !last, more, "%q", tt.replies)
				}
			}
			switch {
			case !tt.ok:
			case tt.err == "":
				require.NoError(t, r.Err(), "%q", tt.replies)
			default:
				require.ErrorIs(t, r.Err(), conn.ErrRefused, "%q", tt.replies)
				require.ErrorContains(t, r.Err(), tt.err)
			}
		}
	}
}

// A server before Redis 6 has no users. It serves a connection that has told it the password for
// as long as that lasts, whatever becomes of the password; but one that tells it a wrong password
// is served no more. So it is told none again.
func TestServerWithoutUsersIsToldNoPasswordAgain(t *testing.T) {
	t.Parallel()
	const old = "-ERR unknown command 'HELLO'\r\n"
	for _, tt := range []struct {
		hello, version string
		username       string
		told           bool
	}{
		{old, "2.8.24", "", false},
		{old, "5.0.14", "", false},
		{old, "", "", false}, // it may be one
		{old, "6.0.16", "", true},
		{old, "8.0.1", "", true},
		{old, "5.0.14", "ann", true}, // it refuses the username, and that is all
		{old, "", "ann", true},
		{hello, "4.0.0", "", true}, // RESP3 is younger than users are
	} {
		info := ""
		if tt.version != "" {
			info = "redis_version:" + tt.version + "\r\n"
		}
		s := script(t, map[string]string{
			"HELLO": strings.ReplaceAll(tt.hello, "7.0.0", tt.version),
			"INFO":  fmt.Sprintf("$%d\r\n%s\r\n", len(info), info),
		})
		c := dial(t, s.addr, conn.Options{})
		require.Equal(t, tt.version, c.Server().Version)
		commands := c.Renewal(conn.Credentials{Username: tt.username, Password: conn.NewSecret("p")}).Append(nil)
		require.Equal(t, tt.told, len(commands) > 0, "%+v", tt)
	}
}

// A server that quotes what it was sent gives no password away.
func TestRefusedRenewalShowsNoPassword(t *testing.T) {
	t.Parallel()
	s := script(t, map[string]string{"AUTH": "-ERR unknown command 'AUTH ann hunter2hunter2'\r\n"})
	l := newLine(t, dial(t, s.addr, conn.Options{}))
	c := conn.Credentials{Username: "ann", Password: conn.NewSecret("hunter2hunter2"), Until: time.Now()}
	_, err := renew(l, c, "PING")
	require.ErrorIs(t, err, conn.ErrRefused)
	require.NotContains(t, err.Error(), "hunter2")
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		text := fmt.Sprintf(verb, c) + fmt.Sprintf(verb, &c) + fmt.Sprintf(verb, struct{ C conn.Credentials }{c})
		text += fmt.Sprintf(verb, l.Renewal(c)) + fmt.Sprintf(verb, *l.Renewal(c))
		require.NotContains(t, text, "hunter2")
		require.NotContains(t, text, "68756e746572")
		require.Contains(t, text, "ann")
	}
}
