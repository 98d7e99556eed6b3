//go:build linux && !redburst_portable

package conn

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	bridgeBuffer = 16 << 10               // of each direction, beside the kernel's
	drainTimeout = 100 * time.Millisecond // how long what was written is sent on after close
)

// sockOf makes a connection of the user's own a sock, and owns it from then on, also if it fails.
func sockOf(nc net.Conn) (*sock, error) {
	switch own := nc.(type) {
	case *net.TCPConn:
		return adopt(own, true)
	case *net.UnixConn:
		return adopt(own, false)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		nc.Close()
		return nil, os.NewSyscallError("socketpair", err)
	}
	file := os.NewFile(uintptr(pair[1]), "bridge")
	defer file.Close()
	far, err := net.FileConn(file)
	if err != nil {
		nc.Close()
		unix.Close(pair[0])
		return nil, err
	}
	s := &sock{fd: pair[0], bridge: &bridge{nc: nc, far: far.(*net.UnixConn)}}
	go s.bridge.run()
	return s, nil
}

// adopt takes the descriptor of a socket by fcntl(2) (F_DUPFD_CLOEXEC), and closes the socket's own.
func adopt(nc interface {
	net.Conn
	syscall.Conn
}, tcp bool) (*sock, error) {
	defer nc.Close()
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &sock{fd: -1}
	if failed := raw.Control(func(fd uintptr) { s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if tcp {
		if err := s.tune(); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// A bridge leads from a sock to a connection that is no socket, over a pair of sockets, whose buffers the kernel bounds, and
// by two goroutines. So nothing else has to know of such connections. The goroutines end, and the connection and the
// far end of the pair are closed, after the sock is, and when the connection's Close ends its Read and Write.
type bridge struct {
	nc      net.Conn
	far     *net.UnixConn // the other end of the pair
	aborted atomic.Bool   // what was not sent is to be discarded
	closing sync.Once
	err     atomic.Pointer[error] // why it ended, unless it was by EOF
}

// run brings to nc what the sock writes, until the sock is closed or nc fails.
func (b *bridge) run() {
	received := make(chan struct{})
	go func() {
		defer close(received)
		b.carry(b.far, b.nc)
		b.far.CloseWrite() // the sock reads what has come, and then the end
	}()
	b.carry(b.nc, b.far)
	b.far.CloseRead()
	b.far.CloseWrite()
	b.close()
	<-received
	b.far.Close()
}

// carry is no io.Copy, which would go round Read and Write of a type that embeds a net.TCPConn.
func (b *bridge) carry(to, from net.Conn) {
	buf := make([]byte, bridgeBuffer)
	for {
		n, err := from.Read(buf)
		if n > 0 && !b.aborted.Load() {
			if _, failed := to.Write(buf[:n]); failed != nil {
				err = failed
			}
		}
		if err != nil {
			if err = foreign(err); err != io.EOF {
				b.err.CompareAndSwap(nil, &err)
			}
			return
		}
	}
}

func (b *bridge) close() { b.closing.Do(func() { b.nc.Close() }) }

// failed returns why the user's connection has ended, if that is more than the end of a stream.
func (b *bridge) failed() error {
	if b == nil {
		return nil
	}
	if err := b.err.Load(); err != nil {
		return *err
	}
	return nil
}

// abort discards what is under way, before the sock is closed.
func (b *bridge) abort() {
	if b == nil {
		return
	}
	b.aborted.Store(true)
	if l, ok := b.nc.(interface{ SetLinger(int) error }); ok {
		l.SetLinger(0)
	}
	b.endWithin(0)
}

// endWithin closes the user's connection after a while, if that is not done by then. It does not wait: nobody knows how long
// a Close takes that is not ours.
func (b *bridge) endWithin(d time.Duration) {
	if b != nil {
		time.AfterFunc(d, b.close)
	}
}
