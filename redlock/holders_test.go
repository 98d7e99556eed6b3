package redlock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/stretchr/testify/require"
)

func TestHoldersAreDescribed(t *testing.T) {
	const other = "redsync-style-token="
	s := time.Second
	for want, holders := range map[string][]Said{
		"": {{}, {Err: errFake}, {}},
		"held by svc-a@host-7:311 on 4 of 5 masters, 8.0 s left": {
			{Token: NewSecret(svcA), TTL: 9 * s}, {Token: NewSecret(svcA), TTL: 7 * s}, {Token: NewSecret(svcA), TTL: 8 * s}, {Token: NewSecret(svcA), TTL: 9 * s}, {Token: NewSecret(other), TTL: s}},
		"held by svc-a@host-7:311 on at least 2 of 3 masters, 8.0 s left": {
			{Token: NewSecret(svcA), TTL: 9 * s}, {Err: errFake}, {Token: NewSecret(svcA), TTL: 8 * s}},
		"held by somebody without a name on 1 of 1 masters, 1.0 s left":     {{Token: NewSecret(other), TTL: s}},
		"held by somebody without a name on 1 of 1 masters, without expiry": {{Token: NewSecret(other), TTL: -1}},
	} {
		require.Equal(t, want, leading(said(len(holders), holders...)).String())
	}
}

// Of readers the one that ends last is named, and of permits the one that is free first. But what a minority says comes behind
// what a majority does.
func TestWhoHoldsALockIsWhomAMajorityNames(t *testing.T) {
	who := func(name string, left time.Duration) Said { return Said{Token: NewSecret(name), TTL: left} }
	for _, c := range []struct {
		all           []Said
		last, soonest string
	}{
		{[]Said{who("a", 8), who("a", 8), who("b", 9)}, "a", "a"},
		{[]Said{who("b", 9), who("a", 8), who("a", 8)}, "a", "a"},
		{[]Said{who("a", 8), who("a", 8), who("b", 7)}, "a", "a"},
		{[]Said{who("b", 7), who("a", 8), who("a", 8)}, "a", "a"},
		{[]Said{who("a", 8), who("b", 9), who("c", 7)}, "b", "c"},
		{[]Said{who("a", 8), who("b", -1), who("c", 7)}, "b", "c"},
	} {
		tally := said(3, c.all...)
		require.Equal(t, c.last, last(tally).token.Reveal(), "%v", c.all)
		require.Equal(t, c.soonest, soonest(tally).token.Reveal(), "%v", c.all)
	}
}

// Since when a lock is held is said only of a holder with the fence, whose counter was given its life together with the key
// on a majority of the masters.
func TestSinceWhenIsSaidOfAHolderWithAFenceAlone(t *testing.T) {
	now := time.Now()
	taken := now.Add(-time.Hour).Truncate(time.Microsecond)
	const memory, left = 24 * time.Hour, 10 * time.Second
	for name, test := range map[string]struct {
		counters [3]time.Duration // for how long they last beyond the key
		said     bool
	}{
		"with the key":                {[3]time.Duration{memory, memory, memory}, true},
		"asked for a moment apart":    {[3]time.Duration{memory + 10*time.Millisecond, memory - 10*time.Millisecond, memory}, true},
		"the least memory":            {[3]time.Duration{time.Minute, time.Minute, time.Minute}, true},
		"on a majority":               {[3]time.Duration{memory, memory - 30*time.Second, memory}, true},
		"on a minority":               {[3]time.Duration{memory - 30*time.Second, memory, memory - 30*time.Second}, false},
		"100 ms before the key":       {[3]time.Duration{memory - 100*time.Millisecond, memory - 100*time.Millisecond, memory - 100*time.Millisecond}, false},
		"100 ms after it":             {[3]time.Duration{memory + 100*time.Millisecond, memory + 100*time.Millisecond, memory + 100*time.Millisecond}, false},
		"some seconds before it":      {[3]time.Duration{memory - 7*time.Second, memory - 7*time.Second, memory - 7*time.Second}, false},
		"it does not outlive the key": {[3]time.Duration{0, 0, 0}, false},
	} {
		tally := census.NewTally(3)
		for i, beyond := range test.counters {
			tally.Add(i, census.Row{Holders: []census.Holder{{Token: NewSecret("t"), TTL: left}}, Fence: uint64(taken.UnixMicro()), FenceTTL: left + beyond})
		}
		want := time.Time{}
		if test.said {
			want = taken
		}
		require.True(t, want.Equal(tally.Since(now)), name)
	}
}

// Who is in the way may be readers, whatever another master says.
func TestReadersAreInTheWayOnWhicheverMasters(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for i := range 3 {
		key := fmt.Sprint("k", i)
		Says(t, masters, i, "SET", key, "another's")
		require.NoError(t, c.NewMutex(key, 30*time.Second, WithShared(), WithOwner("reader")).TryLock(t.Context()))
		h := c.NewMutex(key, 30*time.Second).findHolder(t.Context())
		require.Equal(t, "reader", h.owner, "%d says %v", i, h)
		require.Equal(t, 2, h.votes)
	}
}

// No lock can have such a key: the answer "nobody" would be about another question.
func TestWhoAsksNamesAKey(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for key, says := range map[string]string{"": "the key is empty", strings.Repeat("k", 16385): "the key has 16385 bytes, and 16384 are the most"} {
			_, err := c.Holders(t.Context(), key)
			require.ErrorContains(t, err, says)
			n := 0
			for _, err := range c.Watch(t.Context(), key) {
				require.EqualError(t, err, "redlock: watch: "+says)
				n++
			}
			require.Equal(t, 1, n)
		}
	})
}

func TestHoldersAreAskedOnEveryMaster(t *testing.T) {
	simulated(t, 5, Config{Owner: "me"}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(occupy, 0)
		r.set(flush, 1)
		r.set(fail, 2)
		lock, err := c.Holders(t.Context(), "k")
		require.NoError(t, err)
		left := lock.Holders[0].TTL
		require.InDelta(t, ttl.Seconds(), left.Seconds(), 0.01)
		require.Equal(t, LockInfo{
			Key: "k", Kind: kindPlain, Masters: 5, Silent: []string{"m2"},
			Holders: []Holder{
				{Owner: "me", Token: NewSecret(m.Token()), Masters: []string{"m3", "m4"}, TTL: left},
				{Token: NewSecret("another's"), Masters: []string{"m0"}, TTL: lock.Holders[1].TTL},
			},
		}, lock)
		r.set(func(m *fakeMaster) { m.down = nil }, 2)
		lock, err = c.Holders(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, lock.Held)
		require.Equal(t, []string{"m2", "m3", "m4"}, lock.Holders[0].Masters)
		r.set(freeze, 2, 3, 4)
		since := r.now()
		lock, err = c.Holders(t.Context(), "k")
		require.ErrorIs(t, err, ErrNoQuorum)
		require.Equal(t, []string{"m2", "m3", "m4"}, lock.Silent)
		require.Equal(t, defaults.MaxRoundTimeout, r.now()-since)
	})
}
