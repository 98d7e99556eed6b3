//go:build unix

package zookeepertest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Sessions knows the sessions of all connections that Dial makes.
type Sessions struct {
	mu   sync.Mutex
	seen map[string]string // identifier and password, to the address
}

// Dial is a zk.Dialer.
func (s *Sessions) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	return &seen{Conn: c, address: address, sessions: s}, nil
}

// The first message of a server: length, version, timeout, identifier (8 bytes), length of the password, password.
const helloSize, identityAt = 4 + 4 + 4 + 8 + 4 + 16, 12

type seen struct {
	net.Conn
	address  string
	sessions *Sessions
	hello    []byte
}

func (c *seen) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if missing := helloSize - len(c.hello); missing > 0 && n > 0 {
		if c.hello = append(c.hello, p[:min(n, missing)]...); len(c.hello) == helloSize {
			c.sessions.mu.Lock()
			defer c.sessions.mu.Unlock()
			if c.sessions.seen == nil {
				c.sessions.seen = make(map[string]string)
			}
			c.sessions.seen[string(c.hello[identityAt:])] = c.address
		}
	}
	return n, err
}

// End has the server end all sessions that were seen, as if they had expired.
func (s *Sessions) End(t testing.TB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for identity, address := range s.seen {
		require.NoError(t, end(address, identity))
	}
	clear(s.seen)
}

// end takes a session over and closes it.
func end(address, identity string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	// version, last zxid seen, timeout, and who we are; then a request of type closeSession.
	hello := binary.BigEndian.AppendUint32(nil, 0)
	hello = binary.BigEndian.AppendUint64(hello, 0)
	hello = binary.BigEndian.AppendUint32(hello, 10000)
	hello = append(hello, identity...)
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(hello))), hello...)); err != nil {
		return err
	}
	if err := skip(c); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	const closeSession = -11
	request := binary.BigEndian.AppendUint32(nil, 8)
	request = binary.BigEndian.AppendUint32(request, 1)
	kind := int32(closeSession)
	request = binary.BigEndian.AppendUint32(request, uint32(kind))
	if _, err := c.Write(request); err != nil {
		return err
	}
	if err := skip(c); err != nil && err != io.EOF {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// skip reads a message.
func skip(c net.Conn) error {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(size[:])))
	return err
}
