package redlock

import (
	"context"
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

// extensionsOf are what can be under way when a lock is unlocked. Each returns when it is over.
var extensionsOf = map[string]func(m *Mutex, c *Client){
	"a renewal": func(m *Mutex, _ *Client) {
		held, stop := m.KeepAlive(context.Background())
		defer stop()
		<-held.Done()
	},
	"Extend":    func(m *Mutex, _ *Client) { m.Extend(context.Background()) },
	"a recheck": func(m *Mutex, c *Client) { c.held.Recheck(&m.hold) },
}

// underExtension returns a runner that has a lock. An extension of it has done its work on the masters that answer, and its
// caller has not judged it yet. over returns when it has.
func underExtension(t *testing.T, c *Client, r *fakeRounds, extend func(m *Mutex, c *Client), harm func()) (m *runner, over func()) {
	judged, ended := make(chan struct{}), make(chan struct{})
	posted := make(chan struct{})
	var once sync.Once
	var first *mux.Op
	m = &runner{taken(t, c), nil, make(chan error, 1)}
	harm()
	c.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) {
		once.Do(func() {
			first = op
			close(posted)
		})
	}, waited: func(_ context.Context, op *mux.Op) {
		if op == first {
			<-judged
		}
	}}
	go func() {
		defer close(ended)
		extend(m.Mutex, c)
	}()
	<-posted
	time.Sleep(2 * time.Millisecond) // until the masters have answered
	return m, sync.OnceFunc(func() {
		close(judged)
		conntest.Soon(t, "it is over", ended)
	})
}

// An extension sets the lock nowhere again, so a release that follows it finds the loss, though the extension is not
// judged yet.
func TestAnUnlockKnowsOfALossThatIsNotJudgedYet(t *testing.T) {
	for name, extend := range extensionsOf {
		for how, unlock := range map[string]func(m *Mutex) error{
			"Unlock": func(m *Mutex) error { return m.Unlock(context.Background()) },
			"Release": func(m *Mutex) error {
				m.Release()
				time.Sleep(2 * time.Millisecond)
				if m.client.Stats().ReleaseFailed == 0 {
					return nil
				}
				return ErrNotHeld
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
					m, over := underExtension(t, c, r, extend, func() { r.set(flush, 0, 1) })
					defer over()
					require.Equal(t, 1, r.holders("k", m.secretly()), "it is set nowhere again")
					require.ErrorIs(t, unlock(m.Mutex), ErrNotHeld)
					require.Zero(t, c.Stats().Released)
					r.gone(t, time.Millisecond)
				})
			})
		}
	}
}

// mayBeLost has one of three masters have lost a lock, and another be silent: what that has decides.
func mayBeLost(r *fakeRounds, lost bool) func() {
	return func() {
		r.set(freeze, 2)
		r.set(flush, 1)
		if lost {
			r.set(flush, 2)
		}
	}
}

// While an extension waits for the master that says whether the lock was lost, so does an Unlock.
func TestAnUnlockSaysWhatAnExtensionWillFind(t *testing.T) {
	for name, extend := range extensionsOf {
		for _, lost := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
					m, over := underExtension(t, c, r, extend, mayBeLost(r, lost))
					defer over()
					defer r.set(thaw, 2)
					m.leave(t.Context())
					time.Sleep(2 * time.Millisecond)
					require.Zero(t, r.holders("k", m.secretly()))
					require.Empty(t, m.unlocked, "one has confirmed it, and one had lost it")
					r.set(thaw, 2)
					err := soon(t, m.unlocked)
					if lost {
						require.ErrorIs(t, err, ErrNotHeld)
					} else {
						require.NoError(t, err)
					}
					over()
					r.gone(t, 2*time.Millisecond)
				})
			})
		}
	}
}

// Nobody waits for a Release. It is counted, and reported, likewise.
func TestAReleaseSaysWhatAnExtensionWillFind(t *testing.T) {
	for _, lost := range []bool{true, false} {
		told := make(chan error, 1)
		observer := onEvent(EventRound, func(r *Event) {
			if r.Op == opUnlock {
				told <- r.Err
			}
		})
		simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
			told = make(chan error, 1)
			m, over := underExtension(t, c, r, extensionsOf["Extend"], mayBeLost(r, lost))
			defer over()
			defer r.set(thaw, 2)
			require.NoError(t, m.Release())
			time.Sleep(2 * time.Millisecond)
			require.Empty(t, told)
			r.set(thaw, 2)
			err := soon(t, told)
			if lost {
				require.ErrorIs(t, err, ErrNotHeld)
				require.EqualValues(t, 1, c.Stats().ReleaseFailed)
			} else {
				require.NoError(t, err)
				require.EqualValues(t, 1, c.Stats().Released)
			}
		})
	}
}

// The context of an Unlock bounds the wait while an extension is under way, too. The Mutex can be used at once.
func TestTheContextEndsAnUnlockBesideAnExtension(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m, over := underExtension(t, c, r, extensionsOf["Extend"], func() {
			r.set(freeze, 2)
			r.set(flush, 1, 2)
		})
		defer over()
		defer r.set(thaw, 2)
		ctx, cancel := context.WithCancelCause(t.Context())
		m.leave(ctx)
		time.Sleep(2 * time.Millisecond)
		require.Empty(t, m.unlocked)
		cancel(errCause)
		err := soon(t, m.unlocked)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errCause)
		require.EqualValues(t, 1, c.Stats().ReleaseFailed)
		require.NoError(t, m.TryLock(t.Context()))
		r.set(thaw, 2)
		over()
		require.NoError(t, m.Unlock(t.Context()), "what the extension has found is not about this lock")
		r.gone(t, 2*time.Millisecond)
	})
}

// An Observer that is told of one renewal may unlock a lock whose renewal was sent in the same burst, and is judged
// after it.
func TestAnObserverMayUnlockWhatIsRenewedInTheSameBurst(t *testing.T) {
	var renewed func()
	var once sync.Once
	observer := onEvent(EventRound, func(r *Event) {
		if r.Op == opRenew {
			once.Do(func() { renewed() })
		}
	})
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		var all [2]*Mutex
		for i, key := range []string{"a", "b"} {
			all[i] = c.NewMutex(key, ttl)
			require.NoError(t, all[i].TryLock(t.Context()))
		}
		time.Sleep(2 * time.Millisecond) // until the stragglers are there, too
		results := make(chan error, 2)
		renewed = func() {
			for _, m := range all {
				results <- m.Unlock(context.Background())
			}
		}
		for _, m := range all {
			m.KeepAlive(t.Context())
		}
		r.set(flush, 0, 1)
		require.ErrorIs(t, soon(t, results), ErrNotHeld)
		require.ErrorIs(t, soon(t, results), ErrNotHeld)
		synctest.Wait()
	})
}

// A holder may leave a relay in the moment in which a round of it has found the loss.
func TestALossThatARelayFindsIsToldToWhoIsLeavingIt(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		judges, undoes := make(chan struct{}), make(chan struct{})
		var armed atomic.Bool
		var first atomic.Pointer[mux.Op]
		c.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) {
			if armed.Load() {
				first.CompareAndSwap(nil, op)
			}
		}, waited: func(_ context.Context, op *mux.Op) {
			if op == first.Load() {
				<-judges
			}
		}, sending: func(op *mux.Op) {
			if armed.Load() && asks(op, kind.ReleaseScript) {
				<-undoes
			}
		}}
		all := runners(t, c, 1)
		armed.Store(true)
		time.Sleep(ttl / 3) // so that the round extends
		r.set(flush, 0, 1)
		all[0].leave(t.Context())
		all[1].has(t)
		slow := all[1].leavesSlowly(t)
		close(judges)
		require.ErrorIs(t, soon(t, all[0].unlocked), ErrNotHeld)
		synctest.Wait()
		r.set(freeze, 0, 1) // nor do the masters say it again
		close(slow.goesOn)
		synctest.Wait()
		close(undoes)
		require.ErrorIs(t, soon(t, all[1].unlocked), ErrNotHeld)
		r.gone(t, 2*time.Millisecond)
	})
}

// Whoever has stopped a KeepAlive may pass the lock on, by its token. A round that was under way then comes too late here, and
// takes nothing from whoever has the lock now.
func TestALateRoundLeavesALockThatWasPassedOn(t *testing.T) {
	for name, extend := range map[string]func(m *Mutex, c *Client){
		"a renewal": func(m *Mutex, _ *Client) {
			_, stop := m.KeepAlive(context.Background())
			time.Sleep(ttl/3 + time.Millisecond)
			stop()
		},
		"a recheck": func(m *Mutex, c *Client) {
			time.Sleep(ttl / 3)
			c.held.Recheck(&m.hold)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m, over := underExtension(t, c, r, extend, func() {})
				defer over()
				other, _ := another(t, r, Config{})
				next := other.NewMutex("k", ttl, WithToken(m.Token()))
				require.NoError(t, next.Extend(t.Context()))
				time.Sleep(2 * time.Millisecond) // until all have answered
				r.suspend(m.validUntil() - r.now() + time.Millisecond)
				over()
				time.Sleep(2 * time.Millisecond)
				require.Zero(t, m.Remaining())
				require.Positive(t, next.Remaining())
				require.Equal(t, 3, r.holders("k", next.Token()))
			})
		})
	}
}

// The last round of a relay repairs the lock while its holder is leaving. The release that follows does not believe the
// master that was repaired: another can have had the lock before the repair was carried out.
func TestAReleaseBehindARelayBelievesNoSuspect(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		_, apart := r.apart(t, Config{})
		others, _ := another(t, apart, Config{})
		all := runners(t, c, 1)
		time.Sleep(ttl / 3) // so that the round extends
		r.set(flush, 2)
		all[0].leave(t.Context())
		all[1].has(t)
		slow := all[1].leavesSlowly(t)
		time.Sleep(1500 * time.Microsecond)
		require.NoError(t, soon(t, all[0].unlocked))
		r.set(freeze, 2) // it has the repair before it
		r.set(flush, 0)
		other := others.NewMutex("k", ttl)
		require.NoError(t, other.TryLock(t.Context()))
		require.NoError(t, other.Unlock(t.Context()))
		time.Sleep(2 * time.Millisecond)
		close(slow.goesOn)
		synctest.Wait()
		r.set(thaw, 2)
		require.ErrorIs(t, soon(t, all[1].unlocked), ErrNoQuorum)
	})
}

// An Extend may be judged when its Mutex has another lock. That one's loss was told to nobody.
func TestALossIsToldThoughThatOfTheLockBeforeWas(t *testing.T) {
	var told []int
	observer := onEvent(EventRound, func(e *Event) {
		if e.Op == opUnlock {
			told = append(told, e.more.Failures)
		}
	})
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		judges := make(chan struct{})
		var armed atomic.Bool
		c.round.Mux = &hookedRounds{Mux: r, waited: func(context.Context, *mux.Op) {
			if armed.Swap(false) {
				<-judges
			}
		}}
		m := taken(t, c)
		armed.Store(true)
		extended := make(chan error, 1)
		go func() { extended <- m.Extend(t.Context()) }()
		synctest.Wait()
		time.Sleep(2 * time.Millisecond) // it has its answers
		require.False(t, armed.Load())
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, m.TryLock(t.Context()))
		close(judges)
		require.ErrorIs(t, soon(t, extended), ErrNotHeld)
		time.Sleep(2 * time.Millisecond)
		r.set(flush, 0, 1, 2)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		require.Equal(t, []int{0, 0}, told)
	})
}

// slowToEnd is the parent of a context. Once it is armed, it holds up whoever ends that.
type slowToEnd struct {
	context.Context
	armed  atomic.Bool
	goesOn chan struct{}
}

func (s *slowToEnd) Value(key any) any {
	if s.armed.Load() {
		<-s.goesOn
	}
	return s.Context.Value(key)
}

// leavesSlowly has a runner leave: the token is out of the hold, and the lock is not released yet.
func (r *runner) leavesSlowly(t *testing.T) *slowToEnd {
	slow := &slowToEnd{Context: t.Context(), goesOn: make(chan struct{})}
	r.KeepAlive(slow)
	slow.armed.Store(true)
	r.leave(t.Context())
	return slow
}
