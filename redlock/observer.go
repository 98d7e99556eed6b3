package redlock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
)

// An Observer is told what a client does, for traces and metrics. Each func may be nil. It may
// call the client, but must neither block nor close the client.
type Observer struct {
	// Opened is called once, before Open or New returns the client. What is told of masters may come before.
	Opened func(c *Client)
	// Round is called after each attempt to take a lock, each extension, each release and each
	// revocation, but not after a round that only asks. The context is the operation's; for a renewal it is that of
	// KeepAlive. A Lock that is handed over within the client has no round (Config.Handovers);
	// HandedOver and WaitEnd tell of it. The Unlock that hands it over has one, which it may share with others.
	Round func(ctx context.Context, r Round)
	// WaitStart is called when a Lock has to wait, Wake when it stops
	// waiting to try again, and WaitEnd when it returns, with its error.
	WaitStart func(ctx context.Context, key string)
	// HandedOver is called when a Lock is given the lock by the holder before it, within the
	// client, before it returns (Config.Handovers).
	HandedOver func(ctx context.Context, h HandOver)
	Wake       func(ctx context.Context, key string, why Wake)
	WaitEnd    func(ctx context.Context, key string, waited time.Duration, err error)
	// LetGo is called when a holder lets go of its lock, before any master or waiter is told. From
	// then on the holder does not rely on the lock. Another can have it before Round tells
	// what has become of the release.
	LetGo func(l LetGo)
	// Lost is called when a KeepAlive's context has ended because the lock was lost, or revoked
	// (ErrRevoked).
	Lost func(ctx context.Context, key string, err error)
	// Master is called when a master's phase, or the reason for it, changes, and by Close, which
	// ends the connections. The calls are in order. A master that can never serve as it is
	// configured is PhaseRefused. Stats tells what else changes, such as a master's debts.
	Master func(m MasterStats)
}

// A Round is what an Observer is told of one.
type Round struct {
	Op       Op // OpLock, OpExtend, OpUnlock, OpRenew, OpRecheck, or OpRevoke: of another's lock, whose token it has
	Key      string
	Asked    int           // masters: fewer than all if a contender was refused by the first (see Lock)
	Took     time.Duration // from the round's start to its decision
	Votes    []Vote        // one for each master; valid only until the call returns
	Validity time.Duration // what is left of the lock's, if it succeeded; 0 for "unlock", and if it was unlocked meanwhile
	Held     time.Duration // for how long the lock was held, for "unlock"; 0 if it was handed over, as nobody knows
	Err      error         // nil if it succeeded; see Outcome
	// Failures is how many failures the Observer was told of before: of "lock", those of the same
	// Lock, but for ErrHeld; of "renew", those since the last renewal; and if Err is ErrNotHeld, 1
	// if Lost, or another Round, has told of the loss of this lock.
	Failures int

	Started time.Duration // when the round began, on the clock of package clock; 0 if no master was asked
	TTL     time.Duration // the lock's
	Fence   uint64        // the lock's, if the round knows it; 0 without one
	Holders int           // how many can hold the lock at a time: 1, the number of permits, or 0 for readers, and of OpRevoke
	Keys    []string      // of a lock on several keys, all as the masters have them, with Config.Prefix; nil for one key

	token *[]byte // package fmt does not follow it
}

// TokenHash returns a hash of the token: the first 8 bytes of its SHA-256, in big-endian order. By
// it, what several clients were told of one lock can be put together. Nobody can find the token by
// it. It is 0 if there is no token. It is valid only until the call of the Observer returns.
func (r *Round) TokenHash() uint64 { return tokenHash(r.token) }

// A HandOver is what an Observer is told of a lock that was handed over within the client.
type HandOver struct {
	Key      string
	Fence    uint64        // the new holder's; 0 without one
	Validity time.Duration // what is left of the lock's

	token *[]byte
}

// TokenHash is that of [Round.TokenHash]. The holders that have the lock one after the other have one token.
func (h *HandOver) TokenHash() uint64 { return tokenHash(h.token) }

// A LetGo is what an Observer is told of a lock whose holder lets go of it.
type LetGo struct {
	Key string
	// GivenBack says that no caller has unlocked it: the client gives it back. Its second lock could not be taken
	// (WithSecond), or is lost, and nobody keeps the lock alive. Or its caller does not know of it, as a context or an
	// Observer has panicked. Or it has ended, and the Mutex takes the next one.
	GivenBack bool

	token *[]byte
}

// TokenHash is that of [Round.TokenHash].
func (l *LetGo) TokenHash() uint64 { return tokenHash(l.token) }

func tokenHash(token *[]byte) uint64 {
	if token == nil || len(*token) == 0 {
		return 0
	}
	key := maphash.Bytes(tokenHashes.seed, *token)
	known := &tokenHashes.known[key%uint64(len(tokenHashes.known))]
	if h := known.hash.Load(); known.check.Load() == h^key {
		return h
	}
	sum := sha256.Sum256(*token)
	h := binary.BigEndian.Uint64(sum[:])
	known.hash.Store(h)
	known.check.Store(h ^ key)
	return h
}

// tokenHashes are the hashes that were asked for the last, so that the Unlock does not calculate that of the Lock again.
// A goroutine that finds one that is half written finds that the check does not fit.
var tokenHashes = struct {
	seed  maphash.Seed
	known [256]struct{ hash, check atomic.Uint64 } // check is the hash XOR the token's sum
}{seed: maphash.MakeSeed()}

// A Wake says why a waiting Lock tries again.
type Wake string

const (
	// WakeTurn: all waiters ahead of it in this client's queue are gone.
	WakeTurn Wake = "turn"
	// WakeReleased: the lock was released in this client.
	WakeReleased Wake = "released"
	// WakeFree: a majority of the masters notified that the key has changed, if only because its
	// holder renewed it; or the key was free there when they were asked.
	WakeFree Wake = "free"
	// WakeExpiry: the key's TTL has passed on a majority of the masters.
	WakeExpiry Wake = "expiry"
	// WakePoll: too few masters can notify (no RESP3, no permission for CLIENT
	// TRACKING), or too few are up, and a pause has passed.
	WakePoll Wake = "poll"
)

// A Phase is the state of the connection to a master. The words are those of [mux.Phase].
type Phase string

const (
	PhaseDialing     Phase = "dialing"     // it was never connected, and no dial has failed yet
	PhaseUp          Phase = "up"          // it is connected, and votes
	PhaseStalled     Phase = "stalled"     // it owed answers for longer than Config.StallTime; it is dialled again
	PhaseDown        Phase = "down"        // its connection has ended, or could not be made; it is dialled again
	PhaseRefused     Phase = "refused"     // it can never serve as it is configured; it is dialled again all the same
	PhaseQuarantined Phase = "quarantined" // it is connected, and has no vote: it may have forgotten locks
)

// MasterStats is one master.
type MasterStats struct {
	Addr     string // its address, never with a password
	Place    int    // in Config.Masters, from 0 on; Replace gives it another address
	Phase    Phase
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
		Phase:    Phase(m.Phase.String()),
		RTT:      m.RTT,
		Replies:  m.Replies,
		Failures: m.Failures,
		Owed:     m.Owed,
		Debts:    m.Debts,
		RunID:    m.Server.RunID,
		Ahead:    m.Server.Ahead,
		Within:   m.Server.Within,
		Uptime:   m.Server.Uptime,
		Notifies: canNotify(&m),
	}
	if m.Err != nil {
		s.Err = m.Err.Error()
	}
	return s
}

func (o *Observer) round(ctx context.Context, r Round) {
	if o.Round != nil {
		o.Round(ctx, r)
	}
}

func (o *Observer) waitStart(ctx context.Context, key string) {
	if o.WaitStart != nil {
		o.WaitStart(ctx, key)
	}
}

func (o *Observer) handedOver(ctx context.Context, h HandOver) {
	if o.HandedOver != nil {
		o.HandedOver(ctx, h)
	}
}

func (o *Observer) letGo(l LetGo) {
	if o.LetGo != nil {
		o.LetGo(l)
	}
}

func (o *Observer) wake(ctx context.Context, key string, why Wake) {
	if o.Wake != nil {
		o.Wake(ctx, key, why)
	}
}

func (o *Observer) waitEnd(ctx context.Context, key string, waited time.Duration, err error) {
	if o.WaitEnd != nil {
		o.WaitEnd(ctx, key, waited, err)
	}
}

func (o *Observer) lost(ctx context.Context, key string, err error) {
	if o.Lost != nil {
		o.Lost(ctx, key, err)
	}
}

func (o *Observer) master(m MasterStats) {
	if o.Master != nil {
		o.Master(m)
	}
}

// canNotify reports whether a master is up and can notify of changes.
func canNotify(s *mux.State) bool { return s.Phase == mux.Up && s.Server.Tracking }
