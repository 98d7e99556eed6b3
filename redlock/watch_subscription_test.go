package redlock

import (
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A master whose connection has ended does not notify of what it has promised. So watchers look again.
func TestWatchersAreNotifiedOfADisconnect(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	s := c.watcherSubscriptions.add(&c.core, "k")
	defer c.watcherSubscriptions.remove(s)
	require.False(t, c.watcherSubscriptions.takeNotified(s))
	masters.Kill(1)
	require.Eventually(t, func() bool { return c.rounds.Masters()[1].Phase != mux.Up }, hanging, 5*time.Millisecond)
	require.True(t, c.watcherSubscriptions.takeNotified(s))
}

func TestWatchersAreNotifiedOfTheirKey(t *testing.T) {
	var (
		a watcherSubscriptions
		c core
	)
	k, j := a.add(&c, "k"), a.add(&c, "j")
	toldOf := func(push string) (of []string) {
		a.push(parse([]byte(push)))
		for _, s := range []*watcherSubscription{k, j} {
			if a.takeNotified(s) {
				of = append(of, s.key)
			}
		}
		return of
	}
	require.Equal(t, []string{"k"}, toldOf(">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\nx\r\n$1\r\nk\r\n"))
	require.Equal(t, []string{"k", "j"}, toldOf(">2\r\n$10\r\ninvalidate\r\n_\r\n"), "FLUSHALL")
	require.Empty(t, toldOf(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nx\r\n"))
	require.Empty(t, toldOf(">2\r\n$7\r\nmessage\r\n*1\r\n$1\r\nk\r\n"))
	a.remove(k)
	require.Equal(t, []string{"j"}, toldOf(">2\r\n$10\r\ninvalidate\r\n_\r\n"))
}
