//go:build linux

package network

import (
	"os"
	"strconv"
)

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
	Skip(args ...any)
}

// Start returns a network with so many nodes, which is closed when the test ends. Where that is
// not permitted, it skips the test. For root it fails with CI=true in the environment, so that a
// gate never passes by skipping.
func Start(tb TB, count int) (*Network, []*Node) {
	tb.Helper()
	n := New()
	tb.Cleanup(n.Close)
	var all []*Node
	for range count {
		node, err := n.Add()
		if err != nil {
			if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci && os.Getuid() == 0 {
				tb.Fatal(err)
			}
			tb.Skip(err)
		}
		all = append(all, node)
	}
	return n, all
}
