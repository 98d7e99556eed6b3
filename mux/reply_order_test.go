package mux_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// OnReply and OnPush are called in the order in which a master has sent the replies and the pushes, also for an
// operation that was forgotten.
func TestOnReplyIsInTheOrderOfThePushes(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var came [3][]string
	cfg := mux.Config{Masters: masters.Addrs(), OnPush: func(i int, v resp.Value) { came[i] = append(came[i], "push") }}
	cfg.Conn.Tracking = true
	m := open(t, cfg)
	waitUp(t, m, 3)
	ask := func(what string) *mux.Op {
		command := resp.AppendCommand(nil, "CLIENT", "CACHING", "YES")
		return &mux.Op{Command: resp.AppendCommand(command, "EXISTS", "k"), Replies: 2, Verdict: verdictAnyInt,
			OnReply: func(i int, _ resp.Value) { came[i] = append(came[i], what) }}
	}
	write := func() *mux.Op {
		return &mux.Op{Command: resp.AppendCommand(nil, "INCR", "k"), Verdict: verdictAnyInt}
	}
	ops := []*mux.Op{ask("first"), write(), ask("second"), write()}
	m.Post(ops...)
	for _, op := range ops {
		m.Forget(op)
	}
	last := &mux.Op{Command: resp.AppendCommand(nil, "EXISTS", "k"), Verdict: verdictAnyInt, All: true, Timeout: patience}
	require.NoError(t, m.Do(t.Context(), last))
	m.Locked(func() {
		for i := range came {
			require.Equal(t, []string{"first", "push", "second", "push"}, came[i])
		}
	})
}

// A panic of OnReply, or of a VerdictFunc, is the master's failed vote, and no more.
func TestPanicOfWhoReadsAReply(t *testing.T) {
	t.Parallel()
	f := newFake(t, "m", steady(0))
	m := open(t, mux.Config{Masters: []string{f.addr()}})
	waitUp(t, m, 1)
	for _, panics := range []func(op *mux.Op){
		func(op *mux.Op) { op.OnReply = func(int, resp.Value) { panic("the user's") } },
		func(op *mux.Op) { op.Verdict = func(resp.Value) mux.Verdict { panic("the user's") } },
	} {
		op := vote("x")
		panics(op)
		require.NoError(t, m.Do(t.Context(), op))
		require.ErrorContains(t, op.Votes[0].Err, "the user's")
		op = vote("x")
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, granted(op))
	}
}
