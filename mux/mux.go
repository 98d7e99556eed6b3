package mux

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

const (
	maxMasters = 64      // what a bit set of masters holds
	maxOwed    = 1 << 15 // replies a master may owe before it is given nothing more
	maxQueued  = 4 << 20 // bytes that may wait to be written to a master, likewise
	maxCommand = 2 << 20 // bytes of an operation's command and fallback together
	maxDebts   = 1 << 14 // debts kept for a master; beyond, the oldest are dropped

	maxDebtBytes = 8 << 20 // ... and the bytes of their commands, likewise

	// Flights that are kept for reuse, and the bytes of each of their buffers: what an
	// outage has made grow is given back.
	maxPooled  = 1 << 12
	keepFlight = 1 << 10

	// A master that answers a persistent operation with an error that passes (BUSY,
	// NOREPLICAS) is sent it again after this time.
	retryEvery = 500 * time.Millisecond

	tickEvery  = 25 * time.Millisecond
	minGrace   = 20 * time.Millisecond  // how long Open waits for the rest, at least
	lingerTime = 100 * time.Millisecond // how long Close waits for releases under way
)

// Config says which masters a Mux drives, and how. The zero value of every
// field but Masters is a good default.
type Config struct {
	// Masters are the addresses, as conn.ParseAddress reads them: 1 to 64,
	// all different.
	Masters []string
	// Conn is how each of them is connected.
	Conn conn.Options
	// StallTime is how long a master may owe replies and give none before it
	// is suspected; a quarter of that later its connection is reset and
	// redialled. Zero means 1 s.
	StallTime time.Duration
	// BackoffMin and BackoffMax bound the pause between two dials of a
	// master that is not up. The pause doubles from the one to the other and
	// is fully jittered. Zero means 10 ms and 1 s.
	BackoffMin, BackoffMax time.Duration
	// OnPush, if set, is called with every RESP3 push, in the order in which
	// a master sent them. It runs under the Mux's lock: it must not block and
	// must not call the Mux. The value borrows
	// the connection's buffer. Pushes are read whenever anybody drives: keep
	// an Op without a command waiting to have them read at once.
	OnPush func(master int, v resp.Value)
	// OnDisconnect, if set, is told of a connection's end, under the same rules as
	// OnPush. What a master promised on one connection (its pushes) does not outlive it.
	OnDisconnect func(master int)
	// Quarantine, if set, is asked about each new connection, under the same
	// rules: how long that master must not vote, and why, given what it said
	// about itself before (zero at the first connection) and says now. The Role of
	// before is "replica" if it has said in between that it is one.
	// Meanwhile it is sent nothing but operations that persist, and its votes
	// are failed ones with a *QuarantineError. In doubt is one that must not
	// vote for some time from now that may prove too short, see Mux.Doubt.
	Quarantine func(master int, before, now conn.Server) (d time.Duration, reason string, doubt bool)
	// OnSwitch, if set, is told under the same rules that the sentinels of a
	// master's group have another master now, or that one was connected.
	OnSwitch func(master int)
	// Strict makes Open fail if any master can never serve as it is configured, and not
	// only if so many cannot that there is no majority.
	Strict bool
	// OnState, if set, is told every change of a master's phase, in order,
	// from a goroutine of its own. It may call the Mux, except Close.
	OnState func(master int, s State)
}

// Format prints the configuration without credentials, whatever the verb.
func (cfg Config) Format(s fmt.State, _ rune) {
	masters := make([]string, len(cfg.Masters))
	for i, a := range cfg.Masters {
		masters[i] = conn.Redact(a)
	}
	fmt.Fprintf(s, "{masters %v, connections %v, stall time %v, backoff %v to %v, strict %t}",
		masters, cfg.Conn, cfg.StallTime, cfg.BackoffMin, cfg.BackoffMax, cfg.Strict)
}

// A Mux is a set of connections to N masters, driven as one. Its methods may
// be called by any number of goroutines at once.
type Mux struct {
	cfg      Config
	majority int
	poll     *conn.Poller // readiness of the sockets, for the driver
	watch    *conn.Poller // hang-ups only, for the sentry
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup // dialers, followers, sentry, tick, notifier
	tick     *time.Timer

	mu       sync.Mutex
	slots    []slot
	ops      ops           // submitted and undecided, oldest first
	expiry   time.Duration // no deadline among ops is before this
	retryAt  time.Duration // nothing that was refused is to be sent again before this; 0 if nothing is
	pool     *flight
	pooled   int           // flights in it
	driving  bool          // somebody holds the drive
	driver   *Op           // ... a caller, with this operation
	parked   bool          // ... and is inside poll.Wait
	until    time.Duration // ... until then
	clock    time.Duration // conn.Now when the driver last looked at it
	flushing bool          // somebody holds the flush
	hurry    time.Duration // no gathering before this
	woken    int           // callers that were answered and have not been back since
	dirty    Set           // slots with something to send
	hangups  Set           // slots whose connection is known to have hung up, not yet read to its end
	armed    bool          // the tick is
	draining bool          // only what persists is taken
	closed   bool
	closing  chan struct{} // closed when Close is done
	calm     *sync.Cond    // told when a token is put down while closing
	changed  chan struct{} // news for Open; nil afterwards
	news     []news
	telling  bool

	burst [maxMasters]outgoing // of the holder of the flush
}

// New checks the configuration and begins to connect the masters in the background. It
// waits for none: an operation fails with ErrConnecting at those that are not up yet, and a
// master that can never serve shows in Masters.
func New(cfg Config) (*Mux, error) {
	m, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if err := m.begin(); err != nil {
		return nil, err
	}
	return m, nil
}

// Open connects the masters and returns as soon as a majority is connected.
// The others go on connecting in the background, for which it waits only
// shortly: a minority that is down, or that can never serve (see
// conn.RefusedError), is no error. Open fails at once if so many can never serve that
// no majority is left, if two addresses turn out to be one server, or, with
// Config.Strict, if any master can never serve. It ends without a majority when ctx
// does, or when the dial timeout has passed. The error is an *OpenError then, with
// each master's cause.
func Open(ctx context.Context, cfg Config) (*Mux, error) {
	ended := ctx.Err() // a nil context panics here, when nothing is begun yet
	m, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if ended != nil {
		return nil, &OpenError{Masters: m.states(), Cause: ended}
	}
	if err := m.begin(); err != nil {
		return nil, err
	}
	opened := false
	defer func() {
		if !opened { // also if the context has panicked
			m.Close()
		}
	}()
	if err := m.await(ctx); err != nil {
		return nil, err
	}
	opened = true
	return m, nil
}

// prepare checks the configuration, and makes a Mux that has and does nothing yet.
func prepare(cfg Config) (*Mux, error) {
	n := len(cfg.Masters)
	if n == 0 {
		return nil, errors.New("mux: no masters given")
	}
	if n > maxMasters {
		return nil, fmt.Errorf("mux: %d masters given, at most %d are possible", n, maxMasters)
	}
	setDefault(&cfg.StallTime, time.Second)
	setDefault(&cfg.BackoffMin, 10*time.Millisecond)
	setDefault(&cfg.BackoffMax, time.Second)
	setDefault(&cfg.Conn.DialTimeout, time.Second)
	m := &Mux{
		cfg:      cfg,
		majority: n/2 + 1,
		slots:    make([]slot, n),
		closing:  make(chan struct{}),
		changed:  make(chan struct{}, 1),
	}
	m.calm = sync.NewCond(&m.mu)
	seen := make(map[string]bool, n)
	for i, a := range cfg.Masters {
		addr, err := conn.ParseAddress(a)
		if err != nil {
			return nil, fmt.Errorf("mux: master %d: %w", i+1, err)
		}
		if seen[addr.String()] {
			return nil, fmt.Errorf("%w: %s", ErrDuplicate, addr)
		}
		seen[addr.String()] = true
		m.slots[i].addr = addr
		m.slots[i].state.Address = addr.String()
		m.slots[i].state.Since = conn.Now()
	}
	return m, nil
}

// begin makes the pollers and starts the goroutines.
func (m *Mux) begin() (err error) {
	if m.poll, err = conn.NewPoller(); err != nil {
		return err
	}
	if m.watch, err = conn.NewPoller(); err != nil {
		m.poll.Close()
		return err
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.tick = time.AfterFunc(time.Hour, m.onTick)
	m.tick.Stop()
	m.wg.Add(1 + len(m.slots))
	go m.sentry()
	for i := range m.slots {
		if m.slots[i].addr.Group() != "" {
			m.wg.Go(func() { m.follow(i) })
		}
		go m.dial(i, 0)
	}
	return nil
}

func setDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// await waits for Open's decision. Once a majority is up, those whose first
// dial is still under way get a short while more, so that two addresses of one
// server, say, are reported now, and not as a surprise later.
func (m *Mux) await(ctx context.Context) error {
	// A little longer than a dial, so that those that time out say so.
	limit := conn.After(m.cfg.Conn.DialTimeout, m.cfg.Conn.DialTimeout/20+10*time.Millisecond)
	started := time.Now()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	graceUntil := time.Duration(0) // since started; 0 while there is no majority
	for done := ctx.Done(); ; {
		var ended error
		over := false
		select {
		case <-m.changed:
		case <-timer.C:
			over = true
		case <-done:
			ended, over = ctx.Err(), true
		}
		m.mu.Lock()
		c := m.census()
		majority := c.up >= m.majority
		var failed *OpenError
		switch {
		case c.hopeless != nil:
			failed = &OpenError{Masters: m.states(), Cause: c.hopeless}
		case majority && (over || c.dialing == 0):
			m.changed = nil // nobody listens any more
			m.mu.Unlock()
			return nil
		case ended != nil && c.failed <= len(m.slots)-m.majority: // there might have been one
			failed = &OpenError{Masters: m.states(), Cause: ended}
		case ended != nil:
			failed = &OpenError{Masters: m.states(), Cause: errors.Join(ErrNoQuorum, ended)}
		case over && time.Since(started) >= limit:
			failed = &OpenError{Masters: m.states(), Cause: ErrNoQuorum}
		case majority && graceUntil == 0:
			graceUntil = time.Since(started) + max(minGrace, 2*time.Since(started))
			timer.Reset(graceUntil - time.Since(started))
		case !majority: // there is none yet, or it was lost again
			graceUntil = 0
			timer.Reset(limit - time.Since(started))
		}
		m.mu.Unlock()
		if failed != nil {
			return failed
		}
	}
}

// A census is how many masters stand where.
type census struct {
	up, dialing int
	failed      int   // whose last dial has failed
	hopeless    error // why Open need not wait any longer; nil if it is worth it
}

// census counts the masters. mu is held.
func (m *Mux) census() (c census) {
	refused := 0
	var refusal error
	for i := range m.slots {
		switch s := &m.slots[i].state; {
		case errors.Is(s.Err, ErrDuplicate):
			c.hopeless = s.Err
		case s.Phase == Up || s.Phase == Quarantined:
			c.up++
		case s.Phase == Refused:
			refused++
			refusal = s.Err
			c.failed++
		case s.Err != nil:
			c.failed++
		default:
			c.dialing++
		}
	}
	if c.hopeless == nil && (refused > len(m.slots)-m.majority || m.cfg.Strict && refused > 0) {
		c.hopeless = refusal
	}
	return c
}

// Format prints the configuration without credentials, whatever the verb.
func (m *Mux) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "mux.Mux%v", m.cfg) }

// Drain ends the operations under way with ErrClosed, and refuses all that come later,
// save those that persist. So whoever was ended by it can still have undone what it may
// have done, before Close.
func (m *Mux) Drain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
	for op := m.ops.first; op != nil; {
		next := op.next
		if op.Persist <= 0 {
			m.decide(op, conn.Now(), ErrClosed)
		}
		op = next
	}
}

// Close ends all connections. Callers in Do and Wait, and all that come later,
// get ErrClosed. Operations that persist and are under way (releases) are given
// up to 100 ms to be answered first. Close may be called more than once, and
// returns nil when no goroutine, descriptor or timer of the Mux is left.
func (m *Mux) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		<-m.closing
		return nil
	}
	m.closed = true
	m.cancel() // nobody dials any more
	for op := m.ops.first; op != nil; op = m.ops.first {
		m.decide(op, conn.Now(), ErrClosed)
	}
	for m.driving {
		m.calm.Wait()
	}
	m.driving = true // from here on nobody else can be
	m.linger(conn.Now() + lingerTime)
	for m.flushing {
		m.calm.Wait()
	}
	var links []*link
	for i := range m.slots {
		if l := m.slots[i].link; l != nil {
			l.pins++ // closing may take a moment: not under the lock
			links = append(links, l)
			m.drop(i, ErrClosed)
		}
	}
	if m.armed && m.tick.Stop() {
		m.armed = false
		m.wg.Done()
	}
	m.mu.Unlock()

	for _, l := range links {
		l.pins--
		l.close()
	}
	m.watch.Wake()
	m.wg.Wait()
	m.poll.Close()
	m.watch.Close()
	close(m.closing)
	return nil
}

// linger drives until no master that is up owes a reply to a persistent
// operation. mu is held, and so is the drive.
func (m *Mux) linger(until time.Duration) {
	for conn.Now() < until && m.owesPersistent() {
		if m.dirty != 0 && !m.flushing {
			m.flush()
		}
		m.pass(until, nil)
	}
}

func (m *Mux) owesPersistent() bool {
	for i := range m.slots {
		s := &m.slots[i]
		for k := range s.owed.n {
			if s.owed.at(k).f.until != 0 {
				return true
			}
		}
	}
	return false
}

// ops is a list of operations, linked through them.
type ops struct{ first, last *Op }

func (l *ops) push(op *Op) {
	op.prev, op.next = l.last, nil
	if l.last == nil {
		l.first = op
	} else {
		l.last.next = op
	}
	l.last = op
}

func (l *ops) remove(op *Op) {
	if op.prev == nil {
		l.first = op.next
	} else {
		op.prev.next = op.next
	}
	if op.next == nil {
		l.last = op.prev
	} else {
		op.next.prev = op.prev
	}
	op.prev, op.next = nil, nil
}
