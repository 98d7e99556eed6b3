package redlock

import (
	"context"
	"errors"

	"github.com/redburst/redburst/mux"
)

// Ready returns nil as soon as a majority of the masters can vote: they are connected, and none of the majority is in
// quarantine, or has still to say whether it may vote. It asks the masters nothing, and wakes only when the state of one
// changes. Use it before a service says that it is ready, or in its probe. If ctx has ended, it looks once and does not
// wait. It says nothing of keys: a lock can be held, and a user can lack the rights that a lock needs.
//
// The error is a *RoundError with the reason of each master that cannot vote. It wraps
//
//	ErrNoQuorum    ctx ended before; and ctx's error and cause
//	ErrRefused     and ErrNoQuorum, if so many masters refuse this client that none of this changes by itself
//	ErrClosed      the client is closed; it has no reasons then
func (c *Client) Ready(ctx context.Context) error {
	mustContext(ctx)
	c.check()
	masters, err := c.awaitVotes(ctx)
	if err == nil {
		return nil
	}
	e := unasked(opReady, "", ErrNoQuorum, "")
	if errors.Is(err, mux.ErrClosed) {
		e.reason = ErrClosed
		return e
	}
	for _, s := range masters {
		v := Vote{Addr: s.Addr, Verdict: votedYes, Err: s.Err}
		if s.Err != nil {
			v.Verdict = voteFailed
		}
		e.Votes = append(e.Votes, v)
	}
	return e.endedBy(ctx, err)
}
