//go:build linux && !redburst_portable

package conn

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// When the kernel gives a master up, see tcp(7).
const (
	userTimeout       = 10 * time.Second // TCP_USER_TIMEOUT: bytes stay unacknowledged
	keepaliveIdle     = 10 * time.Second // TCP_KEEPIDLE: nothing is heard; then it probes
	keepaliveInterval = 5 * time.Second  // TCP_KEEPINTVL: between two probes
	keepaliveProbes   = 2                // TCP_KEEPCNT: probes without an answer
)

// sock is a connected, non-blocking stream socket. It owns its descriptor until close or
// abort. Its methods make the system calls that their comments name, and never wait, but for
// those of dialSock.
type sock struct {
	fd     int     // -1 once closed
	bridge *bridge // what leads on from here, if the user's connection is no socket
}

// closed reports whether s was closed. The sock of a zero Conn is nil, and counts as closed.
func (s *sock) closed() bool { return s == nil || s.fd < 0 }

// dialSock makes a socket with socket(2) (SOCK_NONBLOCK, SOCK_CLOEXEC) and connects it to one
// address. It parks the goroutine until the socket is connected, the peer refuses, or ctx
// ends. An error of the system names the call.
func dialSock(ctx context.Context, p *Poller, to target) (*sock, error) {
	sa, domain, err := to.sockaddr()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &sock{fd: fd}
	if domain != unix.AF_UNIX {
		err = s.tune()
	}
	if err == nil {
		err = s.connect(ctx, p, sa)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// sockaddr returns the target in the terms of the kernel, and its address family.
func (t target) sockaddr() (unix.Sockaddr, int, error) {
	if t.path != "" {
		if len(t.path) >= len(unix.RawSockaddrUnix{}.Path) {
			return nil, 0, errors.New("the path is too long for a Unix socket")
		}
		return &unix.SockaddrUnix{Name: t.path}, unix.AF_UNIX, nil
	}
	ip, port := t.addr.Addr(), int(t.addr.Port())
	if ip.Is4() {
		return &unix.SockaddrInet4{Addr: ip.As4(), Port: port}, unix.AF_INET, nil
	}
	zone, err := zoneID(ip)
	return &unix.SockaddrInet6{Addr: ip.As16(), Port: port, ZoneId: zone}, unix.AF_INET6, err
}

// zoneID returns the index of the interface that an IPv6 address names, such as eth0 in
// fe80::1%eth0.
func zoneID(ip netip.Addr) (uint32, error) {
	if ip.Zone() == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(ip.Zone(), 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(ip.Zone())
	if err != nil {
		return 0, err
	}
	return uint32(i.Index), nil
}

// tune sets the options of a TCP socket with setsockopt(2). Only a failure of TCP_NODELAY is an
// error: without the others the client only notices later that a master has vanished.
func (s *sock) tune() error {
	if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepaliveIdle.Seconds()))
	unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepaliveInterval.Seconds()))
	unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepaliveProbes)
	return nil
}

// connect starts connect(2), parks until the socket is writable, and takes the result from
// SO_ERROR (getsockopt(2)) and getpeername(2).
func (s *sock) connect(ctx context.Context, p *Poller, sa unix.Sockaddr) error {
	err := unix.Connect(s.fd, sa)
	for err == unix.EAGAIN {
		// The backlog of a Unix socket is full. Nothing tells when there is room again.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
			err = unix.Connect(s.fd, sa)
		}
	}
	if err != nil && err != unix.EINPROGRESS && err != unix.EINTR {
		return os.NewSyscallError("connect", err)
	}
	if err := p.add(s, 0, Writable); err != nil {
		return err
	}
	defer p.remove(s)
	for {
		if err := p.await(ctx, s, Writable); err != nil {
			return err
		}
		soerr, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && soerr != 0 {
			err = unix.Errno(soerr)
		}
		if err != nil {
			return os.NewSyscallError("connect", err)
		}
		// A socket can be reported writable before it is connected. Only the address of the
		// peer proves that it is.
		peer, err := unix.Getpeername(s.fd)
		if err == nil {
			return s.refuseSelf(peer)
		}
		if err != unix.ENOTCONN {
			return os.NewSyscallError("getpeername", err)
		}
	}
}

// refuseSelf returns ECONNREFUSED if the socket is connected to itself, by getsockname(2). That
// happens in a redial of a dead local master, if the kernel chooses the port of the master as
// the source port.
func (s *sock) refuseSelf(peer unix.Sockaddr) error {
	self, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	same := false
	switch peer := peer.(type) {
	case *unix.SockaddrInet4:
		self, ok := self.(*unix.SockaddrInet4)
		same = ok && self.Port == peer.Port && self.Addr == peer.Addr
	case *unix.SockaddrInet6:
		self, ok := self.(*unix.SockaddrInet6)
		same = ok && self.Port == peer.Port && self.Addr == peer.Addr
	}
	if same {
		return os.NewSyscallError("connect", unix.ECONNREFUSED)
	}
	return nil
}

// Read reads what has arrived, with recv(2) and MSG_DONTWAIT. It returns (0, nil) if nothing
// has arrived, and io.EOF after the last byte. The call cannot block, so it is a raw one: the
// scheduler need not know of it.
func (s *sock) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd),
			uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case e == 0 && n == 0:
			return 0, cmp.Or(s.bridge.failed(), io.EOF)
		case e == 0:
			return int(n), nil
		case e == unix.EAGAIN:
			return 0, nil
		case e != unix.EINTR:
			return 0, s.error("recvfrom", e)
		}
	}
}

// Write writes as much as the socket accepts now, which may be nothing, with send(2),
// MSG_DONTWAIT and MSG_NOSIGNAL. It is a raw call as in Read.
func (s *sock) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd),
			uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case e == 0:
			return int(n), nil
		case e == unix.EAGAIN:
			return 0, nil
		case e != unix.EINTR:
			return 0, s.error("sendto", e)
		}
	}
}

// error makes an error of a failed call. A closed socket has no descriptor, so its calls fail
// with EBADF.
func (s *sock) error(call string, e unix.Errno) error {
	if s.fd < 0 {
		return errClosed
	}
	return cmp.Or(s.bridge.failed(), os.NewSyscallError(call, e))
}

// close frees the descriptor with close(2). The kernel still delivers what was written.
func (s *sock) close() error {
	if s.closed() {
		return errClosed
	}
	fd := s.fd
	s.fd = -1
	defer s.bridge.endWithin(drainTimeout)
	// Linux frees the descriptor even if close is interrupted.
	if err := unix.Close(fd); err != nil && err != unix.EINTR {
		return os.NewSyscallError("close", err)
	}
	return nil
}

// abort is close with SO_LINGER of 0 s: it resets a TCP connection and discards what the
// kernel has not delivered.
func (s *sock) abort() error {
	if !s.closed() {
		unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		s.bridge.abort()
	}
	return s.close()
}
