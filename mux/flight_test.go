package mux_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// Many small debts leave no memory in use behind them either. They are more than may be queued at once.
func TestFlightsOfAnOutageAreGivenBack(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	before := heap()
	masters.Kill(0)
	eventually(t, "down", func() bool { return upCount(m) == 0 })
	for k := range 16_000 {
		m.Send(release(fmt.Sprint(strings.Repeat("k", 300), k), "t"))
	}
	require.Greater(t, int64(heap()-before), int64(4<<20))
	masters.Restart(0)
	waitUp(t, m, 1)
	eventually(t, "nothing is owed", func() bool { s := m.Masters()[0]; return s.Debts == 0 && s.Owed == 0 })
	require.Less(t, int64(heap()-before), int64(4<<20))
	op := acquire("other", "t")
	eventually(t, "an operation is won again", func() bool {
		require.NoError(t, m.Do(t.Context(), op))
		return granted(op)
	})
}
