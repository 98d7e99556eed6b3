package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/stretchr/testify/require"
)

func TestHoldersAreDescribed(t *testing.T) {
	const other = "redsync-style-token="
	s := time.Second
	for want, holders := range map[string][]Holder{
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

// said is the tally of what the first of so many masters say.
func said(masters int, holders ...Holder) *census.Tally {
	t := census.NewTally(masters)
	for i, h := range holders {
		row := census.Row{Fence: h.Fence}
		if !h.Token.IsZero() {
			row.Holders = []census.Holder{census.Holder(h)}
		}
		if h.Err == nil {
			t.Add(i, row)
		}
	}
	return t
}

func TestHoldersOfAnEndedContextDidNotTimeOut(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		all, err := c.Holders(ctx, "k")
		require.ErrorIs(t, err, context.Canceled)
		for _, h := range all {
			require.ErrorIs(t, h.Err, context.Canceled)
			require.NotErrorIs(t, h.Err, mux.ErrTimeout)
		}
	})
}

func TestHolderIsPrintedWithoutItsToken(t *testing.T) {
	h := Holder{Addr: "a:1", Token: NewSecret(svcA), TTL: time.Second}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		require.Equal(t, `a:1: held by "svc-a@host-7:311" for 1s`, fmt.Sprintf(verb, h))
		require.NotContains(t, fmt.Sprintf(verb, []*Holder{&h}), svcA[len(svcA)-10:])
	}
	require.Equal(t, "a:1: free", fmt.Sprint(Holder{Addr: "a:1"}))
	require.Equal(t, "a:1: "+errFake.Error(), fmt.Sprint(Holder{Addr: "a:1", Err: errFake}))
}

func TestHoldersAreAskedOnEveryMaster(t *testing.T) {
	simulated(t, 5, Config{Owner: "me"}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(occupy, 0)
		r.set(flush, 1)
		r.set(fail, 2)
		holders, err := c.Holders(t.Context(), "k")
		require.NoError(t, err)
		require.Len(t, holders, 5)
		require.Equal(t, "another's", holders[0].Token.Reveal())
		require.Empty(t, holders[0].Owner())
		require.Equal(t, Holder{Addr: "m1"}, holders[1])
		require.Equal(t, errFake, holders[2].Err)
		for _, h := range holders[3:] {
			require.Equal(t, m.Token(), h.Token.Reveal())
			require.Equal(t, "me", h.Owner())
			require.InDelta(t, ttl.Seconds(), h.TTL.Seconds(), 0.01)
		}
		r.set(freeze, 3, 4)
		since := r.now()
		holders, err = c.Holders(t.Context(), "k")
		require.ErrorIs(t, err, ErrNoQuorum)
		require.Len(t, holders, 5)
		require.Equal(t, maxRoundTimeout, r.now()-since)
		require.True(t, slices.ContainsFunc(holders, func(h Holder) bool { return errors.Is(h.Err, mux.ErrTimeout) }))
	})
}
