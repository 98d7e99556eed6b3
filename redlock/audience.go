package redlock

import (
	"sync"

	"github.com/redburst/redburst/resp"
)

// An audience is who looks at keys without wanting them: see Client.Watch. Like the waiters' watches it
// is told by the masters' pushes.
type audience struct {
	mu    sync.Mutex // the hooks take it under the lock of the mux; no other is taken under it
	seats map[*seat]struct{}
}

// A seat is one watcher's. It is taken before the key is read, so no change is lost.
type seat struct {
	sleeper
	key  string
	told bool // the key may have changed, or a master will not tell
}

func (a *audience) enter(c *core, key string) *seat {
	s := &seat{sleeper: newSleeper(c), key: key}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seats == nil {
		a.seats = map[*seat]struct{}{}
	}
	a.seats[s] = struct{}{}
	return s
}

func (a *audience) leave(s *seat) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.seats, s)
}

// told reports whether a seat was told since it was last asked.
func (a *audience) told(s *seat) (told bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	told, s.told = s.told, false
	return told
}

// tell tells those who watch the key; nil is all keys.
func (a *audience) tell(key []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.seats {
		if key == nil || s.key == string(key) {
			s.told = true
			s.wakeInHook()
		}
	}
}

// push takes a push of a master.
func (a *audience) push(v resp.Value) {
	keys, ok := invalidated(v)
	switch {
	case !ok:
		return
	case keys.IsNull():
		a.tell(nil)
		return
	}
	it := keys.Elems()
	for key, ok := it.Next(); ok; key, ok = it.Next() {
		a.tell(key.Bytes())
	}
}
