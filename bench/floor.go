package main

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/redburst/redburst/resp"
	"golang.org/x/sys/unix"
)

// The floor is the least that a lock can cost: what the operating system and the
// masters take. It uses raw sockets and bytes prepared beforehand, parses nothing
// (it counts the bytes of replies, whose lengths are known), and returns as early as
// redburst. No library can be faster for one caller; the distance is its own cost. What it is for many callers
// is in batched.go.

// A wait is the way the floor waits for replies.
type wait uint8

const (
	waitEpoll wait = iota // parks the goroutine: an epoll descriptor within the runtime's poller
	waitPpoll             // holds a thread in ppoll(2)
	waitBusy              // reads again and again, and holds a processor
)

// floorDebt is how many bytes of replies a master may owe. One that owes more is taken
// to hang, and the floor stops writing to it.
const floorDebt = 64 << 10

const (
	floorRelease = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`
	floorExtend  = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end`
)

func openFloor(w wait) func(f *Fleet, goroutines int) (Locker, error) {
	return func(f *Fleet, goroutines int) (Locker, error) {
		c, err := newFloorCommands(f)
		return &floorLocker{floorCommands: c, fleet: f, wait: w}, err
	}
}

// floorCommands are what the floor sends. The scripts stand for their hashes.
type floorCommands struct{ release, extend string }

// newFloorCommands has the masters load the scripts. In an heir's process, which has none of its own, they were loaded.
func newFloorCommands(f *Fleet) (floorCommands, error) {
	for _, script := range []string{floorRelease, floorExtend} {
		if err := f.everywhere("SCRIPT", "LOAD", script); err != nil {
			return floorCommands{}, fmt.Errorf("load the floor's script: %w", err)
		}
	}
	hash := func(script string) string { return fmt.Sprintf("%x", sha1.Sum([]byte(script))) }
	return floorCommands{hash(floorRelease), hash(floorExtend)}, nil
}

const floorTokenLength = len("floor-0123456789abcdef")

// of prepares the commands for a key, with a token for all locks of one Mutex.
func (c floorCommands) of(key string) (set, release, extend []byte) {
	ttl := strconv.FormatInt(lockTTL.Milliseconds(), 10)
	token := fmt.Sprintf("floor-%016x", rand.Uint64())
	command := func(args ...string) []byte { return resp.AppendCommand(nil, args...) }
	return command("SET", key, token, "NX", "PX", ttl),
		command("EVALSHA", c.release, "1", key, token),
		command("EVALSHA", c.extend, "1", key, token, ttl)
}

type floorLocker struct {
	floorCommands
	fleet *Fleet
	wait  wait
	open  []*floorMutex
}

func (l *floorLocker) Close() error {
	for _, m := range l.open {
		m.close()
	}
	return nil
}

// Mutex opens sockets for this lock alone: the floor shares nothing between
// goroutines, so with many of them a library that does can be below it.
func (l *floorLocker) Mutex(key string) (Mutex, error) {
	m := &floorMutex{wait: l.wait, quorum: l.fleet.N/2 + 1, in: make([]byte, 4<<10)}
	m.set, m.release, m.extend = l.of(key)
	fds, err := m.floorPoll.dial(l.fleet)
	if err != nil {
		return nil, err
	}
	l.open = append(l.open, m)
	for _, fd := range fds {
		m.masters = append(m.masters, floorMaster{fd: fd})
	}
	m.pollFds = make([]unix.PollFd, len(m.masters))
	return m, nil
}

// A floorPoll parks the goroutine until masters have sent something.
type floorPoll struct {
	epoll  *os.File
	ready  syscall.RawConn
	poll   func(fd uintptr) bool // pollOnce, bound once: a method value allocates
	events []unix.EpollEvent
	got    int // events of the last wait
	err    error
}

// dial connects to all masters. The descriptor of a dead one, which is no vote, is -1.
func (p *floorPoll) dial(f *Fleet) (fds []int, err error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(epfd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	p.epoll = os.NewFile(uintptr(epfd), "epoll") // non-blocking, so it joins the runtime's poller
	if p.ready, err = p.epoll.SyscallConn(); err != nil {
		return nil, err
	}
	p.poll = p.pollOnce
	p.events = make([]unix.EpollEvent, f.N)
	for i := range f.N {
		fd, err := floorDial(f.endpoints[i])
		if err != nil {
			fd = -1
		} else if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return nil, os.NewSyscallError("epoll_ctl", err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// park waits for events.
func (p *floorPoll) park() error {
	if err := p.ready.Read(p.poll); err != nil {
		return err
	}
	return p.err
}

func floorDial(e Endpoint) (fd int, err error) {
	var (
		family int
		sa     unix.Sockaddr
	)
	if e.Network == "unix" {
		family, sa = unix.AF_UNIX, &unix.SockaddrUnix{Name: e.Addr}
	} else {
		a, err := net.ResolveTCPAddr("tcp4", e.Addr)
		if err != nil {
			return -1, err
		}
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = unix.Connect(fd, sa)
	if err == nil && family == unix.AF_INET {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err == nil {
		err = floorAuth(fd, e.Password)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// floorAuth logs in on a socket that blocks.
func floorAuth(fd int, password string) error {
	if _, err := unix.Write(fd, resp.AppendCommand(nil, "AUTH", password)); err != nil {
		return os.NewSyscallError("write", err)
	}
	answer := make([]byte, len("+OK\r\n"))
	for n := 0; n < len(answer); {
		k, err := unix.Read(fd, answer[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || k == 0 {
			return fmt.Errorf("log in: %d bytes, %v", n, err)
		}
		n += k
	}
	if string(answer) != "+OK\r\n" {
		return fmt.Errorf("log in: %q", answer)
	}
	return nil
}

type floorMaster struct {
	fd    int  // -1: dead
	owed  int  // bytes of replies to this and earlier commands
	asked bool // this command went out
	voted bool // its reply came in
}

type floorMutex struct {
	wait                 wait
	quorum               int
	set, release, extend []byte
	floorPoll
	masters []floorMaster
	pollFds []unix.PollFd
	pollIdx []int
	in      []byte
}

var (
	errDead       = errors.New("floor: too few masters are connected")
	errFloorWaits = errors.New("floor: does not wait for a holder")
)

func (m *floorMutex) TryLock(context.Context) error { return m.do(m.set, len("+OK\r\n")) }
func (m *floorMutex) Unlock(context.Context) error  { return m.do(m.release, len(":1\r\n")) }
func (m *floorMutex) Extend(context.Context) error  { return m.do(m.extend, len(":1\r\n")) }
func (m *floorMutex) Lock(context.Context) error {
	return errFloorWaits
}

// Release writes the release, whose replies the next call takes.
func (m *floorMutex) Release() error {
	_, err := m.send(m.release, len(":1\r\n"))
	return err
}

// do writes cmd to every master and returns when a majority has sent a whole
// reply to it, n bytes long. What the others send is taken by the next call.
func (m *floorMutex) do(cmd []byte, n int) error {
	asked, err := m.send(cmd, n)
	if err != nil {
		return err
	}
	for votes := 0; ; {
		if err := m.await(); err != nil {
			return err
		}
		for e := range m.got {
			i := m.eventMaster(e)
			c := &m.masters[i]
			if c.fd < 0 {
				continue
			}
			k, errno := rawRead(c.fd, m.in)
			switch {
			case errno == unix.EAGAIN:
				continue
			case errno != 0 || k == 0:
				m.drop(c)
				if asked--; asked < m.quorum {
					return errDead
				}
				continue
			}
			c.owed -= k
			switch {
			case c.owed < 0:
				return fmt.Errorf("floor: master %d sent more than it owed, last %q", i, m.in[:k])
			case c.owed == 0 && c.asked && !c.voted:
				c.voted = true
				if votes++; votes == m.quorum {
					return nil
				}
			}
		}
	}
}

// send writes cmd to every master, and returns how many it went to. Each owes n bytes more.
func (m *floorMutex) send(cmd []byte, n int) (asked int, err error) {
	for i := range m.masters {
		c := &m.masters[i]
		c.asked, c.voted = false, false
		if c.fd < 0 || c.owed > floorDebt {
			continue
		}
		if k, errno := rawWrite(c.fd, cmd); errno != 0 || k < len(cmd) {
			m.drop(c)
			continue
		}
		c.owed += n
		c.asked = true
		asked++
	}
	if asked < m.quorum {
		return asked, errDead
	}
	return asked, nil
}

func (m *floorMutex) await() error {
	if m.wait == waitEpoll {
		return m.park()
	}
	m.pollFds, m.pollIdx = m.pollFds[:0], m.pollIdx[:0]
	for i, c := range m.masters {
		if c.asked && !c.voted && c.fd >= 0 {
			m.pollFds = append(m.pollFds, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
			m.pollIdx = append(m.pollIdx, i)
		}
	}
	if m.wait == waitBusy { // the reads ask
		m.got = len(m.pollIdx)
		return nil
	}
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&m.pollFds[0])), uintptr(len(m.pollFds)), 0, 0, 0, 0)
		if errno == unix.EINTR {
			continue // a preemption signal of the runtime
		}
		if errno != 0 {
			return os.NewSyscallError("ppoll", errno)
		}
		break
	}
	m.got = 0
	for e, p := range m.pollFds {
		if p.Revents != 0 {
			m.pollIdx[m.got] = m.pollIdx[e]
			m.got++
		}
	}
	return nil
}

// pollOnce is called by the runtime's poller, first at once and then whenever
// the epoll descriptor has become readable.
func (p *floorPoll) pollOnce(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), 0, 0, 0)
	switch {
	case errno == unix.EINTR:
		p.got, p.err = 0, nil
		return true
	case errno != 0:
		p.got, p.err = 0, os.NewSyscallError("epoll_pwait", errno)
		return true
	}
	p.got, p.err = int(n), nil
	return p.got > 0
}

func (m *floorMutex) eventMaster(e int) int {
	if m.wait == waitEpoll {
		return int(m.events[e].Fd)
	}
	return m.pollIdx[e]
}

func (m *floorMutex) drop(c *floorMaster) {
	unix.Close(c.fd)
	c.fd, c.asked = -1, false
}

func (m *floorMutex) close() {
	for i := range m.masters {
		if m.masters[i].fd >= 0 {
			m.drop(&m.masters[i])
		}
	}
	m.epoll.Close()
}

// The sockets are non-blocking, so these calls never hold the thread, and the
// scheduler need not be told of them.

func rawWrite(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func rawRead(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}
