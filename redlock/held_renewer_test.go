package redlock

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/stretchr/testify/require"
)

// atTheNextLook has a function called when the client looks at its clock the next time,
// before it is told the time that it was then. It is set by calling what is returned.
func atTheNextLook(c *Client) (set func(f func())) {
	var next atomic.Pointer[func()]
	now := c.now
	c.now = func() time.Duration {
		at := now()
		if f := next.Swap(nil); f != nil {
			(*f)()
		}
		return at
	}
	return func(f func()) { next.Store(&f) }
}

// A renewed lock is one whose first renewal is under way, to which all masters say yes.
type renewed struct {
	*testing.T
	r        *fakeRounds
	m        *Mutex
	until    time.Duration // end of the validity before it
	held     context.Context
	stop     func()
	extended chan error    // the result of an Extend that was sent just before
	let      chan struct{} // ... which is held up until this is closed
}

// What the masters have said counts only while the lock is ours, valid and kept alive:
// that is looked at when the answers are there, and for each operation that can come in
// between.
func TestRenewalThatComesTooLateDoesNotCount(t *testing.T) {
	// suspended is until after the end of the validity, and not until the keys are gone.
	suspended := func(s *renewed) { s.r.suspend(s.until - s.r.now() + time.Millisecond) }
	for name, c := range map[string]struct {
		before   func(s *renewed) // it is sent
		answered func(s *renewed) // when the masters have answered
		looked   func(s *renewed) // when the renewer, whose lock is held, looks at the clock
		then     func(s *renewed)
	}{
		"the lock is over": {answered: suspended, then: func(s *renewed) {
			require.ErrorIs(s, context.Cause(s.held), ErrExpired)
			require.EqualValues(s, 1, s.m.client.Stats().RenewalsFailed)
		}},
		"the lock is over in this moment": {looked: suspended, then: func(s *renewed) {
			require.ErrorIs(s, context.Cause(s.held), ErrLost)
			require.Zero(s, s.m.Remaining())
		}},
		"it is unlocked in this moment": {
			looked: func(s *renewed) {
				go s.m.Unlock(context.Background())
				spin(s.T, "it has taken the token away", func() bool { return s.m.Token() == "" })
			},
			then: func(s *renewed) {
				require.ErrorIs(s, s.held.Err(), context.Canceled)
				require.Zero(s, s.m.Remaining())
				require.NoError(s, s.m.TryLock(s.Context()), "it must not be taken for one that holds the lock")
			},
		},
		// An Extend has found a majority without the key, and given it back to them. What
		// the renewal has prolonged there is about to be released, as soon as the renewer
		// lets the Extend take note of the loss.
		"it is found to be lost in this moment": {
			before: func(s *renewed) {
				s.r.set(flush, 0, 1, 2)
				go func() { s.extended <- s.m.Extend(s.Context()) }()
			},
			looked: func(s *renewed) { close(s.let) },
			then: func(s *renewed) {
				require.ErrorIs(s, conntest.Soon(s, "the Extend returns", s.extended), ErrNotHeld)
				require.ErrorIs(s, context.Cause(s.held), ErrNotHeld)
				require.Zero(s, s.m.Remaining())
				require.Zero(s, s.r.keys())
			},
		},
		"its KeepAlive is over": {
			answered: func(s *renewed) { s.stop() },
			then:     func(s *renewed) { require.Equal(s, s.until, s.m.validUntil()) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 5, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				m := taken(t, client)
				s := &renewed{T: t, r: r, m: m, until: m.validUntil(), extended: make(chan error, 1), let: make(chan struct{})}
				set := atTheNextLook(client)
				first := true
				client.round.Mux = &hookedRounds{Mux: r, waited: func(ctx context.Context, op *mux.Op) {
					switch {
					case !asks(op, kind.ExtendScript):
					case ctx == s.Context(): // the Extend
						conntest.Soon(t, "the Extend is let go on", s.let)
					case first:
						first = false
						if c.answered != nil {
							c.answered(s)
						}
						if c.looked != nil {
							set(func() { c.looked(s) })
						}
					}
				}}
				s.held, s.stop = m.KeepAlive(context.Background())
				time.Sleep(m.spec().Term.Started(s.until) + ttl/quorum.RenewAfter - r.now() - time.Millisecond/2)
				if c.before != nil {
					c.before(s)
				}
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				require.LessOrEqual(t, m.validUntil(), s.until)
				require.EqualValues(t, 1, client.Stats().Renewals)
				c.then(s)
			})
		})
	}
}

// An Unlock has taken the token away and not ended the KeepAlive yet, when the renewal is
// about to be sent: that must not set an empty token on a master that lacks the key.
func TestRenewalIsNotSentForALockThatIsNotOursAnyMore(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		set := atTheNextLook(c)
		m.KeepAlive(t.Context())
		time.Sleep(m.spec().Term.Started(m.validUntil()) + ttl/quorum.RenewAfter - r.now() - time.Millisecond)
		r.set(flush, 0)
		unlocked := make(chan error, 1)
		set(func() { // the renewer, which holds its lock
			go func() { unlocked <- m.Unlock(context.Background()) }()
			spin(t, "it has taken the token away", func() bool { return m.Token() == "" })
		})
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, conntest.Soon(t, "the Unlock returns", unlocked))
		require.Zero(t, r.keys())
		require.Zero(t, c.Stats().Renewals)
	})
}

// A loss is noted, which takes the KeepAlive away, and the lock is unlocked, while a renewal
// is about to be sent: the release comes after it all the same.
func TestNoRenewalIsSentAfterAReleaseThoughALossIsNotedMeanwhile(t *testing.T) {
	t.Parallel()
	c, r := newFake(t, 3, Config{RoundTimeout: hanging}) // a machine that is busy is no failure
	m := c.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	released := make(chan struct{})
	both := make(chan struct{}, 2)
	overtaken := make(chan bool, 1) // the renewal that is about to be sent, by the release
	first := true
	c.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) {
		switch {
		case asks(op, kind.ReleaseScript):
			close(released)
		case first: // the renewer's lock is held
			first = false
			k := c.round.Take()
			k.Token = append(k.Token[:0], m.secretly()...)
			go func() {
				c.held.Lose(&m.hold, k.Token, asHeld(unasked(opExtend, "k", ErrNotHeld, "")))
				both <- struct{}{}
			}()
			runs := func(what func() bool) { // it does what it can
				for limit := time.Now().Add(50 * time.Millisecond); !what() && time.Now().Before(limit); {
					runtime.Gosched()
				}
			}
			runs(func() bool { return ofHold[*held.KeepAlive](m, "keepAlives") == nil })
			go func() {
				m.Unlock(context.Background())
				both <- struct{}{}
			}()
			gone := false
			runs(func() bool {
				select {
				case <-released:
					gone = true
				default:
				}
				return gone
			})
			overtaken <- gone
		}
	}}
	_, stop := m.KeepAlive(t.Context())
	defer stop()
	for range 2 {
		conntest.Soon(t, "it is found lost, and unlocked", both)
	}
	require.False(t, conntest.Soon(t, "the renewal is sent", overtaken), "the release comes before it")
	require.Eventually(t, func() bool { return r.keys() == 0 }, hanging, 5*time.Millisecond)
	require.EqualValues(t, 1, c.Stats().Renewals)
	requireReleasedForGood(t, r)
}

// The renewer stands still after it has looked which locks are due, until this one is over.
func TestRenewalOfALockThatIsOverIsNotSent(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		set := atTheNextLook(c)
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		time.Sleep(m.spec().Term.Started(m.validUntil()) + ttl/quorum.RenewAfter - r.now() - time.Millisecond)
		set(func() { r.suspend(2 * ttl) })
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, c.Stats().Renewals)
		require.Zero(t, r.keys())
		require.ErrorIs(t, context.Cause(held), ErrLost)
	})
}

// It stands still after its last look, until the lock is over, or its keys are gone, too:
// what it gives a TTL then, or sets again, is released.
func TestLateRenewalLeavesNoKey(t *testing.T) {
	for name, beyond := range map[string]time.Duration{"the lock is over": time.Millisecond, "the keys are gone": ttl} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				var once sync.Once
				until := m.validUntil()
				c.round.Mux = &hookedRounds{Mux: r, posting: func(*mux.Op) {
					once.Do(func() { r.suspend(until - r.now() + beyond) })
				}}
				held, stop := m.KeepAlive(t.Context())
				defer stop()
				conntest.Soon(t, "the loss is noticed", held.Done())
				require.ErrorIs(t, context.Cause(held), ErrLost)
				time.Sleep(10 * time.Millisecond)
				require.EqualValues(t, 1, c.Stats().Renewals)
				require.Zero(t, r.keys())
				require.Contains(t, r.logs(0)[len(r.logs(0))-1], "release")
			})
		})
	}
}

// What comes too late to a majority that does not answer any more is released all the same:
// by a renewal, and by an Extend.
func TestLateExtensionWithoutAnAnswerLeavesNoKey(t *testing.T) {
	for name, renews := range map[string]bool{"renewal": true, "Extend": false} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				until := m.validUntil()
				var once sync.Once
				c.round.Mux = &hookedRounds{Mux: r, posting: func(*mux.Op) {
					once.Do(func() {
						r.suspend(until - r.now() + ttl)
						r.set(freeze, 0, 1)
					})
				}}
				if renews {
					held, stop := m.KeepAlive(t.Context())
					defer stop()
					conntest.Soon(t, "the loss is noticed", held.Done())
					time.Sleep(200 * time.Millisecond) // the round has timed out
				} else {
					require.ErrorIs(t, m.Extend(t.Context()), ErrNoQuorum)
				}
				r.set(thaw, 0, 1)
				r.gone(t, 100*time.Millisecond, "of a lock that is over")
			})
		})
	}
}

// A round that finds a lock over gives that lock back, and not the next one, which another has taken
// with the same Mutex meanwhile.
func TestGivingBackSparesTheNextLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		token := m.Token()
		c.held.GiveBack(&m.hold, []byte("the former"), nil)
		time.Sleep(10 * time.Millisecond)
		require.Equal(t, token, m.Token())
		require.Equal(t, 3, r.holders("k", token))
		require.NoError(t, held.Err())
	})
}
