package conn_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/resp"
)

// A dialer that a user might write.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

var bySocket dialer = new(net.Dialer).DialContext

// byWrapper returns a connection that is no socket any more.
func byWrapper(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := bySocket(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

// byPipe returns one that never was one.
func byPipe(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := bySocket(ctx, network, address)
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	for _, way := range [][2]net.Conn{{c, theirs}, {theirs, c}} {
		go func() {
			io.Copy(way[0], way[1])
			way[0].Close()
			way[1].Close()
		}()
	}
	return ours, nil
}

var dialers = map[string]dialer{"a socket": bySocket, "a socket in a wrapper": byWrapper, "a pipe": byPipe}

// mapped has one place stand for another.
func mapped(by dialer, to map[string]string) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if to[address] == "" {
			return nil, fmt.Errorf("nobody knows %s", address)
		}
		return by(ctx, network, to[address])
	}
}

// A connection of the user's own serves as one of ours does, over TCP and a Unix socket. Its name is the Dialer's to look up.
func TestAConnectionOfADialerServes(t *testing.T) {
	t.Parallel()
	m := start(t)
	const name = "no-such-master.invalid:6379"
	for kind, by := range dialers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := dial(t, name, conn.Options{Dialer: mapped(by, map[string]string{name: m.addr()})})
			require.Equal(t, name, c.RemoteAddr())
			sendAndReceiveAtOnce(t, c)
			p := newPoller(t)
			require.NoError(t, p.Add(c, 1, conn.Readable|conn.Hangup))
			_, err := c.Send(resp.AppendCommand(nil, "QUIT"))
			require.NoError(t, err)
			for err == nil {
				wait(t, p)
				_, err = c.Receive()
			}
			require.ErrorIs(t, err, io.EOF)

			var networks sync.Map
			unix := dial(t, "unix://"+m.socket, conn.Options{Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				networks.Store(network+" "+address, true)
				return by(ctx, network, address)
			}})
			require.Equal(t, m.socket, unix.RemoteAddr())
			_, asked := networks.Load("unix " + m.socket)
			require.True(t, asked)
			sendAndReceiveAtOnce(t, unix)
		})
	}
}

// TLS is ours, and the certificate must have the name that was configured.
func TestTLSOverADialerIsByTheConfiguredName(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("named", &x509.Certificate{DNSNames: []string{"master.invalid"}})
	front, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{a.pair("named")}})
	require.NoError(t, err)
	conntest.ListenOn(t, front, func(c net.Conn) {
		conntest.Answer(c, func(args []string) (string, bool) {
			switch args[0] {
			case "HELLO":
				return "%1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n", true
			case "ECHO":
				return fmt.Sprintf("$%d\r\n%s\r\n", len(args[1]), args[1]), true
			}
			return "+OK\r\n", true
		})
	})
	for kind, by := range dialers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			to := map[string]string{"master.invalid:6379": front.Addr().String(), "other.invalid:6379": front.Addr().String()}
			opt := conn.Options{TLS: &tls.Config{RootCAs: a.roots}, Dialer: mapped(by, to)}
			sendAndReceiveAtOnce(t, dial(t, "master.invalid:6379", opt))
			opt.DialTimeout = patient
			_, err := conn.Dial(t.Context(), parse(t, "other.invalid:6379"), opt)
			var wrong x509.HostnameError
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, "other.invalid", wrong.Host)
		})
	}
}

// What a Dialer says is an error of connect, and says nothing of the master, whatever it wraps.
func TestErrorsOfADialerProveNothing(t *testing.T) {
	t.Parallel()
	own := errors.New("the proxy is full")
	for _, said := range []error{
		own, syscall.ECONNREFUSED, &conn.RefusedError{Reason: "x"}, conn.ErrNoListener, conn.ErrNotMaster, conn.ErrUnanswered,
		fmt.Errorf("%w: %w", own, conn.ErrNoListener), &conn.Error{Op: "handshake", Err: conn.ErrRefused},
	} {
		opt := conn.Options{DialTimeout: patient, Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, said }}
		_, err := conn.Dial(t.Context(), parse(t, "127.0.0.1:1"), opt)
		var failed *conn.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "connect", failed.Op)
		for _, verdict := range []error{conn.ErrNoListener, conn.ErrRefused, conn.ErrNotMaster, conn.ErrUnanswered} {
			require.NotErrorIs(t, err, verdict)
		}
		if said == own || said == syscall.ECONNREFUSED {
			require.ErrorIs(t, err, said)
		}
		require.ErrorContains(t, err, strings.TrimPrefix(said.Error(), "conn: "))
	}
	_, err := conn.Dial(t.Context(), parse(t, "127.0.0.1:1"), conn.Options{DialTimeout: patient,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, nil }})
	require.ErrorContains(t, err, "neither a connection nor an error")
}

// A connection that fails says why.
func TestTheErrorOfABrokenConnectionIsShown(t *testing.T) {
	t.Parallel()
	m := start(t)
	broken := errors.New("the tunnel fell in")
	var breaks atomic.Pointer[breakable]
	c := dial(t, m.addr(), conn.Options{Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := bySocket(ctx, network, address)
		b := &breakable{Conn: c, why: broken}
		breaks.Store(b)
		return b, err
	}})
	p := newPoller(t)
	require.NoError(t, p.Add(c, 1, conn.Hangup))
	breaks.Load().Conn.Close()
	wait(t, p)
	_, err := c.Receive()
	require.ErrorIs(t, err, broken)
}

// A connection that cannot be written to is broken, though nothing says so to who reads.
func TestAConnectionThatCannotBeWrittenToIsGivenUp(t *testing.T) {
	t.Parallel()
	silent := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	dialled := make(chan error, 1)
	go func() {
		_, err := conn.Dial(t.Context(), parse(t, silent), conn.Options{DialTimeout: 10 * patient,
			Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := bySocket(ctx, network, address)
				return unwritable{c}, err
			}})
		dialled <- err
	}()
	require.Error(t, soon(t, dialled))
}

type unwritable struct{ net.Conn }

func (unwritable) Write([]byte) (int, error) { return 0, errors.New("nobody takes it") }

type breakable struct {
	net.Conn
	why error
}

func (b *breakable) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if err != nil {
		err = b.why
	}
	return n, err
}

// Where a sentinel leads, the Dialer is asked, and no name is looked up. A link-local address that nobody has listed, in
// whatever spelling, it is not asked for.
func TestADialerIsAskedForWhatServersNameAfterItWasChecked(t *testing.T) {
	t.Parallel()
	m := start(t)
	for _, named := range []string{"192.0.2.1:6379", "no-such-master.invalid:6379", "x1.0x2b.invalid:6379"} {
		at := sentinelAt(t, named).addr
		c := dial(t, group(t, at).String(), conn.Options{Dialer: mapped(byPipe, map[string]string{at: at, named: m.addr()})})
		require.Equal(t, named, c.RemoteAddr())
	}
	for _, evil := range []string{
		"169.254.169.254:80", "[fe80::1]:80", "[::ffff:169.254.169.254]:80", "[fe80::1%1]:80",
		"2852039166:80", "0xa9fea9fe:80", "0xA9.0xfe.0xa9.0xfe:80", "169.254.43518:80", "0251.0376.0251.0376:80", "169.254.169.254.:80",
		"99999999999999999999999:80", "08:80",
	} {
		at := sentinelAt(t, evil).addr
		var asked sync.Map
		_, err := conn.Dial(t.Context(), group(t, at), conn.Options{DialTimeout: patient,
			Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				if address != at {
					asked.Store(address, true)
					return nil, errors.New("asked")
				}
				return bySocket(ctx, network, address)
			}})
		require.ErrorIs(t, err, conn.ErrRefused, evil)
		asked.Range(func(address, _ any) bool { t.Errorf("it was asked for %v", address); return true })
	}
	// What is listed is the user's word.
	_, err := conn.Dial(t.Context(), parse(t, "169.254.169.254:80"), conn.Options{DialTimeout: patient,
		Dialer: func(_ context.Context, _, address string) (net.Conn, error) { return nil, errors.New(address) }})
	require.True(t, strings.HasSuffix(err.Error(), "169.254.169.254:80"), err)
}
