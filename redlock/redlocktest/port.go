package redlocktest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

// portTries bounds the search for a free port, and startTime the start of one
// redis-server. Neither is ever reached on a machine that works.
const (
	portTries = 100
	startTime = 30 * time.Second
)

// listen takes a free port of 127.0.0.1.
//
// The port lies below the range from which systems take the ports of outgoing
// connections. Otherwise a client that redials a killed master would one day get
// its master's port as its own, and be connected to itself; and any process
// could take the port before Restart.
func listen() (*net.TCPListener, error) {
	var errs []error
	for range portTries {
		l, err := net.Listen("tcp", localhost(15000+rand.IntN(17000)))
		if err == nil {
			return l.(*net.TCPListener), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
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
