package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// The batched floor is the least that many callers can cost. It has one raw socket to each master,
// which all callers share, with prepared bytes and no parsing, as the floor has. One goroutine writes what
// callers have queued, with one write to each master, reads what the masters have sent, and wakes the
// callers that have their majority. What is left is what the operating system and the masters take, and the
// scheduler for waking so many callers.

func openBatchedFloor(f *Fleet, _ int) (Locker, error) {
	c, err := newFloorCommands(f)
	if err != nil {
		return nil, err
	}
	l := &batchedLocker{floorCommands: c, quorum: f.N/2 + 1, work: make(chan struct{}, 1), ended: make(chan struct{}), in: make([]byte, 64<<10)}
	fds, err := l.dial(f)
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		l.masters = append(l.masters, batchedMaster{fd: fd})
	}
	go l.drive()
	return l, nil
}

type batchedLocker struct {
	floorCommands
	floorPoll
	quorum int
	work   chan struct{} // something was queued, or the locker is closed
	ended  chan struct{}

	mu     sync.Mutex
	queued []batchedCall
	failed error // it ends; net.ErrClosed after Close

	// Of the goroutine that drives.
	masters []batchedMaster
	owed    []batchedCall // in the order in which they were written; those before the first one's are dropped
	taken   []batchedCall
	waiting int // of owed, those whose callers wait
	out, in []byte
}

// A batchedCall is one call of a mutex. It says which, as late replies come when the mutex is at its next.
type batchedCall struct {
	m      *batchedMutex
	number uint32
	length int // of the reply
}

type batchedMaster struct {
	fd   int // -1: dead, or it has hung for so long that it counts as dead
	at   int // the next reply is to this call of owed
	part int // how much of it has come
}

type batchedMutex struct {
	l                    *batchedLocker
	set, release, extend []byte
	wake                 chan struct{}

	command []byte // guarded by the locker's mu until the call is taken
	number  uint32 // of the present call
	votes   int
	err     error
}

func (l *batchedLocker) Mutex(key string) (Mutex, error) {
	m := &batchedMutex{l: l, wake: make(chan struct{}, 1)}
	m.set, m.release, m.extend = l.of(key)
	return m, nil
}

func (l *batchedLocker) Close() error {
	l.mu.Lock()
	l.failed = cmp.Or(l.failed, net.ErrClosed)
	l.mu.Unlock()
	l.signal()
	l.epoll.Close()
	<-l.ended
	return nil
}

func (l *batchedLocker) signal() {
	select {
	case l.work <- struct{}{}:
	default:
	}
}

func (m *batchedMutex) TryLock(context.Context) error { return m.do(m.set, len("+OK\r\n")) }
func (m *batchedMutex) Unlock(context.Context) error  { return m.do(m.release, len(":1\r\n")) }
func (m *batchedMutex) Extend(context.Context) error  { return m.do(m.extend, len(":1\r\n")) }
func (m *batchedMutex) Lock(context.Context) error    { return errFloorWaits }

// do queues the command, and returns when a majority has answered it.
func (m *batchedMutex) do(command []byte, length int) error {
	l := m.l
	l.mu.Lock()
	if l.failed != nil {
		l.mu.Unlock()
		return l.failed
	}
	m.command, m.votes = command, 0
	l.queued = append(l.queued, batchedCall{m, m.number, length})
	first := len(l.queued) == 1
	l.mu.Unlock()
	if first {
		l.signal()
	}
	<-m.wake
	return m.err
}

// drive writes and reads until the locker is closed or has failed.
func (l *batchedLocker) drive() {
	defer close(l.ended)
	for {
		if l.waiting == 0 {
			<-l.work
		}
		l.mu.Lock()
		l.queued, l.taken = l.taken[:0], l.queued
		err := l.failed
		l.mu.Unlock()
		if err == nil {
			err = l.write()
		}
		if err == nil && l.waiting > 0 {
			err = l.read()
		}
		if err != nil {
			l.end(err)
			return
		}
		runtime.Gosched() // whom it has woken brings the next command for the same write
	}
}

// write writes what was taken from the queue.
func (l *batchedLocker) write() error {
	if len(l.taken) == 0 {
		return nil
	}
	l.out = l.out[:0]
	for _, c := range l.taken {
		l.out = append(l.out, c.m.command...)
	}
	l.owed = append(l.owed, l.taken...)
	l.waiting += len(l.taken)
	for i := range l.masters {
		s := &l.masters[i]
		if s.fd < 0 {
			continue
		}
		if n, errno := rawWrite(s.fd, l.out); errno != 0 || n < len(l.out) || len(l.owed)-s.at > floorDebt/len(":1\r\n") {
			s.drop()
		}
	}
	return l.alive()
}

func (s *batchedMaster) drop() {
	unix.Close(s.fd)
	s.fd = -1
}

func (l *batchedLocker) alive() error {
	n := 0
	for _, s := range l.masters {
		if s.fd >= 0 {
			n++
		}
	}
	if n < l.quorum {
		return errDead
	}
	return nil
}

// read waits for replies and counts them.
func (l *batchedLocker) read() error {
	if err := l.park(); err != nil {
		return err
	}
	for _, e := range l.events[:l.got] {
		s := &l.masters[e.Fd]
		if s.fd < 0 {
			continue
		}
		n, errno := rawRead(s.fd, l.in)
		switch {
		case errno == unix.EAGAIN:
			continue
		case errno != 0 || n == 0:
			s.drop()
			if err := l.alive(); err != nil {
				return err
			}
			continue
		}
		for s.part += n; s.at < len(l.owed) && s.part >= l.owed[s.at].length; s.at++ {
			c := l.owed[s.at]
			s.part -= c.length
			if m := c.m; m.number == c.number {
				if m.votes++; m.votes == l.quorum {
					l.waiting--
					m.number++
					m.wake <- struct{}{}
				}
			}
		}
		if s.at == len(l.owed) && s.part > 0 {
			return fmt.Errorf("floor: master %d sent more than it owed", e.Fd)
		}
	}
	l.forget()
	return nil
}

// forget drops the calls that all masters have answered.
func (l *batchedLocker) forget() {
	least := len(l.owed)
	for _, s := range l.masters {
		if s.fd >= 0 {
			least = min(least, s.at)
		}
	}
	if least < len(l.owed)/2 {
		return // it would copy what is left too often
	}
	l.owed = slices.Delete(l.owed, 0, least)
	for i := range l.masters {
		l.masters[i].at -= least
	}
}

// end has all calls fail, those that come later, too.
func (l *batchedLocker) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = cmp.Or(l.failed, err)
	for _, calls := range [][]batchedCall{l.owed, l.taken, l.queued} {
		for _, c := range calls {
			if m := c.m; m.number == c.number {
				m.number++
				m.err = l.failed
				m.wake <- struct{}{}
			}
		}
	}
	for i := range l.masters {
		if s := &l.masters[i]; s.fd >= 0 {
			s.drop()
		}
	}
	l.epoll.Close()
}
