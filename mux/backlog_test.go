package mux_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

func fill(m *mux.Mux) {
	op := acquire("k", "t")
	op.Command = resp.AppendCommand(nil, "SET", "big", strings.Repeat("x", 8000))
	for m.Masters()[0].Failures == 0 {
		m.Send(op)
	}
}

// A master that reads all and answers nothing owes a bounded number of replies, however
// small the commands are.
func TestRepliesThatAMasterMayOweAreBounded(t *testing.T) {
	t.Parallel()
	const most = 1 << 15
	m := open(t, mux.Config{Masters: []string{newFake(t, "silent", silent).addr()}})
	op := &mux.Op{Command: resp.AppendCommand(nil, "GET", "k"), Verdict: verdictAnyInt}
	for range 2 * most {
		m.Send(op)
	}
	s := m.Masters()[0]
	require.Equal(t, most, s.Owed)
	require.EqualValues(t, most, s.Failures)
	require.NoError(t, m.Do(t.Context(), op))
	require.ErrorIs(t, op.Votes[0].Err, mux.ErrBacklog)
}

// A hung master's backlog is bounded, its operations fail there at once, and a
// release that found no room is delivered when it answers again.
func TestBacklogOfAHungMasterIsBounded(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
	waitUp(t, m, 3)
	masters.Pause(2)
	op := acquire("k", "t")
	token := strings.Repeat("x", 1_000_000) // a dozen fill the buffers, long before the connection times out
	full := false
	for k := 0; !full; k++ {
		op.Command = resp.AppendCommand(op.Command[:0], "SET", "k", token)
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, granted(op))
		full = op.Votes[2].Verdict == mux.VerdictFailed
		require.Less(t, k, 1<<15)
	}
	require.ErrorIs(t, op.Votes[2].Err, mux.ErrBacklog)
	rel := release("k", token)
	require.NoError(t, m.Do(t.Context(), rel))
	require.True(t, granted(rel))
	require.Equal(t, 1, m.Masters()[2].Debts)
	masters.Resume(2)
	eventually(t, "the debt is paid", func() bool {
		s := m.Masters()[2]
		if s.Owed == 0 && s.Debts > 0 {
			m.Do(t.Context(), release("other", "t")) // whoever calls next pays it
		}
		return s.Debts == 0 && s.Owed == 0
	})
	require.Zero(t, keysOn(t, masters, 2))
}
