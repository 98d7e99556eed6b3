//go:build unix

package conntest

import (
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Unreachable is an address where a connect neither succeeds nor fails: the backlog of
// its listener is full.
func Unreachable(tb testing.TB) string {
	return UnreachableAt(tb, netip.MustParseAddrPort("127.0.0.1:0"))
}

// UnreachableAt makes an address so, at which nobody listens.
func UnreachableAt(tb testing.TB, at netip.AddrPort) string {
	tb.Helper()
	must := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	must(err)
	tb.Cleanup(func() { syscall.Close(fd) })
	must(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	must(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}))
	must(syscall.Listen(fd, 0))
	sa, err := syscall.Getsockname(fd)
	must(err)
	addr := net.JoinHostPort(at.Addr().String(), strconv.Itoa(sa.(*syscall.SockaddrInet4).Port))
	for {
		c, err := net.DialTimeout("tcp", addr, 50*time.Millisecond)
		if err != nil {
			return addr
		}
		tb.Cleanup(func() { c.Close() })
	}
}
