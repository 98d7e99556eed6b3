//go:build linux

package main

import (
	"io"
	"net"
	"sync"
	"time"
)

// A proxy stands between the clients and one master, and passes on the bytes as
// its weather permits.
type proxy struct {
	master   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	weather weather
	changed chan struct{} // closed when the weather changes
	links   map[*link]struct{}
	closed  bool
}

// A weather is what a proxy does to the traffic. The zero value passes it on.
// What is cut is kept, and passed on when it is over, though the connection on
// the other side may have gone: late, as the network may do.
type weather struct {
	cutRequests, cutReplies bool
	refuse                  bool // connections, those that there are included
	delay                   time.Duration
}

// A link is one connection of a client, with its other half to the master.
type link struct {
	client, master *net.TCPConn
	gone           chan struct{} // closed by abort
	abort          func()        // resets both halves
}

func newProxy(master string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{master: master, listener: listener, changed: make(chan struct{}), links: make(map[*link]struct{})}
	p.running.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// set changes the weather.
func (p *proxy) set(w weather) {
	p.mu.Lock()
	p.weather = w
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if w.refuse {
		p.reset()
	}
}

// reset resets all connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.abort()
	}
}

// close resets all connections, takes no new ones, and returns when nothing is
// left.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.listener.Close()
	p.reset()
	p.running.Wait()
}

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err == nil {
			p.running.Go(func() { p.serve(c.(*net.TCPConn)) })
			continue
		}
		p.mu.Lock()
		closed := p.closed
		p.mu.Unlock()
		if closed {
			return
		}
		time.Sleep(time.Millisecond) // the connection was reset already, or we are out of descriptors
	}
}

// serve passes on the traffic of one connection until both sides have ended it.
func (p *proxy) serve(client *net.TCPConn) {
	c, err := net.Dial("tcp", p.master)
	if err != nil {
		discard(client)
		return
	}
	l := &link{client: client, master: c.(*net.TCPConn), gone: make(chan struct{})}
	l.abort = sync.OnceFunc(func() {
		close(l.gone)
		discard(l.client)
		discard(l.master)
	})
	p.mu.Lock()
	refused := p.closed || p.weather.refuse
	if !refused {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if refused {
		l.abort()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(l, l.master, l.client, func(w weather) bool { return w.cutRequests }) })
	both.Go(func() { p.pump(l, l.client, l.master, func(w weather) bool { return w.cutReplies }) })
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
	l.client.Close()
	l.master.Close()
}

// discard closes a connection so that the other side sees a reset.
func discard(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// pump passes on the traffic in one direction. An end is passed on after what
// came before it, a reset at once.
func (p *proxy) pump(l *link, to, from *net.TCPConn, cut func(weather) bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.hold(l, cut) {
			return
		}
		if n > 0 {
			// What fails is seen by the direction that reads there.
			to.Write(buf[:n])
		}
		switch {
		case err == io.EOF:
			to.CloseWrite()
			return
		case err != nil:
			l.abort()
			return
		}
	}
}

// hold waits for as long as the weather demands. It is false if the link has
// gone meanwhile.
func (p *proxy) hold(l *link, cut func(weather) bool) bool {
	delayed := false
	for {
		p.mu.Lock()
		w, changed := p.weather, p.changed
		p.mu.Unlock()
		var timer <-chan time.Time
		switch {
		case cut(w):
		case w.delay > 0 && !delayed:
			delayed = true
			timer, changed = time.After(w.delay), nil
		default:
			return true
		}
		select {
		case <-timer:
		case <-changed:
		case <-l.gone:
			return false
		}
	}
}
