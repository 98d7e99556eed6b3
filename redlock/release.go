package redlock

import (
	"context"
	"sync"
)

// A release is the round that releases a lock.
type release struct {
	call
	of     *releases
	key    string
	was    state // of the hold, when it began
	failed error // how the release of the second lock failed
	lost   bool  // ... as it was not held any more: asked of that error before the Mux is locked

	told func(error) // landed
	e    *RoundError // how it failed, for the Observer
}

// land judges what the masters say. err is what the mux has returned.
func (r *release) land(err error) *RoundError {
	c := r.of.core
	reason := count(r.op.Votes, err).released(r.was.over(), r.was == stateLost)
	switch {
	case r.lost:
		reason = ErrNotHeld
	case r.failed != nil && reason == nil:
		reason = ErrSecond
	}
	if reason == nil {
		c.stats.released.Add(1)
		return nil
	}
	c.stats.releaseFailed.Add(1)
	e := c.failure(opUnlock, r.key, &r.call, err, reason)
	if r.failed != nil {
		e.under = apart{r.failed}
	}
	return e
}

// landed takes the decision of a release that nobody waits for. The Mux is locked.
func (r *release) landed(err error) {
	r.e = r.land(err)
	if r.of.core.observe.Round == nil {
		r.of.put(r)
		return
	}
	r.of.report(r)
}

// releases are a client's. Those that nobody has waited for are reported to the Observer by a goroutine,
// which runs while there are any.
type releases struct {
	core    *core
	pool    sync.Pool // of *release
	running sync.WaitGroup

	mu     sync.Mutex // a leaf
	landed []*release
	busy   bool
	over   bool // the client is closed: nobody reports any more
}

func (all *releases) take() *release {
	r, _ := all.pool.Get().(*release)
	if r == nil {
		r = &release{of: all}
		r.one[0] = &r.op
		r.told = r.landed
	}
	return r
}

func (all *releases) put(r *release) {
	r.e, r.failed, r.lost = nil, nil, false
	all.pool.Put(r)
}

func (all *releases) report(r *release) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.over {
		all.put(r)
		return
	}
	all.landed = append(all.landed, r)
	if !all.busy {
		all.busy = true
		all.running.Go(all.run)
	}
}

// close returns when all that have landed are reported. What lands later, as the client is closed, is not:
// the Observer is told of nothing by a goroutine when Close has returned.
func (all *releases) close() {
	all.mu.Lock()
	all.over = true
	all.mu.Unlock()
	all.running.Wait()
}

func (all *releases) run() {
	for {
		all.mu.Lock()
		landed := all.landed
		all.landed = nil
		all.busy = len(landed) > 0
		all.mu.Unlock()
		if len(landed) == 0 {
			return
		}
		for _, r := range landed {
			all.core.tell(context.Background(), opUnlock, r.key, &r.call, 0, r.e)
			all.put(r)
		}
	}
}
