package redlock

import (
	"context"
	"fmt"
	"slices"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
)

// Replace gives the place of a master that is down for good to a new, empty one, while locks are held and taken.
// No lock is lost by it, and none is taken twice. The newcomer has no vote before the longest TTL has passed, as
// after a restart (Config.RestartGuard). Do it in each process, and look at 'redlock clients': it shows who has the
// old list still. New processes get the new list.
//
// Shut the old master down for good first. As long as it serves anybody, a client with the old list can have a lock
// by its vote and another client the same lock by the newcomer's: of {1, 2, old} and {1, 2, new}, the majorities
// {1, old} and {2, new} share no master. Once it is down, majorities of both lists are made of masters that they
// share, and at most one newcomer for each old one: two majorities have a master in common. So Replace refuses
// while the old one answers this client, or is frozen. It cannot see whether another client reaches it. It knows
// that the old one is down if its machine refuses connections. If nothing comes back, because the machine is off
// or its name is gone, or only what a proxy says, the old one may be frozen, or cut off from this client alone:
// then it is the operator who knows, and says so with [ShutDown]. Give all clients the same newcomer.
//
// Both addresses are written as in Config.Masters, and are of masters with fixed places: groups of sentinels, and
// clusters, find their masters by themselves. A name that leads to another machine needs no Replace: clients find
// that out when they connect again, and do the same.
//
// Replace returns nil when the newcomer is connected and has the place. Stats and EventMaster show it under its
// own address from then on. If it returns an error, nothing has changed, and it can be called again:
//
//	old is not a master of this client             an error that wraps mux.ErrNotMember
//	new is a master already, by that address or    an error that wraps mux.ErrDuplicate
//	another, or is in the group of another master
//	old still answers                              an error that wraps mux.ErrAnswers
//	old may answer, and ShutDown is not given      an error that wraps mux.ErrMayAnswer
//	new can never serve                            an error that wraps ErrRefused
//	new does not answer within the dial timeout    a *conn.Error
//	ctx ends, or the client was closed             the context's error, or ErrClosed
//
// Releases that the old master was owed are given up: with its end, their locks have ended there. One Replace runs
// at a time; others wait. Replacing several masters one after the other breaks no lock either. But newcomers in
// quarantine have no vote, so with three masters there is no majority until the first one votes.
func (c *Client) Replace(ctx context.Context, old, new string, opts ...ReplaceOption) error {
	mustContext(ctx)
	c.check()
	var r replacement
	for _, opt := range opts {
		opt(&r)
	}
	if err := c.replace(ctx, old, new, r); err != nil {
		return fmt.Errorf("redlock: replace: %w", plainError{err})
	}
	return nil
}

// A ReplaceOption is an option of [Client.Replace].
type ReplaceOption func(*replacement)

type replacement struct{ shutDown bool }

// ShutDown is the word of an operator who has shut the old master down for good, or has seen to it that its machine
// does not come back. Replace then takes a master for down that gives this client no answer at all. It still refuses
// if the old master answers, or takes connections.
//
// If the word is wrong, two clients can have one lock.
func ShutDown() ReplaceOption { return func(r *replacement) { r.shutDown = true } }

func (c *Client) replace(ctx context.Context, old, new string, r replacement) error {
	select {
	case c.replacing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closed:
		return ErrClosed
	}
	defer func() { <-c.replacing }()
	list := c.masters.all()
	i := slices.Index(list, conn.Redact(old))
	if i >= 0 {
		list[i] = conn.Redact(new)
	}
	err := c.replaceMaster(ctx, old, new, c.nameWith(list), r.shutDown)
	if err == mux.ErrClosed {
		return ErrClosed
	}
	if err == nil {
		c.masters.set(i, list[i])
	}
	return err
}
