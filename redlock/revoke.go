package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// Revoke takes the lock on a key away from its holder, and tells it the reason. It is for a holder
// that must stop and does not: if its key were deleted instead, another would have the lock while
// the holder is still at work.
//
// The masters keep the key until its TTL has passed, in the holder's name, and refuse to extend
// it. So nobody else has the lock before the holder's validity has ended. A holder that keeps the
// lock alive is told: its context ends with the cause [ErrRevoked]. It learns of the revocation at
// once if the masters notify it of changes of its key (see docs/how-it-works.md), and otherwise
// when it renews the lock the next time, as readers do. Extend and Unlock return ErrRevoked if
// they find the revocation. When the holder has let go (Unlock, or Do after its function has
// returned), the key is deleted, and the next one has the lock at once. A holder that is frozen,
// gone, or cut off keeps others out until the TTL has passed, and no longer.
//
// It takes the lock away from whoever a majority of the masters says holds it. If the lock changes hands
// meanwhile, the next holder keeps it, unless that is a waiter of the same client which was handed the lock: it has the
// same token ([Config].Handovers), and is revoked. These options say more:
//
//	WithToken      names the holder: it is revoked if it has this token. The masters are not
//	               asked who holds the lock
//	WithShared     revokes the lock of all readers that hold it now, or of the one with the token
//	WithPermits    revokes all permits that are held now, or the one with the token
//
// Of a lock on several keys, any one of them names the lock: the holder loses all. It deletes the
// others when it lets go, or they end with their TTL.
//
// Revoke returns nil if a majority of the masters has revoked the lock: it cannot be extended any
// more. Whoever revokes a lock again changes nothing, and gets nil, too; the first reason stays.
// The reason has 1 to 128 bytes of printable characters. Errors are *RoundErrors that wrap
//
//	ErrNotHeld             nobody holds the lock; or its holder has let go meanwhile, be it left
//	                       there by WithMinHold; or the key holds no lock, or those of readers
//	                       without WithShared
//	ErrHeld                the key does not expire. Nothing was changed there: no lock of this
//	                       package is such a key, and the holder, of another library, would not
//	                       know the revoked key, which would stay for ever. If the holder is gone,
//	                       `redlock release --force` deletes the key
//	ErrNoQuorum            too few masters answered. Where it was revoked on a minority, its
//	                       holder keeps it, and these masters say no until their keys have ended.
//	                       Of readers and permits, those that a majority has named were revoked
//	                       nevertheless, and the others keep theirs. Of more than 1,000 readers,
//	                       a master names those that last longest
//	ErrClosed              the client is closed
//	the context's error    ctx ended before the masters had decided
//
// A lock of another library is revoked, too: its extension fails. But its release does not know a
// revoked key, so that ends with its TTL. A holder of an earlier version of this package is told
// ErrLost, and its key ends with the TTL as well.
func (c *Client) Revoke(ctx context.Context, key, reason string, opts ...Option) error {
	mustContext(ctx)
	c.check()
	o := chosen(opts)
	if err := checkRevocation(c.cfg.Prefix, key, reason, &o); err != nil {
		return fmt.Errorf("redlock: revoke %s: %w", kind.Quoted(key), err)
	}
	tokens := []string{o.token}
	var failed, gone *RoundError
	if o.token == "" {
		var err error
		if tokens, failed, err = c.revocable(ctx, key, &o); err != nil {
			return err
		}
	}
	revoked := 0
	for _, token := range tokens {
		at := c.cfg.Prefix + key
		if o.permits > 0 {
			at = string(kind.NewPermits(at, 0, o.permits).AppendKey(nil, []byte(token)))
		}
		e := c.revoke(ctx, key, at, token, reason, o.shared)
		switch {
		case e == nil:
			revoked++
		case e.reason == ErrNotHeld:
			gone = e
		default:
			failed = e
		}
	}
	switch {
	case failed != nil:
		if revoked == 0 {
			return failed
		}
		e := *failed // the Observers may read it
		e.note = strings.TrimSuffix(fmt.Sprintf("%d of it revoked; %s", revoked, e.note), "; ")
		return &e
	case revoked == 0:
		return gone
	}
	return nil
}

func checkRevocation(prefix, key, reason string, o *options) error {
	_, _, of := kind.CutSlot(o.token)
	if err := checkKey(key); err != nil {
		return err
	}
	switch {
	case o.invalid != nil:
		return o.invalid
	case kind.Reserved(prefix + key):
		return errReserved
	case o.permits > 0 && kind.Ambiguous(prefix+key):
		return errAmbiguous
	case o.shared && o.permits > 0:
		return errors.New("WithPermits and WithShared do not go together")
	case o.permits > 0 && o.token != "" && of != o.permits:
		return fmt.Errorf("the token is not that of one of %d permits", o.permits)
	case reason == "":
		return errors.New("the reason is empty: the holder is to know why")
	case len(reason) > kind.MaxReason:
		return fmt.Errorf("the reason has %d bytes, and %d are the most", len(reason), kind.MaxReason)
	}
	for _, r := range reason {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return fmt.Errorf("the reason %q has characters that cannot be printed", reason)
		}
	}
	return nil
}

// revocable returns the tokens of those who hold the lock. open is set if there may be more.
func (c *Client) revocable(ctx context.Context, key string, o *options) (tokens []string, open *RoundError, err error) {
	t, err := c.census(ctx, opRevoke, key, &options{shared: o.shared, permits: o.permits})
	if err != nil {
		return nil, nil, err
	}
	blocked, unsure := "", t.Hidden(o.shared) >= t.Quorum()
	for _, claim := range t.Claims {
		switch {
		case claim.Token == census.Unknown:
			if blocked = claim.NoLock(); !o.shared && o.permits == 0 && claim.MayBeReaders() {
				blocked = "it is held by readers (WithShared), or is " + blocked
			}
		case claim.Left():
			blocked = "its holder has let go: it is only left there for its least time"
		case claim.Held():
			tokens = append(tokens, claim.Token.Reveal())
		default:
			unsure = unsure || claim.Open()
		}
	}
	switch {
	case unsure:
		open = unasked(opRevoke, key, ErrNoQuorum, "the masters that answered do not know of all who hold it")
	case o.shared && slices.ContainsFunc(t.Rows, func(r *census.Row) bool { return r != nil && len(r.Holders) >= census.MostReaders }):
		unsure, open = true, unasked(opRevoke, key, ErrNoQuorum, fmt.Sprintf("more than %d readers may hold it: revoke it again when these have let go", census.MostReaders))
	}
	switch {
	case len(tokens) > 0:
		return tokens, open, nil
	case unsure:
		return nil, nil, open
	}
	return nil, nil, unasked(opRevoke, key, ErrNotHeld, blocked)
}

// revoke revokes the lock that has the token, on one key, and tells the Observers.
func (c *Client) revoke(ctx context.Context, key, at, token, reason string, shared bool) *RoundError {
	k := c.round.Take()
	defer c.round.Put(k)
	e := c.revokeBy(ctx, k, key, at, token, reason, shared)
	c.observeRound(ctx, opRevoke, key, k, 0, e)
	return e
}

// revokeBy revokes the lock that has the token, on one key, by a call.
//
// A tombstone lives for as long as the key would have lived. So the masters exclude others for as long as they would
// have done without a revocation, which is longer than the holder's validity, and only the holder's own release ends
// that earlier. An extension needs a quorum of masters that have the token. That is not to be had any more: a master
// whose tombstone has ended, as it has missed the last extensions, has no key, and an extension sets none.
func (c *Client) revokeBy(ctx context.Context, k *round.Call, key, at, token, reason string, shared bool) *RoundError {
	k.Fence, k.About = 0, round.About{}
	k.Revoke(at, shared, token, reason, c.cfg.questionTimeout())
	err := c.round.Mux.Do(ctx, &k.Op)
	why := quorum.Count(k.Op.Votes, err).Released(false, false)
	if why == nil {
		return nil
	}
	endless := why == ErrNotHeld && isEndless(k.Op.Votes)
	if endless {
		why = ErrHeld
	}
	e := c.failure(opRevoke, key, k, err, why)
	if endless {
		e.note = "the key does not expire, and revoked it never would: if its holder is gone, delete it (redlock release --force)"
	}
	e.blame(ctx, err)
	return e
}

// isEndless reports whether a majority has the token in a key that does not expire. One master alone could say so to have
// the key deleted that the others have.
func isEndless(votes []mux.Vote) bool {
	endless := quorum.Those(votes, func(v *mux.Vote) bool { return v.Verdict == mux.VerdictNo && v.Int == kind.Endless })
	return endless.Len() >= quorum.Majority(len(votes))
}
