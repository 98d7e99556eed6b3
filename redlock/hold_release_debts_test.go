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

// A frozen master does what it finds in its buffers when it thaws, however late: here it
// sets keys again of a lock that was released and has expired since.
func TestThawedMasterIsToldOfAReleaseHoweverLateItIs(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second // longer than a busy machine needs for the acquire
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs(), StallTime: time.Second})
	m := c.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	expired := time.Now().Add(ttl + 100*time.Millisecond) // on the masters, if nobody extends it
	masters.Pause(1)
	masters.Pause(2)
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	conntest.Soon(t, "the lock is lost", held.Done())
	for _, i := range []int{1, 2} {
		require.Eventually(t, func() bool { return c.rounds.Masters()[i].Phase != mux.Up }, hanging, 5*time.Millisecond)
	}
	require.Error(t, m.Unlock(t.Context()))
	time.Sleep(time.Until(expired))
	for _, i := range []int{1, 2} {
		masters.Resume(i)
		comesUp(t, c, i)
		require.Eventually(t, func() bool {
			s := c.rounds.Masters()[i]
			return s.Owed == 0 && s.Debts == 0
		}, hanging, 5*time.Millisecond)
		n, err := masters.Do(i, "EXISTS", "k")
		require.NoError(t, err)
		require.Equal(t, "0", fmt.Sprint(n))
	}
}

// A release that masters refuse for a moment is not forgotten.
func TestReleaseThatIsRefusedForAMomentIsRepeated(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	m := c.NewMutex("k", time.Hour)
	require.NoError(t, m.TryLock(t.Context()))
	for i := range 3 {
		command(t, masters, i, "CONFIG", "SET", "min-replicas-to-write", "1")
	}
	if _, err := masters.Do(0, "EVAL", "return redis.call('DEL', 'other')", "0"); err == nil {
		t.Skip("a script writes here though replicas are missing, as before Redis 7")
	}
	require.ErrorIs(t, m.Unlock(t.Context()), ErrNoQuorum)
	require.Positive(t, c.rounds.Masters()[0].Debts)
	for i := range 3 {
		command(t, masters, i, "CONFIG", "SET", "min-replicas-to-write", "0")
		require.Eventually(t, func() bool {
			n, err := masters.Do(i, "EXISTS", "k")
			return err == nil && fmt.Sprint(n) == "0"
		}, hanging, 5*time.Millisecond)
	}
}

// A master that had the acquire and whose connection broke then owes nothing: we
// owe it the release.
func TestReleaseIsOwedToAMasterThatWasCutOff(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(occupy, 0, 1)
		r.set(func(m *fakeMaster) { m.delay = time.Millisecond / 2 }, 2)
		m := c.NewMutex("k", ttl)
		require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld)
		// Master 2 was cut off before the release came, and is back.
		r.set(fail, 2)
		time.Sleep(10 * time.Millisecond)
		token, _ := r.keyOf(2)
		require.NotEmpty(t, token)
		r.set(func(m *fakeMaster) { m.down = nil }, 2)
		time.Sleep(time.Millisecond)
		token, _ = r.keyOf(2)
		require.Empty(t, token)
	})
}

func TestOutageIsNotPaidForWithDebts(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(fail, 0, 1, 2)
		for range 1000 {
			require.ErrorIs(t, c.NewMutex("k", ttl).TryLock(t.Context()), ErrNoQuorum)
		}
		require.Empty(t, r.masters[0].debts)
		require.Empty(t, r.logs(4), "nothing was asked")
	})
}
