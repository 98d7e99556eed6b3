package conn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// tlsLayer is crypto/tls between a Conn and its stream. A tls.Conn needs a blocking net.Conn
// below it, and tlsWire is one during the handshake. After that, a read that would block ends
// with a temporary error, after which a tls.Conn can go on. A write only adds to the Conn's
// output buffer, so a Send stays one write.
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

// handshake parks the goroutine with wait until the TLS handshake is done.
func (l *tlsLayer) handshake(ctx context.Context, wait func(Interest) error) error {
	l.wire.wait = wait
	err := l.HandshakeContext(ctx)
	l.wire.wait = nil
	if err != nil {
		l.wire.conn.Flush() // the alert that tells the master why
	}
	return err
}

// refusedTLS returns the error of a handshake as a RefusedError if the next one will end alike. With TLS 1.3 the server
// says only later that it refuses us.
func refusedTLS(err error) error {
	refused := func(why error, remedy string) error {
		return &RefusedError{Reason: why.Error(), Remedy: remedy, cause: err}
	}
	if theirs, ok := errors.AsType[*net.OpError](err); ok && theirs.Op == "remote error" && slices.ContainsFunc(finalAlerts, func(a tls.AlertError) bool { return a.Error() == theirs.Err.Error() }) {
		return refused(theirs, "it refuses our side of TLS: if it wants a certificate, give one that is signed by an authority that it trusts (tls.Config.Certificates; --cert and --key)")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok {
		return err
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return refused(err, "give the certificate of the authority that signed the master's (tls.Config.RootCAs; --cacert)")
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return refused(err, "write the master's address with a name that stands in its certificate, or get a certificate for this name")
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return refused(err, "renew the master's certificate; check that our clock is right")
	}
	return refused(err, "get another certificate for the master")
}

// finalAlerts are what a server says that will not have our side of TLS: our certificate (42 to 49, 116), or what we
// offer (40, 70, 71, 112, 120).
var finalAlerts = []tls.AlertError{40, 42, 43, 44, 45, 46, 48, 49, 70, 71, 112, 116, 120}

// unanswered adds to the error of a handshake that took too long what its silence may mean.
func (l *tlsLayer) unanswered(err error) error {
	if l.wire.records != (records{}) || len(l.wire.in) > 0 {
		return err
	}
	// Redis may wait for the end of a line that a TLS hello does not have.
	return fmt.Errorf("%w; it has said nothing to a TLS hello yet: it is far away or busy, or this is a port without TLS", err)
}

func (c *Conn) sendTLS(p []byte) (flushed bool, err error) {
	c.mu.Lock()
	waiting := len(c.out) > 0
	c.mu.Unlock()
	c.tls.wire.sending.Store(true)
	_, err = c.tls.Write(p)
	c.tls.wire.sending.Store(false)
	if err != nil {
		if err == net.ErrClosed {
			err = errClosed
		}
		return false, &Error{Addr: c.addr, Op: "write", Err: err}
	}
	if waiting {
		return false, nil
	}
	return c.Flush()
}

// receiveTLS reads the stream once, and decrypts all that this has brought: the Poller does not
// know of what is buffered here.
//
// A read that finds nothing would say so, but every read of a tls.Conn that needs the stream
// allocates. So where the stream stands between two records, they are counted.
func (c *Conn) receiveTLS() (n int, err error) {
	w := c.tls.wire
	if len(w.in) == 0 { // else the TLS handshake has left something
		m, err := c.stream.Read(w.buf[:])
		if m == 0 && err == nil {
			return 0, nil
		}
		w.take(w.buf[:m])
		w.err = err
	}
	err = w.err
	whole := w.records.between() && err == nil
	for {
		free := c.reader.Free(minRead)
		m, err := c.tls.Read(free)
		c.reader.Advance(m)
		n += m
		if m < len(free) { // nothing is left of a record
			w.rest--
		}
		switch {
		case err == errWouldBlock:
			w.rest, err = 0, nil
		case err == nil && (w.rest > 0 || !whole):
			continue
		}
		if c.Unsent() > 0 {
			c.Flush() // an answer of TLS itself; if this fails, the next read says so
		}
		if err == nil && w.answersUnread() {
			err = errTLSAnswers
		}
		return n, err
	}
}

// tlsWire is the net.Conn below TLS. It ignores deadlines, because it waits only in the
// handshake, which has a context. The Conn closes the socket.
type tlsWire struct {
	conn *Conn
	wait func(Interest) error // set only during the handshake
	in   []byte               // the rest of the last read of the stream
	err  error                // the error of that read
	buf  [readBuffer]byte

	sending atomic.Bool // what is written is of Send, and not an answer of TLS itself
	answers int         // bytes of such answers since nothing was unsent. Guarded by the conn's mu

	records records // where the stream stands
	rest    int     // no more records than these have come and were not decrypted
}

// take takes what was read from the stream.
func (w *tlsWire) take(p []byte) {
	w.in = p
	w.rest += w.records.pass(p)
}

// records is where a stream of TLS records stands.
type records struct {
	head [5]byte // of the record: kind, version and length
	n    int     // bytes of it so far; 0 between two records
	left int     // bytes of the record that follow it, and have not come
}

func (r *records) between() bool { return r.n == 0 }

// pass takes the next bytes of the stream, and returns how many records end in them.
func (r *records) pass(p []byte) (ended int) {
	for len(p) > 0 {
		if r.n < len(r.head) {
			k := copy(r.head[r.n:], p)
			r.n += k
			p = p[k:]
			if r.n < len(r.head) {
				break
			}
			r.left = int(binary.BigEndian.Uint16(r.head[3:]))
		}
		k := min(r.left, len(p))
		r.left -= k
		p = p[k:]
		if r.left == 0 {
			r.n = 0
			ended++
		}
	}
	return ended
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
		w.take(w.buf[:n])
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

// flush writes everything, and parks where it has to.
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
	if !w.sending.Load() {
		w.answers += len(p)
	}
	return len(p), nil
}

// maxTLSAnswers bounds what TLS answers to a peer that does not read it.
const maxTLSAnswers = 64 << 10

// errTLSAnswers is the end of a connection whose peer asks for one new key after the other (RFC 8446, 4.6.3), and reads no answer.
var errTLSAnswers = errors.New("TLS: it asks for answers, and does not read them")

func (w *tlsWire) answersUnread() bool {
	w.conn.mu.Lock()
	defer w.conn.mu.Unlock()
	if len(w.conn.out) == 0 {
		w.answers = 0
	}
	return w.answers > maxTLSAnswers
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

// errWouldBlock is a temporary net.Error. After one, a tls.Conn keeps its state, and goes on with
// the next Read.
var errWouldBlock error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "nothing to read now" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

var (
	_ net.Conn  = (*tlsWire)(nil)
	_ net.Error = wouldBlock{}
)
