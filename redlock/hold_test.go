package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/internal/round"
)

// The mux asks for the lease before it sends again what can set a key: the lease ends when the
// lock does, in whatever way, and the next lock has another.
func TestALeaseEndsWithItsLock(t *testing.T) {
	const now, until, later = 10 * time.Second, 20 * time.Second, 30 * time.Second
	token := []byte("token")
	for name, c := range map[string]struct {
		does func(h *hold)
		at   time.Duration
		want bool
	}{
		"held":                    {func(*hold) {}, now, true},
		"at the last moment":      {func(*hold) {}, until - 1, true},
		"expired":                 {func(*hold) {}, until, false},
		"extended":                {func(h *hold) { h.prolong(later) }, until, true},
		"not shortened":           {func(h *hold) { h.prolong(now) }, until - 1, true},
		"lost":                    {func(h *hold) { h.lose(token, now) }, now, false},
		"another lock is lost":    {func(h *hold) { h.lose([]byte("other"), now) }, now, true},
		"unlocked":                {func(h *hold) { h.reset() }, now, false},
		"unlocked and taken anew": {func(h *hold) { h.reset(); h.install(&round.Call{Token: token}, later, now) }, now, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHold()
			installed(t, h, &round.Call{Token: token}, until, nil)
			term := h.lease.epoch.Load()
			c.does(h)
			require.Equal(t, c.want, h.lease.Holds(term, c.at))
		})
	}
	require.False(t, new(hold).lease.Holds(0, now), "there is no lock")
}

// The lease of an attempt is asked in the same way. It goes on as that of the lock that the
// attempt has taken, and is nobody else's.
func TestALeaseEndsWithItsAttempt(t *testing.T) {
	const now, until, far = 10 * time.Second, 20 * time.Second, time.Hour
	attempt := func(h *hold, token string) *round.Call {
		return &round.Call{Token: []byte(token), LeaseEpoch: h.beginAttempt()}
	}
	for name, c := range map[string]struct {
		does func(h *hold, a *round.Call)
		at   time.Duration
		want bool
	}{
		"under way":               {func(*hold, *round.Call) {}, far, true},
		"abandoned":               {func(h *hold, a *round.Call) { h.endAttempt(a.LeaseEpoch) }, now, false},
		"another begins":          {func(h *hold, a *round.Call) { attempt(h, "b") }, now, false},
		"it takes the lock":       {func(h *hold, a *round.Call) { h.install(a, until, now) }, until - 1, true},
		"the lock expires":        {func(h *hold, a *round.Call) { h.install(a, until, now) }, until, false},
		"the lock is unlocked":    {func(h *hold, a *round.Call) { h.install(a, until, now); h.reset() }, now, false},
		"the lock is lost":        {func(h *hold, a *round.Call) { h.install(a, until, now); h.lose(a.Token, now) }, now, false},
		"another lock is lost":    {func(h *hold, a *round.Call) { h.install(a, until, now); h.lose([]byte("b"), now) }, now, true},
		"an unlock comes between": {func(h *hold, a *round.Call) { h.reset() }, now, false},
		"the next has taken it": {func(h *hold, a *round.Call) {
			b := attempt(h, "b")
			h.install(b, until, now)
		}, now, false},
		"it takes the lock while another is under way": {func(h *hold, a *round.Call) {
			attempt(h, "b")
			h.install(a, until, now)
		}, now, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHold()
			a := attempt(h, "a")
			c.does(h, a)
			require.Equal(t, c.want, h.attemptLease.Holds(a.LeaseEpoch, c.at))
		})
	}

	h := newHold()
	a, b := attempt(h, "a"), attempt(h, "b")
	h.endAttempt(a.LeaseEpoch)
	require.True(t, h.attemptLease.Holds(b.LeaseEpoch, far), "only the first has been abandoned")
	installed(t, h, b, until, nil)
	installed(t, h, a, until+1, b.Token) // the first takes it from the second, which must have lost it
	require.False(t, h.attemptLease.Holds(b.LeaseEpoch, now), "what is known of the second's lock is gone")
	h.beginAttempt()
	h.endAttempt(0)
	require.True(t, h.attemptLease.Holds(h.attemptLease.epoch.Load(), far), "a plain lock's attempt has no lease")
}

func newHold() *hold { return &hold{spec: round.Spec{Traits: &round.Ordinary}, tokenText: new([]byte)} }

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
				time.Sleep(10 * time.Millisecond)
				require.Zero(t, r.keys(), name)
			}
		})
	}
}

// installed installs the lock of a call, which releases what the hold had.
func installed(t *testing.T, h *hold, k *round.Call, until time.Duration, replaced []byte) {
	t.Helper()
	had, ok := h.install(k, until, 1)
	require.True(t, ok)
	require.Equal(t, replaced, had)
}
