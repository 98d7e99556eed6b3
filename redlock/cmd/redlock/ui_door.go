package main

import (
	"container/list"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"sync"
)

// A uiDoor lets browsers in. Each address that is printed is good for one of them: then the next one is printed, so who
// has read the first, from a terminal, a history or the network, gets nothing with it, and its owner notices.
type uiDoor struct {
	print func(secret string) // is called with what comes first, and each time when that was used; never at once

	mu      sync.Mutex
	secret  string   // in the address that was printed last
	cookies []string // of the browsers that are let in, the last ones
	printed chan string
}

// A browser keeps its cookie for as long as it likes, and opens the address anew when it was closed.
const uiBrowsers = 64

// newUIDoor prints the first address.
func newUIDoor(print func(secret string)) *uiDoor {
	d := &uiDoor{secret: rand.Text(), print: print, printed: make(chan string, 1)}
	d.print(d.secret)
	return d
}

// enter returns a cookie for who knows the secret, and "" for others.
func (d *uiDoor) enter(secret string) (cookie string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if subtle.ConstantTimeCompare([]byte(secret), []byte(d.secret)) != 1 {
		return ""
	}
	d.secret, cookie = rand.Text(), rand.Text()
	if d.cookies = append(d.cookies, cookie); len(d.cookies) > uiBrowsers {
		d.cookies = d.cookies[1:]
	}
	select { // a terminal that stands still keeps no browser waiting: it gets the last one
	case <-d.printed:
	default:
	}
	d.printed <- d.secret
	return cookie
}

// run prints what comes after an address that was used, until ctx ends.
func (d *uiDoor) run(ctx context.Context) {
	for {
		select {
		case secret := <-d.printed:
			d.print(secret)
		case <-ctx.Done():
			return
		}
	}
}

// knows reports whether a browser was let in.
func (d *uiDoor) knows(r *http.Request) bool {
	c, err := r.Cookie(uiCookie)
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := 0
	for _, cookie := range d.cookies {
		known |= subtle.ConstantTimeCompare([]byte(c.Value), []byte(cookie))
	}
	return known == 1
}

// A uiListener has so many connections at most. A further one ends the oldest that has shown no cookie, so strangers
// cannot keep browsers out.
type uiListener struct {
	net.Listener

	mu        sync.Mutex
	all       int
	strangers list.List // of *uiConn, the oldest first
}

const uiConns = 256

type uiConn struct {
	net.Conn
	l      *uiListener
	place  *list.Element // among the strangers; nil if it has shown a cookie
	closed bool
}

func (l *uiListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &uiConn{Conn: nc, l: l}
		l.mu.Lock()
		var oldest *uiConn
		if l.all >= uiConns {
			oldest = c
			if first := l.strangers.Front(); first != nil {
				oldest = first.Value.(*uiConn)
			}
		}
		l.all++
		c.place = l.strangers.PushBack(c)
		l.mu.Unlock()
		if oldest != nil {
			oldest.Close()
		}
		if oldest != c {
			return c, nil
		}
	}
}

func (c *uiConn) Close() error {
	c.l.mu.Lock()
	if !c.closed {
		c.closed = true
		c.l.all--
		c.known()
	}
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// known takes the connection from the strangers. l.mu is held.
func (c *uiConn) known() {
	if c.place != nil {
		c.l.strangers.Remove(c.place)
		c.place = nil
	}
}

type uiConnKey struct{}

// withConn is http.Server.ConnContext: it lets welcome find the connection of a request.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, uiConnKey{}, c)
}

// welcome says that a request has shown a cookie.
func welcome(r *http.Request) {
	if c, ok := r.Context().Value(uiConnKey{}).(*uiConn); ok {
		c.l.mu.Lock()
		c.known()
		c.l.mu.Unlock()
	}
}
