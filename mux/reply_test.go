package mux_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

func TestFallbackIsSentOncePerMaster(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	op := release("k", "t")
	op.All = true
	op.Verdict = func(resp.Value) mux.Verdict { return mux.VerdictAgain } // never content
	require.NoError(t, m.Do(t.Context(), op))
	_, _, failed, _ := count(op)
	require.Equal(t, 3, failed)
	for i := range 3 {
		require.Contains(t, says(t, masters, i, "INFO", "commandstats"), "cmdstat_eval:calls=1,")
	}
}

// If a master's error quotes the arguments of our command, they are cut off.
func TestErrorOfAMasterQuotesNoToken(t *testing.T) {
	t.Parallel()
	f := newFake(t, "renamed", func() script {
		return func(args []string) (string, bool) {
			return "-ERR unknown command 'EVALSHA', with args beginning with: '" + strings.Join(args[1:], "' '") + "' \r\n", true
		}
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}})
	op := release("k", "owner/secret")
	require.NoError(t, m.Do(context.Background(), op))
	require.EqualError(t, op.Votes[0].Err, "ERR unknown command 'EVALSHA'")
}

// A reply that nobody has asked for says that replies and commands do not match any more: none of
// the connection's is taken from then on.
func TestReplyThatNobodyHasAskedForEndsTheConnection(t *testing.T) {
	t.Parallel()
	f := newFake(t, "twice", func() script {
		return func([]string) (string, bool) { return ":1\r\n:1\r\n", true }
	})
	told := make(chan error, 100)
	m := open(t, mux.Config{Masters: []string{f.addr()}, OnState: func(_ int, s mux.State) {
		if s.Phase == mux.Down {
			told <- s.Err
		}
	}})
	require.NoError(t, m.Do(t.Context(), vote("a")))
	require.ErrorIs(t, conntest.Soon(t, "the connection ends", told), mux.ErrUnexpected)
}
