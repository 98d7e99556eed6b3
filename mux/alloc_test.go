package mux_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// lockAndBack returns what takes a lock and releases it.
func lockAndBack(t *testing.T, ctx context.Context, m *mux.Mux) func() {
	acq, rel := acquire("k", "t"), release("k", "t")
	rel.Command = releaseSHA("k", "t")
	return func() {
		if err := m.Do(ctx, acq); err != nil || !granted(acq) {
			t.Error(err, acq.Votes)
		}
		if err := m.Do(ctx, rel); err != nil || !granted(rel) {
			t.Error(err, rel.Votes)
		}
	}
}

// An operation allocates nothing while a master hangs, though that owes its replies, nor when
// its connection is reset, and the releases become debts.
func TestAHungMasterAllocatesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{
		Masters: masters.Addrs(), StallTime: 500 * time.Millisecond,
		Conn: conn.Options{Scripts: []string{releaseScript}},
	})
	waitUp(t, m, 5)
	pair := lockAndBack(t, context.Background(), m)
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

// Nor does one that keeps the replies, or who looks at the masters, if they do so again.
func TestWhatIsKeptIsKeptInTheSameMemory(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 3)
	ask := func(text string) *mux.Op {
		return &mux.Op{
			Command: resp.AppendCommand(nil, "ECHO", text), All: true, Keep: true,
			Verdict: func(v resp.Value) mux.Verdict { return mux.VerdictYes },
		}
	}
	said := func(op *mux.Op) (all []string) {
		for _, v := range op.Votes {
			all = append(all, string(v.Reply.Bytes()))
		}
		return all
	}
	one, other := ask("one"), ask("the other")
	require.NoError(t, m.Do(t.Context(), one))
	require.NoError(t, m.Do(t.Context(), other))
	require.Equal(t, []string{"one", "one", "one"}, said(one))
	require.Equal(t, []string{"the other", "the other", "the other"}, said(other))
	for _, size := range []int{10, 1000, 20_000, 500} { // more than is kept is not
		text := strings.Repeat("x", size)
		one.Command = resp.AppendCommand(nil, "ECHO", text)
		require.NoError(t, m.Do(t.Context(), one))
		require.Equal(t, []string{text, text, text}, said(one))
	}
	require.Equal(t, []string{"the other", "the other", "the other"}, said(other))
	var states []mux.State
	require.Zero(t, testing.AllocsPerRun(500, func() {
		if err := m.Do(context.Background(), one); err != nil {
			t.Error(err)
		}
		states = m.AppendMasters(states[:0])
	}))
	require.Len(t, states, 3)
}

func TestSteadyPathAllocatesNothing(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Scripts: []string{releaseScript}}})
	waitUp(t, m, 5)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pair := lockAndBack(t, ctx, m)
	// A busy machine makes operations long, and long ones may allocate, to see the
	// end of their context: one series of short ones is the proof.
	allocs := testing.AllocsPerRun(500, pair)
	for tries := 0; allocs > 0 && tries < 50; tries++ {
		allocs = testing.AllocsPerRun(50, pair)
	}
	require.Zero(t, allocs)
}
