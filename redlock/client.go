package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
)

// rounds is what a client needs of a mux.Mux, which is one.
type rounds interface {
	Do(ctx context.Context, op *mux.Op) error
	Post(ops ...*mux.Op)
	Wait(ctx context.Context, op *mux.Op) error
	Send(op *mux.Op)
	RTT() time.Duration
	Masters() []mux.State
	Drain()
	Close() error
}

const (
	// A key goes back and forth with every command, and a master's push names it:
	// one that fills a connection's buffers would be in the way of all the others.
	maxKey = 16 << 10

	maxTTL = 100 * 365 * 24 * time.Hour
)

// A Client takes locks on N independent masters. One client, with one
// connection to each master, serves a whole process: its methods, and those of
// its Mutexes, may be called by any number of goroutines at once.
type Client struct {
	cfg     Config
	owner   string
	masters []string // their addresses
	rounds  rounds
	now     func() time.Duration // conn.Now; all times are on its clock
	calls   sync.Pool            // of *call
	lines   lines
	watches *watches
	guard   *guard
	groups  bool // a master is a group's: holding is kept
	holding heldSet
	renewer renewer
	stats   stats
	observe Observer // of no-ops where none was set

	listeners sync.WaitGroup
	rechecks  sync.WaitGroup
	asking    atomic.Int64 // switches since no recheck runs
	attempts  sync.RWMutex // held shared by each, until its release is sent; Close waits for them
	closing   sync.Once
	closed    chan struct{}
}

// New checks the configuration and begins to connect to the masters in the background.
// It is for services that must start while masters are down: until a majority is
// connected, TryLock fails with ErrNoQuorum, and Lock waits. Stats and Observer.Master
// tell how the masters are.
func New(cfg Config) (*Client, error) {
	c, err := connect(cfg, mux.New)
	if err != nil {
		return nil, fmt.Errorf("redlock: new: %w", err)
	}
	return c, nil
}

// Open connects to the masters. It returns as soon as a majority is connected;
// the others go on connecting in the background. A minority that is down is no
// error, nor is one that can never serve (a node of a cluster, a replica, a wrong
// password), unless Config.Strict is set: Stats and Observer.Master show it.
//
// If the dial timeout passes without a majority, the error is a *RoundError that wraps
// ErrNoQuorum and each master's cause: trying again may help. If ctx ends before, the
// error is a *RoundError that wraps the context's, and ErrNoQuorum too if so many
// masters had failed by then that no majority was left. If so many masters can never
// serve that no majority is left, or one server is given twice, the error wraps
// ErrRefused and not ErrNoQuorum: somebody has to change something.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	c, err := connect(cfg, func(cfg mux.Config) (*mux.Mux, error) { return mux.Open(ctx, cfg) })
	if err != nil {
		return nil, openError(ctx, err)
	}
	return c, nil
}

func connect(cfg Config, open func(mux.Config) (*mux.Mux, error)) (*Client, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	ws, g := newWatches(len(cfg.Masters)), newGuard(&cfg)
	m, err := open(cfg.mux(ws, g))
	if err != nil {
		return nil, err
	}
	c := newClient(cfg, m, conn.Now)
	c.watches, c.guard = ws, g
	for _, a := range cfg.Masters {
		if addr, err := conn.ParseAddress(a); err == nil && addr.Group() != "" {
			c.groups = true
		}
	}
	g.raised = m.Doubt
	g.client.Store(c)
	return c, nil
}

func openError(ctx context.Context, err error) error {
	var open *mux.OpenError
	ended := ctx.Err()
	lacking := errors.Is(err, mux.ErrNoQuorum)
	if !errors.As(err, &open) || !lacking && (ended == nil || !errors.Is(open.Cause, ended)) {
		return fmt.Errorf("redlock: open: %w", err)
	}
	e := &RoundError{Op: "open", cut: !lacking}
	if lacking {
		e.reason = ErrNoQuorum
	}
	for _, s := range open.Masters {
		v := Vote{Master: s.Address, Err: s.Err}
		switch {
		case s.Phase == mux.Up:
			v.Verdict = VerdictYes
		case s.Err != nil:
			v.Verdict = VerdictFailed
		}
		e.Votes = append(e.Votes, v)
	}
	if ended != nil {
		e.end(ctx, ended)
	}
	return e
}

func newClient(cfg Config, r rounds, now func() time.Duration) *Client {
	c := &Client{
		cfg:    cfg,
		owner:  cfg.Owner,
		rounds: r,
		now:    now,
		calls:  sync.Pool{New: newCall},
		closed: make(chan struct{}),
	}
	switch c.owner {
	case "":
		c.owner = defaultOwner(cfg.ClientName)
	case "-":
		c.owner = ""
	}
	for _, s := range r.Masters() {
		c.masters = append(c.masters, s.Address)
	}
	if c.cfg.DriftFactor == 0 {
		c.cfg.DriftFactor = defaultDriftFactor
	}
	if c.cfg.MinDrift == 0 {
		c.cfg.MinDrift = defaultMinDrift
	}
	if c.cfg.Handovers == 0 {
		c.cfg.Handovers = defaultHandovers
	}
	if cfg.Observer != nil {
		c.observe = *cfg.Observer
	}
	c.watches, c.guard = newWatches(len(c.masters)), newGuard(&c.cfg)
	c.lines.init(c.cfg.Handovers)
	c.renewer.client = c
	return c
}

// Format prints the client's configuration without passwords, whatever the verb.
func (c *Client) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "redlock.Client%v", c.cfg) }

// Close ends the connections and returns when nothing of the client is left. It
// wakes everybody who waits, with ErrClosed, and ends the contexts of KeepAlive.
// It releases no lock: those still held end with their TTL. Of attempts that it has cut
// short it leaves nothing on masters that are connected: their releases are given up to
// 100 ms to be answered. It may be called more than once, but not from an Observer.
func (c *Client) Close() (err error) {
	c.closing.Do(func() { close(c.closed) })
	defer func() { err = c.disconnect() }() // also if an Observer panics
	c.renewer.close()
	return nil
}

func (c *Client) disconnect() error {
	c.rounds.Drain()
	c.attempts.Lock() // when those under way have sent their releases
	err := c.rounds.Close()
	c.attempts.Unlock()
	c.renewer.flying.Wait()
	c.rechecks.Wait()
	c.watches.mu.Lock()
	c.watches.closed = true
	c.watches.mu.Unlock()
	c.listeners.Wait()
	return err
}

// NewMutex returns a lock on a key, which is not taken yet. The TTL is how long
// the lock outlives a holder that has died. It is in whole milliseconds, must exceed the
// drift, and must not exceed Config.RestartGuard if that is set. A key has 1 to 16,384
// bytes. A key or a TTL that cannot be is reported by the first call that uses the
// Mutex.
//
// A long TTL has a cost: a master that restarts does not vote until the longest TTL that
// this client has used has passed, counted from the first attempt that uses it.
//
// It asks nothing of the masters and keeps nothing: a Mutex that is not held can
// be forgotten, and reusing one saves only its allocation.
func (c *Client) NewMutex(key string, ttl time.Duration, opts ...Option) *Mutex {
	m := &Mutex{
		client:  c,
		key:     key,
		term:    newTerm(ttl, c.cfg.DriftFactor, c.cfg.MinDrift),
		timeout: c.cfg.RoundTimeout,
	}
	if m.timeout == 0 {
		m.timeout = min(max(ttl/20, minRoundTimeout), maxRoundTimeout)
	}
	for _, opt := range opts {
		opt(m)
	}
	switch {
	case key == "":
		m.invalid = errors.New("the key is empty")
	case len(key) > maxKey:
		m.invalid = fmt.Errorf("the key has %d bytes, and %d are the most", len(key), maxKey)
	case ttl <= 0 || ttl%time.Millisecond != 0:
		m.invalid = fmt.Errorf("TTL %v is not a whole number of milliseconds above zero", ttl)
	case ttl > maxTTL:
		m.invalid = fmt.Errorf("TTL %v is beyond a hundred years", ttl)
	case c.cfg.RestartGuard > 0 && ttl > c.cfg.RestartGuard:
		m.invalid = fmt.Errorf("TTL %v is above Config.RestartGuard, %v, which is to be the longest of all", ttl, c.cfg.RestartGuard)
	case m.term.drift >= ttl:
		m.invalid = fmt.Errorf("TTL %v leaves nothing after a clock drift of %v", ttl, m.term.drift)
	}
	if m.invalid != nil {
		m.invalid = fmt.Errorf("redlock: mutex %s: %w", quoted(key), m.invalid)
	}
	return m
}

// Do holds the lock while fn runs. It waits for the lock as [Mutex.Lock] does,
// keeps it alive as [Mutex.KeepAlive] does, and releases it when fn has
// returned or panicked, also if ctx has ended by then, but not once the client is
// closed.
//
// The context that fn gets ends with ctx, and no later than the moment the lock
// stops being provably ours; its cause is ErrLost then. fn should return when it
// ends: the lock may be another's.
//
// Do returns the error of taking the lock, or that of fn. If the lock was lost
// while fn ran, the error wraps ErrLost too, even if fn returned nil, and even if only the
// release has found it out. A release that could not be confirmed is no error: the key
// goes with its TTL.
func (c *Client) Do(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context) error, opts ...Option) (err error) {
	m := c.NewMutex(key, ttl, opts...)
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer func() {
		e := m.unlock(context.WithoutCancel(ctx))
		if e != nil && e.reason == ErrNotHeld && !errors.Is(err, ErrLost) {
			lost := *e
			lost.reason, lost.under = ErrLost, ErrNotHeld
			err = errors.Join(err, &lost)
		}
	}()
	held, stop := m.KeepAlive(ctx)
	defer stop()
	if err := context.Cause(held); errors.Is(err, ErrLost) {
		return err
	} else if err != nil {
		return m.unasked(opLock, nil, "").end(ctx, held.Err())
	}
	err = fn(held)
	if lost := context.Cause(held); errors.Is(lost, ErrLost) && !errors.Is(err, ErrLost) {
		return errors.Join(err, lost)
	}
	return err
}

// failed makes the error of a round: err is what the mux returned, reason what
// the votes say. If a context has ended the round, that is to be told with blame.
func (c *Client) failed(op, key string, k *call, err, reason error) *RoundError {
	e := &RoundError{Op: op, Key: key, reason: reason, cut: err != nil}
	if reason == errUndecided {
		e.reason = nil
	}
	if errors.Is(err, mux.ErrClosed) {
		e.reason = ErrClosed
		return e
	}
	e.Votes = appendVotes(make([]Vote, 0, len(c.masters)), c.masters, k.op.Votes, k.token)
	return e
}

// appendVotes appends the votes, with nothing of the token in their errors.
func appendVotes(dst []Vote, masters []string, votes []mux.Vote, token []byte) []Vote {
	for i := range votes {
		v := &votes[i]
		dst = append(dst, Vote{masters[i], v.Verdict, v.RTT, redacted(v.Err, token)})
	}
	return dst
}
