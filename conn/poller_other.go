//go:build !linux || redburst_portable

package conn

import (
	"errors"
	"sync"
	"time"
)

// Poller waits for many connections at once. It is level-triggered: what is ready
// and not dealt with is reported again by the next Wait.
//
// Wait and Poll are for one goroutine at a time; everything else may be called by any
// goroutine at any time, also during a Wait, which takes notice.
//
// The goroutines of each connection (see sock) kick the Poller when something has
// changed, and Wait then asks every connection what it is ready for. A kick that comes
// between the asking and the waiting stays in the channel, so none is lost.
//
// Locks are taken in the order Poller, sock; a sock kicks without the Poller's lock.
type Poller struct {
	kicked chan struct{} // of capacity 1

	// Of the goroutine in Wait.
	timer  *time.Timer
	events []Event

	mu      sync.Mutex
	watched map[*sock]watched
	woken   bool
	closed  bool
}

type watched struct {
	id   uint64
	want Interest
}

// NewPoller makes an empty Poller.
func NewPoller() (*Poller, error) {
	timer := time.NewTimer(0)
	timer.Stop()
	return &Poller{
		kicked:  make(chan struct{}, 1),
		timer:   timer,
		watched: make(map[*sock]watched),
	}, nil
}

// Add starts to watch c, whose events will carry id. One Conn may be in several
// Pollers, but only once in each.
func (p *Poller) Add(c *Conn, id uint64, want Interest) error { return p.add(c.sock, id, want) }

// Modify changes what is wanted of c, and its id. A Wait that is under way sees it.
func (p *Poller) Modify(c *Conn, id uint64, want Interest) error { return p.modify(c.sock, id, want) }

// Remove stops watching c. Call it before Close or Abort of the Conn, although they
// also remove it. Events taken before the call are not taken back.
func (p *Poller) Remove(c *Conn) error { return p.remove(c.sock) }

func (p *Poller) add(s *sock, id uint64, want Interest) error {
	return p.control(s, false, true, watched{id, want})
}

func (p *Poller) modify(s *sock, id uint64, want Interest) error {
	return p.control(s, true, true, watched{id, want})
}

func (p *Poller) remove(s *sock) error { return p.control(s, true, false, watched{}) }

// control changes whether and how s is watched, if it was watched or not as expected.
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
	if after {
		p.watched[s] = w
	} else {
		delete(p.watched, s)
	}
	if before != after && !s.watch(p, after) {
		delete(p.watched, s)
		return errClosed
	}
	p.kick()
	return nil
}

// isClosed reports whether p was closed, or is a zero Poller. mu is held.
func (p *Poller) isClosed() bool { return p.closed || p.kicked == nil }

// kick makes Wait look again.
func (p *Poller) kick() {
	select {
	case p.kicked <- struct{}{}:
	default:
	}
}

// Wait parks until a connection is ready, until the clock of [Now] has reached until
// ([Forever] for no limit), or until Wake, and returns what is ready: nothing after a
// timeout or a Wake, unless something became ready just then. The slice is valid until
// the next Wait or Poll. The only error is [ErrPollerClosed].
func (p *Poller) Wait(until time.Duration) ([]Event, error) {
	for {
		woken, err := p.look(true)
		if woken || err != nil || len(p.events) > 0 {
			return p.events, err
		}
		if until == Forever {
			<-p.kicked
			continue
		}
		now := Now()
		if until <= now {
			return p.events, nil
		}
		p.timer.Reset(until - now)
		select {
		case <-p.kicked:
		case <-p.timer.C:
		}
		p.timer.Stop()
	}
}

// Poll is Wait without waiting. It takes no Wake.
func (p *Poller) Poll() ([]Event, error) {
	_, err := p.look(false)
	return p.events, err
}

// look asks every connection, and takes the Wake if told to.
func (p *Poller) look(take bool) (woken bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = p.events[:0]
	if p.isClosed() {
		return false, ErrPollerClosed
	}
	if take {
		woken, p.woken = p.woken, false
	}
	for s, w := range p.watched {
		if is := s.ready() & (w.want | Hangup); is != 0 {
			p.events = append(p.events, Event{ID: w.id, Ready: is})
		}
	}
	return woken, nil
}

// Wake makes the Wait that is under way, or else the next one, return at once.
// Several calls before that count as one. Any goroutine may call it.
func (p *Poller) Wake() {
	p.mu.Lock()
	p.woken = true
	p.mu.Unlock()
	p.kick()
}

// Close frees what the Poller holds. A Wait that is under way, and every later call,
// returns [ErrPollerClosed]. The connections stay open.
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
	p.kick()
	return nil
}
