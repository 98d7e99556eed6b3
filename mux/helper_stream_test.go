package mux_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A wrapped stream has the test do its writes.
type wrapped struct {
	io.ReadWriter
	write func(p []byte, write func([]byte) (int, error)) (int, error)
}

func (w wrapped) Write(p []byte) (int, error) { return w.write(p, w.ReadWriter.Write) }

func wrapWrites(write func(p []byte, write func([]byte) (int, error)) (int, error)) func(string, io.ReadWriter) io.ReadWriter {
	return func(_ string, s io.ReadWriter) io.ReadWriter { return wrapped{s, write} }
}

// endless always has something to read soon, and never what is asked for.
type endless struct{ io.ReadWriter }

func (endless) Read(p []byte) (n int, err error) {
	time.Sleep(100 * time.Microsecond) // other tests need the processor, too
	for len(p)-n >= len(push) {
		n += copy(p[n:], push)
	}
	return n, nil
}

const push = ">1\r\n+a\r\n"

// turning is a stream that becomes endless.
type turning struct {
	io.ReadWriter
	bad *atomic.Bool
}

func (s *turning) Read(p []byte) (int, error) {
	if s.bad.Load() { // the reply stays unread, so the socket stays readable
		return endless{}.Read(p)
	}
	return s.ReadWriter.Read(p)
}

// A cutter is a proxy between the Mux and a real master. It cuts both connections after a
// number of bytes in one direction.
type cutter struct {
	l      net.Listener
	target string
	toward atomic.Int64 // bytes that may still go to the master; below zero: no limit
	back   atomic.Int64 // ... and from it
	wg     sync.WaitGroup
}

func newCutter(t testing.TB, target string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{l: l, target: target}
	c.toward.Store(-1)
	c.back.Store(-1)
	c.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			var once sync.Once
			end := func() {
				once.Do(func() {
					in.(*net.TCPConn).SetLinger(0)
					in.Close()
					out.Close()
				})
			}
			c.wg.Go(func() { defer end(); pipe(out, in, &c.toward) })
			c.wg.Go(func() { defer end(); pipe(in, out, &c.back) })
		}
	})
	t.Cleanup(func() { l.Close(); c.wg.Wait() })
	return c
}

func pipe(to io.Writer, from io.Reader, budget *atomic.Int64) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if left := budget.Load(); left >= 0 {
			if int64(n) >= left {
				to.Write(buf[:left])
				budget.Store(-1)
				return
			}
			budget.Store(left - int64(n))
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

func newBudget(n int64) *atomic.Int64 {
	b := new(atomic.Int64)
	b.Store(n)
	return b
}
