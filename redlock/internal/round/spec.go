package round

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A Spec is the part of a Mutex that never changes.
type Spec struct {
	Kind kind.Kind
	*Traits
	Key     string // without Config.Prefix, as people see it; see OnMasters
	Term    quorum.Term
	Timeout time.Duration // of a round
}

// Traits say how a lock differs from the plain one. They are apart from the spec, as all plain locks share
// the same.
type Traits struct {
	Numbers    kind.Numbered // kind, if the lock has a fence; nil without
	Slotted    kind.Slotted  // kind, if the lock has slots; nil without
	Reader     bool          // it is a reader's: other readers may have it, too
	QueueNames []string      // see Names; nil if the key is the only name
	Prefixed   string        // the key with Config.Prefix; empty without a prefix

	Owner string // in its tokens; empty for the client's owner

	Lingers kind.Lingering // kind, if the lock is left on the masters when it is released; nil without
	MinHold time.Duration  // for how long it is left, counted as the validity is; 0 without

	Second any // a Second, where the second lock is taken; nil without
}

// Ordinary are the traits of all plain locks.
var Ordinary Traits

// Names returns the names of the queues for the lock, sorted: its keys, or, if it has slots, the common beginning
// of the slots' keys. Its subscription has the same names. It allocates nothing.
func (s *Spec) Names() []string {
	switch {
	case s.QueueNames != nil:
		return s.QueueNames
	case s.Prefixed != "":
		return unsafe.Slice(&s.Prefixed, 1)
	}
	return unsafe.Slice(&s.Key, 1)
}

// OnMasters returns the key as the masters have it.
func (s *Spec) OnMasters() string { return cmp.Or(s.Prefixed, s.Key) }

// Life returns for how long an attempt sets the lock: for the TTL, or for minHold if that is longer.
func (s *Spec) Life() time.Duration { return max(s.Term.TTL, s.MinHold) }

// Plural reports whether several holders can have the lock at a time.
func (t *Traits) Plural() bool { return t.Reader || t.Slotted != nil }

// CanStay reports whether the lock can stay in the process when it is unlocked: it has one holder, no least time, and no
// second lock.
func (s *Spec) CanStay() bool {
	_, ok := s.Kind.(kind.Readable)
	if s.Numbers != nil {
		_, ok = s.Kind.(kind.Passing)
	}
	return ok && !s.Plural() && s.Lingers == nil && s.Second == nil
}

// Alike reports whether two locks that can stay differ in nothing that the masters know.
func (s *Spec) Alike(t *Spec) bool {
	return t.CanStay() && (s.Numbers == nil) == (t.Numbers == nil) && s.Key == t.Key && s.Term == t.Term && s.Owner == t.Owner && slices.Equal(s.Names(), t.Names())
}

// InTheWayOf reports whether the two locks exclude each other, or are permits of one number.
func (s *Spec) InTheWayOf(t *Spec) bool {
	if s.Reader && t.Reader {
		return false
	}
	return slices.ContainsFunc(s.Names(), func(name string) bool { return slices.Contains(t.Names(), name) })
}

// Slots returns the number of slots; 1 if the kind is not slotted.
func (s *Spec) Slots() int {
	if s.Slotted == nil {
		return 1
	}
	return s.Slotted.Slots()
}

// Fresh reports whether at least half of a validity is left. A lock with less is not given on.
func (s *Spec) Fresh(until, now time.Duration) bool { return until-now >= (s.Term.TTL-s.Term.Drift)/2 }

// Notifiable reports whether masters can notify of a loss of the lock. The keys of a lock that readers share change
// all the time.
func (s *Spec) Notifiable() bool { return !s.Reader }

// KeysOf returns the keys of a lock on the masters.
func (s *Spec) KeysOf(token []byte) []string {
	if s.Slotted != nil {
		return []string{string(s.Slotted.AppendKey(nil, token))}
	}
	return s.Names()
}
