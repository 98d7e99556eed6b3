package conn

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redburst/redburst/resp"
)

const (
	readBuffer    = 4 << 10  // initial size; replies to a lock's commands are a few bytes
	minRead       = 512      // least space offered to a read
	maxIdleOutput = 64 << 10 // capacity of an empty output buffer that is not given up
	maxSkip       = 1 << 30  // of a frame that is too long: a string of Redis has half as much at the most
)

// Conn is a connection to one master, ready for commands. [Dial] makes it. None of its
// methods waits; a [Poller] does that. The zero Conn is a closed one.
//
// Only one goroutine at a time may call Send, Flush and Unsent, and only one at a time
// Receive and Next. The two sides may run at once. Close and Abort may be called only when
// neither side is inside a call.
type Conn struct {
	addr   string
	remote string
	server Server
	until  time.Time // see CredentialsEnd
	sock   *sock
	stream io.ReadWriter // sock, or what Options.Wrap made of it
	reader resp.Reader
	tls    *tlsLayer // nil if plain

	mu   sync.Mutex // guards what follows: the reading side of TLS may have to write
	out  []byte     // out[off:] is still to be written; empty if there is nothing
	off  int
	told [2]Secret // the passwords that the master was told, the latest first
}

func newConn(addr string, s *sock, opt *Options) *Conn {
	limits := opt.Limits
	limits.Skip = cmp.Or(limits.Skip, maxSkip)
	c := &Conn{addr: addr, sock: s, stream: s, reader: *resp.NewReader(readBuffer, limits)}
	if opt.Wrap != nil {
		c.stream = opt.Wrap(addr, s)
	}
	return c
}

// Format prints which master the connection leads to, and nothing that it sends or receives.
func (c *Conn) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "conn.Conn{%s}", c.addr) }

// Server returns what the master said about itself in the handshake. It does not change.
func (c *Conn) Server() Server { return c.server }

// RemoteAddr returns the address that the socket was connected to, whatever name led there:
// an IP address and port, or the path of a Unix socket.
func (c *Conn) RemoteAddr() string { return c.remote }

// CredentialsEnd returns when the credentials end that Dial has used, as [Options.Credentials] has
// said. The zero Time means never. It does not change: whoever sends a [Renewal] keeps its end.
func (c *Conn) CredentialsEnd() time.Time { return c.until }

// Send writes as much of p as the socket accepts now. It keeps a copy of the rest, and flushed is
// false then. Call [Conn.Flush] when the connection is [Writable] to write the rest. While there
// is a rest, Send only adds to it. One Send is at most one write, so put what belongs together
// into one.
//
// The error is an [*Error] with the Op "write". The connection is then of no more use, and some of p may have been
// written.
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
		return false, &Error{Addr: c.addr, Op: "write", Err: errClosed}
	}
	n, err := c.stream.Write(p)
	if err != nil {
		return false, &Error{Addr: c.addr, Op: "write", Err: err}
	}
	if n < len(p) {
		c.enqueue(p[n:])
		return false, nil
	}
	return true, nil
}

// Flush writes what Send has kept, with one write, and reports whether nothing is left. The
// error is an [*Error] with the Op "write". The connection is then of no more use, and some
// of what Send had kept may have been written.
func (c *Conn) Flush() (flushed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		return true, nil
	}
	n, err := c.stream.Write(c.out[c.off:])
	c.off += n
	if err != nil {
		return false, &Error{Addr: c.addr, Op: "write", Err: err}
	}
	if c.off < len(c.out) {
		return false, nil
	}
	if c.out, c.off = c.out[:0], 0; cap(c.out) > maxIdleOutput {
		c.out = nil
	}
	return true, nil
}

// Unsent returns the number of bytes that Send has kept and Flush has not written yet. Over
// TLS they are encrypted.
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

// Receive reads once. [Conn.Next] then takes frames out of what has arrived. Receive returns the
// number of bytes. (0, nil) means that nothing had arrived, or over TLS no whole record. If it
// leaves something unread, the Poller reports the connection again. All values that Next has
// returned become invalid.
//
// The error is an [*Error] with the Op "read". It wraps [io.EOF] if the master has closed the
// connection. The connection is then of no more use. Over TLS an error can come with n > 0. Next
// still returns the frames that came before the error.
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
		err = &Error{Addr: c.addr, Op: "read", Err: err}
	}
	return n, err
}

// Next returns the next frame that was received. A frame of kind [resp.Push] is a message
// that answers no command; any other is a reply. The value is valid until the next Receive.
// The error is [resp.ErrNeedMore] if there is no whole frame yet; [resp.ErrSkipped] in the place of
// a frame that exceeds [Options].Limits, and then [Conn.Skipped] says what it was; or a
// [*resp.SyntaxError], after which the connection is of no more use.
func (c *Conn) Next() (resp.Value, error) { return c.reader.Next() }

// Skipped says what the frame was for which Next has just returned [resp.ErrSkipped].
func (c *Conn) Skipped() resp.Skipped { return c.reader.Skipped() }

// Raise has the next reply bounded by other limits than those of the [Options]: see [resp.Reader.Raise]. Here a Skip of 0
// means none: a reply beyond the limits ends the connection.
func (c *Conn) Raise(limits resp.Limits) { c.reader.Raise(limits) }

// Close closes the connection in an orderly way, with close(2): the kernel still delivers what
// was written, and what [Conn.Unsent] counts is lost. Over TLS Close sends the close_notify
// alert, if the socket accepts it without waiting. The error is an [*Error] with the Op "close".
// It wraps [net.ErrClosed] if the connection is closed already.
func (c *Conn) Close() error {
	if c.tls != nil {
		c.tls.Close()
		c.Flush()
	}
	return c.closeError(c.sock.close())
}

// Abort resets the connection (SO_LINGER of 0 s): it discards what the master has not received
// yet, in the kernel too. So a command that the caller has given up does not reach the master
// later. A Unix socket has no reset; Abort only closes it. The errors are those of [Conn.Close].
func (c *Conn) Abort() error { return c.closeError(c.sock.abort()) }

func (c *Conn) closeError(err error) error {
	if err != nil {
		return &Error{Addr: c.addr, Op: "close", Err: err}
	}
	return nil
}
