package mux_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A master that reads all and answers nothing owes a bounded number of replies, however
// small the commands are.
func TestRepliesThatAMasterMayOweAreBounded(t *testing.T) {
	const most = 1 << 15
	m := open(t, mux.Config{Masters: []string{newFake(t, "silent", silent).addr()}})
	op := &mux.Op{Command: resp.AppendCommand(nil, "GET", "k"), Judge: judgeAnyInt}
	for range 2 * most {
		m.Send(op)
	}
	s := m.Masters()[0]
	require.Equal(t, most, s.Owed)
	require.EqualValues(t, most, s.Failures)
	require.NoError(t, m.Do(t.Context(), op))
	require.ErrorIs(t, op.Votes[0].Err, mux.ErrBacklog)
}
