//go:build unix

package secondtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	firstPort = 10000
	ports     = 4900
)

// reserved are the listeners that say, to this process and to others, which addresses FreeAddr has returned.
var reserved struct {
	mu  sync.Mutex
	all []net.Listener
}

// FreeAddr returns an address of the loopback that was free a moment ago. Its port lies below those
// that systems give to outgoing connections, so that nobody takes it while a server is down. No other call returns it,
// be it of another process that tests at the same time: a server that finds its port taken would not serve, and whoever
// asks for it would find that of another cluster.
func FreeAddr() string {
	for {
		n := firstPort + rand.IntN(ports)
		ours, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n+ports))
		if err != nil {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", n)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			ours.Close()
			continue
		}
		l.Close()
		reserved.mu.Lock()
		defer reserved.mu.Unlock()
		reserved.all = append(reserved.all, ours)
		return addr
	}
}

// A Proxy is a port in front of a server. It carries traffic until it is cut.
type Proxy struct {
	Addr     string
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	healed  chan struct{} // not nil while it is cut; closed when it is not any more
	conns   map[net.Conn]bool
	trap    func() // called before the chunk that countdown is for, once
	from    bool   // ... which is one of the server's
	count   int
	stopped bool
}

// NewProxy starts a proxy. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{Addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]bool{}}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *Proxy) close() {
	p.listener.Close()
	p.Heal()
	p.mu.Lock()
	p.stopped = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// Cut holds all traffic until Heal, as a network partition does.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed == nil {
		p.healed = make(chan struct{})
	}
}

// Heal ends Cut. What was held is carried.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed != nil {
		close(p.healed)
		p.healed = nil
	}
}

// Reset closes all connections. What was held is lost.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

// Trap calls f before it carries the n-th chunk, from 0, of those that the server or the clients send from now on. Reached
// says whether it has.
func (p *Proxy) Trap(n int, fromServer bool, f func()) (reached func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count, p.from, p.trap = n, fromServer, f
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.trap == nil
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() {
			defer c.Close()
			s, err := net.Dial("tcp", p.target)
			if err != nil {
				return
			}
			p.mu.Lock()
			if p.stopped {
				s.Close()
			}
			p.conns[c], p.conns[s] = true, true
			p.mu.Unlock()
			var both sync.WaitGroup
			both.Go(func() { p.carry(s, c, false) })
			both.Go(func() { p.carry(c, s, true) })
			both.Wait()
			p.mu.Lock()
			delete(p.conns, c)
			delete(p.conns, s)
			p.mu.Unlock()
		})
	}
}

func (p *Proxy) carry(to, from net.Conn, fromServer bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		var trap func()
		if p.trap != nil && p.from == fromServer {
			if p.count == 0 {
				trap, p.trap = p.trap, nil
			}
			p.count--
		}
		p.mu.Unlock()
		if trap != nil {
			trap()
		}
		for {
			p.mu.Lock()
			healed := p.healed
			p.mu.Unlock()
			if healed == nil {
				break
			}
			<-healed
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
