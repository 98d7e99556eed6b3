package held

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

// A Core is what the locks are given of a client.
type Core struct {
	Round     *round.Core
	Tracking  *tracking.Registry
	Now       func() time.Duration
	Masters   int // how many there are
	Handovers int // how often a lock is handed over in a row; below 0 without limit
	Teller    Teller
	Queues    Queues

	counts *Counts
}

// A Teller makes the errors of a client, and tells its Observers. It never calls them: it can be asked under any lock, but
// for Failure.Blame.
type Teller interface {
	// Failure makes the error of a round. err is the mux's, and reason is what the votes say.
	Failure(op, key string, k *round.Call, err, reason error) Failure
	// Ended makes the error with which the context of a KeepAlive ends. last is how the last renewal has failed, and second
	// is how the second lock was lost; either is nil if it was not.
	Ended(key string, why End, last Failure, second error) error
	// Round tells of a round. left is what is left of the lock's validity. f is nil if it has succeeded.
	Round(ctx context.Context, op, key string, k *round.Call, left time.Duration, f Failure)
	// Lost tells that the context of a KeepAlive has ended, as the lock is lost. The token is nil if it is not known any more.
	Lost(ctx context.Context, key string, token *[]byte, why error)
	// HandedOver tells of a lock that was handed over to its holder within the process.
	HandedOver(ctx context.Context, key string, token []byte, fence uint64, left time.Duration)
	// LetGo tells that a holder lets go of its lock.
	LetGo(key string, token []byte, givenBack bool)
	// Observed reports whether there is anybody to tell.
	Observed() bool
}

// A Failure is the error of a round that has failed, as far as this package goes by it.
type Failure interface {
	Reason() error  // one of package quorum's, ErrClosed or ErrSecond; nil if it was not decided
	Revoked() bool  // the lock is gone because it was revoked
	Entombed() bool // a master has the lock's tombstone

	Note(text string)                     // adds what a reader is to know
	Second(err error)                     // adds how the release of the second lock has failed
	Blame(ctx context.Context, err error) // adds that the context has ended the round, if it has. It asks the context
}

// Replaced is the note of what lacks a vote that cannot be believed.
const Replaced = "a master was replaced by another"

// The operations.
const (
	OpExtend  = "extend"
	OpUnlock  = "unlock"
	OpRenew   = "renew"
	OpRecheck = "recheck"
)

// The reasons of a failure that package quorum does not have: see redlock.
var (
	ErrClosed = errors.New("redlock: client is closed")
	ErrSecond = errors.New("redlock: the second lock failed")
)

// Queues are those who wait for locks in this client, and what is known of those in others.
type Queues interface {
	// HandOver gives the lock to the next waiter, if it wants one like it, and if the client is not shut down. It reports
	// whether it has.
	HandOver(s *round.Spec, by Giver) bool
	Released(slot int, names []string)                     // the lock is free
	NoteReleased(now, since time.Duration, names []string) // it is, and was taken then
	NoteOthers(now time.Duration, wait bool, name string)  // whether others wait. The mux is locked
	Counted(in *line.Given, name string)                   // the number of a lock that was given is known
	AskOthers(k *round.Call, name string) (encoded bool)   // encodes the question whether others wait
}

// A Giver is a release whose lock can be given to a waiter. It is asked under the locks of the queues.
type Giver interface {
	GoesOn(handovers int) (yes, again bool) // whether, after so many in a row, and whether they are counted anew then
	Give() *line.Given                      // nil if it cannot be given
}

// Counts are what was counted of the locks of a client.
type Counts struct {
	Released, ReleaseFailed   atomic.Uint64
	Extended                  atomic.Uint64
	Renewals, RenewalsFailed  atomic.Uint64
	RenewalsNotified          atomic.Uint64
	Lost, Revoked             atomic.Uint64
	Raised                    atomic.Uint64 // locks that took a second round to agree on their fence; attempts count theirs here, too
	SecondTaken, SecondFailed atomic.Uint64
	SecondTime                atomic.Int64
}
