package held

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
		does func(h *Lock)
		at   time.Duration
		want bool
	}{
		"held":                    {func(*Lock) {}, now, true},
		"at the last moment":      {func(*Lock) {}, until - 1, true},
		"expired":                 {func(*Lock) {}, until, false},
		"extended":                {func(h *Lock) { h.prolong(later) }, until, true},
		"not shortened":           {func(h *Lock) { h.prolong(now) }, until - 1, true},
		"lost":                    {func(h *Lock) { h.lose(token, now) }, now, false},
		"another lock is lost":    {func(h *Lock) { h.lose([]byte("other"), now) }, now, true},
		"unlocked":                {func(h *Lock) { h.reset() }, now, false},
		"unlocked and taken anew": {func(h *Lock) { h.reset(); h.install(&round.Call{Token: token}, later, now) }, now, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHold()
			installed(t, h, &round.Call{Token: token}, until, nil)
			term := h.lease.epoch.Load()
			c.does(h)
			require.Equal(t, c.want, h.lease.Holds(term, c.at))
		})
	}
	require.False(t, new(Lock).lease.Holds(0, now), "there is no lock")
}

// The lease of an attempt is asked in the same way. It goes on as that of the lock that the
// attempt has taken, and is nobody else's.
func TestALeaseEndsWithItsAttempt(t *testing.T) {
	const now, until, far = 10 * time.Second, 20 * time.Second, time.Hour
	attempt := func(h *Lock, token string) *round.Call {
		k := &round.Call{Token: []byte(token)}
		h.BeginAttempt(k)
		return k
	}
	for name, c := range map[string]struct {
		does func(h *Lock, a *round.Call)
		at   time.Duration
		want bool
	}{
		"under way":               {func(*Lock, *round.Call) {}, far, true},
		"abandoned":               {func(h *Lock, a *round.Call) { h.EndAttempt(a) }, now, false},
		"another begins":          {func(h *Lock, a *round.Call) { attempt(h, "b") }, now, false},
		"it takes the lock":       {func(h *Lock, a *round.Call) { h.install(a, until, now) }, until - 1, true},
		"the lock expires":        {func(h *Lock, a *round.Call) { h.install(a, until, now) }, until, false},
		"the lock is unlocked":    {func(h *Lock, a *round.Call) { h.install(a, until, now); h.reset() }, now, false},
		"the lock is lost":        {func(h *Lock, a *round.Call) { h.install(a, until, now); h.lose(a.Token, now) }, now, false},
		"another lock is lost":    {func(h *Lock, a *round.Call) { h.install(a, until, now); h.lose([]byte("b"), now) }, now, true},
		"an unlock comes between": {func(h *Lock, a *round.Call) { h.reset() }, now, false},
		"the next has taken it": {func(h *Lock, a *round.Call) {
			b := attempt(h, "b")
			h.install(b, until, now)
		}, now, false},
		"it takes the lock while another is under way": {func(h *Lock, a *round.Call) {
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
	h.EndAttempt(a)
	require.True(t, h.attemptLease.Holds(b.LeaseEpoch, far), "only the first has been abandoned")
	installed(t, h, b, until, nil)
	installed(t, h, a, until+1, b.Token) // the first takes it from the second, which must have lost it
	require.False(t, h.attemptLease.Holds(b.LeaseEpoch, now), "what is known of the second's lock is gone")
	attempt(h, "c")
	h.EndAttempt(new(round.Call))
	require.True(t, h.attemptLease.Holds(h.attemptLease.epoch.Load(), far), "a plain lock's attempt has no lease")
}

func newHold() *Lock { return &Lock{spec: round.Spec{Traits: &round.Ordinary}, tokenText: new([]byte)} }

// installed installs the lock of a call, which releases what the hold had.
func installed(t *testing.T, h *Lock, k *round.Call, until time.Duration, replaced []byte) {
	t.Helper()
	had, ok := h.install(k, until, 1)
	require.True(t, ok)
	require.Equal(t, replaced, had.token)
}

func TestAHoldWithASecondLockIsNotInstalledOver(t *testing.T) {
	h := Lock{backing: &backing{ctx: t.Context()}}
	_, ok := h.install(&round.Call{Token: []byte("t")}, time.Hour, 1)
	require.False(t, ok, "it would never be released")
}
