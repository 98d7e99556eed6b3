package zookeeper

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// A wire makes the connections of a session, one after the other. It knows what the client does not tell, and ends
// what the client would wait for too long.
type wire struct {
	dial zk.Dialer

	mu      sync.Mutex
	timeout time.Duration // the least that a server has agreed to; before, what is asked for
	agreed  bool
	open    map[*connection]bool
	closed  bool
	failure error // of the last dial
}

func (w *wire) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	w.mu.Lock()
	closed := w.closed
	w.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	c, err := w.dial(network, address, timeout)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure = err; err != nil {
		return nil, err
	}
	if w.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	wrapped := &connection{Conn: c, wire: w}
	w.open[wrapped] = true
	return wrapped, nil
}

// close ends the connection, and there will be no other.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for c := range w.open {
		c.Conn.Close()
	}
}

// agree notes the timeout of the session that a server has agreed to.
func (w *wire) agree(timeout time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.agreed || timeout < w.timeout {
		w.timeout, w.agreed = timeout, true
	}
}

func (w *wire) sessionTimeout() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.timeout
}

// patience is how long a server may be silent: two fifths of the session's timeout, so that there is time for another
// server. Something comes each third at least, as the client pings.
func (w *wire) patience() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.agreed {
		return max(w.timeout*2/5, time.Second)
	}
	return w.timeout * 2 / 5
}

// reason says why there is no connection, if that is known.
func (w *wire) reason(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure == nil {
		return err
	}
	return errors.Join(err, w.failure)
}

// A connection to a server. The server's first message, after its length and the version of the protocol, has the
// timeout of the session, as 4 bytes each. It is 0 if the session has expired.
type connection struct {
	net.Conn
	wire *wire
	head []byte // of what was read, up to there
}

const headSize = 12

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if missing := headSize - len(c.head); missing > 0 && n > 0 {
		c.head = append(c.head, p[:min(n, missing)]...)
		if len(c.head) == headSize {
			if ms := int32(binary.BigEndian.Uint32(c.head[8:])); ms > 0 {
				c.wire.agree(time.Duration(ms) * time.Millisecond)
			}
		}
	}
	return n, err
}

// SetReadDeadline waits for no longer than patience. The client waits for seven timeouts for the first message.
func (c *connection) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		if most := time.Now().Add(c.wire.patience()); t.After(most) {
			t = most
		}
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *connection) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.open, c)
	c.wire.mu.Unlock()
	return c.Conn.Close()
}

// hosts gives the servers in turns. Unlike that of the client, it leaves their names to the dialer: one that cannot be
// resolved is a server that is down.
type hosts struct {
	mu            sync.Mutex
	servers       []string
	current, last int
}

func (h *hosts) Init(servers []string) error {
	h.servers, h.current, h.last = servers, -1, -1
	return nil
}

func (h *hosts) Len() int { return len(h.servers) }

func (h *hosts) Next() (server string, again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current = (h.current + 1) % len(h.servers)
	again = h.current == h.last
	if h.last < 0 {
		h.last = 0
	}
	return h.servers[h.current], again
}

func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.current
}

// silent is a logger that does not log.
type silent struct{}

func (silent) Printf(string, ...any) {}
