package redlocktest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// A link is a port in front of a master. It carries what clients and the master
// send to each other as its weather permits.
type link struct {
	master   string // its address
	listener *net.TCPListener
	running  sync.WaitGroup

	mu       sync.Mutex
	weather  weather
	changed  chan struct{} // closed when the weather changes
	passages map[*passage]struct{}
	closed   bool
}

// The zero weather carries all at once.
type weather struct {
	delay  time.Duration
	cut    [2]bool // by direction
	broken bool
}

// A direction of the traffic, and of weather.cut.
type direction int

const (
	toMaster direction = iota
	toClients
)

func newLink(master string) (*link, error) {
	listener, err := listen()
	if err != nil {
		return nil, err
	}
	l := &link{master: master, listener: listener, changed: make(chan struct{}), passages: make(map[*passage]struct{})}
	l.running.Go(func() { accept(l.listener, func(c *net.TCPConn) { l.running.Go(func() { l.serve(c, l.dial) }) }) })
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

// change changes the weather.
func (l *link) change(f func(*weather)) {
	l.mu.Lock()
	f(&l.weather)
	close(l.changed)
	l.changed = make(chan struct{})
	broken := l.weather.broken
	l.mu.Unlock()
	if broken {
		l.reset()
	}
}

// reset resets all connections that there are.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.passages {
		p.reset()
	}
}

// close resets all connections, takes no new ones, and returns when nothing is left.
func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.listener.Close()
	l.reset()
	l.running.Wait()
}

func (l *link) dial(ctx context.Context) (half, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", l.master)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// serve carries a connection until both sides have ended it, or one has reset it.
// That the master refuses it is a reply, too.
func (l *link) serve(client half, dial func(context.Context) (half, error)) {
	p := l.enter(client)
	if p == nil {
		return
	}
	defer l.leave(p)
	began := time.Now()
	if !p.await(began, toMaster) {
		return
	}
	master, err := dial(p.ctx)
	if err != nil {
		if p.await(began.Add(l.delay()), toClients) {
			p.reset()
		}
		return
	}
	p.add(master)
	var all sync.WaitGroup
	all.Go(func() { p.collect(client, toMaster) })
	all.Go(func() { p.deliver(master, toMaster) })
	all.Go(func() { p.collect(master, toClients) })
	all.Go(func() { p.deliver(client, toClients) })
	all.Wait()
}

func (l *link) delay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.weather.delay
}

// A half of a connection that a link carries, to the client or to the master, is a
// *net.TCPConn.
type half interface {
	io.ReadWriteCloser
	CloseWrite() error
	SetLinger(seconds int) error
}

// discard closes a half so that the other side sees a reset.
func discard(h half) {
	h.SetLinger(0)
	h.Close()
}

// A passage is a connection that a link carries.
type passage struct {
	link   *link
	ctx    context.Context // ended when the passage is
	cancel context.CancelFunc
	lanes  [2]*lane // by direction

	mu     sync.Mutex
	halves []half
	ends   int // directions that have ended
}

// enter is nil if the connection is refused.
func (l *link) enter(client half) *passage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.weather.broken {
		discard(client)
		return nil
	}
	p := &passage{link: l, halves: []half{client}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for d := range p.lanes {
		p.lanes[d] = newLane(p.ctx)
	}
	l.passages[p] = struct{}{}
	return p
}

func (l *link) leave(p *passage) {
	l.mu.Lock()
	delete(l.passages, p)
	l.mu.Unlock()
	p.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.halves {
		h.Close()
	}
}

// add makes h a half of the passage.
func (p *passage) add(h half) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halves = append(p.halves, h)
}

// reset resets both halves.
func (p *passage) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel()
	for _, h := range p.halves {
		discard(h)
	}
}

// end ends a direction, and with the second one the passage.
func (p *passage) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ends++; p.ends == len(p.lanes) {
		p.cancel()
	}
}

// collect puts all that one side sends on its lane.
func (p *passage) collect(from half, d direction) {
	buf := make([]byte, 16<<10)
	for p.lanes[d].awaitRoom() {
		n, err := from.Read(buf)
		due := time.Now().Add(p.link.delay())
		if n > 0 {
			p.lanes[d].add(parcel{due: due, bytes: bytes.Clone(buf[:n])})
		}
		if err != nil {
			p.lanes[d].add(parcel{due: due, err: err})
			return
		}
	}
}

// deliver gives the other side what is on its lane.
func (p *passage) deliver(to half, d direction) {
	refused := false
	for {
		next, ok := p.lanes[d].take()
		if !ok || !p.await(next.due, d) {
			return
		}
		switch next.err {
		case nil:
			if refused {
				continue
			}
			if _, err := to.Write(next.bytes); err != nil {
				// This side has closed its connection, and says so.
				refused = true
				p.lanes[1-d].add(parcel{due: time.Now().Add(p.link.delay()), err: err})
			}
		case io.EOF:
			to.CloseWrite()
			p.end()
		default:
			p.reset()
		}
	}
}

// await returns when it is time and the direction is not cut. It is false if the
// passage is over.
func (p *passage) await(due time.Time, d direction) bool {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.ctx.Done():
		}
	}
	for p.ctx.Err() == nil {
		p.link.mu.Lock()
		cut, changed := p.link.weather.cut[d], p.link.changed
		p.link.mu.Unlock()
		if !cut {
			return true
		}
		select {
		case <-changed:
		case <-p.ctx.Done():
		}
	}
	return false
}

// laneSize is how many bytes a lane holds before their sender has to wait.
const laneSize = 1 << 20

// A lane holds what has been sent in one direction and was not delivered yet.
type lane struct {
	ctx context.Context

	mu      sync.Mutex
	changed sync.Cond // parcels, or ctx
	parcels []parcel
	bytes   int // in parcels
}

// A parcel is bytes, or an error for an end or a reset.
type parcel struct {
	due   time.Time
	bytes []byte
	err   error
}

func newLane(ctx context.Context) *lane {
	l := &lane{ctx: ctx}
	l.changed.L = &l.mu
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	return l
}

// add adds a parcel, however full the lane is.
func (l *lane) add(p parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parcels = append(l.parcels, p)
	l.bytes += len(p.bytes)
	l.changed.Broadcast()
}

// take takes the oldest parcel when there is one, or is false when ctx has ended.
func (l *lane) take() (p parcel, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.parcels) == 0 && l.ctx.Err() == nil {
		l.changed.Wait()
	}
	if l.ctx.Err() != nil {
		return parcel{}, false
	}
	p, l.parcels = l.parcels[0], l.parcels[1:]
	l.bytes -= len(p.bytes)
	l.changed.Broadcast()
	return p, true
}

// awaitRoom returns when the lane is not full, or false when ctx has ended.
func (l *lane) awaitRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes >= laneSize && l.ctx.Err() == nil {
		l.changed.Wait()
	}
	return l.ctx.Err() == nil
}
