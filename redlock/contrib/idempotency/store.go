package idempotency

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// ErrStale is the error of a Store for a fence that is lower than one it has seen.
var ErrStale = errors.New("idempotency: a later request has the key")

// A Store keeps the answers. All processes need the same: the example of this package is one over
// database/sql. For each id it has the highest fence that it
// has seen, and the answer, if there is one. It must keep both for longer than clients repeat their
// requests, and than a process can be paused.
type Store interface {
	// Load returns the answer, if there is one, and nil otherwise. If there is none and the fence is
	// not 0, it remembers the fence, or returns ErrStale if it has seen a higher one, in one step.
	Load(ctx context.Context, id string, fence uint64) (*Answer, error)
	// Save keeps the answer, or returns ErrStale if it has seen a higher fence, in one step. Its
	// context does not end: a Store sets a time limit of its own.
	Save(ctx context.Context, id string, fence uint64, a *Answer) error
}

// An Answer is what a handler has answered. Nobody changes it once it is made.
type Answer struct {
	Fingerprint string // of the request
	Status      int
	Header      http.Header
	Body        []byte
}

// Memory is a Store for one process: for tests, and for services that have only one. The zero value
// is ready for use.
type Memory struct {
	Keep time.Duration // how long it keeps what nobody has asked for; zero means 24 h

	mu    sync.Mutex
	all   map[string]*entry
	swept time.Time
}

type entry struct {
	fence  uint64
	answer *Answer
	used   time.Time
}

// Load is that of a Store. It never fails but with ErrStale.
func (m *Memory) Load(_ context.Context, id string, fence uint64) (*Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entry(id, fence)
	switch {
	case e.answer != nil:
		return e.answer, nil
	case fence == 0:
		return nil, nil
	case fence < e.fence:
		return nil, ErrStale
	}
	e.fence = fence
	return nil, nil
}

// Save is that of a Store. It never fails but with ErrStale.
func (m *Memory) Save(_ context.Context, id string, fence uint64, a *Answer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entry(id, fence)
	if fence < e.fence {
		return ErrStale
	}
	e.fence, e.answer = fence, a
	return nil
}

// entry returns what there is of an id. It makes an entry for whoever has a fence.
func (m *Memory) entry(id string, fence uint64) *entry {
	keep, now := cmp.Or(m.Keep, 24*time.Hour), time.Now()
	if now.Sub(m.swept) > keep/10 {
		m.swept = now
		for id, e := range m.all {
			if now.Sub(e.used) > keep {
				delete(m.all, id)
			}
		}
	}
	e := m.all[id]
	if e == nil {
		e = &entry{}
		if fence == 0 {
			return e
		}
		if m.all == nil {
			m.all = map[string]*entry{}
		}
		m.all[id] = e
	}
	e.used = now
	return e
}
