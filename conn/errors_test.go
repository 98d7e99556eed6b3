package conn_test

import (
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
)

func TestOnlyAnErrorBeforeTheFirstByteIsSafeToRetry(t *testing.T) {
	t.Parallel()
	c, peer := pair(t, conn.Options{})
	p := newPoller(t)
	require.NoError(t, p.Add(c, 1, conn.Hangup))
	require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
	fill(t, c)
	_, err := c.Send(make([]byte, 32<<20)) // more than all buffers on the way hold
	require.NoError(t, err)
	peer.Close()
	wait(t, p)
	until(t, func() bool {
		_, err = c.Flush()
		return err != nil
	})
	require.False(t, conn.SafeToRetry(err), "some of it was written")
	flushed, err := c.Send([]byte("x"))
	require.NoError(t, err, "it only joins what waits")
	require.False(t, flushed)

	c, peer = pair(t, conn.Options{})
	p = newPoller(t)
	require.NoError(t, p.Add(c, 2, conn.Hangup))
	require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
	peer.Close()
	wait(t, p)
	until(t, func() bool {
		_, err = c.Send([]byte("x"))
		return err != nil
	})
	require.True(t, conn.SafeToRetry(err))
	var e *conn.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "write", e.Op)

	_, err = c.Receive()
	require.Error(t, err)
	require.False(t, conn.SafeToRetry(err))
	require.False(t, conn.SafeToRetry(nil))
	require.False(t, conn.SafeToRetry(io.EOF))
}

// What is closed says so in our words, and errors.Is finds the standard library's errors.
func TestWhatIsClosedSaysSo(t *testing.T) {
	t.Parallel()
	plain, _ := pair(t, conn.Options{})
	secure, _ := pairTLS(t)
	for _, c := range []*conn.Conn{plain, secure} {
		require.NoError(t, c.Close())
		for name, do := range map[string]func() error{
			"write": func() error { _, err := c.Send([]byte("x")); return err },
			"read":  func() error { _, err := c.Receive(); return err },
			"close": c.Close,
		} {
			err := do()
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, err, os.ErrClosed)
			var e *conn.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, name, e.Op)
			require.Equal(t, "conn: "+e.Addr+": "+name+": connection is closed", err.Error())
		}
	}
	require.EqualError(t, conn.ErrPollerClosed, "conn: poller is closed")
}
