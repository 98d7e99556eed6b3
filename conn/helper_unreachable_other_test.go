//go:build !unix

package conn

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Unreachable stands in for an address where a connect does not end. Here it is the handshake
// that does not.
func Unreachable(tb testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { l.Close() })
	return l.Addr().String()
}
