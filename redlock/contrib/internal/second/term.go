package second

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// lead is how much earlier than it must a term ends: by about the time slice that the runtime
// may take, when every processor is busy, to run the timer.
const lead = 10 * time.Millisecond

// margin is what is taken off a TTL: the drift of the clocks, and the lead.
func margin(ttl time.Duration) time.Duration {
	return quorum.NewTerm(ttl, defaults.DriftFactor).Drift + lead
}

// A term is the time for which a session is certainly alive. Its context ends with it.
type term struct {
	clock  func() time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	until time.Duration
	timer *time.Timer
	why   func() error // says why it was not extended in time
}

// newTerm begins a term that ends with parent, or when it is not extended. why may be called
// by any goroutine.
func newTerm(parent context.Context, clock func() time.Duration, until time.Duration, why func() error) *term {
	t := &term{clock: clock, until: until, why: why}
	t.ctx, t.cancel = context.WithCancelCause(parent)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(t.sleep(), t.fire)
	context.AfterFunc(t.ctx, func() { t.timer.Stop() })
	return t
}

// extend moves the end to until, unless the term is over already. It never moves it back.
func (t *term) extend(until time.Duration) {
	t.check()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() == nil && until > t.until {
		t.until = until
		t.timer.Reset(t.sleep())
	}
}

// sleep is for how long the timer may sleep. t.mu is held.
func (t *term) sleep() time.Duration { return min(t.until-t.clock(), defaults.LongestSleep) }

// end ends the term for that reason, unless it is over already.
func (t *term) end(cause error) { t.cancel(cause) }

// fire is what the timer does. It may be early.
func (t *term) fire() {
	if t.over() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Reset(t.sleep())
}

// check ends the term if its time is over, whatever its timer thinks.
func (t *term) check() {
	if t.ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	over := t.clock() >= t.until
	t.mu.Unlock()
	if over {
		t.cancel(fmt.Errorf("the session was not renewed in time: %w", t.why()))
	}
}

// over reports whether the term is over.
func (t *term) over() bool {
	t.check()
	return t.ctx.Err() != nil
}

// A held is the context of one lock. It ends with the lock's term.
type held struct {
	context.Context
	cancel context.CancelCauseFunc
	term   *term
}

func (t *term) hold() *held {
	h := &held{term: t}
	h.Context, h.cancel = context.WithCancelCause(t.ctx)
	return h
}

// Done and Err end the context if its time is over.
func (h *held) Done() <-chan struct{} {
	h.term.check()
	return h.Context.Done()
}

func (h *held) Err() error {
	h.term.check()
	return h.Context.Err()
}

// Format prints what the context is of, and nothing that changes meanwhile.
func (h *held) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "%v.SecondLock", h.Context) }
