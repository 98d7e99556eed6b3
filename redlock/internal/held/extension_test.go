package held

import (
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/stretchr/testify/require"
)

// While a round is under way another one can have had a master set the lock again. The master's yes may come of that set, so it
// counts for nothing: neither for an extension nor for a round of a relay.
func TestAYesThatARepairMayHaveMadeCountsForNothing(t *testing.T) {
	const now = time.Hour
	token := []byte("token")
	core := &Core{Round: &round.Core{Mux: nearMasters{}}, Now: func() time.Duration { return now }, counts: new(Counts)}
	answered := func() *round.Call {
		k := &round.Call{Token: token}
		k.Op.Votes = []mux.Vote{{Verdict: mux.VerdictYes}, {Verdict: mux.VerdictYes}, {Verdict: mux.VerdictFailed, Err: mux.ErrTimeout}}
		k.Op.Started = now
		return k
	}
	for _, repaired := range []bool{false, true} {
		h := newHold()
		h.spec.Term = quorum.NewTerm(time.Minute, 0)
		installed(t, h, &round.Call{Token: token}, now+time.Second, nil)
		x := extension{core: core, hold: h, call: answered(), trust: h.memory().Begin()}
		r := &relay{of: &relays{core: core}, spec: &h.spec, token: token, until: now + time.Second}
		r.trust = r.sets.Begin()
		if repaired {
			h.memory().Sent(mux.Set(0).With(1), now, now)
			r.sets.Sent(mux.Set(0).With(1), now, now)
		}
		_, _, reason := x.complete(nil, true)
		lost, _ := r.complete(answered(), nil)
		require.False(t, lost)
		require.Equal(t, repaired, r.over, "it can be given on")
		if repaired {
			require.Equal(t, quorum.ErrNoQuorum, reason)
			require.Equal(t, now+time.Second, h.until)
		} else {
			require.NoError(t, reason)
			require.Greater(t, h.until, now+time.Second)
		}
	}
}
