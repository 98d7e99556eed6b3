package conn_test

import (
	"io"
	"net"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/resp"
)

// badNetworks has what the dials of some tests go through, by the name of the test that is
// above them all.
var badNetworks sync.Map

// onBadNetwork gives all tests below t a network with faults.
func onBadNetwork(t *testing.T, faults *conntest.Faults) { badNetworks.Store(t.Name(), faults) }

// network is what the dials of a test go through: nil for one without faults.
func network(tb testing.TB) *conntest.Faults {
	for name := tb.Name(); name != "."; name = path.Dir(name) {
		if faults, ok := badNetworks.Load(name); ok {
			return faults.(*conntest.Faults)
		}
	}
	return nil
}

// dial connects for as long as the test runs.
func dial(tb testing.TB, addr string, opt conn.Options) *conn.Conn {
	tb.Helper()
	opt.DialTimeout = patient
	if faults := network(tb); faults != nil && opt.Wrap == nil {
		opt.Wrap = faults.Wrap
	}
	c, err := conn.Dial(tb.Context(), parse(tb, addr), opt)
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c
}

// refuse dials, which must fail, and checks what holds for every error of a dial.
func refuse(tb testing.TB, addr string, opt conn.Options) error {
	tb.Helper()
	opt.DialTimeout = patient
	if faults := network(tb); faults != nil && opt.Wrap == nil {
		opt.Wrap = faults.Wrap
	}
	c, err := conn.Dial(tb.Context(), parse(tb, addr), opt)
	require.Error(tb, err)
	require.Nil(tb, c)
	var e *conn.Error
	require.ErrorAs(tb, err, &e)
	require.Equal(tb, parse(tb, addr).String(), e.Addr)
	require.Equal(tb, 1, strings.Count(err.Error(), e.Addr), "named once: %v", err)
	require.Equal(tb, 1, strings.Count(err.Error(), "conn: "), "named once: %v", err)
	return err
}

// line is one connection with a Poller of its own: commands go in, replies come out.
type line struct {
	*conn.Conn
	tb     testing.TB
	poller *conn.Poller
}

func newLine(tb testing.TB, c *conn.Conn) *line {
	tb.Helper()
	p, err := conn.NewPoller()
	require.NoError(tb, err)
	tb.Cleanup(func() { p.Close() })
	require.NoError(tb, p.Add(c, 1, conn.Readable))
	return &line{c, tb, p}
}

// try sends a command and waits for the next frame, valid until the next call.
func (l *line) try(args ...string) (resp.Value, error) {
	return l.exchange(resp.AppendCommand(nil, args...))
}

// exchange is try for a command that is encoded already.
func (l *line) exchange(command []byte) (resp.Value, error) {
	want := conn.Readable
	flushed, err := l.Send(command)
	for err == nil {
		v, nerr := l.Next()
		if nerr != resp.ErrNeedMore {
			return v, nerr
		}
		if !flushed {
			want |= conn.Writable
		}
		if err = l.poller.Modify(l.Conn, 1, want); err != nil {
			break
		}
		if _, err = l.poller.Wait(clock.Forever); err != nil {
			break
		}
		if !flushed {
			flushed, err = l.Flush()
		}
		if err == nil {
			_, err = l.Receive()
		}
	}
	return resp.Value{}, err
}

func (l *line) do(args ...string) resp.Value {
	l.tb.Helper()
	v, err := l.try(args...)
	require.NoError(l.tb, err)
	return v
}

// pair is a connection and the other end of it, which has answered the handshake and
// does nothing more.
func pair(tb testing.TB, opt conn.Options) (*conn.Conn, net.Conn) {
	tb.Helper()
	peers := make(chan net.Conn, 1)
	done := make(chan struct{})
	addr := conntest.Listen(tb, func(c net.Conn) {
		// The beginning of HELLO and the end of INFO.
		buf := make([]byte, 4096)
		for n := 0; !strings.HasSuffix(string(buf[:n]), "replication\r\n"); {
			m, err := c.Read(buf[n:])
			if err != nil {
				return
			}
			n += m
		}
		io.WriteString(c, hello+"-ERR no\r\n-ERR no\r\n")
		peers <- c
		<-done
	})
	tb.Cleanup(func() { close(done) })
	return dial(tb, addr, opt), soon(tb, peers)
}
