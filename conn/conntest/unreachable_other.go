//go:build !unix

package conntest

import (
	"net"
	"net/netip"
	"testing"
)

// Unreachable stands in for an address where a connect does not end. Here it is the handshake
// that does not.
func Unreachable(tb testing.TB) string {
	return Listen(tb, func(c net.Conn) { c.Read(make([]byte, 1<<20)) })
}

// UnreachableAt skips the test.
func UnreachableAt(tb testing.TB, at netip.AddrPort) string {
	tb.Skip("it is hard to have here")
	return ""
}
