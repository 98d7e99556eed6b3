// Package behind has what package redlock tells the library's own Observers and exporters beyond what it promises to users:
// the flight recorder and the modules of contrib. Who has been given a value of redlock finds here what stands behind it.
// Package redlock opens these doors when it is initialized, as it cannot be imported here.
package behind

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// The kinds of a redlock.Event that are no constants of package redlock. Every Observer is told of them.
const (
	// Opened: the client is there. What is told of its masters may come before.
	Opened = "opened"
	// Wait: a Lock has to wait.
	Wait = "wait"
	// Wake: it stops waiting, to try again.
	Wake = "wake"
	// HandedOver: a Lock is given the lock by the holder before it, within the client, before it returns
	// (Config.Handovers).
	HandedOver = "handed over"
	// LetGo: a holder lets go of its lock, before any master or waiter is told. From then on the holder does not rely on
	// the lock. Another can have it before a round tells what has become of the release.
	LetGo = "let go"
	// Note: Note was called.
	Note = "note"
	// Dropped: so many events are left out here, as the Observer was too slow.
	Dropped = "dropped"
)

// An Event is the rest of a redlock.Event.
type Event struct {
	Boot time.Duration // when it happened, on the clock of package clock; of a round, when it was decided

	// Of a round.
	Started  time.Duration // when it began; 0 if no master was asked. Of Dropped, when the first of those left out happened
	Asked    int           // masters
	Validity time.Duration // what is left of the lock's; 0 for "unlock", and if it was unlocked meanwhile. Also of HandedOver
	TTL      time.Duration // the lock's
	Held     time.Duration // for how long the lock was held, for "unlock"; 0 if it was handed over, as nobody knows
	Fence    uint64        // the lock's, if the round knows it; 0 without one. Of HandedOver, the new holder's
	Holders  int           // how many can hold the lock at a time: 1, the number of permits, or 0 for readers, and of "revoke"
	Keys     []string      // of a lock on several keys, all as the masters have them, with Config.Prefix; nil for one key
	// Failures is how many failures were told before: of "lock", those of the same Lock, but for ErrHeld; of "renew",
	// those since the last renewal; and if Err is ErrNotHeld, 1 if the loss of this lock was told before.
	Failures int

	Token []byte // of a round, HandedOver, LetGo and "lost", of which it may be empty. It is never shown

	// Why is of Wake:
	//
	//	turn      all waiters ahead of it in this client's queue are gone
	//	released  the lock was released in this client
	//	free      a majority of the masters notified that the key has changed, if only because its holder
	//	          renewed it; or the key was free there when they were asked
	//	expiry    the key's TTL has passed on a majority of the masters
	//	poll      too few masters can notify (no RESP3, no permission for CLIENT TRACKING), or too few are up,
	//	          and a pause has passed
	Why string

	// GivenBack is of LetGo. It says that no caller has unlocked it: the client gives it back. Its second lock could not
	// be taken (WithSecond), or is lost, and nobody keeps the lock alive. Or its caller does not know of it, as a context
	// has panicked. Or it has ended, and the Mutex takes the next one.
	GivenBack bool

	Dropped uint64 // of Dropped: how many

	Meet Meet // of Opened
}

// Meet has the client connect once more to each master that has a fixed address, and returns at once. Later, said is called
// with what each says of itself by then: the Master, its address, and why it cannot be reached, if so. The connections are
// closed. wait returns when said was called for each, by several goroutines at once. Of a group or a cluster, it tells
// nothing. It shows credentials to the masters that the client has at that time, and to nobody else. An Observer may call
// it while the client closes, and Close waits for that for a second at most. From then on it tells nothing.
type Meet func(ctx context.Context, said func(addr string, of Master, err string)) (wait func())

// TokenHash returns a hash of the lock's token: the first 8 bytes of its SHA-256, in big-endian order. By it, what several
// clients were told of one lock can be put together. Nobody can find the token by it. It is 0 if there is no token. Holders
// that have a lock one after the other, as it was handed over, have one token.
func (e *Event) TokenHash() uint64 {
	if len(e.Token) == 0 {
		return 0
	}
	sum := sha256.Sum256(e.Token)
	return binary.BigEndian.Uint64(sum[:])
}

// A Master is the rest of a redlock.MasterStats.
type Master struct {
	Place    int // in Config.Masters, from 0 on; Replace gives it another address
	Replies  uint64
	Failures uint64        // votes that failed
	Owed     int           // answers outstanding
	RunID    string        // by which it is known from a former process of the server; empty if it has not said
	Ahead    time.Duration // by how much its wall clock was ahead of ours when it was connected, at the least; 0 if it has not said
	Within   time.Duration // ... and by how much more at the most
	Uptime   time.Duration // for how long it was up then; likewise
}

// A Holder is the rest of a redlock.Holder.
type Holder struct {
	Other string // "a key that is no lock (hash)", if it is one; without the type if this user may not ask for it
}

// Stats are the rest of redlock.Stats.
type Stats struct {
	Expired   uint64 // attempts that failed because they took longer than the lock would have been valid
	Cancelled uint64 // ... because their context ended before the masters had decided

	WokenFree   uint64 // waits in Lock that ended because the masters notified of a change, and the lock was free
	WokenHeld   uint64 // ... and the lock was still held: its holder had renewed it, or another was faster
	WokenExpiry uint64 // ... because the key's TTL had passed
	WokenLocal  uint64 // ... because a holder or a waiter of this client has left
	WokenPoll   uint64 // ... to look again, since too few masters can notify

	Extended     uint64        // locks extended, by Extend
	SecondTaken  uint64        // second locks, behind the one on the masters
	SecondTime   time.Duration // that taking them has taken
	SecondFailed uint64        // locks taken, and released again, as the second lock could not be had
}

// The buckets of the histograms that exporters have, in seconds.
var (
	// A round takes about a round trip, and its time-out is from 20 ms to 500 ms.
	RoundBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
	// A wait can be a hand-over in this process, or as long as others work.
	WaitBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	HoldBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
)

// The doors.
var (
	// OfEvent returns the rest of a *redlock.Event. It is valid as long as that is.
	OfEvent func(e any) *Event
	// OfMaster returns the rest of a *redlock.MasterStats.
	OfMaster func(m any) *Master
	// OfHolder returns the rest of a *redlock.Holder.
	OfHolder func(h any) *Holder
	// OfStats returns the rest of a *redlock.Stats.
	OfStats func(s any) *Stats
	// TokenFrom returns the token of the lock whose context this is, as redlock.FenceFrom does its fence; empty if it is of none.
	TokenFrom func(ctx context.Context) string
	// Tell has the Observers of the client of a *redlock.Mutex or a *redlock.Client told of a Note with that context and
	// key, after all that has happened before. It reports false if nobody is told, as the client is closed or has no
	// Observer. So an Observer that keeps something of an operation, such as its span, can know when it has heard all of it.
	Tell func(of any, ctx context.Context, key string) bool
)
