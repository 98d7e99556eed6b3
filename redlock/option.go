package redlock

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
)

// An Option says how a Mutex differs from others of its client. It is for [Client.NewMutex] and
// [Client.Do], and changes no Mutex that exists.
type Option func(*options)

// options is what the options of one Mutex have come to.
type options struct {
	kind        kind.Kind
	more        []string // further keys
	fence       bool
	shared      bool
	permits     int    // 0 for a lock that has none
	token       string // that was handed over; empty if none was
	owner       string // that is named in tokens; empty for the client's
	timeout     time.Duration
	lifetime    time.Duration
	minHold     time.Duration // that a lock is left on the masters; 0 for not at all
	holdOnError bool          // ... also by Do if its function fails
	second      Second        // behind the lock; nil for none
	wait        time.Duration // of Do for the lock, if bounded
	bounded     bool
	invalid     error // what is wrong with them
}

const (
	// A key goes back and forth with every command, and a master's push names it:
	// one that fills a connection's buffers would be in the way of all the others.
	maxKey = 16 << 10

	maxKeys         = 64        // of one lock
	maxKeysTogether = 256 << 10 // bytes: all of them are in each command
)

// choose makes the lock the one that the options ask for.
func (o *options) choose(s *spec, h *hints) error {
	if err := o.chooseKind(s, h); err != nil {
		return err
	}
	if o.holdOnError && o.minHold == 0 {
		return errors.New("WithHoldOnError says for how long only with WithMinHold")
	}
	if o.owner == "" && o.minHold == 0 && o.second == nil {
		return nil
	}
	if o.second != nil {
		switch {
		case s.traits != &ordinary:
			return errors.New("a second lock is behind a lock on one key, with one holder, whose fence is its own: WithSecond goes with none of WithFence, WithKeys, WithPermits, WithShared")
		case o.token != "":
			return errors.New("a second lock cannot be handed over: WithSecond and WithToken do not go together")
		}
	}
	t, ok := *s.traits, true
	if o.minHold > 0 {
		t.lingers, ok = s.kind.(kind.Lingering)
	}
	if !ok {
		return errors.New("readers hold the lock together, and writers wait: WithMinHold and WithShared do not go together")
	}
	t.owner, t.minHold, t.second = o.owner, o.minHold, o.second
	s.traits = &t
	return nil
}

// chooseKind makes the lock one of the kind that the options ask for.
func (o *options) chooseKind(s *spec, h *hints) error {
	keys, err := sortedKeys(s.key, o.more)
	_, open := o.kind.(kind.Plain) // to be made another
	several := len(keys) > 1
	t := new(traits)
	life := max(s.term.ttl, o.minHold)
	switch {
	case err != nil:
		return err
	case !(o.fence || o.shared || o.permits > 0 || several):
		return nil
	case !open:
		return errors.New("a lock of this kind is of no other kind, too")
	case o.permits > 0 && o.fence:
		return errors.New("a lock with permits has no fence: WithPermits and WithFence do not go together")
	case o.permits > 0 && o.shared:
		return errors.New("WithPermits and WithShared do not go together")
	case o.permits > 0 && several:
		return errors.New("WithPermits and WithKeys do not go together")
	case o.shared && several:
		return errors.New("WithShared and WithKeys do not go together")
	case o.permits > 0:
		if _, _, of := kind.CutSlot(o.token); o.token != "" && of != o.permits {
			return fmt.Errorf("the token that was handed over is not that of one of %d permits", o.permits)
		}
		if !kind.PermitsFit(s.key, o.permits) {
			return fmt.Errorf("%d permits on a key of %d bytes are too many to be read at once", o.permits, len(s.key))
		}
		p := kind.NewPermits(s.key, life, o.permits)
		s.kind, t.slotted, t.queueNames = p, p, []string{p.Prefix}
	case o.shared && o.fence:
		t.numbers, t.reader = kind.NewSharedFenced(s.key, life, &h.Counters), true
	case o.shared:
		s.kind, t.reader = kind.NewShared(s.key), true
	case several && o.fence:
		t.queueNames = keys
		t.numbers = kind.NewSeveralFenced(kind.NewSeveral(keys), life, &h.Counters)
	case several:
		s.kind, t.queueNames = kind.NewSeveral(keys), keys
	default:
		t.numbers = kind.NewFenced(s.key, life, &h.Counters)
	}
	if t.numbers != nil {
		s.kind = t.numbers
	}
	s.traits = t
	return nil
}

var errReserved = errors.New("the name is one of those that are kept beside a lock, such as {key}:fence")

// sortedKeys returns the keys of a lock, sorted and each once.
func sortedKeys(key string, more []string) ([]string, error) {
	if len(more) == 0 {
		return nil, nil
	}
	keys := append(slices.Clone(more), key)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	bytes := 0
	for _, key := range keys {
		bytes += len(key)
		switch {
		case key == "":
			return nil, errors.New("one of the keys is empty")
		case kind.Reserved(key):
			return nil, errReserved
		case len(key) > maxKey:
			return nil, fmt.Errorf("one of the keys has %d bytes, and %d are the most", len(key), maxKey)
		}
	}
	switch {
	case len(keys) > maxKeys:
		return nil, fmt.Errorf("there are %d keys, and %d are the most", len(keys), maxKeys)
	case bytes > maxKeysTogether:
		return nil, fmt.Errorf("the keys have %d bytes together, and %d are the most", bytes, maxKeysTogether)
	}
	return keys, nil
}

// WithKeys makes the Mutex a lock on several keys, all or none: on the one that NewMutex is given,
// and on these. It is taken in one round, and lost if one of the keys is. For each key it is a lock
// as any other: a lock on one of them excludes it, and is excluded, also one of another library.
//
// The order of the keys means nothing, and a key that is given twice is one. A lock has at most 64
// keys, which have at most 256 KiB together. All of them are on each master: a cluster cannot
// serve.
//
// Nobody holds one key while it waits for another, so no order of locks can block. In Lock, those
// of one client that share a key have it in the order in which they came. So while one waits
// for its keys, those that come after it wait behind it for each of them. TryLock bypasses the queues. Between
// processes no waiter is starved either: see "How it waits" in the package comment.
func WithKeys(more ...string) Option {
	return func(o *options) { o.more = append(o.more, more...) }
}

// WithFence gives each lock that the Mutex takes a fence ([Mutex.Fence], [FenceFrom]): a number
// that is greater than that of every earlier holder of the key. A resource that refuses a number
// lower than one it has seen is safe from a holder that was paused beyond its lock's validity,
// and from a request that was late on its way.
//
// Every process that takes the key must use it, or what that process writes has no number: a
// lock without one excludes others, and is excluded, all the same. It takes a second round only
// where the masters' counters differ ([Stats].FenceRaised).
//
// With [WithKeys] the number is greater than that of every earlier holder of any of the keys. With
// [WithShared] it lies between those of the writers before and after.
//
// The masters keep a counter beside each key, {key}:fence, for Config.FenceMemory after its last
// use. An ACL that limits keys must allow it, and TIME: without that, a counter that somebody wrote is not
// set back. decide_fence.go has the algorithm and its proof. It is
// relied on that a majority of all masters have had the number and remember it, or else that the
// clients' wall clocks differ by less than the masters were down, or Config.RestartGuard if that is
// longer. (A lock is taken on a majority; the others have its number once it is extended.)
func WithFence() Option { return func(o *options) { o.fence = true } }

// WithShared makes the Mutex that of a reader: any number of readers hold the lock together, or
// one writer alone. A writer is a Mutex on the same key without this option, or another Redlock
// library. Each reader has its own TTL, and each is extended, repaired and released by itself.
//
// A writer that has waited in Lock for 100 ms, and finds readers, asks that no new ones be let in: those
// that are there may stay, and extend their locks. Then TryLock of a reader fails with ErrHeld. A writer
// that waits for another writer has not asked yet: when that lets go, a new reader can be the faster. A
// reader that waits in Lock lets only writers go first that waited already.
//
// With [WithFence] a reader has a number, too: above that of every earlier writer, and below that of
// every later one. Readers that hold the lock together mostly have the same. So a resource refuses a
// write whose number is below any that it has seen, and a read whose number is below that of the last
// write.
//
// The key must be the lock's own. A sorted set that is kept there for something else would be taken
// for readers: it would lose members, and expire. (A lock of another kind leaves alone whatever it finds.)
//
// It needs Redis 5 or later, and an ACL that allows the key {key}:writer, TIME, TYPE, EVAL and the
// commands of sorted sets.
func WithShared() Option { return func(o *options) { o.shared = true } }

// WithPermits makes the lock one that up to k can hold at a time, with 1 to 1,000 for k. Never more
// than k hold it, as long as the masters and their clocks keep their promises, and whichever
// minority fails. Each permit has a TTL of its own: that of a holder which has died is free again
// when it has passed. All else is as for a lock with one holder.
//
// All must agree on k. Who comes with another k is refused: its attempts fail with ErrNoQuorum, and
// a *mux.ReplyError with the code PERMITS says what k the others have, and what its own is. TryLock returns
// that at once. Lock waits until the others are gone: until their TTL and two minutes more have passed since
// the last of them has used the lock. The package comment says how k is changed without such a pause.
//
// Below capacity it costs what a lock with one holder costs. Near capacity an attempt may find its
// permit taken; then it reads all of them, and tries one that is free. Waiters do the
// same after each change of a permit, renewals included. That is why k is limited. Many permits need a key that
// is not too long, too: k times 40 bytes more than the key has must not exceed 698,026 bytes. TryLock
// fails with ErrHeld if no permit is free, or if it has lost each of some attempts to others.
//
// The keys are {key}:permit:1/k to {key}:permit:k/k, each a lock by itself, and {key}:permits. An
// ACL that limits keys must allow them. A lock on the same key without WithPermits has nothing to
// do with them, and neither excludes the other. It goes with neither WithFence nor any other kind
// of lock.
func WithPermits(k int) Option {
	return func(o *options) {
		if k < 1 || k > kind.MaxPermits {
			o.invalid = fmt.Errorf("%d permits are not possible: 1 to %d are", k, kind.MaxPermits)
			return
		}
		o.permits = k
	}
}

// WithToken makes the Mutex one that holds the lock taken under this token,
// here or in another process ([Mutex.Token]): it can be extended and released.
// Its validity is unknown before the first Extend, and whoever handed it over
// must not use it any more. A token has 1 to 4,096 bytes.
func WithToken(token string) Option {
	return func(o *options) {
		switch {
		case token == "":
			o.invalid = errors.New("the token that was handed over is empty")
		case len(token) > maxToken:
			o.invalid = fmt.Errorf("the token that was handed over has %d bytes, and %d are the most", len(token), maxToken)
			return
		}
		o.token = token
	}
}

// WithOwner publishes a value with the lock, in place of Config.Owner: whoever asks who holds the lock
// is told it ([Client.Watch], [Holder.Owner], [RoundError].HeldBy). An address is of most use, so that
// others find the holder. It is a part of the token, so it is there from the moment that the lock is
// taken, and it goes with it. It is printable ASCII without spaces, 1 to 128 bytes; [NoOwner] names nobody.
// It is a hint: whoever may write the key can publish any value. So a client of a published address checks
// who answers there, by TLS for example.
func WithOwner(value string) Option {
	return func(o *options) {
		if value == "" {
			o.invalid = errors.New("the owner is empty: NoOwner names nobody")
		} else if err := checkOwner(value); err != nil {
			o.invalid = err
		}
		o.owner = value
	}
}

// WithRoundTimeout replaces Config.RoundTimeout. It must be above zero.
func WithRoundTimeout(d time.Duration) Option {
	return func(o *options) {
		if d <= 0 {
			o.invalid = fmt.Errorf("round timeout %v is not above zero", d)
		}
		o.timeout = d
	}
}

// WithWait bounds how long [Client.Do] waits for the lock, apart from the context of the work. With 0 it
// makes one attempt, as [Mutex.TryLock] does. Without this option it waits until its context ends.
// d must not be below zero.
//
// A lock that could not be had in that time is an error that wraps ErrHeld or ErrNoQuorum, and not
// the context's error: that says that the context has ended. With a d above 0, a holder is named in
// it, as by [Mutex.Lock]. The first attempt is not cut short, so Do may return a round later, and d is
// never too short for one attempt.
//
// If several make one attempt each in the same moment, the masters' votes can be split, and nobody has
// the lock. A d of a second instead of 0 lets one of them have it.
//
// A Mutex refuses it: its Lock has a context, and TryLock does not wait.
func WithWait(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.invalid = fmt.Errorf("wait %v is below zero", d)
		}
		o.wait, o.bounded = d, true
	}
}

// WithMinHold leaves the lock on the masters, when it is released, until d has passed since it was
// taken. So what takes less than d runs once in d: whoever comes later by that much, as its clock is
// late or it has waited, finds the lock held. Give it a d that is a good deal shorter than
// the period of the work: of what runs every five minutes, four. With [WithPermits] at most k runs begin
// in d.
//
// d counts as the validity does, from the beginning of the round that took the lock, and on the masters it
// is longer by the clock drift that is allowed for. It is the least: a lock that is held for
// longer is deleted when it is released.
//
//   - [Mutex.Unlock] leaves the lock, and [Mutex.UnlockNow] does not. [Client.Do] leaves it if its function
//     returns nil, and deletes it if that fails, panics or never runs: the next one may try at once.
//     WithHoldOnError has Do leave it after a failure, too.
//   - A holder that dies, or forgets to unlock, leaves the lock for d or for the TTL, whichever is
//     longer: the masters are told both when the lock is taken, and with each Extend and renewal. So the
//     TTL can be much shorter than d. What holds for the TTL
//     holds for it, except that a dead holder's lock lasts for the longer of the two, and that masters
//     which restart do not vote for d if that is longer. Config.RestartGuard must not be below it.
//   - A release that comes late, or is owed to a master that is down, makes no key last longer.
//   - A lock that was lost is left where it is ours still. If others have it, that is theirs.
//   - Of a lock that was handed over ([WithToken]) nobody knows when it was taken. d counts from the first
//     Extend, or from Unlock: it may be held for longer, and never for less.
//
// Results are those of any Unlock: nil if a quorum had the lock still. It goes with all options but
// [WithShared]. d must be above zero.
func WithMinHold(d time.Duration) Option {
	return func(o *options) {
		if d <= 0 {
			o.invalid = fmt.Errorf("least hold %v is not above zero", d)
			return
		}
		o.minHold = d
	}
}

// WithHoldOnError has [Client.Do] leave the lock for its least time ([WithMinHold]) also if its function
// has failed or panicked: work that fails is not tried again in the period. A Mutex refuses it.
func WithHoldOnError() Option { return func(o *options) { o.holdOnError = true } }

// WithSecond puts a lock in another system behind the lock on the masters: an etcd cluster or a ZooKeeper
// ensemble, by the modules under redlock/contrib. Who has the lock has both. The masters come first, and
// keep the crowd away: of all who want the lock, one at a time asks the other system. That is the
// authority: while its lock is held nobody else holds the pair, whatever becomes of the masters' clocks and
// memories. Everybody who takes the key must use it.
//
//   - Neither stands in for the other. If the other system is down, nobody gets the lock: TryLock fails with
//     ErrSecond, and Lock goes on trying. If too few masters answer, nobody gets it either.
//   - The lock on the masters is renewed while Lock waits for the second one, and given back if that is not to
//     be had. Unlock releases the second lock first. It waits for that until its context ends, or the
//     validity does, and then it releases the lock on the masters. It fails with ErrSecond if the other system
//     has not confirmed.
//   - The lock is lost when either is: KeepAlive's context ends then. If the second one is lost, the masters' is
//     released. If that is, the second one remains until Unlock, or until the end of the last
//     validity that Until has returned: a holder that goes by Until is alone until then. Until then TryLock on the
//     same Mutex fails with ErrHeld, and Lock waits, as another goroutine may be that holder.
//   - [Mutex.Fence] is the fence of the second lock: etcd's revision, ZooKeeper's zxid. So WithFence is refused,
//     and so are WithKeys, WithPermits, WithShared and WithToken.
//   - A least hold ([WithMinHold]) is that of the masters alone: the second lock is released.
//   - Closing the client releases nothing. The second lock ends with the validity, or with its own session.
//
// It costs what the other system's lock costs, which writes to disk: a lock takes milliseconds.
func WithSecond(s Second) Option {
	return func(o *options) {
		if s == nil {
			o.invalid = errors.New("the second lock is nil")
		}
		o.second = s
	}
}

// WithMaxLifetime makes KeepAlive let go of the lock when it has been held for
// d, so that a holder that hangs does not keep it for ever. d must be above zero.
//
// The context ends then with the cause [ErrMaxLifetime], and Do returns that error. It is no loss:
// nobody else has had the lock. It is not renewed any more, and valid until Until, or Unlock.
func WithMaxLifetime(d time.Duration) Option {
	return func(o *options) {
		if d <= 0 {
			o.invalid = fmt.Errorf("maximum lifetime %v is not above zero", d)
		}
		o.lifetime = d
	}
}
