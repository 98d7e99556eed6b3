package redlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// What keeps the rules of the package comment, by their numbers. TestEachRuleHasItsTest compares both.

// Rule 1: a cancelled context never leaves a key behind, whenever it is cancelled, in every state of the
// masters.
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
						r.gone(t, 20*time.Millisecond, "cancelled after %v with %v", at, which)
					}
				}
			})
		})
	}
}

// Rule 2: no success is reported without any validity, and Until says how long it lasts.
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
				time.Sleep(time.Nanosecond)
				require.Equal(t, 3, r.holders("k", m.Token()))
				m.Unlock(t.Context())
			} else {
				require.ErrorIs(t, err, ErrExpired)
				require.NotErrorIs(t, err, ErrHeld)
				require.Zero(t, m.Remaining())
				require.Empty(t, m.Token())
			}
			r.gone(t, 3*ttl, "a late success is refused and released")
			require.EqualValues(t, "release", strings.Fields(r.logs(0)[len(r.logs(0))-1])[0])
		}
	})
}

// Rule 3: an extend gives the key back to a master that has lost it, but only while the lock is valid by
// our clock.
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
		before := Until(m)
		require.NoError(t, m.Extend(t.Context()))
		require.True(t, Until(m).After(before))
		require.Equal(t, ttl-m.spec().Term.Drift-time.Millisecond, m.Remaining())
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
		r.gone(t, 100*time.Millisecond)
	})
}

// Rule 3, where the lock expires while the masters are asked.
func TestRule3ExtendThatComesTooLateRevivesNothing(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: time.Hour}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(m.Remaining() - time.Millisecond)
		r.set(func(m *fakeMaster) { m.delay = 2 * time.Millisecond }, all(3)...)
		require.ErrorIs(t, m.Extend(t.Context()), ErrExpired)
		require.Zero(t, m.Remaining())
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		r.gone(t, 10*time.Millisecond, "it is released, as nobody holds it")
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
	})
}

// Rule 3: if a majority had lost the key, the lock is lost, although all have it again. An extend says so
// at once, whichever masters had lost it, and in whichever order they answer.
func TestRule3ALossThatExtendCouldHideIsALoss(t *testing.T) {
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

// Rule 4: KeepAlive's context ends at the end of the validity at the latest, whatever hangs.
// TestContextEndsInTimeOnASaturatedProcessor is the same where every processor is busy.
func TestRule4KeepAliveEndsByTheDeadline(t *testing.T) {
	majority := []int{0, 1, 2}
	for name, change := range map[string]func(m *fakeMaster){
		"a majority hangs":       freeze,
		"a majority is down":     fail,
		"a majority answers not": func(m *fakeMaster) { m.vanish = func([]string) bool { return true } },
		"a majority is slow":     func(m *fakeMaster) { m.delay = time.Second },
	} {
		for _, wait := range []time.Duration{0, 999 * time.Millisecond, time.Second + time.Microsecond, 1500 * time.Millisecond} {
			t.Run(name+" after "+wait.String(), func(t *testing.T) {
				simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
					m := taken(t, c)
					held, _ := m.KeepAlive(t.Context())
					time.Sleep(wait)
					r.set(change, majority...)
					until := r.now() + m.Remaining()
					_, why := lostBy(t, r, held)
					require.LessOrEqual(t, r.now(), until)
					require.Greater(t, r.now(), until-2*maxMargin, "it was given up too early")
					require.ErrorIs(t, why, ErrNoQuorum)
					require.NotErrorIs(t, why, ErrNotHeld)
					require.Len(t, why.Votes, 5)
					require.GreaterOrEqual(t, c.Stats().RenewalsFailed, uint64(3), "it was tried again and again")
					require.EqualValues(t, 1, c.Stats().Lost)
				})
			})
		}
	}
}

// Rule 5: Unlock returns nil if a quorum deleted the key, ErrNotHeld only if the lock was lost before, and
// ErrNoQuorum if too few masters answered.
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
				require.Zero(t, m.Remaining())
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld, "it is unlocked, whatever came of it")
				require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
				r.set(func(m *fakeMaster) { m.down = nil }, u.down...)
				r.gone(t, 5*time.Millisecond, "those that were down get the release when they are back")
			})
		})
	}
}

// Rule 6: a master that does not know a script is sent its text once. What native commands do in its place
// is compared in kind_native_test.go.
func TestRule6UnknownScriptIsSentOnce(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(unscript, all(3)...)
		m := taken(t, c)
		require.NoError(t, m.Extend(t.Context()))
		holders, err := OnEach(c, t.Context(), "k")
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
