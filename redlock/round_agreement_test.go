package redlock

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// agreed reports whether an attempt of the Mutex at one of these times would rely on an agreement. Those of an attempt's
// beginning and end are both given, as a minute can end between them.
func agreed(m *Mutex, when ...time.Duration) bool {
	return slices.ContainsFunc(when, func(at time.Duration) bool {
		sure, _ := m.client.round.Agreed.Lately(m.spec(), at)
		return sure
	})
}

// A client may rely on an agreement that it has found lately: the mark lives on for longer.
func TestTheMarkOutlivesWhatReliesOnIt(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 1)
	m := c.NewMutex("k", 30*time.Second, WithPermits(2))
	life := func() time.Duration {
		return time.Duration(Says(t, masters, 0, "PTTL", "{k}:permits").(int64)) * time.Millisecond
	}
	require.NoError(t, m.TryLock(t.Context())) // the master learns the script
	require.NoError(t, m.Unlock(t.Context()))
	before := c.now()
	require.NoError(t, m.TryLock(t.Context()))
	require.Greater(t, life(), kind.AgreedFor+30*time.Second)
	require.True(t, agreed(m, before, c.now()))
	require.False(t, agreed(m, c.now()+kind.AgreedFor))
	require.False(t, agreed(c.NewMutex("k", 30*time.Second, WithPermits(3)), c.now()), "for another k")
	require.False(t, agreed(c.NewMutex("k", 31*time.Second, WithPermits(2)), c.now()), "for another TTL")
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, m.TryLock(t.Context()))
	Says(t, masters, 0, "PEXPIRE", "{k}:permits", "1000")
	require.NoError(t, m.Extend(t.Context()))
	require.Greater(t, life(), kind.AgreedFor+30*time.Second)

	// What is known counts from the beginning of the attempt: this one ends a minute after that.
	clock := c.now
	c.now = func() time.Duration { return clock() + kind.AgreedFor }
	late := c.NewMutex("k", time.Hour, WithPermits(2))
	before = clock()
	require.NoError(t, late.TryLock(t.Context()))
	require.True(t, agreed(late, before, clock()))
}

// A quorum of the masters forgets all, one after the other, and each is in quarantine for as long as
// that takes. So no lock is forgotten, but the number of permits is. A client that has agreed to another
// number before must not rely on that.
func TestWhoHasAgreedOnAnotherNumberIsRefusedOnceItIsForgotten(t *testing.T) {
	for name, forget := range map[string]func(*redlocktest.Masters, int){
		"restarted": func(masters *redlocktest.Masters, i int) { masters.Kill(i); masters.Restart(i) },
		"flushed":   func(masters *redlocktest.Masters, i int) { masters.Flush(i) }, // and its connections stay
	} {
		for _, guard := range []time.Duration{0, 5 * time.Second} {
			t.Run(fmt.Sprint(name, guard), func(t *testing.T) {
				t.Parallel()
				const ttl = 5 * time.Second
				masters := redlocktest.Start(t, 3)
				first := openedWith(t, Config{Masters: masters.Addrs(), RestartGuard: guard})
				two, other := first.NewMutex("k", ttl, WithPermits(2)), first.NewMutex("other", ttl)
				require.NoError(t, other.TryLock(t.Context()))
				require.NoError(t, other.Unlock(t.Context()))
				before := first.now()
				require.NoError(t, two.TryLock(t.Context()))
				require.NoError(t, two.Unlock(t.Context()))
				after := first.now()
				require.True(t, agreed(two, before, after))
				for i := range 2 {
					forget(masters, i)
					require.Eventually(t, func() bool { // who is idle reads no push
						if other.TryLock(t.Context()) == nil {
							other.Unlock(t.Context())
						}
						return !votes(first, i)
					}, hanging, time.Millisecond, "it is seen")
					require.Eventually(t, func() bool { return votes(first, i) }, 2*hanging, 10*time.Millisecond, "it votes again")
				}
				require.False(t, agreed(two, before, after), "it has ended before its minute is over")
				second := openedWith(t, Config{Masters: masters.Addrs(), RestartGuard: guard})
				three := second.NewMutex("k", 5*time.Second, WithPermits(3))
				require.Eventually(t, func() bool { return three.TryLock(t.Context()) == nil }, 2*hanging, 10*time.Millisecond)
				err := two.TryLock(t.Context())
				require.ErrorIs(t, err, ErrNoQuorum, "another number is agreed upon, and its lock is held")
				require.ErrorContains(t, err, "PERMITS")
			})
		}
	}
}

// A master that is connected anew may never have been asked.
func TestANewConnectionEndsTheAgreement(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithLinks())
	c := opened(t, masters.Addrs(), nil)
	m := c.NewMutex("k", term30, WithPermits(2))
	before := c.now()
	require.NoError(t, m.TryLock(t.Context()))
	after := c.now()
	require.True(t, agreed(m, before, after))
	connects := c.round.Mux.AppendMasters(nil)[2].Connects
	masters.Reset(2)
	require.Eventually(t, func() bool { return c.round.Mux.AppendMasters(nil)[2].Connects > connects }, hanging, time.Millisecond)
	require.False(t, agreed(m, before, after))
}

// votes reports whether a master is up, and in no quarantine.
func votes(c *Client, i int) bool {
	s := c.Stats().Masters[i]
	return s.Phase == "up"
}

// A master that has not answered in time when the others agreed says later that it knows another number. Its
// vote for what follows comes after that.
func TestALateRefusalEndsTheAgreement(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs(), StallTime: time.Hour}) // a reconnect ends it, too
	m := c.NewMutex("k", time.Minute, WithPermits(2))
	answered := func() {
		t.Helper()
		require.Eventually(t, func() bool { return owed(c) == 0 }, 20*time.Second, 5*time.Millisecond)
	}
	require.NoError(t, m.TryLock(t.Context())) // all know the scripts
	require.NoError(t, m.Unlock(t.Context()))
	c.round.Agreed.End()
	answered()
	Says(t, masters, 2, "SET", "{k}:permits", "3")
	masters.Pause(2)
	epoch := c.round.Agreed.Epoch.Load()
	require.NoError(t, m.TryLock(t.Context()), "two of three agree")
	require.NoError(t, m.Unlock(t.Context()))
	require.Equal(t, epoch, c.round.Agreed.Epoch.Load())
	masters.Resume(2)
	answered()
	require.NotEqual(t, epoch, c.round.Agreed.Epoch.Load())
}

func owed(c *Client) (n int) {
	for _, s := range c.Stats().Masters {
		n += s.more.Owed
	}
	return n
}

// An attempt that relies on an agreement which ends meanwhile does not count, and leaves nothing. It is made
// once more, with a look at the mark: a master that answers with errors must not have attempts fail.
func TestAnAgreementThatEndsMeanwhileDoesNotCount(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	m := c.NewMutex("k", time.Minute, WithPermits(2))
	for range 2 {
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
	sure, _ := c.round.Agreed.Lately(m.spec(), c.now())
	require.True(t, sure)
	real, attempts := c.round.Mux, 0
	c.round.Mux = &askedRounds{Mux: real, answered: func(*mux.Op) {
		attempts++
		c.round.Agreed.End()
	}}
	require.NoError(t, m.TryLock(t.Context()))
	require.Equal(t, 2, attempts, "the first one does not count")
	require.Zero(t, c.Stats().NoQuorum, "no master has failed")
	c.round.Mux = real
	for i := range 3 {
		require.Eventually(t, func() bool { return permitKeys(t, masters, i, "k", 2) == 1 }, 20*time.Second, 5*time.Millisecond)
	}
	require.Positive(t, m.Remaining())
}

// Calls are pooled: what one has relied on is nothing to the next one, which is of another lock.
func TestAnAgreementThatHasEndedIsNothingToOtherLocks(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	permit, plain := c.NewMutex("p", time.Minute, WithPermits(2)), c.NewMutex("k", time.Minute)
	for range 50 {
		for range 2 { // the second time it is sure
			require.NoError(t, permit.TryLock(t.Context()))
			require.NoError(t, permit.Unlock(t.Context()))
		}
		c.round.Agreed.End()
		require.NoError(t, plain.TryLock(t.Context()))
		require.NoError(t, plain.Unlock(t.Context()))
	}
}

// A master that was connected and not asked does not have the mark, or has another. So it is with one in
// quarantine, which votes later.
func TestWhatNotAllWereAskedIsNotAgreedUpon(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		k := c.round.Take()
		defer c.round.Put(k)
		reached := func(asked mux.Set, last mux.Phase) bool {
			c.round.Mux = &phasedRounds{r, last}
			k.Op.Asked = asked
			return c.round.ReachedAll(k)
		}
		require.True(t, reached(0b111, mux.Up))
		require.False(t, reached(0b011, mux.Up))
		require.True(t, reached(0b011, mux.Down))
		require.False(t, reached(0b011, mux.Quarantined))
	})
}

// phasedRounds say that the last master is in a phase.
type phasedRounds struct {
	*fakeRounds
	last mux.Phase
}

func (r *phasedRounds) AppendMasters(dst []mux.State) []mux.State {
	dst = r.fakeRounds.AppendMasters(dst)
	dst[len(dst)-1].Phase = r.last
	return dst
}
