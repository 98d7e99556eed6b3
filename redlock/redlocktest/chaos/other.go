//go:build !linux

// Chaos tests the lock under faults. It needs Linux: its processes compare their
// readings of one clock, which elsewhere means nothing to another process.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "chaos: it needs Linux, whose processes share a clock that clock.Now reads")
	os.Exit(2)
}
