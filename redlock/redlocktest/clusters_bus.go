package redlocktest

import (
	"io"
	"net"
	"sync"
)

// A bus is a port in front of the port on which a node hears the other nodes. Who connects says
// in its first message who it is, so that single nodes can be cut off.
type bus struct {
	to       int    // the node's port
	node     string // the node's id
	listener *net.TCPListener
	running  sync.WaitGroup

	mu     sync.Mutex
	off    map[string]bool // ids of nodes that are cut off
	conns  map[net.Conn]string
	closed bool
}

// The place of the sender's id in a message of the cluster bus.
const senderBegin, senderEnd = 40, 80

func newBus(to int, node string) (*bus, error) {
	l, err := listen()
	if err != nil {
		return nil, err
	}
	b := &bus{to: to, node: node, listener: l, off: map[string]bool{}, conns: map[net.Conn]string{}}
	b.running.Go(func() { accept(l, func(c *net.TCPConn) { b.running.Go(func() { b.serve(c) }) }) })
	return b, nil
}

func (b *bus) port() int { return b.listener.Addr().(*net.TCPAddr).Port }

func (b *bus) serve(c net.Conn) {
	defer c.Close()
	defer b.leave(c)
	if !b.enter(c, "") {
		return
	}
	head := make([]byte, senderEnd)
	if _, err := io.ReadFull(c, head); err != nil || !b.enter(c, string(head[senderBegin:])) {
		return
	}
	node, err := net.Dial("tcp", localhost(b.to))
	if err != nil {
		return
	}
	defer node.Close()
	if _, err := node.Write(head); err != nil {
		return
	}
	b.running.Go(func() {
		io.Copy(c, node)
		c.Close()
	})
	io.Copy(node, c)
}

// enter notes from whom a connection is, and reports whether it may stay.
func (b *bus) enter(c net.Conn, from string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[c] = from
	return !b.closed && !b.off[from] && !b.off[b.node]
}

func (b *bus) leave(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
}

// cut cuts a node off, or no more.
func (b *bus) cut(node string, off bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.off[node] = off
	for c, from := range b.conns {
		if off && (from == node || b.node == node) {
			c.Close()
		}
	}
}

func (b *bus) close() {
	b.mu.Lock()
	b.closed = true
	for c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.listener.Close()
	b.running.Wait()
}
