package tracking

import (
	"math/rand/v2"

	"github.com/redburst/redburst/mux"
)

// A Listener sleeps until enough masters have notified it. It is one goroutine's, but anybody may wake it.
type Listener struct {
	sleeper
	subscription

	// Guarded by Registry.mu.
	notified bool
	bySlot   []mux.Set // see hearer.changed; maybe of more slots
}

// Init makes a zero Listener ready.
func (l *Listener) Init(r *Registry) { l.sleeper, l.hearer = newSleeper(r), l }

func (l *Listener) told(enough, _ bool) {
	if enough {
		l.notified = true
		l.wakeInHook()
	}
}

func (l *Listener) changed(slot int) *mux.Set {
	if slot == len(l.bySlot) { // a subscription begins with the first, and ends with the last
		l.bySlot = append(l.bySlot, 0)
	}
	return &l.bySlot[slot]
}

// Listen subscribes to keys, in place of what it was subscribed to. It is notified when that many masters (threshold) have
// changed one of the lock's slots, or will not notify. It forgets what it was notified of: the masters are asked next.
func (l *Listener) Listen(slots, threshold int, keys ...string) {
	l.registry.add(&l.subscription, slots, threshold, keys...)
	l.TakeNotified()
}

// End ends the subscription, if there is one.
func (l *Listener) End() {
	if l.Listens() {
		l.registry.mu.Lock()
		l.registry.remove(&l.subscription)
		l.registry.mu.Unlock()
	}
}

// Listens reports whether it is subscribed. The listener itself may ask.
func (l *Listener) Listens() bool { return len(l.interests) > 0 }

// ListensTo reports whether it is subscribed to that key alone. The listener itself may ask.
func (l *Listener) ListensTo(key []byte) bool {
	return len(l.interests) == 1 && l.interests[0].key == string(key)
}

// TakeNotified reports whether it was notified since it last asked, or since it subscribed if that was later.
func (l *Listener) TakeNotified() (notified bool) {
	l.registry.mu.Lock()
	defer l.registry.mu.Unlock()
	notified, l.notified = l.notified, false
	return notified
}

// Note adds masters where a slot was free when it was read, and masters that will not notify. It returns how many have the
// slot free, or have changed it since, and whether these are enough together with those that will not notify.
func (l *Listener) Note(slot int, free, untracked mux.Set) (changed int, enough bool) {
	l.registry.mu.Lock()
	defer l.registry.mu.Unlock()
	enough = l.note(slot, free, untracked)
	return l.changed(slot).Len(), enough
}

// Changed returns any slot that is free, or has changed, on so many masters. found is false if there is none.
func (l *Listener) Changed(masters int) (slot int, found bool) {
	l.registry.mu.Lock()
	defer l.registry.mu.Unlock()
	n := int(l.slots)
	for i, from := 0, rand.IntN(max(n, 1)); i < n; i++ {
		if slot := (from + i) % n; l.changed(slot).Len() >= masters {
			return slot, true
		}
	}
	return 0, false
}
