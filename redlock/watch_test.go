package redlock

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// news is what a loop over Watch was told.
type news struct {
	Leader
	err error
}

// watched runs a loop over Watch, and returns what it is told, and how it is ended.
func watched(t *testing.T, c *Client, key string) (next func() news, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	all, over := make(chan news, 100), make(chan struct{})
	go func() {
		defer close(over)
		for leader, err := range c.Watch(ctx, key) {
			all <- news{LeaderOf(leader), err}
		}
	}()
	stop = func() {
		cancel()
		<-over
	}
	t.Cleanup(stop)
	return func() news {
		t.Helper()
		select {
		case v := <-all:
			return v
		case <-time.After(time.Hour): // of synctest's clock
		}
		require.Fail(t, "nothing is told")
		return news{}
	}, stop
}

// telling has the simulated masters notify a client's watchers.
func telling(c *Client, r *fakeRounds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tells = func(_ int, key string) { c.tracking.Push(0, []byte(key)) }
}

func TestWatchTellsWhoLeads(t *testing.T) {
	for _, tracking := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			all, r := candidates(t, 2, Config{})
			if tracking {
				telling(all[1], r)
			}
			next, _ := watched(t, all[1], "k")
			require.Equal(t, news{}, next(), "nobody")
			soon := func(want news) {
				t.Helper()
				since := r.now()
				got := next()
				require.Equal(t, want, got)
				most := 20 * time.Millisecond
				if !tracking {
					most += 2 * pollMax
				}
				require.Less(t, r.now()-since, most)
			}
			for range 3 {
				m := all[0].NewMutex("k", ttl, WithFence(), WithOwner("10.0.0.7:8080"))
				require.NoError(t, m.TryLock(t.Context()))
				soon(news{Leader: Leader{true, "10.0.0.7:8080", m.Fence()}})
				_, stop := m.KeepAlive(t.Context())
				time.Sleep(10 * ttl) // renewals are no news
				stop()
				require.NoError(t, m.Unlock(t.Context()))
				soon(news{})
			}
			// A holder that has died.
			m := all[0].NewMutex("k", ttl)
			require.NoError(t, m.TryLock(t.Context()))
			require.True(t, next().Held)
			time.Sleep(ttl - 10*time.Millisecond)
			soon(news{})
		})
	}
}

// watchLooks is how often a simulated master was asked by a watcher of the key "k".
func watchLooks(r *fakeRounds, master int) (n int) {
	for _, line := range r.logs(master) {
		if line == "watch k" {
			n++
		}
	}
	return n
}

// The masters are asked seldom if they can notify, and at once if they do.
func TestWatchAsksWhenItIsNotified(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		telling(all[0], r)
		next, stop := watched(t, all[0], "k")
		next()
		looks := func() int { return watchLooks(r, 0) }
		time.Sleep(time.Minute)
		require.LessOrEqual(t, looks(), 7)
		require.GreaterOrEqual(t, looks(), 3, "a master that hangs tells nothing")
		stop()
		before := looks()
		time.Sleep(time.Minute)
		require.Equal(t, before, looks())
		require.Empty(t, all[0].tracking.Keys())

		r.mu.Lock()
		r.tells = nil
		r.mu.Unlock()
		_, stop = watched(t, all[0], "k")
		time.Sleep(time.Minute)
		stop()
		require.InDelta(t, before+200, looks(), 50, "every 200 to 400 ms")
	})
}

// A master that does not answer has promised nothing. If the others are too few that can notify, they are asked again and again.
func TestWatchDoesNotRelyOnTheSilent(t *testing.T) {
	for _, silent := range []bool{false, true} {
		notifying(t, 3, func(t *testing.T, c *Client, r *notifiedRounds) {
			r.old = r.old.With(1)
			r.set(func(m *fakeMaster) { m.frozen = silent }, 2)
			next, stop := watched(t, c, "k")
			require.Equal(t, news{}, next(), "nobody")
			time.Sleep(time.Minute)
			stop()
			looks := watchLooks(r.fakeRounds, 1)
			require.Equal(t, silent, looks > 7, "%d looks", looks)
		})
	}
}

// What comes and goes while the loop's body runs is left out.
func TestWatchTellsTheLatestState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		c := all[0]
		telling(c, r)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var owners []string
		for leader, err := range c.Watch(ctx, "k") {
			require.NoError(t, err)
			if owners = append(owners, LeaderOf(leader).Owner); len(owners) > 1 {
				cancel()
				continue
			}
			for _, owner := range []string{"x", "y", "z"} {
				m := c.NewMutex("k", ttl, WithOwner(owner))
				require.NoError(t, m.TryLock(t.Context()))
				if owner != "z" {
					require.NoError(t, m.Unlock(t.Context()))
				}
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, []string{"", "z"}, owners)
		for range c.Watch(t.Context(), "k") {
			break
		}
		require.Empty(t, c.tracking.Keys())
	})
}

// Of each new holder the masters can agree on the fence in a moment, without a notice: they are asked a few times more, whatever
// became of the holder before.
func TestWatchAwaitsTheFenceOfEachHolder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		telling(all[0], r)
		has := func(token string, fences ...int64) {
			for i, fence := range fences {
				at(r, i, token, time.Hour)
				r.set(func(m *fakeMaster) { m.counters["k"] = fence }, i)
			}
		}
		has("a", 7, 8, 9)
		next, _ := watched(t, all[0], "k")
		require.Equal(t, news{Leader: Leader{Held: true}}, next())
		for fence := int64(10); fence < 40; fence += 10 {
			time.Sleep(time.Minute) // they never agree
			has(fmt.Sprint("b", fence), fence+1, fence+2, fence+3)
			r.hook(func() { all[0].tracking.Push(0, []byte("k")) })
			require.Equal(t, news{Leader: Leader{Held: true}}, next(), "another holder")
			has(fmt.Sprint("b", fence), fence+3, fence+3, fence+3)
			since := r.now()
			require.Equal(t, news{Leader: Leader{Held: true, Fence: uint64(fence + 3)}}, next())
			require.Less(t, r.now()-since, time.Second)
			has(fmt.Sprint("a", fence), fence+4, fence+5, fence+6)
			r.hook(func() { all[0].tracking.Push(0, []byte("k")) })
			require.Equal(t, news{Leader: Leader{Held: true}}, next())
		}
	})
}

func TestWatchSaysWhenItCannotKnow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 2, Config{})
		telling(all[1], r)
		m := all[0].NewMutex("k", time.Hour)
		require.NoError(t, m.TryLock(t.Context()))
		time.Sleep(2 * time.Millisecond)
		next, _ := watched(t, all[1], "k")
		require.Equal(t, news{Leader: Leader{Held: true, Owner: "a"}}, next())
		r.set(fail, 0, 1)
		r.hook(func() { all[1].tracking.Push(0, nil) })
		v := next()
		require.ErrorIs(t, v.err, ErrNoQuorum)
		require.Len(t, v.err.(*RoundError).Votes, 3)
		time.Sleep(time.Minute)
		r.set(func(m *fakeMaster) { m.down = nil }, 0, 1)
		require.Equal(t, news{Leader: Leader{Held: true, Owner: "a"}}, next(), "the error was told once, and is over")
		require.NoError(t, all[1].Close())
		require.ErrorIs(t, next().err, ErrClosed)
	})
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		r.set(func(m *fakeMaster) { m.deny = func([]string) string { return "NOPERM no" } }, 0, 1, 2)
		n := 0
		for _, err := range all[0].Watch(t.Context(), "k") {
			require.ErrorContains(t, err, "NOPERM")
			n++
		}
		require.Equal(t, 1, n, "somebody has to change something first")
	})
}

func TestWhoHoldsALockByWhatTheMastersSay(t *testing.T) {
	a, b, free := Said{Token: NewSecret("a"), TTL: time.Second}, Said{Token: NewSecret("b"), TTL: time.Minute}, Said{}
	with := func(h Said, fence uint64, ttl time.Duration) Said { h.Fence, h.TTL = fence, ttl; return h }
	for name, v := range map[string]struct {
		holders []Said
		want    leadership
		unknown bool
	}{
		"free":                      {holders: []Said{free, free, free}, want: leadership{agree: true, left: clock.Forever}},
		"free, one is silent":       {holders: []Said{free, free}, want: leadership{agree: true, left: clock.Forever}},
		"held":                      {holders: []Said{a, a, a}, want: leadership{token: NewSecret("a"), agree: true, left: time.Second}},
		"held, one is silent":       {holders: []Said{a, a}, want: leadership{token: NewSecret("a"), agree: true, left: time.Second}},
		"split":                     {holders: []Said{a, b, free}, want: leadership{agree: true, left: clock.Forever}},
		"it may be held":            {holders: []Said{a, free}, unknown: true},
		"one has answered":          {holders: []Said{free}, unknown: true},
		"nobody has answered":       {unknown: true},
		"one fence":                 {holders: []Said{with(a, 7, 1), with(a, 7, 2), with(a, 7, 3)}, want: leadership{token: NewSecret("a"), fence: 7, agree: true, left: 2}},
		"a fence that most have":    {holders: []Said{with(a, 7, 3), with(a, 8, 2), with(a, 7, 1)}, want: leadership{token: NewSecret("a"), fence: 7, left: 2}},
		"no fence that most have":   {holders: []Said{with(a, 7, 1), with(a, 8, 1), with(a, 9, 1)}, want: leadership{token: NewSecret("a"), left: 1}},
		"the fences of others":      {holders: []Said{with(a, 7, 1), with(a, 7, 1), with(b, 9, 1)}, want: leadership{token: NewSecret("a"), fence: 7, agree: true, left: 1}},
		"it does not expire":        {holders: []Said{with(a, 0, -1), with(a, 0, -1), a}, want: leadership{token: NewSecret("a"), agree: true, left: clock.Forever}},
		"it does not expire at one": {holders: []Said{with(a, 0, -1), a, a}, want: leadership{token: NewSecret("a"), agree: true, left: time.Second}},
	} {
		got, known := leadershipOf(said(3, v.holders...))
		require.Equal(t, !v.unknown, known, name)
		if known {
			require.Equal(t, v.want, got, name)
		}
	}
}

// With masters that are real: pushes, and the scripts.
func TestWatchOfRealMasters(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	ours, theirs := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	led := make(chan error, 1)
	var terms []uint64
	var seen []news
	for leader, err := range ours.Watch(ctx, "k") {
		require.NoError(t, err)
		seen = append(seen, news{LeaderOf(leader), err})
		switch {
		case len(seen) == 1:
			require.Equal(t, Leader{}, LeaderOf(leader))
			go func() {
				led <- theirs.Lead(ctx, "k", time.Minute, func(ctx context.Context) error {
					terms = append(terms, FenceFrom(ctx))
					select {
					case <-ctx.Done():
					case <-time.After(500 * time.Millisecond): // a change that a watcher cannot miss
						if len(terms) == 2 {
							return errCause
						}
					}
					return nil
				}, WithOwner("http://10.0.0.7/"))
			}()
		case !leader.Held && len(seen) >= 3:
			cancel()
		}
	}
	if err := <-led; err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	i := slices.IndexFunc(seen, func(v news) bool { return v.Held && v.Fence != 0 })
	require.GreaterOrEqual(t, i, 1)
	require.Equal(t, "http://10.0.0.7/", seen[i].Owner)
	require.Contains(t, terms, seen[i].Fence)
	require.Equal(t, Leader{}, seen[len(seen)-1].Leader)
}
