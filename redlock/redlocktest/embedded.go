package redlocktest

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
)

// An embedded is a master inside this process: a miniredis that is served by our
// own listener, so that every byte passes a gate which Pause can shut.
type embedded struct {
	address string
	secret  string // that clients must know; empty for none

	mu        sync.Mutex
	listener  *net.TCPListener // nil while killed
	accepting chan struct{}    // closed when the listener's loop has ended
	redis     *miniredis.Miniredis
	server    *miniserver.Server
	gate      *gate
	paused    bool
}

func newEmbedded(secret string) (*embedded, error) {
	l, err := listen()
	if err != nil {
		return nil, err
	}
	e := &embedded{address: l.Addr().String(), secret: secret}
	return e, e.start(l)
}

// start serves an empty miniredis on l.
func (e *embedded) start(l *net.TCPListener) error {
	redis := miniredis.NewMiniRedis()
	// Dialling it in memory is how a miniredis is started without a listener.
	unused, err := redis.Dial()
	if err != nil {
		l.Close()
		return err
	}
	unused.Close()
	redis.ClockTTL(true)
	if e.secret != "" {
		redis.RequireAuth(e.secret)
	}
	redis.Server().SetPreHook(newIdentity().info(redis.Server()))
	e.listener, e.redis, e.server, e.gate, e.paused = l, redis, redis.Server(), newGate(), false
	e.accepting = make(chan struct{})
	server, gate, done := e.server, e.gate, e.accepting
	go func() {
		defer close(done)
		accept(l, func(c *net.TCPConn) { server.ServeConn(&gatedConn{c, gate}) })
	}()
	return nil
}

func (e *embedded) addr() string { return e.address }

func (e *embedded) pid() int { return 0 }

func (e *embedded) state() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.listener == nil:
		return ErrDown
	case e.paused:
		return ErrPaused
	}
	return nil
}

func (e *embedded) control() (network, address, password string) { return "tcp", e.address, e.secret }

func (e *embedded) pause() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return ErrDown
	}
	if !e.paused {
		e.gate.close()
		e.paused = true
	}
	return nil
}

func (e *embedded) resume() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return ErrDown
	}
	if e.paused {
		e.gate.open(false)
		e.paused = false
	}
	return nil
}

func (e *embedded) kill() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end()
	return nil
}

func (e *embedded) end() {
	if e.listener == nil {
		return
	}
	e.listener.Close()
	<-e.accepting
	if e.paused {
		e.gate.open(true) // what waits there must not pass after all
	}
	// Not Miniredis.Close: it would take the server away from under a script in progress.
	e.redis.CtxCancel()
	e.server.Close()
	e.listener, e.paused = nil, false
}

func (e *embedded) restart() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end()
	return again(func() error {
		l, err := net.Listen("tcp", e.address)
		if err != nil {
			return fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return e.start(l.(*net.TCPListener))
	})
}

// An identity tells one start of a master from every other: a client has to know
// whether a master that is back has lost its keys. A miniredis has none.
type identity struct {
	run, replication string // 40 hex digits
	started          time.Time
}

func newIdentity() identity {
	digits := func() string {
		b := make([]byte, 20)
		rand.Read(b)
		return hex.EncodeToString(b)
	}
	return identity{digits(), digits(), time.Now()}
}

// embeddedVersion is what a miniredis says to HELLO.
const embeddedVersion = "8.4.0"

// info answers INFO in the place of a miniredis, which knows two of the sections.
func (id identity) info(server *miniserver.Server) miniserver.Hook {
	return func(c *miniserver.Peer, cmd string, args ...string) bool {
		if cmd != "INFO" {
			return false
		}
		text := ""
		section := func(name string, lines ...any) {
			asked := len(args) == 0
			for _, arg := range args {
				switch strings.ToLower(arg) {
				case strings.ToLower(name), "all", "default", "everything":
					asked = true
				}
			}
			if !asked {
				return
			}
			text += "# " + name + "\r\n"
			for i := 0; i < len(lines); i += 2 {
				text += fmt.Sprintf("%s:%v\r\n", lines[i], lines[i+1])
			}
			text += "\r\n"
		}
		section("Server",
			"redis_version", embeddedVersion,
			"redis_mode", "standalone",
			"run_id", id.run,
			"uptime_in_seconds", int(time.Since(id.started).Seconds()),
			"server_time_usec", time.Now().UnixMicro())
		section("Clients",
			"connected_clients", server.ClientsLen())
		section("Stats",
			"total_connections_received", server.TotalConnections(),
			"total_commands_processed", server.TotalCommands())
		section("Replication",
			"role", "master",
			"connected_slaves", 0,
			"master_replid", id.replication)
		if text == "" {
			return false // a miniredis says that there is no such section
		}
		c.WriteBulk(text)
		return true
	}
}

// A gate is passed by everything that goes into or out of a master. Pause shuts it.
type gate struct {
	mu      sync.Mutex
	changed sync.Cond // whatever follows
	shut    bool
	dead    bool // killed: nothing passes any more
	writing map[*gatedConn]struct{}
}

func newGate() *gate {
	g := &gate{writing: make(map[*gatedConn]struct{})}
	g.changed.L = &g.mu
	return g
}

// close shuts the gate, and returns when nobody writes. A client that does not read
// would make that last, so writes are interrupted.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for c := range g.writing {
		c.SetWriteDeadline(time.Unix(0, 1))
	}
	for len(g.writing) > 0 {
		g.changed.Wait()
	}
}

// open lets pass what waits at the gate, or sends it away if the master is dead.
func (g *gate) open(dead bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.dead = false, dead
	g.changed.Broadcast()
}

// pass waits until the gate is open. It is called with mu.
func (g *gate) pass() error {
	for g.shut {
		g.changed.Wait()
	}
	if g.dead {
		return net.ErrClosed
	}
	return nil
}

// A gatedConn is a connection whose server is frozen while the gate is shut: it
// takes in no command and gets no reply out. To the client that looks as if the
// server had been stopped by a signal, since both are then up to the kernel. As
// there, the kernel still delivers what it was given before. One thing is not as
// there: commands that the server had taken in are executed. Their replies wait.
type gatedConn struct {
	net.Conn
	gate *gate
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	if err := c.gate.pass(); err != nil {
		return 0, err
	}
	return n, err
}

// Write goes on with the rest when the gate has interrupted it and opens again. (Windows
// may send more of an interrupted write than it says. Only there can a client that did
// not read get a part of a reply twice.) A miniredis does not write to a connection from
// two goroutines at once.
func (c *gatedConn) Write(p []byte) (n int, err error) {
	for {
		m, err := c.write(p[n:])
		if n += m; !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

func (c *gatedConn) write(p []byte) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.endWrite()
	return c.Conn.Write(p)
}

func (c *gatedConn) beginWrite() error {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	if err := c.gate.pass(); err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	c.gate.writing[c] = struct{}{}
	return nil
}

func (c *gatedConn) endWrite() {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	delete(c.gate.writing, c)
	c.gate.changed.Broadcast()
}
