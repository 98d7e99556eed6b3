package redlock

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/resp"
)

// A LockInfo is what the masters say of one lock: see [Client.Locks].
type LockInfo struct {
	Key string
	// Kind says what the key is, by what it holds:
	//
	//	plain    one holder; WithKeys and WithFence look like it
	//	shared   readers hold it (WithShared)
	//	permits  WithPermits
	//	foreign  a value that looks like another library's token. It can be anything else that looks so
	//	other    the key holds something that is no lock. It is in the way of one all the same
	//
	// It is empty if nobody holds it.
	Kind    string
	Held    bool         // as many masters as are a majority name one of the holders; of permits: all are taken
	Holders []Holder     // one for each token, those that most masters name first; of readers up to about 100
	Fence   uint64       // the last fence of the key that a majority remembers; 0 if there is none
	Since   time.Time    // about when it was taken, as the fence says by the holder's clock; zero if it has none
	Readers int          // how many readers hold it: as many masters as are a majority have so many, or more
	Permits int          // how many permits there are, as most masters say
	Used    int          // how many of them are held on a majority; -1 if they were not counted: see Client.Locks
	Waiting int          // how many waiters are in line, as one master says; -1 if this user may not read it
	Waiters []LockWaiter // these, in their order; the first 100
	Masters int          // how many masters there are
	Silent  []string     // the addresses of those that did not answer
}

// The kinds of a [LockInfo].
const (
	kindPlain   = "plain"
	kindShared  = "shared"
	kindPermits = "permits"
	kindForeign = "foreign"
	kindOther   = "other"
)

// A Holder is who holds a lock, or was named by a few masters.
type Holder struct {
	// Owner is the owner that the token names (Config.Owner, or WithOwner): printable ASCII without spaces, 128
	// bytes at most. It is empty if the token names none, or if another library made it. It is a hint: any user
	// who may write the key can write a token with any name.
	Owner   string
	Token   Secret        // zero if the key is no lock. In a list it is cut after 1,024 bytes, and a reader's or a permit's after 512
	Permit  int           // the number of the permit, from 1 on; 0 if there are none
	Held    bool          // a majority of the masters names it
	Left    bool          // the lock was released, and its holder has left the key until its least time has passed (WithMinHold)
	Masters []string      // the addresses of those that name it
	TTL     time.Duration // until no majority has it if it is not renewed, or nobody, if none has; below 0 for never
	Revoked bool          // the lock was revoked, and its holder has not let go yet ([Client.Revoke])
	Reason  string        // ... and why: it can be printed. If masters say several things, all of them

	more behind.Holder
}

// A LockWaiter is one process that waits in line for a lock. There can be more waiters in the process.
type LockWaiter struct {
	Owner  string        // Config.Owner, or WithOwner: a hint. Empty if it has published none
	Waited time.Duration // for how long its Lock has waited
	Reader bool          // it wants to share the lock. Readers in a row have the lock together
}

// askRow asks for the row of a key, and what stands beside it.
func askRow(k *round.Call, key, what string, timeout time.Duration, tracked bool) {
	k.Ask(census.Rows, census.JudgeRows, timeout, tracked, []string{key}, what, key, string(kind.AppendQueueKey(nil, key)))
}

// tally does the round of a call that asks who holds a key, and counts the answers.
func (c *Client) tally(ctx context.Context, k *round.Call, permits bool) (*census.Tally, error) {
	err := c.round.Mux.Do(ctx, &k.Op)
	t := census.NewTally(len(k.Op.Votes))
	for i := range k.Op.Votes {
		switch v := &k.Op.Votes[i]; {
		case v.Verdict != mux.VerdictYes:
		case permits:
			t.Add(i, census.ReadPermits(v.Reply))
		default:
			t.Add(i, census.ReadRows(v.Reply)[0])
		}
		k.Op.Votes[i].Reply = resp.Value{}
	}
	return t, err
}

// Holders asks the masters who holds a key, and sums that up. It waits for all masters that are up, for at
// most Config.RoundTimeout (500 ms if that is zero). If fewer than a majority answered, it also
// returns a *RoundError. That wraps ErrNoQuorum, or ErrClosed if the client is closed, or ctx's
// error if ctx ended before.
//
// The lock is held only if a majority of the masters names one holder ([LockInfo].Held). A lock that was revoked is held
// until its holder has let go, or its TTL has passed. Who waits is not asked: that is for [Client.Locks].
//
// Three of the options mean something here:
//
//	WithFence      asks for the fence, too
//	WithShared     asks for the readers of a shared lock, if there are any
//	WithPermits    asks who holds each permit. Locks with another k hold none of these
//
// Without WithShared, readers are what is no lock (Kind "other"). Each value that is no token of ours is taken for another
// library's ("foreign"), and named. If there are more than 1,000
// readers, a master names those that expire last.
func (c *Client) Holders(ctx context.Context, key string, opts ...Option) (LockInfo, error) {
	mustContext(ctx)
	c.check()
	o := chosen(opts)
	if (o.fence || o.permits > 0) && kind.Ambiguous(c.cfg.Prefix+key) {
		o.invalid = errAmbiguous
	}
	if err := cmp.Or(checkKey(key), o.invalid); err != nil {
		return LockInfo{}, fmt.Errorf("redlock: holders of %s: %w", kind.Quoted(key), err)
	}
	t, err := c.census(ctx, opHolders, key, &o)
	info := c.lockInfo(key, t, o.shared || o.permits > 0)
	if o.permits > 0 {
		info.permitted(o.permits)
	}
	return info, err
}

// lockInfo sums up what the masters say of a key that was asked for by its name, and for its readers, if it was.
func (c *Client) lockInfo(key string, t *census.Tally, readers bool) LockInfo {
	info := LockInfo{Key: key}
	var answered mux.Set
	for master, row := range t.Rows {
		if row != nil {
			answered = answered.With(master)
		}
	}
	info.sumUp(t, answered, c.masters, func(claim *census.Claim, h *Holder) (string, bool) {
		switch {
		case claim.Token == census.Unknown:
			h.more.Other = claim.Other(readers)
			return kindOther, true
		case claim.Reader:
			return kindShared, true
		case looksLike(claim.Token.Reveal(), h.TTL) == kindPlain:
			return kindPlain, true
		}
		return kindForeign, true
	})
	return info
}

// sumUp adds what the masters say, of which so many have answered. looks says what a holder's value looks like, and
// whether it is listed.
func (info *LockInfo) sumUp(t *census.Tally, answered mux.Set, masters addresses, looks func(*census.Claim, *Holder) (string, bool)) {
	info.Fence, info.Since, info.Masters = t.Fence(), t.Since(time.Now()), len(t.Rows)
	var readers []uint64
	for master, row := range t.Rows {
		if !answered.Has(master) {
			info.Silent = append(info.Silent, masters.at(master))
			continue
		}
		readers = append(readers, uint64(max(row.Readers, 0)))
	}
	info.Readers = int(census.OfMost(readers, t.Quorum()))
	slices.SortFunc(t.Claims, func(a, b *census.Claim) int {
		return cmp.Or(cmp.Compare(len(b.On), len(a.On)), cmp.Compare(a.Permit, b.Permit),
			cmp.Compare(a.Owner(), b.Owner()), strings.Compare(a.Token.Reveal(), b.Token.Reveal()))
	})
	for _, c := range t.Claims {
		h := Holder{Owner: c.Owner(), Token: c.Token, Permit: c.Permit, Held: c.Held(), Left: c.Left(), TTL: c.Lasts(), Revoked: c.Revoked, Reason: c.Reason}
		for _, master := range c.On {
			h.Masters = append(h.Masters, masters.at(master))
		}
		kind, listed := looks(c, &h)
		if !listed {
			continue
		}
		if kind == kindOther { // it may be a secret of others
			h.Token, h.more.Other = Secret{}, cmp.Or(h.more.Other, c.NoLock())
		}
		if len(info.Holders) == 0 {
			info.Kind = kind
		}
		info.Held = info.Held || h.Held
		info.Holders = append(info.Holders, h)
	}
}

// permitted makes it what is known of so many permits.
func (info *LockInfo) permitted(permits int) {
	info.Kind, info.Permits = kindPermits, permits
	for _, h := range info.Holders {
		if h.Held {
			info.Used++
		}
	}
	info.Held = info.Used > 0 && info.Used == info.Permits
}

// looksLike says what a value looks like: kindPlain for a token of ours.
func looksLike(value string, left time.Duration) string {
	token, _, _ := kind.CutSlot(strings.TrimPrefix(value, kind.LeftMark))
	if i := strings.LastIndexByte(token, '/'); i >= 0 && kind.CheckOwner(token[:i]) == nil {
		token = token[i+1:]
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	const least, most = 16, 128 // characters of another library's token
	switch {
	case err == nil && len(raw) == round.TokenBytes:
		return kindPlain
	case left >= 0 && least <= len(value) && len(value) <= most && strings.Trim(value, tokenLetters) == "":
		return kindForeign
	}
	return kindOther
}

const tokenLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"

// census asks every master who holds a key, and counts that. The error is nil or a *RoundError.
func (c *Client) census(ctx context.Context, of string, key string, o *options) (*census.Tally, error) {
	k := c.round.Take()
	defer c.round.Put(k)
	if o.permits > 0 {
		k.Ask(census.Values, kind.JudgeArray, c.cfg.questionTimeout(), false, kind.NewPermits(c.cfg.Prefix+key, 0, o.permits).Names())
	} else {
		what := ""
		if o.fence {
			what = census.Fence
		}
		if o.shared {
			what += census.Readers
		}
		askRow(k, c.cfg.Prefix+key, what, c.cfg.questionTimeout(), false)
	}
	t, err := c.tally(ctx, k, o.permits > 0)
	if reason := quorum.Count(k.Op.Votes, err).Answered(); reason != nil {
		e := c.failure(of, key, k, err, reason)
		e.blame(ctx, err)
		return t, e
	}
	return t, nil
}

// A holderSummary sums up what the masters say of one holder of a lock.
type holderSummary struct {
	owner   string
	token   Secret
	other   string        // what the key is if it is no lock
	free    bool          // it was released, and lingers
	votes   int           // masters that name it; 0 if no holder is known
	masters int           // how many there are
	silent  bool          // some have not answered
	left    time.Duration // until so few masters have it that the lock is free; below 0 if never
}

// leading returns the summary of the one that holds the key on most masters.
func leading(t *census.Tally) holderSummary {
	return pickHolder(t, func(a, b holderSummary) bool { return a.votes > b.votes })
}

// last returns the summary of the reader that holds a shared lock for longest.
func last(t *census.Tally) holderSummary {
	return pickHolder(t, func(a, b holderSummary) bool { return uint64(a.left) > uint64(b.left) })
}

// soonest returns the summary of the permit that is free first, if none is renewed.
func soonest(t *census.Tally) holderSummary {
	return pickHolder(t, func(a, b holderSummary) bool { return uint64(a.left) < uint64(b.left) }) // below 0 is the longest
}

// pickHolder returns the summary that comes before all others, or the first of equal ones. A
// holder that a majority names comes before one that fewer name.
func pickHolder(t *census.Tally, before func(a, b holderSummary) bool) (first holderSummary) {
	needed := t.Quorum()
	for _, c := range t.Claims {
		h := holderSummary{c.Owner(), c.Token, c.NoLock(), c.Left(), len(c.On), len(t.Rows), t.Silent() > 0, c.Lasts()}
		real, other := h.votes >= needed, first.votes >= needed
		if first.votes == 0 || real && !other || real == other && before(h, first) {
			first = h
		}
	}
	return first
}

// String says who holds a key: "held by svc-a@host-7:311 on 4 of 5 masters, 8.2 s left". It is
// empty if no holder is known. It shows no token: any process that knows one can release the
// lock.
func (h holderSummary) String() string {
	if h.votes == 0 {
		return ""
	}
	owner, about, left, held := h.owner, "", "without expiry", "held"
	if h.free {
		held = "left there"
	}
	switch {
	case h.token == census.Unknown:
		owner = h.other
	case owner == "":
		owner = "somebody without a name"
	}
	if h.silent {
		about = "at least "
	}
	if h.left >= 0 {
		left = fmt.Sprintf("%.1f s left", h.left.Seconds())
	}
	return fmt.Sprintf("%s by %s on %s%d of %d masters, %s", held, owner, about, h.votes, h.masters, left)
}

// explainMin is the least time for asking who holds a lock.
const explainMin = 50 * time.Millisecond

// waitError makes the error of a Lock that err has ended. last is how its own last attempt
// failed. held and failure are what its local queues knew. cut is an attempt that was still
// undecided.
func (m *Mutex) waitError(ctx context.Context, err error, last, cut *RoundError, held bool, failure *RoundError) *RoundError {
	if err == ErrClosed {
		return unasked(opLock, m.spec().Key, ErrClosed, "")
	}
	e := unasked(opLock, m.spec().Key, nil, "")
	switch {
	case last != nil:
		*e = *last
		e.Votes = slices.Clone(last.Votes) // other waiters of its queue have them, too
	case held:
		e = ours(m.spec().Key, byUs)
	case failure != nil:
		*e = *failure
		e.Key, e.note, e.detail, e.Votes = m.spec().Key, "", 0, slices.Clone(failure.Votes)
	case cut != nil:
		*e = *cut
	}
	e.endedBy(ctx, err)
	if e.reason == ErrHeld && errors.Is(err, context.DeadlineExceeded) {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.client.round.ShortTimeout(m.spec().Timeout, explainMin))
		defer cancel()
		h := m.findHolder(ask)
		e.names(h)
		switch ours := m.client.held.Has(h.token.Reveal()); {
		case h.votes == 0 || m.spec().Slotted != nil: // or it is one of several
		case ours && e.detail == 0:
			e.note, e.detail = byUs, heldByUs
		case !ours && e.named && e.note == byUs: // it was, when the queues were told
			e.note, e.detail = "", 0
		}
	}
	return e
}

// names notes who holds the key.
func (e *RoundError) names(h holderSummary) {
	e.held, e.HeldBy, e.HeldFor = h.String(), h.owner, h.left
	if e.named = h.votes > 0 && h.votes >= quorum.Majority(h.masters); e.named && e.under == ErrSplit {
		e.under = nil
	}
}

// findHolder asks who is in the way of the lock: of several keys, the holder of the first that is
// held; of readers, the one that expires last; of permits, the one that is free first.
func (m *Mutex) findHolder(ctx context.Context) (h holderSummary) {
	c := m.client
	if m.spec().Slotted != nil {
		t, _ := c.census(ctx, opHolders, m.spec().Key, &options{permits: m.spec().Slots()}) // the masters that answer are enough
		return soonest(t)
	}
	return c.inTheWay(ctx, 1, m.spec().Names()...)
}

// inTheWay asks who holds one of some keys, one after the other. It returns the first holder that so many masters name, or
// else what is known of the last key.
func (c *Client) inTheWay(ctx context.Context, least int, keys ...string) (h holderSummary) {
	for _, key := range keys {
		key = strings.TrimPrefix(key, c.cfg.Prefix)
		all, _ := c.census(ctx, opHolders, key, &options{})
		if slices.ContainsFunc(all.Claims, func(h *census.Claim) bool { return h.MayBeReaders() }) {
			if readers, err := c.census(ctx, opHolders, key, &options{shared: true}); err == nil {
				if h = last(readers); h.votes >= least {
					break
				}
			}
		}
		if h = leading(all); h.votes >= least {
			break
		}
	}
	return h
}
