package redlock

import (
	"sync"

	"github.com/redburst/redburst/resp"
)

// watcherSubscriptions are the subscriptions of watchers, which read keys and want no lock: see Client.Watch. The
// masters' pushes notify them, as they notify the waiters' subscriptions.
type watcherSubscriptions struct {
	mu  sync.Mutex // the hooks take it under the lock of the mux; no other lock is taken under it
	all map[*watcherSubscription]struct{}
}

// A watcherSubscription is one watcher's. It begins before the watcher reads the key, so no change is lost.
type watcherSubscription struct {
	sleeper
	key      string
	notified bool // the key may have changed, or a master will not notify
}

func (ws *watcherSubscriptions) add(c *core, key string) *watcherSubscription {
	s := &watcherSubscription{sleeper: newSleeper(c), key: key}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.all == nil {
		ws.all = map[*watcherSubscription]struct{}{}
	}
	ws.all[s] = struct{}{}
	return s
}

func (ws *watcherSubscriptions) remove(s *watcherSubscription) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, s)
}

// takeNotified reports whether a watcher was notified since it last asked.
func (ws *watcherSubscriptions) takeNotified(s *watcherSubscription) (notified bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	notified, s.notified = s.notified, false
	return notified
}

// notify notifies the watchers of the key; nil means all keys.
func (ws *watcherSubscriptions) notify(key []byte) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for s := range ws.all {
		if key == nil || s.key == string(key) {
			s.notified = true
			s.wakeInHook()
		}
	}
}

// push takes a push of a master.
func (ws *watcherSubscriptions) push(v resp.Value) {
	keys, ok := invalidated(v)
	switch {
	case !ok:
		return
	case keys.IsNull():
		ws.notify(nil)
		return
	}
	it := keys.Elems()
	for key, ok := it.Next(); ok; key, ok = it.Next() {
		ws.notify(key.Bytes())
	}
}
