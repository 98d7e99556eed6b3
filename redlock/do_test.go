package redlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/stretchr/testify/require"
)

// A doing is Do, or Acquire with fn as the work until its release.
type doing func(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context) error, opts ...Option) error

// eachDoing runs a test with Do, and with Acquire.
func eachDoing(t *testing.T, cfg Config, f func(t *testing.T, c *Client, r *fakeRounds, do doing)) {
	t.Run("Do", func(t *testing.T) {
		simulated(t, 3, cfg, func(t *testing.T, c *Client, r *fakeRounds) { f(t, c, r, c.Do) })
	})
	t.Run("Acquire", func(t *testing.T) {
		simulated(t, 3, cfg, func(t *testing.T, c *Client, r *fakeRounds) { f(t, c, r, c.acquires) })
	})
}

func (c *Client) acquires(ctx context.Context, key string, ttl time.Duration, fn func(ctx context.Context) error, opts ...Option) error {
	held, release, err := c.Acquire(ctx, key, ttl, opts...)
	if err != nil {
		if held != ctx || release != nil {
			panic("it has returned what it has not taken")
		}
		return err
	}
	defer release()
	err = fn(held)
	if lost := release(); lost != nil {
		err = errors.Join(err, lost)
	}
	return err
}

func TestDoHoldsTheLockMeanwhile(t *testing.T) {
	eachDoing(t, Config{}, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		err := do(t.Context(), "k", ttl, func(ctx context.Context) error {
			time.Sleep(10 * ttl)
			require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(ctx), ErrHeld)
			return errCause
		})
		require.Equal(t, errCause, err)
		r.gone(t, 10*time.Millisecond)

		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, do(ctx, "k", ttl, func(held context.Context) error {
			cancel()
			conntest.Soon(t, "the context ends", held.Done())
			return nil
		}))
		r.gone(t, 10*time.Millisecond, "it must be released though the context has ended")

		require.Panics(t, func() {
			do(t.Context(), "k", ttl, func(context.Context) error { panic("no") })
		})
		r.gone(t, 10*time.Millisecond)
		require.Zero(t, c.Stats().Kept)

		require.Error(t, do(t.Context(), "", ttl, nil))
	})
}

// A function that is nil is found before the lock is taken.
func TestDoAndLeadRefuseWhatIsNil(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for _, opts := range [][]Option{nil, {WithWait(0)}, {WithWait(time.Second)}} {
			require.NotPanics(t, func() {
				require.EqualError(t, c.Do(t.Context(), "k", ttl, nil, opts...), `redlock: mutex "k": Do is given no function: it is nil`)
			})
		}
		require.EqualError(t, c.Lead(t.Context(), "k", ttl, nil), `redlock: mutex "k": Lead is given no function: it is nil`)
		require.Empty(t, r.logs(0))
	})
}

func TestDoTellsOfALoss(t *testing.T) {
	eachDoing(t, Config{}, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		for _, own := range []error{nil, errCause, ErrLost} {
			err := do(t.Context(), "k", ttl, func(held context.Context) error {
				time.Sleep(10 * time.Millisecond)
				r.set(flush, 0, 1, 2)
				conntest.Soon(t, "the loss is noticed", held.Done())
				return own
			})
			require.ErrorIs(t, err, ErrLost)
			if own != nil {
				require.ErrorIs(t, err, own)
			}
		}
		// It is lost also if only the release finds it out, and whatever fn returns then, and whether its context has ended.
		for _, own := range []error{nil, errCause, ErrLost} {
			for _, ends := range []bool{false, true} {
				ctx, cancel := context.WithCancel(t.Context())
				err := do(ctx, "k", ttl, func(held context.Context) error {
					time.Sleep(10 * time.Millisecond)
					r.set(flush, 0, 1, 2)
					if require.NoError(t, held.Err()); ends {
						cancel()
					}
					return own
				})
				cancel()
				require.ErrorIs(t, err, ErrLost)
				if own != nil {
					require.ErrorIs(t, err, own)
				} else {
					require.ErrorIs(t, err, ErrNotHeld)
				}
			}
		}
		// It may be lost, and the masters that are left cannot say that it is not.
		for _, own := range []error{nil, errCause} {
			err := do(t.Context(), "k", ttl, func(held context.Context) error {
				time.Sleep(10 * time.Millisecond)
				r.set(flush, 0, 1)
				r.set(fail, 1)
				return own
			})
			require.ErrorIs(t, err, ErrNoQuorum)
			if own != nil {
				require.ErrorIs(t, err, own)
			}
			r.set(restart, 0, 1, 2)
		}
		// Nobody says no.
		require.NoError(t, do(t.Context(), "k", ttl, func(held context.Context) error {
			time.Sleep(10 * time.Millisecond)
			r.set(fail, 0, 1)
			return nil
		}))
		r.set(restart, 0, 1, 2)
		// It is lost also if nobody has looked.
		err := do(t.Context(), "k", ttl, func(held context.Context) error {
			r.suspend(time.Hour)
			return nil
		})
		require.ErrorIs(t, err, ErrLost)
	})
}

// release may be called again: it says the same, and does nothing.
func TestAcquireIsReleasedOnce(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		held, release, err := c.Acquire(t.Context(), "k", ttl, WithFence())
		require.NoError(t, err)
		require.Positive(t, FenceFrom(held))
		inner := c.Do(held, "k", ttl, nothing)
		require.ErrorIs(t, inner, ErrHeld)
		require.ErrorContains(t, inner, "held by the Acquire that this context belongs to: locks are not reentrant")
		time.Sleep(10 * ttl)
		require.NoError(t, held.Err())
		require.NoError(t, release())
		require.Error(t, held.Err())
		m := taken(t, c)
		require.NoError(t, release(), "it does nothing any more")
		require.Equal(t, 3, r.holders("k", m.Token()))

		_, release, err = c.Acquire(t.Context(), "j", ttl)
		require.NoError(t, err)
		r.set(flush, 0, 1, 2)
		lost := release()
		require.ErrorIs(t, lost, ErrLost)
		require.ErrorIs(t, lost, ErrNotHeld)
		require.Equal(t, lost, release())
	})
}

// What cannot be taken says so as an error: only NewMutex panics.
func TestDoAndAcquireAndLeadReturnWhatIsInvalid(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for _, opts := range [][]Option{{nil}, {WithPermits(0)}, {WithPermits(2), WithFence()}} {
			for name, f := range map[string]func() error{
				"Do":      func() error { return c.Do(t.Context(), "k", ttl, nothing, opts...) },
				"Acquire": func() error { return c.acquires(t.Context(), "k", ttl, nothing, opts...) },
				"Lead":    func() error { return c.Lead(t.Context(), "k", ttl, nothing, opts...) },
				"check":   func() error { return c.CheckMutex("k", ttl, opts...) },
			} {
				require.NotPanics(t, func() { require.ErrorContains(t, f(), `redlock: mutex "k": `, name) }, name)
			}
		}
		require.ErrorContains(t, c.Do(t.Context(), "k", ttl, nil, WithWait(-1)), "below zero")
		require.Empty(t, r.logs(0))
	})
}

// The work of an Acquire is nobody's function: it is not known whether it has failed.
func TestAcquireLeavesALeastHold(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		_, release, err := c.Acquire(t.Context(), "k", ttl, WithMinHold(time.Hour))
		require.NoError(t, err)
		require.NoError(t, release())
		time.Sleep(59 * time.Minute)
		require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrHeld)
		time.Sleep(2 * time.Minute)
		require.NoError(t, c.NewMutex("k", ttl).TryLock(t.Context()))
	})
}

// A Do that was given a token and could not take the lock leaves it to whom it belongs.
func TestDoReleasesNothingThatItHasNotTaken(t *testing.T) {
	for name, patience := range map[string]time.Duration{"held": 100 * time.Millisecond, "out of time": 0} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				require.Error(t, c.Do(ctx, m.Key(), ttl, func(context.Context) error { panic("not reached") }, WithToken(m.Token())))
				time.Sleep(10 * time.Millisecond)
				require.Equal(t, 3, r.holders("k", m.Token()))
			})
		})
	}
}

// A lock that was taken within another has an end of its own, however the other ends.
func TestTheLossOfAnOuterLockIsNoneOfTheInnerOne(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *Client, r *fakeRounds){
		"it is revoked": func(t *testing.T, c *Client, _ *fakeRounds) {
			require.NoError(t, c.Revoke(t.Context(), "outer", "why"))
		},
		"it is lost": func(_ *testing.T, _ *Client, r *fakeRounds) {
			r.set(func(m *fakeMaster) { delete(m.keys, "outer") }, 0, 1, 2)
		},
		"its lifetime ends": func(*testing.T, *Client, *fakeRounds) {},
	} {
		t.Run(name, func(t *testing.T) {
			eachDoing(t, Config{}, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
				for range 2 {
					other, _ := another(t, r, Config{})
					err := other.Do(t.Context(), "outer", ttl, func(outer context.Context) error {
						require.NoError(t, do(outer, "k", ttl, func(inner context.Context) error {
							time.Sleep(10 * time.Millisecond)
							end(t, c, r)
							conntest.Soon(t, "the outer lock ends", inner.Done())
							return nil
						}, WithMinHold(time.Hour)), "it was held, and its work is done")
						require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrHeld, "it is left there")
						require.Error(t, context.Cause(outer))
						time.Sleep(time.Hour)
						return nil
					}, WithMaxLifetime(time.Minute))
					require.Error(t, err)
				}
			})
		})
	}
}

// A maximum lifetime that has passed is no loss.
func TestDoTellsOfAMaximumLifetime(t *testing.T) {
	lost := 0
	cfg := Config{Observers: onEvent(EventLost, func(_ *Event) { lost++ })}
	eachDoing(t, cfg, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		for _, own := range []error{nil, errCause, ErrMaxLifetime} {
			err := do(t.Context(), "k", ttl, func(held context.Context) error {
				conntest.Soon(t, "the context ends", held.Done())
				return own
			}, WithMaxLifetime(10*time.Second))
			require.ErrorIs(t, err, ErrMaxLifetime)
			require.NotErrorIs(t, err, ErrLost)
			if own != nil {
				require.ErrorIs(t, err, own)
			}
		}
		require.Zero(t, c.Stats().Lost)
		require.Zero(t, lost)
		r.gone(t, 10*time.Millisecond, "it is released")
	})
}

// The wait of a Do has a bound of its own.
func TestDoWaitsNoLongerThanItIsTold(t *testing.T) {
	eachDoing(t, Config{Owner: "other"}, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		m := taken(t, c)
		held, stop := m.KeepAlive(t.Context())
		for _, wait := range []time.Duration{0, time.Nanosecond, time.Millisecond, 100 * time.Millisecond, time.Minute} {
			since := r.now()
			err := do(t.Context(), "k", ttl, func(context.Context) error { panic("not reached") }, WithWait(wait))
			took := r.now() - since
			require.ErrorIs(t, err, ErrHeld, "%v", wait)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "its context has not ended")
			require.GreaterOrEqual(t, took, wait)
			require.LessOrEqual(t, took, wait+3*time.Millisecond, "an attempt, or asking who holds it")
			if wait > 10*time.Millisecond {
				require.ErrorContains(t, err, "; held by other on 3 of 3 masters")
				require.ErrorContains(t, err, "; waited for "+wait.String())
			}
			require.Zero(t, c.Stats().Waiting)
		}

		r.set(freeze, 0, 1)
		err := do(t.Context(), "j", ttl, nothing, WithWait(time.Millisecond))
		require.ErrorIs(t, err, ErrNoQuorum, "a bound that is shorter than a round does not hide why")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		r.set(thaw, 0, 1)

		// So has the wait for others to agree on how many permits there are.
		r.set(othersPermits, 0, 1, 2)
		hour, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		since := r.now()
		err = do(hour, "p", ttl, nothing, WithPermits(2), WithWait(time.Minute))
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorContains(t, err, "PERMITS others have 3")
		require.ErrorContains(t, err, "; waited for 1m0s")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, time.Minute, r.now()-since, float64(3*time.Millisecond))
		time.Sleep(time.Second) // until what was asked is denied
		r.set(func(m *fakeMaster) { m.deny = nil }, 0, 1, 2)

		// What ends first counts.
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errCause)
		defer cancel()
		for _, wait := range []time.Duration{0, time.Minute} {
			err = do(ctx, "k", ttl, nothing, WithWait(wait))
			if wait > 0 {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, errCause)
			}
			require.ErrorIs(t, err, ErrHeld)
		}
		// What ends after the bound, while the masters are asked who holds it, has ended all the same.
		late, cancelLate := context.WithCancelCause(t.Context())
		r.set(func(m *fakeMaster) { m.delay = 20 * time.Millisecond }, 0, 1, 2)
		time.AfterFunc(time.Second+10*time.Millisecond, func() { cancelLate(errCause) })
		err = do(late, "k", ttl, nothing, WithWait(time.Second))
		r.set(func(m *fakeMaster) { m.delay = 0 }, 0, 1, 2)
		for _, target := range []error{ErrHeld, context.Canceled, errCause} {
			require.ErrorIs(t, err, target)
		}
		require.NotErrorIs(t, err, context.DeadlineExceeded)

		require.NoError(t, held.Err())
		stop()
		require.NoError(t, m.Extend(t.Context()))
		time.AfterFunc(ttl/2, func() { m.Unlock(t.Context()) })
		ran := false
		require.NoError(t, do(t.Context(), "k", ttl, func(ctx context.Context) error {
			ran = true
			time.Sleep(time.Minute)
			return ctx.Err() // the bound is none of the work
		}, WithWait(30*time.Second)))
		require.True(t, ran)
	})
}

// An Observer is told of a wait that WithWait bounds what its caller gets, and not that a context has ended which the
// caller does not know.
func TestObserverIsToldWhatTheCallerOfABoundedWaitGets(t *testing.T) {
	var told []error
	cfg := Config{Observers: onEvent(EventWaited, func(e *Event) { told = append(told, e.Err) })}
	eachDoing(t, cfg, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		told = nil
		taken(t, c)
		held := do(t.Context(), "k", ttl, nothing, WithWait(time.Second))
		require.ErrorIs(t, held, ErrHeld)
		r.set(fail, 0, 1)
		away := do(t.Context(), "j", ttl, nothing, WithWait(time.Second))
		require.ErrorIs(t, away, ErrNoQuorum)
		require.Equal(t, []error{held, away}, told)
		for _, err := range told {
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

func othersPermits(m *fakeMaster) {
	m.deny = func(args []string) string {
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "{p}:permit") }) {
			return "PERMITS others have 3"
		}
		return ""
	}
}

// The wait for others to agree on how many permits there are is told and counted as each other.
func TestTheWaitForAgreementIsToldOnce(t *testing.T) {
	var told []string
	var got error
	cfg := Config{Observers: []Observer{func(_ context.Context, e *Event) {
		switch e.Kind {
		case EventRound, behind.Wait:
			told = append(told, string(e.Kind)+" "+Outcome(e.Err))
		case EventWaited:
			told = append(told, string(e.Kind)+" "+Outcome(e.Err)+" "+e.Took.Round(time.Second).String())
			got = e.Err
		}
	}}}
	eachDoing(t, cfg, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		r.set(othersPermits, 0, 1, 2)
		told = nil
		time.AfterFunc(time.Second, func() { require.Equal(t, 1, c.Stats().Waiting) })
		err := do(t.Context(), "p", ttl, nothing, WithPermits(2), WithWait(time.Minute))
		require.ErrorIs(t, err, ErrRefused)
		require.Equal(t, err, got)
		require.Equal(t, []string{"round refused", "wait ok", "waited refused 1m0s"}, told)
		require.Zero(t, c.Stats().Waiting)
		time.Sleep(time.Second) // until what was asked is denied
	})
}

// A master may say so of any lock. There is nothing to agree on, and the lock is tried as with any other error.
func TestALockWithoutPermitsWaitsForNoAgreement(t *testing.T) {
	eachDoing(t, Config{}, func(t *testing.T, c *Client, r *fakeRounds, do doing) {
		for range 2 {
			r.set(func(m *fakeMaster) { m.deny = func([]string) string { return "PERMITS others have 3" } }, 0, 1)
			err := do(t.Context(), "k", ttl, nothing, WithWait(10*time.Second))
			require.ErrorIs(t, err, ErrRefused)
			time.AfterFunc(5*time.Second, func() { r.set(func(m *fakeMaster) { m.deny = nil }, 0, 1) })
			require.NoError(t, do(t.Context(), "k", ttl, nothing, WithWait(10*time.Second)))
		}
	})
}
