package redlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A frozen master does what it finds in its buffers when it thaws, however late: here it sets the key of an attempt that has
// failed, and would have expired since.
func TestThawedMasterIsToldOfAReleaseHoweverLateItIs(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second // longer than a busy machine needs for the acquire
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs(), StallTime: time.Second})
	m := c.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	masters.Pause(1)
	masters.Pause(2)
	require.Error(t, c.NewMutex("late", ttl).TryLock(t.Context()))
	expired := time.Now().Add(ttl + 100*time.Millisecond) // on the masters, if nobody extends or sets it
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	conntest.Soon(t, "the lock is lost", held.Done())
	for _, i := range []int{1, 2} {
		require.Eventually(t, func() bool { return c.round.Mux.Masters()[i].Phase != mux.Up }, hanging, 5*time.Millisecond)
	}
	require.Error(t, m.Unlock(t.Context()))
	time.Sleep(time.Until(expired))
	for _, i := range []int{1, 2} {
		masters.Resume(i)
		comesUp(t, c, i)
		require.Eventually(t, func() bool {
			s := c.round.Mux.Masters()[i]
			return s.Owed == 0 && s.Debts == 0
		}, hanging, 5*time.Millisecond)
		n := Says(t, masters, i, "EXISTS", "k", "late") // which it was set when it thawed
		require.Equal(t, "0", fmt.Sprint(n))
	}
}
