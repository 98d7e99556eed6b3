package redlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// UnknownToken is the Token of a [Holder] where the key holds something other than a string.
const UnknownToken = "?"

// NoExpiry is the TTL of a [Holder], and the HeldFor of a [RoundError], where the key does not
// expire: no Redlock library has set it.
const NoExpiry time.Duration = -1

// A Holder is what one master says about who holds a key.
type Holder struct {
	Master string        // its address, never with a password
	Token  string        // empty if the key is free there, or Err is set; UnknownToken if it is no lock
	TTL    time.Duration // how long the key has still to live; NoExpiry if it does not expire
	Fence  uint64        // the last that was given there, also if the key is free; 0 if it was not asked for
	Err    error         // why the master's answer is missing; nil if it is not
}

// Format prints who holds the key, and not the token, whatever the verb: whoever knows it
// can release the lock.
func (h Holder) Format(s fmt.State, _ rune) {
	switch {
	case h.Err != nil:
		fmt.Fprintf(s, "%s: %v", h.Master, h.Err)
	case h.Token == "":
		fmt.Fprintf(s, "%s: free", h.Master)
	default:
		fmt.Fprintf(s, "%s: held by %q for %v", h.Master, h.Owner(), h.TTL)
	}
}

// Owner is the owner named in the token (Config.Owner): printable ASCII without spaces,
// 128 bytes at most; empty if none is, or if another library made the token.
func (h Holder) Owner() string { return ownerOf(h.Token) }

// holdersScript reads who holds a key, and for how long. KEYS key. A value that is too long for
// a token is cut: it can be of any size. pcall is as in the other scripts.
var holdersScript = newScript(`local v = redis.pcall('GET', KEYS[1])
if type(v) == 'string' then
  v = string.sub(v, 1, 1024)
end
return {v, redis.call('PTTL', KEYS[1])}`)

// fencedHoldersScript also reads the counter of the lock's fence. It is no key of the call: then a
// user who lacks the right to it is told the rest.
var fencedHoldersScript = newScript(strings.TrimSuffix(holdersScript.text, "}") +
	`, tonumber(redis.pcall('GET', '{' .. KEYS[1] .. '}:fence')) or 0}`)

// sharedHoldersScript also reads the readers of a shared lock: those whose term ends last, if there
// are more than a thousand. It returns each one's token, and how long its term still lasts.
var sharedHoldersScript = newScript(`if redis.call('TYPE', KEYS[1]).ok == 'zset' then
  ` + masterTime + `  local readers, out = redis.call('ZRANGE', KEYS[1], -1000, -1, 'WITHSCORES'), {}
  for i = 1, #readers, 2 do
    if tonumber(readers[i + 1]) >= now then
      out[#out + 1] = string.sub(readers[i], 1, 1024)
      out[#out + 1] = readers[i + 1] - now
    end
  end
  return #out > 0 and out or {false, -2}
end
` + holdersScript.text)

// judgeHolders judges the holders script: an answer is a yes.
func judgeHolders(v resp.Value) mux.Verdict {
	if v.Kind() == resp.Array && v.Len() >= 2 {
		return mux.VerdictYes
	}
	return judgeError(v)
}

// holders makes the call a question to all masters who holds a key.
func (k *call) holders(key string, o options, timeout time.Duration) {
	k.token = k.token[:0]
	r := &k.request
	r.reset()
	r.judge = judgeHolders
	script := holdersScript
	switch {
	case o.shared:
		script = sharedHoldersScript
	case o.fence:
		script = fencedHoldersScript
	}
	r.command = script.appendHash(r.command, 0, key)
	r.fallback = script.appendText(r.fallback, 0, key)
	k.prepare(timeout)
	k.op.All, k.op.Keep = true, true
}

// Holders asks every master who holds a key, and returns one Holder for each, in the order of
// Config.Masters. It waits for all masters that are up, for at most Config.RoundTimeout (500 ms if
// that is zero). If fewer than a majority answered, it also returns a *RoundError, which wraps
// ErrNoQuorum unless ctx ended before.
//
// Somebody holds the lock only if one token is on a majority of the masters. A
// key that holds something other than a string has the token UnknownToken.
//
// Of the options, WithFence asks for the fence, too. WithShared asks for the readers of a shared lock:
// then there is one Holder for each reader that a master has, for 1,000 of them at most, and their
// TTLs are what is left of their own terms. Without it they are one Holder with UnknownToken. The
// other options mean nothing here.
func (c *Client) Holders(ctx context.Context, key string, opts ...Option) ([]Holder, error) {
	c.check()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	timeout := c.cfg.RoundTimeout
	if timeout == 0 {
		timeout = maxRoundTimeout
	}
	k := c.takeCall()
	defer c.putCall(k)
	k.holders(key, o, timeout)
	err := c.rounds.Do(ctx, &k.op)
	out := make([]Holder, 0, len(k.op.Votes))
	for i := range k.op.Votes {
		v := &k.op.Votes[i]
		h := Holder{Master: c.masters[i], Err: v.Err}
		switch {
		case v.Verdict == VerdictYes && o.shared:
			for elems := v.Reply.Elems(); ; out = append(out, h) {
				var more bool
				if h.Token, h.TTL, more = nextHolder(&elems); !more {
					break
				}
			}
			v.Reply = resp.Value{}
			continue
		case v.Verdict == VerdictYes:
			elems := v.Reply.Elems()
			h.Token, h.TTL, _ = nextHolder(&elems)
			third, _ := elems.Next()
			if n, _ := third.Int(); n > 0 {
				h.Fence = uint64(n)
			}
		case v.Err == nil && err != nil:
			h.Err = err // which was not waited for any longer
		case v.Err == nil:
			h.Err = mux.ErrTimeout
		}
		out = append(out, h)
		v.Reply = resp.Value{}
	}
	if reason := count(k.op.Votes, err).answered(); reason != nil {
		e := c.failure(opHolders, key, k, err, reason)
		e.blame(ctx, err)
		return out, e
	}
	return out, nil
}

// nextHolder reads a holder from the reply of a holders script, if there is one more.
func nextHolder(elems *resp.Iter) (token string, ttl time.Duration, more bool) {
	first, more := elems.Next()
	second, _ := elems.Next()
	ms, _ := second.Int()
	switch {
	case first.IsNull() || !more:
		return "", 0, more
	case first.Kind() == resp.BulkString:
		token = string(first.Bytes())
	}
	if token == "" {
		token = UnknownToken
	}
	if ms < 0 {
		return token, NoExpiry, true
	}
	return token, milliseconds(ms), true
}

// A claim is what the masters say of who holds a key.
type claim struct {
	owner   string
	votes   int           // masters that name it; 0 if nobody is known to hold the key
	masters int           // of so many
	silent  bool          // some have not answered
	left    time.Duration // until it is gone from so many that it is free; NoExpiry if never
}

// leading returns the claim of whoever holds the key on most masters.
func leading(holders []Holder) (lead claim) {
	at := 0
	for i, h := range holders {
		same := 0
		for _, o := range holders {
			if o.Token != "" && o.Token == h.Token {
				same++
			}
		}
		if same > lead.votes {
			lead.votes, at = same, i
		}
	}
	if lead.votes == 0 {
		return lead
	}
	var ttls []time.Duration
	for _, h := range holders {
		if h.Token == holders[at].Token {
			left := h.TTL
			if left < 0 {
				left = conn.Forever
			}
			ttls = append(ttls, left)
		}
	}
	slices.Sort(ttls)
	// The key is free once it is gone from so many that no majority has it.
	if lead.left = ttls[max(0, lead.votes-majority(len(holders)))]; lead.left == conn.Forever {
		lead.left = NoExpiry
	}
	lead.owner, lead.masters = holders[at].Owner(), len(holders)
	lead.silent = slices.ContainsFunc(holders, func(h Holder) bool { return h.Err != nil })
	return lead
}

// String says who holds a key: "held by svc-a@host-7:311 on 4 of 5 masters, 8.2 s left". It is
// empty if no holder is known. It shows no token: whoever knows one can release the lock.
func (h claim) String() string {
	if h.votes == 0 {
		return ""
	}
	owner, about, left := h.owner, "", "without expiry"
	if owner == "" {
		owner = "somebody without a name"
	}
	if h.silent {
		about = "at least "
	}
	if h.left >= 0 {
		left = fmt.Sprintf("%.1f s left", h.left.Seconds())
	}
	return fmt.Sprintf("held by %s on %s%d of %d masters, %s", owner, about, h.votes, h.masters, left)
}
