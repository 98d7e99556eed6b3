package mux

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp"
)

const maxMasters = 64 // what a bit set of masters holds

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

// A Mux is a set of connections to N masters, driven as one. [New] and [Open] make one,
// and [Mux.Close] ends it. Its methods may be called by any number of goroutines at once.
//
// A zero Mux has no masters. Its methods panic and say so, but for Masters, Len and RTT.
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

// lock locks mu: it takes mu, and keeps it. A zero Mux makes it panic, without mu.
func (m *Mux) lock() {
	m.mu.Lock()
	if m.closing == nil {
		m.mu.Unlock()
		panic("mux: this Mux is a zero one: make it with New or Open")
	}
}

// Format prints the configuration without credentials, whatever the verb.
func (m *Mux) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "mux.Mux%v", m.cfg) }
