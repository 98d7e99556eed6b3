package conntest

import (
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen, however busy the machine is.
const patience = time.Minute

// Soon receives from c. The test fails if nothing comes within a minute; what says what should
// have happened.
func Soon[T any](tb testing.TB, what string, c <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		tb.Fatalf("never happened: %s", what)
	}
	return v
}

// AllEnd waits for goroutines. The test fails if they do not end within a minute; what says
// what should have happened.
func AllEnd(tb testing.TB, what string, all *sync.WaitGroup) {
	tb.Helper()
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	Soon(tb, what, ended)
}
