package redlock_test

import (
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
)

// What is promised for the whole: when all tests are over, nothing is left.

// TestMain holds the whole suite to what it promises: when it is over, its
// goroutines, descriptors and servers are gone.
func TestMain(m *testing.M) {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close() // the runtime's poller has its descriptors now
	}
	waitTogether()
	goroutines, files := runtime.NumGoroutine(), openFiles()
	code := m.Run()
	redlock.EmptyPool()
	if left := leftovers(goroutines, files); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, left)
		code = 1
	}
	os.Exit(code)
}

// waitTogether has more tests run at once than there are processors, unless -parallel says
// how many: those that may are waiting for real masters nearly all the time.
func waitTogether() {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", "16")
	}
}

func leftovers(goroutines, files int) (left string) {
	// It asks now and then, without testing.T: there is none here.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		switch {
		case runtime.NumGoroutine() > goroutines:
			buf := make([]byte, 1<<20)
			left = "goroutines are left:\n" + string(buf[:runtime.Stack(buf, true)])
		case openFiles() > files:
			left = fmt.Sprint(openFiles()-files, " descriptors too many in:") + describeFiles()
		case childServers() > 0:
			left = "servers are left"
		default:
			return ""
		}
	}
	return left
}

// openFiles is 0 where there is no /proc.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// describeFiles says what each open descriptor is, a line each.
func describeFiles() (all string) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		what, _ := os.Readlink("/proc/self/fd/" + e.Name())
		all += "\n" + e.Name() + " " + what
	}
	return all
}

// childServers counts the redis-servers that this process has started.
func childServers() (n int) {
	all, _ := os.ReadDir("/proc")
	for _, p := range all {
		stat, err := os.ReadFile("/proc/" + p.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state ppid
		name, rest, ok := strings.Cut(string(stat), ") ")
		var state string
		var parent int
		fmt.Sscan(rest, &state, &parent)
		if ok && parent == os.Getpid() && strings.Contains(name, "(redis-server") {
			n++
		}
	}
	return n
}
