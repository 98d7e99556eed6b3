package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
)

// An Option sets how a Mutex differs from others of its client. It is for [Client.NewMutex],
// [Client.Do], [Client.Acquire], [Client.Lead] and [Client.Holders], and changes no Mutex that exists.
type Option func(*options)

// options are what the options of one Mutex have set.
type options struct {
	more     []string // further keys
	fence    bool
	shared   bool
	permits  int    // 0 for a lock without permits
	token    string // that was handed over; empty for none
	owner    string // that tokens name; empty for the client's
	lifetime time.Duration
	minHold  time.Duration // how long a lock stays on the masters at least; 0 if it does not stay
	second   Second        // takes the second lock; nil for none
	wait     time.Duration // how long Do and Acquire wait for the lock, if bounded
	bounded  bool
	invalid  error // why they cannot be used; nil if they can
}

// chosen returns what the options set.
func chosen(opts []Option) options {
	if len(opts) == 0 {
		return options{}
	}
	o := new(options) // on the heap, as an Option may keep it
	for _, opt := range opts {
		if opt == nil {
			o.invalid = errors.New("an option is nil")
			continue
		}
		opt(o)
	}
	return *o
}

const (
	// A key goes back and forth with every command, and a master's push names it: a key that
	// filled a connection's buffers would be in the way of all the others.
	maxKey = 16 << 10

	maxKeys         = 64        // of one lock
	maxKeysTogether = 256 << 10 // bytes: each command has all keys
)

// checkKey says why there can be no lock on a key.
func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty")
	case len(key) > maxKey:
		return fmt.Errorf("the key has %d bytes, and %d are the most", len(key), maxKey)
	}
	return nil
}

// choose gives the lock the traits that the options ask for.
func (o *options) choose(s *round.Spec, h *round.Hints) error {
	plain := s.Traits
	if err := o.chooseKind(s, h); err != nil {
		return err
	}
	if o.owner == "" && o.minHold == 0 && o.second == nil {
		return nil
	}
	if o.second != nil {
		switch {
		case s.Traits != plain:
			return errors.New("a second lock is behind a lock on one key, with one holder, whose fence is its own: WithSecond goes with none of WithFence, WithKeys, WithPermits, WithShared")
		case o.token != "":
			return errors.New("a second lock cannot be handed over: WithSecond and WithToken do not go together")
		}
	}
	t, ok := *s.Traits, true
	if o.minHold > 0 {
		t.Lingers, ok = s.Kind.(kind.Lingering)
	}
	if !ok {
		return errors.New("readers hold the lock together, and writers wait: WithMinHold and WithShared do not go together")
	}
	t.Owner, t.MinHold, t.Second = o.owner, o.minHold, o.second
	s.Traits = &t
	return nil
}

// chooseKind gives the lock the kind that the options ask for.
func (o *options) chooseKind(s *round.Spec, h *round.Hints) error {
	keys, err := sortedKeys(s, o.more)
	several := len(keys) > 1
	ambiguous := kind.Ambiguous(s.OnMasters()) || slices.ContainsFunc(keys, kind.Ambiguous)
	t := &round.Traits{Prefixed: s.Prefixed}
	life := max(s.Term.TTL, o.minHold)
	switch {
	case err != nil:
		return err
	case !(o.fence || o.shared || o.permits > 0 || several):
		return nil
	case ambiguous && (o.fence || o.shared || o.permits > 0):
		return errAmbiguous
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
		if !kind.PermitsFit(s.OnMasters(), o.permits) {
			return fmt.Errorf("%d permits on a key of %d bytes are too many to be read at once", o.permits, len(s.Key))
		}
		p := kind.NewPermits(s.OnMasters(), life, o.permits)
		s.Kind, t.Slotted, t.QueueNames = p, p, []string{p.Prefix}
	case o.shared && o.fence:
		t.Numbers, t.Reader = kind.NewSharedFenced(s.OnMasters(), life, &h.Counters), true
	case o.shared:
		s.Kind, t.Reader = kind.NewShared(s.OnMasters()), true
	case several && o.fence:
		t.QueueNames = keys
		t.Numbers = kind.NewSeveralFenced(kind.NewSeveral(keys), life, &h.Counters)
	case several:
		s.Kind, t.QueueNames = kind.NewSeveral(keys), keys
	default:
		t.Numbers = kind.NewFenced(s.OnMasters(), life, &h.Counters)
	}
	if t.Numbers != nil {
		s.Kind = t.Numbers
	}
	s.Traits = t
	return nil
}

var errRevokedToken = errors.New("a token that begins with revoked: would be taken for a lock that was revoked")

var errReserved = errors.New("the name, with the prefix if there is one, is one of those that are kept beside a lock, such as {key}:fence")

var errAmbiguous = errors.New("the name, with the prefix if there is one, has a } and no hash tag: what stands beside the lock would have the name of what stands beside another")

// sortedKeys returns the keys of a lock with Config.Prefix, sorted and without duplicates; nil without further keys.
func sortedKeys(s *round.Spec, more []string) ([]string, error) {
	if len(more) == 0 {
		return nil, nil
	}
	if slices.Contains(more, "") {
		return nil, errors.New("one of the keys is empty")
	}
	keys := append(slices.Clone(more), s.Key)
	if prefix := strings.TrimSuffix(s.Prefixed, s.Key); prefix != "" {
		for i := range keys {
			keys[i] = prefix + keys[i]
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	bytes := 0
	for _, key := range keys {
		bytes += len(key)
		switch {
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

// WithKeys makes the Mutex a lock on several keys, all or none: on the key that NewMutex is
// given, and on these. It is taken in one round, and lost if one of the keys is lost. Each key is
// locked as by a lock on it alone, so the Mutex and such a lock, also one of another library,
// exclude each other.
//
// The order of the keys means nothing, and a key that is given twice is one. A lock has at most
// 64 keys, which have at most 256 KiB together. Every master has all of them. In a Redis Cluster, the
// hash tag of Config.Prefix puts them into one slot.
//
// No waiter holds one key while it waits for another, so no order of locks can block. In Lock,
// waiters of one client that share a key get it in the order in which they came. A waiter for
// several keys is in the queue of each, and later waiters for any of them wait behind it. TryLock
// bypasses the queues. Between processes no waiter is starved either: see
// docs/how-it-works.md.
func WithKeys(more ...string) Option {
	return func(o *options) { o.more = append(o.more, more...) }
}

// WithFence gives each lock that the Mutex takes a fence ([Mutex.Fence], [FenceFrom]): a number
// that is greater than that of every earlier holder of the key. If the resource refuses every
// number lower than one that it has seen, it is safe from a holder that was paused beyond its
// lock's validity, and from a request that was late on its way.
//
// Every process that takes the key must use it. What a process without it writes has no number,
// though its lock excludes the others, and is excluded, all the same. A lock takes a second round
// only where the masters' counters differ ([Stats].FenceRaised).
//
// With [WithKeys] the number is greater than that of every earlier holder of any of the keys.
// With [WithShared] it lies between those of the writers before and after.
//
// The masters keep a counter beside each key, {key}:fence, for Config.FenceMemory after its last
// use. An ACL that limits keys must allow it. The user also needs the right to TIME: without it,
// a counter that a person wrote is not set back. internal/quorum/fence.go has the algorithm and its proof.
// The numbers grow if a majority of all masters have had the last one and remember it, or else if
// the clients' wall clocks differ by less than the masters were down, or by less than
// Config.RestartGuard if that is longer. (A lock is taken on a majority; the other masters get
// its number when it is extended.)
func WithFence() Option { return func(o *options) { o.fence = true } }

// WithShared makes the Mutex a reader's: any number of readers hold the lock together, or one
// writer alone. A writer is a Mutex on the same key without this option, or another Redlock
// library. Each reader has its own TTL. It is extended, repaired and released by itself.
//
// A writer that has waited in Lock for 100 ms, and finds readers, has new readers refused.
// Readers that hold the lock may stay, and extend it. A new reader's TryLock fails with ErrHeld
// meanwhile. A writer that waits for another writer does not do so yet: when that writer releases
// the lock, a new reader can be faster. A reader that waits in Lock lets only those writers go
// first that came before it.
//
// With [WithFence] a reader has a number, too: above that of every earlier writer, and below that
// of every later one. Readers that hold the lock together mostly have the same number. So a
// resource refuses a write whose number is below any that it has seen, and a read whose number is
// below that of the last write.
//
// The key must be the lock's own. A sorted set that another program keeps there would be taken
// for readers: it would lose members, and expire. (A lock of another kind leaves alone whatever
// it finds.)
//
// It needs Redis 5 or later, and an ACL that allows the key {key}:writer, TIME, TYPE, PEXPIREAT
// and the commands of sorted sets: package conn has all of it.
func WithShared() Option { return func(o *options) { o.shared = true } }

// WithPermits makes the lock one that up to k holders have at a time; k is 1 to 1,000. There are
// never more than k, as long as the masters and their clocks keep their promises, and whichever
// minority fails. Each permit has a TTL of its own: when its holder dies, the permit is free
// again once that has passed. All else is as for a lock with one holder.
//
// All processes must agree on k. The masters refuse a process with another k: its attempts fail
// with ErrNoQuorum, and a *mux.ReplyError with the code PERMITS says the others' k and its own.
// TryLock returns that at once. Lock waits until the others are gone: until their TTL and two
// minutes more have passed since the last of them has used the lock. docs/kinds.md says how
// k is changed without such a pause.
//
// While permits are plenty, it costs what a lock with one holder costs. When few are free, an
// attempt may find its permit taken; then it reads all of them, and tries one that is free.
// Waiters do the same after each change of a permit, renewals included. So k is limited. A long
// key limits it further: k times 40 bytes more than the key has must not exceed 698,026 bytes.
// TryLock fails with ErrHeld if no permit is free, or if others were faster in each of several
// tries.
//
// The keys are {key}:permit:1/k to {key}:permit:k/k, each a lock by itself, and {key}:permits. An
// ACL that limits keys must allow them. A lock on the same key without WithPermits has nothing to
// do with them, and neither excludes the other. WithPermits goes with neither WithFence nor any
// other kind of lock.
func WithPermits(k int) Option {
	return func(o *options) {
		if k < 1 || k > kind.MaxPermits {
			o.invalid = fmt.Errorf("%d permits are not possible: 1 to %d are", k, kind.MaxPermits)
			return
		}
		o.permits = k
	}
}

// WithToken makes the Mutex hold the lock that was taken under this token, here or in another
// process ([Mutex.Token]). The Mutex can extend and release it. Its validity is unknown before
// the first Extend. The former holder must not use the lock any more, nor its Mutex: that releases
// what it had when it takes another lock. A token has 1 to 4,096 bytes.
func WithToken(token string) Option {
	return func(o *options) {
		switch {
		case token == "":
			o.invalid = errors.New("the token that was handed over is empty")
		case strings.HasPrefix(token, kind.RevokedPrefix):
			o.invalid = errRevokedToken
		case len(token) > kind.MaxToken:
			o.invalid = fmt.Errorf("the token that was handed over has %d bytes, and %d are the most", len(token), kind.MaxToken)
			return
		}
		o.token = token
	}
}

// WithOwner publishes a value with the lock, in place of Config.Owner. [Client.Watch],
// [Holder].Owner and [RoundError].HeldBy tell it to all that ask who holds the lock. An address
// is of most use, so that others find the holder. The value is a part of the token, so it comes
// and goes with the lock. It is printable ASCII without spaces, 1 to 128 bytes. It
// is a hint: any user who may write the key can publish any value. So a client of a published
// address checks who answers there, by TLS for example.
func WithOwner(value string) Option {
	return func(o *options) {
		if value == "" {
			o.invalid = errors.New("the owner is empty")
		} else if err := kind.CheckOwner(value); err != nil {
			o.invalid = err
		}
		o.owner = value
	}
}

// WithWait bounds how long [Client.Do] and [Client.Acquire] wait for the lock, apart from the context of the work.
// With 0 they make one attempt, as [Mutex.TryLock] does. Without this option they wait until their
// context ends. d must not be below zero.
//
// If the lock cannot be had in that time, the error wraps ErrHeld or ErrNoQuorum, and not the
// context's error: that says that the context has ended. With a d above 0, the error names a
// holder, as that of [Mutex.Lock] does. With 0 it mostly names none, as that of TryLock. No attempt is cut short, so they may return a
// round later, and no d is too short for one attempt. If nobody can be named when d is over, one more
// attempt follows.
//
// If several clients make one attempt each at the same moment, and split the masters' votes, one of
// them gets the lock all the same. Only where an error wraps [ErrSplit], perhaps nobody has it.
//
// NewMutex refuses this option: Lock has a context, and TryLock does not wait.
func WithWait(d time.Duration) Option {
	return func(o *options) {
		if d < 0 {
			o.invalid = fmt.Errorf("wait %v is below zero", d)
		}
		o.wait, o.bounded = d, true
	}
}

// WithMinHold leaves the lock on the masters, when it is released, until d has passed since it
// was taken. So work that takes less than d runs once in d: a process that comes later by less
// than d, as its clock is late or as it has waited, finds the lock held. Give it a d that is a
// good deal shorter than the period of the work: four minutes for a job of every five minutes.
// With [WithPermits] at most k runs begin in d.
//
// d counts from the beginning of the round that took the lock, as the validity does. On the
// masters it is longer by the clock drift that is allowed for. A lock that is held for longer
// than d is deleted when it is released.
//
//   - [Mutex.Unlock] leaves the lock, and [Mutex.UnlockNow] does not. [Client.Do] leaves it if
//     its function returns nil, and deletes it if that fails, panics or never runs, so that the
//     next one may try at once. [Client.Acquire] leaves it. A function that must not be tried again in the period keeps its
//     error to itself, and returns nil.
//   - If a holder dies, or forgets to unlock, its lock stays for d or for the TTL, whichever is
//     longer: the masters are told both when the lock is taken, and with each Extend and renewal.
//     So the TTL can be much shorter than d. If d is longer than the TTL, masters that restart do
//     not vote for d. Config.RestartGuard, if it is set, must not be below d with the drift.
//   - A release that comes late, or is owed to a master that is down, makes no key last longer.
//   - When a lost lock is released, it stays on the masters where it is still ours. Another's
//     lock stays as it is. One that was revoked is deleted ([Client.Revoke]), but not by a Mutex.Release
//     that is the first to find that out.
//   - It is not known when a lock was taken that was handed over ([WithToken]). d counts from the
//     first Extend, or from Unlock: the lock may stay for longer, but never for less.
//
// Results are those of any Unlock: nil if a quorum still had the lock. It goes with all options
// but [WithShared]. d must be above zero.
func WithMinHold(d time.Duration) Option {
	return func(o *options) {
		if d <= 0 {
			o.invalid = fmt.Errorf("least hold %v is not above zero", d)
			return
		}
		o.minHold = d
	}
}

// WithSecond adds a lock in another system to the lock on the masters: in an etcd cluster or a
// ZooKeeper ensemble, by the modules under redlock/contrib. A holder of the lock has both. The
// masters come first, and keep the crowd away: they let one client at a time ask the other
// system. The other system is the authority: while a client has its lock, no other client has
// both, whatever becomes of the masters' clocks and memories. Every process that takes the key
// must use it.
//
//   - Neither system stands in for the other. If the other system is down, no client gets the
//     lock: TryLock fails with ErrSecond, and Lock goes on trying. If too few masters answer, no
//     client gets it either.
//   - The lock on the masters is renewed while Lock waits for the second one, and released if the
//     second one cannot be had. Unlock releases the second lock first. It waits for that until
//     its context ends, or the validity does, and then it releases the lock on the masters. It
//     fails with ErrSecond if the other system has not confirmed.
//   - The lock is lost when either is lost: KeepAlive's context ends then. If the second lock is
//     lost, the masters' lock is released. If the masters' lock is lost, the second one remains
//     until Unlock, or until the end of the last validity that Remaining has returned: a holder that
//     goes by that is alone until then. As another goroutine may be that holder, TryLock on the
//     same Mutex fails with ErrHeld meanwhile, and Lock waits.
//   - [Mutex.Fence] is the fence of the second lock: etcd's revision, ZooKeeper's zxid. So
//     WithFence is refused, and so are WithKeys, WithPermits, WithShared and WithToken.
//   - [WithMinHold] leaves only the lock on the masters: the second lock is released at once.
//   - Closing the client releases nothing. The second lock ends with the validity, or with its
//     own session.
//
// It costs what a lock of the other system costs, which writes to disk: a lock takes
// milliseconds.
func WithSecond(s Second) Option {
	return func(o *options) {
		if s == nil {
			o.invalid = errors.New("the second lock is nil")
		}
		o.second = s
	}
}

// WithMaxLifetime bounds how long KeepAlive renews the lock: for d since it was taken, or since
// KeepAlive was called if the lock was handed over ([WithToken]). So a holder that hangs does not
// keep it for ever. d must be above zero.
//
// The context ends then with the cause [ErrMaxLifetime], and Do returns that error. It is no
// loss: no other has had the lock, which stays valid for what Remaining says, or until Unlock.
func WithMaxLifetime(d time.Duration) Option {
	return func(o *options) {
		if d <= 0 {
			o.invalid = fmt.Errorf("maximum lifetime %v is not above zero", d)
		}
		o.lifetime = d
	}
}
