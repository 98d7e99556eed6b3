package mux_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// While nobody calls, the tick notices a silent master, and the hang-up watcher a restart.
func TestFaultsAreNoticedWhileNobodyCalls(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: 3 * time.Second}) // which the others are never silent for
	waitUp(t, m, 3)
	masters.Pause(0)
	m.Send(acquire("k", "t"))
	eventually(t, "the silent master's connection is reset", func() bool { return m.Masters()[0].Phase == mux.Stalled })
	masters.Resume(0)
	waitUp(t, m, 3)
	for i := range 3 {
		masters.Restart(i)
	}
	eventually(t, "all are redialled", func() bool {
		for i, s := range m.Masters() {
			if want := uint64(2); i == 0 && s.Connects < want+1 || s.Connects < want || s.Phase != mux.Up {
				return false
			}
		}
		return true
	})
	op := acquire("k", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	yes, _, _, _ := count(op)
	require.Equal(t, 3, yes)
}

// Replies are read as fast as they come although nobody waits for them: a
// master that has answered everything does not lag behind.
func TestMasterThatAnswersAllIsNotRefusedForALackOfReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	op := release("k", "t")
	op.Command, op.Verdict = resp.AppendCommand(nil, "GET", "k"), func(resp.Value) mux.Verdict { return mux.VerdictYes }
	for sent := 0; sent < 60_000; {
		for range 4000 {
			m.Send(op)
			sent++
		}
		eventually(t, "the master has answered", func() bool {
			stats, err := masters.Do(0, "INFO", "commandstats")
			if err != nil {
				return false // it is too busy to say
			}
			return conntest.Calls(stats, "GET")+int(m.Masters()[0].Failures) >= sent
		})
	}
	require.Zero(t, m.Masters()[0].Failures)
}
