package held

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// A lock that is lost at the end of its maximum lifetime is lost.
func TestALossAtTheEndOfTheLifetimeIsALoss(t *testing.T) {
	const now, over = time.Second, 2 * time.Second
	k := &KeepAlive{hold: &Lock{spec: round.Spec{Traits: &round.Ordinary, Term: quorum.NewTerm(time.Second, 0)}}, lifetimeEnd: over}
	k.until.Store(int64(clock.Forever))
	require.Equal(t, EndValidity, k.end(now), "it would have ended otherwise")
	require.Equal(t, EndLifetime, k.end(over))
	k.failure = failedBy{quorum.ErrNotHeld}
	require.Equal(t, EndRound, k.end(over), "the timer and the renewal have come at once")
	k.failure = failedBy{quorum.ErrNoQuorum}
	require.Equal(t, EndLifetime, k.end(over), "it is valid still")
	k.until.Store(int64(now))
	require.Equal(t, EndRound, k.end(over), "it was lost before")
}

// A failedBy is a Failure of which only the reason is asked.
type failedBy struct{ reason error }

func (f failedBy) Reason() error              { return f.reason }
func (failedBy) Revoked() bool                { return false }
func (failedBy) Entombed() bool               { return false }
func (failedBy) Note(string)                  {}
func (failedBy) Second(error)                 {}
func (failedBy) Blame(context.Context, error) {}
