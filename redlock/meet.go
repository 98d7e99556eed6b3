package redlock

import (
	"context"
	"sync"
	"time"
)

// meetEnd is how long Close waits for what meet has begun.
const meetEnd = time.Second

// A meeting is what meet has begun. It goes on while the client closes: who asks may have lost a lock, and end because of that.
type meeting struct {
	mu      sync.Mutex // a leaf
	over    bool       // nothing is begun any more
	running sync.WaitGroup
	ending  context.Context
	end     context.CancelFunc
}

func (m *meeting) init() { m.ending, m.end = context.WithCancel(context.Background()) }

func (m *meeting) close() {
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	defer time.AfterFunc(meetEnd, m.end).Stop()
	m.running.Wait()
	m.end()
}
