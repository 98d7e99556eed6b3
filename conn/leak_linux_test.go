package conn_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
)

// sockets counts this process's descriptors that a connection or a Poller can own.
func sockets(tb testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(tb, err)
	return len(entries)
}

// However a dial ends, and at whatever point, it leaves no descriptor and no goroutine.
func TestDialsLeaveNothingBehind(t *testing.T) {
	a := newAuthority(t)
	m, secure := startTLS(t, a)
	locked := start(t, "requirepass x")
	withTLS := conn.Options{TLS: &tls.Config{RootCAs: a.roots}}
	hangs := conntest.Unreachable(t)
	reset := func(at int64) conn.Options {
		return conn.Options{Wrap: (&conntest.Faults{ResetRead: at}).Wrap}
	}
	sealed := conn.Options{Credentials: func(context.Context, string) (conn.Credentials, error) {
		return conn.Credentials{}, errors.New("sealed")
	}}
	all := func() {
		for _, d := range []struct {
			addr  string
			opt   conn.Options
			limit time.Duration
		}{
			{m.addr(), conn.Options{}, patient},
			{m.addr(), sealed, patient},
			{m.addr(), reset(1), patient},
			{m.addr(), reset(50), patient},
			{"redis://" + m.addr() + "/99", conn.Options{}, patient},
			{locked.addr(), conn.Options{}, patient},
			{secure, withTLS, patient},
			{secure, conn.Options{}, patient},
			{"rediss://" + secure, conn.Options{}, patient},
			{"127.0.0.1:1", conn.Options{}, patient},
			{m.addr(), conn.Options{Dialer: bySocket}, patient},
			{m.addr(), conn.Options{Dialer: byWrapper}, patient},
			{"redis://" + m.addr() + "/99", conn.Options{Dialer: byPipe}, patient},
			{secure, conn.Options{TLS: withTLS.TLS, Dialer: byPipe}, patient},
			{secure, conn.Options{TLS: withTLS.TLS, Dialer: bySocket}, patient},
			{"no-such-master.invalid", conn.Options{}, patient},
			{"unix:///nowhere", conn.Options{}, patient},
			{hangs, conn.Options{}, time.Millisecond},
		} {
			d.opt.DialTimeout = d.limit
			c, err := conn.Dial(t.Context(), parse(t, d.addr), d.opt)
			if err == nil {
				require.NoError(t, c.Close())
			}
		}
		// The context ends at any point of the dial.
		for wait := time.Duration(0); wait < time.Millisecond; wait += 50 * time.Microsecond {
			for addr, opt := range map[string]conn.Options{m.addr(): {}, secure: withTLS, "unix://" + m.socket: {Dialer: byWrapper}} {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				c, err := conn.Dial(ctx, parse(t, addr), opt)
				if err == nil {
					require.NoError(t, c.Abort())
				}
				cancel()
			}
		}
	}
	all() // opens what the runtime and the resolver keep open
	fds, goroutines := sockets(t), runtime.NumGoroutine()
	for range 3 {
		all()
	}
	for begun := time.Now(); sockets(t) > fds || runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(begun), 20*time.Second, "sockets or goroutines are left")
	}
}

// The kernel reuses the number of a descriptor at once, so a closed connection must not touch
// it any more.
func TestAClosedConnectionTouchesNoOther(t *testing.T) {
	old, _ := pair(t, conn.Options{})
	require.NoError(t, old.Close())
	c, peer := pair(t, conn.Options{})
	_, err := old.Send([]byte("not here"))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Send([]byte("here"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	all, err := io.ReadAll(peer)
	require.NoError(t, err)
	require.Equal(t, "here", string(all))
	require.ErrorIs(t, old.Abort(), net.ErrClosed)
	var stat syscall.Stat_t
	require.NoError(t, syscall.Fstat(0, &stat))
}
