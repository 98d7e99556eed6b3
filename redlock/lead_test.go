package redlock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/stretchr/testify/require"
)

// candidates returns clients of the same simulated masters, named a, b, c ...
func candidates(t *testing.T, n int, cfg Config) ([]*Client, *fakeRounds) {
	t.Helper()
	cfg.Owner = "a"
	c, r := newFake(t, 3, cfg)
	for _, m := range r.masters {
		m.delay = time.Millisecond
	}
	all := []*Client{c}
	for i := 1; i < n; i++ {
		cfg.Owner = string(rune('a' + i))
		next := newClient(cfg, r, r.now)
		t.Cleanup(func() { next.Close() })
		all = append(all, next)
	}
	return all, r
}

// A reign is one run of a leader's function.
type reign struct {
	who          string
	term         uint64
	began, ended time.Duration // the context's end, or the function's
}

// A chronicle has all reigns.
type chronicle struct {
	mu     sync.Mutex
	reigns []reign
}

func (c *chronicle) write(r reign) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reigns = append(c.reigns, r)
	slices.SortFunc(c.reigns, func(a, b reign) int { return int(a.began - b.began) })
}

// oneAtATime requires that no reign overlaps the next, and that terms grow.
func (c *chronicle) oneAtATime(t *testing.T) []reign {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range len(c.reigns) - 1 {
		require.LessOrEqual(t, c.reigns[i].ended, c.reigns[i+1].began)
		require.Less(t, c.reigns[i].term, c.reigns[i+1].term)
	}
	return slices.Clone(c.reigns)
}

// refuseRenewals has masters not hear what a client with that owner asks for, but for its attempts.
func refuseRenewals(owner string) func(*fakeMaster) {
	return func(m *fakeMaster) {
		m.vanish = func(args []string) bool {
			return args[0] != "SET" && args[1] != kind.FencedAcquireScript.Hash && slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, owner+"/") })
		}
	}
}

func TestOneLeadsAfterTheOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 3, Config{})
		var past chronicle
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(func() {
				err := c.Lead(ctx, "k", ttl, func(ctx context.Context) error {
					began, token := r.now(), behind.TokenFrom(ctx)
					require.True(t, strings.HasPrefix(token, c.owner+"/"))
					select {
					case <-ctx.Done():
					case <-time.After(5 * ttl):
					}
					past.write(reign{c.owner, FenceFrom(ctx), began, r.now()})
					require.Contains(t, []string{token, ""}, behind.TokenFrom(ctx), "never another's")
					return nil
				})
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, errCause)
			})
		}
		time.Sleep(20 * ttl) // each steps down after a while
		r.set(freeze, 0, 1)
		time.Sleep(2 * ttl) // one is lost
		r.set(thaw, 0, 1)
		time.Sleep(20 * ttl)
		cancel(errCause)
		wg.Wait()
		reigns := past.oneAtATime(t)
		require.GreaterOrEqual(t, len(reigns), 7)
		require.True(t, slices.ContainsFunc(reigns, func(r reign) bool { return r.who != reigns[0].who }), "the others come, too")
		r.gone(t, 2*time.Millisecond)
	})
}

// A leader that is cut off steps down before another begins, and does not begin again while its function runs.
func TestALostLeaderIsOverBeforeTheNextBegins(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 2, Config{})
		var past chronicle
		running := map[string]bool{}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(func() {
				c.Lead(ctx, "k", ttl, func(ctx context.Context) error {
					past.mu.Lock()
					require.False(t, running[c.owner])
					running[c.owner] = true
					past.mu.Unlock()
					began := r.now()
					conntest.Soon(t, "it ends", ctx.Done())
					past.write(reign{c.owner, FenceFrom(ctx), began, r.now()})
					time.Sleep(3 * ttl) // it takes its time
					past.mu.Lock()
					running[c.owner] = false
					past.mu.Unlock()
					return context.Cause(ctx)
				})
			})
			time.Sleep(time.Second)
		}
		r.set(refuseRenewals("a"), 0, 1, 2)
		time.Sleep(2 * ttl) // b leads, while a's function still runs
		r.set(refuseRenewals("b"), 0, 1, 2)
		time.Sleep(5 * ttl)
		cancel()
		wg.Wait()
		reigns := past.oneAtATime(t)
		require.Equal(t, "a", reigns[0].who)
		require.Equal(t, "b", reigns[1].who)
		require.Less(t, reigns[1].began-reigns[0].ended, 2*maxMargin+ttl/50+2*pollMax, "it began when the TTL had passed")
		require.Equal(t, "a", reigns[2].who, "it campaigns again")
	})
}

// Nobody else leads while a leader that was asked to end cleans up.
func TestALeaderCleansUpBeforeTheNext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 2, Config{})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCause)
		defer cancel()
		led := make(chan error)
		go func() {
			defer close(led) // also if an assertion fails
			led <- all[0].Lead(ctx, "k", ttl, func(ctx context.Context) error {
				deadline, ok := ctx.Deadline()
				require.True(t, ok)
				require.WithinDuration(t, time.Now().Add(time.Second), deadline, 10*time.Millisecond)
				conntest.Soon(t, "it ends", ctx.Done())
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				require.Equal(t, errCause, context.Cause(ctx))
				for range 5 {
					time.Sleep(ttl)
					require.ErrorIs(t, all[1].NewMutex("k", ttl).TryLock(t.Context()), ErrHeld)
				}
				return errFake
			})
		}()
		err := <-led
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errCause)
		require.ErrorIs(t, err, errFake, "its own error is not hidden")
		require.Zero(t, all[0].Stats().Lost)
		r.gone(t, 2*time.Millisecond)
	})
}

func TestWhatALeaderReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 2, Config{})
		c := all[0]
		require.Equal(t, errCause, c.Lead(t.Context(), "k", ttl, func(context.Context) error { return errCause }))
		r.gone(t, 2*time.Millisecond)
		require.PanicsWithValue(t, "no", func() { c.Lead(t.Context(), "k", ttl, func(context.Context) error { panic("no") }) })
		r.gone(t, 2*time.Millisecond)
		require.Zero(t, c.Stats().Kept)

		// After nil others come first, and it does not spin.
		ctx, cancel := context.WithCancel(t.Context())
		terms := 0
		since := r.now()
		go func() {
			time.Sleep(time.Second)
			all[1].Do(ctx, "k", ttl, func(ctx context.Context) error { return nil })
			time.Sleep(9 * time.Second)
			cancel()
		}()
		require.ErrorIs(t, c.Lead(ctx, "k", ttl, func(context.Context) error { terms++; return nil }), context.Canceled)
		require.InDelta(t, 10*time.Second, r.now()-since, float64(ttl), "it waits for no more than that")
		require.InDelta(t, 10*time.Second/(ttl*3/20), terms, 12)

		// The end of a term, and a loss, whatever it returns.
		ctx, cancel = context.WithCancel(t.Context())
		var causes []error
		err := c.Lead(ctx, "k", ttl, func(ctx context.Context) error {
			if len(causes) == 2 {
				time.AfterFunc(ttl/2, func() { r.set(flush, 0, 1, 2) })
			}
			conntest.Soon(t, "it ends", ctx.Done())
			if causes = append(causes, context.Cause(ctx)); len(causes) == 3 {
				cancel()
			}
			return errFake
		}, WithMaxLifetime(2*ttl))
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, causes, 3)
		require.ErrorIs(t, causes[0], ErrMaxLifetime)
		require.ErrorIs(t, causes[1], ErrMaxLifetime)
		require.ErrorIs(t, causes[2], ErrLost)

		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, c.Lead(ctx, "k", ttl, nothing), context.Canceled)
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Lead(t.Context(), "k", ttl, nothing), ErrClosed)
	})
}

// After the end of a term others come first, as after nil. After a loss it campaigns at once.
func TestALeaderPausesAfterALeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var began, ended []time.Duration
		err := all[0].Lead(ctx, "k", ttl, func(ctx context.Context) error {
			if began = append(began, r.now()); len(began) == 3 {
				cancel()
				return nil
			}
			if len(began) == 2 {
				r.set(flush, 0, 1, 2)
			}
			conntest.Soon(t, "it ends", ctx.Done())
			ended = append(ended, r.now())
			return nil
		}, WithMaxLifetime(2*ttl))
		require.ErrorIs(t, err, context.Canceled)
		require.GreaterOrEqual(t, began[1]-ended[0], ttl/10)
		require.LessOrEqual(t, began[1]-ended[0], ttl/5+10*time.Millisecond)
		require.Less(t, began[2]-ended[1], ttl/10)
	})
}

// When Lead returns, the next one can lead: it waits for the masters also after the end of its context.
func TestLeadReturnsWhenItHasSteppedDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		said := errFake
		all[0].events.hook(EventRound, func(r *Event) {
			if r.Op == opUnlock {
				said = r.Err
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		require.ErrorIs(t, all[0].Lead(ctx, "k", ttl, func(context.Context) error { cancel(); return nil }), context.Canceled)
		require.NoError(t, said)
		require.LessOrEqual(t, r.keys(), 1, "a quorum has deleted it")
	})
}

// A leader that was suspended knows at once that it leads no more, as does one whose client is closed.
func TestALeaderLooksAtTheClockItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		terms := 0
		err := all[0].Lead(t.Context(), "k", time.Hour, func(ctx context.Context) error {
			if terms++; terms > 1 {
				time.AfterFunc(time.Second, func() { all[0].Close() })
				return nil
			}
			require.NoError(t, ctx.Err())
			r.suspend(2 * time.Hour)
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(ctx), ErrLost)
			return nil
		})
		require.ErrorIs(t, err, ErrClosed)
		require.Less(t, time.Since(r.start), time.Minute, "Close ends the pause between two terms")
	})
}

// A candidate that has the lock when the context ends does not lead any more.
func TestNobodyLeadsAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		all[0].events.hook(EventRound, func(r *Event) {
			if r.Op == opLock {
				cancel()
			}
		})
		require.ErrorIs(t, all[0].Lead(ctx, "k", ttl, func(context.Context) error { panic("not reached") }), context.Canceled)
		r.gone(t, 2*time.Millisecond)
	})
}

func TestWhatALeaderRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all, r := candidates(t, 1, Config{})
		for says, opts := range map[string][]Option{
			"WithToken":                 {WithToken("x")},
			"WithShared":                {WithShared()},
			"WithMinHold":               {WithMinHold(least)},
			"WithWait":                  {WithWait(0)},
			"0 permits":                 {WithPermits(0)},
			"WithPermits and WithFence": {WithPermits(2), WithFence()},
			"none of WithFence":         {WithFence(), WithSecond(newOther(time.Millisecond))},
		} {
			require.ErrorContains(t, all[0].Lead(t.Context(), "k", ttl, nil, opts...), says)
		}
		require.Zero(t, r.keys())
	})
}

// bubble runs a test on synctest's clock.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}
