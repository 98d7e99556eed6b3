package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/stretchr/testify/require"
)

const why = "deploy of version 2"

// requireRevoked requires that an error says that the lock was revoked, and why.
func requireRevoked(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, ErrRevoked)
	require.ErrorIs(t, err, ErrLost, "whoever asks for that only is told, too")
	e, ok := errors.AsType[*RoundError](err)
	require.True(t, ok)
	require.Equal(t, why, e.WhyRevoked)
	require.Equal(t, "revoked", Outcome(err))
	require.Contains(t, err.Error(), `revoked: "`+why+`"`)
}

// tombstones counts the masters that have the tombstone of a token at "k".
func (r *fakeRounds) tombstones(token string) int { return r.holders("k", kind.Tombstone(token, why)) }

// speaks has the masters know the native commands, or not.
func speaks(r *fakeRounds, native bool) {
	if native {
		r.set(func(m *fakeMaster) { m.commands = conn.DelEx | conn.SetIfEq }, all(len(r.masters))...)
	}
}

// A holder is told at its next renewal. Until it has unlocked, the tombstones keep everybody out, for as long as its
// keys would have lived and no longer. Then they are gone at once.
func TestRevoke(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFence()}, "several": {WithKeys("l")}} {
		for _, native := range []bool{false, true} {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				speaks(r, native)
				m := taken(t, c, opts...)
				held, stop := m.KeepAlive(t.Context())
				defer stop()
				time.Sleep(500 * time.Millisecond)
				_, before := r.keyOf(0)
				require.NoError(t, c.Revoke(t.Context(), "k", why), name)
				time.Sleep(2 * time.Millisecond)
				require.Equal(t, 3, r.tombstones(m.secretly()))
				_, left := r.keyOf(0)
				require.InDelta(t, before, left, float64(10*time.Millisecond), "it ends when the key would have ended")
				require.NoError(t, held.Err(), "it is told by its next renewal")

				after, _ := lostBy(t, r, held)
				require.Less(t, after, ttl/quorum.RenewAfter)
				requireRevoked(t, context.Cause(held))
				require.NotErrorIs(t, context.Cause(held), ErrNotHeld)
				require.EqualValues(t, 1, c.Stats().Revoked)
				require.Zero(t, c.Stats().RenewalsFailed, "nothing has failed")
				require.Zero(t, c.Stats().ReleaseFailed)
				require.Zero(t, c.Stats().Lost, "an alert is of what nobody meant")
				time.Sleep(10 * time.Millisecond)
				require.Equal(t, 3, r.tombstones(m.secretly()), "it has not let go yet")
				other := c.NewMutex("k", ttl, opts...)
				require.ErrorIs(t, other.TryLock(t.Context()), ErrHeld)
				require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)

				err := m.Unlock(t.Context())
				requireRevoked(t, err)
				require.ErrorIs(t, err, ErrNotHeld)
				r.gone(t, 10*time.Millisecond, name)
				require.NoError(t, other.TryLock(t.Context()))
				require.NoError(t, other.Unlock(t.Context()))
			})
		}
	}
}

// An Unlock that is the first to find out that its lock was revoked has not failed: an operator meant it.
func TestARevocationThatUnlockFindsIsNoFailure(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		require.NoError(t, c.Revoke(t.Context(), "k", why))
		time.Sleep(10 * time.Millisecond)
		requireRevoked(t, m.Unlock(t.Context()))
		require.Zero(t, c.Stats().ReleaseFailed)
		require.Zero(t, c.Stats().Released)
	})
}

// A holder that never comes back keeps others out until its keys would have ended, and no longer.
func TestARevokedHolderThatIsGone(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(time.Second)
		until := m.validUntil()
		require.NoError(t, c.Revoke(t.Context(), "k", why))
		next, _ := another(t, r, Config{})
		other := next.NewMutex("k", ttl)
		require.NoError(t, other.Lock(t.Context()))
		require.Greater(t, r.now(), until)
		require.Less(t, r.now(), until+100*time.Millisecond)
	})
}

// Extend, Unlock, Release and Do say that the lock was revoked.
func TestWhoIsToldOfARevocation(t *testing.T) {
	revoked := func(t *testing.T, c *Client, m *Mutex) {
		require.NoError(t, c.Revoke(t.Context(), "k", why))
		time.Sleep(2 * time.Millisecond)
	}
	for _, native := range []bool{false, true} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			speaks(r, native)
			m := taken(t, c)
			revoked(t, c, m)
			err := m.Extend(t.Context())
			requireRevoked(t, err)
			require.ErrorIs(t, err, ErrNotHeld)
			require.Zero(t, m.Remaining())
			require.Equal(t, 3, r.tombstones(m.secretly()))
			requireRevoked(t, m.Unlock(t.Context()))

			m = taken(t, c)
			revoked(t, c, m)
			requireRevoked(t, m.Unlock(t.Context())) // only the release finds it
			r.gone(t, 5*time.Millisecond)

			m = taken(t, c)
			revoked(t, c, m)
			require.NoError(t, m.Release(), "nobody knows yet")
			r.gone(t, 50*time.Millisecond)

			m = taken(t, c) // the next attempt of the same Mutex lets go of it
			revoked(t, c, m)
			require.Error(t, m.Extend(t.Context()))
			require.NoError(t, m.TryLock(t.Context()))
			require.NoError(t, m.Unlock(t.Context()))

			m = taken(t, c) // handed over
			heir := c.NewMutex("k", ttl, WithToken(m.Token()))
			revoked(t, c, m)
			requireRevoked(t, heir.Extend(t.Context()))
			requireRevoked(t, heir.Unlock(t.Context()))
			r.gone(t, 5*time.Millisecond)
			require.Error(t, m.Unlock(t.Context()))

			var told error
			c.events.hook(EventLost, func(e *Event) { told = e.Err })
			err = c.Do(t.Context(), "k", ttl, func(ctx context.Context) error {
				require.NoError(t, c.Revoke(t.Context(), "k", why))
				<-ctx.Done()
				requireRevoked(t, context.Cause(ctx))
				time.Sleep(5 * time.Second) // it works on for a while, but no longer than its keys live
				return nil
			})
			requireRevoked(t, err)
			synctest.Wait()
			requireRevoked(t, told)
			require.Equal(t, 1, strings.Count(err.Error(), why))

			err = c.Do(t.Context(), "k", ttl, func(context.Context) error { return c.Revoke(t.Context(), "k", why) })
			requireRevoked(t, err) // only the release finds it
			require.NotErrorIs(t, err, ErrNotHeld)
			require.Zero(t, r.keys())
		})
	}
}

// Watch and Holders name the holder until it has let go.
func TestARevokedLockHasItsHolder(t *testing.T) {
	simulated(t, 3, Config{Owner: "me"}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		require.NoError(t, c.Revoke(t.Context(), "k", why))
		time.Sleep(2 * time.Millisecond)
		all, err := OnEach(c, t.Context(), "k")
		require.NoError(t, err)
		for _, h := range all {
			require.True(t, h.Revoked)
			require.Equal(t, why, h.Reason)
			require.Equal(t, "me", h.Owner())
			require.Equal(t, m.secretly(), h.Token.Reveal())
		}
		other := c.NewMutex("k", ttl)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		e, ok := errors.AsType[*RoundError](other.Lock(ctx))
		require.True(t, ok)
		require.Equal(t, "me", e.HeldBy)
		for leader, err := range c.Watch(t.Context(), "k") {
			require.NoError(t, err)
			require.Equal(t, Leader{Held: true, Owner: "me"}, LeaderOf(leader))
			break
		}
	})
}

// A revocation of nobody, of somebody who has let go, and of what cannot be revoked.
func TestRevokeOfNobody(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		require.ErrorIs(t, c.Revoke(t.Context(), "k", why), ErrNotHeld)
		m := taken(t, c)
		token := m.Token()
		require.ErrorIs(t, c.Revoke(t.Context(), "k", why, WithToken("another")), ErrNotHeld)
		require.Equal(t, 3, r.holders("k", token))
		require.NoError(t, m.Unlock(t.Context()))
		next := taken(t, c)
		require.ErrorIs(t, c.Revoke(t.Context(), "k", why, WithToken(token)), ErrNotHeld, "it has changed hands")
		require.Equal(t, 3, r.holders("k", next.secretly()), "the next holder keeps it")
		require.NoError(t, next.Extend(t.Context()))

		for name, err := range map[string]error{
			"the key is empty":    c.Revoke(t.Context(), "", why),
			"16385 bytes":         c.Revoke(t.Context(), strings.Repeat("k", 16385), why),
			"beside a lock":       c.Revoke(t.Context(), "{k}:fence", why),
			"reason is empty":     c.Revoke(t.Context(), "k", ""),
			"129 bytes":           c.Revoke(t.Context(), "k", strings.Repeat("x", 129)),
			"cannot be printed":   c.Revoke(t.Context(), "k", "a\nb"),
			"cannot be printed ":  c.Revoke(t.Context(), "k", "a\xff"),
			"do not go together":  c.Revoke(t.Context(), "k", why, WithShared(), WithPermits(2)),
			"one of 2 permits":    c.Revoke(t.Context(), "k", why, WithPermits(2), WithToken("t")),
			"begins with revoked": c.Revoke(t.Context(), "k", why, WithToken("revoked:t")),
			"the token that was":  c.Revoke(t.Context(), "k", why, WithToken("")),
			"would be taken for":  c.CheckMutex("k", ttl, WithToken("revoked:t")),
			"would be taken for ": c.CheckMutex("k", ttl, WithOwner("revoked:me")),
		} {
			require.ErrorContains(t, err, strings.TrimSpace(name))
		}
		require.NoError(t, c.Revoke(t.Context(), "k", "für Ü, 128 Bytes"))
	})
}

// A master that is silent may be one of those who name the holder. Where it could make no majority of them, nobody is it.
func TestRevokeWhereAMasterIsSilent(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		r.set(freeze, 4)
		r.set(flush, 0, 1)
		err := c.Revoke(t.Context(), "k", why)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, ErrNotHeld)
		r.set(flush, 2)
		require.ErrorIs(t, c.Revoke(t.Context(), "k", why), ErrNotHeld)
	})
}

// Where some readers are revoked and others are not, the error says how many. The error that the Observers were told of stays as it was.
func TestRevokeOfSomeReadersChangesNoErrorThatWasTold(t *testing.T) {
	masters, c := started(t, 3)
	for range 2 {
		require.NoError(t, c.NewMutex("k", time.Minute, WithShared()).Lock(t.Context()))
	}
	var told []error
	c.events.hook(EventRound, func(e *Event) {
		if e.Op != opRevoke {
			return
		}
		if told = append(told, e.Err); len(told) == 1 {
			masters.Pause(0)
			masters.Pause(1)
		}
	})
	err := c.Revoke(t.Context(), "k", why, WithShared())
	masters.Resume(0)
	masters.Resume(1)
	require.ErrorIs(t, err, ErrNoQuorum)
	require.ErrorContains(t, err, "1 of it revoked")
	require.Len(t, told, 2)
	require.NoError(t, told[0])
	require.ErrorIs(t, told[1], ErrNoQuorum)
	require.NotContains(t, told[1].Error(), "of it revoked")
}

// A revocation that reaches only a minority is an error, and does no harm: the holder keeps the lock. These masters
// say no for a while, and have the key again after that.
func TestRevokeOfAMinority(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		operator, _ := another(t, r, Config{})
		r.set(func(m *fakeMaster) { m.deny = denyScript(kind.RevokeScript.Hash, "NOPERM not now") }, 2, 3, 4)
		err := operator.Revoke(t.Context(), "k", why)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, ErrRevoked)
		require.Contains(t, err.Error(), "2 yes")
		time.Sleep(2*ttl + ttl/2)
		require.NoError(t, held.Err())
		require.Equal(t, 5, r.holders("k", m.secretly()), "it has mended the minority")
		require.NoError(t, m.Unlock(t.Context()), "exclusion was never broken")

		m = taken(t, c)
		require.ErrorIs(t, operator.Revoke(t.Context(), "k", why), ErrNoQuorum)
		require.Equal(t, 2, r.tombstones(m.secretly()))
		requireHolder(t, c, m, false)
		require.NoError(t, m.Unlock(t.Context()), "it was not revoked")
		r.gone(t, 5*time.Millisecond, "not even the tombstones are left")

		// Then the others lose the lock. Nobody has taken it away from its holder.
		for _, ends := range []func(*Mutex) error{
			func(m *Mutex) error { return m.Unlock(t.Context()) },
			func(m *Mutex) error { return m.Extend(t.Context()) },
		} {
			m = taken(t, c)
			require.ErrorIs(t, operator.Revoke(t.Context(), "k", why), ErrNoQuorum)
			r.set(flush, 2, 3, 4)
			next := taken(t, operator)
			require.NoError(t, next.Unlock(t.Context()))
			err = ends(m)
			require.ErrorIs(t, err, ErrNotHeld)
			require.NotErrorIs(t, err, ErrRevoked)
			m.Unlock(t.Context())
			r.gone(t, 5*time.Millisecond)
		}

		// A second try completes the first.
		m = taken(t, c)
		require.ErrorIs(t, operator.Revoke(t.Context(), "k", why), ErrNoQuorum)
		r.set(func(m *fakeMaster) { m.deny = nil }, 2, 3, 4)
		require.NoError(t, operator.Revoke(t.Context(), "k", "another reason"))
		requireHolder(t, c, m, true)
		err = m.Unlock(t.Context())
		require.ErrorIs(t, err, ErrRevoked)
	})
}

// requireHolder requires that a Mutex is shown as the one holder of "k", revoked or not.
func requireHolder(t *testing.T, c *Client, m *Mutex, revoked bool) {
	t.Helper()
	info, err := c.Holders(t.Context(), "k")
	require.NoError(t, err)
	require.Len(t, info.Holders, 1)
	require.Equal(t, m.secretly(), info.Holders[0].Token.Reveal())
	require.True(t, info.Holders[0].Held)
	require.Equal(t, revoked, info.Holders[0].Revoked)
}

func denyScript(hash, text string) func([]string) string {
	return func(args []string) string {
		if len(args) > 1 && args[1] == hash {
			return text
		}
		return ""
	}
}

// Two revocations at once are one. The first reason stays on each master.
func TestTwoRevocationsAtOnce(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		results := make(chan error, 2)
		for _, reason := range []string{why, "for another reason"} {
			operator, _ := another(t, r, Config{})
			go func() { results <- operator.Revoke(t.Context(), "k", reason) }()
		}
		require.NoError(t, soon(t, results))
		require.NoError(t, soon(t, results))
		lostBy(t, r, held)
		require.ErrorIs(t, context.Cause(held), ErrRevoked)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrRevoked)
		r.gone(t, 5*time.Millisecond)
	})
}

// A command of a revocation that comes late finds the next holder, and leaves it alone.
func TestALateRevocation(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		operator, _ := another(t, r, Config{})
		r.set(freeze, 3, 4)
		require.NoError(t, operator.Revoke(t.Context(), "k", why, WithToken(m.secretly())))
		require.ErrorIs(t, m.Unlock(t.Context()), ErrRevoked)
		r.set(thaw, 3, 4)
		r.gone(t, 5*time.Millisecond, "where the tombstone came late, the release came later")

		m = taken(t, c)
		old := m.secretly()
		require.NoError(t, m.Unlock(t.Context()))
		next := taken(t, c)
		for i := range 5 { // all that the late ones can do
			require.ErrorIs(t, operator.Revoke(t.Context(), "k", why, WithToken(old)), ErrNotHeld, i)
		}
		require.Equal(t, 5, r.holders("k", next.secretly()))
		require.NoError(t, next.Unlock(t.Context()))
	})
}

// A master that has missed the last renewals has a key that ends early. Its tombstone ends as late as that of the
// others: otherwise the holder could set the key again there, and have a quorum without those that have tombstones.
func TestARevocationOutlivesTheValidity(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(ttl * 2 / 3)
		require.NoError(t, failOn(r, func() error { return m.Extend(t.Context()) }, 0))
		require.NoError(t, failOn(r, func() error { return c.Revoke(t.Context(), "k", why) }, 3, 4))
		time.Sleep(ttl / 2) // its own key would be gone on master 0, and the validity goes on
		require.Positive(t, m.Remaining())
		require.Error(t, failOn(r, func() error { return m.Extend(t.Context()) }, 1, 2), "it cannot reach these")
	})
}

// A minority that claims that the key lives for long has the others keep it no longer.
func TestARevocationBelievesNoMinority(t *testing.T) {
	for n, liars := range map[int][]int{3: {0}, 5: {1, 4}} {
		simulated(t, n, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			until := m.validUntil()
			r.set(func(m *fakeMaster) {
				k := m.keys["k"]
				k.expires += time.Minute
				m.keys["k"] = k
			}, liars...)
			require.NoError(t, c.Revoke(t.Context(), "k", why))
			next, _ := another(t, r, Config{})
			require.NoError(t, next.NewMutex("k", ttl).Lock(t.Context()))
			require.Greater(t, r.now(), until)
			require.Less(t, r.now(), until+10*time.Second)
		})
	}
}

// failOn does something while masters are down.
func failOn(r *fakeRounds, do func() error, which ...int) error {
	r.set(fail, which...)
	defer r.set(func(m *fakeMaster) { m.down = nil }, which...)
	return do()
}

// A relay's lock is revoked: whoever has it then, or is given it before the process knows, is told. The last of them
// deletes the tombstones.
func TestARevokedRelay(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 2)
		all[0].leave(t.Context())
		all[1].has(t)
		token := all[1].secretly()
		require.NoError(t, soon(t, all[0].unlocked))
		require.NoError(t, c.Revoke(t.Context(), "k", why))
		all[1].leave(t.Context())
		all[2].has(t) // nobody knows yet
		require.Equal(t, token, all[2].secretly())
		held, stop := all[2].KeepAlive(t.Context())
		defer stop()
		requireRevoked(t, soon(t, all[1].unlocked))
		lostBy(t, r, held)
		requireRevoked(t, context.Cause(held))
		time.Sleep(5 * time.Millisecond)
		require.Equal(t, 3, r.tombstones(token), "it has not let go yet")
		requireRevoked(t, all[2].Unlock(t.Context()))
		time.Sleep(5 * time.Millisecond)
		require.Zero(t, r.holders("k", kind.Tombstone(token, why)))
	})
}

// With a fence, the waiter that a revoked lock is given to waits for its number, and is given none. So it declines the
// lock, and the tombstones go: nobody is at work.
func TestARevokedLockIsNotPassedOn(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 2, WithFence())
		token, fence := all[0].secretly(), all[0].Fence()
		require.NoError(t, c.Revoke(t.Context(), "k", why))
		all[0].leave(t.Context())
		requireRevoked(t, soon(t, all[0].unlocked))
		require.NoError(t, soon(t, all[1].locked))
		require.NotEqual(t, token, all[1].secretly())
		require.Greater(t, all[1].Fence(), fence)
		time.Sleep(10 * time.Millisecond) // a minority's release may be under way
		require.Zero(t, r.tombstones(token))
		require.NoError(t, all[1].Unlock(t.Context()))
		require.NoError(t, soon(t, all[2].locked))
		require.NoError(t, all[2].Unlock(t.Context()))
	})
}

// A round that knows nothing of the revocation is judged when the holder was told. It deletes no tombstone: the holder
// may still be at work.
func TestALateRoundLeavesTheTombstones(t *testing.T) {
	for name, late := range map[string]func(t *testing.T, r *fakeRounds, m *Mutex){
		"which has succeeded": func(*testing.T, *fakeRounds, *Mutex) {},
		"which has no quorum": func(_ *testing.T, r *fakeRounds, _ *Mutex) { r.set(fail, 1, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				operator, _ := another(t, r, Config{})
				c.round.Mux = r.late(100 * time.Millisecond)
				extended := make(chan error, 1)
				late(t, r, m)
				go func() { extended <- m.Extend(t.Context()) }()
				time.Sleep(10 * time.Millisecond)
				r.set(func(m *fakeMaster) { m.down = nil }, 1, 2)
				require.NoError(t, operator.Revoke(t.Context(), "k", why))
				requireRevoked(t, m.Extend(t.Context()))
				require.Error(t, soon(t, extended))
				time.Sleep(10 * time.Millisecond)
				require.Equal(t, 3, r.tombstones(m.secretly()), "it has not let go yet")
				requireRevoked(t, m.Unlock(t.Context()))
				r.gone(t, 10*time.Millisecond)

				m = taken(t, c) // what the Mutex knows of a revocation is not of its next lock
				r.set(func(m *fakeMaster) { m.drop("k") }, 0, 1)
				require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
				r.gone(t, 10*time.Millisecond)
			})
		})
	}
}

// A revoked lock whose tombstones only a minority shows, as the others are silent, or have forgotten it and have no vote. Its
// holder learns that the lock is lost. But what is left of the tombstones keeps others out until it has let go.
func TestTombstonesOfAMinorityStay(t *testing.T) {
	for _, n := range []int{3, 5} {
		shown := n - quorum.Majority(n) // tombstones, which are too few to say that it was revoked
		for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFence()}, "several": {WithKeys("l")}} {
			for _, kept := range []bool{true, false} {
				t.Run(fmt.Sprint(n, " ", name, " ", kept), func(t *testing.T) {
					simulated(t, n, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
						operator, _ := another(t, r, Config{})
						m := c.NewMutex("k", ttl, opts...)
						for range 2 { // the second time it was used before
							require.NoError(t, m.TryLock(t.Context()))
							time.Sleep(2 * time.Millisecond)
							held, stop := m.KeepAlive(t.Context())
							if !kept {
								stop()
							}
							require.NoError(t, operator.Revoke(t.Context(), "k", why))
							time.Sleep(2 * time.Millisecond)
							had, until := r.keys(), m.validUntil()
							r.set(fail, shown)
							r.set(flush, all(n)[shown+1:]...)
							tombstones := r.keys()
							require.Less(t, tombstones, had)
							if kept {
								lostBy(t, r, held)
								require.ErrorIs(t, context.Cause(held), ErrLost)
								require.NotErrorIs(t, context.Cause(held), ErrRevoked, "perhaps another has had it")
							} else {
								err := m.Extend(t.Context())
								require.ErrorIs(t, err, ErrNotHeld)
								require.NotErrorIs(t, err, ErrRevoked, "perhaps another has had it")
							}
							require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
							time.Sleep(10 * time.Millisecond)
							require.Less(t, r.now(), until)
							require.Equal(t, tombstones, r.keys(), "it has not let go yet")
							require.Error(t, operator.NewMutex("k", ttl, opts...).TryLock(t.Context()))

							require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
							stop()
							r.set(func(m *fakeMaster) { m.down = nil }, shown)
							r.gone(t, 10*time.Millisecond, "what was owed was paid, too")
						}
					})
				})
			}
		}
	}
}

// The longest replies of which a holder learns that it was revoked are kept, too.
func TestALongTombstoneIsFound(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 1)
	long := strings.Repeat("r", kind.MaxReason)

	token := strings.Repeat("t", kind.MaxToken)
	Says(t, masters, 0, "SET", "long", token, "PX", "60000")
	heir := c.NewMutex("long", time.Minute, WithToken(token))
	require.NoError(t, c.Revoke(t.Context(), "long", long, WithToken(token)))
	require.ErrorIs(t, heir.Extend(t.Context()), ErrRevoked)
	require.ErrorIs(t, heir.Unlock(t.Context()), ErrRevoked)

	var keys []string // a relay reads all of them
	for i := range maxKeys - 1 {
		keys = append(keys, fmt.Sprint("l", i))
	}
	m := c.NewMutex("k", time.Minute, WithKeys(keys...), WithOwner(strings.Repeat("o", kind.MaxOwner)))
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, c.Revoke(t.Context(), "l7", long))
	k := c.round.Take()
	defer c.round.Put(k)
	token = m.secretly()
	k.Read(m.spec(), []byte(token))
	require.NoError(t, c.round.Mux.Do(t.Context(), &k.Op))
	require.True(t, c.failure(opUnlock, "k", k, nil, ErrNotHeld).revoked())
	require.ErrorIs(t, m.Unlock(t.Context()), ErrRevoked)
}

// An Unlock that is under way when the lock is revoked deletes the key or the tombstone, whichever it finds.
func TestARevocationRacesAnUnlock(t *testing.T) {
	for mask := range uint(1 << 3) {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			operator, _ := another(t, r, Config{})
			for i := range 3 { // where the release arrives later
				if mask&(1<<i) != 0 {
					r.set(func(m *fakeMaster) { m.delay = 20 * time.Millisecond }, i)
				}
			}
			unlocked, token := make(chan error, 1), m.secretly()
			go func() { unlocked <- m.Unlock(t.Context()) }()
			synctest.Wait()
			r.set(func(m *fakeMaster) { m.delay = 0 }, 0, 1, 2)
			operator.Revoke(t.Context(), "k", why, WithToken(token)) // in time or not
			soon(t, unlocked)
			r.gone(t, 50*time.Millisecond)
		})
	}
}

// The reason that a master has for a revocation can be anybody's text.
func TestTombstones(t *testing.T) {
	for value, want := range map[string][2]string{
		kind.Tombstone("t", why):                {"t", why},
		kind.Tombstone("a\nb", why):             {"a\nb", why},
		"revoked:t\n":                           {"t", ""},
		"revoked:t\na\x1b[31m\xffb":             {"t", "a?[31m?b"},
		"revoked:t\n" + strings.Repeat("ü", 99): {"t", strings.Repeat("ü", 64)},
	} {
		token, reason, ok := kind.CutTombstone(value)
		require.True(t, ok)
		require.Equal(t, want, [2]string{token, reason})
	}
	for _, value := range []string{"", "t", "revoked:", "revoked:t", "revoked:\nwhy", "Revoked:t\nwhy"} {
		_, _, ok := kind.CutTombstone(value)
		require.False(t, ok, value)
	}
}
