package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/stretchr/testify/require"
)

// keyOf returns the token that a master has for "k", and how long it lasts.
func (r *fakeRounds) keyOf(i int) (token string, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.masters[i].get("k"); ok {
		return v.token, v.expires - r.clock()
	}
	return "", 0
}

// occupy gives a key to somebody else.
func occupy(m *fakeMaster) {
	m.keys["k"] = fakeKey{"another's", m.r.clock() + time.Hour}
}

func all(n int) (which []int) {
	for i := range n {
		which = append(which, i)
	}
	return which
}

// subset returns the masters whose bits are set.
func subset(mask uint) (which []int) {
	for i := range bits.Len(mask) {
		if mask&(1<<i) != 0 {
			which = append(which, i)
		}
	}
	return which
}

func TestTakenExactlyWhereTheFreeAreAMajority(t *testing.T) {
	for n := 1; n <= 7; n++ {
		simulated(t, n, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			for mask := range uint(1) << n {
				taken := subset(mask)
				r.set(flush, all(n)...)
				r.set(occupy, taken...)
				m := c.NewMutex("k", ttl)
				err := m.TryLock(t.Context())
				if 2*(n-len(taken)) > n {
					require.NoError(t, err, "%d masters, taken %v", n, taken)
					require.NoError(t, m.Unlock(t.Context()))
				} else {
					require.ErrorIs(t, err, ErrHeld, "%d masters, taken %v", n, taken)
					require.NotErrorIs(t, err, ErrNoQuorum)
				}
				time.Sleep(5 * time.Millisecond)
				require.Equal(t, len(taken), r.keys(), "nothing of ours may be left, nothing of theirs gone")
			}
		})
	}
}

func TestSplitVoteIsHeldAndLeavesNothing(t *testing.T) {
	simulated(t, 4, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c2 := newClient(Config{}, r, r.now)
		a, b := c.NewMutex("k", ttl), c2.NewMutex("k", ttl)
		r.set(func(m *fakeMaster) { m.delay = 10 * time.Millisecond }, 2, 3)
		errs := make(chan error, 1)
		go func() { errs <- a.TryLock(t.Context()) }() // is first at masters 0 and 1
		time.Sleep(5 * time.Millisecond)
		r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{"b's", r.clock() + ttl} }, 2, 3)
		require.ErrorIs(t, b.TryLock(t.Context()), ErrHeld)
		require.ErrorIs(t, conntest.Soon(t, "it is decided", errs), ErrHeld)
		r.set(flush, 2, 3)
		time.Sleep(20 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}

// Rule 1, at every moment of an acquire, in every state of the masters.
func TestRule1CancelledContextLeavesNoKey(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(m *fakeMaster){
		"healthy":                     func(*fakeMaster) {},
		"frozen, thawed":              freeze,
		"never answering":             func(m *fakeMaster) { m.mute = true },
		"knowing no script":           unscript,
		"slow":                        func(m *fakeMaster) { m.delay = 3 * time.Millisecond },
		"down, and back within a TTL": fail,
		"occupied":                    occupy,
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				for at := time.Duration(0); at <= 6*time.Millisecond; at += 100 * time.Microsecond {
					for _, which := range [][]int{{0}, {0, 1, 2}, all(5)} {
						r.set(change, which...)
						ctx, cancel := context.WithTimeoutCause(t.Context(), at, errCause)
						m := c.NewMutex("k", ttl)
						err := m.TryLock(ctx)
						cancel()
						if err == nil {
							require.NoError(t, m.Unlock(t.Context()))
						} else if errors.Is(err, context.DeadlineExceeded) {
							require.ErrorIs(t, err, errCause)
						}
						r.set(func(m *fakeMaster) {
							m.frozen, m.down, m.mute, m.scripts, m.delay = false, nil, false, true, time.Millisecond
							if m.keys["k"].token == "another's" {
								delete(m.keys, "k")
							}
						}, all(5)...)
						time.Sleep(20 * time.Millisecond)
						require.Zero(t, r.keys(), "cancelled after %v with %v", at, which)
					}
				}
			})
		})
	}
}

// Rule 2: what is reported as taken is valid, and for as long as Until says.
func TestRule2SuccessIsNeverWithoutValidity(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Hour}, func(t *testing.T, c *Client, r *fakeRounds) {
		drift := 32 * time.Millisecond
		for _, delay := range []time.Duration{time.Millisecond, time.Second, ttl - drift - time.Nanosecond, ttl - drift, ttl, 2 * ttl} {
			r.set(func(m *fakeMaster) { m.delay = delay }, all(3)...)
			m := c.NewMutex("k", ttl)
			err := m.TryLock(t.Context())
			if delay < ttl-drift {
				require.NoError(t, err)
				require.Equal(t, ttl-drift-delay, m.Remaining())
				require.WithinDuration(t, time.Now().Add(m.Remaining()), m.Until(), time.Microsecond)
				time.Sleep(time.Nanosecond)
				require.Equal(t, 3, r.holders("k", m.Token()))
				m.Unlock(t.Context())
			} else {
				require.ErrorIs(t, err, ErrExpired)
				require.NotErrorIs(t, err, ErrHeld)
				require.Zero(t, m.Remaining())
				require.Empty(t, m.Token())
			}
			time.Sleep(3 * ttl)
			require.Zero(t, r.keys(), "a late success is refused and released")
			require.EqualValues(t, "release", strings.Fields(r.logs(0)[len(r.logs(0))-1])[0])
		}
	})
}

// Rule 3.
func TestRule3ExtendRepairsButRevivesNothing(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		token := m.Token()
		time.Sleep(time.Second)
		r.set(flush, 0)
		r.set(restart, 1)
		r.set(func(m *fakeMaster) { // shortened, and prolonged, from outside
			m.keys["k"] = fakeKey{token, r.clock() + time.Millisecond*100}
		}, 2)
		r.set(func(m *fakeMaster) { m.keys["k"] = fakeKey{token, r.clock() + time.Hour} }, 3)
		before := m.Until()
		require.NoError(t, m.Extend(t.Context()))
		require.True(t, m.Until().After(before))
		require.Equal(t, ttl-m.term.drift-time.Millisecond, m.Remaining())
		time.Sleep(2 * time.Millisecond)
		for i := range 5 {
			got, left := r.keyOf(i)
			require.Equal(t, token, got)
			require.InDelta(t, ttl.Seconds(), left.Seconds(), 0.01, "master %d", i)
		}

		time.Sleep(m.Remaining())
		asked := len(r.logs(0))
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		require.Len(t, r.logs(0), asked, "an expired lock is not even asked for")
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		time.Sleep(100 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}

func TestRule3ExtendThatComesTooLateRevivesNothing(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Hour}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(m.Remaining() - time.Millisecond)
		r.set(func(m *fakeMaster) { m.delay = 2 * time.Millisecond }, all(3)...)
		require.ErrorIs(t, m.Extend(t.Context()), ErrExpired)
		require.Zero(t, m.Remaining())
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys(), "it is released, as nobody holds it")
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
	})
}

func TestExtendSetsTheKeyOnlyWhereItIsFree(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(occupy, 0)
		r.set(flush, 1)
		require.NoError(t, m.Extend(t.Context()))
		time.Sleep(2 * time.Millisecond)
		got, _ := r.keyOf(0)
		require.Equal(t, "another's", got)
		require.Equal(t, 4, r.holders("k", m.Token()))
		require.NoError(t, m.Unlock(t.Context()))
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 1, r.keys())
	})
}

// A majority that had lost the key, although it has it again now, is a loss: at
// once, whatever the rest does, and in whichever order the answers come.
func TestExtendTellsOfALossThatItCouldPaperOver(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5} {
		for mask := range uint(1) << n {
			lost := subset(mask)
			simulated(t, n, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				r.set(flush, lost...)
				err := m.Extend(t.Context())
				if 2*(n-len(lost)) > n {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrNotHeld)
					require.Zero(t, m.Remaining())
				}
				time.Sleep(5 * time.Millisecond)
				if err == nil {
					require.Equal(t, n, r.holders("k", m.Token()), "all have it again")
				} else {
					require.Zero(t, r.keys(), "what was set again is released")
				}
			})
		}
	}
}

func TestExtendWithFailuresAndRestarts(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		// Two were down when it was taken, and are back; one goes down: the lock
		// may still be on three, and is given to five.
		r.set(fail, 3, 4)
		m := taken(t, c)
		r.set(restart, 3, 4)
		r.set(fail, 0)
		require.NoError(t, m.Extend(t.Context()))
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 4, r.holders("k", m.Token())-1, "master 0 still has it, and is down")
		// Too few answer: nothing is lost yet.
		until := m.Until()
		r.set(fail, 1, 2)
		err := m.Extend(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, errFake)
		require.Positive(t, m.Remaining())
		require.WithinDuration(t, until, m.Until(), time.Microsecond)
		r.set(func(m *fakeMaster) { m.down = nil }, 0, 1, 2)
		require.NoError(t, m.Extend(t.Context()))
	})
}

// Rule 5, the table of Unlock.
func TestRule5UnlockTellsReleasedFromLostFromUnknown(t *testing.T) {
	type unlock struct {
		lost, down []int
		expired    bool
		want       error
	}
	for name, u := range map[string]unlock{
		"all have it":                         {},
		"a minority had lost it":              {lost: []int{0, 1}},
		"a majority had lost it":              {lost: []int{0, 1, 2}, want: ErrNotHeld},
		"a minority is down":                  {down: []int{0, 1}},
		"a majority is down":                  {down: []int{0, 1, 2}, want: ErrNoQuorum},
		"all are down":                        {down: all(5), want: ErrNoQuorum},
		"some had lost it, some are down":     {lost: []int{0, 1}, down: []int{2}, want: ErrNoQuorum},
		"a majority had lost it, one is down": {lost: []int{0, 1, 2}, down: []int{3}, want: ErrNotHeld},
		"expired":                             {expired: true, want: ErrNotHeld},
		"expired, and all are down":           {expired: true, down: all(5), want: ErrNotHeld},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				if u.expired {
					time.Sleep(ttl)
				}
				r.set(flush, u.lost...)
				r.set(fail, u.down...)
				err := m.Unlock(t.Context())
				if u.want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, u.want)
				}
				require.Empty(t, m.Token())
				require.Zero(t, m.Until())
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld, "it is unlocked, whatever came of it")
				require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
				r.set(func(m *fakeMaster) { m.down = nil }, u.down...)
				time.Sleep(5 * time.Millisecond)
				require.Zero(t, r.keys(), "those that were down get the release when they are back")
			})
		})
	}
}

// The key outlives the validity by the drift: whoever deletes a majority in that
// time has held the lock until then.
func TestUnlockJustAfterTheValidityIsNoLoss(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(m.Remaining() + time.Millisecond)
		require.NoError(t, m.Unlock(t.Context()))
	})
}

func TestUnlockOfAnExpiredLockSparesTheNextHolder(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(ttl)
		next := taken(t, c)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		time.Sleep(5 * time.Millisecond)
		require.Equal(t, 3, r.holders("k", next.Token()))
	})
}

// Whatever asks for more time is sent under a lock, so that no Unlock comes in between: it
// would follow the release, and set the key again.
func TestNothingIsExtendedAfterItsRelease(t *testing.T) {
	for name, c := range map[string]struct {
		lock   func(m *Mutex) *sync.Mutex
		extend func(m *Mutex)
	}{
		"Extend":  {func(m *Mutex) *sync.Mutex { return &m.mu }, func(m *Mutex) { m.Extend(context.Background()) }},
		"recheck": {func(m *Mutex) *sync.Mutex { return &m.mu }, func(m *Mutex) { m.client.rechecker.recheck([]*hold{&m.hold}) }},
		"KeepAlive": {func(m *Mutex) *sync.Mutex { return &m.client.renewer.mu }, func(m *Mutex) {
			_, stop := m.KeepAlive(context.Background())
			defer stop()
			time.Sleep(ttl/renewAfter + time.Millisecond)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				m := taken(t, client)
				posted := false
				client.rounds = &hookedRounds{rounds: r, posting: func(op *mux.Op) {
					if !asks(op, kind.ExtendScript) {
						return
					}
					posted = true
					if lock := c.lock(m); lock.TryLock() { // then an Unlock can come in between
						lock.Unlock()
						require.NoError(t, m.Unlock(context.Background()))
					}
				}}
				c.extend(m)
				require.True(t, posted)
				m.Unlock(t.Context())
				time.Sleep(10 * time.Millisecond)
				require.Zero(t, r.keys())
				requireReleasedForGood(t, r)
			})
		})
	}
}

// A local waiter's attempt follows the release on every connection, however long whoever
// releases the lock stands still before it does.
func TestLocalWaiterIsNotifiedAfterTheRelease(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		c.rounds = &hookedRounds{rounds: r, posting: func(op *mux.Op) {
			if asks(op, kind.ReleaseScript) {
				synctest.Wait() // everybody who can do something has done it
			}
		}}
		next, done := c.NewMutex("k", ttl), make(chan error, 1)
		go func() { done <- next.Lock(t.Context()) }()
		for c.Stats().Held == 0 { // then the waiter polls, and pauses for a millisecond at least
			time.Sleep(time.Millisecond / 4)
		}
		refused, since := c.Stats().Held, r.now()
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, conntest.Soon(t, "the waiter has the lock", done))
		require.Equal(t, refused, c.Stats().Held, "the waiter has asked before the release was sent")
		require.Equal(t, time.Millisecond, r.now()-since)
	})
}

func TestUnlockGoesOutWhateverBecomesOfItsContext(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for at := time.Duration(0); at < 3*time.Millisecond; at += 100 * time.Microsecond {
			m := taken(t, c)
			ctx, cancel := context.WithTimeoutCause(t.Context(), at, errCause)
			if err := m.Unlock(ctx); err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, errCause)
				require.NotErrorIs(t, err, ErrNoQuorum, "no master has failed")
				require.NotErrorIs(t, err, ErrNotHeld)
			}
			cancel()
			time.Sleep(5 * time.Millisecond)
			require.Zero(t, r.keys())
		}
	})
}

// Rule 6.
func TestRule6UnknownScriptIsSentOnce(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(unscript, all(3)...)
		m := taken(t, c)
		require.NoError(t, m.Extend(t.Context()))
		holders, err := c.Holders(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, m.Token(), holders[2].Token.Reveal())
		require.NoError(t, m.Unlock(t.Context()))
		time.Sleep(5 * time.Millisecond)
		n := 0
		for _, did := range r.logs(0) {
			if did == "noscript" {
				n++
			}
		}
		require.Equal(t, 3, n, "once for each of extend, holders and release")

		// A master that knows neither the hash nor the text has failed.
		r.set(func(m *fakeMaster) { m.textless = true }, all(3)...)
		m = taken(t, c)
		err = m.Extend(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		var reply *mux.ReplyError
		require.ErrorAs(t, err, &reply)
	})
}

func TestLockIsHandedOverByItsToken(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c2 := newClient(Config{}, r, r.now) // another process
		m := taken(t, c)
		heir := c2.NewMutex("k", ttl, WithToken(m.Token()))
		require.Equal(t, m.Token(), heir.Token())
		require.Zero(t, heir.Remaining(), "its validity is unknown")
		require.Zero(t, heir.Until())
		time.Sleep(time.Second)
		require.NoError(t, heir.Extend(t.Context()))
		require.Equal(t, ttl-m.term.drift-time.Millisecond, heir.Remaining())
		held, stop := heir.KeepAlive(t.Context())
		time.Sleep(10 * ttl)
		require.NoError(t, held.Err())
		stop()
		require.NoError(t, heir.Unlock(t.Context()))
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)

		// Released without an Extend.
		m = taken(t, c)
		require.NoError(t, c2.NewMutex("k", ttl, WithToken(m.Token())).Unlock(t.Context()))
		time.Sleep(5 * time.Millisecond)
		require.Zero(t, r.keys())

		// What is gone cannot be handed over, and is not set again.
		heir = c2.NewMutex("k", ttl, WithToken(m.Token()))
		require.ErrorIs(t, heir.Extend(t.Context()), ErrNotHeld)
		require.ErrorIs(t, heir.Extend(t.Context()), ErrNotHeld)
		time.Sleep(5 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}

// Nobody here knows whether a lock that was handed over is still valid. Where its key is gone
// another may have had it since: it is not set again there, and that master does not count.
func TestFirstExtendOfAHandedOverLockRestoresNothing(t *testing.T) {
	for _, down := range []int{0, 2} {
		t.Run(fmt.Sprint(down, " masters are down"), func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				heir := newClient(Config{}, r, r.now).NewMutex("k", ttl, WithToken(m.Token()))
				r.set(flush, 0)
				r.set(fail, all(5)[5-down:]...)
				err := heir.Extend(t.Context())
				time.Sleep(5 * time.Millisecond)
				token, _ := r.keyOf(0)
				require.Empty(t, token)
				if down == 0 {
					require.NoError(t, err, "four of five have it")
					require.NoError(t, heir.Extend(t.Context()), "from now on it is known to be valid")
					time.Sleep(5 * time.Millisecond)
					require.Equal(t, 5, r.holders("k", m.Token()))
					return
				}
				require.ErrorIs(t, err, ErrNoQuorum, "two of five are known to have it")
				require.Zero(t, heir.Remaining())
			})
		})
	}
}

func TestFailedAttemptKeepsAHandedOverToken(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		heir := c.NewMutex("k", ttl, WithToken(m.Token()))
		require.ErrorIs(t, heir.TryLock(t.Context()), ErrHeld)
		require.NoError(t, heir.Extend(t.Context()))
	})
}

func TestExpiredLockCanBeTakenAgainWithTheSameMutex(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		first := m.Token()
		r.set(freeze, all(3)...)
		held, _ := m.KeepAlive(t.Context())
		time.Sleep(ttl)
		r.set(thaw, all(3)...)
		require.ErrorIs(t, context.Cause(held), ErrLost)
		require.Eventually(t, func() bool { return m.TryLock(t.Context()) == nil }, 3*ttl, ttl/10)
		require.NotEqual(t, first, m.Token())
		require.ErrorIs(t, context.Cause(held), ErrLost, "a context does not come back")
	})
}

func TestMutexThatCannotBeIsReportedByItsUse(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for want, m := range map[string]*Mutex{
			"the key is empty":               c.NewMutex("", ttl),
			"TTL 0s is not":                  c.NewMutex("k", 0),
			"TTL -1s is not":                 c.NewMutex("k", -time.Second),
			"TTL 1.5ms is not":               c.NewMutex("k", 1500*time.Microsecond),
			"TTL 9ms is too short":           c.NewMutex("k", 9*time.Millisecond),
			"the token that was handed over": c.NewMutex("k", ttl, WithToken("")),
			"round timeout 0s is not":        c.NewMutex("k", ttl, WithRoundTimeout(0)),
			"maximum lifetime -1ns is not":   c.NewMutex("k", ttl, WithMaxLifetime(-1)),
		} {
			ctx := t.Context()
			for _, err := range []error{m.TryLock(ctx), m.Lock(ctx), m.Extend(ctx), m.Unlock(ctx)} {
				require.ErrorContains(t, err, want)
				require.NotErrorAs(t, err, new(*RoundError), "no master was asked")
			}
			held, stop := m.KeepAlive(ctx)
			require.ErrorIs(t, context.Cause(held), ErrLost)
			stop()
			require.Zero(t, m.Remaining())
		}
		require.Empty(t, r.logs(0))
		require.NoError(t, c.NewMutex("k", 10*time.Millisecond).TryLock(t.Context()))
	})
	simulated(t, 3, Config{MinDrift: 50 * time.Millisecond}, func(t *testing.T, c *Client, r *fakeRounds) {
		require.ErrorContains(t, c.NewMutex("k", 50*time.Millisecond).TryLock(t.Context()), "TTL 50ms leaves nothing")
	})
}

func TestRoundTimeoutFollowsTheTTLWithinBounds(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for ttl, want := range map[time.Duration]time.Duration{
			50 * time.Millisecond:  20 * time.Millisecond,
			500 * time.Millisecond: 100 * time.Millisecond,
			time.Second:            200 * time.Millisecond,
			4 * time.Second:        200 * time.Millisecond,
			6 * time.Second:        300 * time.Millisecond,
			time.Hour:              500 * time.Millisecond,
		} {
			require.Equal(t, want, c.NewMutex("k", ttl).timeout)
		}
		require.Equal(t, time.Minute, c.NewMutex("k", ttl, WithRoundTimeout(time.Minute)).timeout)

		r.set(freeze, 0, 1)
		since := r.now()
		err := c.NewMutex("k", ttl).TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, c.cfg.roundTimeout(ttl), r.now()-since)
	})
}

func TestEndedContextAsksNobody(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errCause)
		m := c.NewMutex("k", ttl)
		for _, err := range []error{m.TryLock(ctx), m.Lock(ctx)} {
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, errCause)
		}
		time.Sleep(5 * time.Millisecond)
		require.Empty(t, r.logs(0))
		m = taken(t, c)
		require.ErrorIs(t, m.Extend(ctx), errCause)
		require.Positive(t, m.Remaining())
	})
}

func TestClosedClientSaysSo(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m, other := taken(t, c), c.NewMutex("other", ttl)
		require.NoError(t, c.Close())
		_, err := c.Holders(t.Context(), "k")
		for _, err := range []error{
			err, other.TryLock(t.Context()), other.Lock(t.Context()), m.Extend(t.Context()), m.Unlock(t.Context()),
			c.Do(t.Context(), "k", ttl, func(context.Context) error { return nil }),
		} {
			require.ErrorIs(t, err, ErrClosed)
			require.NotErrorIs(t, err, ErrNoQuorum)
		}
	})
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
		require.True(t, slices.ContainsFunc(holders, func(h Holder) bool { return h.Err == mux.ErrTimeout }))
	})
}

func TestStatsCountWhatHappens(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Hour}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		require.NoError(t, m.Extend(t.Context()))
		require.Error(t, c.NewMutex("k", ttl).TryLock(t.Context()))
		time.Sleep(time.Second)
		require.NoError(t, m.Unlock(t.Context()))
		r.set(func(m *fakeMaster) { m.delay = 2 * ttl }, 0, 1)
		require.Error(t, m.TryLock(t.Context()))
		r.set(fail, 0, 1)
		require.Error(t, m.TryLock(t.Context()))
		s := c.Stats()
		require.Equal(t, []uint64{1, 1, 1, 1, 1, 1}, []uint64{s.Acquired, s.Held, s.NoQuorum, s.Expired, s.Released, s.Extended})
		require.EqualValues(t, 1, s.Acquire.Count)
		require.Equal(t, time.Millisecond, s.Acquire.Sum)
		require.InDelta(t, time.Millisecond, s.Acquire.P99, float64(time.Millisecond)/8)
		require.InDelta(t, time.Second, s.Hold.P50, float64(time.Second)/8)
		require.Len(t, s.Masters, 3)
		require.Equal(t, "m0", s.Masters[0].Addr)
		require.Equal(t, fmt.Sprint(mux.Up), s.Masters[0].Phase)
	})
}

// The Observer is told of the loss of a lock that ran out before the next one is taken: one
// that unlocks what was lost, as KeepAlive says one should, releases nothing of that.
func TestLockIsNotReleasedByWhoHearsOfTheLossOfTheOneBefore(t *testing.T) {
	for name, lock := range map[string]func(*Mutex, context.Context) error{"TryLock": (*Mutex).TryLock, "Lock": (*Mutex).Lock} {
		t.Run(name, func(t *testing.T) {
			var m *Mutex
			losses := 0
			observer := &Observer{Lost: func(context.Context, string, error) {
				losses++
				m.Unlock(context.Background())
			}}
			simulated(t, 3, Config{Observer: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
				m = taken(t, c)
				held, stop := m.KeepAlive(context.Background())
				defer stop()
				r.suspend(2 * ttl) // no timer has come yet
				require.NoError(t, lock(m, t.Context()))
				require.Equal(t, 1, losses)
				require.ErrorIs(t, context.Cause(held), ErrLost)
				require.NotEmpty(t, m.Token())
				require.Positive(t, m.Remaining())
				time.Sleep(10 * time.Millisecond)
				require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrHeld)
			})
		})
	}
}

// A lock that ran out is released when the Mutex takes the next: a master that was frozen
// meanwhile still has its key, or has yet to set it.
func TestNothingIsLeftOfALockThatRanOutBeforeTheNext(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(freeze, 2)
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.TryLock(t.Context()))
		token := m.Token()
		time.Sleep(ttl)
		require.NoError(t, m.TryLock(t.Context()))
		require.NotEqual(t, token, m.Token())
		require.NoError(t, m.Unlock(t.Context()))
		r.set(thaw, 2) // it does all that it was sent
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}

// Of two TryLocks on one Mutex the first stands still until its lock is over and the
// second has taken the next one.
func TestLateSuccessSparesAYoungerLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl)
		now := c.now
		var once atomic.Bool
		c.now = func() time.Duration {
			at := now()
			if !once.Swap(true) {
				time.Sleep(ttl + 10*time.Millisecond)
			}
			return at
		}
		first := make(chan error, 1)
		go func() { first <- m.TryLock(context.Background()) }()
		time.Sleep(ttl + 5*time.Millisecond)
		require.NoError(t, m.TryLock(t.Context()))
		token := m.Token()
		require.ErrorIs(t, conntest.Soon(t, "the first returns", first), ErrExpired)
		require.Equal(t, token, m.Token())
		require.NoError(t, m.Unlock(t.Context()))
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}
