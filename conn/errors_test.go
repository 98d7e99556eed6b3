package conn_test

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
)

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
