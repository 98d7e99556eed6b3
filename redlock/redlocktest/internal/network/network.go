//go:build linux

// Package network is an IP network for tests, whose traffic can be cut, delayed, reordered, lost and
// reset, packet by packet, for each pair of nodes and each direction by itself.
//
// A node ([Node]) is a network namespace. Processes that are started in it and sockets that are
// opened in it ([Node.Do]) have the kernel's own TCP, with its retransmissions and timeouts. The
// only way out of a namespace is a TUN device, and this process has the other end of each of them.
// It reads the packets and takes them where they belong, as the weather ([Weather]) between the two
// nodes permits. That needs neither netem nor a packet filter in the kernel. It needs the right to
// make namespaces, which root has, and /dev/net/tun. Where these are missing, [Network.Add] says so.
//
// Nothing is left behind, however this process ends: namespaces and devices go with the last
// process that is in them.
package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
)

// A Network carries packets between its nodes. All methods may be called by several goroutines at
// once. It must be made by [New] and closed.
type Network struct {
	running sync.WaitGroup
	post    *post
	closing sync.Once

	mu       sync.Mutex
	nodes    []*Node // the one with address i+1 is nodes[i]
	weathers map[Way][]*Weather
	known    map[Way]map[flow]bool // what was begun since the last reset; nil before the first
}

// A Way is a direction in which packets go.
type Way struct{ From, To *Node }

// Both returns the ways between two nodes.
func Both(a, b *Node) []Way { return []Way{{a, b}, {b, a}} }

// New returns a network without nodes.
func New() *Network {
	n := &Network{post: newPost(), weathers: make(map[Way][]*Weather), known: make(map[Way]map[flow]bool)}
	n.running.Go(n.post.run)
	return n
}

// Close ends all traffic. The namespaces end with the processes and the sockets that are in them.
// Further calls do nothing.
func (n *Network) Close() {
	n.closing.Do(func() {
		n.mu.Lock()
		for _, node := range n.nodes {
			node.close()
		}
		n.mu.Unlock()
		n.post.close()
		n.running.Wait()
	})
}

// Add adds a node, which has a namespace of its own. The error says what is not permitted here.
func (n *Network) Add() (*Node, error) { return n.add(newNamespace) }

// Join makes this process's own namespace a node. The process must have been started in a new one,
// so that this does not change the machine's network. All its sockets are in the node then.
func (n *Network) Join() (*Node, error) { return n.add(ownNamespace) }

func (n *Network) add(namespace func() (*os.File, error)) (*Node, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := uint16(len(n.nodes) + 1)
	node, err := newNode(netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), namespace)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	n.nodes = append(n.nodes, node)
	n.running.Go(func() { n.serve(node) })
	return node, nil
}

// node returns the node at an address, or nil.
func (n *Network) node(addr netip.Addr) *Node {
	bytes := addr.As4()
	i := int(binary.BigEndian.Uint16(bytes[2:]))
	if i < 1 || i > len(n.nodes) || n.nodes[i-1].addr != addr {
		return nil
	}
	return n.nodes[i-1]
}

// Impose adds to the weather on these ways, until lift is called. Weathers on one way add up: a packet
// passes each of them. What is under way already arrives.
func (n *Network) Impose(w Weather, ways ...Way) (lift func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	imposed := &w
	for _, way := range ways {
		n.weathers[way] = append(n.weathers[way], imposed)
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, way := range ways {
			n.weathers[way] = slices.DeleteFunc(n.weathers[way], func(w *Weather) bool { return w == imposed })
		}
	}
}

// Reset resets the TCP connections that there are between two nodes: whoever sends on one next is
// told by a reset, and so is the other side. New connections work.
func (n *Network) Reset(a, b *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	begun := make(map[flow]bool)
	for _, way := range Both(a, b) {
		n.known[way] = begun
	}
}

// serve carries what a node sends, until the network is closed.
func (n *Network) serve(from *Node) {
	buf := make([]byte, maxPacket)
	for {
		size, err := from.tun.Read(buf)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			panic(err) // there is no reason for it
		}
		if p, ok := parse(buf[:size]); ok {
			n.carry(from, p)
		}
	}
}

// carry takes a packet where it belongs, or does not.
func (n *Network) carry(from *Node, p packet) {
	n.mu.Lock()
	to := n.node(p.to.Addr())
	if to == nil || p.from.Addr() != from.addr {
		n.mu.Unlock()
		return
	}
	way := Way{from, to}
	fate := n.isOld(way, p)
	for _, w := range n.weathers[way] {
		fate.meet(*w)
	}
	n.mu.Unlock()
	switch {
	case fate.lost:
	case fate.refused && p.tcp != nil:
		from.deliver(p.reply())
		to.deliver(p.end())
	default:
		for _, later := range fate.arrivals() {
			if later == 0 {
				to.deliver(p.bytes)
			} else {
				n.post.add(later, to, slices.Clone(p.bytes))
			}
		}
	}
}

// isOld refuses a packet of a connection that was begun before the last reset.
func (n *Network) isOld(way Way, p packet) (f fate) {
	begun := n.known[way]
	if begun == nil || p.tcp == nil {
		return f
	}
	if p.begins() {
		begun[flow{p.from, p.to}] = true
	}
	f.refused = !begun[flow{p.from, p.to}] && !begun[flow{p.to, p.from}]
	return f
}

// A flow is a TCP connection, whose first packet goes this way.
type flow struct{ from, to netip.AddrPort }
