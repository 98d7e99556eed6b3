package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
)

// An Observer is told what a client does, for traces, metrics and logs: see Config.Observers.
//
// A goroutine calls it with one event after the other, in the order in which they happened, about a
// millisecond later. Each Observer of a client has its own, which runs while there are events to tell. So an Observer may
// take its time, and may call the client: it delays neither a lock, nor a renewal, nor another
// Observer. Up to 8,192 events wait for it. When there are more, the oldest are left out,
// and counted (Stats.EventsDropped).
//
// The context is that of the operation, and has its values. It may have ended by then, and the
// operation may have returned: so do not lock with a context that is used again for something
// else, such as that of a framework which pools them. The Event is valid until the call returns.
// If an Observer panics, the program ends, as if any other goroutine does.
//
// [Client.Close] waits for Observers for up to a second, and no call begins after it. One that is
// under way then goes on.
type Observer func(ctx context.Context, e *Event)

// An EventKind says what an [Event] is of. There are others than these, and there will be more: leave alone what you do
// not know.
type EventKind string

const (
	// EventRound: an attempt to take a lock, an extension, a release or a revocation, but not a
	// round that only asks. The context of a renewal is that of KeepAlive. A Lock that is handed
	// over within the client has no round (Config.Handovers): EventWaited tells of it. The Unlock
	// that hands it over has one, which it may share with others.
	EventRound EventKind = "round"
	// EventWaited: a Lock that had to wait returns, with that error; of Do and Acquire, it is theirs.
	EventWaited EventKind = "waited"
	// EventLost: a KeepAlive's context has ended, as the lock was lost, or revoked (ErrRevoked).
	EventLost EventKind = "lost"
	// EventMaster: a master's phase has changed, or the reason for it; and by Close, which ends the
	// connections. A master that can never serve as it is configured is refused. Stats
	// tells what else changes, such as a master's debts.
	EventMaster EventKind = "master"
)

// An Event is what an [Observer] is told. Which fields are set depends on the Kind.
type Event struct {
	Kind EventKind
	Time time.Time // when it happened, by the wall clock
	Key  string    // the lock's, as the caller gave it; empty for EventMaster
	// Op is of EventRound:
	//
	//	lock     TryLock, and each attempt of Lock, Do, Acquire and Lead
	//	extend   Extend
	//	unlock   Unlock, UnlockNow, Release, and the end of Do, Acquire and Lead
	//	renew    a renewal of KeepAlive
	//	recheck  the extension of each held lock after a group has switched to another master
	//	revoke   Revoke, of another's lock
	Op    string
	Votes []Vote // of EventRound: one for each master; none if no master was asked
	// Took is of EventRound, from its start to its decision; and of EventWaited, for how long it waited, after its first
	// attempt if it began with one.
	Took   time.Duration
	Err    error        // of EventRound, EventWaited and EventLost; nil if it succeeded. See Outcome
	Master *MasterStats // of EventMaster

	ctx  context.Context
	more behind.Event
}

// Format prints no token, whatever the verb.
func (e Event) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "redlock.Event{%s %s %s %v}", e.Kind, e.Op, kind.Quoted(e.Key), e.Err)
}

// Why a waiting Lock tries again: see behind.Event.
const (
	wakeTurn     = "turn"
	wakeReleased = "released"
	wakeFree     = "free"
	wakeExpiry   = "expiry"
	wakePoll     = "poll"
)

// MasterStats is one master.
type MasterStats struct {
	Addr string // its address, never with a password; Replace gives its place another
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
	Debts    int           // releases to be delivered when it is back, or to be repeated
	Notifies bool          // it is up and notifies of changes; otherwise waiters poll, and holders find a loss by renewals

	more behind.Master
}

func masterStats(place int, m mux.State) MasterStats {
	s := MasterStats{
		Addr:     m.Addr,
		Phase:    m.Phase.String(),
		RTT:      m.RTT,
		Debts:    m.Debts,
		Notifies: round.CanNotify(&m),
		more:     behindMaster(place, m.Server),
	}
	s.more.Replies, s.more.Failures, s.more.Owed = m.Replies, m.Failures, m.Owed
	if m.Err != nil {
		s.Err = m.Err.Error()
	}
	return s
}

// behindMaster is what a master says of itself.
func behindMaster(place int, said conn.Server) behind.Master {
	return behind.Master{Place: place, RunID: said.RunID, Ahead: said.Ahead, Within: said.Within, Uptime: said.Uptime}
}
