package conn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
)

func TestRefusedConnectNamesTheMaster(t *testing.T) {
	t.Parallel()
	addr := parse(t, "127.0.0.1:1")
	_, err := conn.Dial(t.Context(), addr, conn.Options{DialTimeout: patient})
	require.ErrorContains(t, err, "127.0.0.1:1: connect: ")
	if errors.Is(err, conn.ErrRefused) {
		t.Fatal("a server that is down may come up")
	}
	_, err = conn.Dial(t.Context(), parse(t, "unix:///nowhere/redis.sock"), conn.Options{DialTimeout: patient})
	require.ErrorContains(t, err, "unix:///nowhere/redis.sock: connect: ")
	_, err = conn.Dial(t.Context(), parse(t, "unix:///"+strings.Repeat("x", 200)), conn.Options{DialTimeout: patient})
	require.ErrorContains(t, err, "connect: ")
}

func TestNamesAreLookedUp(t *testing.T) {
	t.Parallel()
	m := start(t)
	_, port, _ := net.SplitHostPort(m.addr())
	l := newLine(t, dial(t, "localhost:"+port, conn.Options{}))
	require.True(t, l.do("PING").Is("PONG"))
	_, err := conn.Dial(t.Context(), parse(t, "no-such-master.invalid"), conn.Options{DialTimeout: patient})
	require.ErrorContains(t, err, "no-such-master.invalid:6379: resolve: ")
	require.NotErrorIs(t, err, conn.ErrRefused)
}

func TestUnixSockets(t *testing.T) {
	t.Parallel()
	m := start(t, "requirepass pw")
	l := newLine(t, dial(t, "unix://:pw@"+m.socket+"?db=3", conn.Options{Scripts: []string{oneScript}, Tracking: true}))
	require.True(t, l.do("SET", "k", "v").Is("OK"))
	require.Contains(t, string(l.do("CLIENT", "LIST").Bytes()), " db=3 ")
	require.NoError(t, l.Abort())
}

func TestCredentialsAreAskedAtEveryDial(t *testing.T) {
	t.Parallel()
	m := start(t, "requirepass one")
	password := "one"
	opt := conn.Options{Credentials: func(ctx context.Context, _ string) (conn.Credentials, error) {
		_, limited := ctx.Deadline()
		require.True(t, limited)
		return conn.Credentials{Password: conn.NewSecret(password)}, nil
	}}
	l := newLine(t, dial(t, m.addr(), opt))
	require.True(t, l.do("CONFIG", "SET", "requirepass", "two").Is("OK"))
	requireRefused(t, refuse(t, m.addr(), opt), "WRONGPASS", "password")
	password = "two"
	dial(t, m.addr(), opt)

	none := errors.New("the vault is sealed")
	opt.Credentials = func(context.Context, string) (conn.Credentials, error) { return conn.Credentials{}, none }
	err := refuse(t, m.addr(), opt)
	require.ErrorIs(t, err, none)
	require.NotErrorIs(t, err, conn.ErrRefused)
}

func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	silent := func(c net.Conn) { io.Copy(io.Discard, c) }
	half := func(c net.Conn) {
		io.WriteString(c, hello[:20])
		io.Copy(io.Discard, c)
	}
	for name, addr := range map[string]string{
		"handshake":      conntest.Listen(t, silent),
		"half an answer": conntest.Listen(t, half),
		"tls":            "rediss://" + conntest.Listen(t, silent),
		"connect":        conntest.Unreachable(t),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			_, err := conn.Dial(ctx, parse(t, addr), conn.Options{DialTimeout: patient})
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, conn.ErrRefused)

			why := errors.New("no longer wanted")
			cctx, cancelCause := context.WithCancelCause(t.Context())
			cancelCause(why)
			_, err = conn.Dial(cctx, parse(t, addr), conn.Options{DialTimeout: patient})
			require.ErrorIs(t, err, context.Canceled)

			_, err = conn.Dial(t.Context(), parse(t, addr), conn.Options{DialTimeout: 10 * time.Millisecond})
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "it was not the caller's context that ended")

			dctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			_, err = conn.Dial(dctx, parse(t, addr), conn.Options{DialTimeout: patient})
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

// RemoteAddr does not depend on the name by which the master was reached.
func TestRemoteAddrIsTheSameByEveryName(t *testing.T) {
	t.Parallel()
	s := script(t, nil)
	for _, name := range []string{s.addr, named(s.addr)} {
		c, err := conn.Dial(t.Context(), parse(t, name), conn.Options{DialTimeout: patient})
		require.NoError(t, err)
		defer c.Close()
		require.Equal(t, s.addr, c.RemoteAddr())
	}
}
