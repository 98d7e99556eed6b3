//go:build linux && !redburst_portable

package conn

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Poller waits for many connections at once. It is level-triggered: a connection that
// stays ready is reported by every Wait.
//
// Only one goroutine at a time may call Wait and Poll. Any goroutine may call the other
// methods at any time, also during a Wait, which takes notice. The zero Poller is a
// closed one.
//
// A Poller is one instance of epoll(7). The runtime's own poller watches the descriptor
// of the instance, so a goroutine that waits is parked and holds no thread.
type Poller struct {
	// The runtime watches the descriptor edge-triggered. No wake-up is lost by that:
	// RawConn.Read first forgets the edges seen so far. Then it asks the instance without
	// waiting (epoll_pwait(2) with a timeout of 0), and parks only if that found nothing.
	// What became ready before the question is in the answer. What becomes ready after it
	// makes a new edge, which the runtime keeps until the goroutine parks. An instance that
	// has answered "nothing" has no connection on its ready list any more, so the next one
	// makes an edge. An instance that has answered with events is asked again by the next
	// Wait, before it parks.
	file *os.File
	raw  syscall.RawConn
	// Both are ask, for raw.Read, which parks when it says false, and for raw.Control, which
	// never parks. They are fields because a new method value allocates.
	askOrPark func(fd uintptr) bool
	askOnly   func(fd uintptr)

	// These belong to the goroutine in Wait or Poll.
	kernel [64]unix.EpollEvent // what the last ask has found: the first ready ones
	events [64]Event           // the same in our terms
	ready  int
	err    error         // why the last ask failed
	armed  time.Duration // the deadline of file, on Now's clock; Forever if none

	woken  atomic.Bool // a Wake that no Wait has used up
	closed atomic.Bool
	mu     sync.Mutex // keeps fd open during an epoll_ctl
	fd     int
}

// NewPoller makes an empty Poller with epoll_create1(2). It owns one descriptor until
// Close. The error is that of the system, such as EMFILE.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, syscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, syscallError("fcntl", err)
	}
	p := &Poller{fd: fd, armed: Forever, file: os.NewFile(uintptr(fd), "epoll")}
	// This fails if the runtime's poller does not watch the descriptor.
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		p.file.Close()
		return nil, syscallError("epoll", err)
	}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return nil, syscallError("epoll", err)
	}
	p.askOrPark = p.ask
	p.askOnly = func(fd uintptr) { p.ask(fd) }
	return p, nil
}

// Add starts to watch c with epoll_ctl(2). Its events carry id. A Conn may be in several
// Pollers, but only once in each: a second Add is an error.
func (p *Poller) Add(c *Conn, id uint64, want Interest) error { return p.add(c.sock, id, want) }

// Modify changes the interest in c, and its id. A Wait that is under way takes notice. It
// is an error if c is not in the Poller.
func (p *Poller) Modify(c *Conn, id uint64, want Interest) error { return p.modify(c.sock, id, want) }

// Remove stops watching c. Call it before Close or Abort of the Conn. These remove it too,
// but while the process starts a child, the kernel can report the connection a moment
// longer. Events that Wait or Poll has returned before stay valid. It is an error if c is
// not in the Poller.
func (p *Poller) Remove(c *Conn) error { return p.remove(c.sock) }

func (p *Poller) add(s *sock, id uint64, want Interest) error {
	return p.control(unix.EPOLL_CTL_ADD, s, id, want)
}

func (p *Poller) modify(s *sock, id uint64, want Interest) error {
	return p.control(unix.EPOLL_CTL_MOD, s, id, want)
}

func (p *Poller) remove(s *sock) error { return p.control(unix.EPOLL_CTL_DEL, s, 0, 0) }

func (p *Poller) control(op int, s *sock, id uint64, want Interest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() || p.raw == nil {
		return ErrPollerClosed
	}
	if s.closed() {
		return errClosed
	}
	ev := unix.EpollEvent{Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	if want&Readable != 0 {
		ev.Events |= unix.EPOLLIN
	}
	if want&Writable != 0 {
		ev.Events |= unix.EPOLLOUT
	}
	if want&Hangup != 0 {
		ev.Events |= unix.EPOLLRDHUP
	}
	return syscallError("epoll_ctl", unix.EpollCtl(p.fd, op, s.fd, &ev))
}

// Wait parks until a connection is ready, until [Now] has reached until ([Forever] for no
// limit), or until Wake. It returns what is ready: nothing after a timeout or a Wake,
// unless something became ready just then. The slice is valid until the next Wait or Poll.
//
// Wait fails only with [ErrPollerClosed] or a kernel error. If the machine is suspended
// meanwhile, Wait may return late, by at most the time that was left.
func (p *Poller) Wait(until time.Duration) ([]Event, error) {
	// No interleaving of Wait and Wake loses a Wake. Wait (a) arms the deadline of the file,
	// if the armed one is too late, (b) uses up the flag, (c) parks. Wake (1) sets the flag,
	// (2) sets a deadline in the past. If 1 comes before b, Wait sees the flag and does not
	// park; 2 may come later, and only makes one (c) return at once for nothing, and Wait go
	// round once more. If 1 comes after b, then 2 comes after a, so no arming undoes it: (c)
	// returns at once, and the next (b) uses up the flag.
	if p.raw == nil {
		return nil, ErrPollerClosed
	}
	for {
		// A deadline that is too early stays: to arm anew once for each deadline that
		// passes is cheaper than once for each Wait.
		if p.armed > until && !p.arm(until) {
			return p.Poll()
		}
		if p.woken.Load() && p.woken.Swap(false) {
			return p.Poll()
		}
		err := p.raw.Read(p.askOrPark)
		if err == nil {
			return p.answer()
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, p.closedOr(err)
		}
		// The deadline passed, or a Wake has moved it into the past.
		if !p.arm(until) {
			return p.Poll()
		}
	}
}

// Poll returns what is ready now. It never parks, and leaves a Wake to the next Wait. Its
// errors and its slice are those of Wait.
func (p *Poller) Poll() ([]Event, error) {
	if p.raw == nil {
		return nil, ErrPollerClosed
	}
	// Unlike RawConn.Read, Control ignores the deadline of the file.
	if err := p.raw.Control(p.askOnly); err != nil {
		return nil, p.closedOr(err)
	}
	return p.answer()
}

// Wake makes the Wait that is under way return at once, or else the next one. Several
// calls before that count as one.
func (p *Poller) Wake() {
	p.woken.Store(true)
	p.file.SetReadDeadline(time.Unix(1, 0))
}

// Close frees the descriptor. A Wait that is under way returns [ErrPollerClosed], and so
// does every later call, Close included. The connections stay open.
func (p *Poller) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Swap(true) || p.raw == nil {
		return ErrPollerClosed
	}
	return p.file.Close()
}

// arm sets the deadline of the file. It reports false, and sets none, if until has passed.
func (p *Poller) arm(until time.Duration) bool {
	var deadline time.Time
	if until != Forever {
		now := Now()
		if until <= now {
			return false
		}
		deadline = time.Now().Add(until - now)
	}
	p.armed = until
	p.file.SetReadDeadline(deadline)
	return true
}

func (p *Poller) closedOr(err error) error {
	if p.closed.Load() {
		return ErrPollerClosed
	}
	return syscallError("epoll", err)
}

// syscallError names the package and the call in an error of the system; nil stays nil.
func syscallError(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("conn: %w", os.NewSyscallError(call, err))
}

// ask asks the kernel for events without waiting, with epoll_pwait(2), and reports whether
// Wait has something to return. The call cannot block, so it is a raw one: the scheduler
// need not know of it.
func (p *Poller) ask(fd uintptr) bool {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd,
			uintptr(unsafe.Pointer(&p.kernel[0])), uintptr(len(p.kernel)), 0, 0, 0)
		if e == unix.EINTR {
			continue
		}
		p.ready, p.err = 0, nil
		if e != 0 {
			p.err = syscallError("epoll_wait", e)
			return true
		}
		p.ready = int(n)
		return n > 0
	}
}

// answer returns what the last ask has found, in our terms.
func (p *Poller) answer() ([]Event, error) {
	for i := range p.kernel[:p.ready] {
		k, e := &p.kernel[i], &p.events[i]
		e.ID = uint64(uint32(k.Fd)) | uint64(uint32(k.Pad))<<32
		e.Ready = 0
		if k.Events&unix.EPOLLIN != 0 {
			e.Ready |= Readable
		}
		if k.Events&unix.EPOLLOUT != 0 {
			e.Ready |= Writable
		}
		if k.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			e.Ready |= Hangup
		}
	}
	return p.events[:p.ready], p.err
}
