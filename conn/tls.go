package conn

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// tlsLayer is crypto/tls between a Conn and its stream. tls.Conn wants a blocking
// net.Conn below it; tlsWire is that during the handshake. Afterwards its reads end
// with a temporary error where they would block, which tls.Conn bears, and its writes
// collect in the Conn's output buffer, so that a Send stays one write(2).
type tlsLayer struct {
	*tls.Conn
	wire *tlsWire
}

func newTLSLayer(c *Conn, config *tls.Config, host string) *tlsLayer {
	if config == nil {
		config = &tls.Config{}
	}
	config = config.Clone()
	if config.ServerName == "" {
		config.ServerName = host
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	wire := &tlsWire{conn: c}
	return &tlsLayer{Conn: tls.Client(wire, config), wire: wire}
}

// handshake parks the goroutine by means of wait.
func (l *tlsLayer) handshake(ctx context.Context, wait func(Interest) error) error {
	l.wire.wait = wait
	err := l.HandshakeContext(ctx)
	l.wire.wait = nil
	if err != nil {
		l.wire.conn.Flush() // the alert that tells the master why
	}
	return err
}

func (c *Conn) sendTLS(p []byte) (flushed bool, err error) {
	// No byte of p can lie before start, counted from the beginning of the stream.
	c.mu.Lock()
	waiting := len(c.out) > 0
	start := c.sent + int64(len(c.out)-c.off)
	c.mu.Unlock()
	if _, err := c.tls.Write(p); err != nil {
		if err == net.ErrClosed {
			err = errClosed
		}
		return false, &Error{Master: c.master, Op: "write", Err: err, unsent: true}
	}
	if waiting {
		return false, nil
	}
	flushed, err = c.Flush()
	if err != nil {
		// The receiving side can have written some of p meanwhile.
		c.mu.Lock()
		err.(*Error).unsent = c.sent <= start
		c.mu.Unlock()
	}
	return flushed, err
}

// receiveTLS makes one read of the stream and takes out all that this brought, since
// the Poller knows nothing of what is buffered here.
func (c *Conn) receiveTLS() (n int, err error) {
	w := c.tls.wire
	m, err := c.stream.Read(w.buf[:])
	if m == 0 && err == nil {
		return 0, nil
	}
	w.in, w.err = w.buf[:m], err
	for {
		m, err := c.tls.Read(c.reader.Free(minRead))
		c.reader.Advance(m)
		n += m
		if err == errWouldBlock {
			err = nil
		} else if err == nil {
			continue
		}
		if c.Unsent() > 0 {
			c.Flush() // an answer of TLS's own; if it fails, the next read tells
		}
		return n, err
	}
}

// tlsWire is the net.Conn below TLS. Deadlines mean nothing to it, as it never waits
// outside of the handshake, and closing is the Conn's business.
type tlsWire struct {
	conn *Conn
	wait func(Interest) error // set during the handshake
	in   []byte               // what is left of the last read
	err  error                // that came with it
	buf  [readBuffer]byte
}

func (w *tlsWire) Read(p []byte) (int, error) {
	for w.wait != nil && len(w.in) == 0 {
		if err := w.flush(); err != nil {
			return 0, err
		}
		n, err := w.conn.stream.Read(w.buf[:])
		if err == nil && n == 0 {
			err = w.wait(Readable)
		}
		if err != nil {
			return 0, err
		}
		w.in = w.buf[:n]
	}
	if len(w.in) == 0 {
		if w.err != nil {
			return 0, w.err
		}
		return 0, errWouldBlock
	}
	n := copy(p, w.in)
	w.in = w.in[n:]
	return n, nil
}

// flush writes all, however long it takes.
func (w *tlsWire) flush() error {
	for {
		flushed, err := w.conn.Flush()
		if err != nil || flushed {
			return err
		}
		if err := w.wait(Writable); err != nil {
			return err
		}
	}
}

func (w *tlsWire) Write(p []byte) (int, error) {
	w.conn.mu.Lock()
	defer w.conn.mu.Unlock()
	w.conn.enqueue(p)
	return len(p), nil
}

func (w *tlsWire) Close() error                     { return nil }
func (w *tlsWire) LocalAddr() net.Addr              { return wireAddr{} }
func (w *tlsWire) RemoteAddr() net.Addr             { return wireAddr{} }
func (w *tlsWire) SetDeadline(time.Time) error      { return nil }
func (w *tlsWire) SetReadDeadline(time.Time) error  { return nil }
func (w *tlsWire) SetWriteDeadline(time.Time) error { return nil }

type wireAddr struct{}

func (wireAddr) Network() string { return "redburst" }
func (wireAddr) String() string  { return "redburst" }

// errWouldBlock is what tls.Conn takes for a passing trouble: it keeps its state and
// goes on with the next Read.
var errWouldBlock error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "nothing to read now" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

var (
	_ net.Conn  = (*tlsWire)(nil)
	_ net.Error = wouldBlock{}
)
