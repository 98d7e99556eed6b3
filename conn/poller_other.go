//go:build !linux || redburst_portable

package conn

import (
	"errors"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// Poller waits for many connections at once. It is level-triggered: a connection that
// stays ready is reported by every Wait.
//
// Only one goroutine at a time may call Wait and Poll. Any goroutine may call the other
// methods at any time. A Wait that is under way takes notice. The zero Poller is a closed one.
type Poller struct {
	// The goroutines of each connection (see sock) signal the Poller when something has
	// changed. Wait then asks every connection what it is ready for. A signal between the
	// question and the wait stays in the channel, so none is lost.
	//
	// The lock order is Poller, sock. A sock signals without the Poller's lock.
	signalled chan struct{} // of capacity 1; nil in a zero Poller

	// These belong to the goroutine in Wait or Poll.
	timer  *time.Timer
	events []Event

	mu      sync.Mutex
	watched map[*sock]watched
	woken   bool // a Wake that no Wait has used up
	closed  bool
	single  bool // from NewSinglePoller
}

type watched struct {
	id   uint64
	want Interest
}

// NewPoller makes an empty Poller. It never fails on this system.
func NewPoller() (*Poller, error) {
	timer := time.NewTimer(0)
	timer.Stop()
	return &Poller{
		signalled: make(chan struct{}, 1),
		timer:     timer,
		watched:   make(map[*sock]watched),
	}, nil
}

func (p *Poller) add(s *sock, id uint64, want Interest) error {
	return p.control(s, false, true, watched{id, want})
}

func (p *Poller) modify(s *sock, id uint64, want Interest) error {
	return p.control(s, true, true, watched{id, want})
}

func (p *Poller) remove(s *sock) error { return p.control(s, true, false, watched{}) }

// control changes whether and how s is watched. It fails if s was not, or was, watched as
// before says.
func (p *Poller) control(s *sock, before, after bool, w watched) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed() {
		return ErrPollerClosed
	}
	if s == nil { // of a zero Conn
		return errClosed
	}
	if _, is := p.watched[s]; is != before {
		return errors.New("conn: a connection is added to a poller once, then modified or removed")
	}
	if p.single && !before && len(p.watched) > 0 {
		return errSecond
	}
	if after {
		p.watched[s] = w
	} else {
		delete(p.watched, s)
	}
	if before != after && !s.watch(p, after) {
		delete(p.watched, s)
		return errClosed
	}
	p.signal()
	return nil
}

// isClosed reports whether p was closed, or is a zero Poller. mu is held.
func (p *Poller) isClosed() bool { return p.closed || p.signalled == nil }

// signal makes Wait ask again.
func (p *Poller) signal() {
	select {
	case p.signalled <- struct{}{}:
	default:
	}
}

// CanBusyPoll says whether [Poller.SetBusy] does anything on this system.
const CanBusyPoll = false

// SetBusy does nothing on this system: a goroutine reads each connection, and it is woken however often
// Wait asks.
func (p *Poller) SetBusy(time.Duration) {}

// Wait parks until a connection is ready, until Wake, or until the moment until on the clock of
// [clock.Now]; [clock.Forever] means no limit. It returns what is ready. After a timeout or a Wake
// that is nothing, unless something became ready just then. The slice is valid until the next
// Wait or Poll.
// Wait fails only with [ErrPollerClosed].
func (p *Poller) Wait(until time.Duration) ([]Event, error) {
	for {
		woken, err := p.query(true)
		if woken || err != nil || len(p.events) > 0 {
			return p.events, err
		}
		if until == clock.Forever {
			<-p.signalled
			continue
		}
		now := clock.Now()
		if until <= now {
			return p.events, nil
		}
		p.timer.Reset(until - now)
		select {
		case <-p.signalled:
		case <-p.timer.C:
		}
		p.timer.Stop()
	}
}

// Poll returns what is ready now. It never parks, and leaves a Wake to the next Wait. Its
// errors and its slice are those of Wait.
func (p *Poller) Poll() ([]Event, error) {
	_, err := p.query(false)
	return p.events, err
}

// query asks every connection what it is ready for. If wakes is set it also reports whether
// there was a Wake, and uses it up.
func (p *Poller) query(wakes bool) (woken bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = p.events[:0]
	if p.isClosed() {
		return false, ErrPollerClosed
	}
	if wakes {
		woken, p.woken = p.woken, false
	}
	for s, w := range p.watched {
		if is := s.ready() & (w.want | Hangup); is != 0 {
			p.events = append(p.events, Event{ID: w.id, Ready: is})
		}
	}
	return woken, nil
}

// Wake makes the Wait that is under way return at once, or else the next one. Several
// calls before that count as one.
func (p *Poller) Wake() {
	p.mu.Lock()
	p.woken = true
	p.mu.Unlock()
	p.signal()
}

// Close frees what the Poller holds. A Wait that is under way returns [ErrPollerClosed],
// and so does every later call, Close included. The connections stay open.
func (p *Poller) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed() {
		return ErrPollerClosed
	}
	p.closed = true
	for s := range p.watched {
		s.watch(p, false)
	}
	p.watched = nil
	p.signal()
	return nil
}
