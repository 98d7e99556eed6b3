package redlock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/redburst/redburst/redlock/internal/round"

	"github.com/redburst/redburst/mux"
)

// An Observer is told what a client does, for traces, metrics and logs: see Config.Observers.
//
// A goroutine calls it with one event after the other, in the order in which they happened, about a
// millisecond later. Each Observer of a client has its own, which runs while there are events to tell. So an Observer may
// take its time, and may call the client: it delays neither a lock, nor a renewal, nor another
// Observer. Up to 8,192 events wait for it. When there are more, the oldest are left out, and an
// EventDropped comes in their place.
//
// The context is that of the operation, and has its values. It may have ended by then, and the
// operation may have returned: so do not lock with a context that is used again for something
// else, such as that of a framework which pools them. The Event is valid until the call returns.
// If an Observer panics, the program ends, as if any other goroutine does.
//
// [Client.Close] waits for Observers for up to a second, and no call begins after it. One that is
// under way then goes on.
type Observer func(ctx context.Context, e *Event)

// An EventKind says what an [Event] is of. A later version may have others.
type EventKind string

const (
	// EventOpened: the client is there. What is told of its masters may come before.
	EventOpened EventKind = "opened"
	// EventRound: an attempt to take a lock, an extension, a release or a revocation, but not a
	// round that only asks. The context of a renewal is that of KeepAlive. A Lock that is handed
	// over within the client has no round (Config.Handovers): EventHandedOver and EventWaited
	// tell of it. The Unlock that hands it over has one, which it may share with others.
	EventRound EventKind = "round"
	// EventWait: a Lock has to wait.
	EventWait EventKind = "wait"
	// EventWake: it stops waiting, to try again.
	EventWake EventKind = "wake"
	// EventWaited: a Lock that had to wait returns, with that error.
	EventWaited EventKind = "waited"
	// EventHandedOver: a Lock is given the lock by the holder before it, within the client, before
	// it returns (Config.Handovers).
	EventHandedOver EventKind = "handed over"
	// EventLetGo: a holder lets go of its lock, before any master or waiter is told. From then on
	// the holder does not rely on the lock. Another can have it before EventRound tells what has
	// become of the release.
	EventLetGo EventKind = "let go"
	// EventLost: a KeepAlive's context has ended, as the lock was lost, or revoked (ErrRevoked).
	EventLost EventKind = "lost"
	// EventMaster: a master's phase has changed, or the reason for it; and by Close, which ends the
	// connections. A master that can never serve as it is configured is refused. Stats
	// tells what else changes, such as a master's debts.
	EventMaster EventKind = "master"
	// EventNote: the program has called [Client.Note].
	EventNote EventKind = "note"
	// EventDropped: so many events are left out here, as the Observer was too slow.
	EventDropped EventKind = "dropped"
)

// An Event is what an [Observer] is told. Which fields are set depends on the Kind.
type Event struct {
	Kind EventKind
	Time time.Time     // when it happened, by the wall clock; of EventDropped, the last of those left out
	Boot time.Duration // likewise, on the clock of package clock; of EventRound, when it was decided
	Key  string        // the lock's, as the caller gave it; not of EventOpened, EventMaster and EventDropped

	// Of EventRound. Some are of others, too.
	Op       string        // see below
	Err      error         // nil if it succeeded; see Outcome. Also of EventWaited and EventLost
	Asked    int           // masters
	Took     time.Duration // from the round's start to its decision; of EventWaited, for how long it waited, after its first attempt if it began with one
	Votes    []Vote        // one for each master
	Validity time.Duration // what is left of the lock's, if it succeeded; 0 for "unlock", and if it was unlocked meanwhile. Also of EventHandedOver
	Held     time.Duration // for how long the lock was held, for "unlock"; 0 if it was handed over, as nobody knows
	// Failures is how many failures were told before: of "lock", those of the same Lock, but for
	// ErrHeld; of "renew", those since the last renewal; and if Err is ErrNotHeld, 1 if EventLost,
	// or another EventRound, has told of the loss of this lock.
	Failures int
	Started  time.Duration // when the round began, on the clock of package clock; 0 if no master was asked. Of EventDropped, when the first of those left out happened
	TTL      time.Duration // the lock's
	Fence    uint64        // the lock's, if the round knows it; 0 without one. Of EventHandedOver, the new holder's
	Holders  int           // how many can hold the lock at a time: 1, the number of permits, or 0 for readers, and of opRevoke
	Keys     []string      // of a lock on several keys, all as the masters have them, with Config.Prefix; nil for one key

	// Why is of EventWake:
	//
	//	turn      all waiters ahead of it in this client's queue are gone
	//	released  the lock was released in this client
	//	free      a majority of the masters notified that the key has changed, if only because its holder
	//	          renewed it; or the key was free there when they were asked
	//	expiry    the key's TTL has passed on a majority of the masters
	//	poll      too few masters can notify (no RESP3, no permission for CLIENT TRACKING), or too few are up,
	//	          and a pause has passed
	Why string

	// GivenBack is of EventLetGo. It says that no caller has unlocked it: the client gives it back. Its second lock
	// could not be taken (WithSecond), or is lost, and nobody keeps the lock alive. Or its caller does not know of it,
	// as a context has panicked. Or it has ended, and the Mutex takes the next one.
	GivenBack bool

	Master *MasterStats // of EventMaster
	Client *Client      // of EventOpened

	Dropped uint64 // of EventDropped: how many

	ctx   context.Context
	token []byte // of EventRound, EventHandedOver and EventLetGo
}

// TokenHash returns a hash of the lock's token: the first 8 bytes of its SHA-256, in big-endian order. By
// it, what several clients were told of one lock can be put together. Nobody can find the token by
// it. It is 0 if there is no token. Holders that have a lock one after the other, as it was handed over, have one token.
func (e *Event) TokenHash() uint64 {
	if len(e.token) == 0 {
		return 0
	}
	sum := sha256.Sum256(e.token)
	return binary.BigEndian.Uint64(sum[:])
}

// Format prints no token, whatever the verb.
func (e Event) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "redlock.Event{%s %s %s %v}", e.Kind, e.Op, quoted(e.Key), e.Err)
}

// Why a waiting Lock tries again: see Event.Why.
const (
	wakeTurn     = "turn"
	wakeReleased = "released"
	wakeFree     = "free"
	wakeExpiry   = "expiry"
	wakePoll     = "poll"
)

// MasterStats is one master.
type MasterStats struct {
	Addr  string // its address, never with a password
	Place int    // in Config.Masters, from 0 on; Replace gives it another address
	// Phase is the state of the connection:
	//
	//	dialing      it was never connected, and no dial has failed yet
	//	up           it is connected, and votes
	//	stalled      it owed answers for longer than Config.StallTime; it is dialled again
	//	down         its connection has ended, or could not be made; it is dialled again
	//	refused      it can never serve as it is configured; it is dialled again all the same
	//	quarantined  it is connected, and has no vote: it may have forgotten locks
	Phase    string
	Err      string        // why it is not up; if it is, why its credentials could not be renewed, or empty
	RTT      time.Duration // smoothed
	Replies  uint64
	Failures uint64        // votes that failed
	Owed     int           // answers outstanding
	Debts    int           // releases to be delivered when it is back, or to be repeated
	RunID    string        // by which it is known from a former process of the server; empty if it has not said
	Ahead    time.Duration // by how much its wall clock was ahead of ours when it was connected, at the least; 0 if it has not said
	Within   time.Duration // ... and by how much more at the most
	Uptime   time.Duration // for how long it was up then; likewise
	Notifies bool          // it is up and notifies of changes; otherwise waiters poll, and holders find a loss by renewals
}

func masterStats(place int, m mux.State) MasterStats {
	s := MasterStats{
		Addr:     m.Addr,
		Place:    place,
		Phase:    m.Phase.String(),
		RTT:      m.RTT,
		Replies:  m.Replies,
		Failures: m.Failures,
		Owed:     m.Owed,
		Debts:    m.Debts,
		RunID:    m.Server.RunID,
		Ahead:    m.Server.Ahead,
		Within:   m.Server.Within,
		Uptime:   m.Server.Uptime,
		Notifies: round.CanNotify(&m),
	}
	if m.Err != nil {
		s.Err = m.Err.Error()
	}
	return s
}
