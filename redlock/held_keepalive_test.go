package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeepAliveRenewsEveryThirdOfTheTTL(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		held, stop := m.KeepAlive(t.Context())
		for range 100 {
			time.Sleep(ttl)
			require.NoError(t, held.Err())
			require.Greater(t, m.Remaining(), ttl/2)
			require.Equal(t, 5, r.holders("k", m.Token()))
		}
		require.InDelta(t, 300, float64(c.Stats().Renewals), 20)
		require.Zero(t, c.Stats().RenewalsFailed)
		require.Equal(t, 1, c.Stats().Kept)
		stop()
		require.ErrorIs(t, held.Err(), context.Canceled)
		require.Equal(t, context.Canceled, context.Cause(held))
		require.Zero(t, c.Stats().Kept)
		require.Positive(t, m.Remaining(), "stop does not unlock")
		time.Sleep(ttl)
		require.Zero(t, m.Remaining())
		require.Zero(t, r.keys(), "nobody renews it any more")
	})
}

// A lock that is kept alive several times is held for each of them, whichever stops first.
func TestEveryKeepAliveOfALockLearnsThatItIsRenewed(t *testing.T) {
	for first := range 3 {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			for range 2 { // the second time round, too
				var held []context.Context
				var stops []func()
				for range 3 {
					k, stop := m.KeepAlive(t.Context())
					held, stops = append(held, k), append(stops, stop)
				}
				failed := c.Stats().RenewalsFailed
				goOn := func() {
					for range 10 {
						time.Sleep(ttl / 2)
						for _, k := range held {
							require.NoError(t, k.Err())
						}
					}
					require.Equal(t, failed, c.Stats().RenewalsFailed)
				}
				goOn()
				stops[first]()
				held, stops = slices.Delete(held, first, first+1), slices.Delete(stops, first, first+1)
				goOn()
				r.set(flush, all(3)...)
				time.Sleep(ttl)
				for _, k := range held {
					require.ErrorIs(t, context.Cause(k), ErrLost)
				}
				for _, stop := range stops {
					stop()
				}
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
				require.NoError(t, m.TryLock(t.Context()))
			}
		})
	}
}

func TestKeepAliveSurvivesWhatEndsInTime(t *testing.T) {
	for name, change := range map[string]func(m *fakeMaster){"hang": freeze, "down": fail} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				held, stop := m.KeepAlive(t.Context())
				defer stop()
				for range 10 {
					time.Sleep(ttl / 2)
					r.set(change, 0, 1)
					time.Sleep(ttl / 3)
					r.set(func(m *fakeMaster) { m.frozen, m.down = false, nil }, 0, 1)
					time.Sleep(ttl / 2)
					require.NoError(t, context.Cause(held))
				}
			})
		})
	}
}

// The masters that have lost the key are counted even if others fail, so that no mixture of the two hides a loss.
func TestKeepAliveEndsAtOnceWhenTheLockIsGone(t *testing.T) {
	for _, down := range [][]int{nil, {4}} {
		simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			held, _ := m.KeepAlive(t.Context())
			r.set(fail, down...)
			r.set(flush, 0, 1, 2)
			after, why := lostBy(t, r, held)
			require.LessOrEqual(t, after, ttl/3+2*time.Millisecond, "the next renewal must find out")
			require.ErrorIs(t, why, ErrNotHeld)
			require.Zero(t, m.Remaining())
			r.set(func(m *fakeMaster) { m.down = nil }, down...)
			r.gone(t, 10*time.Millisecond, "what the renewal has set again is released")
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
			require.NoError(t, m.TryLock(t.Context()), "the client stays usable")
		})
	}
}

func TestKeepAliveGivesTheKeyBackToAMinority(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		for i := range 10 {
			r.set(restart, i%5, (i+1)%5)
			time.Sleep(ttl / 2)
			require.NoError(t, context.Cause(held))
			require.Equal(t, 5, r.holders("k", m.Token()))
		}
	})
}

func TestMaxLifetimeEndsTheContext(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMaxLifetime(10*time.Second))
		since := r.now()
		_, stop := m.KeepAlive(t.Context())
		time.Sleep(4 * time.Second)
		stop() // the next one goes on from there
		held, _ := m.KeepAlive(t.Context())
		conntest.Soon(t, "the context ends", held.Done())
		require.InDelta(t, 10, (r.now() - since).Seconds(), 0.02)
		var why *RoundError
		require.ErrorAs(t, context.Cause(held), &why)
		require.Equal(t, "k", why.Key)
		require.ErrorIs(t, why, ErrMaxLifetime)
		require.NotErrorIs(t, why, ErrLost, "it is held still")
		require.Zero(t, c.Stats().Lost)
		require.NoError(t, m.Unlock(t.Context()), "it was held all the time")
	})
}

// A lock that is lost before its maximum lifetime has passed is lost, too.
func TestExtendThatFindsALossEndsTheContext(t *testing.T) {
	for _, opts := range [][]Option{nil, {WithMaxLifetime(time.Second)}} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c, opts...)
			held, _ := m.KeepAlive(t.Context())
			time.Sleep(time.Second / 2)
			r.set(flush, 0, 1, 2)
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.ErrorIs(t, context.Cause(held), ErrLost)
			require.ErrorIs(t, context.Cause(held), ErrNotHeld)
			require.Zero(t, c.Stats().Kept)
		})
	}
}

func TestKeepAliveOfWhatIsNotHeldIsDone(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		held, stop := c.NewMutex("k", ttl).KeepAlive(t.Context())
		_, why := lostBy(t, r, held)
		require.ErrorIs(t, why, ErrNotHeld)
		stop()
		m := taken(t, c)
		time.Sleep(ttl)
		held, _ = m.KeepAlive(t.Context())
		require.ErrorIs(t, context.Cause(held), ErrNotHeld)
		held, _ = c.NewMutex("k", ttl, WithToken("x")).KeepAlive(t.Context())
		require.ErrorIs(t, context.Cause(held), ErrNotHeld, "its validity is unknown")
		require.Zero(t, c.Stats().Kept)
	})
}

// Contexts that are derived from it end with it.
func TestKeepAliveEndsWithItsParent(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		parent, cancel := context.WithCancelCause(t.Context())
		m := taken(t, c)
		held, _ := m.KeepAlive(parent)
		child, cancelChild := context.WithTimeout(held, time.Hour)
		defer cancelChild()
		cancel(errCause)
		conntest.Soon(t, "the context ends", child.Done())
		require.Equal(t, errCause, context.Cause(held))
		require.Equal(t, errCause, context.Cause(child))
		time.Sleep(ttl)
		require.Zero(t, c.Stats().Kept)
		require.Zero(t, c.Stats().Renewals)
		require.Zero(t, c.Stats().Lost)
		require.Zero(t, r.keys())

		held, _ = taken(t, c).KeepAlive(context.WithValue(t.Context(), errCause, 42))
		child, cancelChild = context.WithTimeout(held, time.Hour)
		defer cancelChild()
		require.Equal(t, 42, child.Value(errCause))
		r.set(fail, 0, 1)
		conntest.Soon(t, "the context ends", child.Done())
		require.ErrorIs(t, context.Cause(child), ErrLost)
	})
}

// A suspended machine's timers stand still, while the keys go on expiring.
func TestLookingAtTheContextDoesNotNeedTheTimer(t *testing.T) {
	for name, look := range map[string]func(ctx context.Context) bool{
		"Err":   func(ctx context.Context) bool { return ctx.Err() != nil },
		"Cause": func(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrLost) },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				held, _ := m.KeepAlive(t.Context())
				require.False(t, look(held))
				r.suspend(time.Minute)
				require.True(t, look(held))
				require.Zero(t, m.Remaining())
				require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
				require.ErrorIs(t, context.Cause(held), ErrLost)
				time.Sleep(time.Hour)
				require.EqualValues(t, 1, c.Stats().Lost)
			})
		})
	}
}

// Who waits for the end, and does not look, learns of a suspend within a second, however long the TTL is: of the first lock of a client,
// and of one that came when others were there.
func TestWhoWaitsForTheEndLearnsOfASuspend(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for range 2 {
			var all []<-chan struct{}
			for _, key := range []string{"a", "b"} {
				m := c.NewMutex(key, time.Hour)
				require.NoError(t, m.TryLock(t.Context()))
				held, _ := m.KeepAlive(t.Context())
				all = append(all, held.Done())
			}
			time.Sleep(10 * time.Minute)
			r.suspend(time.Hour)
			time.Sleep(time.Second)
			synctest.Wait()
			for _, over := range all {
				select {
				case <-over:
				default:
					require.Fail(t, "the lock is over, and its context is not")
				}
			}
		}
	})
}

func TestExtendMovesTheContextsDeadline(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		held, _ := m.KeepAlive(t.Context())
		r.set(freeze, 0, 1)
		time.Sleep(ttl * 9 / 10)
		r.set(thaw, 0, 1)
		require.NoError(t, m.Extend(t.Context()))
		r.set(freeze, 0, 1)
		until := r.now() + m.Remaining()
		after, _ := lostBy(t, r, held)
		require.Greater(t, after, ttl*9/10)
		require.LessOrEqual(t, r.now(), until)
	})
}

func TestNoRenewalAfterUnlock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		// Unlocks at, just before and just after the moment of a renewal, and
		// while one is under way.
		for at := -3 * time.Millisecond; at <= 5*time.Millisecond; at += 100 * time.Microsecond {
			m := taken(t, c)
			held, _ := m.KeepAlive(t.Context())
			time.Sleep(m.Remaining() - (ttl - m.spec().Term.Drift) + ttl/quorum.RenewAfter + at)
			require.NoError(t, m.Unlock(t.Context()))
			require.Equal(t, context.Canceled, context.Cause(held), "an unlock is no loss")
		}
		r.gone(t, 2*ttl)
		require.Zero(t, c.Stats().Kept)
		require.Positive(t, c.Stats().Renewals)
		requireReleasedForGood(t, r)
	})
}

func TestNoRenewalAfterUnlockWhateverRaces(t *testing.T) {
	t.Parallel()
	c, r := newFake(t, 3, Config{})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 30 {
				m := c.NewMutex("k", 24*time.Millisecond)
				if m.Lock(t.Context()) != nil {
					return
				}
				held, stop := m.KeepAlive(t.Context())
				var both sync.WaitGroup
				both.Go(func() { m.Extend(t.Context()) })
				both.Go(func() { held.Err() })
				time.Sleep(8 * time.Millisecond) // a renewal is due
				both.Go(func() { m.Unlock(t.Context()) })
				both.Go(stop)
				both.Wait()
				m.Unlock(t.Context())
			}
		})
	}
	all.Wait()
	require.Eventually(t, func() bool { return r.keys() == 0 }, hanging, 5*time.Millisecond)
	require.Zero(t, c.Stats().Kept)
	requireReleasedForGood(t, r)
}

// A fallback that a master asks for comes after whatever was written meanwhile,
// so an extend's must not be able to set a key again.
func TestExtendByTextSetsNothingAgain(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(unscript, 0, 1, 2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.set(func(m *fakeMaster) { // the release is known, the extend is not
			m.vanish = func(args []string) bool {
				m.scripts = args[1] != kind.ExtendScript.Hash
				return false
			}
		}, 0, 1, 2)
		done := make(chan error, 1)
		go func() { done <- m.Extend(t.Context()) }()
		synctest.Wait() // the extend is posted, and not answered yet
		require.ErrorIs(t, m.Unlock(ctx), context.Canceled)
		conntest.Soon(t, "the Extend returns", done)
		r.gone(t, 10*time.Millisecond)
		require.Contains(t, r.logs(0), "noscript")
	})
}

func TestRenewalsShareBursts(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		n := bearable(3000)
		bursts := &countingRounds{Mux: r}
		c.round.Mux = bursts
		for i := range n {
			m := c.NewMutex(string(rune('a'+i%26))+time.Duration(i).String(), ttl)
			require.NoError(t, m.TryLock(t.Context()))
			m.KeepAlive(t.Context())
		}
		bursts.mu.Lock()
		bursts.sizes = nil
		bursts.mu.Unlock()
		time.Sleep(ttl)
		require.Equal(t, n, c.Stats().Kept)
		bursts.mu.Lock()
		defer bursts.mu.Unlock()
		total := 0
		for _, size := range bursts.sizes {
			total += size
		}
		require.GreaterOrEqual(t, total, 2*n)
		require.LessOrEqual(t, slices.Max(bursts.sizes), burstSize)
		require.Less(t, len(bursts.sizes), total/20)
	})
}

// More locks are due at once than a burst has. Each is renewed nevertheless.
func TestMoreLocksThanABurstHasAreRenewed(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		const n = 2*burstSize + 1
		var taken sync.WaitGroup
		for i := range n {
			taken.Go(func() {
				m := c.NewMutex(strconv.Itoa(i), ttl)
				assert.NoError(t, m.TryLock(t.Context()))
				m.KeepAlive(t.Context())
			})
		}
		taken.Wait()
		time.Sleep(2 * ttl)
		require.Equal(t, n, c.Stats().Kept)
		require.Zero(t, c.Stats().Lost)
	})
}

type countingRounds struct {
	round.Mux
	mu    sync.Mutex
	sizes []int
}

func (c *countingRounds) Post(ops ...*mux.Op) {
	c.mu.Lock()
	c.sizes = append(c.sizes, len(ops))
	c.mu.Unlock()
	c.Mux.Post(ops...)
}

// A lock with a long round timeout, which waits for a hung minority, must not
// cost a lock with a short one its life.
func TestHungMinorityDelaysNobodysRenewal(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(freeze, 2)
		var contexts []context.Context
		for i, ttl := range []time.Duration{30 * time.Second, 100 * time.Millisecond, 10 * time.Second, 200 * time.Millisecond} {
			for j := range bearable(10) {
				m := c.NewMutex(time.Duration(1000*i+j).String(), ttl)
				require.NoError(t, m.TryLock(t.Context()))
				held, _ := m.KeepAlive(t.Context())
				contexts = append(contexts, held)
			}
		}
		time.Sleep(35 * time.Second)
		for _, held := range contexts {
			require.NoError(t, context.Cause(held))
		}
	})
}

// Deadlines are kept while as many renewals hang as may be under way.
func TestHungRenewalsDelayNoDeadline(t *testing.T) {
	t.Parallel()
	simulated(t, 1, Config{RoundTimeout: time.Hour}, func(t *testing.T, c *Client, r *fakeRounds) {
		const n = maxSending + 1000
		var looks atomic.Int64
		r.looked = func() {
			if looks.Add(1) == 100*n { // or time would stand still
				r.set(thaw, 0)
			}
		}
		var held []context.Context
		var until []time.Duration
		for i := range n {
			m := c.NewMutex(time.Duration(i).String(), ttl)
			require.NoError(t, m.TryLock(t.Context()))
			h, _ := m.KeepAlive(t.Context())
			if i == 0 {
				r.set(func(m *fakeMaster) { m.delay = 0 }, 0)
			}
			held = append(held, h)
			until = append(until, r.now()+m.Remaining())
		}
		r.set(freeze, 0)
		looks.Store(0)
		for i, h := range held {
			conntest.Soon(t, "the context ends", h.Done())
			require.LessOrEqual(t, r.now(), until[i])
			require.ErrorIs(t, context.Cause(h), ErrLost)
		}
		require.Less(t, looks.Load(), int64(100*n), "nothing runs while nothing is due")
		require.Zero(t, c.Stats().Kept)
	})
}

func TestCloseEndsEveryKeepAlive(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		held, _ := m.KeepAlive(t.Context())
		r.set(freeze, 0, 1, 2)
		time.Sleep(ttl / 2) // a renewal is under way
		require.NoError(t, c.Close())
		require.ErrorIs(t, context.Cause(held), ErrLost)
		require.ErrorIs(t, context.Cause(held), ErrClosed)
		require.EqualValues(t, 1, c.Stats().Lost)
		held, _ = m.KeepAlive(t.Context())
		require.ErrorIs(t, context.Cause(held), ErrClosed)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrClosed)
		require.NoError(t, c.Close())
	})
}

// Whoever else calls Close waits for the one that closes the client.
func TestCloseReturnsWhenTheClientIsClosed(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, _ *fakeRounds) {
		gate, blocks := make(chan struct{}), new(atomic.Pointer[chan struct{}])
		parent, cancel := context.WithCancel(t.Context())
		defer cancel()
		taken(t, c).KeepAlive(blocking{parent, blocks})
		blocks.Store(&gate)
		goOn := sync.OnceFunc(func() { close(gate) })
		defer goOn()
		closed := make(chan error, 3)
		for range 2 {
			go func() { closed <- c.Close() }()
			time.Sleep(time.Second)
		}
		go func() {
			c.Shutdown(t.Context())
			closed <- nil
		}()
		time.Sleep(time.Second)
		require.Empty(t, closed)
		goOn()
		for range 3 {
			require.NoError(t, conntest.Soon(t, "it is closed", closed))
		}
	})
}

// Loggers and mocks print a context, while it is renewed.
func TestContextOfAKeepAliveCanBePrinted(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	c := opened(t, masters.Addrs(), nil)
	m := c.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(context.Background())
	defer stop()
	for c.Stats().Renewals < 3 && held.Err() == nil {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
			require.Equal(t, `context.Background.WithCancel.KeepAlive{"k"}`, fmt.Sprintf(verb, held))
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

// The time at which a lock was taken that was handed over is not known: its lifetime
// counts from when we know of it.
func TestMaxLifetimeOfAHandedOverLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl, WithToken(taken(t, c).Token()), WithMaxLifetime(time.Minute))
		require.NoError(t, m.Extend(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		time.Sleep(50 * time.Second)
		require.NoError(t, held.Err())
		time.Sleep(20 * time.Second)
		require.ErrorIs(t, context.Cause(held), ErrMaxLifetime)
	})
}

// A context that blocks whoever asks it, from when blocks is set until it is closed.
type blocking struct {
	context.Context
	blocks *atomic.Pointer[chan struct{}]
}

func (c blocking) wait() {
	if until := c.blocks.Load(); until != nil {
		<-*until
	}
}

func (c blocking) Done() <-chan struct{} { c.wait(); return c.Context.Done() }
func (c blocking) Value(key any) any     { c.wait(); return c.Context.Value(key) }

// A KeepAlive whose parent blocks when it is taken off it delays no other lock: those are renewed, and their contexts end in
// time.
func TestAParentThatBlocksDelaysNoOtherLock(t *testing.T) {
	lose := func(keys ...string) func(*Client, *fakeRounds) {
		return func(_ *Client, r *fakeRounds) {
			r.set(func(m *fakeMaster) {
				for _, key := range keys {
					delete(m.keys, key)
				}
			}, all(3)...)
		}
	}
	for name, how := range map[string]struct {
		after   int                                      // so many of the others, at least, are taken before it
		until   func(key string, m *Mutex) time.Duration // when the lifetime of a lock ends, by one that was taken before; 0 for never
		ends    func(c *Client, r *fakeRounds)
		others  error // why the contexts of the others end; nil if they are renewed
		endSoon bool  // before they are renewed
	}{
		"its lifetime ends as others are renewed": {
			after: 1,
			until: func(key string, m *Mutex) time.Duration {
				if key != "blocks" {
					return 0
				}
				return m.spec().Term.Due(m.client.now() + m.Remaining())
			},
		},
		"the lifetimes of all end at once": {
			until:  func(string, *Mutex) time.Duration { return time.Hour + ttl/2 },
			others: ErrMaxLifetime,
		},
		"its renewal finds that it is lost": {
			ends: lose("blocks"),
		},
		"a recheck finds that all are lost": {
			ends: func(c *Client, r *fakeRounds) {
				lose("blocks", "other", "another")(c, r)
				c.held.Switched(0)
			},
			others: ErrLost, endSoon: true,
		},
		"the client shuts down": {
			ends:   func(c *Client, _ *fakeRounds) { go c.Shutdown(context.Background()) },
			others: ErrClosed, endSoon: true,
		},
		"the client is closed": {
			ends:   func(c *Client, _ *fakeRounds) { go c.Close() },
			others: ErrClosed, endSoon: true,
		},
	} {
		for at := how.after; at < 3; at++ {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				parent, cancel := context.WithCancel(context.Background())
				defer cancel()
				gate, blocks := make(chan struct{}), new(atomic.Pointer[chan struct{}])
				defer close(gate)
				var before *Mutex
				locks, held := map[string]*Mutex{}, map[string]context.Context{}
				for _, key := range slices.Insert([]string{"other", "another"}, at, "blocks") {
					var opts []Option
					if how.until != nil {
						if end := how.until(key, before); end != 0 {
							opts = append(opts, WithMaxLifetime(end-r.now()-time.Millisecond+10*time.Millisecond)) // an attempt takes 1 ms, and it ends 10 ms early
						}
					}
					m := c.NewMutex(key, ttl, opts...)
					require.NoError(t, m.TryLock(t.Context()))
					ctx := context.Background()
					if key == "blocks" {
						ctx = blocking{parent, blocks}
					}
					k, _ := m.KeepAlive(ctx)
					d, stop := context.WithCancel(k) // it does not look at the clock
					defer stop()
					locks[key], held[key], before = m, d, m
				}
				time.Sleep(10 * time.Millisecond)
				blocks.Store(&gate)
				if how.ends != nil {
					how.ends(c, r)
				}
				if how.endSoon {
					time.Sleep(ttl / 10)
				} else {
					time.Sleep(3 * ttl)
				}
				synctest.Wait()
				require.Error(t, held["blocks"].Err(), name)
				for _, key := range []string{"other", "another"} {
					if how.others == nil {
						require.NoError(t, context.Cause(held[key]), name)
						require.Positive(t, locks[key].Remaining(), name)
					} else {
						require.ErrorIs(t, context.Cause(held[key]), how.others, name)
					}
				}
			})
		}
	}
}
