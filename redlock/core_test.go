package redlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/stretchr/testify/require"
)

// endedBy requires that the error is the context's, and nobody else's.
func endedBy(t *testing.T, err, reason error) {
	t.Helper()
	require.ErrorIs(t, err, reason)
	for _, other := range []error{ErrHeld, ErrNoQuorum, ErrExpired, ErrNotHeld, ErrLost, ErrClosed} {
		require.NotErrorIs(t, err, other)
	}
	var round *RoundError
	require.ErrorAs(t, err, &round)
}

// The masters are healthy, and the budget is too short for their answers: that is no fault
// of theirs, and nothing to be alarmed about.
func TestEndOfAContextIsNoLackOfAQuorum(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(func(m *fakeMaster) { m.delay = 10 * time.Millisecond }, all(5)...)
		budget := func() context.Context {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Millisecond, errCause)
			t.Cleanup(cancel)
			return ctx
		}
		other := c.NewMutex("other", ttl)
		for _, err := range []error{
			other.TryLock(budget()), other.Lock(budget()), m.Extend(budget()), m.Unlock(budget()),
			c.Do(budget(), "other", ttl, func(context.Context) error { return nil }),
		} {
			endedBy(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, errCause)
			require.ErrorContains(t, err, ": context deadline exceeded: the shop has closed (0 yes, 0 no, 0 failed, 5 outstanding; 3 of 5 needed)")
		}
		_, err := c.Holders(budget(), "k")
		endedBy(t, err, context.DeadlineExceeded)
		cancelled, cancel := context.WithCancelCause(t.Context())
		cancel(errCause)
		for _, err := range []error{other.TryLock(cancelled), other.Lock(cancelled), m.Extend(cancelled)} {
			endedBy(t, err, context.Canceled)
			require.ErrorContains(t, err, ": context canceled: the shop has closed")
			require.ErrorIs(t, err, errCause)
		}
		_, err = c.Holders(cancelled, "k")
		endedBy(t, err, context.Canceled)
		require.NotErrorIs(t, err, mux.ErrTimeout)
		s := c.Stats()
		require.Zero(t, s.NoQuorum)
		require.EqualValues(t, 3, s.more.Cancelled)
		r.gone(t, 100*time.Millisecond)
	})
}

// Masters that fail are to blame, also if a context ends meanwhile; and so are those that
// are late for the round.
func TestMastersThatFailAreToBlame(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		r.set(fail, 0, 1, 2)
		err := c.NewMutex("other", ttl).TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err = c.NewMutex("other", ttl).Lock(ctx)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		require.ErrorIs(t, m.Extend(t.Context()), ErrNoQuorum)
		// Three have failed, and the context ends while the other two have not answered.
		r.set(freeze, 3, 4)
		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err = m.Unlock(ctx)
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		r.set(func(m *fakeMaster) { m.frozen, m.down = false, nil }, all(5)...)
		time.Sleep(time.Second)
		r.set(freeze, 0, 1, 2)
		err = c.NewMutex("other", ttl).TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum, "they are late")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, c.Stats().more.Cancelled)
	})
}

// A loss that is certain is reported, whatever becomes of the context.
func TestEndOfAContextHidesNoLoss(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for name, use := range map[string]func(m *Mutex, ctx context.Context) error{"Extend": (*Mutex).Extend, "Unlock": (*Mutex).Unlock} {
			m := taken(t, c)
			r.set(flush, 0, 1, 2)
			r.set(freeze, 3, 4)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			err := use(m, ctx)
			cancel()
			require.ErrorIs(t, err, ErrNotHeld, name)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			r.set(thaw, 3, 4)
			m.Unlock(t.Context())
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// On real masters, with a budget of a microsecond to a millisecond.
func TestShortBudgetIsNoLackOfAQuorum(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	ended := 0
	for budget := time.Microsecond; budget < time.Millisecond; budget += 5 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), budget)
		m := c.NewMutex("k", time.Minute)
		if err := m.Lock(ctx); err != nil {
			endedBy(t, err, context.DeadlineExceeded)
			ended++
		} else {
			require.NoError(t, m.Unlock(t.Context()))
		}
		cancel()
	}
	require.Positive(t, ended)
	require.Zero(t, c.Stats().NoQuorum)
	require.LessOrEqual(t, c.Stats().more.Cancelled, uint64(ended))
}

// The context ends just as the lock is taken.
func TestDoOfAContextThatEndsAsTheLockIsTaken(t *testing.T) {
	mine := errors.New("mine")
	var cancel context.CancelCauseFunc
	observer := onEvent(EventRound, func(_ *Event) { cancel(mine) })
	for _, opts := range [][]Option{nil, {WithMinHold(least)}} {
		simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
			var ctx context.Context
			ctx, cancel = context.WithCancelCause(t.Context())
			err := c.Do(ctx, "k", ttl, func(context.Context) error { t.Error("it runs"); return nil }, opts...)
			require.ErrorIs(t, err, mine)
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, ErrLost)
			var round *RoundError
			require.ErrorAs(t, err, &round)
			r.gone(t, 10*time.Millisecond, "nothing was done in this period")
		})
	}
}

// A master that does not know a script, and says so too late, is not sent the text: what undoes it has
// been sent perhaps.
func TestTextIsNotSentOfWhatMayBeUndone(t *testing.T) {
	for name, s := range map[string]script.Script{"an intent": kind.IntendScript, "an entry": kind.EnterScript} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				var texts atomic.Int32
				r.set(func(m *fakeMaster) {
					unscript(m)
					freeze(m)
					m.deny = func(args []string) string {
						if args[0] == "EVAL" && args[1] == s.Text {
							texts.Add(1)
						}
						return ""
					}
				}, 2)
				k := new(round.Call)
				if s == kind.IntendScript {
					k.Intend(c.NewMutex("k", time.Hour).spec(), kind.Plain{}, []byte("token"), time.Second)
				} else {
					kind.EnterQueue(&k.Request, []byte(queueKey("k")), []byte("id"), 0, "")
					k.Prepare(time.Second)
				}
				for _, late := range []bool{true, false} {
					if !late {
						k.Op.Only, k.Op.Quorum = mux.Set(0).With(2), 1
					}
					k.Op.Verdict = kind.JudgeInt // two do not have what is asked for
					c.round.DoUndoable(t.Context(), k)
					r.set(thaw, 2)
					time.Sleep(time.Second)
					require.Equal(t, late, texts.Load() == 0)
				}
			})
		})
	}
}
