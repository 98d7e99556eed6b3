package mux_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// An operation allocates nothing while a master hangs, though that owes its replies, nor when
// its connection is reset, and the releases become debts.
func TestAHungMasterAllocatesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{
		Masters: masters.Addrs(), StallTime: 500 * time.Millisecond,
		Conn: conn.Options{Scripts: []string{releaseScript}},
	})
	waitUp(t, m, 5)
	acq, rel := acquire("k", "t"), release("k", "t")
	rel.Command = releaseSHA("k", "t")
	pair := func() {
		if err := m.Do(context.Background(), acq); err != nil || !acq.Won() {
			t.Error(err, acq.Votes)
		}
		if err := m.Do(context.Background(), rel); err != nil || !rel.Won() {
			t.Error(err, rel.Votes)
		}
	}
	pair()
	masters.Pause(2)
	before := m.Masters()[2]
	require.Zero(t, testing.AllocsPerRun(1000, pair), "it owes replies")
	if s := m.Masters()[2]; s.Phase == mux.Up { // a machine may be too busy for that
		require.GreaterOrEqual(t, s.Owed-before.Owed, 2000)
	}
	eventually(t, "it has stalled", func() bool { pair(); return m.Masters()[2].Phase == mux.Stalled })
	before = m.Masters()[2]
	require.Zero(t, testing.AllocsPerRun(1000, pair), "it is down")
	require.GreaterOrEqual(t, m.Masters()[2].Debts-before.Debts, 1000)
	masters.Resume(2)
	eventually(t, "nothing is owed", func() bool {
		s := m.Masters()[2]
		return s.Phase == mux.Up && s.Debts == 0 && s.Owed == 0
	})
}
