package conntest

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/redburst/redburst/resp"
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
	ListenOn(tb, l, serve)
	return l.Addr().String()
}

// ListenOn is [Listen] with a listener of the test, which it closes.
func ListenOn(tb testing.TB, l net.Listener, serve func(net.Conn)) {
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	var ended bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			if ended { // the others are closed already
				c.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				serve(c)
				c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() {
		l.Close()
		mu.Lock()
		ended = true
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// Answer plays a server on one connection. It reads the commands one by one, and writes what answer
// returns for each: all of its reply, or a part, or nothing. It returns when the connection ends, or
// when answer says that it does not go on, after it has written the reply.
func Answer(c net.Conn, answer func(args []string) (reply string, goOn bool)) {
	commands := resp.NewReader(4<<10, resp.Limits{Bulk: 64 << 20})
	for {
		v, err := commands.Next()
		if err == resp.ErrNeedMore {
			n, err := c.Read(commands.Free(4 << 10))
			commands.Advance(n)
			if err != nil && n == 0 {
				return
			}
			continue
		}
		if err != nil {
			return
		}
		var args []string
		for it := v.Elems(); ; {
			arg, ok := it.Next()
			if !ok {
				break
			}
			args = append(args, string(arg.Bytes()))
		}
		reply, goOn := answer(args)
		if _, err := io.WriteString(c, reply); err != nil || !goOn {
			return
		}
	}
}
