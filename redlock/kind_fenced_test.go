package redlock

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The scripts do on real masters what the model's counters do, whatever is asked in whatever order.
func TestScriptsOfTheFence(t *testing.T) {
	sequential(t)
	t.Parallel()
	masters, c := started(t, 1)
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	const ttl = time.Minute
	today := uint64(time.Now().UnixMicro())
	for n := range fewer(20) {
		key := fmt.Sprint("k", n)
		var want counter
		s := &round.Spec{Traits: new(round.Traits), Key: key, Term: quorum.NewTerm(ttl, 0.01), Timeout: hanging}
		s.Numbers = kind.NewFenced(key, ttl, &newHints().Counters)
		s.Kind = s.Numbers
		for step := range 100 {
			k := c.round.Take()
			token := []byte(fmt.Sprint("token", random.IntN(2)))
			number := 1 + uint64(random.IntN(200))
			if random.IntN(2) == 0 {
				number += today
			}
			var reply int64
			yes := false
			verb := random.IntN(8)
			if random.IntN(4) == 0 { // then they are sent by text
				Says(t, masters, 0, "SCRIPT", "FLUSH")
			}
			switch verb {
			case 0:
				k.Acquire(s, "", number)
				reply = want.acquire(string(k.Token), number)
				yes = reply > 0
			case 1:
				k.Extend(s, token, number, s.Term.TTL)
				reply = want.extend(string(token), number)
				yes = reply == 1
			case 6:
				k.Repair(s, token, number, s.Term.TTL, 1)
				reply = want.repair(string(token), number)
				yes = reply == 1
			case 2:
				k.Extend(s, token, 0, s.Term.TTL)
				reply = want.adopt(string(token))
				yes = reply >= 0
			case 3:
				k.Token = append(k.Token[:0], token...)
				k.Raise(s, number)
				reply = want.raise(string(token), number)
				yes = reply > 0
			case 4:
				k.Release(s, token)
				reply = want.release(string(token))
				yes = reply == 1
			case 5:
				k.Pass(s, token, number, s.Term.TTL*time.Duration(random.IntN(2)))
				reply = want.pass(string(token), number)
				yes = reply > 0
			default: // it expires
				Says(t, masters, 0, "DEL", key)
				want.token = ""
				c.round.Put(k)
				continue
			}
			require.NoError(t, c.round.Mux.Do(t.Context(), &k.Op))
			vote := k.Op.Votes[0]
			require.NoError(t, vote.Err)
			require.Equal(t, reply, vote.Int, "step %d, verb %d", step, verb)
			require.Equal(t, yes, vote.Verdict == mux.VerdictYes, "step %d, verb %d", step, verb)
			if verb == 0 && yes { // from now on under a token that comes again
				Says(t, masters, 0, "SET", key, string(token), "KEEPTTL")
				want.token = string(token)
			}
			c.round.Put(k)
			f := Says(t, masters, 0, "GET", "{"+key+"}:fence")
			if f == nil {
				f = "0"
			}
			require.Equal(t, fmt.Sprint(want.f), f, "step %d, verb %d", step, verb)
			v := Says(t, masters, 0, "GET", key)
			if want.token == "" {
				require.Nil(t, v)
				continue
			}
			require.Equal(t, want.token, v)
			left := Says(t, masters, 0, "PTTL", "{"+key+"}:fence")
			require.Greater(t, left, ttl.Milliseconds(), "the counter outlives the lock")
		}
	}
}

// A counter is a master's key and the counter beside it, as the scripts are to treat them.
type counter struct {
	token string // of the key; empty if it is free
	f     uint64
}

func (c *counter) acquire(token string, hint uint64) int64 {
	if c.token != "" {
		return -int64(c.f)
	}
	c.token, c.f = token, max(c.f+1, hint)
	return int64(c.f)
}

func (c *counter) extend(token string, fence uint64) int64 {
	switch c.token {
	case "":
		return kind.Gone
	case token:
		c.f = max(c.f, fence)
		return 1
	}
	return 0
}

func (c *counter) repair(token string, fence uint64) int64 {
	if c.token != "" {
		return 0
	}
	c.token, c.f = token, max(c.f, fence)
	return 1
}

func (c *counter) pass(token string, hint uint64) int64 {
	if c.token != token {
		return 0
	}
	c.f = max(c.f+1, hint)
	return int64(c.f)
}

func (c *counter) adopt(token string) int64 {
	if c.token != token {
		return -1
	}
	return int64(c.f)
}

func (c *counter) raise(token string, fence uint64) int64 {
	if c.token != token {
		return 0
	}
	c.f = max(c.f, fence)
	return int64(c.f)
}

func (c *counter) release(token string) int64 {
	if c.token != token {
		return -1
	}
	c.token = ""
	return 1
}

// A counter is set back only where the key is the holder's own, and where the master's own clock says so, too.
func TestScriptsThatMend(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	do := Asker(t, masters)
	now := time.Now().UnixMicro()
	h := newHints()
	one, two := kind.NewFenced("a", ttl, &h.Counters), kind.NewSeveralFenced(kind.NewSeveral([]string{"a", "b"}), ttl, &h.Counters)
	for counter, mended := range map[string]bool{
		fmt.Sprint(now): false,
		fmt.Sprint(now + (23 * time.Hour).Microseconds()): false,
		fmt.Sprint(now + (25 * time.Hour).Microseconds()): true,
		"9007199254740900": true, "9223372036854774784": true, "junk": true, "5": false,
	} {
		for _, which := range []kind.Numbered{one, two} {
			for _, holders := range []string{"mine", "another's", ""} {
				do("FLUSHALL")
				do("SET", "{a}:fence", counter)
				do("SET", "{b}:fence", counter)
				if holders != "" {
					do("SET", "a", holders)
					do("SET", "b", "mine")
				}
				var r kind.Request
				which.Mend(&r, kind.Grant{Key: "a", Token: []byte("mine"), TTL: ttl, Fence: uint64(now) + 1})
				at := fmt.Sprintf("%T, %s, %q", which, counter, holders)
				was, want := int64(0), counter
				if mended && holders == "mine" {
					was, want = 1, fmt.Sprint(now+1)
				}
				require.Equal(t, was, do(words(r.Command)...), at)
				require.Equal(t, want, do("GET", "{a}:fence"), at)
				if which == kind.Numbered(two) {
					require.Equal(t, want, do("GET", "{b}:fence"), at)
				}
				if was == 1 {
					require.Greater(t, do("PTTL", "{a}:fence"), defaults.FenceMemory.Milliseconds(), at)
				}
			}
		}
	}
}
