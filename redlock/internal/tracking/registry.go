package tracking

import (
	"slices"
	"strings"
	"sync"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/resp"
)

// A Registry has what the masters are to notify a client of (CLIENT TRACKING, OPTIN): who wants to be told of a change of which key,
// and which masters have promised it on the connections that they have now.
//
// Whoever wants to be told subscribes before the masters are asked, so no change is lost. A change before the question is
// in the answer. A change after it is pushed, and the push follows the answer on the same connection.
type Registry struct {
	core  *round.Core
	mu    sync.Mutex // the hooks take it under the lock of the mux; no other lock is taken under it
	byKey map[string]*interest
}

// Init makes the registry ready. The core may get its Mux later.
func (r *Registry) Init(c *round.Core) { r.core, r.byKey = c, map[string]*interest{} }

// Keys returns the keys that somebody has subscribed to, and for each whether a Listener that has is asleep. Tests ask.
func (r *Registry) Keys() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := map[string]bool{}
	for key, in := range r.byKey {
		asleep := false
		for ; in != nil; in = in.next {
			l, is := in.of.hearer.(*Listener)
			asleep = asleep || is && l.inMux.Load()
		}
		keys[strings.Clone(key)] = asleep
	}
	return keys
}

// A subscription is to some keys, or to the slots of a lock: a waiter's, a watcher's or, if it is kept, that of a lock that
// is kept alive. Registry.mu guards it.
type subscription struct {
	hearer    hearer
	interests []interest
	untracked mux.Set // masters that will not notify. If kept, those that have not promised it since the last own write
	asked     uint32  // if kept, the number of the question that has followed the last own write; 0 if none has
	slots     uint16
	threshold uint8 // it is enough when that many masters have changed or are untracked; have changed, if kept
	kept      bool
}

// An interest is a subscription's in one key.
type interest struct {
	of   *subscription
	key  string
	next *interest // another's
}

// A hearer is told of changes, and when they are enough, with the mux locked. For each slot it has the masters where that
// was free when it was read, or has changed since. Registry.mu is held.
type hearer interface {
	told(enough, all bool)
	changed(slot int) *mux.Set
}

// add begins a subscription to keys, in place of what it was to.
func (r *Registry) add(sub *subscription, slots, threshold int, keys ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(sub)
	sub.threshold, sub.slots = uint8(threshold), uint16(slots)
	sub.forget()
	sub.interests = slices.Grow(sub.interests, len(keys))[:len(keys)]
	for i, key := range keys {
		sub.interests[i] = interest{sub, key, r.byKey[key]}
		r.byKey[key] = &sub.interests[i]
	}
}

// remove ends a subscription. The memory of its keys may be used again, so the map keeps none of them. r.mu is held.
func (r *Registry) remove(sub *subscription) {
	for i := range sub.interests {
		in := &sub.interests[i]
		first := r.byKey[in.key]
		delete(r.byKey, in.key)
		for at := &first; *at != nil; at = &(*at).next {
			if *at == in {
				*at = in.next
				break
			}
		}
		if first != nil { // and not that of another, too
			r.byKey[first.key] = first
		}
	}
	clear(sub.interests)
	sub.interests = sub.interests[:0]
}

// forget forgets what masters have notified of, and promised. r.mu is held.
func (sub *subscription) forget() {
	sub.asked, sub.untracked = 0, 0
	for slot := range int(sub.slots) {
		*sub.hearer.changed(slot) = 0
	}
	if sub.kept {
		sub.untracked = ^sub.untracked
	}
}

// note adds masters where a slot is free or may be free, and masters that will not notify. It reports whether all of
// them together are enough, as the missing master may be one that does not notify. r.mu is held.
func (sub *subscription) note(slot int, changed, untracked mux.Set) (enough bool) {
	sub.untracked |= untracked
	of := sub.hearer.changed(slot)
	if *of |= changed; sub.kept {
		return of.Len() >= int(sub.threshold)
	}
	return (*of | sub.untracked).Len() >= int(sub.threshold)
}

// Push notes that a master has notified of a change: of a lock's own key, of the intent of a writer for which readers
// wait, or of a slot. If the key is nil, all have changed, which is told without a promise.
func (r *Registry) Push(master int, key []byte) {
	if key == nil {
		r.noteAll(1<<master, 0)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var buf [3]kind.Subject
	for i, to := range kind.AppendSubjects(buf[:0], key) {
		for in := r.byKey[string(to.Name)]; in != nil; in = in.next {
			sub := in.of
			unasked := sub.kept && (i > 0 || sub.untracked.Has(master))
			if !unasked && int(sub.slots) == max(1, to.Slots) {
				sub.hearer.told(sub.note(max(0, to.Slot-1), 1<<master, 0), false)
			}
		}
	}
}

// Disconnected notes that a master was disconnected, so it will not notify as it has promised.
func (r *Registry) Disconnected(master int) { r.noteAll(0, 1<<master) }

func (r *Registry) noteAll(changed, untracked mux.Set) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, in := range r.byKey {
		for ; in != nil; in = in.next {
			enough := false
			for slot := range int(in.of.slots) {
				enough = in.of.note(slot, changed, untracked) || enough
			}
			if changed != 0 || !in.of.kept {
				in.of.hearer.told(enough, true)
			}
		}
	}
}

// Invalidated calls changed with each key that has changed, as a push says; with nil if all have (FLUSHALL). Pushes of
// another kind say nothing.
func Invalidated(v resp.Value, changed func(key []byte)) {
	it := v.Elems()
	kind, _ := it.Next()
	keys, _ := it.Next()
	if string(kind.Bytes()) != "invalidate" {
		return
	}
	if keys.IsNull() {
		changed(nil)
	}
	it = keys.Elems()
	for key, ok := it.Next(); ok; key, ok = it.Next() {
		if name := key.Bytes(); name != nil {
			changed(name)
		}
	}
}
