package mux

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
)

const minGrace = 20 * time.Millisecond // how long Open waits for the rest, at least

// New checks the configuration and begins to connect the masters in the background. It
// waits for none: at a master that is not connected yet, votes fail with ErrConnecting, and
// Masters shows one that can never serve. The error is that of a bad list of masters, or
// of the system when it grants no poller.
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

// Open connects the masters and returns once a majority is connected. It gives the others
// a short while more, twice as long as the majority took and 20 ms at least; then
// they go on connecting in the background. A minority that is down, or that can never
// serve (see [conn.RefusedError]), is no error.
//
// Open fails at once if so many masters can never serve that no majority is left, or if two
// addresses turn out to be one server. It fails without a majority when ctx ends, or when the dial timeout has passed.
// The error is an *[OpenError] then, with each master's cause. A bad list of masters fails
// as in New. What turns out after Open has returned is in the master's [State]. ctx bounds
// Open alone, and not the Mux.
func Open(ctx context.Context, cfg Config) (*Mux, error) {
	ended := ctx.Err() // a nil context panics here, when nothing is begun yet
	m, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if ended != nil {
		return nil, &OpenError{Masters: m.appendStates(nil), Cause: ended}
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

// prepare checks the configuration and makes a Mux that holds no resource and does
// nothing yet.
func prepare(cfg Config) (*Mux, error) {
	n := len(cfg.Masters)
	if n == 0 {
		return nil, errors.New("mux: no masters given")
	}
	if n > maxMasters {
		return nil, fmt.Errorf("mux: %d masters given, at most %d are possible", n, maxMasters)
	}
	if cfg.BusyPoll < 0 || cfg.BusyPoll > maxBusyPoll {
		return nil, fmt.Errorf("mux: a busy poll of %v is not within 0 and %v", cfg.BusyPoll, maxBusyPoll)
	}
	if cfg.BusyPoll > 0 && !conn.CanBusyPoll {
		return nil, errors.New("mux: busy polling needs Linux: elsewhere BusyPoll must be zero")
	}
	setDefault(&cfg.StallTime, time.Second)
	setDefault(&cfg.BackoffMin, 10*time.Millisecond)
	setDefault(&cfg.BackoffMax, time.Second)
	setDefault(&cfg.Conn.DialTimeout, time.Second)
	setDefault(&cfg.Conn.Patience, patience)
	if ask := cfg.Conn.Credentials; ask != nil {
		cfg.Conn.Credentials = func(ctx context.Context, master string) (c conn.Credentials, err error) {
			defer catchPanic(&err)
			return ask(ctx, master)
		}
	}
	if cfg.Conn.Dialer != nil {
		cfg.Conn.Dialer = boundedDialer(cfg.Conn.Dialer)
	}
	m := &Mux{
		cfg:          cfg,
		majority:     n/2 + 1,
		busy:         newBusyPoll(cfg.BusyPoll),
		slots:        make([]slot, n),
		holdFor:      holdFor,
		closing:      make(chan struct{}),
		renewalAdded: make(chan struct{}, 1),
	}
	m.cfg.Masters = conn.RedactAll(cfg.Masters) // a password in one would be printed
	m.released = sync.NewCond(&m.mu)
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
		m.slots[i].state.Addr = addr.String()
		m.slots[i].state.Since = clock.Now()
		m.slots[i].trustedUntil = clock.Forever
		m.slots[i].pulse.every = pingEvery
	}
	m.clientName = cfg.Conn.ClientName
	return m, nil
}

// begin makes the pollers and starts the goroutines. Nobody else knows the Mux yet, so
// it works without mu.
func (m *Mux) begin() (err error) {
	newPoller := conn.NewPoller
	if len(m.slots) == 1 {
		newPoller = conn.NewSinglePoller
	}
	if m.poll, err = newPoller(); err != nil {
		return err
	}
	if m.hangupPoll, err = conn.NewPoller(); err != nil {
		m.poll.Close()
		return err
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.tick = time.AfterFunc(time.Hour, m.onTick)
	m.tick.Stop()
	m.alarm = time.AfterFunc(time.Hour, m.onAlarm)
	m.alarm.Stop()
	m.wg.Add(1)
	go m.watchHangups()
	if m.cfg.Conn.Credentials != nil {
		m.wg.Go(m.authenticator)
	}
	for i := range m.slots {
		m.startDial(i, 0) // before anybody learns where a group's master is
		if m.slots[i].addr.Group() != "" {
			m.wg.Go(func() { m.follow(i) })
		}
	}
	return nil
}

// setDefault sets a duration that is not positive.
func setDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// await waits until Open can return. Once a majority is connected, masters whose first
// dial is still under way get a short while more, so that two addresses of one server, for
// example, are reported now and do not surprise later. It takes mu.
func (m *Mux) await(ctx context.Context) error {
	// A little longer than a dial, so that those that time out say so.
	limit := clock.After(m.cfg.Conn.DialTimeout, m.cfg.Conn.DialTimeout/20+10*time.Millisecond)
	started := time.Now()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	graceUntil := time.Duration(0) // since started; 0 while there is no majority
	var ended error
	over := false
	for done := ctx.Done(); ; {
		m.mu.Lock()
		news := m.awaitNews() // before the masters are counted: they may all be connected by now
		c := m.countMasters()
		majority := c.up >= m.majority
		var cause error
		switch {
		case c.fatal != nil:
			cause = c.fatal
		case majority && (over || c.dialing == 0):
			m.mu.Unlock()
			return nil
		case ended != nil && c.unreached <= len(m.slots)-m.majority: // there might have been one
			cause = ended
		case ended != nil:
			cause = errors.Join(ErrNoQuorum, ended)
		case over && time.Since(started) >= limit:
			cause = ErrNoQuorum
		case majority && graceUntil == 0:
			graceUntil = time.Since(started) + max(minGrace, 2*time.Since(started))
			timer.Reset(graceUntil - time.Since(started))
		case !majority: // there is none yet, or it was lost again
			graceUntil = 0
			timer.Reset(limit - time.Since(started))
		}
		if cause != nil {
			err := &OpenError{Masters: m.appendStates(nil), Cause: cause}
			m.mu.Unlock()
			return err
		}
		m.mu.Unlock()
		over = false
		select {
		case <-news:
		case <-timer.C:
			over = true
		case <-done:
			ended, over = ctx.Err(), true
		}
	}
}

// masterCounts says how many masters are in which state.
type masterCounts struct {
	up, dialing int   // connected; first dial under way
	unreached   int   // whose last dial has failed
	fatal       error // why Open need not wait any longer; nil if it is worth it
}

// countMasters counts the masters.
func (m *Mux) countMasters() (c masterCounts) {
	refused := 0
	var refusal error
	for i := range m.slots {
		switch s := &m.slots[i].state; {
		case errors.Is(s.Err, ErrDuplicate):
			c.fatal = s.Err
		case s.Phase == Up || s.Phase == Quarantined:
			c.up++
		case s.Phase == Refused:
			refused++
			refusal = s.Err
			c.unreached++
		case s.Err != nil:
			c.unreached++
		default:
			c.dialing++
		}
	}
	if c.fatal == nil && refused > len(m.slots)-m.majority {
		c.fatal = refusal
	}
	return c
}
