package conntest

import (
	"net"
	"sync"
	"testing"
)

// Listen accepts connections on a free port of 127.0.0.1, for a server that a test plays
// itself, and returns the host:port. It calls serve for each connection in a goroutine of its
// own, and closes the connection when serve returns or the test ends. The end of the test
// waits until every serve has returned.
func Listen(tb testing.TB, serve func(net.Conn)) (addr string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var ended bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			if ended { // the others are closed already
				c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	tb.Cleanup(func() {
		l.Close()
		mu.Lock()
		ended = true
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}
