//go:build linux

package main

import (
	"fmt"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/redlock/redlocktest/internal/ci"
	"github.com/redburst/redburst/redlock/redlocktest/internal/network"
)

// traffic is what clients and masters send to each other.
type traffic interface {
	// impose carries out a fault of the traffic until lift is called.
	impose(s strike) (lift func())
	// reset resets the connections of a strike's pairs, or all of its master's.
	reset(s strike)
	// end ends a master's connections, when the clients are gone.
	end(master int)
}

// links are proxies in front of the masters. They know no clients: a fault is one of all of them.
type links struct {
	*redlocktest.Masters
	places *places // the servers'
}

func (l links) impose(s strike) (lift func()) {
	i := l.places.server(s.Target)
	switch s.Fault {
	case cut:
		l.Cut(i)
	case cutRequests:
		l.CutRequests(i)
	case cutReplies, answersLost:
		l.CutReplies(i)
	case lateLost:
		l.CutReplies(i)
		l.Delay(i, s.For/2)
	case refuse:
		l.Break(i)
	case delay:
		l.Delay(i, s.For/delayShare)
	default:
		panic("links have no such fault")
	}
	return func() {
		l.Heal(i)
		l.Delay(i, 0)
	}
}

func (l links) reset(s strike) { l.Reset(l.places.server(s.Target)) }
func (l links) end(master int) { l.Break(l.places.server(master)) }

// namespaces are networks of their own for each master and each client, and the packets between them.
type namespaces struct {
	network          *network.Network
	masters, clients []*network.Node
	control          *redlocktest.Masters
	places           *places // the masters'
}

// master returns where a master is.
func (n *namespaces) master(i int) *network.Node { return n.masters[n.places.server(i)] }

// newNamespaces says by its error why there are none.
func newNamespaces(masters, clients int) (*namespaces, error) {
	n := &namespaces{network: network.New()}
	for i := range masters + clients {
		node, err := n.network.Add()
		if err != nil {
			n.network.Close()
			return nil, err
		}
		if i < masters {
			n.masters = append(n.masters, node)
		} else {
			n.clients = append(n.clients, node)
		}
	}
	return n, nil
}

// spacesFor returns the namespaces of a storm, or nil if its traffic goes through links, and what the
// report says of it. It is an error if there are none where there should be.
func spacesFor(clients int, linked bool) (_ *namespaces, why string, err error) {
	if linked {
		return nil, "links, as they were asked for: no faults between one client and one master", nil
	}
	spaces, err := newNamespaces(serverCount, clients)
	if err == nil {
		return spaces, "each master and each client has a namespace of its own", nil
	}
	if ci.Runs() && !network.Forbidden(err) {
		return nil, "", fmt.Errorf("%w: with CI=true that must be possible, or ask for -links", err)
	}
	return nil, fmt.Sprintf("links, and so no faults between one client and one master: %v", err), nil
}

// hosts returns where the masters run.
func (n *namespaces) hosts() (all []redlocktest.Host) {
	for _, m := range n.masters {
		all = append(all, m)
	}
	return all
}

func (n *namespaces) impose(s strike) (lift func()) {
	bad := network.Weather{}
	way := s.Way
	switch s.Fault {
	case cutRequests:
		bad.Cut, way = true, requests
	case cutReplies, answersLost, lateLost:
		bad.Cut, way = true, replies
	case refuse:
		bad.Refuse = true
	case delay:
		bad.Delay = s.For / delayShare
	case lossy:
		bad.Loss = lossShare
	case reordered:
		bad.Jitter, bad.Double = reorderJitter, doubleShare
	default:
		bad.Cut = true
	}
	better := n.network.Impose(bad, n.ways(n.struck(s), way)...)
	if s.Fault != lateLost {
		return better
	}
	punctual := n.network.Impose(network.Weather{Delay: s.For / 2}, n.ways(n.struck(s), requests)...)
	return func() {
		better()
		punctual()
	}
}

// struck returns the pairs whose traffic is struck.
func (n *namespaces) struck(s strike) []pair {
	if s.Pairs != nil {
		return s.Pairs
	}
	return allWith(len(n.clients), s.Target)
}

// ways returns the directions that these pairs send in.
func (n *namespaces) ways(pairs []pair, w way) (all []network.Way) {
	for _, p := range pairs {
		client, master := n.clients[p.Client], n.master(p.Master)
		if w != replies {
			all = append(all, network.Way{From: client, To: master})
		}
		if w != requests {
			all = append(all, network.Way{From: master, To: client})
		}
	}
	return all
}

func (n *namespaces) reset(s strike) {
	for _, p := range n.struck(s) {
		n.network.Reset(n.clients[p.Client], n.master(p.Master))
	}
}

// end leaves it to the master. What clients have sent that is still under way finds no connection.
func (n *namespaces) end(master int) {
	if _, err := n.control.Do(n.places.server(master), "CLIENT", "KILL", "SKIPME", "yes"); err != nil {
		panic(fmt.Errorf("end the connections: %w", err))
	}
}

const (
	delayShare    = 15 // a delay, in each direction, is that part of its duration
	lossShare     = 0.2
	doubleShare   = 0.1
	reorderJitter = 30 * time.Millisecond
)
