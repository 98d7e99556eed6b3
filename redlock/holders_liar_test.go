package redlock_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// besideOneWhoRepeats opens a client of two honest masters and one that names the holders, each with its life, to whoever asks
// who has a key. It says no to all else.
func besideOneWhoRepeats(t *testing.T, named ...string) (*redlock.Client, *redlocktest.Masters) {
	t.Helper()
	liar := conntest.Listen(t, func(c net.Conn) {
		conntest.Answer(c, func(args []string) (string, bool) {
			if said := ofItself(args[0]); said != "" {
				return said, true
			}
			switch args[0] {
			case "EVAL":
				switch {
				case strings.Contains(args[1], "local rows"):
					return arrayReply(readersRow(named...)), true
				case strings.Contains(args[1], "KEYS or ARGV"):
					var all []string
					for _, token := range named {
						all = append(all, bulkReply(token), ":60000\r\n")
					}
					return arrayReply(all...), true
				}
				return ":0\r\n", true
			case "SET":
				return "$-1\r\n", true
			}
			return "+OK\r\n", true
		})
	})
	masters := redlocktest.Start(t, 2)
	c := openUp(t, redlock.Config{Masters: append(masters.Addrs(), liar), StallTime: busy, RoundTimeout: busy})
	return c, masters
}

// One master that names a holder several times is one master all the same.
func TestAMasterThatRepeatsItselfIsOne(t *testing.T) {
	t.Parallel()
	mallory := aToken("mallory")
	c, _ := besideOneWhoRepeats(t, mallory, mallory, mallory)

	for l, err := range c.Watch(t.Context(), "lock:k") {
		require.NoError(t, err)
		require.Equal(t, redlock.Leader{}, redlock.LeaderOf(l))
		break
	}

	for name, opt := range map[string]redlock.Option{"shared": redlock.WithShared(), "permits": redlock.WithPermits(3), "plain": redlock.WithOwner("me")} {
		all, err := redlock.OnEach(c, t.Context(), "lock:k", opt)
		require.NoError(t, err, name)
		said := 0
		for _, h := range all {
			if h.Token.Reveal() == mallory {
				said++
			}
		}
		require.LessOrEqual(t, said, 1, name)
	}

	m := c.NewMutex("lock:k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	err := redlock.Refused(t, c.NewMutex("lock:k", time.Minute, redlock.WithShared()), "")
	require.NotContains(t, err.Error(), "mallory")
}

// One master that names many holders does not stand for those that are silent: the lock is not free.
func TestAMasterThatNamesManyIsOne(t *testing.T) {
	t.Parallel()
	c, masters := besideOneWhoRepeats(t, aToken("mallory"), aToken("malcolm"))
	require.NoError(t, c.NewMutex("lock:k", time.Minute).TryLock(t.Context()))
	masters.Kill(1)
	reaches(t, c, 1, "down")
	for l, err := range c.Watch(t.Context(), "lock:k") {
		require.ErrorIs(t, err, redlock.ErrNoQuorum, l)
		break
	}
}
