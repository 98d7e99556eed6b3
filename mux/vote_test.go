package mux_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

func TestAQuorumOfYesDecidesAndTheRestAreStragglers(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 5)
	require.Equal(t, 5, m.Len())
	for k := range 200 {
		key := fmt.Sprint("key", k)
		op := acquire(key, "a")
		require.NoError(t, m.Do(t.Context(), op))
		require.True(t, granted(op))
		yes, no, failed, _ := count(op)
		require.Equal(t, 3, yes)
		require.Zero(t, no+failed)
		require.GreaterOrEqual(t, op.Decided, op.Started)

		op = acquire(key, "b")
		require.NoError(t, m.Do(t.Context(), op))
		require.False(t, granted(op))

		op = release(key, "a") // never overtakes the acquire: all five must say yes
		op.All = true
		require.NoError(t, m.Do(t.Context(), op))
		yes, _, _, _ = count(op)
		require.Equal(t, 5, yes, "release overtook the acquire: %v", op.Votes)
	}
	eventually(t, "all replies in", func() bool {
		owed := 0
		for _, s := range m.Masters() {
			owed += s.Owed
		}
		return owed == 0
	})
	for _, s := range m.Masters() {
		require.GreaterOrEqual(t, s.Replies, uint64(3*200), "stragglers included")
		require.Positive(t, s.RTT)
	}
	require.Positive(t, m.RTT())
}

func TestThoroughOperationHearsEveryMasterBeforeItFails(t *testing.T) {
	t.Parallel()
	for last := range 3 {
		others := make(chan struct{})
		want := []mux.Verdict{mux.VerdictNo, mux.VerdictNo, mux.VerdictNo}
		want[last] = mux.VerdictYes
		var addrs []string
		for i := range 3 {
			addrs = append(addrs, newFake(t, fmt.Sprint(i), func() script {
				return func([]string) (string, bool) {
					if i != last {
						return ":0\r\n", true
					}
					<-others // have said no
					return ":1\r\n", true
				}
			}).addr())
		}
		m := open(t, mux.Config{Masters: addrs})
		waitUp(t, m, 3)
		op := vote("a")
		op.Verdict, op.Thorough = verdictOne, true
		m.Post(op)
		eventually(t, "the others have answered", func() bool {
			all := m.Masters()
			return all[0].Replies+all[1].Replies+all[2].Replies == 2
		})
		close(others)
		require.NoError(t, m.Wait(t.Context(), op))
		require.False(t, granted(op))
		require.Equal(t, want, verdicts(op))
	}
}

func TestDeadMajorityFailsAtOnceWithCausesAndServiceReturns(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	m := open(t, mux.Config{Masters: masters.Addrs()})
	waitUp(t, m, 5)
	for i := range 3 {
		masters.Kill(i)
	}
	eventually(t, "three are down", func() bool { return upCount(m) == 2 })
	op := acquire("k", "t")
	op.Timeout = time.Hour // it is not the timeout that ends it
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, granted(op))
	for i := range 3 {
		require.Equal(t, mux.VerdictFailed, op.Votes[i].Verdict)
		require.ErrorContains(t, op.Votes[i].Err, masters.Addr(i))
	}
	// It could not succeed, so nothing was written that would have to be undone.
	require.Equal(t, mux.VerdictPending, op.Votes[3].Verdict)
	require.Zero(t, op.Asked)
	require.Zero(t, keysOn(t, masters, 3))
	for i := range 3 {
		masters.Restart(i)
	}
	waitUp(t, m, 5)
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, granted(op))
}
