//go:build linux && !redburst_portable

package conn

import (
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/redburst/redburst/conn/clock"
)

// CanBusyPoll says whether [Poller.SetBusy] does anything on this system.
const CanBusyPoll = true

// Wait asks this often before it reads the clock and has a pause. That takes about 6 us.
const asksPerPause = 16

// In its pauses, Wait lets other goroutines run. Sometimes it has the runtime poll for those that wait
// for a descriptor. That costs 2 us if no other thread of the runtime is idle. An idle one polls anyway, and
// takes what is ready: Wait would only wake it in vain. So Wait does both more rarely then, and spends
// a hundredth of its time on it. Without it the runtime polls every 10 ms, which is the most pauses.
const (
	pausesPerPoll      = 16
	idlePausesPerYield = 8
	mostPausesPerPoll  = 1600
	pauseLength        = 6 * time.Microsecond
)

// SetBusy has Wait ask again and again whether a connection is ready, until a moment on the clock of
// [clock.Now], before it parks. Zero has it park at once. A Wait that asks takes notice of a new moment.
// One that has parked stays parked: Wake makes it return.
//
// What asks needs a processor for itself. It lets other goroutines run in between, also those that wait
// for the network.
func (p *Poller) SetBusy(until time.Duration) { p.busy.Store(int64(until)) }

// askAgain asks whether a connection is ready until one is, until Wake, until the Poller is not busy any
// more, or until a time. It reports whether the Wait is over.
func (p *Poller) askAgain(until time.Duration) (events []Event, over bool, err error) {
	for {
		for range asksPerPause {
			// As in Wait: a Wake that comes after this look is seen by the next one.
			woken := p.woken.Load() && p.woken.Swap(false)
			events, err = p.Poll()
			if woken || err != nil || len(events) > 0 {
				return events, true, err
			}
		}
		now := clock.Now()
		if now >= min(until, time.Duration(p.busy.Load())) {
			return nil, false, nil
		}
		p.pause(now)
	}
}

// pauses are what Wait does between its questions. They belong to the goroutine in Wait, but for file,
// which Poller.mu guards.
type pauses struct {
	n     int  // since the runtime has polled
	polls int  // when it is to poll again
	idle  bool // another thread has gone on with Wait then, so it was idle

	// bell is an eventfd(2) that is in the runtime's poller.
	file *os.File // nil until it is needed
	bell syscall.RawConn
	ring func(fd uintptr) bool // for bell.Read, which parks when it says false
	rung bool
}

// pause lets other goroutines run if it is time.
//
// runtime.Gosched lets those run that are ready. One that waits for a descriptor is ready when the
// runtime has polled. An idle thread of it does that. If none is idle, as there is one processor only or
// all are busy, it polls every 10 ms. So Wait parks for a moment now and then, and has rung a bell
// before: its own thread is idle then, polls, and goes on with all that are ready, Wait among them.
func (p *Poller) pause(now time.Duration) {
	s := &p.pauses
	s.n++
	if s.n >= max(s.polls, pausesPerPoll) {
		s.n = 0
		if s.bell != nil || p.openBell() {
			thread := unix.Gettid()
			s.rung = false
			s.bell.Read(s.ring)
			s.polls = 0
			if s.idle = unix.Gettid() != thread; s.idle {
				s.polls = int(min(100*(clock.Now()-now)/pauseLength, mostPausesPerPoll))
			}
			return
		}
	}
	if !s.idle || s.n%idlePausesPerYield == 0 {
		runtime.Gosched()
	}
}

// openBell makes the bell, and reports whether it could.
func (p *Poller) openBell() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.pauses
	if p.closed.Load() {
		return false
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), "eventfd")
	raw, err := file.SyscallConn()
	if err != nil || file.SetReadDeadline(time.Time{}) != nil {
		file.Close()
		return false
	}
	s.file, s.bell = file, raw
	s.ring = func(fd uintptr) bool {
		if s.rung {
			return true
		}
		s.rung = true
		// Each write makes an edge, which the runtime finds when it polls. Nobody reads what was written:
		// the sum overflows after a million years.
		n, _, _ := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&bellStroke)), unsafe.Sizeof(bellStroke))
		return n != unsafe.Sizeof(bellStroke) // without an edge, do not park
	}
	return true
}

var bellStroke uint64 = 1 // what a write to an eventfd adds

func (s *pauses) close() {
	if s.file != nil {
		s.file.Close()
	}
}
