package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
)

// guard decides which masters must not vote since they may have forgotten locks. It
// is there before its client is, as the masters are connected first.
//
// The rule is Redlock's own ("Performance, crash recovery and fsync"): an instance
// that comes back takes part again when every lock that it may have held has expired.
// There it has to stay away by itself; here no client of ours listens to it.
type guard struct {
	restart  time.Duration // Config.RestartGuard
	durable  bool          // Config.Durable
	longest  atomic.Int64  // the longest TTL that the client uses
	switches atomic.Uint64 // how often a group has switched to another master
	client   atomic.Pointer[Client]

	raised  func(longest time.Duration) // is told when there is a longer TTL, if set
	raising sync.Mutex                  // held meanwhile; no hook takes it
	used    atomic.Int64                // longest, once that has been told
}

func newGuard(cfg *Config) *guard { return &guard{restart: cfg.RestartGuard, durable: cfg.Durable} }

// uptimeError is by how much a server that was just started can overstate its uptime,
// which it computes from two times in whole seconds.
const uptimeError = time.Second

// use takes note of a TTL. Masters that were connected before anybody here used one that
// is so long may have forgotten locks of others that did.
//
// When it returns, no such master votes: that is why those who come second wait.
func (g *guard) use(ttl time.Duration) {
	if int64(ttl) <= g.used.Load() {
		return
	}
	g.raising.Lock()
	defer g.raising.Unlock()
	if int64(ttl) <= g.used.Load() {
		return
	}
	g.longest.Store(int64(ttl)) // for those that are connected from now on
	if g.raised != nil {
		g.raised(ttl) // for those that are connected
	}
	g.used.Store(int64(ttl))
}

// quarantine is the hook of the mux. A lock that was forgotten was taken before this
// connection, so it is over when the longest TTL has passed from here.
//
// A replica that takes over, or a master that was one in between, may lack what its
// master had acknowledged, however durable either is: replication is asynchronous, and a
// replica drops what it had before. A server that had said that it persists every write,
// and after a restart still says so, has forgotten nothing. One that does not say who it
// is may have been restarted.
//
// A master changes its replication id when it is promoted, and then keeps the one before as
// its second. It also does so when it gets its first replica, be it one that only copies
// (redis-cli --rdb): then it has no second, and has forgotten nothing. A promoted one
// loses its second, too, but only after an hour without replicas (repl-backlog-ttl).
func (g *guard) quarantine(_ int, before, now conn.Server) (d time.Duration, why string, doubt bool) {
	longest := max(time.Duration(g.longest.Load()), g.restart)
	known := before.Endpoint != ""
	same := now.RunID != "" && before.RunID == now.RunID // the same process
	switch durable := g.durable || now.Durable; {
	case before.Role != "" && before.Role != "master":
		return longest, "it was a replica in between", known
	case !known: // the first connection
		age := max(0, now.Uptime-uptimeError)
		if now.Group != "" {
			age = min(age, now.Reign)
		}
		switch {
		case g.restart == 0:
		case now.Group == "" && now.ReplID2 != "": // when it was promoted, nobody knows
			return g.restart, "it was a replica of another before (master_replid2)", false
		case now.Group == "" && durable:
		case now.RunID == "":
			return g.restart, "it does not say when it was started", false
		case age < g.restart && now.Group != "":
			return g.restart - age, fmt.Sprintf("it is the master, or was started, since %v", age.Round(time.Second)), false
		case age < g.restart:
			return g.restart - age, fmt.Sprintf("it was started %v ago", now.Uptime), false
		}
	case before.Endpoint != now.Endpoint: // it may be the same, but what the others granted meanwhile it does not know
		return longest, fmt.Sprintf("it has taken the place of %s", before.Endpoint), true
	case now.Group != "" && differ(before.ReplID, now.ReplID):
		return longest, "it has become the master again, or was restarted", true
	case same && differ(before.ReplID, now.ReplID) && now.ReplID2 != "":
		return longest, "it was a replica in between", true
	case same:
	case durable && (g.durable || before.Durable) && now.Group == "":
	case differ(before.RunID, now.RunID):
		return longest, "it was restarted", true
	default:
		return longest, "it does not say whether it was restarted (INFO)", true
	}
	return 0, "", false
}

// differ reports whether two identities are known, and not the same.
func differ(a, b string) bool {
	return a != "" && b != "" && a != b
}

// switched is the hook of the mux for a group that has another master now. However
// many there are, one recheck runs, and one more if a switch came after it had begun.
func (g *guard) switched(int) {
	g.switches.Add(1)
	c := g.client.Load()
	if c == nil || c.asking.Add(1) > 1 {
		return
	}
	c.rechecks.Go(func() {
		for done := false; !done; {
			n := c.asking.Load()
			c.recheck()
			done = c.asking.CompareAndSwap(n, 0)
		}
	})
}

// heldSet is the set of Mutexes that hold a lock. It is kept where a master is a
// group's, since there is nothing to be asked again elsewhere. Its lock comes before
// Mutex.mu.
type heldSet struct {
	mu  sync.Mutex
	all map[*Mutex]struct{}
	cap int // sweep when there are more
}

// A set of fewer than this is not swept.
const minSweep = 64

// add adds a Mutex, and now and then removes those whose lock has run out without an
// Unlock, which may have been forgotten by everybody else.
func (h *heldSet) add(m *Mutex) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[*Mutex]struct{}{}
	}
	h.all[m] = struct{}{}
	if len(h.all) <= max(h.cap, minSweep) {
		return
	}
	for m := range h.all {
		if m.Remaining() == 0 {
			delete(h.all, m)
		}
	}
	h.cap = 2 * len(h.all)
}

func (h *heldSet) remove(m *Mutex) {
	h.mu.Lock()
	delete(h.all, m)
	h.mu.Unlock()
}

func (h *heldSet) list() (all []*Mutex) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.all {
		all = append(all, m)
	}
	return all
}

// recheck asks the masters again for every lock that is held, by an extend round,
// since one of those that had voted for it may have been replaced by one that knows
// nothing of it. That one is in quarantine; so a lock survives if the others make a
// quorum, those included that are given it now. If not, it is lost at once. A lock that
// survives has its full TTL again, also one that nobody keeps alive: a shorter one could
// undo a renewal that is under way.
func (c *Client) recheck() {
	for some := range slices.Chunk(c.holding.list(), maxSending) {
		c.recheckThese(some)
	}
}

// A rechecking is one lock's part in a recheck.
type rechecking struct {
	m     *Mutex
	k     *call
	limit time.Duration // end of the validity when it was asked for
}

func (c *Client) recheckThese(some []*Mutex) {
	var all []rechecking
	for _, m := range some {
		r := rechecking{m: m, k: c.takeCall()}
		if r.post() {
			all = append(all, r)
		} else {
			c.putCall(r.k)
		}
	}
	// Those with the shortest timeout come first, so that none is kept waiting for
	// longer than its own; and none is too late because it had to wait.
	slices.SortFunc(all, func(x, y rechecking) int { return cmp.Compare(x.k.op.Timeout, y.k.op.Timeout) })
	for _, r := range all {
		r.land()
		c.putCall(r.k)
	}
}

// post sends the round, if there is a valid lock. Extends are posted under the Mutex's
// lock, so that none is after an Unlock.
func (r *rechecking) post() bool {
	m, k := r.m, r.k
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.limit = m.until; len(m.token) == 0 || r.limit <= m.client.now() {
		return false
	}
	k.token = append(k.token[:0], m.token...)
	k.extend(m, k.token, true)
	m.client.rounds.Post(k.one[:]...)
	return true
}

// land waits for the round and draws the conclusion. A round that was not decided in
// time is repeated once: when a server fails, others may be slow for a moment.
func (r *rechecking) land() {
	m, k := r.m, r.k
	c, ctx := m.client, context.Background()
	err := c.rounds.Wait(ctx, &k.op)
	if err == mux.ErrTimeout && r.post() {
		err = c.rounds.Wait(ctx, &k.op)
	}
	if errors.Is(err, mux.ErrClosed) {
		return
	}
	now, until := c.now(), m.term.until(k.op.Started)
	reason := count(k.op.Votes, err).extended(k.op.Decided, until, r.limit)
	if reason == nil && m.prolong(k.token, until, now) == ErrExpired {
		reason = ErrExpired
	}
	var e *RoundError
	switch {
	case reason == nil:
	case reason == ErrExpired && m.Remaining() > 0: // it was renewed meanwhile
	default:
		e = m.failed(opRecheck, k, err, reason)
		e.note = replaced
	}
	took := k.op.Decided - k.op.Started
	if e != nil {
		m.lost(k, now, e)
	}
	m.observe(ctx, opRecheck, k, took, until-now, e)
}
