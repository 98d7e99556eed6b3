//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redburst/redburst/redlock"
)

// A fileSecond is what stands behind the masters' lock of one Mutex ([redlock.WithSecond]): a file of
// this machine, which one at a time can lock. The kernel frees what a client had that was killed. A
// client that is frozen keeps its own, and nobody else has the lock meanwhile.
//
// Now and then it fails, or loses its lock on purpose. It looks at the Mutex while its own lock is
// being taken, and when that was lost: the Mutex must not be valid then.
type fileSecond struct {
	*worker
	lock  lockable
	mutex *redlock.Mutex // nil within Do, where nobody can look
}

// A secondID is a lock of a fileSecond. Each has a greater number than those before.
type secondID struct {
	lock   string
	number uint64
}

// The outcomes of a second lock, beside those of any lock.
const (
	failed     = "failed"        // on purpose
	gone       = "gone"          // likewise
	validEarly = "valid already" // the Mutex, while the second lock was still to be taken; that must not be
)

var (
	errFailed   = errors.New("the second lock fails on purpose")
	errGone     = errors.New("lost on purpose")
	errReleased = errors.New("released")
)

func (s *fileSecond) TryLock(ctx context.Context, _ string) (redlock.SecondLock, error) {
	return s.take(ctx, false)
}

func (s *fileSecond) Lock(ctx context.Context, _ string) (redlock.SecondLock, error) {
	return s.take(ctx, true)
}

// take is called by whoever takes the Mutex, so that the worker's random numbers are its own.
func (s *fileSecond) take(ctx context.Context, wait bool) (redlock.SecondLock, error) {
	if s.percent(3) {
		s.note(0, failed)
		return nil, errFailed
	}
	file, err := os.OpenFile(filepath.Join(s.Dir, "second-"+s.lock.Keys[0]), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		panic(err)
	}
	for {
		s.mustNotBeValid(0, validEarly)
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return s.taken(file), nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			panic(os.NewSyscallError("flock", err))
		case !wait:
			err = fmt.Errorf("second: %w", redlock.ErrHeld)
		case ctx.Err() != nil:
			err = ctx.Err()
		default:
			sleep(ctx, s.upTo(5*time.Millisecond))
			continue
		}
		file.Close()
		s.note(0, name(ctx, err))
		return nil, err
	}
}

// taken begins a lock of a file that was locked. A part of these locks are lost, at a random moment or
// in that in which they are released.
func (s *fileSecond) taken(file *os.File) *fileLock {
	l := &fileLock{second: s, file: file, number: nextNumber(file)}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	s.note(l.number, ok)
	s.mustNotBeValid(l.number, validEarly)
	l.losesLate = s.percent(5)
	most := s.lock.TTL
	if s.percent(50) {
		most = 5 * time.Millisecond // as long as most locks are held
	}
	if s.percent(20) {
		l.timer = time.AfterFunc(s.upTo(most), l.loseNow)
	}
	return l
}

// nextNumber counts, in a file that is locked.
func nextNumber(file *os.File) uint64 {
	text, err := io.ReadAll(file)
	if err != nil {
		panic(err)
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // a new one is empty
	if _, err := file.WriteAt(fmt.Appendf(nil, "%20d", n+1), 0); err != nil {
		panic(err)
	}
	return n + 1
}

// note records what has become of a lock. Its number is 0 if it was not taken.
func (s *fileSecond) note(number uint64, outcome string) {
	s.add(record{Op: opSecond, Lock: s.lock.String(), Second: number, Outcome: outcome})
}

// mustNotBeValid looks at the Mutex, and records the outcome if it is valid.
func (s *fileSecond) mustNotBeValid(number uint64, outcome string) {
	if s.mutex != nil && s.mutex.Remaining() > 0 {
		s.note(number, outcome)
	}
}

// A fileLock is a lock that a fileSecond has taken.
type fileLock struct {
	second    *fileSecond
	file      *os.File
	number    uint64
	ctx       context.Context
	end       context.CancelCauseFunc
	timer     *time.Timer // of its loss; nil if none is meant
	losesLate bool        // when it is to be released

	mu   sync.Mutex // held while it ends
	over bool
}

func (l *fileLock) Context() context.Context { return l.ctx }

func (l *fileLock) Fence() uint64 { return l.number }

func (l *fileLock) Unlock(context.Context) error {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.losesLate {
		l.lose()
	}
	if l.over {
		return fmt.Errorf("second: %w", redlock.ErrNotHeld)
	}
	l.over = true
	l.end(errReleased)
	return l.file.Close() // which frees it
}

func (l *fileLock) loseNow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose()
}

// lose loses the lock, if it is not over. The record comes first: from then on its holder claims
// nothing. Others can have it when the Mutex was looked at: no other lock of this Mutex has its second
// one until then. mu is held.
func (l *fileLock) lose() {
	if l.over {
		return
	}
	l.over = true
	s := l.second
	s.note(l.number, gone)
	l.end(errGone)
	s.gone.Store(secondID{s.lock.String(), l.number}, true)
	s.mustNotBeValid(l.number, stillValid)
	l.file.Close()
}

// newMutex makes a Mutex of a lock of the library's own, with the second lock if it takes one.
func (w *worker) newMutex(l lockable, fenced bool, more ...redlock.Option) *redlock.Mutex {
	options, second := w.options(l, fenced)
	m := w.lock.NewMutex(l.Keys[0], l.TTL, append(options, more...)...)
	if second != nil {
		second.mutex = m
	}
	return m
}

// options returns those of a lock. second is nil if it takes none.
func (w *worker) options(l lockable, fenced bool) (all []redlock.Option, second *fileSecond) {
	all = l.options(fenced)
	if l.Second {
		second = &fileSecond{worker: w, lock: l}
		all = append(all, redlock.WithSecond(second))
	}
	return all, second
}

// secondIsGone reports whether the context of its second lock has ended. Whoever looks at the lock
// after that must not find it valid.
func (h *hold) secondIsGone() bool {
	if h.second == 0 {
		return false
	}
	_, is := h.gone.Load(secondID{h.lock.String(), h.second})
	return is
}

// foundValid records that a look, or a context, has found the lock valid though its second one was
// gone before.
func (h *hold) foundValid(gone bool) {
	if gone {
		h.add(record{Op: opSecond, Lock: h.lock.String(), Second: h.second, Outcome: stillValid})
	}
}
