//go:build unix

package conn

import (
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Unreachable is an address where a connect neither succeeds nor fails: the backlog of
// its listener is full.
func Unreachable(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(tb, err)
	tb.Cleanup(func() { syscall.Close(fd) })
	require.NoError(tb, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(tb, syscall.Listen(fd, 0))
	sa, err := syscall.Getsockname(fd)
	require.NoError(tb, err)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(sa.(*syscall.SockaddrInet4).Port))
	for {
		c, err := net.DialTimeout("tcp", addr, 50*time.Millisecond)
		if err != nil {
			return addr
		}
		tb.Cleanup(func() { c.Close() })
	}
}
