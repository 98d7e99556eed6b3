//go:build linux

package network

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/redburst/redburst/redlock/redlocktest/internal/ci"
	"golang.org/x/sys/unix"
)

// Start returns a network with so many nodes, which is closed when the test ends. Where that is
// not permitted, it skips the test. With CI=true in the environment it fails for any other reason,
// so that a gate never passes by skipping what could be done.
func Start(tb testing.TB, count int) (*Network, []*Node) {
	tb.Helper()
	n := New()
	tb.Cleanup(n.Close)
	var all []*Node
	for range count {
		node, err := n.Add()
		if err != nil {
			if ci.Runs() && !Forbidden(err) {
				tb.Fatal(err)
			}
			tb.Skip(err)
		}
		all = append(all, node)
	}
	return n, all
}

// Forbidden reports whether an error of [Network.Add] says that this process may not do it, or that
// the system has no such thing: it is no root, or that of a container, or there is no /dev/net/tun.
func Forbidden(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
