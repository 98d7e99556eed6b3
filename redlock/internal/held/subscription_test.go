package held

import (
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/stretchr/testify/require"
)

// Renewals for what masters notify of pause for ever longer while it is nothing, up to the time between two renewals. Whatever
// has changed, and a while without a notice, end that.
func TestVainNoticesAreHeededEverMoreSeldom(t *testing.T) {
	const ttl = 3 * time.Minute
	h := &Lock{spec: round.Spec{Traits: &round.Ordinary, Term: quorum.NewTerm(ttl, 0)}}
	s := heldSubscription{keepAlive: &KeepAlive{hold: h}, pause: tracking.NotifyPause}
	now := time.Hour
	begins := func(wanted time.Duration) bool {
		s.wantedAt = wanted
		notified := s.begin(now)
		require.Zero(t, s.wantedAt, "it is renewed, whatever the reason")
		return notified
	}
	require.False(t, begins(0))
	require.False(t, begins(now+1), "not for what is still to be waited for")
	require.Zero(t, s.notUntil)
	one, votes := mux.Set(0).With(1), func(of ...mux.Verdict) (all []mux.Vote) {
		for _, v := range of {
			all = append(all, mux.Vote{Verdict: v})
		}
		return all
	}
	vain, loss := votes(mux.VerdictNo, mux.VerdictYes), votes(mux.VerdictYes, mux.VerdictNo)
	const most = ttl / quorum.RenewAfter
	for range 2 {
		for pause := tracking.NotifyPause; pause < 4*most; pause *= 2 {
			pause := min(pause, most)
			require.True(t, begins(now))
			require.Equal(t, now+pause, s.notUntil)
			s.end(one, vain)
			require.Equal(t, now+2*pause, s.notUntil)
			require.Equal(t, min(2*pause, most), s.pause)
			now = s.notUntil
		}
		s.end(one, votes(mux.VerdictYes, mux.VerdictFailed))
		require.Equal(t, most, s.pause, "nobody knows")
		s.end(one.With(0), votes(mux.VerdictYes, mux.VerdictNo))
		require.Equal(t, tracking.NotifyPause, s.pause, "one had lost it")

		s.end(one, vain)
		s.end(one, loss)
		require.Equal(t, tracking.NotifyPause, s.pause)
		s.end(one, vain)
		now = s.notUntil + 2*tracking.NotifyPause - 1
		require.True(t, begins(now))
		require.Equal(t, now+2*tracking.NotifyPause, s.notUntil, "the while is not over")
		now = s.notUntil + 2*tracking.NotifyPause
		require.True(t, begins(now))
		require.Equal(t, now+tracking.NotifyPause, s.notUntil)
		now = s.notUntil + time.Hour
	}
}
