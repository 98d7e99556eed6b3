package conn

import (
	"io"
	"sync"

	"github.com/redburst/redburst/resp"
)

const (
	readBuffer    = 4 << 10  // initial size; replies to a lock's commands are a few bytes
	minRead       = 512      // least space offered to a read
	maxIdleOutput = 64 << 10 // capacity of an empty output buffer that is not given up
)

// Conn is a connection to one master, ready for commands. Nothing in it waits: see
// [Poller] for that.
//
// Send, Flush and Unsent belong to one goroutine at a time, Receive and Next to one at
// a time, and the two sides may run at once. Close and Abort may be called only when
// neither side is inside a call.
type Conn struct {
	master string
	remote string
	server Server
	sock   *sock
	stream io.ReadWriter // sock, or what Options.Wrap made of it
	reader resp.Reader
	tls    *tlsLayer // nil if plain

	mu   sync.Mutex // guards what follows: TLS can have to write while it reads
	out  []byte     // out[off:] is yet to be written; empty if there is nothing
	off  int
	sent int64 // bytes that Flush has written so far
}

func newConn(master string, s *sock, opt *Options) *Conn {
	c := &Conn{master: master, sock: s, stream: s, reader: *resp.NewReader(readBuffer, opt.Limits)}
	if opt.Wrap != nil {
		c.stream = opt.Wrap(master, s)
	}
	return c
}

// Server is what the master said about itself in the handshake.
func (c *Conn) Server() Server { return c.server }

// RemoteAddr is the address that the socket was connected to, whatever name led there: an IP
// address and port, or the path of a Unix socket.
func (c *Conn) RemoteAddr() string { return c.remote }

// Send takes the whole of p: it writes what the socket takes now and keeps a copy of
// the rest, which makes flushed false. The rest goes out with Flush when the
// connection is [Writable]; while there is a rest, Send only adds to it. Sending what
// belongs together with one Send makes it one write(2). An error means that nothing
// of p was written, and that the connection is of no more use.
func (c *Conn) Send(p []byte) (flushed bool, err error) {
	if c.tls != nil {
		return c.sendTLS(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) > 0 {
		c.enqueue(p)
		return false, nil
	}
	if c.stream == nil {
		return false, &Error{Master: c.master, Op: "write", Err: errClosed, unsent: true}
	}
	n, err := c.stream.Write(p)
	if err != nil {
		return false, &Error{Master: c.master, Op: "write", Err: err, unsent: n == 0}
	}
	if n < len(p) {
		c.enqueue(p[n:])
		return false, nil
	}
	return true, nil
}

// Flush goes on with what Send kept, with one write(2), and reports whether nothing is
// left. An error means that the connection is of no more use; what was kept may have
// been written in part.
func (c *Conn) Flush() (flushed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		return true, nil
	}
	n, err := c.stream.Write(c.out[c.off:])
	c.off += n
	c.sent += int64(n)
	if err != nil {
		return false, &Error{Master: c.master, Op: "write", Err: err}
	}
	if c.off < len(c.out) {
		return false, nil
	}
	if c.out, c.off = c.out[:0], 0; cap(c.out) > maxIdleOutput {
		c.out = nil
	}
	return true, nil
}

// Unsent is the number of bytes that Send kept and that are not written yet.
func (c *Conn) Unsent() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.out) - c.off
}

// enqueue adds p to what is to be written. mu is held.
func (c *Conn) enqueue(p []byte) {
	if c.off > len(c.out)/2 {
		c.out = c.out[:copy(c.out, c.out[c.off:])]
		c.off = 0
	}
	c.out = append(c.out, p...)
}

// Receive makes one read(2) of what has arrived, for Next to take frames out of.
// (0, nil) means that there was nothing, or over TLS nothing whole. What it leaves
// unread the Poller reports again. An error, such as [io.EOF], means that the
// connection is of no more use; over TLS it can come together with n > 0, and Next
// still returns the frames before it. It ends the life of values returned by Next.
func (c *Conn) Receive() (n int, err error) {
	switch {
	case c.tls != nil:
		n, err = c.receiveTLS()
	case c.stream == nil:
		err = errClosed
	default:
		n, err = c.stream.Read(c.reader.Free(minRead))
		c.reader.Advance(n)
	}
	if err != nil {
		err = &Error{Master: c.master, Op: "read", Err: err}
	}
	return n, err
}

// Next is the next frame received: a reply, or if its kind is [resp.Push] something
// that was not asked for. Its value is valid until the next Receive. The error is
// [resp.ErrNeedMore] if there is no whole frame yet, or a [*resp.SyntaxError], after
// which the connection is of no more use.
func (c *Conn) Next() (resp.Value, error) { return c.reader.Next() }

// Close closes the connection in an orderly way: what the kernel has taken is still
// delivered, what Unsent counts is not. Over TLS it says goodbye if the socket takes
// that without waiting.
func (c *Conn) Close() error {
	if c.tls != nil {
		c.tls.Close()
		c.Flush()
	}
	return c.closeError(c.sock.close())
}

// Abort resets the connection: bytes that the master has not been sent yet are
// discarded, also those in the kernel, so that a command given up for lost does not
// reach it later. On a Unix socket, where there is no reset, it is Close.
func (c *Conn) Abort() error { return c.closeError(c.sock.abort()) }

func (c *Conn) closeError(err error) error {
	if err != nil {
		return &Error{Master: c.master, Op: "close", Err: err}
	}
	return nil
}
