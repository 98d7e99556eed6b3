package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/aged"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/redburst/redburst/resp"
)

// A Client takes locks on N independent masters. One client, with one connection to each master,
// serves a whole process: any number of goroutines may call its methods, and those of its
// Mutexes, at once. [Open] or [New] makes it; the methods of a zero Client panic, and each call
// whose context is nil.
type Client struct {
	core
	cfg          Config
	guard        quorum.Guard
	line         line.Core
	localQueues  line.LocalQueues
	waits        sync.Pool // of what a call of Lock needs
	looks        line.Looks
	globalQueues line.GlobalQueues
	held         held.Locks

	replacing     chan struct{} // held by the one Replace at a time
	replaceMaster func(ctx context.Context, old, new, name string, shutDown bool) error
	meeting       meeting
	awaitVotes    func(ctx context.Context) ([]mux.State, error)
	awaitFirst    func(ctx context.Context) error // for the first connections
	met           atomic.Bool                     // they need not be awaited any more
	meetMaster    func(ctx context.Context, place int) (addr string, said conn.Server, err error)

	attempts sync.RWMutex // held shared by each, until its release is sent; Close waits for them
	busy     atomic.Int64 // functions of Do and Lead that run, Acquires, and releases under way; Shutdown waits for them
	shutting sync.Once
	closing  sync.Once
	over     chan struct{} // closed when Close has closed the client
}

// New checks the configuration and begins to connect to the masters in the background. It is for
// services that must start while masters are down: until a majority is connected, TryLock fails
// with ErrNoQuorum, and Lock waits. An attempt that comes while the first connections are under way
// waits for them, within its round timeout. Stats and EventMaster show the state of the masters.
func New(cfg Config) (*Client, error) {
	c, err := open(cfg, mux.New)
	if err != nil {
		return nil, fmt.Errorf("redlock: new: %w", plainError{err})
	}
	return c, nil
}

// Open connects to the masters. It returns as soon as a majority is connected. The others go on
// connecting in the background. A majority of two masters is both, and one of four may fail as of
// three: so take three or five.
//
// A master in quarantine is connected, too, and has no vote. So on new masters with a
// Config.RestartGuard Open succeeds, and there is no lock until the guard is over: [Client.Ready]
// says when a majority can vote.
//
// A minority that is down is no error. Nor is a minority that can never serve (a node of a
// cluster, a replica, a wrong password). Stats and EventMaster show these masters.
//
// The errors:
//
//	the dial timeout passes without a      a *RoundError that wraps ErrNoQuorum and each
//	majority                               master's cause: trying again may help
//	ctx ends before                        a *RoundError that wraps the context's error; it
//	                                       wraps ErrNoQuorum too if so many masters had failed
//	                                       by then that no majority was left
//	so many masters can never serve that   a *RoundError that wraps ErrRefused: a person
//	no majority is left                    has to change the configuration
//	one server is given twice              an error that wraps mux.ErrDuplicate
func Open(ctx context.Context, cfg Config) (*Client, error) {
	mustContext(ctx)
	c, err := open(cfg, func(cfg mux.Config) (*mux.Mux, error) { return mux.Open(ctx, cfg) })
	if err != nil {
		return nil, openError(ctx, err)
	}
	return c, nil
}

// open makes a client. connect makes its mux.
func open(cfg Config, connect func(mux.Config) (*mux.Mux, error)) (*Client, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c := prepare(cfg)
	hooked := cfg.forMux()
	hooked.Conn.ClientName = c.nameWith(cfg.Masters)
	hooked.Keeper = keeper{c}
	hooked.OnSwitch = c.held.Switched
	hooked.OnPush = func(master int, v resp.Value) {
		tracking.Invalidated(v, func(key []byte) {
			c.guard.Push(master, key, clock.Now())
			c.tracking.Push(master, key)
		})
	}
	hooked.OnDisconnect = func(master int) {
		c.guard.Disconnected(master)
		c.tracking.Disconnected(master)
	}
	if c.events.observed() {
		hooked.OnState = func(i int, s mux.State) {
			m := masterStats(i, s)
			if e := c.events.begin(context.Background(), EventMaster, ""); e != nil {
				e.Master, e.more.Boot = &m, s.Changed
				c.events.end(e)
			}
		}
	}
	m, err := connect(hooked)
	if err != nil {
		return nil, err
	}
	c.guard.OnRaise(m.Judge)
	c.replaceMaster, c.meetMaster, c.awaitVotes, c.awaitFirst = m.Replace, m.Meet, m.Ready, m.Met
	c.begin(m, clock.Now)
	if e := c.events.begin(context.Background(), behind.Opened, ""); e != nil {
		e.more.Meet = c.meet
		c.events.end(e)
	}
	return c, nil
}

// A keeper is the client's guard, as the mux asks it.
type keeper struct{ *Client }

func (k keeper) Connected(master int, before, now conn.Server, at time.Duration) {
	k.round.Agreed.End()
	k.held.Connected(master)
	if aged.Has(now.RunID, now.Epoch) {
		now.Uptime, now.MasterFor = aged.By, aged.By
	}
	k.guard.Connected(master, before, now, at)
}

func (k keeper) Answered(master int, v resp.Value, at time.Duration) { k.guard.Answered(master, v, at) }
func (k keeper) News() bool                                          { return k.guard.News(clock.Now()) }

func (k keeper) Standing(master int) mux.Standing {
	standing := k.guard.Standing(master)
	if standing.Forgot {
		k.round.Agreed.End()
	}
	return standing
}

// enter takes attempts for one that is about to take a lock, and reports whether it may. It looks whether the client is
// shut down only then: Shutdown waits for those that have it, and for what they have listed.
func (c *Client) enter() bool {
	if !c.attempts.TryRLock() {
		return false
	}
	if c.isShut() {
		c.attempts.RUnlock()
		return false
	}
	return true
}

// The queues of a client, as package held knows them: see held.Queues.
type queues struct{ *Client }

func (q queues) HandOver(s *round.Spec, by held.Giver) bool {
	if q.localQueues.Empty(s.Names()) || !q.enter() {
		return false
	}
	defer q.attempts.RUnlock()
	return q.localQueues.HandOver(s, by.GoesOn, by.Give)
}

func (q queues) Released(slot int, names []string) { q.localQueues.Released(slot, names...) }

func (q queues) NoteReleased(now, since time.Duration, names []string) {
	q.looks.NoteReleased(now, since, names...)
}

func (q queues) NoteOthers(now time.Duration, wait bool, name string) {
	q.looks.NoteOthers(now, wait, name)
}
func (q queues) Counted(in *line.Given, name string)       { q.localQueues.Counted(in, name) }
func (q queues) AskOthers(k *round.Call, name string) bool { return q.globalQueues.AskOthers(k, name) }

// nameWith is the name of this client's connections if it has those masters.
func (c *Client) nameWith(masters []string) string {
	return clientname.Name{Program: clientname.Program, Version: clientname.Version(), List: clientname.List(masters),
		Owner: clientname.Who(c.owner, c.cfg.ClientName)}.String()
}

// prepare makes a client that has no masters yet. The hooks of its parts can be called already:
// they find no lock, no subscription and no waiter.
func prepare(cfg Config) *Client {
	c := &Client{cfg: cfg}
	c.cfg.Masters = conn.RedactAll(cfg.Masters) // a password in one would be printed
	c.tracking.Init(&c.round)
	c.meeting.init()
	c.shut, c.closed, c.over, c.replacing = make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	if c.owner = cfg.Owner; c.owner == "" {
		c.owner = defaultOwner(cfg.ClientName)
	}
	c.events.init(cfg.Observers, clock.Now)
	c.cfg.setDefaults()
	c.round.Init(c.cfg.FenceMemory)
	c.guard.Init(len(cfg.Masters), cfg.RestartGuard, cfg.Durable, cfg.forMux().Conn,
		func() time.Duration { return time.Duration(time.Now().UnixNano()) }, rand.Text)
	c.line = line.Core{Round: &c.round, Tracking: &c.tracking, Now: func() time.Duration { return c.now() }, Masters: len(cfg.Masters), Refused: permanent}
	c.localQueues.Init(&c.line, c.cfg.Handovers)
	c.looks.Init(&c.line)
	c.globalQueues.Init(&c.line)
	c.held.Init(held.Core{Round: &c.round, Tracking: &c.tracking, Now: c.line.Now, Masters: len(cfg.Masters), Handovers: c.cfg.Handovers,
		Teller: teller{&c.core}, Queues: queues{c}})
	return c
}

// begin gives the client its masters and its clock.
func (c *Client) begin(r round.Mux, now func() time.Duration) {
	c.round.Mux, c.now = r, now
	c.events.setClock(now)
	c.masters = newAddresses(r.Masters())
	for _, a := range c.cfg.Masters {
		if addr, err := conn.ParseAddress(a); err == nil && addr.Group() != "" {
			c.groups = true
		}
	}
}

func openError(ctx context.Context, err error) error {
	open, ok := errors.AsType[*mux.OpenError](err)
	if !ok { // it asked no master: the configuration is wrong, or the system has no descriptors
		return fmt.Errorf("redlock: open: %w", plainError{err})
	}
	e := unasked(opOpen, "", ErrRefused, "")
	ended := ctx.Err()
	switch {
	case errors.Is(err, mux.ErrNoQuorum):
		e.reason = ErrNoQuorum
	case ended != nil && errors.Is(open.Cause, ended):
		e.reason = nil
	default:
		ended = nil
	}
	for _, s := range open.Masters {
		v := Vote{Addr: s.Addr}
		switch {
		case s.Phase == mux.Up:
			v.Verdict = votedYes
		case s.Err != nil:
			v.Verdict, v.Err = voteFailed, s.Err
		default: // its first dial is under way
			v.Verdict, e.cut = votePending, true
		}
		e.Votes = append(e.Votes, v)
	}
	if ended != nil {
		e.endedBy(ctx, ended)
	}
	return e
}

// check panics if the client was not made by Open or New.
func (c *Client) check() {
	if c.round.Mux == nil {
		panic("redlock: a zero Client cannot be used: make it with Open or New")
	}
}

// mustContext panics if there is no context, before anything is begun.
func mustContext(ctx context.Context) {
	if ctx == nil {
		panic("redlock: the context is nil")
	}
}

// Format prints the client's configuration without passwords, whatever the verb.
func (c *Client) Format(s fmt.State, _ rune) {
	cfg := c.cfg
	if c.round.Mux != nil {
		cfg.Masters = c.masters.all()
	}
	fmt.Fprintf(s, "redlock.Client%v", cfg)
}

// Stats returns a snapshot. It is cheap enough for every scrape.
func (c *Client) Stats() Stats {
	c.check()
	out := c.stats.snapshot(c.held.Counts())
	out.Kept = c.held.Kept()
	out.EventsDropped, out.EventsWaiting = c.events.stats()
	able := c.held.Able()
	for i, m := range c.round.Mux.Masters() {
		s := masterStats(i, m)
		s.Notifies = able.Has(i)
		out.Masters = append(out.Masters, s)
	}
	return out
}

// meet is behind.Meet.
func (c *Client) meet(ctx context.Context, said func(addr string, of behind.Master, err string)) (wait func()) {
	m, met := &c.meeting, new(sync.WaitGroup)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return met.Wait
	}
	for i := range c.masters.all() {
		met.Add(1)
		m.running.Go(func() {
			defer met.Done()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(m.ending, cancel)()
			addr, server, err := c.meetMaster(ctx, i)
			if errors.Is(err, mux.ErrNotMember) {
				return
			}
			why := ""
			if err != nil {
				why = err.Error()
			}
			said(addr, behindMaster(i, server), why)
		})
	}
	return met.Wait
}

// Close ends the connections and returns when nothing of the client is left. Every call that
// waits returns with ErrClosed, and the contexts of KeepAlive end. It waits for attempts, and for the
// contexts that it, and they, call: a context must not call Close when it is asked.
//
// It releases no lock: a lock that is still held ends with its TTL ([Client.Shutdown] waits until it
// is released). But for up to 100 ms it waits
// for releases that are on their way to connected masters, also those of attempts that it has
// interrupted, so that they leave no key there. It waits as long for waiters to leave the queues
// between processes.
//
// Observers are told what has happened until then, but Close waits for them for a second at most
// (see [Observer]). It may be called more than once. It returns nil.
func (c *Client) Close() (err error) {
	c.check()
	c.shutting.Do(func() { close(c.shut) })
	first := false
	c.closing.Do(func() { close(c.closed); first = true })
	if !first {
		<-c.over
		return nil
	}
	defer close(c.over)
	defer func() { err = c.disconnect() }() // also if a context panics
	c.held.Close()
	return nil
}

func (c *Client) disconnect() error {
	c.round.Mux.Drain()
	c.globalQueues.Close()
	c.attempts.Lock() // when those under way have sent their releases
	c.localQueues.TakeBack()
	err := c.round.Mux.Close()
	c.attempts.Unlock()
	c.held.Wait()
	c.events.close()
	c.meeting.close()
	return err
}
