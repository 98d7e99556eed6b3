package redlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// WithMinHold: a lock is left on the masters after its release, for a least time. Unlock, the release, the
// waiters and Do have a part in it.

const (
	least      = 10 * time.Second
	leastDrift = least/100 + 2*time.Millisecond
)

// ends returns when the key ends on the master that has it for longest; 0 if none has it.
func (r *fakeRounds) ends(key string) (ends time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.masters {
		if v, there := m.get(key); there {
			ends = max(ends, v.expires)
		}
	}
	return ends
}

func TestMinHoldLeavesTheLockUntilItsTime(t *testing.T) {
	for _, works := range []time.Duration{0, time.Second, 2 * ttl, least + leastDrift} {
		t.Run(works.String(), func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				began := r.now()
				require.NoError(t, c.Do(t.Context(), "k", ttl, func(context.Context) error {
					time.Sleep(works)
					return nil
				}, WithMinHold(least)))
				require.EqualValues(t, 1, c.Stats().Released)
				if works > least {
					r.gone(t, 2*time.Millisecond, "what was held for longer is deleted")
				}
				for r.now() < began+least-10*time.Millisecond {
					require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrHeld)
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(began + least + leastDrift + 5*time.Millisecond - r.now())
				require.NoError(t, c.NewMutex("k", ttl).TryLock(t.Context()), "no longer than that")
			})
		})
	}
}

func TestMinHoldEndsWithAFailure(t *testing.T) {
	for name, fn := range map[string]func(context.Context) error{
		"error":  func(context.Context) error { return errCause },
		"panic":  func(context.Context) error { panic("no") },
		"Goexit": func(context.Context) error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { recover() }()
					c.Do(t.Context(), "k", ttl, fn, WithMinHold(least))
				})
				wg.Wait()
				r.gone(t, 2*time.Millisecond)
			})
		})
	}
}

func TestUnlockNowLeavesNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMinHold(least))
		require.NoError(t, m.UnlockNow(t.Context()))
		r.gone(t, 2*time.Millisecond)
		require.ErrorIs(t, m.UnlockNow(t.Context()), ErrNotHeld)
		m = taken(t, c)
		require.NoError(t, m.UnlockNow(t.Context()))
		r.gone(t, 2*time.Millisecond)
	})
}

// A holder that dies leaves the lock for the least time or the TTL, whichever is longer, at every moment.
func TestMinHoldOutlivesItsHolder(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		began := r.now()
		m := taken(t, c, WithMinHold(least))
		require.Less(t, m.Remaining(), ttl, "it is no longer valid than without")
		held, stop := m.KeepAlive(t.Context())
		for r.now() < began+2*least {
			until := max(began+least, r.now()+ttl/2)
			require.GreaterOrEqual(t, r.ends("k"), until)
			require.LessOrEqual(t, r.ends("k"), max(began+least+leastDrift, r.now()+ttl)+5*time.Millisecond)
			if r.now() < began+least {
				require.NoError(t, m.Extend(t.Context()))
				require.GreaterOrEqual(t, r.ends("k"), until)
			}
			time.Sleep(ttl / 7)
		}
		require.NoError(t, held.Err())
		stop()
		r.gone(t, ttl, "when its time has passed the TTL counts")
	})
}

// The least time counts from the beginning of the attempt, however late its caller learned that it has the lock.
func TestMinHoldCountsFromTheBeginning(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		began := r.now()
		c.round.Mux = &askedRounds{Mux: r, answered: func(*mux.Op) { time.Sleep(ttl / 2) }} // it stands still after the round
		m := taken(t, c, WithMinHold(least))
		c.round.Mux = r
		require.NoError(t, m.Extend(t.Context()))
		time.Sleep(2 * time.Millisecond)
		require.GreaterOrEqual(t, r.ends("k"), began+least)
		require.LessOrEqual(t, r.ends("k"), began+least+leastDrift+5*time.Millisecond)
	})
}

// An expired lock that nobody has released is left like that of a holder who has died.
func TestMinHoldOfAnExpiredLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMinHold(least))
		token := m.Token()
		time.Sleep(ttl)
		require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld, "its own key is there for its least time")
		require.Equal(t, 3, r.holders("k", token))
		time.Sleep(least + leastDrift - ttl)
		require.NoError(t, m.TryLock(t.Context()))
		time.Sleep(ttl)
		require.NoError(t, m.UnlockNow(t.Context()), "nobody else had it, and a quorum deleted it")
		r.gone(t, 2*time.Millisecond)
	})
}

// A loss that nothing on the masters shows (they were away for longer than the validity) leaves the
// lock where it is, so the work that was done is not done again.
func TestMinHoldOutlivesALoss(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		began := r.now()
		err := c.Do(t.Context(), "k", ttl, func(held context.Context) error {
			r.set(freeze, 0, 1, 2)
			conntest.Soon(t, "the context ends", held.Done())
			r.set(thaw, 0, 1, 2)
			return nil
		}, WithMinHold(least))
		require.ErrorIs(t, err, ErrLost)
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 3, r.keys())
		require.LessOrEqual(t, r.ends("k"), began+least+leastDrift+5*time.Millisecond)
		require.GreaterOrEqual(t, r.ends("k"), began+least)
	})
	for failed, keys := range map[bool]int{false: 3, true: 0} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c, WithMinHold(least))
			time.Sleep(ttl) // a renewal that comes too late finds that
			c.held.Lose(&m.hold, []byte(m.Token()), asHeld(unasked(opRenew, "k", ErrExpired, "")))
			time.Sleep(2 * time.Millisecond)
			require.Equal(t, 3, r.keys(), "it is not known yet whether the work fails")
			unlock := m.Unlock
			if failed {
				unlock = m.UnlockNow
			}
			require.ErrorIs(t, unlock(t.Context()), ErrNotHeld, "it is lost all the same")
			time.Sleep(2 * time.Millisecond)
			require.Equal(t, keys, r.keys())
		})
	}
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMinHold(least))
		token := m.Token()
		r.set(func(m *fakeMaster) { delete(m.keys, "k") }, 0, 1)
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"another's", r.clock() + time.Minute} }, 0, 1)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		require.Equal(t, 2, r.holders("k", "another's"))
		require.LessOrEqual(t, r.holders("k", token), 1)
	})
}

// A release that comes late does not make a key last longer.
func TestALateReleaseProlongsNothing(t *testing.T) {
	for name, away := range map[string][2]func(*fakeMaster){
		"down":   {fail, func(m *fakeMaster) { m.down = nil }},
		"frozen": {freeze, thaw},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				began := r.now()
				m := taken(t, c, WithMinHold(least))
				r.set(away[0], 2)
				require.NoError(t, m.Unlock(t.Context()))
				time.Sleep(least / 2)
				r.set(away[1], 2)
				time.Sleep(2 * time.Millisecond)
				require.Contains(t, r.logs(2), "linger k "+strings.TrimPrefix(r.masters[2].keys["k"].token, kind.LeftMark), "the debt is delivered")
				require.LessOrEqual(t, r.ends("k"), began+least+leastDrift+5*time.Millisecond)
			})
		})
	}
}

// A release that could not be delivered costs the least time nothing, nor does one that was not asked for.
func TestUnlockWithMinHoldSaysWhatUnlockSays(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMinHold(least))
		r.set(fail, 0, 1)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNoQuorum)
		r.set(func(m *fakeMaster) { m.down = nil }, 0, 1)
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 3, r.keys(), "nobody has it before its time")
		time.Sleep(least + leastDrift)
		m = taken(t, c, WithMinHold(least))
		r.set(flush, 0, 1, 2)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m = taken(t, c, WithMinHold(least))
		require.ErrorIs(t, m.Unlock(ctx), context.Canceled)
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 3, r.keys())
	})
}

// Nobody here knows when a lock was taken that was handed over.
func TestMinHoldOfAHandedOverLock(t *testing.T) {
	for _, extend := range []bool{false, true} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			first := taken(t, c, WithMinHold(least))
			ends := r.ends("k")
			time.Sleep(time.Second)
			m := c.NewMutex("k", ttl, WithToken(first.Token()), WithMinHold(least))
			if extend {
				require.NoError(t, m.Extend(t.Context()))
				require.GreaterOrEqual(t, r.ends("k"), ends, "the first holder's time is not cut short")
				ends = r.ends("k")
				time.Sleep(time.Second)
			}
			require.NoError(t, m.Unlock(t.Context()))
			time.Sleep(2 * time.Millisecond)
			require.Equal(t, 3, r.keys())
			require.InDelta(t, ends, r.ends("k"), float64(5*time.Millisecond))
		})
	}
}

// Waiters of the same client are not notified of a release that frees nothing.
func TestWaitersOutlastTheLeastHold(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		began := r.now()
		m := taken(t, c, WithMinHold(least))
		got := make(chan error, 1)
		go func() { got <- c.NewMutex("k", ttl).Lock(t.Context()) }()
		time.Sleep(time.Second)
		before := c.Stats().more.WokenLocal
		require.NoError(t, m.Unlock(t.Context()))
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, before, c.Stats().more.WokenLocal)
		require.NoError(t, <-got)
		require.GreaterOrEqual(t, r.now(), began+least)
		require.Less(t, r.now(), began+least+leastDrift+2*pollMax+pollMin)
	})
}

// A release that frees nothing wakes none of the processes that wait in the queue. The first looks, and
// waits on; the others ask nothing. When the time has passed they have the lock in their order.
func TestAQueueOutlastsTheLeastHold(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		began := r.now()
		p := newProcesses(t, r, taken(t, c, WithMinHold(least)))
		for i := range 3 {
			p.join()
			p.wait(i, t.Context())
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second + 10*time.Millisecond) // no entry is due
		before := p.rounds[2].ordered()
		require.NoError(t, p.holder.Unlock(t.Context()))
		time.Sleep(100 * time.Millisecond)
		require.Empty(t, p.took())
		require.Equal(t, before, p.rounds[2].ordered())
		require.Len(t, p.entries("k"), 3, "all wait in the queue still")
		time.Sleep(began + least + leastDrift + time.Second - r.now())
		require.Equal(t, all(3), p.took())
		p.mu.Lock()
		require.GreaterOrEqual(t, p.had[0], began+least)
		require.Less(t, p.had[0], began+least+leastDrift+2*pollMin)
		p.mu.Unlock()
		p.nothingIsLeft()
	})
}

func TestWhatMinHoldDoesNotGoTogetherWith(t *testing.T) {
	simulated(t, 3, Config{RestartGuard: time.Minute}, func(t *testing.T, c *Client, r *fakeRounds) {
		for says, opts := range map[string][]Option{
			"WithMinHold and WithShared": {WithMinHold(least), WithShared()},
			"WithShared do not go":       {WithMinHold(least), WithShared(), WithFence()},
			"not above zero":             {WithMinHold(0)},
			"hundred years":              {WithMinHold(1<<63 - 1)},
			"RestartGuard":               {WithMinHold(time.Minute)},
		} {
			err := c.Do(t.Context(), "k", ttl, nil, opts...)
			require.ErrorContains(t, err, says)
		}
		require.NoError(t, taken(t, c, WithMinHold(59*time.Second)).Unlock(t.Context()))
	})
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMinHold(59*time.Second))
		require.Equal(t, 59*time.Second+592*time.Millisecond, c.guard.LongestTTL(), "a master that restarts must not vote before")
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// Once in the period, whether those who come wait or not. Each is compared with the beginning of the
// round that took the lock before it, from which the period counts, or with a moment before that.
func TestOnceInThePeriod(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	const period, brief = 400 * time.Millisecond, 200 * time.Millisecond
	type run struct{ taken, began time.Time }
	for name, once := range map[string]func(c *Client, key string, work func(taken time.Time)) error{
		"who does not wait": func(c *Client, key string, work func(taken time.Time)) error {
			called := time.Now()
			return c.Do(t.Context(), key, brief, func(context.Context) error { work(called); return nil }, WithWait(0), WithMinHold(period))
		},
		"who waits": func(c *Client, key string, work func(taken time.Time)) error {
			m := c.NewMutex(key, brief, WithMinHold(period))
			if err := m.Lock(t.Context()); err != nil {
				return err
			}
			work(Until(m).Add(m.spec().Term.Drift - brief))
			return m.Unlock(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var runs []run
			var wg sync.WaitGroup
			done := func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(runs) >= 4
			}
			for range 3 {
				c := opened(t, masters.Addrs(), nil)
				wg.Go(func() {
					for !done() && t.Context().Err() == nil {
						err := once(c, name, func(taken time.Time) {
							mu.Lock()
							defer mu.Unlock()
							runs = append(runs, run{taken, time.Now()})
						})
						// On a busy machine it may be over before it is released.
						if err != nil && !errors.Is(err, ErrHeld) && !errors.Is(err, ErrExpired) && !errors.Is(err, ErrNotHeld) && !errors.Is(err, ErrLost) {
							t.Error(err)
						}
						time.Sleep(time.Millisecond) // before the next try
					}
				})
			}
			wg.Wait()
			for i := range runs[1:] {
				require.GreaterOrEqual(t, runs[i+1].began.Sub(runs[i].taken), period)
			}
		})
	}
}

// With permits, so many begin in a period.
func TestSoManyInThePeriod(t *testing.T) {
	_, c := started(t, 3)
	var ran atomic.Int32
	once := func() error {
		return c.Do(t.Context(), "k", time.Second, func(context.Context) error { ran.Add(1); return nil },
			WithWait(0), WithPermits(3), WithMinHold(time.Minute))
	}
	for range 3 {
		require.NoError(t, once())
	}
	require.ErrorIs(t, once(), ErrHeld)
	require.EqualValues(t, 3, ran.Load())
}

// A linger against what it is to do, on each kind of lock.
func TestLingerLeavesWhatIsOurs(t *testing.T) {
	masters, c := started(t, 1)
	for name, lock := range map[string]struct {
		opts []Option
		keys []string
	}{
		"plain":             {nil, []string{"a"}},
		"fenced":            {[]Option{WithFence()}, []string{"a"}},
		"several":           {[]Option{WithKeys("b")}, []string{"a", "b"}},
		"several, fenced":   {[]Option{WithKeys("b"), WithFence()}, []string{"a", "b"}},
		"permits":           {[]Option{WithPermits(1)}, []string{"{a}:permit:1/1"}},
		"on a short leash":  {nil, []string{"a"}},
		"somebody persists": {nil, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			Says(t, masters, 0, "FLUSHALL")
			m := c.NewMutex("a", time.Second, append(lock.opts, WithMinHold(time.Minute))...)
			left := func(key string) int64 {
				return Says(t, masters, 0, "PTTL", key).(int64)
			}
			require.NoError(t, m.TryLock(t.Context()))
			token := m.Token()
			for _, key := range lock.keys {
				require.InDelta(t, 60_602, left(key), 2000)
			}
			switch name {
			case "on a short leash":
				Says(t, masters, 0, "PEXPIRE", "a", "30000")
			case "somebody persists":
				Says(t, masters, 0, "PERSIST", "a")
			}
			require.NoError(t, m.Unlock(t.Context()))
			for _, key := range lock.keys {
				most := int64(60_602)
				if name == "on a short leash" {
					most = 30_000
				}
				require.InDelta(t, most, left(key), 2000)
				require.LessOrEqual(t, left(key), most)
			}
			// A shorter rest cuts it, and no rest deletes it.
			short := c.NewMutex("a", time.Second, append(lock.opts, WithMinHold(time.Second), WithToken(token))...)
			require.NoError(t, short.Unlock(t.Context()))
			for _, key := range lock.keys {
				require.Positive(t, left(key))
				require.LessOrEqual(t, left(key), int64(1012))
			}
			last := lock.keys[len(lock.keys)-1]
			Says(t, masters, 0, "SET", last, "another's")
			stranger := c.NewMutex("a", time.Second, append(lock.opts, WithMinHold(time.Minute), WithToken(token))...)
			require.ErrorIs(t, stranger.Unlock(t.Context()), ErrNotHeld)
			require.EqualValues(t, -1, left(last), "another's key is left alone")
			Says(t, masters, 0, "DEL", last)
			Says(t, masters, 0, "RPUSH", last, "no string")
			stranger = c.NewMutex("a", time.Second, append(lock.opts, WithMinHold(time.Minute), WithToken(token))...)
			require.ErrorIs(t, stranger.Unlock(t.Context()), ErrNotHeld)
			require.EqualValues(t, -1, left(last))
		})
	}
}

// Who looks at a lock that lingers is told that nobody works under it. While the work may go on, nothing says so.
func TestLockThatLingersSaysSo(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 1)
	for name, lock := range map[string]struct {
		opts []Option
		asks []Option
	}{
		"plain":   {},
		"fenced":  {opts: []Option{WithFence()}},
		"several": {opts: []Option{WithKeys("b")}},
		"permits": {[]Option{WithPermits(1)}, []Option{WithPermits(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			Says(t, masters, 0, "FLUSHALL")
			holder := func() Said {
				all, err := OnEach(c, t.Context(), "a", lock.asks...)
				require.NoError(t, err)
				return all[0]
			}
			m := c.NewMutex("a", time.Second, append(lock.opts, WithMinHold(time.Minute), WithOwner("reports@web-3"))...)
			require.NoError(t, m.TryLock(t.Context()))
			token := m.Token()
			require.False(t, holder().Left())
			c.held.Lose(&m.hold, []byte(token), asHeld(unasked(opRenew, "a", ErrExpired, "")))
			require.False(t, holder().Left(), "the work goes on")
			require.Error(t, m.Unlock(t.Context()))
			h := holder()
			require.True(t, h.Left())
			require.Equal(t, "reports@web-3", h.Owner())
			require.Greater(t, h.TTL, 30*time.Second)
			c.round.SendRelease(m.spec(), []byte(token), time.Minute)
			require.True(t, holder().Left(), "that came late")
			c.round.SendRelease(m.spec(), []byte(token), 0)
			require.True(t, holder().Left(), "it is the token's no more")
			waiter := c.NewMutex("a", time.Second, lock.opts...)
			require.Contains(t, waiter.findHolder(t.Context()).String(), "left there by reports@web-3")
			require.ErrorIs(t, c.NewMutex("a", time.Second, append(lock.opts, WithToken(h.Token.Reveal()))...).Unlock(t.Context()), nil, "redlock release takes it away")
		})
	}
}

// What a linger, a release and an extend make of each value that a key can have, and of how long the key has to live.
func TestEachValueOfALingeringKey(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	run := func(t *testing.T, args ...string) any { return Says(t, masters, 0, args...) }
	const (
		token, rest = "abc", int64(30_000)
		dead        = kind.RevokedPrefix + token + "\nwhy"
		gone        = int64(-2)
		forever     = int64(-1)
	)
	const (
		theirs  = iota // it is left as it is
		ours           // it is shortened, or deleted
		revoked        // likewise, and the reply is the tombstone
	)
	values := map[string]int{
		token:                                    ours,
		kind.LeftMark + token:                    ours, // by a linger
		dead:                                     revoked,
		"another":                                theirs,
		token + "d":                              theirs,
		kind.LeftMark + token + "d":              theirs,
		kind.LeftMark + dead:                     theirs,
		kind.RevokedPrefix + token:               theirs,
		kind.RevokedPrefix + token + "d\nwhy":    theirs,
		kind.RevokedPrefix + "x" + token + "\n":  theirs,
		kind.Tombstone(kind.LeftMark+token, "y"): theirs,
		"":                                       theirs, // there is none
	}
	set := func(t *testing.T, key, value string, left int64) {
		run(t, "DEL", key)
		switch {
		case value == "":
		case left == forever:
			run(t, "SET", key, value)
		default:
			run(t, "SET", key, value, "PX", fmt.Sprint(left))
		}
	}
	get := func(t *testing.T, key string) string {
		s, _ := run(t, "GET", key).(string)
		return s
	}
	// lives requires that the key lives for so long.
	lives := func(t *testing.T, key string, want int64) {
		t.Helper()
		left := run(t, "PTTL", key).(int64)
		if want < 0 {
			require.Equal(t, want, left)
			return
		}
		require.Positive(t, left)
		require.LessOrEqual(t, left, want)
		require.Greater(t, left, want-20_000)
	}
	lingers := map[string]func(over string) any{}
	for name, k := range map[string]kind.Lingering{"plain": kind.Plain{}, "several": kind.NewSeveral([]string{"k", "l"})} {
		lingers[name] = func(over string) any {
			r := &kind.Request{}
			k.Linger(r, kind.Grant{Key: "k", Token: []byte(token), TTL: 30_000_000_000, Over: over == "1"})
			return run(t, words(r.Fallback)...)
		}
	}
	for value, whose := range values {
		for _, left := range []int64{forever, 10_000 + 15_000, 600_000} {
			for _, over := range []string{"0", "1"} {
				after, life := value, left
				if whose != theirs && (left == forever || left > rest) {
					life = rest
				}
				if value == "" {
					life = gone
				}
				if value == token && over == "1" {
					after = kind.LeftMark + token
				}
				t.Run(fmt.Sprintf("%q, left %d, over %s", value, left, over), func(t *testing.T) {
					set(t, "k", value, left)
					for range 2 { // it can come again
						reply := lingers["plain"](over)
						switch whose {
						case theirs:
							require.EqualValues(t, 0, reply)
						case ours:
							require.EqualValues(t, 1, reply)
						case revoked:
							require.Equal(t, dead, reply)
						}
						require.Equal(t, after, get(t, "k"))
						lives(t, "k", life)
					}
					for other, its := range values { // ... of another key of the same lock
						set(t, "k", value, left)
						set(t, "l", other, 600_000)
						for range 2 {
							reply := lingers["several"](over)
							switch {
							case whose == revoked || its == revoked:
								require.Equal(t, dead, reply, other)
							case whose == ours && its == ours:
								require.EqualValues(t, 1, reply, other)
							default:
								require.EqualValues(t, 0, reply, other)
							}
							require.Equal(t, after, get(t, "k"))
							lives(t, "k", life)
							switch {
							case other == token && over == "1":
								require.Equal(t, kind.LeftMark+token, get(t, "l"))
							default:
								require.Equal(t, other, get(t, "l"))
							}
							if its != theirs {
								lives(t, "l", rest)
							} else if other != "" {
								lives(t, "l", 600_000)
							}
						}
					}
					set(t, "k", value, left) // from here on as no linger
					for _, ends := range []string{"extend", "release"} {
						r := &kind.Request{}
						g := kind.Grant{Key: "k", Token: []byte(token), TTL: 5_000_000_000}
						if ends == "extend" {
							kind.Plain{}.Extend(r, g)
						} else {
							kind.Plain{}.Release(r, g)
						}
						reply := run(t, words(r.Fallback)...)
						switch {
						case value == token:
							require.EqualValues(t, 1, reply)
						case whose == revoked:
							require.Equal(t, dead, reply)
						case ends == "extend" && value == "":
							require.EqualValues(t, kind.Gone, reply)
						case ends == "extend":
							require.EqualValues(t, 0, reply)
						default:
							require.EqualValues(t, -1, reply)
						}
						switch {
						case ends == "release" && (value == token || whose == revoked):
							require.Empty(t, get(t, "k"))
						case value == token: // extended
							lives(t, "k", 5_000)
						case value != "":
							require.Equal(t, value, get(t, "k"), "only its own token, or its tombstone")
							lives(t, "k", left)
						}
					}
				})
			}
		}
	}
}
