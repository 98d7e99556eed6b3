package redlocktest

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
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

	mu        sync.Mutex
	listener  *net.TCPListener // nil while killed
	accepting chan struct{}    // closed when the listener's loop has ended
	redis     *miniredis.Miniredis
	server    *miniserver.Server
	gate      *gate
	paused    bool
}

func newEmbedded() (*embedded, error) {
	l, err := listen()
	if err != nil {
		return nil, err
	}
	e := &embedded{address: l.Addr().String()}
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
	redis.Server().SetPreHook(newIdentity().info(redis.Server()))
	e.listener, e.redis, e.server, e.gate, e.paused = l, redis, redis.Server(), new(gate), false
	e.accepting = make(chan struct{})
	go accept(l, e.server, e.gate, e.accepting)
	return nil
}

func accept(l *net.TCPListener, server *miniserver.Server, gate *gate, done chan struct{}) {
	defer close(done)
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			server.ServeConn(&gatedConn{c, gate})
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(time.Millisecond) // out of descriptors
		}
	}
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

func (e *embedded) control() (network, address, password string) { return "tcp", e.address, "" }

func (e *embedded) pause() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.listener == nil {
		return ErrDown
	}
	if !e.paused {
		e.gate.Lock()
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
		e.gate.Unlock()
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
		e.gate.dead = true // what waits there must not pass after all
		e.gate.Unlock()
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
			"uptime_in_seconds", int(time.Since(id.started).Seconds()))
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

// A gate is passed by everything that goes into or out of a master. Who pauses
// the master holds it locked.
type gate struct {
	sync.RWMutex
	dead bool // killed while it was paused
}

// A gatedConn is a connection whose server is frozen while the gate is locked:
// it takes in no command and gets no reply out. To the client that looks as if
// the server had been stopped by a signal, since both are then up to the kernel.
type gatedConn struct {
	net.Conn
	gate *gate
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.gate.dead {
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.gate.dead {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}
