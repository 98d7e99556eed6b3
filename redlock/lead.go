package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Lead runs fn whenever this process leads, which is when it holds the lock on the key. It
// campaigns: it waits for the lock as [Mutex.Lock] does. It runs fn while the lock is kept alive.
// It steps down: it releases the lock. Then it campaigns again, until ctx ends.
//
// At any time at most one process leads, as far as the lock excludes (see the package comment).
// The next leader takes the lock after the validity of the last one has ended, or after its
// release. A leader that dies is followed when its TTL has passed, a leader that steps down at
// once. Each leadership has a number, the lock's fence, FenceFrom(ctx), which grows with each
// leader. What fn writes elsewhere should carry it. WithFence need not be given. With
// [WithSecond] the number is the fence of the second lock. With [WithPermits] up to k processes
// lead, and there is no number. WithFence beside either is refused.
//
// The context of fn ends when ctx ends. It ends when the leadership is lost, no later than the
// validity, with the cause ErrLost. And it ends when the maximum lifetime has passed
// ([WithMaxLifetime]), with the cause ErrMaxLifetime. fn must return then. After the end of ctx
// the lock is renewed until fn has returned, however long that takes: no other process leads
// while fn cleans up. After a loss, or after WithMaxLifetime, the lock is not renewed, so a
// hanging fn cannot block others. If fn must be alone while it cleans up, give it a time limit of
// its own instead. Lead does not lead again before fn has returned.
//
// What fn returns:
//
//	nil, before its context has ended        it steps down, and campaigns again after a pause of a tenth to a
//	                                         fifth of the TTL: others come first
//	an error, before its context has ended   it steps down, and Lead returns the error
//	anything, after a loss                   Lead campaigns again: the error may be that of the loss
//	anything, after the maximum lifetime     likewise, after the pause
//	anything, after the client was shut down likewise, with ErrClosed in place of ctx's error
//	anything, after the end of ctx           Lead returns ctx's error and cause, and that of fn if it is
//	                                         another
//
// If fn panics, Lead steps down and panics. All other errors are those of Lock: Lead goes on
// while too few masters answer, and returns if they refuse this client, if the client is closed,
// and if the options are wrong.
//
// WithOwner publishes the address of the leader, and [Client.Watch] tells who leads. Lead refuses
// WithToken, WithShared, WithMinHold and WithWait.
func (c *Client) Lead(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context) error, opts ...Option) error {
	mustContext(ctx)
	withFence := func(o *options) { o.fence = o.fence || o.permits == 0 && o.second == nil }
	m, o, err := c.newMutex(key, ttl, append(opts[:len(opts):len(opts)], withFence))
	why := ""
	switch {
	case err != nil:
		return err
	case o.token != "":
		why = "Lead takes the lock itself, and refuses WithToken"
	case o.shared:
		why = "readers do not lead: Lead refuses WithShared"
	case o.minHold > 0:
		why = "nobody would lead for a while: Lead refuses WithMinHold"
	case o.bounded:
		why = "Lead waits until its context ends: it refuses WithWait"
	case fn == nil:
		why = "Lead is given no function: it is nil"
	}
	if why != "" {
		return m.refused(errors.New(why))
	}
	for {
		if err := m.Lock(ctx); err != nil {
			return err
		}
		pause, err := m.lead(ctx, fn)
		if ctx.Err() != nil {
			return stoppedLeading(ctx, key, err)
		}
		if err != nil && c.isShut() {
			err = errors.Join(err, unasked(opLead, key, ErrClosed, ""))
		}
		if err != nil {
			return err
		}
		if pause {
			_ = c.pause(ctx, ttl/10+rand.N(ttl/10), c.shut, ErrClosed) // Lock finds out
		}
	}
}

// stoppedLeading makes the error of a Lead whose context has ended; err is fn's.
func stoppedLeading(ctx context.Context, key string, err error) error {
	e := unasked(opLead, key, nil, "").endedBy(ctx, ctx.Err())
	if err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) {
		return e
	}
	return errors.Join(err, e)
}

// lead runs one leadership, with a lock that was taken. It returns fn's error if fn returned
// before its context had ended, and whether others are to come first.
func (m *Mutex) lead(ctx context.Context, fn func(ctx context.Context) error) (pause bool, err error) {
	m.client.busy.Add(1) // as Do
	defer m.client.busy.Add(-1)
	defer m.unlock(context.WithoutCancel(ctx), false)
	k := m.client.held.KeepAlive(context.WithoutCancel(ctx), &m.hold, "Lead")
	defer k.Stop()
	o := &leaderContext{keepAlive: k, campaign: ctx}
	o.Context, o.end = context.WithCancelCause(k)
	defer o.end(nil)
	defer context.AfterFunc(ctx, o.checkCampaign)()
	if o.Err() == nil {
		err = fn(o)
	}
	switch {
	case ctx.Err() != nil:
		return false, err
	case o.Err() == nil:
		return true, err
	case errors.Is(context.Cause(o), ErrClosed) && !errors.Is(err, o.Err()) && !errors.Is(err, ErrClosed):
		return false, err
	}
	return errors.Is(context.Cause(o), ErrMaxLifetime), nil
}

// A leaderContext is the context of a leader. It also ends with the campaign; the lock is still
// kept alive then.
type leaderContext struct {
	context.Context // derived from keepAlive
	keepAlive       context.Context
	campaign        context.Context // Lead's
	end             context.CancelCauseFunc
}

// Done and Err do what those of keepAlive do, and look at the campaign themselves, too.
func (l *leaderContext) Done() <-chan struct{} {
	l.check()
	return l.Context.Done()
}

func (l *leaderContext) Err() error {
	l.check()
	return l.Context.Err()
}

func (l *leaderContext) Deadline() (time.Time, bool) { return l.campaign.Deadline() }

func (l *leaderContext) check() {
	_ = l.keepAlive.Err() // it looks at the clock
	if l.Context.Err() == nil {
		l.checkCampaign()
	}
}

func (l *leaderContext) checkCampaign() {
	if l.campaign.Err() != nil {
		l.end(context.Cause(l.campaign))
	}
}
