package redlock

import (
	"context"

	"github.com/redburst/redburst/redlock/internal/held"
)

// Unlock releases the lock. The release goes to every master, whatever becomes of ctx: ctx bounds
// only the wait for the answers. A master that cannot be reached gets the release when it is
// back, or its key ends with the TTL. Afterwards the Mutex is unlocked, whatever Unlock returns,
// and its KeepAlives have ended.
//
// If another caller of this client waits for the lock, Unlock may hand it over instead of deleting
// the key (Config.Handovers). The results are the same: nil says that a quorum still had the key
// in a round that began after the call. Unlocks that come close together share a round, so Unlock
// can take two round trips. Such a round may only read the key. So a master that has become a
// replica meanwhile, which would refuse to delete the key, still counts if it has the key.
//
//	what the masters say                  returned
//	anything, and it was known to be lost ErrNotHeld
//	a quorum deleted the key, or has it   nil: the lock was held until now
//	so many had not got it any more
//	that no quorum can have had it        ErrNotHeld
//	neither, and its validity had ended
//	before Unlock was called              ErrNotHeld
//	neither, and ctx ended before         the context's error
//	neither, and it was still valid       ErrNoQuorum
//	not asked: the Mutex is unlocked      ErrNotHeld
//	not asked: the client is closed       ErrClosed
//
// With [WithSecond], Unlock returns ErrSecond in place of nil if the second lock's system has not
// confirmed. With [WithMinHold] it leaves the key until its least time has passed, instead of
// deleting it. The results are the same: nil says that a quorum still had the key. UnlockNow
// deletes it.
//
// After ErrNotHeld, another may have held the lock before Unlock was called, and exclusion may
// have been broken. If the error wraps ErrRevoked, too, the lock was revoked ([Client.Revoke]),
// and nobody else has held it. After ErrNoQuorum or the context's error it is not known whether the
// lock is free. Nor is it known whether another has held it, if a master has said no (Votes). The
// error is a *RoundError.
func (m *Mutex) Unlock(ctx context.Context) error {
	defer mustContext(ctx) // last: the lock is released all the same
	m.mustClient()
	return asError(m.unlock(ctx, true))
}

// UnlockNow is Unlock, but leaves nothing on the masters if the Mutex was made with
// [WithMinHold]: the next contender finds the lock free. It is for work that has failed.
func (m *Mutex) UnlockNow(ctx context.Context) error {
	defer mustContext(ctx) // last: the lock is released all the same
	m.mustClient()
	return asError(m.unlock(ctx, false))
}

// Release is Unlock, but waits for no master: it writes the release to all of them, or hands the
// lock over to a waiter of this client, and returns.
// So a lock costs one round trip instead of two. Use it when you can ignore Unlock's result.
//
// There is one connection to each master, and commands keep their order on it. So the next
// attempt of this process, on any Mutex, finds the lock free, unless another contender was
// faster. A master that is away gets the release when it is back, unless the client is closed by
// then. Close waits up to 100 ms for a release on its way to a connected master, as with Unlock.
//
// Each [Observer] is told what the masters say, with a context that never ends. [Stats] counts it
// (Released, ReleaseFailed). Both happen when the answers are read: by the next operation of the
// client, or within 25 ms. Event.Took lasts until then.
//
// Where a server has forgotten the script of a release (SCRIPT FLUSH), or the user may not call the
// server's own command for it (DELEX, DELIFEQ), the first release finds that out, and the next
// attempt can overtake that release.
//
// It returns an error that wraps ErrNotHeld if the Mutex is unlocked, or if its validity has
// ended by our own clock, and ErrClosed if the client is closed. With [WithSecond] it does not
// wait for the second lock either, and which of the two is free first is not known.
func (m *Mutex) Release() error {
	c := m.mustClient()
	closed := false
	select {
	case <-c.closed:
		closed = true
	default:
	}
	c.busy.Add(1) // before Shutdown finds the lock let go of
	defer c.busy.Add(-1)
	was := c.held.Release(&m.hold)
	switch {
	case was == held.Unlocked:
		return unasked(opUnlock, m.spec().Key, ErrNotHeld, "not locked")
	case closed:
		return unasked(opUnlock, m.spec().Key, ErrClosed, "")
	case was.Over():
		return unasked(opUnlock, m.spec().Key, ErrNotHeld, "its validity had ended")
	}
	return nil
}

// unlock releases the lock and waits for the masters. linger says that they keep it for its least
// time.
func (m *Mutex) unlock(ctx context.Context, linger bool) *RoundError {
	c := m.client
	c.busy.Add(1) // before Shutdown finds the lock let go of
	defer c.busy.Add(-1)
	was, f := c.held.Unlock(ctx, &m.hold, linger)
	if was == held.Unlocked {
		return unasked(opUnlock, m.spec().Key, ErrNotHeld, "not locked")
	}
	return errorOf(f)
}
