package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Masters that lack commands: hosters rename what they do not want to be called.

// lacking starts masters that do not know these commands.
func lacking(t *testing.T, n int, commands ...string) *redlocktest.Masters {
	t.Helper()
	var args []string
	for _, command := range commands {
		args = append(args, "--rename-command", command, "renamed-"+strings.ToLower(command))
	}
	return redlocktest.Start(t, n, redlocktest.WithArgs(args...))
}

// Hosters rename what they do not want to be called. A lock needs few commands.
func TestLockNeedsNoOptionalCommand(t *testing.T) {
	t.Parallel()
	for _, commands := range [][]string{
		{"CONFIG"}, {"CLIENT"}, {"INFO"}, {"HELLO"}, {"COMMAND"},
		{"HELLO", "CLIENT", "CONFIG", "INFO", "ROLE", "COMMAND", "PING"},
	} {
		t.Run(strings.Join(commands, ","), func(t *testing.T) {
			t.Parallel()
			masters := lacking(t, 3, commands...)
			cfg := redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy}
			holder, other := openConfig(t, cfg), openConfig(t, cfg)
			for i := range 3 {
				reaches(t, holder, i, "up")
				reaches(t, other, i, "up")
			}
			m, next := holder.NewMutex("k", long), other.NewMutex("k", long)
			on := func(text string) func() bool { // every master
				token := redlock.NewSecret(text)
				return func() bool {
					all, err := other.Holders(t.Context(), "k")
					return err == nil && all[0].Token == token && all[1].Token == token && all[2].Token == token
				}
			}
			require.NoError(t, m.Lock(t.Context()))
			require.Eventually(t, on(m.Token()), time.Minute, 5*time.Millisecond)
			require.NoError(t, m.Extend(t.Context()))
			masters.Flush(1)
			require.NoError(t, m.Extend(t.Context()))
			require.Eventually(t, on(m.Token()), time.Minute, 5*time.Millisecond)
			waited := make(chan error, 1)
			go func() { waited <- next.Lock(t.Context()) }()
			require.Eventually(t, func() bool { return other.Stats().Waiting == 1 }, time.Minute, 5*time.Millisecond)
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, <-waited)
			require.NoError(t, next.Unlock(t.Context()))
			require.Eventually(t, on(""), time.Minute, 5*time.Millisecond)
		})
	}
}

// Native commands, where the server has them, do not replace all scripts.
func TestMastersWithoutScriptsAreRefused(t *testing.T) {
	t.Parallel()
	masters := lacking(t, 3, "SCRIPT")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("it tries for ever"))
	defer cancel()
	_, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), DialTimeout: busy})
	require.ErrorIs(t, err, conn.ErrRefused)
	require.ErrorContains(t, err, "SCRIPT LOAD: ERR unknown command")
	require.ErrorContains(t, err, "use a master that can run Lua scripts")
	require.NoError(t, ctx.Err())
}
