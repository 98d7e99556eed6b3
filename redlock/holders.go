package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// UnknownToken is the Token of a [Holder] if the key holds something that is no lock. It is
// no secret, but hidden like one.
var UnknownToken = NewSecret("?")

// NoExpiry is the TTL of a [Holder], and the HeldFor of a [RoundError], if the key does not
// expire. No Redlock library sets such a key.
const NoExpiry time.Duration = -1

// A Holder is what one master says about who holds a key.
type Holder struct {
	Addr   string        // the master's address, never with a password
	Token  Secret        // zero if the key is free there, or Err is set; UnknownToken if it is no lock
	TTL    time.Duration // how long the key has still to live; NoExpiry if it does not expire
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

// The scripts below return the counter of the lock's fence, or 0 if it was not asked for. Then
// follow, for each lock that is there, its token and how long it lasts. In the place of a string
// that is too long for a lock's they return how long it is. They cut a token that is longer than
// ours are, so that a thousand of them fit into a reply. pcall is as in the other scripts.
var (
	// KEYS key.
	holdersScript = script.New(holdersText + cutValue("1024") + `return {0, v, redis.call('PTTL', KEYS[1])}`)

	fencedHoldersScript = script.New(script.AnyKeys + fencedHoldersText)

	// KEYS key. If readers hold it, it returns these: those that expire last, if there are more
	// than a thousand.
	sharedHoldersScript = script.New(readersText("0") + holdersScript.Text)

	sharedFencedHoldersScript = script.New(script.AnyKeys + readersText(countNow) + fencedHoldersText)

	// KEYS the slots of permits.
	slotHoldersScript = script.New(`local out = {0}
for i, key in ipairs(KEYS) do
  local v = redis.pcall('GET', key)
  ` + script.UnlessForeign + cutValue("512") + `  out[#out + 1] = v
  out[#out + 1] = redis.call('PTTL', key)
end
return out`)
)

const (
	holdersText = `local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign
	// countNow is the counter. It is not among the call's keys: so a user who lacks the right to
	// it is told the rest.
	countNow = `tonumber(redis.pcall('GET', (string.find(KEYS[1], '^[^{]*{[^}]+}') and '' or '{') .. KEYS[1] .. '}:fence')) or 0`
)

var fencedHoldersText = holdersText + cutValue("1024") + `return {` + countNow + `, v, redis.call('PTTL', KEYS[1])}`

// cutValue is the Lua that cuts the value v, or makes it the size of a string that is too long.
func cutValue(most string) string {
	return `if type(v) == 'string' then
  v = #v > ` + strconv.Itoa(longestValue) + ` and #v or string.sub(v, 1, ` + most + `)
end
`
}

// longestValue is how many bytes a lock's key holds at the most: the tombstone of the longest token.
const longestValue = len(kind.RevokedPrefix) + maxToken + 1 + kind.MaxReason

func readersText(count string) string {
	return `if redis.call('TYPE', KEYS[1]).ok == 'zset' then
  ` + kind.MasterTime + `  local readers, out = redis.call('ZRANGE', KEYS[1], -1000, -1, 'WITHSCORES'), {` + count + `}
  for i = 1, #readers, 2 do
    if tonumber(readers[i + 1]) >= now then
      out[#out + 1] = string.sub(readers[i], 1, 512)
      out[#out + 1] = math.floor(readers[i + 1] - now)
    end
  end
  return out
end
`
}

// judgeHolder judges those of one holder: an answer is a yes.
func judgeHolder(v resp.Value) mux.Verdict {
	if v.Kind() == resp.Array && v.Len() == 3 {
		return mux.VerdictYes
	}
	return kind.JudgeError(v)
}

// judgeHolders judges those of many, who may also be none.
func judgeHolders(v resp.Value) mux.Verdict {
	if v.Kind() == resp.Array && v.Len()%2 == 1 {
		return mux.VerdictYes
	}
	return kind.JudgeError(v)
}

// holders makes the call ask all masters who holds a key.
func (k *call) holders(key string, o options, timeout time.Duration) {
	k.token = k.token[:0]
	r := &k.request
	r.Reset()
	r.Judge = judgeHolders
	script, keys := holdersScript, []string{key}
	switch {
	case o.permits > 0:
		script, keys = slotHoldersScript, kind.NewPermits(key, 0, o.permits).Names()
	case !o.shared:
		r.Judge = judgeHolder
		if o.fence {
			script = fencedHoldersScript
		}
	case o.fence:
		script = sharedFencedHoldersScript
	default:
		script = sharedHoldersScript
	}
	r.Call(script, 0, func(dst []byte) []byte { return dst }, keys...)
	k.prepare(timeout)
	k.op.All, k.op.Keep = true, true
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
	k := c.takeCall()
	defer c.putCall(k)
	k.holders(c.cfg.Prefix+key, o, c.cfg.questionTimeout())
	err := c.rounds.Do(ctx, &k.op)
	out := make([]Holder, 0, len(k.op.Votes))
	for i := range k.op.Votes {
		v := &k.op.Votes[i]
		h := Holder{Addr: c.masters.at(i), Err: v.Err}
		if h.Err == nil && v.Verdict != VerdictYes {
			h.Err = lateError{k.op.Timeout}
			if err != nil && err != mux.ErrTimeout {
				h.Err = err // Holders did not wait for it any longer
			}
		}
		out = appendHolders(out, h, v.Reply, o.permits > 0)
		v.Reply = resp.Value{}
	}
	if reason := count(k.op.Votes, err).answered(); reason != nil {
		e := c.failure(OpHolders, key, k, err, reason)
		e.blame(ctx, err)
		return out, e
	}
	return out, nil
}

// appendHolders appends what a master's reply to a holders script says, or h if it says nothing.
// h has the fields that all its Holders share. A token that it repeats counts once.
func appendHolders(out []Holder, h Holder, reply resp.Value, permits bool) []Holder {
	elems := reply.Elems()
	first, _ := elems.Next()
	if n, _ := first.Int(); n > 0 {
		h.Fence = uint64(n)
	}
	before := len(out)
	var named map[Secret]bool
	for permit := 1; ; permit++ {
		one := h
		var more bool
		if one.Token, one.Size, one.TTL, more = nextHolder(&elems); !more {
			break
		}
		if token, reason, ok := kind.CutTombstone(one.Token.Reveal()); ok {
			one.Token, one.Revoked, one.Reason = NewSecret(token), true, reason
		}
		if permits {
			one.Permit = permit
		}
		if one.Token.IsZero() || named[one.Token] {
			continue
		}
		if named == nil {
			named = map[Secret]bool{}
		}
		named[one.Token] = !permits || one.Token != UnknownToken
		out = append(out, one)
	}
	if len(out) == before {
		out = append(out, h)
	}
	return out
}

// nextHolder reads a lock from the reply of a holders script, if there is one more.
func nextHolder(elems *resp.Iter) (token Secret, size int64, ttl time.Duration, more bool) {
	first, more := elems.Next()
	second, _ := elems.Next()
	ms, _ := second.Int()
	size, _ = first.Int()
	switch {
	case first.IsNull() || !more:
		return Secret{}, 0, 0, more
	case first.Kind() == resp.BulkString:
		token = NewSecret(string(first.Bytes()))
	}
	if token.IsZero() { // no string, or an empty one
		token = UnknownToken
	}
	if ms < 0 {
		return token, size, NoExpiry, true
	}
	return token, size, milliseconds(ms), true
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
	left    time.Duration // until so few masters have it that the lock is free; NoExpiry if never
}

// leading returns the summary of the one that holds the key on most masters.
func leading(holders []Holder, masters int) holderSummary {
	return pickHolder(holders, masters, func(a, b holderSummary) bool { return a.votes > b.votes })
}

// last returns the summary of the reader that holds a shared lock for longest.
func last(holders []Holder, masters int) holderSummary {
	return pickHolder(holders, masters, func(a, b holderSummary) bool { return a.ends() > b.ends() })
}

// soonest returns the summary of the permit that is free first, if none is renewed.
func soonest(holders []Holder, masters int) holderSummary {
	return pickHolder(holders, masters, func(a, b holderSummary) bool { return a.ends() < b.ends() })
}

func (h holderSummary) ends() time.Duration {
	if h.left == NoExpiry {
		return clock.Forever
	}
	return h.left
}

// pickHolder returns the summary that comes before all others, or the first of equal ones. A
// holder that a majority names comes before one that fewer name.
func pickHolder(holders []Holder, masters int, before func(a, b holderSummary) bool) (first holderSummary) {
	ttls, sizes := map[Secret][]time.Duration{}, map[Secret]int64{}
	var tokens []Secret
	silent := false
	for _, h := range holders {
		silent = silent || h.Err != nil
		if h.Token.IsZero() {
			continue
		}
		if ttls[h.Token] == nil {
			tokens = append(tokens, h.Token)
		}
		sizes[h.Token] = max(sizes[h.Token], h.Size)
		left := h.TTL
		if left < 0 {
			left = clock.Forever
		}
		ttls[h.Token] = append(ttls[h.Token], left)
	}
	quorum := majority(masters)
	for _, token := range tokens {
		of := ttls[token]
		slices.Sort(of)
		h := holderSummary{owner: ownerOf(token.Reveal()), token: token, size: sizes[token], free: wasLeft(token.Reveal()), votes: len(of), masters: masters, silent: silent}
		// The lock is free once no majority has it.
		if h.left = of[max(0, len(of)-quorum)]; h.left == clock.Forever {
			h.left = NoExpiry
		}
		real, other := h.votes >= quorum, first.votes >= quorum
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
	if e.named = h.votes > 0 && h.votes >= majority(h.masters); e.named && e.under == ErrSplit {
		e.under = nil
	}
}

// findHolder asks who is in the way of the lock: of several keys, the holder of the first that is
// held; of readers, the one that expires last; of permits, the one that is free first.
func (m *Mutex) findHolder(ctx context.Context) (h holderSummary) {
	c := m.client
	if m.slotted != nil {
		all, _ := c.Holders(ctx, m.key, WithPermits(m.slots())) // the masters that answer are enough
		return soonest(all, len(c.masters))
	}
	return c.inTheWay(ctx, 1, m.names()...)
}

// inTheWay asks who holds one of some keys, one after the other. It returns the first holder that so many masters name, or
// else what is known of the last key.
func (c *Client) inTheWay(ctx context.Context, least int, keys ...string) (h holderSummary) {
	for _, key := range keys {
		key = strings.TrimPrefix(key, c.cfg.Prefix)
		all, _ := c.Holders(ctx, key)
		if slices.ContainsFunc(all, func(h Holder) bool { return h.Token == UnknownToken }) { // readers
			if readers, err := c.Holders(ctx, key, WithShared()); err == nil {
				if h = last(readers, len(c.masters)); h.votes >= least {
					break
				}
			}
		}
		if h = leading(all, len(c.masters)); h.votes >= least {
			break
		}
	}
	return h
}
