package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		"unlocked and taken anew": {func(h *hold) { h.reset(); h.install(&call{token: token}, later, now) }, now, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := new(hold)
			require.True(t, h.install(&call{token: token}, until, now))
			term := h.lease.term.Load()
			c.does(h)
			require.Equal(t, c.want, h.lease.Holds(term, c.at))
		})
	}
	require.False(t, new(hold).lease.Holds(0, now), "there is no lock")
}
