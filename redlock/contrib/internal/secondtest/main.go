//go:build unix

package secondtest

import (
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// Main runs the tests of a package, and after, and fails if goroutines are left. More tests run at once than there
// are processors, as they wait nearly all the time.
func Main(m *testing.M, after func()) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", "6")
	}
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close() // the runtime's poller has its goroutines now
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	after()
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+string(buf[:runtime.Stack(buf, true)]))
			code = 1
			break
		}
	}
	os.Exit(code)
}
