package redlock

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A spec is the part of a Mutex that never changes.
type spec struct {
	kind kind.Kind
	*traits
	key     string // without Config.Prefix, as people see it; see onMasters
	term    quorum.Term
	timeout time.Duration // of a round
}

// traits say how a lock differs from the plain one. They are apart from the spec, as all plain locks share
// the same.
type traits struct {
	numbers    kind.Numbered // kind, if the lock has a fence; nil without
	slotted    kind.Slotted  // kind, if the lock has slots; nil without
	reader     bool          // it is a reader's: other readers may have it, too
	queueNames []string      // see names; nil if the key is the only name
	prefixed   string        // the key with Config.Prefix; empty without a prefix

	owner string // in its tokens; empty for the client's owner

	lingers kind.Lingering // kind, if the lock is left on the masters when it is released; nil without
	minHold time.Duration  // for how long it is left, counted as the validity is; 0 without

	second any // a Second, where the second lock is taken; nil without
}

var ordinary traits

// names returns the names of the queues for the lock, sorted: its keys, or, if it has slots, the common beginning
// of the slots' keys. Its subscription has the same names. It allocates nothing.
func (s *spec) names() []string {
	switch {
	case s.queueNames != nil:
		return s.queueNames
	case s.prefixed != "":
		return unsafe.Slice(&s.prefixed, 1)
	}
	return unsafe.Slice(&s.key, 1)
}

// onMasters returns the key as the masters have it.
func (s *spec) onMasters() string { return cmp.Or(s.prefixed, s.key) }

// life returns for how long an attempt sets the lock: for the TTL, or for minHold if that is longer.
func (s *spec) life() time.Duration { return max(s.term.TTL, s.minHold) }

// plural reports whether several holders can have the lock at a time.
func (t *traits) plural() bool { return t.reader || t.slotted != nil }

// canStay reports whether the lock can stay in the process when it is unlocked: it has one holder, no least time, and no
// second lock.
func (s *spec) canStay() bool {
	_, ok := s.kind.(kind.Readable)
	if s.numbers != nil {
		_, ok = s.kind.(kind.Passing)
	}
	return ok && !s.plural() && s.lingers == nil && s.second == nil
}

// alike reports whether two locks that can stay differ in nothing that the masters know.
func (s *spec) alike(t *spec) bool {
	return t.canStay() && (s.numbers == nil) == (t.numbers == nil) && s.key == t.key && s.term == t.term && s.owner == t.owner && slices.Equal(s.names(), t.names())
}

// inTheWayOf reports whether the two locks exclude each other, or are permits of one number.
func (s *spec) inTheWayOf(t *spec) bool {
	if s.reader && t.reader {
		return false
	}
	return slices.ContainsFunc(s.names(), func(name string) bool { return slices.Contains(t.names(), name) })
}

// slots returns the number of slots; 1 if the kind is not slotted.
func (s *spec) slots() int {
	if s.slotted == nil {
		return 1
	}
	return s.slotted.Slots()
}

// fresh reports whether at least half of a validity is left. A lock with less is not given on.
func (s *spec) fresh(until, now time.Duration) bool { return until-now >= (s.term.TTL-s.term.Drift)/2 }

// notifiable reports whether masters can notify of a loss of the lock. The keys of a lock that readers share change
// all the time.
func (s *spec) notifiable() bool { return !s.reader }

// keysOf returns the keys of a lock on the masters.
func (s *spec) keysOf(token []byte) []string {
	if s.slotted != nil {
		return []string{string(s.slotted.AppendKey(nil, token))}
	}
	return s.names()
}
