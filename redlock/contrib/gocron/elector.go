package gocron

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redburst/redburst/redlock"
)

// ErrNotLeader is the error of IsLeader while another process leads, or none.
var ErrNotLeader = errors.New("redlock/gocron: this process does not lead")

// An Elector makes one process the leader, which alone runs its jobs. It is for
// gocron.WithDistributedElector.
type Elector struct {
	leave context.CancelFunc
	ended chan struct{}

	mu   sync.Mutex
	term context.Context // of the leader that this process is, or was; nil if it was none
	err  error           // why it will never lead again
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector begins a campaign for the key, which goes on until Close. The arguments are those of
// [redlock.Client.Lead]. A leader that dies is followed when the TTL has passed, and one that is closed
// at once.
func NewElector(client *redlock.Client, key string, ttl time.Duration, opts ...redlock.Option) *Elector {
	ctx, leave := context.WithCancel(context.Background())
	e := &Elector{leave: leave, ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		err := client.Lead(ctx, key, ttl, func(ctx context.Context) error {
			e.mu.Lock()
			e.term = ctx
			e.mu.Unlock()
			<-ctx.Done()
			return nil
		}, opts...)
		e.mu.Lock()
		e.err = err
		e.mu.Unlock()
	}()
	return e
}

// IsLeader returns nil while this process leads. Otherwise its error wraps ErrNotLeader, and the error
// that has ended the campaign, if one has: wrong options, a closed client, masters that refuse it. It
// asks no master and does not wait.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.err != nil:
		return fmt.Errorf("%w: %w", ErrNotLeader, e.err)
	case e.term == nil || e.term.Err() != nil:
		return ErrNotLeader
	}
	return nil
}

// Term returns a context that ends when the leadership of this process does, which is before another
// leads. Its fence is the number of the term (redlock.FenceFrom). It has ended already if this process
// does not lead. A job calls it when it begins.
func (e *Elector) Term() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term != nil {
		return e.term
	}
	return over(ErrNotLeader)
}

// Close steps down and ends the campaign. It returns when the lock is released. Shut the scheduler
// down before, so that no job runs any more when another leads.
func (e *Elector) Close() {
	e.leave()
	<-e.ended
}
