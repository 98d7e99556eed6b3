//go:build linux

package main

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// echo is a master that answers with what it was sent.
func echo(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func startProxy(t *testing.T) *proxy {
	p, err := newProxy(echo(t))
	require.NoError(t, err)
	t.Cleanup(p.close)
	return p
}

func dial(t *testing.T, p *proxy) net.Conn {
	c, err := net.Dial("tcp", p.addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

func ask(t *testing.T, c net.Conn, text string) {
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

func expect(t *testing.T, c net.Conn, text string) {
	buf := make([]byte, len(text))
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, text, string(buf))
}

func TestProxyPassesBytesAndEnds(t *testing.T) {
	c := dial(t, startProxy(t))
	ask(t, c, "hello")
	expect(t, c, "hello")
	ask(t, c, "goodbye")
	require.NoError(t, c.(*net.TCPConn).CloseWrite())
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "goodbye", string(rest))
}

func TestProxyKeepsWhatIsCutUntilItIsOver(t *testing.T) {
	for _, w := range []weather{{cutRequests: true}, {cutReplies: true}, {cutRequests: true, cutReplies: true}} {
		p := startProxy(t)
		c := dial(t, p)
		ask(t, c, "before")
		expect(t, c, "before")
		p.set(w)
		ask(t, c, "meanwhile")
		c.SetReadDeadline(time.Now().Add(20 * ms))
		_, err := c.Read(make([]byte, 1))
		require.ErrorContains(t, err, "timeout", "%+v", w)
		c.SetReadDeadline(time.Now().Add(patience))
		p.set(weather{})
		expect(t, c, "meanwhile")
	}
}

func TestProxyDelays(t *testing.T) {
	p := startProxy(t)
	c := dial(t, p)
	p.set(weather{delay: 10 * ms})
	began := conn.Now()
	ask(t, c, "hello")
	expect(t, c, "hello")
	require.GreaterOrEqual(t, conn.Now()-began, 20*ms, "there and back")
}

func TestProxyResetsAndRefuses(t *testing.T) {
	p := startProxy(t)
	gone := func(c net.Conn) {
		t.Helper()
		_, err := c.Read(make([]byte, 1))
		require.ErrorContains(t, err, "reset")
	}
	c := dial(t, p)
	ask(t, c, "hello")
	expect(t, c, "hello")
	p.reset()
	gone(c)

	c = dial(t, p)
	ask(t, c, "hello")
	expect(t, c, "hello")
	p.set(weather{refuse: true})
	gone(c)
	if refused, err := net.Dial("tcp", p.addr()); err == nil {
		gone(refused)
		refused.Close()
	}
	p.set(weather{})
	c = dial(t, p)
	ask(t, c, "hello")
	expect(t, c, "hello")

	p.set(weather{cutRequests: true})
	ask(t, c, "kept")
	p.close() // does not wait for what is kept
	gone(c)
}
