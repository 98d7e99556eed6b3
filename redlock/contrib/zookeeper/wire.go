package zookeeper

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	failure error // why there is no connection; nil once a server has answered
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
	if err != nil {
		w.failure = err
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

// agree notes that a server has answered, and the timeout of the session that it has agreed to; 0 if to none.
func (w *wire) agree(timeout time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failure = nil
	if timeout > 0 && (!w.agreed || timeout < w.timeout) {
		w.timeout, w.agreed = timeout, true
	}
}

// failed notes the error of a connection, if it is one, and returns it.
func (w *wire) failed(err error) error {
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failure = err
	}
	return err
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

const (
	headSize  = 12
	mostFirst = 4 << 10  // bytes of the first message, which has 41. The client makes room for whatever it says
	mostBytes = 16 << 20 // of any other. All names of a queue are one
)

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if missing := headSize - len(c.head); missing > 0 && n > 0 {
		c.head = append(c.head, p[:min(n, missing)]...)
		if len(c.head) >= 4 && binary.BigEndian.Uint32(c.head) > mostFirst {
			n, err = 0, fmt.Errorf("%v is no ZooKeeper, or needs TLS: it begins with %q", c.RemoteAddr(), c.head)
		} else if len(c.head) == headSize {
			c.wire.agree(time.Duration(int32(binary.BigEndian.Uint32(c.head[8:]))) * time.Millisecond)
		}
	}
	return n, c.wire.failed(err)
}

func (c *connection) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.wire.failed(err)
}

// SetReadDeadline waits for no longer than patience. The client waits for seven timeouts for the first message, and for
// ever once it has the length of that.
func (c *connection) SetReadDeadline(t time.Time) error {
	most := time.Now().Add(c.wire.patience())
	switch {
	case t.After(most):
		t = most
	case t.IsZero() && len(c.head) < headSize:
		return nil
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
