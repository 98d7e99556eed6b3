package redlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/internal/round"
)

func TestLockIsHandedOverByItsToken(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c2 := newClient(Config{}, r, r.now) // another process
		m := taken(t, c)
		heir := c2.NewMutex("k", ttl, WithToken(m.Token()))
		require.Equal(t, m.Token(), heir.Token())
		require.Zero(t, heir.Remaining(), "its validity is unknown")
		time.Sleep(time.Second)
		require.NoError(t, heir.Extend(t.Context()))
		require.Equal(t, ttl-m.spec().Term.Drift-time.Millisecond, heir.Remaining())
		held, stop := heir.KeepAlive(t.Context())
		time.Sleep(10 * ttl)
		require.NoError(t, held.Err())
		stop()
		require.NoError(t, heir.Unlock(t.Context()))
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)

		// Released without an Extend.
		m = taken(t, c)
		require.NoError(t, c2.NewMutex("k", ttl, WithToken(m.Token())).Unlock(t.Context()))
		r.gone(t, 5*time.Millisecond)

		// What is gone cannot be handed over, and is not set again.
		heir = c2.NewMutex("k", ttl, WithToken(m.Token()))
		require.ErrorIs(t, heir.Extend(t.Context()), ErrNotHeld)
		require.ErrorIs(t, heir.Extend(t.Context()), ErrNotHeld)
		r.gone(t, 5*time.Millisecond)
	})
}

// The first Extend of a lock that was handed over waits a moment for those that are late, as their yes counts never if it does
// not come by then. It waits for no longer, and the next does not wait.
func TestFirstExtendOfAHandedOverLockIsPatient(t *testing.T) {
	for late, patient := range map[time.Duration]bool{40 * time.Millisecond: true, 60 * time.Millisecond: false} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			heir := newClient(Config{}, r, r.now).NewMutex("k", ttl, WithToken(taken(t, c).Token()))
			time.Sleep(time.Millisecond)
			r.set(func(m *fakeMaster) { m.back = late }, 2)
			since := r.now()
			require.NoError(t, heir.Extend(t.Context()))
			require.LessOrEqual(t, r.now()-since, minFirstGrace+time.Millisecond)
			require.Equal(t, patient, Suspects(heir) == 0, late)
			time.Sleep(time.Second)
			since = r.now()
			require.NoError(t, heir.Extend(t.Context()))
			require.LessOrEqual(t, r.now()-since, round.MinShortTimeout+time.Millisecond)
			require.Equal(t, patient, Suspects(heir) == 0, "for its life")
		})
	}
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
					require.NoError(t, heir.Extend(t.Context()))
					time.Sleep(5 * time.Millisecond)
					require.Equal(t, 4, r.holders("k", m.Token()), "a set of the process before may still come to the fifth")
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
		require.Zero(t, heir.Remaining(), "that is not known")
		require.NoError(t, heir.Extend(t.Context()))
		require.Positive(t, heir.Remaining())
		time.Sleep(ttl)
		require.Zero(t, heir.Remaining())
	})
}

// Who writes the program learns at once what is wrong: NewMutex panics. CheckMutex says the same of what comes from elsewhere.
func TestNewMutexPanicsOfWhatCannotBe(t *testing.T) {
	simulated(t, 3, Config{RestartGuard: time.Minute}, func(t *testing.T, c *Client, r *fakeRounds) {
		for want, of := range map[string]struct {
			key  string
			ttl  time.Duration
			opts []Option
		}{
			`"": the key is empty`:                  {"", ttl, nil},
			`"k": TTL 0s is too short`:              {"k", 0, nil},
			"as in 10*time.Second?":                 {"k", 10, nil},
			"as in 30000*time.Millisecond?":         {"k", 30_000, nil},
			"TTL -1s is too short":                  {"k", -time.Second, nil},
			"TTL 999µs is too short":                {"k", 999 * time.Microsecond, nil},
			"TTL 9.999ms is too short":              {"k", 9999 * time.Microsecond, nil},
			"1s is above Config.RestartGuard, 1m0s": {"k", time.Minute + time.Millisecond, nil},
			"the token that was handed over":        {"k", ttl, []Option{WithToken("")}},
			"maximum lifetime -1ns is not":          {"k", ttl, []Option{WithMaxLifetime(-1)}},
			"an option is nil":                      {"k", ttl, []Option{WithFence(), nil}},
			"WithWait is for":                       {"k", ttl, []Option{WithWait(0)}},
		} {
			err := c.CheckMutex(of.key, of.ttl, of.opts...)
			require.ErrorContains(t, err, want)
			require.NotErrorAs(t, err, new(*RoundError), "no master was asked")
			said := "redlock: NewMutex: " + strings.TrimPrefix(err.Error(), "redlock: mutex ")
			require.PanicsWithValue(t, said, func() { c.NewMutex(of.key, of.ttl, of.opts...) })
		}
		require.NoError(t, c.CheckMutex("k", 10*time.Millisecond))
		require.Empty(t, r.logs(0))
		require.NoError(t, c.NewMutex("k", 10*time.Millisecond).TryLock(t.Context()))
		require.NoError(t, c.NewMutex("l", time.Minute).TryLock(t.Context()))
		_, err := c.Holders(t.Context(), "k", nil)
		require.ErrorContains(t, err, "an option is nil")
	})
}

// A TTL that was computed is rounded down: the masters keep whole milliseconds, and a holder must not rely on more.
func TestATTLIsRoundedDownToAMillisecond(t *testing.T) {
	for kind, opts := range map[string][]Option{"plain": nil, "keys": {WithKeys("l", "m")}, "fence": {WithFence()}} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			whole, more := c.NewMutex("k", ttl, opts...), c.NewMutex("k", ttl+time.Millisecond-1, opts...)
			for range 2 { // the second time it was used before
				require.NoError(t, whole.TryLock(t.Context()))
				until := whole.Remaining()
				require.NoError(t, whole.Unlock(t.Context()))
				require.NoError(t, more.TryLock(t.Context()), kind)
				require.Equal(t, until, more.Remaining(), kind)
				time.Sleep(time.Second)
				require.NoError(t, more.Extend(t.Context()))
				require.Equal(t, until, more.Remaining(), kind)
				require.NoError(t, more.Unlock(t.Context()))
			}
			require.NoError(t, c.Do(t.Context(), "k", time.Second/3, func(context.Context) error { return nil }, opts...))
		})
	}
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
			require.Equal(t, want, c.NewMutex("k", ttl).spec().Timeout)
		}

		r.set(freeze, 0, 1)
		since := r.now()
		err := c.NewMutex("k", ttl).TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, c.cfg.roundTimeout(ttl), r.now()-since)
	})
}

// Two attempts of one Mutex are under way, and a quorum loses the lock of the first in between. Both succeed.
func TestTwoAttemptsOfOneMutexLeaveOneLock(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "fenced": {WithFence()}, "several": {WithKeys("l")}} {
		simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
			m := c.NewMutex("k", ttl, opts...)
			for range 2 { // on the same Mutex
				for i, d := range []time.Duration{1, 5, 3} {
					r.set(func(m *fakeMaster) { m.delay = d * time.Millisecond }, i)
				}
				done := make(chan error, 2)
				try := func() { done <- m.TryLock(t.Context()) }
				go try()
				time.Sleep(2 * time.Millisecond)
				r.set(func(m *fakeMaster) { m.delay = 4 * time.Millisecond }, 0, 1, 2)
				go try()
				time.Sleep(3*time.Millisecond + time.Millisecond/2)
				r.set(flush, 0, 1)
				require.NoError(t, <-done, name)
				require.NoError(t, <-done, name)
				require.NoError(t, m.Unlock(t.Context()))
				r.gone(t, 10*time.Millisecond, name)
			}
		})
	}
}
