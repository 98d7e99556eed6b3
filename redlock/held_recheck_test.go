package redlock

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/stretchr/testify/require"
)

// A recheck, of which one round hangs, must not take locks for lost that were renewed
// while it waited.
func TestRecheckSparesWhatOthersRenew(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true // as if one were a group's
		var kept []context.Context
		for i := range 10 {
			m := Within(c.NewMutex("k"+strconv.Itoa(i), 6*time.Second), time.Second)
			require.NoError(t, m.TryLock(t.Context()))
			k, stop := m.KeepAlive(t.Context())
			defer stop()
			kept = append(kept, k)
		}
		slow := Within(c.NewMutex("slow", 60*time.Second), 4*time.Second)
		require.NoError(t, slow.TryLock(t.Context()))
		time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
		r.set(func(m *fakeMaster) { m.keys["slow"] = fakeKey{"foreign", r.clock() + time.Hour} }, 0)
		r.set(freeze, 2)
		switches(c, 0)
		r.set(thaw, 2)
		for _, k := range kept {
			require.NoError(t, context.Cause(k))
		}
		require.Zero(t, slow.Remaining(), "one of three has it")
	})
}

// A lock that was handed over is asked for again, too.
func TestRecheckKnowsLocksThatWereHandedOver(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true // as if one were a group's
		m := taken(t, c)
		h := c.NewMutex("k", ttl, WithToken(m.Token()))
		require.NoError(t, h.Extend(t.Context()))
		time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
		r.set(flush, 0, 1)
		switches(c, 0)
		require.Zero(t, h.Remaining())
	})
}

// Whoever has read Remaining may rely on it without looking again. So a lock that is lost because of a switch keeps the
// others out until then, or until its holder lets go.
func TestALockThatASwitchHasLostKeepsTheOthersOut(t *testing.T) {
	for _, unlocked := range []bool{false, true} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			c.groups = true // as if one were a group's
			m := taken(t, c)
			time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
			r.set(flush, 0)
			r.set(freeze, 0, 1)
			until := Until(m)
			switches(c, 0)
			require.Zero(t, m.Remaining())
			r.set(thaw, 0, 1)
			time.Sleep(2 * time.Millisecond)
			if unlocked {
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
				r.gone(t, 2*time.Millisecond)
				return
			}
			for time.Until(until) > 0 {
				require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrHeld)
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// A renewal that is under way when a switch loses the lock does not know why others must be kept out, and neither does an
// Extend.
func TestALateRoundDoesNotReleaseWhatASwitchHasLost(t *testing.T) {
	for name, extend := range extensionsOf {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				c.groups = true // as if one were a group's
				m, over := underExtension(t, c, r, extend, func() {})
				until := Until(m.Mutex)
				r.set(flush, 0)
				r.set(freeze, 0, 1)
				switches(c, 0)
				require.Zero(t, m.Remaining())
				r.set(thaw, 0, 1)
				over()
				time.Sleep(2 * time.Millisecond)
				require.Positive(t, time.Until(until))
				require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrHeld)
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
				r.gone(t, 2*time.Millisecond)
			})
		})
	}
}

// Who has just taken a lock, and is to ask again whether it has it, may find the lock of another goroutine, which has unlocked
// the Mutex and locked it again. That one may rely on what it has read of Remaining: its lock stays on the masters.
func TestALockThatAnotherGoroutineHasTakenStaysThoughTheQuestionFails(t *testing.T) {
	for _, theirs := range []bool{true, false} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := c.NewMutex("k", ttl)
			other, _ := another(t, r, Config{})
			for range 2 {
				require.NoError(t, m.TryLock(t.Context()))
				mine := m.secretly()
				if theirs {
					require.NoError(t, m.Unlock(t.Context()))
					require.NoError(t, m.TryLock(t.Context()))
				}
				time.Sleep(2 * time.Millisecond)
				r.set(fail, 0, 1)
				require.False(t, c.held.Survives(t.Context(), &m.hold, []byte(mine), c.held.Switches()+1))
				r.set(func(m *fakeMaster) { m.down = nil }, 0, 1)
				time.Sleep(2 * time.Millisecond)
				next := other.NewMutex("k", ttl)
				require.Equal(t, theirs, errors.Is(next.TryLock(t.Context()), ErrHeld))
				next.Unlock(t.Context())
				time.Sleep(2 * ttl)
				m.Unlock(t.Context())
			}
		})
	}
}

// Several goroutines can use one Mutex. While one rechecks the lock that it has just taken, and finds it lost, another can
// take the next lock. That is not the first one's, which neither relies on it nor ends it.
func TestARecheckedLockIsNotAnothers(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true // as if one were a group's
		m := c.NewMutex("k", ttl)
		var once sync.Once
		another := quorum.ErrUndecided
		c.events.hook(EventRound, func(round *Event) {
			if round.Op == opRecheck {
				once.Do(func() {
					m.Unlock(context.Background())
					another = m.TryLock(context.Background())
				})
			}
		})
		c.round.Mux = &forgetfulRounds{Mux: r, c: c, forget: func() {
			time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
			r.set(flush, 0, 1)
		}}
		require.ErrorIs(t, m.TryLock(t.Context()), ErrNoQuorum)
		require.NoError(t, another)
		time.Sleep(2 * time.Millisecond)
		require.Positive(t, m.Remaining())
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// forgetfulRounds has a group switch just after the first round, and the masters forget what it has set.
type forgetfulRounds struct {
	round.Mux
	c      *Client
	forget func()
}

func (f *forgetfulRounds) Do(ctx context.Context, op *mux.Op) error {
	err := f.Mux.Do(ctx, op)
	if f.forget != nil {
		switches(f.c, 0) // too early to see the lock
		f.forget()
		f.forget = nil
	}
	return err
}

// A lock that a switch has put in doubt, and that is over before the masters could be
// asked again, is released.
func TestStaleSuccessIsReleased(t *testing.T) {
	simulated(t, 3, Config{DriftFactor: 0.5}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		c.round.Mux = &switchingRounds{r, c}
		now, looks := c.now, 0
		c.now = func() time.Duration {
			if looks++; looks == 2 { // before the recheck
				time.Sleep(ttl / 2)
			}
			return now()
		}
		require.ErrorIs(t, Within(c.NewMutex("k", ttl), time.Minute).TryLock(t.Context()), ErrNoQuorum)
		r.gone(t, 10*time.Millisecond)
	})
}

// switchingRounds has a group switch just after each round.
type switchingRounds struct {
	*fakeRounds
	c *Client
}

func (s *switchingRounds) Do(ctx context.Context, op *mux.Op) error {
	defer func() {
		switches(s.c, 0) // too early to see the lock
	}()
	return s.fakeRounds.Do(ctx, op)
}

// A recheck whose answers were looked at too late does not revive what has been seen to
// be over.
func TestRecheckRevivesNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		m := taken(t, c)
		time.Sleep(m.Remaining() - 5*time.Millisecond)
		c.round.Mux = r.late(50 * time.Millisecond)
		switches(c, 0)
		require.Zero(t, m.Remaining())
	})
}

// When a server fails, others may be slow for a moment: a recheck that was not decided in time
// is repeated, and only once.
func TestRecheckIsRepeatedOnce(t *testing.T) {
	const timeout = 100 * time.Millisecond
	for name, c := range map[string]struct {
		slow time.Duration
		kept bool
	}{"slow for a moment": {timeout * 3 / 2, true}, "slow for longer": {timeout * 5 / 2, false}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{RoundTimeout: timeout}, func(t *testing.T, client *Client, r *fakeRounds) {
				m := taken(t, client)
				r.set(func(f *fakeMaster) { f.frozen = true }, 0, 1)
				thaw := time.AfterFunc(c.slow, func() { r.set(func(f *fakeMaster) { f.frozen = false }, 0, 1) })
				defer thaw.Stop()
				require.Equal(t, c.kept, client.held.Survives(t.Context(), &m.hold, []byte(m.secretly()), client.held.Switches()+1))
				time.Sleep(timeout)
			})
		})
	}
}

// Close ends a recheck. It says nothing of the lock: none is lost by that, and none that was just taken is relied on.
func TestRecheckThatCloseEndsLosesNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(func(f *fakeMaster) { f.frozen = true }, 0, 1, 2)
		r.Drain()
		for range 2 {
			c.held.Recheck(&m.hold)
			require.False(t, c.held.Survives(t.Context(), &m.hold, []byte(m.secretly()), c.held.Switches()+1))
			require.Positive(t, m.Remaining())
			require.Zero(t, c.Stats().Lost)
		}
	})
}

// Close waits for who has just taken a lock, and is to ask again whether it has it: what is not relied on is released.
func TestCloseWaitsForTheReleaseOfWhatIsAskedAgain(t *testing.T) {
	slow := func(r *fakeRounds) { r.set(func(m *fakeMaster) { m.back = 50 * time.Millisecond }, all(3)...) }
	for name, prepare := range map[string]func(t *testing.T, c *Client, r *fakeRounds) (lock func() error){
		"an attempt": func(t *testing.T, c *Client, r *fakeRounds) func() error {
			c.round.Mux = &forgetfulRounds{Mux: c.round.Mux, c: c, forget: func() { slow(r) }}
			return func() error { return c.NewMutex("k", term30).TryLock(t.Context()) }
		},
		"a waiter that was given the lock": func(t *testing.T, c *Client, r *fakeRounds) func() error {
			c.events.hook(behind.Wake, func(e *Event) {
				if e.more.Why == wakeReleased {
					slow(r)
					switches(c, 0)
				}
			})
			first, next := runner{taken(t, c), nil, make(chan error, 1)}, waitsFor(t, c, t.Context()) // in no queue of the masters
			first.leave(t.Context())
			return func() error { return <-next.locked }
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				c.groups = true
				ended := make(chan error, 1)
				state := func() (drained, closed bool) {
					r.mu.Lock()
					defer r.mu.Unlock()
					return r.drained, r.closed
				}
				c.round.Mux = &hookedRounds{Mux: r, waited: func(context.Context, *mux.Op) {
					drained, closed := state()
					for n := 0; drained && !closed && n < 100000; n++ { // Close, which may wait for a mutex, goes first
						runtime.Gosched()
						_, closed = state()
					}
				}}
				lock := prepare(t, c, r)
				go func() { ended <- lock() }()
				time.Sleep(20 * time.Millisecond)
				require.Empty(t, ended, "it asks again")
				require.NoError(t, c.Close())
				require.ErrorIs(t, <-ended, ErrClosed)
				r.gone(t, 100*time.Millisecond)
			})
		})
	}
}

// Every lock that is held is rechecked, however many there are. What was unlocked, or has run
// out, is not kept in mind.
func TestRecheckKnowsTheLocksThatAreHeld(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		take := func(name string, n int) (all []*Mutex) {
			for i := range n {
				all = append(all, c.NewMutex(name+strconv.Itoa(i), ttl))
				require.NoError(t, all[i].TryLock(t.Context()))
			}
			return all
		}
		all := take("held", 3*minSweep)
		require.Len(t, recheckedHolds(c), len(all))
		for _, m := range all[1:] {
			require.NoError(t, m.Unlock(t.Context()))
		}
		require.Equal(t, []*held.Lock{&all[0].hold}, recheckedHolds(c))
		time.Sleep(ttl) // it has run out
		take("more", 8*minSweep)
		require.NotContains(t, recheckedHolds(c), &all[0].hold)
	})
}

// A switch that comes while a recheck is under way is followed by another: the first may have
// asked too early.
func TestASwitchDuringARecheckIsRecheckedToo(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		m := taken(t, c)
		rechecks := 0
		c.events.hook(EventRound, func(round *Event) {
			if round.Op == opRecheck {
				rechecks++
			}
		})
		first := true
		c.round.Mux = &hookedRounds{Mux: r, waited: func(_ context.Context, op *mux.Op) {
			if first && asks(op, kind.ExtendScript) {
				first = false
				for i := range 3 {
					c.held.Switched(i)
				}
			}
		}}
		switches(c, 0)
		require.Equal(t, 2, rechecks, "one for the first, and one for the three that came meanwhile")
		require.Positive(t, m.Remaining())
	})
}

// A recheck is repeated if it was not decided in time. But one that has found the lock lost has set it again, and the
// second one would find it there.
func TestARecheckThatHasFoundALossIsNotRepeated(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(flush, 0, 1)
		r.set(freeze, 2)
		began := time.Now()
		c.held.Recheck(&m.hold)
		require.Less(t, time.Since(began), 3*m.spec().Timeout/2, "its holder need not wait for another round")
		require.Zero(t, m.Remaining())
		r.set(thaw, 2)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		r.gone(t, 2*time.Millisecond)
	})
}

// An attempt asks the masters again after a switch, for as long as its context lasts. What it does not rely on is released.
func TestACallEndsWithItsContextThoughAGroupHasSwitched(t *testing.T) {
	const limit = 20 * time.Millisecond
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		for range 2 {
			c.round.Mux = &forgetfulRounds{Mux: r, c: c, forget: func() { r.set(freeze, 0, 1) }}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			began := r.now()
			err := c.NewMutex("k", ttl).TryLock(ctx)
			took := r.now() - began
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, ErrNoQuorum, "it was not decided")
			require.LessOrEqual(t, took, limit)
			c.round.Mux = r
			r.set(thaw, 0, 1)
			r.gone(t, 2*ttl)
		}
	})
}
