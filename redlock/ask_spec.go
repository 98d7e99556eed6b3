package redlock

import (
	"time"
	"unsafe"

	"github.com/redburst/redburst/redlock/internal/kind"
)

// spec is what is fixed when a Mutex is made.
type spec struct {
	kind kind.Kind
	*traits
	key     string
	term    term
	timeout time.Duration // of a round
}

// traits are how a lock differs from the plain one. It is apart, as most locks share it.
type traits struct {
	numbers    kind.Numbered // kind, if the lock has a fence; nil without
	slotted    kind.Slotted  // kind, if the lock has slots; nil without
	reader     bool          // it is a reader's: others may have it, too
	queueNames []string      // see names; nil if that is the key

	owner string // in its tokens, instead of the client's; empty if that is meant

	lingers kind.Lingering // kind, if the lock is left on the masters when it is released; nil without
	minHold time.Duration  // for how long, counted as the validity is; 0 without

	second Second // behind the lock; nil without
}

var ordinary traits

// names returns the names of the queues in which one waits for the lock, sorted: its keys,
// or what those of all its slots have in common. They are also those of its subscription. It allocates
// nothing.
func (s *spec) names() []string {
	if s.queueNames == nil {
		return unsafe.Slice(&s.key, 1)
	}
	return s.queueNames
}

// life is for how long an attempt sets the lock: for the TTL, and for as long as it is to be left.
func (s *spec) life() time.Duration { return max(s.term.ttl, s.minHold) }

// plural reports whether several holders can have the lock at a time.
func (t *traits) plural() bool { return t.reader || t.slotted != nil }

// slots returns the number of locks that the lock can be: one, but of a slotted kind.
func (s *spec) slots() int {
	if s.slotted == nil {
		return 1
	}
	return s.slotted.Slots()
}
