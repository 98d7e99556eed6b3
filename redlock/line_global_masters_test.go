package redlock

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// queueLength returns how many wait in the queue of a key, on all masters together.
func queueLength(t *testing.T, masters *redlocktest.Masters, key string) (n int) {
	t.Helper()
	for i := range masters.N() {
		if v, err := masters.Do(i, "ZCARD", queueKey(key)); err == nil {
			n += int(v.(int64))
		}
	}
	return n
}

// queuesUp has a client wait for a lock, and returns when it waits in the queue behind others.
func queuesUp(t *testing.T, masters *redlocktest.Masters, m *Mutex, behind int) <-chan error {
	t.Helper()
	done := locks(t, m)
	require.Eventually(t, func() bool { return queueLength(t, masters, m.spec().Names()[0]) == behind+1 }, hanging, 5*time.Millisecond)
	return done
}

// noQueue requires that nothing of a queue is left on any master.
func noQueue(t *testing.T, masters *redlocktest.Masters) {
	t.Helper()
	require.Eventually(t, func() bool {
		for i := range masters.N() {
			if keys, err := masters.Do(i, "KEYS", "*:line*"); err != nil || len(keys.([]any)) > 0 {
				return false
			}
		}
		return true
	}, hanging, 5*time.Millisecond)
}

// queueMasterOf returns the master that has the queue of a key, if need be when it serves queues again.
func queueMasterOf(t *testing.T, c *Client, key string) (i int) {
	t.Helper()
	require.Eventually(t, func() (ok bool) {
		i, ok = c.globalQueues.QueueMaster(key)
		return ok
	}, hanging, 5*time.Millisecond)
	return i
}

// countedRounds count how often their client has asked for its entry in the queue.
type countedRounds struct {
	round.Mux
	stood atomic.Int32
}

func (r *countedRounds) Post(ops ...*mux.Op) {
	for _, op := range ops {
		if asks(op, kind.EnterScript) {
			r.stood.Add(1)
		}
	}
	r.Mux.Post(ops...)
}

// readersQueueUp has a client's reader wait for a lock, and returns when so many readers wait in the queue. It has
// asked for its place before it waits for the masters' word.
func readersQueueUp(t *testing.T, masters *redlocktest.Masters, m *Mutex, readers int) <-chan error {
	t.Helper()
	counted := &countedRounds{Mux: m.client.round.Mux}
	m.client.round.Mux = counted
	done := locks(t, m)
	require.Eventually(t, func() bool { return anySleeps(m.client, "") }, hanging, 5*time.Millisecond)
	require.Eventually(t, func() bool { return counted.stood.Load() > 0 }, hanging, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		n := 0
		for i := range masters.N() {
			v := Says(t, masters, i, "ZRANGE", queueKey(m.spec().Key), "0", "-1")
			for _, id := range v.([]any) {
				if id := id.(string); reads(id) && id != kind.ReaderMark {
					n++
				}
			}
		}
		return n == readers
	}, hanging, 5*time.Millisecond)
	return done
}

// Processes have a lock of every kind in the order in which they came.
func TestProcessesQueueForEveryKindOfLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	clients := openedTimes(t, 4, Config{Masters: masters.Addrs()})
	for name, opts := range map[string][]Option{
		"plain": nil, "fenced": {WithFence()}, "several": {WithKeys("z")}, "permits": {WithPermits(1)},
		"several fenced": {WithKeys("z"), WithFence()},
	} {
		t.Run(name, func(t *testing.T) {
			key := "a" + strings.ReplaceAll(name, " ", "")
			holder := clients[0].NewMutex(key, term30, opts...)
			require.NoError(t, holder.TryLock(t.Context()))
			var ms []*Mutex
			var waits []<-chan error
			for i, c := range clients[1:] {
				m := c.NewMutex(key, term30, opts...)
				ms, waits = append(ms, m), append(waits, queuesUp(t, masters, m, i))
			}
			require.NoError(t, holder.Unlock(t.Context()))
			for i := range ms {
				comes(t, waits[i])
				for _, later := range waits[i+1:] {
					require.Empty(t, later)
				}
				require.NoError(t, ms[i].Unlock(t.Context()))
			}
			noQueue(t, masters)
		})
	}
}

// Readers of all processes that wait have the lock together when it is the turn of the first of them: before
// the writers that came later, and after those that were there. So no stream of writers keeps them out.
func TestReadersHaveTheirTurnTogetherInTheQueue(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for name, opts := range map[string][]Option{"shared": {WithShared()}, "fenced": {WithShared(), WithFence()}} {
		t.Run(name, func(t *testing.T) {
			clients := openedTimes(t, 8, Config{Masters: masters.Addrs()})
			writer := func(i int) *Mutex { return clients[i].NewMutex(name, term30, opts[1:]...) }
			reader := func(i int) *Mutex { return clients[i].NewMutex(name, term30, opts...) }
			holder := writer(0)
			require.NoError(t, holder.TryLock(t.Context()))
			w1, r2, w3, r4, w5, r6 := writer(1), reader(2), writer(3), reader(4), writer(5), reader(6)
			one := queuesUp(t, masters, w1, 0)
			two := readersQueueUp(t, masters, r2, 1)
			three := queuesUp(t, masters, w3, 3)                 // the readers' mark is there, too
			clients[4].looks.NoteRefused(clients[4].now(), name) // then it looks, and does not try
			four := readersQueueUp(t, masters, r4, 2)
			five := queuesUp(t, masters, w5, 5)
			waits := func(others ...<-chan error) {
				t.Helper()
				for _, done := range others {
					require.Empty(t, done)
				}
			}
			require.NoError(t, holder.Unlock(t.Context()))
			comes(t, one)
			waits(two, three, four, five)
			require.NoError(t, w1.Unlock(t.Context()))
			comes(t, two)
			comes(t, four)
			waits(three, five)
			require.NoError(t, r2.Unlock(t.Context()))
			require.NoError(t, r4.Unlock(t.Context()))
			comes(t, three)
			six := readersQueueUp(t, masters, r6, 1)
			waits(five)
			require.NoError(t, w3.Unlock(t.Context()))
			comes(t, five)
			waits(six)
			require.NoError(t, w5.Unlock(t.Context()))
			comes(t, six)
			require.NoError(t, r6.Unlock(t.Context()))
			noQueue(t, masters)
		})
	}
}

// A reader that nobody keeps out asks for no place, be it that the lock was refused a moment ago.
func TestReadersAmongReadersNeedNoEntry(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	clients := openedTimes(t, 3, Config{Masters: masters.Addrs()})
	counted := &countedRounds{Mux: clients[0].round.Mux}
	clients[0].round.Mux = counted
	var held []*Mutex
	for _, c := range clients {
		for range 3 {
			m := c.NewMutex("k", term30, WithShared())
			require.NoError(t, m.Lock(t.Context()))
			held = append(held, m)
			c.looks.NoteRefused(c.now(), "k")
		}
	}
	require.Zero(t, counted.stood.Load())
	for _, m := range held {
		require.NoError(t, m.Unlock(t.Context()))
	}
}

// A reader that gives up takes its entry away, and the mark of its place if nobody else has that.
func TestAReaderThatGivesUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	clients := openedTimes(t, 3, Config{Masters: masters.Addrs()})
	holder, writer := clients[0].NewMutex("k", term30), clients[1].NewMutex("k", term30)
	require.NoError(t, holder.TryLock(t.Context()))
	done := queuesUp(t, masters, writer, 0)
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- clients[2].NewMutex("k", term30, WithShared()).Lock(ctx) }()
	require.Eventually(t, func() bool { return queueLength(t, masters, "k") == 3 }, hanging, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	require.Eventually(t, func() bool { return queueLength(t, masters, "k") == 1 }, hanging, 5*time.Millisecond)
	require.NoError(t, holder.Unlock(t.Context()))
	comes(t, done)
	require.NoError(t, writer.Unlock(t.Context()))
	noQueue(t, masters)
}

// A queue is on one master. A waiter that is behind another in it reads what the masters push, and
// nothing goes to the other masters.
func TestQueueIsOnOneMaster(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	holds, first, second := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	master := queueMasterOf(t, holds, "k")
	for tries := 5; ; tries-- {
		for i := range 3 {
			Says(t, masters, i, "CONFIG", "RESETSTAT")
		}
		m := holds.NewMutex("k", term30)
		require.NoError(t, m.Lock(t.Context()))
		a, b := first.NewMutex("k", term30), second.NewMutex("k", term30)
		done := []<-chan error{queuesUp(t, masters, a, 0), queuesUp(t, masters, b, 1)}
		require.Eventually(t, func() bool { return anySleeps(second, "") }, hanging, 5*time.Millisecond)
		require.NoError(t, m.Unlock(t.Context()))
		for i, m := range []*Mutex{a, b} {
			comes(t, done[i])
			require.NoError(t, m.Unlock(t.Context()))
		}
		noQueue(t, masters)
		var on []int
		for i := range 3 {
			v := Says(t, masters, i, "INFO", "commandstats")
			if strings.Contains(v.(string), "cmdstat_zadd:") || strings.Contains(v.(string), "cmdstat_zrem:") {
				on = append(on, i)
			}
		}
		if len(on) == 1 && on[0] == master {
			return
		}
		require.Positive(t, tries, "the queue master may be late, on a busy machine, and is not asked then; it was on %v", on)
	}
}

// A lock that nobody else wants costs what it did.
func TestQueueCostsAnUncontendedLockNothing(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	now := c.now()
	c.now = func() time.Duration { return now } // on a busy machine it could last so long that it is to look
	m := c.NewMutex("k", term30)
	for range 50 {
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
	for i := range 3 {
		v := Says(t, masters, i, "INFO", "commandstats")
		for _, command := range []string{"zadd", "zrank", "zrem", "pttl", "exists"} {
			require.NotContains(t, v, "cmdstat_"+command+":")
		}
	}
}

// What happens to the queue master delays nobody for more than a few seconds.
func TestQueueMasterFailsWhileProcessesWait(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(t *testing.T, masters *redlocktest.Masters, i int){
		"hangs":    func(_ *testing.T, masters *redlocktest.Masters, i int) { masters.Pause(i) },
		"dies":     func(_ *testing.T, masters *redlocktest.Masters, i int) { masters.Kill(i) },
		"restarts": func(_ *testing.T, masters *redlocktest.Masters, i int) { masters.Restart(i) },
		"flushed":  func(_ *testing.T, masters *redlocktest.Masters, i int) { masters.Flush(i) },
		"the queue is lost": func(t *testing.T, masters *redlocktest.Masters, i int) {
			Says(t, masters, i, "DEL", queueKey("k"))
		},
		"another's key is there": func(t *testing.T, masters *redlocktest.Masters, i int) {
			Says(t, masters, i, "SET", queueKey("k"), "x")
		},
		"it may not any more": func(t *testing.T, masters *redlocktest.Masters, i int) {
			Says(t, masters, i, "ACL", "SETUSER", "default", "-zrank", "-zrem")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 5)
			clients := believingTimes(t, 4, Config{Masters: masters.Addrs(), StallTime: time.Second})
			holder := clients[0].NewMutex("k", term30)
			require.NoError(t, holder.TryLock(t.Context()))
			Confirmed(t, holder)
			var ms []*Mutex
			took := make(chan int, 3)
			for i, c := range clients[1:] {
				m := c.NewMutex("k", term30)
				done := queuesUp(t, masters, m, i)
				ms = append(ms, m)
				go func() {
					if <-done == nil {
						took <- i
					}
				}()
			}
			fails(t, masters, queueMasterOf(t, clients[0], "k"))
			require.NoError(t, holder.Unlock(t.Context()))
			since := time.Now()
			for range ms {
				i := conntest.Soon(t, "all have the lock", took)
				ms[i].Unlock(t.Context())
			}
			t.Log(time.Since(since))
		})
	}
}

// A queue master whose clock is set back keeps nobody behind a process that died about then, nor behind
// two of them, for longer than a dead process always does.
func TestNobodyWaitsForTheDeadWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithClocks())
	holder := opened(t, masters.Addrs(), nil)
	m := holder.NewMutex("k", term30)
	require.NoError(t, m.TryLock(t.Context()))
	var dead []*Client
	for i := range 2 {
		c := opened(t, masters.Addrs(), nil)
		queuesUp(t, masters, c.NewMutex("k", term30), i)
		dead = append(dead, c)
	}
	for _, c := range dead {
		require.NoError(t, c.round.Mux.Close()) // its sockets; it can say nothing more
	}
	masters.Jump(queueMasterOf(t, holder, "k"), -time.Hour)
	done := locks(t, opened(t, masters.Addrs(), nil).NewMutex("k", term30))
	require.NoError(t, m.Unlock(t.Context()))
	comes(t, done)
	noQueue(t, masters)
}

// The notice of a process that has died goes when the one behind it goes.
func TestWhoLeavesTakesThePredecessorsNoticeAway(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	holder, dies, waits := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	require.NoError(t, holder.NewMutex("k", term30).TryLock(t.Context()))
	queuesUp(t, masters, dies.NewMutex("k", term30), 0)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- waits.NewMutex("k", term30).Lock(ctx) }()
	require.Eventually(t, func() bool { return queueLength(t, masters, "k") == 2 }, hanging, 5*time.Millisecond)
	i := queueMasterOf(t, holder, "k")
	ids := Says(t, masters, i, "ZRANGE", queueKey("k"), "0", "-1")
	notice := string(kind.AppendNoticeKey(nil, []byte(queueKey("k")), []byte(ids.([]any)[0].(string))))
	there := func() bool {
		return Says(t, masters, i, "EXISTS", notice) == int64(1)
	}
	require.True(t, there())
	Says(t, masters, i, "PERSIST", notice) // if it is left, it stays
	require.NoError(t, dies.round.Mux.Close())
	leave() // Close would wait for a moment only
	require.ErrorIs(t, conntest.Soon(t, "it returns", done), context.Canceled)
	require.Eventually(t, func() bool { return !there() }, hanging, 5*time.Millisecond)
}

// Whatever the script does, it does as the simulated masters do.
func TestEnterScript(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	enter := func(id string) string {
		v := Says(t, masters, 0, "EVAL", kind.EnterScript.Text, "1", "{k}:line", id, "300000", "300000") // longer than the test takes
		return v.(string)
	}
	leave := func(id string) {
		notice := "{k}:line:" + id
		Says(t, masters, 0, "EVAL", kind.LeaveScript.Text, "3", "{k}:line", notice, notice+":alive", id)
	}
	require.Empty(t, enter("a"))
	for i, id := range []string{"b", "c", "d", "e"} {
		require.Equal(t, string(rune('a'+i)), enter(id))
	}
	require.Empty(t, enter("a"), "again")
	require.Equal(t, "a", enter("b"))
	leave("b")
	require.Equal(t, "a", enter("c"))
	for _, id := range []string{"a", "c"} { // they die
		Says(t, masters, 0, "DEL", "{k}:line:"+id+":alive")
	}
	require.Equal(t, "d", enter("e"))
	require.Empty(t, enter("d"))
	require.Equal(t, "e", enter("a"), "it is alive again, at the end")
	for _, id := range []string{"d", "e", "a"} {
		leave(id)
	}
	noQueue(t, masters)

	// The clock is set back: what the entries have to live has become longer.
	for _, id := range []string{"a", "b", "c"} {
		enter(id)
	}
	left := func(id string) int64 {
		return Says(t, masters, 0, "PTTL", "{k}:line:"+id+":alive").(int64)
	}
	for _, id := range []string{"a", "b"} {
		Says(t, masters, 0, "PEXPIRE", "{k}:line:"+id+":alive", "900000")
	}
	require.Equal(t, "b", enter("c"))
	require.LessOrEqual(t, left("a"), int64(300000))
	require.LessOrEqual(t, left("b"), int64(300000))

	leave("c") // and the notice before it goes, too
	require.EqualValues(t, 1, Says(t, masters, 0, "EXISTS", "{k}:line:b", "{k}:line:a"))
	for _, id := range []string{"a", "b"} {
		leave(id)
	}
	noQueue(t, masters)

	enter("a")
	enter("b")
	keys := Says(t, masters, 0, "KEYS", "*")
	for _, key := range keys.([]any) {
		if key == "{}:since" { // which is no lock's
			continue
		}
		require.Positive(t, Says(t, masters, 0, "PTTL", fmt.Sprint(key)), key)
	}
}
