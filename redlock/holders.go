package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// UnknownToken is the Token of a [Holder] if the key holds something that is no lock. It is
// no secret, but hidden like one.
var UnknownToken = census.Unknown

// A Holder is what one master says about who holds a key.
type Holder struct {
	Addr   string        // the master's address, never with a password
	Token  Secret        // zero if the key is free there, or Err is set; UnknownToken if it is no lock
	TTL    time.Duration // how long the key has still to live; below 0 if it does not expire, which no Redlock library sets
	Permit int           // the number of the permit, from 1 on; 0 if permits were not asked for
	Fence  uint64        // the last fence that was given there, even if the key is free; 0 if it was not asked for
	Size   int64         // bytes of the string that the key holds, if it is too long for a lock's; otherwise 0
	Err    error         // why the master's answer is missing; nil if it is not

	Revoked bool   // the lock was revoked there ([Client.Revoke]), and its holder has not let go yet
	Reason  string // ... for this reason, of 128 bytes at most, which can be printed
}

// Format prints who holds the key, and not the token, whatever the verb: any process that knows
// the token can release the lock.
func (h Holder) Format(s fmt.State, _ rune) {
	switch {
	case h.Err != nil:
		fmt.Fprintf(s, "%s: %v", h.Addr, h.Err)
	case h.Token.IsZero():
		fmt.Fprintf(s, "%s: free", h.Addr)
	case h.Token == UnknownToken:
		fmt.Fprintf(s, "%s: held by %s for %v", h.Addr, noLock(h.Size), h.TTL)
	case h.Revoked:
		fmt.Fprintf(s, "%s: held by %q for %v, revoked: %q", h.Addr, h.Owner(), h.TTL, h.Reason)
	case h.Left():
		fmt.Fprintf(s, "%s: left by %q for %v", h.Addr, h.Owner(), h.TTL)
	default:
		fmt.Fprintf(s, "%s: held by %q for %v", h.Addr, h.Owner(), h.TTL)
	}
}

// Owner is the owner that the token names (Config.Owner): printable ASCII without spaces, 128
// bytes at most. It is empty if the token names none, or if another library made it. It is a
// hint: any user who may write the key can write a token with any name.
func (h Holder) Owner() string { return ownerOf(h.Token.Reveal()) }

// Left reports whether the lock was released, and its holder has left the key until its least time
// has passed ([WithMinHold]). Nobody works under it any more.
func (h Holder) Left() bool { return wasLeft(h.Token.Reveal()) }

// MarshalJSON returns the fields, with "..." in the place of a token, the owner, and Left.
func (h Holder) MarshalJSON() ([]byte, error) {
	type fields Holder
	out := struct {
		fields
		Owner, Err string
		Left       bool
	}{fields: fields(h), Owner: h.Owner(), Left: h.Left()}
	if h.Err != nil {
		out.Err = h.Err.Error()
	}
	return json.Marshal(out)
}

// noLock says what a key holds that is no lock. size is that of a long string, or 0.
func noLock(size int64) string {
	if size == 0 {
		return "a key that is no lock"
	}
	return fmt.Sprintf("a key that is no lock (string of %d bytes)", size)
}

// ask makes the call one of a script that only reads. If it is tracked, the masters are to notify of the next change of
// what it reads. They promise that for one command, so the script's text is sent.
func (k *call) ask(s script.Script, judge mux.VerdictFunc, timeout time.Duration, tracked bool, keys []string, args ...string) {
	k.token = k.token[:0]
	r := &k.request
	r.Reset()
	r.Judge = judge
	appendArgs := func(dst []byte) []byte {
		for _, arg := range args {
			dst = resp.AppendBulkString(dst, arg)
		}
		return dst
	}
	if tracked {
		r.Tracked()
		r.Text(s, len(args), appendArgs, keys...)
	} else {
		r.Call(s, len(args), appendArgs, keys...)
	}
	k.prepare(timeout)
	k.op.All, k.op.Keep = true, true
}

// askRow asks for the row of a key, and what stands beside it.
func (k *call) askRow(key, what string, timeout time.Duration, tracked bool) {
	k.ask(census.Rows, census.JudgeRows, timeout, tracked, []string{key}, what, key, string(kind.AppendQueueKey(nil, key)))
}

// tally does the round of a call that asks who holds a key, and counts the answers.
func (c *Client) tally(ctx context.Context, k *call, permits bool) (*census.Tally, error) {
	err := c.rounds.Do(ctx, &k.op)
	t := census.NewTally(len(k.op.Votes))
	for i := range k.op.Votes {
		switch v := &k.op.Votes[i]; {
		case v.Verdict != VerdictYes:
		case permits:
			t.Add(i, census.ReadPermits(v.Reply))
		default:
			t.Add(i, census.ReadRows(v.Reply)[0])
		}
		k.op.Votes[i].Reply = resp.Value{}
	}
	return t, err
}

// Holders asks every master who holds a key, and returns one Holder for each, in the order of
// Config.Masters, unless an option says otherwise. It waits for all masters that are up, for at
// most Config.RoundTimeout (500 ms if that is zero). If fewer than a majority answered, it also
// returns a *RoundError. That wraps ErrNoQuorum, or ErrClosed if the client is closed, or ctx's
// error if ctx ended before.
//
// The lock is held only if a majority of the masters has the same token. If the key holds
// something other than a string, or one that is too long for a lock's, the token is UnknownToken. A lock that was revoked is held until
// its holder has let go, or its TTL has passed.
//
// Three of the options mean something here:
//
//	WithFence      asks for the fence, too
//	WithShared     asks for the readers of a shared lock, if there are any
//	WithPermits    asks who holds each permit. Locks with another k hold none of these
//
// With the last two there is a Holder for each reader or permit that a master has, and one
// without a token for a master that has none. Each has its own TTL. If there are more than 1,000
// readers, a master names those that expire last.
func (c *Client) Holders(ctx context.Context, key string, opts ...Option) ([]Holder, error) {
	mustContext(ctx)
	c.check()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if (o.fence || o.permits > 0) && kind.Ambiguous(c.cfg.Prefix+key) {
		o.invalid = errAmbiguous
	}
	if o.invalid != nil {
		return nil, fmt.Errorf("redlock: holders of %s: %w", quoted(key), o.invalid)
	}
	out, _, err := c.census(ctx, OpHolders, key, &o)
	return out, err
}

// census asks every master who holds a key, and counts that. The error is nil or a *RoundError.
func (c *Client) census(ctx context.Context, of Op, key string, o *options) (out []Holder, t *census.Tally, _ error) {
	k := c.takeCall()
	defer c.putCall(k)
	if o.permits > 0 {
		k.ask(census.Values, census.JudgeArray, c.cfg.questionTimeout(), false, kind.NewPermits(c.cfg.Prefix+key, 0, o.permits).Names())
	} else {
		what := ""
		if o.fence {
			what = census.Fence
		}
		if o.shared {
			what += census.Readers
		}
		k.askRow(c.cfg.Prefix+key, what, c.cfg.questionTimeout(), false)
	}
	t, err := c.tally(ctx, k, o.permits > 0)
	for i, row := range t.Rows {
		h := Holder{Addr: c.masters.at(i), Err: k.op.Votes[i].Err}
		switch {
		case row != nil:
			h.Fence = row.Fence
			for _, one := range row.Holders {
				one.Addr, one.Fence = h.Addr, h.Fence
				out = append(out, Holder(one))
			}
		case h.Err == nil && err != nil && err != mux.ErrTimeout:
			h.Err = err // nobody waited for it any longer
		case h.Err == nil:
			h.Err = lateError{k.op.Timeout}
		}
		if row == nil || len(row.Holders) == 0 {
			out = append(out, h)
		}
	}
	if reason := quorum.Count(k.op.Votes, err).Answered(); reason != nil {
		e := c.failure(of, key, k, err, reason)
		e.blame(ctx, err)
		return out, t, e
	}
	return out, t, nil
}

// A holderSummary sums up what the masters say of one holder of a lock.
type holderSummary struct {
	owner   string
	token   Secret
	size    int64         // Holder.Size
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
		token := c.Token.Reveal()
		h := holderSummary{ownerOf(token), c.Token, c.Size, wasLeft(token), len(c.On), len(t.Rows), t.Silent() > 0, c.Lasts()}
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
	case h.token == UnknownToken:
		owner = noLock(h.size)
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
		return unasked(OpLock, m.key, ErrClosed, "")
	}
	e := unasked(OpLock, m.key, nil, "")
	switch {
	case last != nil:
		*e = *last
		e.Votes = slices.Clone(last.Votes) // other waiters of its queue have them, too
	case held:
		e.reason, e.note = ErrHeld, byUs
	case failure != nil:
		*e = *failure
		e.Key, e.note, e.Votes = m.key, "", slices.Clone(failure.Votes)
	case cut != nil:
		*e = *cut
	}
	e.endedBy(ctx, err)
	if e.reason == ErrHeld && errors.Is(err, context.DeadlineExceeded) {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.client.shortTimeout(m.timeout, explainMin))
		defer cancel()
		h := m.findHolder(ask)
		e.names(h)
		if e.note == "" && h.votes > 0 && m.slotted == nil && m.client.renewer.keeps(h.token.Reveal()) {
			e.note = byUs
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
	if m.slotted != nil {
		_, t, _ := c.census(ctx, OpHolders, m.key, &options{permits: m.slots()}) // the masters that answer are enough
		return soonest(t)
	}
	return c.inTheWay(ctx, 1, m.names()...)
}

// inTheWay asks who holds one of some keys, one after the other. It returns the first holder that so many masters name, or
// else what is known of the last key.
func (c *Client) inTheWay(ctx context.Context, least int, keys ...string) (h holderSummary) {
	for _, key := range keys {
		key = strings.TrimPrefix(key, c.cfg.Prefix)
		_, all, _ := c.census(ctx, OpHolders, key, &options{})
		if slices.ContainsFunc(all.Claims, func(h *census.Claim) bool { return h.Token == UnknownToken }) { // readers
			if _, readers, err := c.census(ctx, OpHolders, key, &options{shared: true}); err == nil {
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
