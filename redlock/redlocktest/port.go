package redlocktest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// portTries bounds the search for a free port, and startTime the start of one
// redis-server. Neither is ever reached on a machine that works.
const (
	portTries = 100
	startTime = 30 * time.Second
)

// The ports lie below the range from which systems take the ports of outgoing
// connections. Otherwise a client that redials a killed master would one day get
// its master's port as its own, and be connected to itself; and any process
// could take the port before Restart.
const (
	firstPort = 15000
	blockSize = 400
	blocks    = 42
)

// A block of ports belongs to one process, which listens on the first of them
// for as long as it has masters. Otherwise the tests of two packages, which run side by
// side, would one day start a master at the port of another that is killed just
// then: its clients would be served by it, and Restart would find the port taken.
var block struct {
	sync.Mutex
	users int // Masters and Groups
	guard net.Listener
	first int
	next  int             // of those behind the first, which are given out in turns
	taken map[string]bool // addresses that masters and links have, also while a master is killed
}

// holdBlock is called before masters take their ports, and releaseBlock with their
// addresses when none of them will be started again.
func holdBlock() {
	block.Lock()
	defer block.Unlock()
	block.users++
	for try := 0; block.guard == nil && try < portTries; try++ {
		first := firstPort + blockSize*rand.IntN(blocks)
		if l, err := net.Listen("tcp", localhost(first)); err == nil {
			block.guard, block.first = l, first
		}
	}
}

func releaseBlock(addrs []string) {
	block.Lock()
	defer block.Unlock()
	for _, addr := range addrs {
		delete(block.taken, addr)
	}
	if block.users--; block.users == 0 && block.guard != nil {
		block.guard.Close()
		block.guard, block.taken = nil, nil
	}
}

// takeAddr takes the next address of this process's block that no master has; "" if there
// is none. If the process has no block, any port will do.
func takeAddr() string {
	block.Lock()
	defer block.Unlock()
	if block.guard == nil {
		return localhost(firstPort + rand.IntN(blockSize*blocks))
	}
	if block.taken == nil {
		block.taken = make(map[string]bool)
	}
	for range blockSize - 1 {
		block.next = block.next%(blockSize-1) + 1
		if addr := localhost(block.first + block.next); !block.taken[addr] {
			block.taken[addr] = true
			return addr
		}
	}
	return ""
}

func giveBack(addr string) {
	block.Lock()
	defer block.Unlock()
	delete(block.taken, addr)
}

// listen takes a free port of 127.0.0.1. Nobody else gets it until releaseBlock.
func listen() (*net.TCPListener, error) {
	var errs []error
	for range portTries {
		addr := takeAddr()
		if addr == "" {
			return nil, errors.New("redlocktest: all ports of this process are taken: close masters, or run fewer tests at once")
		}
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return l.(*net.TCPListener), nil
		}
		giveBack(addr) // somebody outside this process has it
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// accept has each connection served that comes, until the listener is closed.
func accept(l *net.TCPListener, serve func(c *net.TCPConn)) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case err == nil:
			serve(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(time.Millisecond) // it was reset already, or we are out of descriptors
		}
	}
}

// freePort returns a port that was free a moment ago.
func freePort() (int, error) {
	l, err := listen()
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func localhost(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
