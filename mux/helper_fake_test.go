package mux_test

import (
	"cmp"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
)

// A script answers one command of one connection: it returns the bytes to
// write, and false to cut the connection after them.
type script func(args []string) (reply string, goOn bool)

// A fakeMaster speaks just enough of the protocol to be connected, and answers
// everything else by its script: for what a real server will not do.
type fakeMaster struct {
	id     string
	l      net.Listener
	script func() script // one for each connection

	mu    sync.Mutex
	role  string // "master" if empty
	conns map[net.Conn]bool
}

func (f *fakeMaster) setRole(role string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.role = role
}

func (f *fakeMaster) getRole() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.role, "master")
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// newFake starts a scripted master on a free port.
func newFake(t testing.TB, id string, script func() script) *fakeMaster {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return newFakeOn(t, l, id, script)
}

// newFakeOn starts a scripted master that owns the listener.
func newFakeOn(t testing.TB, l net.Listener, id string, script func() script) *fakeMaster {
	f := &fakeMaster{id: id, l: l, script: script, conns: map[net.Conn]bool{}}
	conntest.ListenOn(t, l, f.serve)
	return f
}

func (f *fakeMaster) addr() string { return f.l.Addr().String() }

func (f *fakeMaster) serve(c net.Conn) {
	f.mu.Lock()
	f.conns[c] = true
	f.mu.Unlock()
	answer := f.script()
	conntest.Answer(c, func(args []string) (string, bool) {
		if reply, ok := f.handshake(args); ok {
			return reply, true
		}
		return answer(args)
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	c.Close()
}

func (f *fakeMaster) handshake(args []string) (string, bool) {
	switch strings.ToUpper(args[0]) {
	case "HELLO":
		return "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n" +
			"$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n" + bulk(f.getRole()) + "$7\r\nmodules\r\n*0\r\n", true
	case "CLIENT", "SELECT":
		return "+OK\r\n", true
	case "SCRIPT":
		return "$40\r\n" + strings.Repeat("0", 40) + "\r\n", true
	case "INFO":
		f.mu.Lock()
		defer f.mu.Unlock()
		info := "# Server\r\nredis_version:7.0.15\r\nrun_id:" + f.id + "\r\nuptime_in_seconds:1000\r\n"
		return bulk(info), true
	}
	return "", false
}

// cut ends all connections.
func (f *fakeMaster) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if c, ok := c.(*net.TCPConn); ok {
			c.SetLinger(0)
		}
		c.Close()
	}
}

// send writes to all connections what no command has asked for.
func (f *fakeMaster) send(t testing.TB, text string) {
	require.NoError(t, f.write(text))
}

// write is send, to connections that may be gone.
func (f *fakeMaster) write(text string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if _, err := c.Write([]byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// stop ends it. Then connections to it are refused.
func (f *fakeMaster) stop() {
	f.l.Close()
	f.cut()
	for { // who accepts may be about to see the end
		c, err := net.Dial("tcp", f.addr())
		if err != nil {
			return
		}
		c.Close()
	}
}

func silent() script { return func([]string) (string, bool) { return "", true } }

// steady answers every VOTE with its ballot.
func steady(master int) func() script {
	return func() script {
		return func(args []string) (string, bool) {
			return fmt.Sprintf(":%d\r\n", ballot(args[1], master)), true
		}
	}
}
