//go:build !linux || redburst_portable

package conn

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	sockBuffer   = 64 << 10               // bound of each direction's buffer
	drainTimeout = 100 * time.Millisecond // how long close waits for what Write has accepted
)

// sock gives a blocking net.Conn the non-blocking contract of the raw socket. One goroutine
// reads ahead into a bounded buffer, and one writes from another. Both end before close or
// abort returns.
type sock struct {
	nc      net.Conn
	foreign bool // nobody knows how long its Close takes, nor whether it has deadlines
	wg      sync.WaitGroup
	drained chan struct{} // closed when writeBehind has ended

	mu      sync.Mutex
	state   sync.Cond // with mu: the two goroutines wait here for room and for bytes
	in      []byte    // received from nc and not yet returned by Read
	inErr   error     // why no more will be received
	out     []byte    // accepted by Write and not yet sent by nc
	outErr  error     // why no more will be sent
	closed  bool
	pollers []*Poller // to signal after changes
}

// dialSock connects to one address. It parks the goroutine until the socket is connected, the
// peer refuses, or ctx ends.
func dialSock(ctx context.Context, _ *Poller, to target) (*sock, error) {
	network, address := "tcp", to.addr.String()
	if to.path != "" {
		network, address = "unix", to.path
	}
	nc, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) { // the Dialer is told of it by a timer of its own
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, withoutAddrs(err)
	}
	return sockOf(nc)
}

// sockOf makes a connection a sock, and owns it from then on. It never fails on this system.
func sockOf(nc net.Conn) (*sock, error) {
	s := &sock{nc: nc, drained: make(chan struct{})}
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		s.foreign = true
	}
	s.state.L = &s.mu
	s.wg.Go(s.readAhead)
	s.wg.Go(s.writeBehind)
	return s, nil
}

// readAhead receives until the buffer is full, and goes on when Read has made room.
func (s *sock) readAhead() {
	buf := make([]byte, readBuffer)
	for {
		n, err := s.nc.Read(buf)
		s.mu.Lock()
		s.in = append(s.in, buf[:n]...)
		s.inErr = foreign(withoutAddrs(err))
		s.changed()
		for len(s.in) > sockBuffer-len(buf) && !s.closed {
			s.state.Wait()
		}
		done := err != nil || s.closed
		s.mu.Unlock()
		if done {
			return
		}
	}
}

// writeBehind sends what Write has accepted.
func (s *sock) writeBehind() {
	defer close(s.drained)
	var buf []byte
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.out) == 0 && !s.closed {
			s.state.Wait()
		}
		if len(s.out) == 0 {
			return
		}
		buf = append(buf[:0], s.out...)
		s.mu.Unlock()
		_, err := s.nc.Write(buf)
		s.mu.Lock()
		s.out = s.out[:copy(s.out, s.out[min(len(buf), len(s.out)):])]
		s.outErr = foreign(withoutAddrs(err))
		s.changed()
		if err != nil {
			return
		}
	}
}

// changed wakes the goroutines of s and the Pollers. mu is held.
func (s *sock) changed() {
	s.state.Broadcast()
	for _, p := range s.pollers {
		p.signal()
	}
}

// Read returns what has arrived: (0, nil) if nothing has, and the error after the last byte.
func (s *sock) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosed
	}
	if len(s.in) == 0 {
		return 0, cmp.Or(s.inErr, s.outErr) // what cannot be written to is of no use either
	}
	n := copy(p, s.in)
	s.in = s.in[:copy(s.in, s.in[n:])]
	s.state.Broadcast()
	return n, nil
}

// Write accepts what there is room for, which may be nothing.
func (s *sock) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosed
	}
	if s.outErr != nil {
		return 0, s.outErr
	}
	n := min(len(p), sockBuffer-len(s.out))
	s.out = append(s.out, p[:n]...)
	s.state.Broadcast()
	return n, nil
}

// ready returns what a Poller would report now.
func (s *sock) ready() (is Interest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0
	}
	if len(s.in) > 0 || s.inErr != nil || s.outErr != nil {
		is |= Readable
	}
	if len(s.out) < sockBuffer || s.outErr != nil {
		is |= Writable
	}
	if s.inErr != nil || s.outErr != nil {
		is |= Hangup
	}
	return is
}

// watch makes s signal p after changes, or no longer. It reports false if s is closed, so that
// there will be no changes.
func (s *sock) watch(p *Poller, on bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pollers = slices.DeleteFunc(s.pollers, func(q *Poller) bool { return q == p })
	if on && !s.closed {
		s.pollers = append(s.pollers, p)
	}
	return !on || !s.closed
}

// close first sends what Write has accepted, for up to drainTimeout.
func (s *sock) close() error {
	if s == nil { // of a zero Conn
		return errClosed
	}
	s.nc.SetWriteDeadline(time.Now().Add(drainTimeout))
	return s.shutdown(false)
}

// abort discards what Write has accepted, here and in the kernel.
func (s *sock) abort() error {
	if s == nil { // of a zero Conn
		return errClosed
	}
	if l, ok := s.nc.(interface{ SetLinger(int) error }); ok {
		l.SetLinger(0)
	}
	return s.shutdown(true)
}

func (s *sock) shutdown(discard bool) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	s.closed = true
	if discard {
		s.out = nil
	}
	pollers := s.pollers
	s.pollers = nil
	s.state.Broadcast()
	s.mu.Unlock()
	for _, p := range pollers {
		p.remove(s)
	}
	if s.foreign {
		go s.end(discard, time.After(drainTimeout))
		return nil
	}
	return s.end(discard, nil)
}

// end closes nc when what Write has accepted is sent, or it is late, and waits for the goroutines.
func (s *sock) end(discard bool, late <-chan time.Time) error {
	if !discard {
		select {
		case <-s.drained:
		case <-late:
		}
	}
	err := s.nc.Close()
	s.wg.Wait()
	return err
}

// withoutAddrs returns err without the addresses that package net puts in front of it, because an
// [Error] names the master already.
func withoutAddrs(err error) error {
	if op, ok := err.(*net.OpError); ok {
		return op.Err
	}
	return err
}
