package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/redburst/redburst/resp"
	"golang.org/x/sys/unix"
)

// The floor of a hand-over is the least that it takes with keys on masters that notify: a release on all of them,
// the push of each, SET on all as soon as a majority has pushed, and a majority of replies. It uses raw sockets and
// prepared bytes, and tells what the masters send by its first byte. It serves one waiter, in no queue: redburst and
// its peers also serve several.

func openHandoverFloor(f *Fleet, _ int) (Locker, error) {
	c, err := newFloorCommands(f)
	return &heirLocker{floorCommands: c, fleet: f}, err
}

type heirLocker struct {
	floorCommands
	fleet *Fleet
	open  []*heirMutex
}

func (l *heirLocker) Close() error {
	for _, m := range l.open {
		for _, s := range m.masters {
			unix.Close(s.fd)
		}
		m.epoll.Close()
	}
	return nil
}

func (l *heirLocker) Mutex(key string) (Mutex, error) {
	m := &heirMutex{quorum: l.fleet.N/2 + 1, in: make([]byte, 4<<10)}
	m.set, m.release, m.extend = l.of(key)
	m.watch = resp.AppendCommand(resp.AppendCommand(nil, "CLIENT", "CACHING", "YES"), "GET", key)
	m.lengths['+'] = len("+OK\r\n")
	m.lengths[':'] = len(":1\r\n")
	m.lengths['_'] = len("_\r\n")
	m.lengths['$'] = len(resp.AppendBulkString(nil, strings.Repeat("x", floorTokenLength)))
	m.lengths['>'] = len(resp.AppendCommand(resp.AppendBulkString([]byte(">2\r\n"), "invalidate"), key))
	fds, err := m.dial(l.fleet)
	if err != nil {
		return nil, err
	}
	greeting := resp.AppendCommand(resp.AppendCommand(nil, "HELLO", "3"), "CLIENT", "TRACKING", "ON", "OPTIN")
	for i, fd := range fds {
		if fd < 0 {
			return nil, errDead
		}
		if err := greet(fd, greeting, m.in); err != nil {
			return nil, fmt.Errorf("floor: greet master %d: %w", i, err)
		}
		m.masters = append(m.masters, heirMaster{fd: fd})
	}
	l.open = append(l.open, m)
	return m, nil
}

// greet returns when the last of the replies, which is that to CLIENT TRACKING, has come.
func greet(fd int, greeting, in []byte) error {
	if _, errno := rawWrite(fd, greeting); errno != 0 {
		return errno
	}
	for got := 0; !bytes.HasSuffix(in[:got], []byte("+OK\r\n")); {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			return err
		}
		n, errno := rawRead(fd, in[got:])
		switch {
		case errno == unix.EAGAIN:
		case errno != 0:
			return errno
		case n == 0:
			return unix.ECONNRESET
		}
		got += max(n, 0)
	}
	return nil
}

// What a reply answers.
type heirAsked uint8

const (
	askedSet heirAsked = iota
	askedCaching
	askedGet
	askedRelease // or to extend
)

type heirOwed struct {
	asked heirAsked
	call  int
}

type heirMaster struct {
	fd    int
	owed  []heirOwed
	part  []byte // of a frame that has not come whole
	voted bool   // this call's reply has come
	free  bool   // the key was not there when it was watched, or was deleted since
}

type heirMutex struct {
	floorPoll
	quorum                      int
	set, release, extend, watch []byte
	lengths                     [256]int // of what the masters send, by its first byte
	masters                     []heirMaster
	in                          []byte
	call                        int
	yes, no, free               int // masters, in this call
}

func (m *heirMutex) TryLock(ctx context.Context) error {
	if err := m.burst(m.set, askedSet); err != nil {
		return err
	}
	for m.yes < m.quorum {
		if m.no > len(m.masters)-m.quorum {
			return fmt.Errorf("floor: another has the lock")
		}
		if err := m.read(); err != nil {
			return err
		}
	}
	return nil
}

func (m *heirMutex) Unlock(context.Context) error { return m.await(m.release) }
func (m *heirMutex) Extend(context.Context) error { return m.await(m.extend) }

func (m *heirMutex) await(command []byte) error {
	if err := m.burst(command, askedRelease); err != nil {
		return err
	}
	for m.yes < m.quorum {
		if err := m.read(); err != nil {
			return err
		}
	}
	return nil
}

// Lock tries, and when another has the lock, it watches the key until a majority of masters has it no more.
func (m *heirMutex) Lock(ctx context.Context) error {
	for {
		err := m.TryLock(ctx)
		if err == nil || m.yes+m.no == 0 {
			return err
		}
		if m.yes > 0 { // both have come at once
			if err := m.Unlock(ctx); err != nil {
				return err
			}
		}
		if err := m.burst(m.watch, askedCaching, askedGet); err != nil {
			return err
		}
		for m.free < m.quorum {
			if err := m.read(); err != nil {
				return err
			}
		}
	}
}

// burst writes commands to all masters, and begins to count their replies.
func (m *heirMutex) burst(commands []byte, asked ...heirAsked) error {
	m.call++
	m.yes, m.no, m.free = 0, 0, 0
	for i := range m.masters {
		s := &m.masters[i]
		s.voted, s.free = false, false
		if n, errno := rawWrite(s.fd, commands); errno != 0 || n < len(commands) {
			return fmt.Errorf("floor: master %d took %d of %d bytes: %w", i, n, len(commands), errno)
		}
		for _, a := range asked {
			s.owed = append(s.owed, heirOwed{a, m.call})
		}
	}
	return nil
}

// read waits for what the masters send, and counts it.
func (m *heirMutex) read() error {
	if err := m.park(); err != nil {
		return err
	}
	for _, e := range m.events[:m.got] {
		s := &m.masters[e.Fd]
		n, errno := rawRead(s.fd, m.in)
		if errno == unix.EAGAIN {
			continue
		} else if errno != 0 || n == 0 {
			return errDead
		}
		s.part = append(s.part, m.in[:n]...)
		for len(s.part) > 0 {
			kind := s.part[0]
			length := m.lengths[kind]
			if length == 0 {
				return fmt.Errorf("floor: master %d sent %q", e.Fd, s.part)
			}
			if len(s.part) < length {
				break
			}
			m.take(s, kind)
			s.part = s.part[:copy(s.part, s.part[length:])]
		}
	}
	return nil
}

func (m *heirMutex) take(s *heirMaster, kind byte) {
	if kind == '>' {
		if s.voted && !s.free { // otherwise it is of an earlier watch
			s.free = true
			m.free++
		}
		return
	}
	o := s.owed[0]
	s.owed = s.owed[:copy(s.owed, s.owed[1:])]
	if o.call != m.call {
		return
	}
	switch {
	case o.asked == askedCaching:
	case o.asked == askedGet:
		s.voted, s.free = true, kind == '_'
		if s.free {
			m.free++
		}
	case kind == '_':
		m.no++
	default:
		m.yes++
	}
}
