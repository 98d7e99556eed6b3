package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Lead runs fn whenever this process leads, which is when it holds the lock on the key. It campaigns,
// which is to wait for the lock as [Mutex.Lock] does; runs fn while the lock is kept alive; steps down,
// which is to release the lock; and campaigns again, until ctx ends.
//
// At any time at most one process leads, as far as the lock excludes (see the package comment). The next
// leader takes the lock after the end of the validity of the last one, or after its release. A
// leader that dies is followed when its TTL has passed, one that steps down at once. A leadership has a number, the
// lock's fence, FenceFrom(ctx), which grows with each leader: what fn writes elsewhere should carry
// it. WithFence need not be given. With [WithSecond] it is that of the second lock. Permits have none:
// with [WithPermits] up to k processes lead, without a number. WithFence beside either is refused, as by
// [Client.NewMutex].
//
// The context of fn ends when ctx does, when the leadership is lost (its cause is ErrLost then, and it
// ends no later than the validity does), or when the maximum lifetime has passed ([WithMaxLifetime], with the cause
// ErrMaxLifetime). fn must return then. After the end of ctx the lock is renewed, and kept, until fn has
// returned, however long that takes: nobody else leads while it cleans up. After a loss, or
// after WithMaxLifetime, it is not kept, so an fn that hangs cannot block others: an fn that should be alone
// while it cleans up has a time limit of its own instead. Lead itself does not lead again before fn has returned.
//
// What fn returns:
//
//	nil, before its context has ended        it steps down, and campaigns again after a pause of a tenth to a
//	                                         fifth of the TTL: others come first
//	an error, before its context has ended   it steps down, and Lead returns the error
//	anything, after a loss                   Lead campaigns again: the error may be that of the loss
//	anything, after the maximum lifetime     likewise, after the pause
//	anything, after the end of ctx           Lead returns ctx's error and cause, and that of fn if it is
//	                                         another
//
// If fn panics, Lead steps down and panics. Apart from fn's, the errors are those of Lock: Lead goes on
// while too few masters answer, and returns if they refuse this client, if the client is closed, and
// if the options are wrong.
//
// WithOwner publishes where the leader is to be reached, and [Client.Watch] says who leads. WithToken,
// WithShared, WithMinHold and WithWait are refused.
func (c *Client) Lead(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context) error, opts ...Option) error {
	withFence := func(o *options) { o.fence = o.fence || o.permits == 0 && o.second == nil }
	m, o := c.newMutex(key, ttl, append(opts[:len(opts):len(opts)], withFence))
	switch {
	case m.invalid != nil:
	case o.token != "":
		m.refuse(errors.New("who leads takes the lock itself: Lead refuses WithToken"))
	case o.shared:
		m.refuse(errors.New("readers do not lead: Lead refuses WithShared"))
	case o.minHold > 0:
		m.refuse(errors.New("nobody would lead for a while: Lead refuses WithMinHold"))
	case o.bounded:
		m.refuse(errors.New("Lead waits until its context ends: it refuses WithWait"))
	}
	for {
		if err := m.Lock(ctx); err != nil {
			return err
		}
		pause, err := m.lead(ctx, fn)
		if ctx.Err() != nil {
			return stoppedLeading(ctx, key, err)
		}
		if err != nil {
			return err
		}
		if pause {
			select {
			case <-ctx.Done():
			case <-c.closed:
			case <-time.After(ttl/10 + rand.N(ttl/10)):
			}
		}
	}
}

// stoppedLeading is the error of a Lead whose context has ended; err is fn's.
func stoppedLeading(ctx context.Context, key string, err error) error {
	e := unasked(OpLead, key, nil, "").endedBy(ctx, ctx.Err())
	if err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) {
		return e
	}
	return errors.Join(err, e)
}

// lead is one leadership, of a lock that was taken. It returns fn's error if fn returned by itself,
// and whether others are to come first.
func (m *Mutex) lead(ctx context.Context, fn func(ctx context.Context) error) (pause bool, err error) {
	defer m.unlock(context.WithoutCancel(ctx), false)
	k := m.client.renewer.add(context.WithoutCancel(ctx), &m.hold)
	defer k.stop()
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
	}
	return errors.Is(context.Cause(o), ErrMaxLifetime), nil
}

// A leaderContext is the context of a leader. It also ends with the campaign, while the lock is still kept alive.
type leaderContext struct {
	context.Context // derived from keepAlive
	keepAlive       *keepAlive
	campaign        context.Context // Lead's
	end             context.CancelCauseFunc
}

// Done and Err are as those of keepAlive, and look at the campaign themselves, too.
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
	l.keepAlive.checkDeadline()
	if l.Context.Err() == nil {
		l.checkCampaign()
	}
}

func (l *leaderContext) checkCampaign() {
	if l.campaign.Err() != nil {
		l.end(context.Cause(l.campaign))
	}
}
