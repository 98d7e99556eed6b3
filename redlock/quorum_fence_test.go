package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestFenceFromTheContext(t *testing.T) {
	_, c := started(t, 3)
	require.Zero(t, FenceFrom(t.Context()))
	require.NoError(t, c.Do(t.Context(), "a", 10*time.Second, func(outer context.Context) error {
		a := FenceFrom(outer)
		require.NotZero(t, a)
		type some struct{}
		derived, cancel := context.WithCancel(context.WithValue(outer, some{}, 1))
		defer cancel()
		require.Equal(t, a, FenceFrom(derived))
		return errors.Join(
			c.Do(outer, "b", 10*time.Second, func(inner context.Context) error {
				require.NotZero(t, FenceFrom(inner))
				require.NotEqual(t, a, FenceFrom(inner))
				return nil
			}, WithFence()),
			c.Do(outer, "c", 10*time.Second, func(inner context.Context) error {
				require.Zero(t, FenceFrom(inner), "the outer lock's number says nothing of this one")
				return nil
			}))
	}, WithFence()))
	m := c.NewMutex("a", 10*time.Second, WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	require.Equal(t, m.Fence(), FenceFrom(held))
	stop()
	require.Equal(t, m.Fence(), FenceFrom(held), "it can still be used to be refused")
	require.NoError(t, m.Unlock(t.Context()))
	require.NotZero(t, FenceFrom(held))
}

// disagree sets the masters' counters so far apart that no two agree on the next number.
func disagree(t *testing.T, masters *redlocktest.Masters, key string) {
	ahead := time.Now().Add(time.Hour).UnixMicro()
	for i := range masters.Addrs() {
		Says(t, masters, i, "SET", "{"+key+"}:fence", fmt.Sprint(ahead+int64(1000*i)))
	}
}

// remember counts the masters whose counter is at least the fence.
func remember(t *testing.T, masters *redlocktest.Masters, key string, fence uint64) (n int) {
	for i := range masters.Addrs() {
		s, _ := Says(t, masters, i, "GET", "{"+key+"}:fence").(string)
		if f, _ := strconv.ParseUint(s, 10, 64); f >= fence {
			n++
		}
	}
	return n
}

func TestCountersThatDifferTakeASecondRound(t *testing.T) {
	masters, c := started(t, 5)
	disagree(t, masters, "k")
	m := c.NewMutex("k", 10*time.Second, WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	first := m.Fence()
	require.EqualValues(t, 1, c.Stats().FenceRaised)
	require.GreaterOrEqual(t, remember(t, masters, "k", first), 3)
	require.NoError(t, m.Unlock(t.Context()))

	// From now on the hint is above all of them, also that of another attempt's.
	require.NoError(t, m.TryLock(t.Context()))
	require.Greater(t, m.Fence(), first)
	require.LessOrEqual(t, c.Stats().FenceRaised, uint64(2))
	require.NoError(t, m.Unlock(t.Context()))
}

func TestAFenceThatAQuorumDoesNotRememberIsNotGiven(t *testing.T) {
	raises := func(args []string) bool { return args[1] == kind.RaiseScript.Hash }
	for name, c := range map[string]struct {
		does func(m *fakeMaster)
		want error
	}{
		"it is not answered":      {func(m *fakeMaster) { m.vanish = raises }, ErrNoQuorum},
		"it is answered too late": {func(m *fakeMaster) { m.delay = 45 * time.Millisecond }, ErrExpired},
		"the keys are gone by then": {func(m *fakeMaster) {
			m.vanish = func(args []string) bool {
				if raises(args) {
					delete(m.keys, "k")
				}
				return false
			}
		}, ErrHeld},
	} {
		simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
			r.set(func(m *fakeMaster) { m.counters["k"] = time.Now().Add(time.Hour).UnixMicro() }, 0)
			r.set(func(m *fakeMaster) { m.delay = time.Millisecond }, 1)
			r.set(func(m *fakeMaster) { m.delay = time.Hour }, 2)
			r.set(c.does, 0, 1)
			m := Within(client.NewMutex("k", 80*time.Millisecond, WithFence()), time.Second)
			require.ErrorIs(t, m.TryLock(t.Context()), c.want, name)
			require.Zero(t, m.Fence(), name)
			require.EqualValues(t, 1, client.Stats().FenceRaised, name)
			r.set(func(m *fakeMaster) { m.vanish = nil }, 0, 1)
			r.gone(t, 50*time.Millisecond, name)
		})
	}
}

// What is left of the validity counts from the beginning of the first round.
func TestASecondRoundTakesOfTheValidity(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(func(m *fakeMaster) { m.delay = 10 * time.Millisecond }, all(3)...)
		for i := range 3 {
			r.set(func(m *fakeMaster) { m.counters["k"] = time.Now().Add(time.Hour).UnixMicro() + int64(i) }, i)
		}
		m := Within(c.NewMutex("k", time.Second, WithFence()), time.Second)
		begun := c.now()
		require.NoError(t, m.TryLock(t.Context()))
		require.Equal(t, 20*time.Millisecond, c.now()-begun)
		require.Equal(t, begun+time.Second-12*time.Millisecond, m.validUntil())
	})
}

func TestRepairsCarryTheFence(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	repair := map[string]func(m *Mutex){
		"Extend":    func(m *Mutex) { require.NoError(t, m.Extend(t.Context())) },
		"a recheck": func(m *Mutex) { c.held.Recheck(&m.hold) },
		"a renewal": func(m *Mutex) {
			_, stop := m.KeepAlive(t.Context())
			defer stop()
			require.Eventually(t, func() bool { return remember(t, masters, m.Key(), m.Fence()) == 3 }, hanging, 5*time.Millisecond)
		},
	}
	for what, does := range repair {
		m := c.NewMutex(what, 3*time.Second, WithFence())
		require.NoError(t, m.TryLock(t.Context()))
		require.Eventually(t, func() bool { return remember(t, masters, what, m.Fence()) == 3 }, hanging, 5*time.Millisecond)
		Confirmed(t, m)
		Says(t, masters, 1, "DEL", what, "{"+what+"}:fence")
		Says(t, masters, 2, "DEL", "{"+what+"}:fence")
		does(m)
		require.Positive(t, m.Remaining(), what)
		require.Eventually(t, func() bool { return remember(t, masters, what, m.Fence()) == 3 }, hanging, 5*time.Millisecond, what)
		require.NoError(t, m.Unlock(t.Context()), what)
	}
}

func TestALockThatIsHandedOverKeepsItsFence(t *testing.T) {
	masters, c := started(t, 3)
	other := opened(t, masters.Addrs(), nil)
	for name, counters := range map[string]struct {
		forgotten int
		check     func(t *testing.T, was, is uint64)
	}{
		"all remember": {0, func(t *testing.T, was, is uint64) { require.Equal(t, was, is) }},
		"one forgets":  {1, func(t *testing.T, was, is uint64) { require.Equal(t, was, is) }},
		"none remembers": {3, func(t *testing.T, was, is uint64) {
			require.Greater(t, is, was)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.NewMutex(name, 10*time.Second, WithFence())
			require.NoError(t, m.TryLock(t.Context()))
			require.Eventually(t, func() bool { return remember(t, masters, name, m.Fence()) == 3 }, hanging, 5*time.Millisecond)
			for i := range counters.forgotten {
				Says(t, masters, i, "DEL", "{"+name+"}:fence")
			}
			n := other.NewMutex(name, 10*time.Second, WithFence(), WithToken(m.Token()))
			require.Zero(t, n.Fence(), "nothing is known yet")
			require.NoError(t, n.Extend(t.Context()))
			counters.check(t, m.Fence(), n.Fence())
			require.GreaterOrEqual(t, remember(t, masters, name, n.Fence()), 2)
			held, stop := n.KeepAlive(t.Context())
			require.Equal(t, n.Fence(), FenceFrom(held))
			stop()
			was := n.Fence()
			require.NoError(t, n.Extend(t.Context()))
			require.Equal(t, was, n.Fence(), "once it is known it stays")
			require.NoError(t, n.Unlock(t.Context()))
		})
	}
}

// The second round of a lock that was handed over is a part of its first Extend.
func TestAHandedOverLockWhoseFenceIsRaised(t *testing.T) {
	const far = 10 * time.Millisecond
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithFence())
		time.Sleep(time.Millisecond) // until the straggler has it, too
		for i := range 3 {
			r.set(func(m *fakeMaster) { m.counters["k"] += 1 + int64(i); m.delay = far }, i)
		}
		h := Within(c.NewMutex("k", time.Second, WithFence(), WithToken(m.Token())), 5*far)
		raises := func(args []string) bool { return args[1] == kind.RaiseScript.Hash }
		r.set(func(m *fakeMaster) { m.vanish = raises }, all(3)...)
		require.ErrorIs(t, h.Extend(t.Context()), ErrNoQuorum)
		ctx, cancel := context.WithTimeout(t.Context(), 3*far)
		defer cancel()
		err := h.Extend(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ErrNoQuorum, "the masters had time left")
		require.Zero(t, h.Fence(), "it is not known yet")
		require.Zero(t, h.Remaining())

		r.set(func(m *fakeMaster) { m.vanish = nil }, all(3)...)
		begun := c.now()
		require.NoError(t, h.Extend(t.Context()))
		require.Equal(t, 2*far, c.now()-begun)
		require.Equal(t, begun+h.spec().Term.TTL-h.spec().Term.Drift, h.validUntil(), "it counts from the first round")
		require.Greater(t, h.Fence(), m.Fence())
		require.Zero(t, Suspects(h), "all had it in the first round, whoever decides the second")
	})
}

// The first Extend that is done says what the fence is. Another that was under way has asked other
// masters, and may have found a greater number.
func TestAFenceThatIsKnownStays(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithFence())
		time.Sleep(time.Millisecond) // until the straggler has it, too
		h := c.NewMutex("k", ttl, WithFence(), WithToken(m.Token()))
		r.set(func(m *fakeMaster) { m.counters["k"]++ }, 2)
		done := make(chan error, 2)
		extend := func() { done <- h.Extend(t.Context()) }
		r.set(func(m *fakeMaster) { m.delay = 2 * time.Millisecond }, 0, 1, 2)
		go extend()
		time.Sleep(time.Millisecond)
		r.set(func(m *fakeMaster) { m.delay = 60 * time.Millisecond }, 0)
		go extend()
		require.NoError(t, <-done)
		fence := h.Fence()
		require.Equal(t, m.Fence()+1, fence)
		held, stop := h.KeepAlive(t.Context())
		defer stop()
		r.set(func(m *fakeMaster) { m.counters["k"]++ }, 2)
		require.NoError(t, <-done)
		require.Equal(t, fence, h.Fence())
		require.Equal(t, fence, FenceFrom(held))
	})
}

// The fence remains when the lock is over, so that what is written under it can be refused. It goes with Unlock.
func TestAFenceOutlivesItsLock(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *fakeRounds, m *Mutex){
		"expired": func(t *testing.T, r *fakeRounds, m *Mutex) { time.Sleep(2 * ttl) },
		"lost": func(t *testing.T, r *fakeRounds, m *Mutex) {
			r.set(flush, 0, 1, 2)
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c, WithFence())
				fence := m.Fence()
				require.NotZero(t, fence)
				time.Sleep(10 * time.Millisecond) // until the straggler has it, too
				end(t, r, m)
				require.Zero(t, m.Remaining())
				require.Equal(t, fence, m.Fence())
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
				require.Zero(t, m.Fence())
			})
		})
	}
}

// A counter is remembered for Config.FenceMemory from the end of the last lock on, whoever has
// extended that.
func TestACounterOutlivesItsLock(t *testing.T) {
	const memory, longer = time.Hour, 24 * time.Hour // the lock's TTL is longer than the memory
	masters := redlocktest.Start(t, 1)
	c := openedWith(t, Config{Masters: masters.Addrs(), FenceMemory: memory})
	outlives := func(ttl time.Duration, why string) {
		left := Says(t, masters, 0, "PTTL", "{k}:fence")
		require.Greater(t, left, ttl.Milliseconds(), why)
		require.LessOrEqual(t, left, (ttl + memory).Milliseconds(), why)
	}
	m := c.NewMutex("k", longer, WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	outlives(longer, "taken")
	Says(t, masters, 0, "PEXPIRE", "{k}:fence", "60000")
	require.NoError(t, m.Extend(t.Context()))
	outlives(longer, "extended")
	Says(t, masters, 0, "DEL", "{k}:fence")
	require.NoError(t, m.Extend(t.Context()))
	outlives(longer, "given again")
	n := c.NewMutex("k", 2*longer, WithFence(), WithToken(m.Token()))
	require.NoError(t, n.Extend(t.Context()))
	outlives(2*longer, "handed over")
	require.Equal(t, m.Fence(), n.Fence())
	n = c.NewMutex("k", 3*longer, WithFence(), WithToken(m.Token()))
	Says(t, masters, 0, "DEL", "{k}:fence")
	require.NoError(t, n.Extend(t.Context()))
	outlives(3*longer, "raised")
}

func TestACounterThatIsNoNumber(t *testing.T) {
	masters, c := started(t, 3)
	for _, junk := range [][]string{{"SET", "", "junk"}, {"SET", "", "-1"}, {"SET", "", "nan"}, {"SET", "", "9007199254740991"}, {"SADD", "", "member"}} {
		key := fmt.Sprint(junk)
		spoil := func(i int) {
			args := slices.Clone(junk)
			args[1] = "{" + key + "}:fence"
			Says(t, masters, i, "DEL", args[1])
			Says(t, masters, i, args...)
		}
		m := c.NewMutex(key, 10*time.Second, WithFence())
		spoil(0)
		require.NoError(t, m.TryLock(t.Context()), "a minority is no matter")
		spoil(1)
		spoil(2)
		if junk[0] == "SET" {
			Says(t, masters, 2, "DEL", key)
			require.NoError(t, m.Extend(t.Context()), "the key is there, whatever the counter is")
		} else {
			require.ErrorIs(t, m.Extend(t.Context()), ErrNoQuorum)
			require.Positive(t, m.Remaining())
		}
		require.NoError(t, m.Unlock(t.Context()))
		spoil(1)
		Says(t, masters, 2, "SET", "{"+key+"}:fence", "7")
		require.Eventually(t, func() bool {
			spoil(0) // it was mended
			spoil(1) // a late command may have set it once more
			err := m.TryLock(t.Context())
			return errors.Is(err, ErrNoQuorum) && strings.Contains(err.Error(), "NOFENCE")
		}, hanging, 5*time.Millisecond, key)
		err := m.Lock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum, "it does not wait for what will not pass")
		require.ErrorContains(t, err, "counters are no numbers that can be a fence", "which it says first")
		Says(t, masters, 0, "DEL", "{"+key+"}:fence")
		Says(t, masters, 1, "DEL", "{"+key+"}:fence")
		require.NoError(t, m.TryLock(t.Context()))
		require.Less(t, m.Fence(), uint64(quorum.MaxFence))
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, c.NewMutex(key, 10*time.Second).TryLock(t.Context()), "nothing of it is left, and a plain lock needs no number")
	}
}

// An acquire that a master does not understand is sent by text only while the attempt, or its
// lock, is not over.
func TestAnAcquireIsNotRepeatedAfterItsRelease(t *testing.T) {
	const far = 20 * time.Millisecond
	slow := func(m *fakeMaster) { m.scripts, m.delay = false, far }
	sets := func(r *fakeRounds, i int) (n int) {
		for _, line := range r.logs(i) {
			if strings.HasPrefix(line, "set ") {
				n++
			}
		}
		return n
	}
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(slow, all(3)...)
		m := c.NewMutex("k", time.Second, WithFence())
		require.NoError(t, m.TryLock(t.Context()), "it is repeated")
		require.NoError(t, m.Unlock(t.Context()))

		ctx, cancel := context.WithTimeout(t.Context(), far/2)
		defer cancel()
		before := sets(r, 0)
		require.ErrorIs(t, m.TryLock(ctx), context.DeadlineExceeded)
		time.Sleep(10 * far)
		require.Equal(t, before, sets(r, 0), "it has been abandoned")
		require.Zero(t, r.keys())
	})
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(slow, 2)
		m := c.NewMutex("k", time.Second, WithFence())
		require.NoError(t, m.TryLock(t.Context()))
		time.Sleep(2 * far)
		require.Equal(t, 1, sets(r, 2), "a master that was not waited for has the key, too")
		require.NoError(t, m.Unlock(t.Context()))
		r.gone(t, 10*far)

		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		time.Sleep(10 * far)
		require.Equal(t, 1, sets(r, 2), "the lock was released before the master had refused it")
		require.Zero(t, r.keys())
	})
}
