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

	"github.com/redburst/redburst/conn/clock"
)

// Poller waits for many connections at once. It is level-triggered: a connection that
// stays ready is reported by every Wait.
//
// Only one goroutine at a time may call Wait and Poll. Any goroutine may call the other
// methods at any time. A Wait that is under way takes notice. The zero Poller is a closed one.
//
// A Poller is one instance of epoll(7). The runtime's own poller watches the descriptor
// of the instance, so a goroutine that waits is parked and holds no thread. With
// [NewSinglePoller] it is the connection that the runtime watches.
type Poller struct {
	all waitPoint // at the instance

	// Of a Poller from NewSinglePoller:
	single bool
	conn   *singleConn                // its connection; nil if there is none. Guarded by mu
	direct atomic.Pointer[directWait] // how Wait parks at the connection itself; nil to park at the instance

	// These belong to the goroutine in Wait or Poll.
	kernel [64]unix.EpollEvent // what the last query has found: the first ready ones
	events [64]Event           // the same in our terms
	ready  int
	err    error // why the last query failed

	busy   atomic.Int64 // until then Wait asks before it parks, see SetBusy
	pauses pauses

	woken  atomic.Bool // a Wake that no Wait has used up
	closed atomic.Bool
	mu     sync.Mutex // keeps fd open during an epoll_ctl
	fd     int
}

// A waitPoint is a descriptor at which the goroutine in Wait parks: that of an epoll instance, or
// of a socket. It is asked without waiting whether something is ready.
type waitPoint struct {
	// The runtime watches the descriptor edge-triggered. No wake-up is lost by that:
	// RawConn.Read first forgets the edges seen so far. Then it asks, and parks only if that
	// found nothing. What became ready before the question is in the answer. What becomes ready
	// after it makes a new edge, which the runtime keeps until the goroutine parks. An instance
	// that has answered "nothing" has no connection on its ready list any more, so the next one
	// makes an edge. What has answered with events is asked again by the next Wait, before it
	// parks.
	file *os.File
	raw  syscall.RawConn
	// Both are the question, for raw.Read, which parks when it says false, and for raw.Control,
	// which never parks. They are fields because a new method value allocates.
	queryOrPark func(fd uintptr) bool
	queryOnly   func(fd uintptr)

	armed time.Duration // the deadline of file, on [clock.Now]'s clock; clock.Forever if none. It belongs to Wait
}

// watch has the runtime watch a descriptor, and owns that from now on, also if it fails.
func (k *waitPoint) watch(fd int) (err error) {
	k.armed, k.file = clock.Forever, os.NewFile(uintptr(fd), "epoll")
	// This fails if the runtime's poller does not watch the descriptor.
	if err = k.file.SetReadDeadline(time.Time{}); err == nil {
		k.raw, err = k.file.SyscallConn()
	}
	if err != nil {
		k.file.Close()
	}
	return syscallError("epoll", err)
}

// singleConn is the one connection of a Poller. Its waitPoint is a copy of the connection's descriptor,
// as the runtime wants one that it owns.
type singleConn struct {
	waitPoint
	sock *sock
	// These belong to the goroutine in Wait or Poll.
	poll unix.PollFd
	// queried says that there was a query since Wait has begun to park. A second one comes after an
	// edge, and a third system call for each Wait would say the same. The runtime can deliver an edge
	// so late that what has arrived was read meanwhile. Then Wait reports it once more.
	queried bool
	ready   bool // the answer
}

// directWait says what is reported of the one connection. It never changes; it is replaced.
type directWait struct {
	*singleConn
	id uint64
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
	p := &Poller{fd: fd}
	p.all.queryOrPark = p.query
	p.all.queryOnly = func(fd uintptr) { p.query(fd) }
	if err := p.all.watch(fd); err != nil {
		return nil, err
	}
	return p, nil
}

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
	if p.closed.Load() || p.all.raw == nil {
		return ErrPollerClosed
	}
	if op == unix.EPOLL_CTL_DEL {
		p.removeSingle(s)
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
	if p.single {
		return p.controlSingle(op, s, &ev, id, want)
	}
	return syscallError("epoll_ctl", unix.EpollCtl(p.fd, op, s.fd, &ev))
}

// controlSingle is control for the one connection of the Poller. The instance knows it as well: it
// serves whoever waits for more than reads. Otherwise the instance is told to watch for nothing.
func (p *Poller) controlSingle(op int, s *sock, ev *unix.EpollEvent, id uint64, want Interest) error {
	one := p.conn
	if op == unix.EPOLL_CTL_ADD {
		if one != nil {
			return errSecond
		}
		one = newSingleConn(s)
	}
	var now *directWait
	if one != nil && one.raw != nil && want == Readable {
		now = &directWait{one, id}
		ev.Events = 0
	}
	if err := unix.EpollCtl(p.fd, op, s.fd, ev); err != nil {
		if op == unix.EPOLL_CTL_ADD {
			one.close()
		}
		return syscallError("epoll_ctl", err)
	}
	if op != unix.EPOLL_CTL_DEL {
		p.conn = one
		p.setWaitPoint(one, now)
	}
	return nil
}

// removeSingle lets go of the one connection, if that is s, also if s was closed before.
func (p *Poller) removeSingle(s *sock) {
	if o := p.conn; o != nil && o.sock == s {
		p.conn = nil
		p.setWaitPoint(o, nil)
		o.close()
	}
}

// setWaitPoint has Wait park elsewhere. It interrupts whoever is parked where nothing will be reported
// any more.
func (p *Poller) setWaitPoint(o *singleConn, now *directWait) {
	p.direct.Store(now)
	p.all.interrupt()
	o.interrupt()
}

// newSingleConn has the runtime watch the connection. If it cannot, as there are no descriptors left,
// the epoll instance watches.
func newSingleConn(s *sock) *singleConn {
	o := &singleConn{sock: s}
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil || o.watch(fd) != nil {
		o.raw = nil
		return o
	}
	o.queryOrPark = func(fd uintptr) bool {
		if o.queried {
			return true
		}
		o.queried = true
		return o.query(fd)
	}
	o.queryOnly = func(fd uintptr) { o.query(fd) }
	return o
}

// close frees the copy of the descriptor, and ends a Wait that is parked at it.
func (o *singleConn) close() {
	if o.raw != nil {
		o.file.Close()
	}
}

// query asks the kernel whether a read would return anything, with ppoll(2) and a timeout of 0. It
// is a raw call as in Poller.query.
func (o *singleConn) query(fd uintptr) bool {
	o.poll = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	for {
		var atOnce unix.Timespec
		n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&o.poll)), 1, uintptr(unsafe.Pointer(&atOnce)), 0, 0, 0)
		if e != unix.EINTR {
			o.ready = n > 0 || e != 0 // a read finds out what the error is
			return o.ready
		}
	}
}

// Wait parks until a connection is ready, until Wake, or until the moment until on the clock of
// [clock.Now]; [clock.Forever] means no limit. It returns what is ready. After a timeout or a Wake
// that is nothing, unless something became ready just then. The slice is valid until the next
// Wait or Poll.
// With [NewSinglePoller] what has been read already can be reported once more: [Conn.Receive]
// then returns 0. If the Poller is busy, it asks before it parks: see [Poller.SetBusy].
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
	//
	// In the same way (0) takes notice of where to park: whoever changes that (3) stores it, and
	// (4) sets a deadline in the past. If 3 comes before the second look at it, Wait goes round
	// once more. If it comes after that, then 4 comes after a, and Wait does not stay parked.
	if p.all.raw == nil {
		return nil, ErrPollerClosed
	}
	if p.busy.Load() != 0 {
		if events, over, err := p.askAgain(until); over {
			return events, err
		}
		p.pauses.n = 0 // the runtime polls while this goroutine is parked
	}
	for {
		k, at := &p.all, p.direct.Load()
		if at != nil {
			k = &at.waitPoint
			at.queried = false
		}
		// A deadline that is too early stays: to arm anew once for each deadline that
		// passes is cheaper than once for each Wait.
		if k.armed > until && !k.arm(until) {
			return p.Poll()
		}
		if p.woken.Load() && p.woken.Swap(false) {
			return p.Poll()
		}
		if p.direct.Load() != at {
			continue
		}
		switch err := k.raw.Read(k.queryOrPark); {
		case err == nil && at != nil:
			return p.readable(at), nil
		case err == nil:
			return p.answer()
		case errors.Is(err, os.ErrDeadlineExceeded): // it passed, or a Wake has moved it into the past
			if !k.arm(until) {
				return p.Poll()
			}
		case p.direct.Load() == at:
			return nil, p.closedOr(err)
		}
	}
}

// Poll returns what is ready now. It never parks, and leaves a Wake to the next Wait. Its
// errors and its slice are those of Wait.
func (p *Poller) Poll() ([]Event, error) {
	if p.all.raw == nil {
		return nil, ErrPollerClosed
	}
	for {
		k, at := &p.all, p.direct.Load()
		if at != nil {
			k = &at.waitPoint
		}
		// Unlike RawConn.Read, Control ignores the deadline of the file.
		switch err := k.raw.Control(k.queryOnly); {
		case err != nil && p.direct.Load() == at:
			return nil, p.closedOr(err)
		case err != nil:
		case at == nil:
			return p.answer()
		case at.ready:
			return p.readable(at), nil
		default:
			return nil, nil
		}
	}
}

// Wake makes the Wait that is under way return at once, or else the next one. Several
// calls before that count as one.
func (p *Poller) Wake() {
	p.woken.Store(true)
	p.all.interrupt()
	if at := p.direct.Load(); at != nil {
		at.interrupt()
	}
}

// Close frees the descriptor. A Wait that is under way returns [ErrPollerClosed], and so
// does every later call, Close included. The connections stay open.
func (p *Poller) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Swap(true) || p.all.raw == nil {
		return ErrPollerClosed
	}
	if p.conn != nil {
		p.conn.close()
	}
	p.pauses.close()
	return p.all.file.Close()
}

// arm sets the deadline of the file. It reports false, and sets none, if until has passed.
func (k *waitPoint) arm(until time.Duration) bool {
	var deadline time.Time
	if until != clock.Forever {
		now := clock.Now()
		if until <= now {
			return false
		}
		deadline = time.Now().Add(until - now)
	}
	k.armed = until
	k.file.SetReadDeadline(deadline)
	return true
}

// interrupt has whoever is parked here look again at what it waits for.
func (k *waitPoint) interrupt() {
	if k.raw != nil {
		k.file.SetReadDeadline(time.Unix(1, 0))
	}
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

// readable returns what there is to say of a connection at which Wait parks itself.
func (p *Poller) readable(at *directWait) []Event {
	p.events[0] = Event{ID: at.id, Ready: Readable}
	return p.events[:1]
}

// query asks the kernel for events without waiting, with epoll_pwait(2), and reports whether
// Wait has something to return. The call cannot block, so it is a raw one: the scheduler
// need not know of it.
func (p *Poller) query(fd uintptr) bool {
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

// answer returns what the last query has found, in our terms.
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
