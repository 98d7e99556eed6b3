package redlock

import (
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/stretchr/testify/require"
)

// A master whose connection has ended does not notify of what it has promised. So watchers look again.
func TestWatchersAreNotifiedOfADisconnect(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	var l tracking.Listener
	l.Init(&c.tracking)
	l.Listen(1, 1, "k")
	defer l.End()
	require.False(t, l.TakeNotified())
	masters.Kill(1)
	require.Eventually(t, func() bool { return c.round.Mux.Masters()[1].Phase != mux.Up }, hanging, 5*time.Millisecond)
	require.True(t, l.TakeNotified())
}
