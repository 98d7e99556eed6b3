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

// A Config says which masters a Mux drives, and how. The zero value of every field but
// Masters is a good default.
//
// The hooks (OnPush, OnDisconnect, OnSwitch and those of the Keeper) run under the Mux's lock: they
// must not block and must not call the Mux, except ForgetInHook. A hook that panics ends or
// fails the connection that it was called for. The panic goes no further; its text is in the
// connection's error. A panic of OnSwitch is dropped, and one of the Keeper's News ends all connections: it is called for
// all. OnState is called without the lock, and its panics are not caught.
type Config struct {
	// Masters are the addresses, as [conn.ParseAddress] reads them: 1 to 64, no two of one
	// server. What concerns a master names it by its index in this list.
	Masters []string
	// Conn says how each of them is connected. Its Credentials function is called again
	// before the credentials end that it has returned, and the masters are told the new ones,
	// one master after the other. Its context ends after the dial timeout. A panic of it counts
	// as an error, and one of its Dialer does. The Dialer is called in a goroutine of its own, and
	// given up when its context ends: what it returns later is closed. Of calls for one address,
	// four run at a time, those included that were given up. A Patience of zero means 30 s.
	Conn conn.Options
	// StallTime is how long a master may owe replies and send none before it is suspected
	// to hang. If it sends none for a quarter of that more, its connection is reset and it is
	// redialled. Zero means 1 s.
	StallTime time.Duration
	// BackoffMin and BackoffMax bound the pause between two dials of a master that is not
	// connected. The pause doubles from the one to the other and is fully jittered. Zero
	// means 10 ms and 1 s. A server that takes too long to answer a dial is dialled less often: the
	// pause doubles from the stall time to 32 times that, and the time of a dial to four times.
	BackoffMin, BackoffMax time.Duration
	// OnPush, if set, is called with every RESP3 push of a master, in the order in which the
	// master sent them. The value borrows the connection's buffer and is valid during the call.
	// Pushes are read while anybody waits in Do or Wait. To have them read at once, keep an Op
	// without a Command waiting.
	OnPush func(master int, v resp.Value)
	// OnDisconnect, if set, is called when a connection has ended. What a master promised
	// on one connection, such as pushes, does not outlive it.
	OnDisconnect func(master int)
	// Keeper, if set, says which masters may vote.
	Keeper Keeper
	// OnSwitch, if set, is called when a master's group of sentinels has another master now:
	// when the sentinels say so, when the old master does, or when the new one is connected.
	OnSwitch func(master int)
	// BusyPoll, if positive, is for how long at most the driver asks the sockets again and again for
	// the replies to a caller's operation, before it parks. It takes a processor meanwhile, and lets
	// other goroutines run in between. If replies take longer, it hardly asks any more. It does not
	// ask for patient operations ([Op.Patient]), for those that nobody waits for, and for pushes.
	// The most is 10 ms. It needs Linux: elsewhere New and Open refuse it.
	BusyPoll time.Duration
	// OnState, if set, is called for every change of a master's phase or of State.Err, in
	// order, by a goroutine of its own and without the Mux's lock. It may call the Mux, except
	// Close, which waits for it. If it is so slow that 1,024 changes wait, the oldest are left out,
	// and counted (State.Untold).
	OnState func(master int, s State)
}

// Format prints the configuration without credentials, whatever the verb.
func (cfg Config) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "{masters %v, connections %v, stall time %v, backoff %v to %v, busy poll %v}",
		conn.RedactAll(cfg.Masters), cfg.Conn, cfg.StallTime, cfg.BackoffMin, cfg.BackoffMax, cfg.BusyPoll)
}

// A Mux is a set of connections to N masters, driven as one. [New] and [Open] make one,
// and [Mux.Close] ends it. Its methods may be called by any number of goroutines at once.
//
// A zero Mux has no masters. Its methods panic and say so, but for Masters,
// AppendMasters, Len and RTT.
type Mux struct {
	cfg          Config
	majority     int
	poll         *conn.Poller // readiness of the sockets, for the driver
	hangupPoll   *conn.Poller // hang-ups only, for their watcher
	ctx          context.Context
	cancel       context.CancelFunc
	wg           sync.WaitGroup // dialers, followers, hang-up watcher, authenticator, tick, alarm, notifier
	renewalAdded chan struct{}  // tells the authenticator of a connection whose credentials end
	tick         *time.Timer
	alarm        *time.Timer

	mu            sync.Mutex
	slots         []slot
	clientName    string        // of the connections
	ops           ops           // submitted and undecided, oldest first
	listeners     ops           // likewise: those that only wait, and have no deadline
	watched       int           // of ops, those whose contexts the driver looks at
	watchAt       time.Duration // ... at that time
	expiry        time.Duration // no deadline among ops is before this
	retryAt       time.Duration // what was refused for a moment is sent again then; 0 if nothing was
	flights       flights       // of operations that were not answered by all masters
	driving       bool          // somebody holds the drive
	driver        *Op           // ... a caller, with this operation
	parked        bool          // ... and is inside poll.Wait
	until         time.Duration // ... until then
	holding       bool          // ... and will write what callers queue
	holdFor       time.Duration // ... after that time at the latest
	clock         time.Duration // clock.Now, as the driver last read it
	readBy        time.Duration // when the replies that are being matched had been read; 0 if that was not asked yet
	busy          busyPoll      // how long the driver asks before it parks
	busyUntil     time.Duration // until then; 0 if it parks at once
	hurried       int           // undecided operations for which it may ask
	flushing      bool          // somebody holds the flush
	noYieldBefore time.Duration // the driver yields to nobody before this
	woken         int           // callers that were answered and have submitted nothing since
	dirty         Set           // slots with something to send
	hangups       Set           // slots whose connection has hung up and was not read to its end yet
	armed         bool          // the tick is armed
	alarmAt       time.Duration // when the alarm goes; 0 if it is not set
	againAt       time.Duration // when the Keeper is to be asked for news again; 0 if it wants nothing
	active        bool          // an operation with a command was submitted lately
	aside         bool          // patient listeners do not drive, until a tick finds that none was
	draining      bool          // only persistent operations are taken
	answered      bool          // a master has answered what the Keeper had asked, which was not heeded yet
	closed        bool
	closing       chan struct{} // closed when Close is done
	released      *sync.Cond    // told when a token is put down while closing
	news          chan struct{} // closed when a master may vote, or may not any more; nil if nobody waits for that
	stateChanges  []stateChange // what OnState was not told yet
	notifying     bool          // the notifier runs

	burst [maxMasters]outgoing // used by the holder of the flush, also without mu
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
