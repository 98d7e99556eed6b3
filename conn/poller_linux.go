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

// Poller waits for many connections at once. It is level-triggered: what is ready
// and not dealt with is reported again by the next Wait.
//
// Wait and Poll are for one goroutine at a time; everything else may be called by any
// goroutine at any time, also during a Wait, which takes notice.
//
// It is one epoll instance, and the descriptor of that is registered with the
// runtime's own poller, so that waiting parks the goroutine and holds no thread. The
// runtime watches it edge-triggered, and no wake-up is lost by that: RawConn.Read
// first forgets the edges seen so far, then asks the instance without waiting
// (epoll_wait with a timeout of 0), and parks only if that found nothing. What becomes
// ready before the question is found by it, and what becomes ready after it makes a
// new edge, which the runtime keeps until the goroutine parks. An instance that
// answered "nothing" has taken every connection off its ready list, so that whichever
// comes next is an edge; one that answered with events is asked again by the next
// Wait, before it parks.
type Poller struct {
	file *os.File
	raw  syscall.RawConn
	take func(fd uintptr) bool // p.takeReady; kept, as making a method value allocates
	look func(fd uintptr)      // p.takeReady without the answer

	// Of the goroutine in Wait.
	kernel [64]unix.EpollEvent
	events [64]Event
	ready  int           // of events
	err    error         // of the last epoll_wait
	armed  time.Duration // deadline of file as we set it last; Forever if none

	woken  atomic.Bool
	closed atomic.Bool
	mu     sync.Mutex // keeps fd open during an epoll_ctl
	fd     int
}

// NewPoller makes an empty Poller. It owns one descriptor until Close.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, failed("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, failed("fcntl", err)
	}
	p := &Poller{fd: fd, armed: Forever, file: os.NewFile(uintptr(fd), "epoll")}
	// This fails if the runtime's poller has not taken the descriptor.
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		p.file.Close()
		return nil, failed("epoll", err)
	}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return nil, failed("epoll", err)
	}
	p.take = p.takeReady
	p.look = func(fd uintptr) { p.takeReady(fd) }
	return p, nil
}

// Add starts to watch c, whose events will carry id. One Conn may be in several
// Pollers, but only once in each.
func (p *Poller) Add(c *Conn, id uint64, want Interest) error { return p.add(c.sock, id, want) }

// Modify changes what is wanted of c, and its id. A Wait that is under way sees it.
func (p *Poller) Modify(c *Conn, id uint64, want Interest) error { return p.modify(c.sock, id, want) }

// Remove stops watching c. Call it before Close or Abort of the Conn: they also
// remove it, but while a child process is being started the kernel can go on
// reporting it for a moment. Events taken before the call are not taken back.
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
	return failed("epoll_ctl", unix.EpollCtl(p.fd, op, s.fd, &ev))
}

// Wait parks until a connection is ready, until the clock of [Now] has reached until
// ([Forever] for no limit), or until Wake, and returns what is ready: nothing after a
// timeout or a Wake, unless something became ready just then. The slice is valid until
// the next Wait or Poll. The only error is [ErrPollerClosed], short of a fault of the
// kernel. A wait during which the machine was suspended can end late by at most what
// was left of it.
//
// The interleavings of Wait and Wake. Wait (a) arms the deadline of the file, if the
// armed one will not do, (b) takes the flag, (c) parks. Wake (1) sets the flag, (2)
// sets a deadline in the past. If 1 comes before b, Wait sees the flag and does not
// park; its 2 may come later and only makes some (c) return at once for nothing, and
// Wait go round again. If 1 comes after b, then 2 comes after a, so no arming undoes
// it: (c) returns, or is ended, at once, and the next (b) takes the flag.
func (p *Poller) Wait(until time.Duration) ([]Event, error) {
	if p.raw == nil {
		return nil, ErrPollerClosed
	}
	for {
		// An earlier deadline is left as it is: re-arming once per deadline that
		// passes is cheaper than once per Wait.
		if p.armed > until && !p.arm(until) {
			return p.Poll()
		}
		if p.woken.Load() && p.woken.Swap(false) {
			return p.Poll()
		}
		err := p.raw.Read(p.take)
		if err == nil {
			return p.taken()
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

// Poll is Wait without waiting. It takes no Wake.
func (p *Poller) Poll() ([]Event, error) {
	if p.raw == nil {
		return nil, ErrPollerClosed
	}
	// Unlike Read, Control asks for no deadline.
	if err := p.raw.Control(p.look); err != nil {
		return nil, p.closedOr(err)
	}
	return p.taken()
}

// Wake makes the Wait that is under way, or else the next one, return at once.
// Several calls before that count as one. Any goroutine may call it.
func (p *Poller) Wake() {
	p.woken.Store(true)
	p.file.SetReadDeadline(time.Unix(1, 0))
}

// Close frees the descriptor. A Wait that is under way, and every later call, returns
// [ErrPollerClosed]. The connections stay open.
func (p *Poller) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Swap(true) || p.raw == nil {
		return ErrPollerClosed
	}
	return p.file.Close()
}

// arm sets the deadline of the file, unless it has passed.
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
	return failed("epoll", err)
}

// failed names the package and the call in an error of the system; nil stays nil.
func failed(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("conn: %w", os.NewSyscallError(call, err))
}

// takeReady takes the kernel's events without waiting, and reports whether there is
// anything to tell. The call cannot block, so the scheduler is not told of it.
func (p *Poller) takeReady(fd uintptr) bool {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd,
			uintptr(unsafe.Pointer(&p.kernel[0])), uintptr(len(p.kernel)), 0, 0, 0)
		if e == unix.EINTR {
			continue
		}
		p.ready, p.err = 0, nil
		if e != 0 {
			p.err = failed("epoll_wait", e)
			return true
		}
		p.ready = int(n)
		return n > 0
	}
}

func (p *Poller) taken() ([]Event, error) {
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
