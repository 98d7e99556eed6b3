package conntest

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen, however busy the machine is.
const patience = time.Minute

// Many returns how often a test repeats what is left to chance: few times, or many times if the
// variable REDLOCK_SCALE of the environment is full.
func Many(few, many int) int {
	if os.Getenv("REDLOCK_SCALE") == "full" {
		return many
	}
	return few
}

// Calls is how often a server was sent a command since it was started. stats is its answer to INFO commandstats.
func Calls(stats any, command string) (n int) {
	for line := range strings.Lines(fmt.Sprint(stats)) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+strings.ToLower(command)+":calls="); ok {
			fmt.Sscan(rest, &n)
		}
	}
	return n
}

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

// Parked waits until n goroutines or more are parked in a function that caller has called. Both are
// parts of the names in a stack, such as "(*Poller).Wait(" and "conn_test.TestX". The test fails
// if they are not parked within a minute. Each look stops all goroutines, so use it sparingly.
func Parked(tb testing.TB, n int, function, caller string) {
	tb.Helper()
	inside(tb, n, function, caller, []byte("[IO wait"), []byte("[select"), []byte("[chan receive"))
}

// Inside is [Parked] for goroutines that may run.
func Inside(tb testing.TB, n int, function, caller string) {
	tb.Helper()
	inside(tb, n, function, caller, []byte("["))
}

// inside waits until n goroutines or more are in a function, in one of the states.
func inside(tb testing.TB, n int, function, caller string, states ...[]byte) {
	tb.Helper()
	buf := make([]byte, 1<<20)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		found := 0
		for one := range bytes.SplitSeq(buf[:runtime.Stack(buf, true)], []byte("\n\n")) {
			head, stack, _ := bytes.Cut(one, []byte("\n"))
			is := func(state []byte) bool { return bytes.Contains(head, state) }
			if slices.ContainsFunc(states, is) && bytes.Contains(stack, []byte(function)) && bytes.Contains(stack, []byte(caller)) {
				found++
			}
		}
		if found >= n {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("only %d goroutines are in %s, and in one of the states %s", found, function, states)
		}
	}
}
