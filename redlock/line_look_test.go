package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The lock is released just after a waiter has read the key, and the masters notify of it
// before the waiter has their answers, which say that it is held.
func TestChangeWhileAWaiterLooksIsNotLost(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		holder := taken(t, newClient(Config{}, r, r.now)) // another process
		masters := &notifiedRounds{fakeRounds: r, client: c}
		masters.looked = func() {
			masters.looked = nil
			require.NoError(t, holder.Unlock(context.Background()))
		}
		c.round.Mux = masters
		since := r.now()
		require.NoError(t, c.NewMutex("k", ttl).Lock(t.Context()))
		require.Nil(t, masters.looked, "it has not looked")
		require.Less(t, r.now()-since, 100*time.Millisecond, "it has slept until the key's TTL had passed")
	})
}

// A foreign key on a minority does not keep a waiter from a lock that is free on
// all others, whichever master that is: where no master can notify, too.
func TestWaiterGetsPastAForeignKeyOnAnyMaster(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3) // without CLIENT TRACKING
	holder, waiter := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	for i := range 3 {
		key := "k" + strconv.Itoa(i)
		Says(t, masters, i, "SET", key, "foreign")
		m := holder.NewMutex(key, 30*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		done := parked(t, waiter, key)
		require.NoError(t, m.Unlock(t.Context()))
		comes(t, done)
	}
	require.Positive(t, waiter.Stats().more.WokenPoll)
}

// A master that was down at the look can make up the majority later.
func TestWaiterLearnsOfAReleaseThatLeavesSilentMastersOnly(t *testing.T) {
	t.Parallel()
	masters, holder := started(t, 4)
	waiter := openedBy(t, Config{Masters: masters.Addrs()}, believing) // they may vote as soon as they are back
	m := holder.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	for i := range 4 {
		SoonSays(t, masters, i, int64(1), "EXISTS", "k")
	}
	for _, i := range []int{2, 3} {
		masters.Kill(i)
		require.Eventually(t, func() bool { return waiter.round.Mux.Masters()[i].Phase == mux.Down }, hanging, 5*time.Millisecond)
	}
	done := make(chan error, 1)
	var seen atomic.Bool
	waiter.events.hook(behind.Wait, func(*Event) { seen.Store(true) })
	// Refused by all four, the waiter would be woken by three of them.
	waiter.looks.NoteRefused(waiter.now(), "k")
	go func() { done <- waiter.NewMutex("k", 30*time.Second).Lock(t.Context()) }()
	require.Eventually(t, seen.Load, hanging, 5*time.Millisecond)
	asleep(t, waiter, "k")
	m.Unlock(t.Context())
	for i := range 2 {
		SoonSays(t, masters, i, int64(0), "EXISTS", "k")
	}
	asleep(t, waiter, "k") // again: it may have seen that two are not enough
	masters.Restart(2)
	masters.Restart(3)
	comes(t, done)
}

// A master on which the key is free notifies of nothing more, and so cannot replace
// one that cannot notify (no RESP3, no permission).
func TestWaiterDoesNotTrustAFreeMasterToNotify(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	Says(t, masters, 2, "ACL", "SETUSER", "default", "-client") // CLIENT TRACKING; before Redis 7 only as a whole
	c := opened(t, masters.Addrs(), nil)
	Says(t, masters, 1, "SET", "k", "foreign")
	Says(t, masters, 2, "SET", "k", "foreign")
	done := parked(t, c, "k")
	Says(t, masters, 2, "DEL", "k")
	comes(t, done)
}

// The slot that is released in this client is the one that the head of its queue tries, though it had
// looked forward to another: nobody has to look for it.
func TestAReleasedSlotIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var failed atomic.Int64
	c := opened(t, masters.Addrs(), onEvent(EventRound, func(r *Event) {
		if r.Op == opLock && r.Err != nil {
			failed.Add(1)
		}
	}))
	const k = 8
	held := takenPermits(t, c, "k", k, k)
	waiter := c.NewMutex("k", 30*time.Second, WithPermits(k))
	done := locks(t, waiter)
	for range 20 {
		asleep(t, c, waiter.spec().Names()[0])
		require.Eventually(t, func() bool { return c.Stats().EventsWaiting == 0 }, hanging, time.Millisecond)
		before, aim := failed.Load(), waiter.hold.NextSlot()
		i := slices.IndexFunc(held, func(m *Mutex) bool {
			_, slot, _ := kind.CutSlot(m.Token())
			return slot != aim
		})
		require.NoError(t, held[i].Unlock(t.Context()))
		comes(t, done)
		require.Eventually(t, func() bool { return c.Stats().EventsWaiting == 0 }, hanging, time.Millisecond)
		require.Equal(t, before, failed.Load())
		held[i], waiter = waiter, held[i]
		done = locks(t, waiter)
	}
	require.NoError(t, held[0].Unlock(t.Context()))
	comes(t, done)
}

// A waiter is to try the slot whose TTL ends first.
func TestAWaiterLooksForwardToTheSlotThatEndsFirst(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for slot, ttl := range []string{"30000", "10000", "20000"} {
		for i := range 3 {
			Says(t, masters, i, "SET", fmt.Sprintf("{k}:permit:%d/3", slot+1), "another's", "PX", ttl)
		}
	}
	m, w := c.NewMutex("k", 30*time.Second, WithPermits(3)), line.NewWaiter(&c.line)
	c.looks.Listen(w, m.spec())
	defer w.End()
	var p line.LookResult
	require.Eventually(t, func() bool { // a look is brief, and a busy machine may not answer it
		var err error
		p, err = c.looks.Look(t.Context(), m.spec(), w)
		require.NoError(t, err)
		require.False(t, p.Free)
		return p.Held
	}, hanging, 5*time.Millisecond)
	require.Equal(t, 1, p.Slot)
	require.LessOrEqual(t, p.At-c.now(), 10*time.Second+line.ExpirySlack)
}

// Each slot counts: what is not known of one may be that it is free, and nobody says that all are held.
func TestOneSlotThatIsNotKnownIsWaitedFor(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	const timeout = 200 * time.Millisecond
	c := opened(t, masters.Addrs(), nil)
	for open := 1; open <= 2; open++ {
		key := fmt.Sprint("k", open)
		for slot := 1; slot <= 2; slot++ {
			Says(t, masters, 1, "SET", fmt.Sprintf("{%s}:permit:%d/2", key, slot), "another's")
			if slot != open {
				Says(t, masters, 0, "SET", fmt.Sprintf("{%s}:permit:%d/2", key, slot), "another's")
			}
		}
	}
	masters.Pause(2)
	for open := 1; open <= 2; open++ {
		m, w := c.NewMutex(fmt.Sprint("k", open), 30*time.Second, WithPermits(2)), line.NewWaiter(&c.line)
		m.spec().Timeout = timeout
		for range 4 { // it looks at them in any order
			began := c.now()
			_, found := c.looks.Find(t.Context(), m.spec(), nil)
			require.False(t, found)
			require.GreaterOrEqual(t, c.now()-began, timeout, "the last one may say that %d is free", open)
		}
		c.looks.Listen(w, m.spec())
		p, err := c.looks.Look(t.Context(), m.spec(), w)
		w.End()
		require.NoError(t, err)
		require.False(t, p.Held, "%d may be free", open)
	}
	masters.Resume(2)
}

// Masters that could not notify at one look can at the next, of whatever key.
func TestALookKnowsNothingOfTheOneBefore(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, _ *Client, masters *fakeRounds) {
		c, r := another(t, masters, Config{})
		for i := range 5 {
			at(masters, i, "another's", time.Hour)
		}
		m, w := c.NewMutex("k", ttl), line.NewWaiter(&c.line)
		notifies := func() bool {
			c.looks.Listen(w, m.spec())
			defer w.End()
			p, err := c.looks.Look(t.Context(), m.spec(), w)
			require.NoError(t, err)
			return p.WillNotify
		}
		for range 10 { // not each time what was used before is used again
			r.turn(&r.silent, true)
			require.False(t, notifies())
			r.turn(&r.silent, false)
			require.True(t, notifies())
		}
	})
}
