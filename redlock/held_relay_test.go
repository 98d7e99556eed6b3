package redlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A runner is a Mutex, and what its calls have returned.
type runner struct {
	*Mutex
	locked, unlocked chan error
}

// waitsFor has a Mutex wait for "k" in Lock, until the others that wait have come before it.
func waitsFor(t *testing.T, c *Client, ctx context.Context, opts ...Option) *runner {
	m := &runner{c.NewMutex("k", ttl, opts...), make(chan error, 1), make(chan error, 1)}
	go func() { m.locked <- m.Lock(ctx) }()
	time.Sleep(20 * time.Millisecond)
	return m
}

// leave calls Unlock, and returns when nothing more happens at this moment.
func (m *runner) leave(ctx context.Context) {
	go func() { m.unlocked <- m.Unlock(ctx) }()
	synctest.Wait()
}

func (m *runner) has(t *testing.T) {
	t.Helper()
	require.Len(t, m.locked, 1, "it has the lock at once")
	require.NoError(t, <-m.locked)
}

// soon requires a result that comes in time.
func soon(t *testing.T, results <-chan error) error {
	t.Helper()
	return conntest.Soon(t, "it returns", results)
}

// runners returns a Mutex that has the lock, and others that wait for it, until the masters notify them.
func runners(t *testing.T, c *Client, n int, opts ...Option) []*runner {
	rounds := c.round.Mux
	switch r := rounds.(type) {
	case *hookedRounds:
		rounds = r.Mux
	case *graceRounds:
		rounds = r.Mux
	}
	if r, is := rounds.(*fakeRounds); is {
		r.tells = func(master int, key string) { c.tracking.Push(master, []byte(key)) }
	}
	all := []*runner{{taken(t, c, opts...), nil, make(chan error, 1)}}
	for range n {
		all = append(all, waitsFor(t, c, t.Context(), opts...))
	}
	return all
}

// asked counts what masters were asked for, by the first word of what they have done.
func (r *fakeRounds) asked(i int, what string) (n int) {
	for _, did := range r.logs(i) {
		if strings.HasPrefix(did, what+" ") {
			n++
		}
	}
	return n
}

func TestAnUnlockHandsTheLockOver(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "several": {WithKeys("l", "m")}, "owner": {WithOwner("o")}, "lifetime": {WithMaxLifetime(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				all := runners(t, c, 2, opts...)
				token, until := all[0].secretly(), all[0].validUntil()
				for i, m := range all[:2] {
					held, _ := m.KeepAlive(t.Context())
					since := r.now()
					m.leave(t.Context())
					require.Error(t, held.Err())
					require.Empty(t, m.secretly())
					all[i+1].has(t)
					require.Equal(t, token, all[i+1].secretly())
					require.Equal(t, until, all[i+1].validUntil())
					require.NoError(t, soon(t, m.unlocked))
					require.Equal(t, time.Millisecond, r.now()-since)
					require.Zero(t, r.asked(0, "extend"), "what only reads wakes nobody in other processes")
				}
				require.NotContains(t, r.logs(0), "release k "+token)
				all[2].leave(t.Context())
				require.NoError(t, soon(t, all[2].unlocked))
				r.gone(t, time.Millisecond)
				s := c.Stats()
				require.EqualValues(t, 3, s.Acquired)
				require.EqualValues(t, 3, s.Released)
			})
		})
	}
}

// Whoever was handed a lock has all of it: who asks for it again under the lock's context waits for nobody, and is told why.
func TestALockThatWasHandedOverIsNotReentrant(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		next := &runner{c.NewMutex("k", ttl), make(chan error, 1), nil}
		for range 2 { // the second time on what was used before
			first := runners(t, c, 0)[0]
			go func() { next.locked <- next.Lock(t.Context()) }()
			time.Sleep(20 * time.Millisecond)
			first.leave(t.Context())
			next.has(t)
			held, stop := next.KeepAlive(t.Context())
			require.ErrorContains(t, c.NewMutex("k", ttl).TryLock(held), "belongs to")
			stop()
			require.NoError(t, next.Unlock(t.Context()))
			require.NoError(t, soon(t, first.unlocked))
		}
	})
}

// Those that unlock while a round is under way share the next one, and not that one, as it has begun before.
func TestAnUnlockIsConfirmedByARoundThatBeganAfterIt(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 3)
		for i, m := range all[:3] {
			m.leave(t.Context())
			all[i+1].has(t)
		}
		held, _ := all[3].KeepAlive(t.Context())
		time.Sleep(1500 * time.Microsecond) // the first round is over, and the second under way
		require.NoError(t, <-all[0].unlocked)
		r.set(flush, 0, 1, 2)
		after, why := lostBy(t, r, held)
		require.ErrorIs(t, why, ErrNotHeld)
		require.Less(t, after, ttl/10, "by the round of the Unlock, and not by a renewal")
		for _, m := range all[1:3] {
			require.ErrorIs(t, soon(t, m.unlocked), ErrNotHeld, "all that share the round are told")
		}
		require.Equal(t, 2, r.asked(0, "get"))
		all[3].leave(t.Context())
		require.ErrorIs(t, soon(t, all[3].unlocked), ErrNotHeld)
	})
}

// The release of the last holder is the last round, and is shared, too.
func TestTheLastReleaseIsShared(t *testing.T) {
	for name, release := range map[string]func(m *runner, t *testing.T){
		"Unlock": func(m *runner, t *testing.T) { m.leave(t.Context()) },
		"an Unlock that does not wait": func(m *runner, t *testing.T) {
			m.leave(held.EndedContext)
			require.ErrorIs(t, soon(t, m.unlocked), context.Canceled)
		},
		"Release": func(m *runner, t *testing.T) { require.NoError(t, m.Release()) },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				all := runners(t, c, 2)
				all[0].leave(t.Context())
				all[1].has(t)
				all[1].leave(t.Context())
				all[2].has(t)
				token := all[2].secretly()
				release(all[2], t)
				next := c.NewMutex("k", ttl)
				require.NoError(t, next.TryLock(t.Context()), "it follows the release")
				for _, m := range all[:2] {
					require.NoError(t, soon(t, m.unlocked))
				}
				time.Sleep(time.Millisecond)
				require.Equal(t, 1, r.asked(0, "get"))
				require.Contains(t, r.logs(0), "release k "+token)
				require.EqualValues(t, 3, c.Stats().Released+c.Stats().ReleaseFailed)
			})
		})
	}
}

// A master that has set the key late makes no quorum of the last holder's release either, which others share.
func TestTheLastReleaseBelievesNoSuspect(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "several": {WithKeys("l", "m")}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				r.set(freeze, 2)
				all := runners(t, c, 1, opts...)
				time.Sleep(50 * time.Millisecond) // this is what late is
				r.set(thaw, 2)
				time.Sleep(time.Millisecond)
				require.Equal(t, 3, r.holders("k", all[0].secretly()))
				r.set(flush, 1)
				for i, m := range all { // while the round of the first is under way
					if i > 0 {
						m.has(t)
					}
					m.leave(t.Context())
				}
				for _, m := range all {
					require.ErrorIs(t, soon(t, m.unlocked), ErrNoQuorum)
				}
			})
		})
	}
}

// The last holder lets go while a round extends the lock: what the round has found lost is not set again behind the release.
func TestTheLastReleaseIsFollowedByNoRepair(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 1)
		time.Sleep(ttl * 2 / 5) // a renewal would be due
		r.set(flush, 1)
		all[0].leave(t.Context())
		all[1].has(t)
		all[1].leave(t.Context())
		for _, m := range all {
			require.NoError(t, soon(t, m.unlocked))
		}
		require.Equal(t, 1, r.asked(0, "extend"))
		r.gone(t, time.Second)
	})
}

func TestOnlyALockThatLastsIsHandedOver(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 1)
		token := all[0].secretly()
		time.Sleep(ttl / 2)
		all[0].leave(t.Context())
		require.Empty(t, all[1].locked, "it asks the masters")
		require.NoError(t, soon(t, all[1].locked))
		require.NotEqual(t, token, all[1].secretly())
		require.NoError(t, soon(t, all[0].unlocked))
	})
}

// A waiter that was given a lock may wake late. It looks at the validity itself.
func TestTheValidityIsLookedAtBeforeALockIsTakenOver(t *testing.T) {
	var c *Client
	var r *fakeRounds
	suspend := onEvent(behind.Wake, func(_ *Event) { r.suspend(ttl) })
	simulated(t, 3, Config{Observers: suspend}, func(t *testing.T, client *Client, rounds *fakeRounds) {
		c, r = client, rounds
		all := runners(t, c, 1)
		token := all[0].secretly()
		all[0].leave(t.Context())
		require.NoError(t, soon(t, all[1].locked))
		require.Positive(t, all[1].Remaining())
		require.NotEqual(t, token, all[1].secretly())
		soon(t, all[0].unlocked)
		require.NoError(t, all[1].Unlock(t.Context()))
		r.gone(t, time.Millisecond)
	})
}

// What differs, or has a number, or whose token others know, goes by the masters.
func TestOtherLocksAreNotHandedOver(t *testing.T) {
	for name, test := range map[string]struct {
		holder, next []Option
		before       func(m *Mutex, t *testing.T)
	}{
		"another owner":    {[]Option{WithOwner("o")}, []Option{WithOwner("p")}, nil},
		"a least hold":     {[]Option{WithMinHold(time.Millisecond)}, []Option{WithMinHold(time.Millisecond)}, nil},
		"other keys":       {[]Option{WithKeys("l")}, []Option{WithKeys("m")}, nil},
		"a fence is asked": {nil, []Option{WithFence()}, nil},
		"a shown token":    {nil, nil, func(m *Mutex, _ *testing.T) { m.Token() }},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := &runner{taken(t, c, test.holder...), nil, make(chan error, 1)}
				next := waitsFor(t, c, t.Context(), test.next...)
				token, fence := m.secretly(), m.Fence()
				if test.before != nil {
					test.before(m.Mutex, t)
				}
				m.leave(t.Context())
				require.Empty(t, next.locked)
				require.NoError(t, soon(t, next.locked))
				require.NotEqual(t, token, next.secretly())
				if fence > 0 {
					require.Greater(t, next.Fence(), fence, "each holder has a fence of its own")
				}
				require.NoError(t, soon(t, m.unlocked))
			})
		})
	}
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := &runner{c.NewMutex("k", ttl, WithToken(taken(t, c).secretly())), nil, make(chan error, 1)}
		require.NoError(t, m.Extend(t.Context()))
		next := waitsFor(t, c, t.Context())
		m.leave(t.Context())
		require.Empty(t, next.locked, "its token has come from outside")
		require.NoError(t, soon(t, next.locked))
	})
}

// A round that is not judged yet could still end the lock, or bring back what is gone.
func TestALockIsNotHandedOverWhileARoundOfItIsUnderWay(t *testing.T) {
	for name, round := range map[string]func(m *Mutex, c *Client){
		"Extend":    func(m *Mutex, _ *Client) { m.Extend(context.Background()) },
		"a recheck": func(m *Mutex, c *Client) { c.held.Recheck(&m.hold) },
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				all := runners(t, c, 1)
				token := all[0].secretly()
				r.set(flush, 0, 1, 2)
				go round(all[0].Mutex, c)
				synctest.Wait()
				all[0].leave(t.Context())
				require.Empty(t, all[1].locked)
				require.NoError(t, soon(t, all[1].locked))
				require.NotEqual(t, token, all[1].secretly())
				time.Sleep(10 * time.Millisecond)
				require.Equal(t, 3, r.holders("k", all[1].secretly()), "nothing has ended it")
			})
		})
	}
}

func TestAFormerHolderReleasesNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 1)
		all[0].leave(t.Context())
		all[1].has(t)
		require.ErrorIs(t, all[0].Unlock(t.Context()), ErrNotHeld)
		require.ErrorIs(t, all[0].Release(), ErrNotHeld)
		require.ErrorIs(t, all[0].Extend(t.Context()), ErrNotHeld)
		require.NoError(t, soon(t, all[0].unlocked))
		time.Sleep(time.Second)
		require.Equal(t, 3, r.holders("k", all[1].secretly()))
		require.NoError(t, all[1].Unlock(t.Context()))
	})
}

// Whoever has the lock next can lose it before the masters' answers to the Unlock are there. These say that a quorum had it
// until then.
func TestALossOfTheNextHolderIsNoneOfTheFormers(t *testing.T) {
	for _, lost := range []bool{false, true} { // on the masters, before the Unlock
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			all := runners(t, c, 1)
			if lost {
				r.set(flush, 0, 1)
			}
			r.set(func(m *fakeMaster) { m.back = 10 * time.Millisecond }, 0, 1, 2)
			all[0].leave(t.Context())
			require.NoError(t, soon(t, all[1].locked))
			c.held.Lose(&all[1].hold, []byte(all[1].secretly()), asHeld(unasked(opExtend, "k", ErrNotHeld, "")))
			require.Empty(t, all[0].unlocked)
			if err := soon(t, all[0].unlocked); lost {
				require.ErrorIs(t, err, ErrNotHeld)
			} else {
				require.NoError(t, err)
			}
			require.ErrorIs(t, all[1].Unlock(t.Context()), ErrNotHeld)
		})
	}
}

// A Mutex that two goroutines share hands the lock over to itself.
func TestAMutexHandsOverToItself(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		locked := make(chan error, 1)
		go func() { locked <- m.Lock(t.Context()) }()
		time.Sleep(time.Millisecond)
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, soon(t, locked))
		require.Positive(t, m.Remaining())
		require.NoError(t, m.Unlock(t.Context()))
		r.gone(t, time.Millisecond)
	})
}

// While the lock goes round, it is extended when a renewal would be due, and no oftener.
func TestALockThatGoesRoundIsExtended(t *testing.T) {
	simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
		var all sync.WaitGroup
		end := r.now() + 10*ttl
		for range 4 {
			all.Go(func() {
				m := c.NewMutex("k", ttl)
				for r.now() < end {
					require.NoError(t, m.Lock(t.Context()))
					require.GreaterOrEqual(t, m.Remaining(), ttl/2)
					time.Sleep(10 * time.Millisecond)
					require.NoError(t, m.Unlock(t.Context()))
				}
			})
		}
		all.Wait()
		require.LessOrEqual(t, r.asked(0, "set"), 4+1, "one has taken it, and others may have tried")
		require.InDelta(t, 30, r.asked(0, "extend"), 2)
		r.gone(t, time.Millisecond)
	})
}

// An extension that finds too little of the lock does not bring it back.
func TestALossThatAnExtensionFindsIsTold(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 1)
		time.Sleep(ttl / 3)
		r.set(flush, 0, 1)
		all[0].leave(t.Context())
		all[1].has(t)
		held, _ := all[1].KeepAlive(t.Context())
		lostBy(t, r, held)
		require.ErrorIs(t, soon(t, all[0].unlocked), ErrNotHeld)
		r.gone(t, 2*time.Millisecond, "what was set again is released")
	})
}

// A minority that has lost the lock is given it again by an extension; what only reads does no harm.
func TestAMinorityDoesNotEndARelay(t *testing.T) {
	for name, harm := range map[string]func(m *fakeMaster){"flushed": flush, "down": fail, "frozen": freeze, "another's": func(m *fakeMaster) { occupy(m) }} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
				all := runners(t, c, 3)
				for i, m := range all[:3] {
					r.set(harm, 0)
					m.leave(t.Context())
					all[i+1].has(t)
					require.NoError(t, soon(t, m.unlocked))
					time.Sleep(ttl / 3)
				}
				require.NoError(t, all[3].Unlock(t.Context()))
				r.set(thaw, 0)
			})
		})
	}
}

// If too few masters answer, nobody knows. The next one has the lock until its validity ends, and the one after it
// asks the masters.
func TestARelayWithoutAQuorumEnds(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 2)
		r.set(freeze, 0, 1)
		all[0].leave(t.Context())
		all[1].has(t)
		var e *RoundError
		require.ErrorAs(t, soon(t, all[0].unlocked), &e)
		require.ErrorIs(t, e, ErrNoQuorum)
		require.Equal(t, all[0].spec().Timeout, e.limit, "each master that has not answered was late by it")
		require.Positive(t, all[1].Remaining())
		r.set(thaw, 0, 1)
		token := all[1].secretly()
		all[1].leave(t.Context())
		require.Empty(t, all[2].locked)
		require.NoError(t, soon(t, all[2].locked))
		require.NotEqual(t, token, all[2].secretly())
		require.NoError(t, soon(t, all[1].unlocked))
	})
}

func TestReleaseHandsOverAndWaitsForNothing(t *testing.T) {
	var mu sync.Mutex
	var told []string
	observer := onEvent(EventRound, func(r *Event) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprint(r.Op, " ", Outcome(r.Err), " ", len(r.Votes), " ", r.more.Held > 0))
	})
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 2)
		since := r.now()
		require.NoError(t, all[0].Release())
		synctest.Wait()
		all[1].has(t)
		require.Equal(t, since, r.now())
		time.Sleep(500 * time.Microsecond)
		all[1].leave(t.Context())
		all[2].has(t)
		require.NoError(t, soon(t, all[1].unlocked))
		time.Sleep(2 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		require.Contains(t, told, "unlock ok 3 true")
		require.Equal(t, "unlock ok 3 true", told[len(told)-1])
		require.EqualValues(t, 2, c.Stats().Released)
	})
}

func TestTheContextOfAnUnlockIsItsOwn(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 2)
		ctx, cancel := context.WithCancelCause(t.Context())
		all[0].leave(ctx)
		all[1].has(t)
		all[1].leave(t.Context())
		all[2].has(t)
		cancel(errCause)
		err := soon(t, all[0].unlocked)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errCause)
		require.NotErrorIs(t, err, ErrNoQuorum)
		require.NoError(t, soon(t, all[1].unlocked))
		require.Positive(t, all[2].Remaining())
		require.EqualValues(t, 1, c.Stats().ReleaseFailed)
	})
}

// A waiter whose context ends in the moment in which it is given the lock declines it.
func TestAWaiterWhoseContextEndsDeclines(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var once sync.Once
	observer := onEvent(behind.Wake, func(_ *Event) { once.Do(cancel) })
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := runners(t, c, 0)[0]
		next := waitsFor(t, c, ctx)
		other := waitsFor(t, c, t.Context())
		m.leave(t.Context())
		require.ErrorIs(t, soon(t, next.locked), context.Canceled)
		require.Empty(t, next.secretly())
		require.NoError(t, soon(t, m.unlocked))
		require.NoError(t, soon(t, other.locked))
		require.NoError(t, other.Unlock(t.Context()))
		r.gone(t, time.Millisecond)
	})
}

// No lock is handed over by a client that is closed, and whoever wakes with one after Close does not have it.
func TestNoHandOverOutlivesClose(t *testing.T) {
	for name, given := range map[string]bool{"given before": true, "unlocked after": false} {
		t.Run(name, func(t *testing.T) {
			var wake chan struct{}
			at := EventKind(behind.Wait)
			if given {
				at = behind.Wake
			}
			simulated(t, 3, Config{Observers: onEvent(at, func(*Event) { <-wake })}, func(t *testing.T, c *Client, r *fakeRounds) {
				wake = make(chan struct{})
				all := runners(t, c, 1)
				if given {
					all[0].leave(t.Context())
					require.NoError(t, soon(t, all[0].unlocked))
				}
				require.NoError(t, c.Close())
				if !given {
					all[0].leave(t.Context())
					require.ErrorIs(t, soon(t, all[0].unlocked), ErrClosed)
				}
				close(wake)
				require.ErrorIs(t, soon(t, all[1].locked), ErrClosed)
				require.Empty(t, all[1].secretly())
			})
		})
	}
}

// Close ends the round that releases wait for.
func TestCloseEndsAnUnlockThatShares(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		all := runners(t, c, 2)
		r.set(freeze, 0, 1, 2)
		for i, m := range all[:2] {
			m.leave(t.Context())
			all[i+1].has(t)
		}
		require.NoError(t, c.Close())
		for _, m := range all[:2] {
			require.ErrorIs(t, soon(t, m.unlocked), ErrClosed)
		}
		require.ErrorIs(t, all[2].Unlock(t.Context()), ErrClosed)
	})
}

// A switch may come when the former holder has left the list of the rechecks and the next one is not in it yet.
func TestASwitchInBetweenIsNotMissed(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		var c *Client
		var r *fakeRounds
		var once sync.Once
		observer := onEvent(behind.Wake, func(_ *Event) {
			once.Do(func() {
				if forgets {
					r.set(flush, 0, 1)
				}
				c.held.Switched(0)
				time.Sleep(time.Millisecond) // until the recheck, which finds nothing in the list, is over
			})
		})
		simulated(t, 3, Config{Observers: observer}, func(t *testing.T, client *Client, rounds *fakeRounds) {
			c, r = client, rounds
			c.groups = true
			all := runners(t, c, 1)
			token := all[0].secretly()
			all[0].leave(t.Context())
			require.NoError(t, soon(t, all[1].locked))
			require.Equal(t, !forgets, token == all[1].secretly(), "what a recheck has found to be lost is taken anew")
			time.Sleep(time.Millisecond)
			require.True(t, forgets || r.asked(2, "extend") > 0, "it was rechecked, unless the round of the Unlock has found the loss before")
			require.Positive(t, all[1].Remaining())
			soon(t, all[0].unlocked)
			require.NoError(t, all[1].Unlock(t.Context()))
		})
	}
}

// While a recheck is under way the lock goes by the masters.
func TestALockIsNotHandedOverDuringARecheck(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		var armed atomic.Bool
		goesOn := make(chan struct{})
		goOn := sync.OnceFunc(func() { close(goesOn) })
		defer goOn()
		c.round.Mux = &hookedRounds{Mux: r, waited: func(_ context.Context, op *mux.Op) {
			if armed.Load() && strings.Contains(string(op.Command), "other") {
				<-goesOn
			}
		}}
		require.NoError(t, c.NewMutex("other", time.Hour).TryLock(t.Context())) // whose round may take longer
		all := runners(t, c, 1)
		armed.Store(true)
		c.held.Switched(0)
		time.Sleep(2 * time.Millisecond)
		require.Zero(t, all[0].pins(), "its own round is over, and the recheck is not")
		all[0].leave(t.Context())
		require.Empty(t, all[1].locked)
		goOn()
		require.NoError(t, soon(t, all[1].locked))
		require.NoError(t, soon(t, all[0].unlocked))
	})
}

// Whichever call of a context panics, in the Unlock that hands over or in the Lock that takes over, the
// lock is with one holder or released.
func TestAPanicEndsNoRelay(t *testing.T) {
	f := &fuse{}
	f.calls.Store(-1)
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for _, unlocks := range []bool{true, false} {
			panics := everyPanic(t, f, func() {
				calls := f.calls.Swap(-1)
				m, next := taken(t, c), c.NewMutex("k", ttl)
				m.KeepAlive(brittle{t.Context(), f})
				call, other := func() { m.Unlock(brittle{t.Context(), f}) }, func() { next.Lock(t.Context()) }
				if !unlocks {
					call, other = func() { next.Lock(brittle{t.Context(), f}) }, func() { time.Sleep(5 * time.Millisecond); m.Unlock(t.Context()) }
				}
				var ended sync.WaitGroup
				ended.Go(func() {
					defer func() { recover() }() // the fuse may be in the KeepAlive that it ends
					other()
				})
				defer func() {
					f.calls.Store(-1)
					ended.Wait()
					next.Unlock(t.Context())
					m.Unlock(t.Context())
				}()
				if unlocks {
					time.Sleep(5 * time.Millisecond)
				}
				f.calls.Store(calls)
				call()
			}, func(_ bool, at string) {
				r.gone(t, 10*time.Millisecond, at)
				nothingIsLeft(t, c, at)
			})
			require.Positive(t, panics)
		}
	})
}

// Beyond Config.Handovers the lock stays if nobody stands in the global queue, and else it is released.

// A relay ends after so many hand-overs, or after so long, if somebody stands in the global queue; and some time in any
// case, as others may poll.
func TestWhenARelayEnds(t *testing.T) {
	for name, test := range map[string]struct {
		handovers int
		others    bool
		hold      time.Duration
		stays     int // so many hand-overs
	}{
		"nobody waits":             {3, false, time.Millisecond, 19},
		"others wait":              {3, true, 500 * time.Microsecond, 3},
		"others wait for too long": {16, true, 2 * time.Millisecond, 2},
		"others may poll":          {3, false, 3 * time.Millisecond, relayMostTrips / 3},
		"no limit":                 {-1, true, 3 * time.Millisecond, 19},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
				p := newProcesses(t, r, nil)
				c := p.joinWith(Config{Handovers: test.handovers})
				all := runners(t, c, 19)
				if test.others {
					m := p.join().NewMutex("k", ttl)
					p.running.Go(func() { require.NoError(t, m.Lock(t.Context())); m.Unlock(t.Context()) })
					time.Sleep(100 * time.Millisecond)
				}
				token, stayed := all[0].secretly(), 0
				for i, m := range all[:19] {
					time.Sleep(test.hold)
					m.leave(t.Context())
					require.NoError(t, soon(t, all[i+1].locked))
					if all[i+1].secretly() == token {
						stayed++
					}
				}
				require.NoError(t, all[19].Unlock(t.Context()))
				p.running.Wait()
				require.Equal(t, test.stays, stayed)
			})
		})
	}
}

// Nobody stood in the queue of the last lock. Of this one it cannot be asked, as it has several keys: it ends after its
// hand-overs.
func TestARelayThatIsUsedAgainKnowsNothingOfItsLastLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
		p := newProcesses(t, r, nil)
		c := p.joinWith(Config{Handovers: 3})
		stays := func(opts ...Option) (stayed int) {
			all := runners(t, c, 8, opts...)
			token := all[0].secretly()
			for i, m := range all[:8] {
				time.Sleep(500 * time.Microsecond)
				m.leave(t.Context())
				require.NoError(t, soon(t, all[i+1].locked))
				if all[i+1].secretly() == token {
					stayed++
				}
			}
			require.NoError(t, all[8].Unlock(t.Context()))
			settle()
			return stayed
		}
		for range 10 { // it need not be the same one
			require.Equal(t, 8, stays(), "nobody waits")
			require.Equal(t, 3, stays(WithKeys("l")))
		}
	})
}

// Two processes want a lock all the time, and work under it. Each has it in its turn, and a third that comes waits for
// one turn of each.
func TestAThirdProcessWaitsForATurnOfEach(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFence()}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
				var all sync.WaitGroup
				var had [2]atomic.Int64
				end := r.now() + 3*time.Second
				for i := range had {
					c, _ := another(t, r, Config{})
					for range 16 {
						all.Go(func() {
							m := c.NewMutex("k", ttl, opts...)
							for r.now() < end {
								require.NoError(t, m.Lock(t.Context()))
								time.Sleep(time.Millisecond)
								had[i].Add(1)
								require.NoError(t, m.Unlock(t.Context()))
							}
						})
					}
				}
				c, _ := another(t, r, Config{})
				m := c.NewMutex("k", ttl, opts...)
				var waited []time.Duration
				for r.now() < end-time.Second {
					time.Sleep(37 * time.Millisecond)
					since := r.now()
					require.NoError(t, m.Lock(t.Context()))
					waited = append(waited, r.now()-since)
					require.NoError(t, m.Unlock(t.Context()))
				}
				all.Wait()
				slices.Sort(waited)
				t.Log(waited[len(waited)/2], waited[len(waited)-1], had[0].Load(), had[1].Load())
				require.Less(t, waited[len(waited)/2], 2*(relayTurn+5*time.Millisecond))
				require.InEpsilon(t, had[0].Load(), had[1].Load(), 0.5)
			})
		})
	}
}

// A waiter takes the lock over at once, whatever it is asking the masters meanwhile: it needs no answer any more.
func TestALockThatIsGivenWaitsForNoAnswer(t *testing.T) {
	for slow := range 3 {
		for after := 1500 * time.Microsecond; after < 12*time.Millisecond; after += 500 * time.Microsecond {
			simulated(t, 3, Config{}, func(t *testing.T, _ *Client, r *fakeRounds) {
				c, _ := another(t, r, Config{})
				m := &runner{taken(t, c), nil, make(chan error, 1)}
				r.set(func(m *fakeMaster) { m.delay = 50 * time.Millisecond }, slow)
				next := &runner{c.NewMutex("k", ttl), make(chan error, 1), nil}
				go func() { next.locked <- next.Lock(t.Context()) }()
				time.Sleep(after)
				m.leave(t.Context())
				next.has(t)
				require.NoError(t, soon(t, m.unlocked))
				require.NoError(t, next.Unlock(t.Context()))
				r.gone(t, time.Second)
			})
		}
	}
}

// So does one that is about to ask them.
func TestALockThatIsGivenWaitsForNoQuestionThatComes(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs(), StallTime: time.Hour})
	m := c.NewMutex("k", term30)
	require.NoError(t, m.TryLock(t.Context()))
	masters.Pause(2)
	left := make(chan error, 1)
	var once sync.Once
	c.round.Mux = &askedRounds{Mux: c.round.Mux, asking: func(op *mux.Op) {
		if op.Replies != 2 { // no look
			return
		}
		op.Timeout = time.Hour // so that it ends for no other reason
		once.Do(func() {
			w := c.localQueues.Head("k") // before it is given anything: who gives locks the queue, and waits for this
			go func() { left <- m.Unlock(context.Background()) }()
			require.Eventually(t, func() bool { return w.Given() != nil }, hanging, time.Millisecond)
			time.Sleep(5 * time.Millisecond)
		})
	}}
	next := c.NewMutex("k", term30)
	locked := make(chan error, 1)
	go func() { locked <- next.Lock(t.Context()) }()
	require.Eventually(t, func() bool { return len(locked) > 0 }, hanging, time.Millisecond, "it has the lock at once")
	require.NoError(t, <-locked)
	masters.Resume(2)
	require.NoError(t, soon(t, left))
	require.NoError(t, next.Unlock(t.Context()))
}

// A lock that went from holder to holder, and that another attempt of its Mutex replaces, leaves its relay.
func TestARelayEndsWithTheLockThatIsReplaced(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, _ *fakeRounds) {
		first, m := taken(t, c), c.NewMutex("k", ttl)
		locked := make(chan error)
		go func() { locked <- m.Lock(t.Context()) }()
		synctest.Wait()
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, <-locked)
		released := hidden[bool](&m.hold, "relay", "released")
		require.False(t, *released)
		k := c.round.Take()
		k.Token = append(k.Token[:0], "of another attempt"...)
		require.True(t, c.held.Install(&m.hold, k, c.now()+2*ttl, c.now()))
		require.True(t, *released)
		m.hold.Unpin()
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
	})
}
