package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
)

// meetEnd is how long Close waits for what Meet has begun.
const meetEnd = time.Second

// A meeting is what Meet has begun. It goes on while the client closes: who asks may have lost a lock, and end because of that.
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

// Meet begins to connect once more to each master that has a fixed address, and returns at once. Later, told is called with what each says of
// itself by then: its run id, its clock and its uptime, or with why it cannot be reached. The connections are closed. wait returns when told was
// called for each, by several goroutines at once. Of a group or a cluster, it tells nothing. It shows credentials to the masters that the
// client has at that time, and to nobody else. An Observer may call it while the client closes, and Close waits for that for a second at
// most. From then on it tells nothing.
func (c *Client) Meet(ctx context.Context, told func(MasterStats)) (wait func()) {
	c.check()
	m, met := &c.meeting, new(sync.WaitGroup)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return met.Wait
	}
	for i := range c.masters.all() {
		met.Add(1)
		m.running.Go(func() {
			defer met.Done()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(m.ending, cancel)()
			addr, said, err := c.meetMaster(ctx, i)
			if errors.Is(err, mux.ErrNotMember) {
				return
			}
			s := masterStats(i, mux.State{Addr: addr, Server: said, Err: err})
			s.Phase = ""
			told(s)
		})
	}
	return met.Wait
}
