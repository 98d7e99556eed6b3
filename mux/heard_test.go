package mux_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
)

// heardOf has three masters. The first two answer at once. The third answers what is sent to it by the script.
func heardOf(t *testing.T, third script) (m *mux.Mux, f *fakeMaster) {
	t.Helper()
	return heardBy(t, third, nil)
}

// heardBy is heardOf for a process that reads nothing of the third before the function returns.
func heardBy(t *testing.T, third script, before func()) (m *mux.Mux, f *fakeMaster) {
	t.Helper()
	yes := func() script { return func([]string) (string, bool) { return ":1\r\n", true } }
	f = newFake(t, "c", func() script { return third })
	m = open(t, mux.Config{StallTime: time.Minute, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond,
		Conn: conn.Options{Wrap: func(addr string, rw io.ReadWriter) io.ReadWriter {
			if before == nil || addr != f.addr() {
				return rw
			}
			return readsAfter{rw, before}
		}},
		Masters: []string{newFake(t, "a", yes).addr(), newFake(t, "b", yes).addr(), f.addr()}})
	waitUp(t, m, 3)
	return m, f
}

// readsAfter is a stream that is read after a function has returned.
type readsAfter struct {
	io.ReadWriter
	before func()
}

func (r readsAfter) Read(p []byte) (int, error) {
	r.before()
	return r.ReadWriter.Read(p)
}

const third = mux.Set(4)

// ask does an operation that the first two masters decide, unless the third is as fast.
func ask(t *testing.T, m *mux.Mux) mux.Sent {
	t.Helper()
	op := vote("k")
	require.NoError(t, m.Do(t.Context(), op))
	return mux.Sent{To: third, First: op.Started, Last: clock.Now()}
}

// A gate answers after it was opened. A test that has failed waits for none.
func gate(t *testing.T) (answer script, open func()) {
	opened := make(chan struct{})
	return func([]string) (string, bool) {
		select {
		case <-opened:
		case <-t.Context().Done():
		}
		return ":1\r\n", true
	}, func() { close(opened) }
}

func TestHeardTellsWhatBecameOfStragglers(t *testing.T) {
	t.Parallel()
	const never, soon, late = "never", "soon", "late"
	is := func(t *testing.T, m *mux.Mux, of mux.Sent, what string) bool {
		t.Helper()
		answered, inTime, not := m.Heard(of)
		require.Zero(t, (answered|inTime|not)&^third)
		return answered == third && inTime == third && not == 0 && what == soon ||
			answered == third && inTime == 0 && not == 0 && what == late ||
			answered == 0 && inTime == 0 && not == third && what == never ||
			answered|inTime|not == 0 && what == ""
	}
	becomes := func(t *testing.T, m *mux.Mux, of mux.Sent, what string) {
		t.Helper()
		eventually(t, what, func() bool { return is(t, m, of, what) })
	}
	// askSoon asks until an answer comes soon, as on a busy machine it may come late.
	askSoon := func(t *testing.T, m *mux.Mux) (of mux.Sent) {
		t.Helper()
		eventually(t, "it is answered soon", func() bool {
			of = ask(t, m)
			eventually(t, "the answer", func() bool { return !is(t, m, of, "") })
			return is(t, m, of, soon)
		})
		return of
	}
	for range 2 { // on a second Mux, too
		t.Run("it is answered", func(t *testing.T) {
			t.Parallel()
			answer, open := gate(t)
			m, _ := heardOf(t, answer)
			of := ask(t, m)
			require.True(t, is(t, m, of, ""))
			open()
			eventually(t, "the answer", func() bool { return !is(t, m, of, "") })
			if clock.Now()-of.First < 50*time.Millisecond {
				require.True(t, is(t, m, of, soon), "it was read within 50 ms")
			}
			askSoon(t, m)
		})
		t.Run("it is answered late", func(t *testing.T) {
			t.Parallel()
			answer, open := gate(t)
			m, _ := heardOf(t, answer)
			of := ask(t, m)
			second := ask(t, m)
			time.Sleep(60 * time.Millisecond) // this is what late is
			open()
			becomes(t, m, second, late)
			require.True(t, is(t, m, of, late))
			askSoon(t, m)
			require.True(t, is(t, m, of, late), "what was late remains so")
			require.True(t, is(t, m, second, late))
		})
		t.Run("it is read late", func(t *testing.T) { // the process stands still after it was told that there is something to read
			t.Parallel()
			for range 10 { // it may be told late, too
				answer, open := gate(t)
				var until atomic.Int64
				m, _ := heardBy(t, answer, func() { time.Sleep(time.Duration(until.Load()) - clock.Now()) })
				of := ask(t, m)
				until.Store(int64(of.First + 60*time.Millisecond)) // this is what late is
				open()
				eventually(t, "the answer", func() bool { return !is(t, m, of, "") })
				require.True(t, is(t, m, of, late))
			}
		})
		t.Run("its connection ends first", func(t *testing.T) {
			t.Parallel()
			answer, open := gate(t)
			m, f := heardOf(t, answer)
			of := ask(t, m)
			f.cut()
			becomes(t, m, of, never)
			open()
			waitUp(t, m, 3)
			after := askSoon(t, m)
			require.True(t, is(t, m, of, never), "another connection tells nothing of it")
			f.cut() // with nothing owed
			eventually(t, "it is connected again", func() bool { return m.Masters()[2].Connects == 3 })
			require.True(t, is(t, m, after, soon))
			require.True(t, is(t, m, of, never))
		})
		t.Run("its process is another", func(t *testing.T) {
			t.Parallel()
			answer, open := gate(t)
			defer open()
			m, f := heardOf(t, answer)
			of := ask(t, m)
			f.mu.Lock()
			f.id = "another"
			f.mu.Unlock()
			f.cut()
			becomes(t, m, of, late)
			waitUp(t, m, 3)
			after := ask(t, m)
			require.False(t, is(t, m, after, late), "this one owes what it was sent itself")
			f.cut()
			becomes(t, m, after, never)
			require.True(t, is(t, m, mux.Sent{To: third, First: of.First, Last: after.Last}, never))
			require.True(t, is(t, m, of, late))
		})
	}
}

// A master that is sent the fallback owes its reply, though it has answered what was sent later; and no more when its
// connection has ended.
func TestHeardKnowsOfFallbacks(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		asked, opened := make(chan struct{}), make(chan struct{})
		m, f := heardOf(t, func(args []string) (string, bool) {
			switch args[0] {
			case "EVALSHA":
				<-asked
				return "-NOSCRIPT\r\n", true
			case "EVAL":
				select {
				case <-opened:
				case <-t.Context().Done():
				}
			}
			return ":1\r\n", true
		})
		op := release("k", "t")
		op.Persist = 0
		require.NoError(t, m.Do(t.Context(), op))
		of := mux.Sent{To: third, First: op.Started, Last: clock.Now()}
		next := vote("k")
		next.Unless, next.All = of, true
		m.Post(next)
		close(asked)
		require.NoError(t, m.Wait(context.Background(), next))
		require.ErrorIs(t, next.Votes[2].Err, mux.ErrSuspect, "its yes comes before the fallback's reply")
		eventually(t, "the fallback is sent", func() bool { s := m.Masters()[2]; return s.Replies == 2 })
		answered, soon, never := m.Heard(of)
		require.Zero(t, answered|soon|never)
		if !cut {
			close(opened)
			eventually(t, "it is answered", func() bool { answered, _, _ := m.Heard(of); return answered == third })
			continue
		}
		f.cut()
		eventually(t, "it will never be answered", func() bool { _, _, never := m.Heard(of); return never == third })
		waitUp(t, m, 3)
		for range 2 {
			next = vote("k")
			next.All = true
			require.NoError(t, m.Do(t.Context(), next))
			answered, _, never = m.Heard(mux.Sent{To: third, First: next.Started, Last: clock.Now()})
			require.Equal(t, third, answered, "the next connection owes nothing of it")
			require.Zero(t, never)
		}
	}
}

// A master that was late to say that it lacks the script was late, however soon it answers the text.
func TestAFallbackDoesNotMakeUpForALateAnswer(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	m, _ := heardOf(t, func(args []string) (string, bool) {
		if args[0] != "EVALSHA" {
			return ":1\r\n", true
		}
		<-asked
		return "-NOSCRIPT\r\n", true
	})
	op := release("k", "t")
	op.Persist = 0
	require.NoError(t, m.Do(t.Context(), op))
	of := mux.Sent{To: third, First: op.Started, Last: clock.Now()}
	time.Sleep(60 * time.Millisecond) // this is what late is
	close(asked)
	eventually(t, "it is answered", func() bool { answered, _, _ := m.Heard(of); return answered == third })
	_, soon, _ := m.Heard(of)
	require.Zero(t, soon)
}

// A suspect's yes makes a failed vote, its no a no. The operation is decided without it.
func TestASuspectsYesCountsForNothing(t *testing.T) {
	t.Parallel()
	say := func(reply *atomic.Value) func() script {
		return func() script { return func([]string) (string, bool) { return reply.Load().(string), true } }
	}
	var replies [3]atomic.Value
	var addrs []string
	for i, id := range []string{"a", "b", "c"} {
		replies[i].Store(":1\r\n")
		addrs = append(addrs, newFake(t, id, say(&replies[i])).addr())
	}
	m := open(t, mux.Config{Masters: addrs})
	waitUp(t, m, 3)
	do := func(suspect mux.Set) *mux.Op {
		op := vote("k")
		op.Verdict, op.Suspect, op.All = verdictOne, suspect, true
		require.NoError(t, m.Do(t.Context(), op))
		return op
	}
	for range 2 {
		op := do(0)
		require.True(t, granted(op))
		op = do(2)
		require.True(t, granted(op))
		require.Equal(t, mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrSuspect, RTT: op.Votes[1].RTT}, op.Votes[1])
		require.False(t, granted(do(6)))
	}
	replies[1].Store(":0\r\n")
	require.Equal(t, mux.VerdictNo, do(2).Votes[1].Verdict)
	replies[1].Store("-OOM what\r\n")
	var reply *mux.ReplyError
	require.ErrorAs(t, do(2).Votes[1].Err, &reply)
}

// Whether a straggler was in time is judged when it votes: its reply to what it was sent before comes before its vote.
func TestAStragglersYesCountsIfItWasInTime(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		answer, open := gate(t)
		m, _ := heardOf(t, answer)
		of := ask(t, m)
		op := vote("k")
		op.Unless, op.All = of, true
		m.Post(op)
		if late {
			time.Sleep(60 * time.Millisecond) // this is what late is
		}
		open()
		require.NoError(t, m.Wait(context.Background(), op))
		switch inTime := op.Votes[2].Verdict == mux.VerdictYes; {
		case late:
			require.ErrorIs(t, op.Votes[2].Err, mux.ErrSuspect)
		case op.Decided-of.First < 50*time.Millisecond:
			require.True(t, inTime)
		}
	}
}

// An operation that is won waits a little for the other votes, and no longer.
func TestGrace(t *testing.T) {
	t.Parallel()
	answer, open := gate(t)
	m, _ := heardOf(t, answer)
	for range 2 {
		op := vote("k")
		op.Grace = 30 * time.Millisecond
		require.NoError(t, m.Do(t.Context(), op))
		require.Equal(t, mux.VerdictPending, op.Votes[2].Verdict)
		require.GreaterOrEqual(t, op.Decided-op.Started, op.Grace)
		for timeout := 30 * time.Millisecond; ; timeout *= 2 { // on a busy machine even the first two may need more
			op = vote("k")
			op.Grace, op.Timeout = time.Minute, timeout
			if err := m.Do(t.Context(), op); err == nil {
				break // it is won
			} else {
				require.ErrorIs(t, err, mux.ErrTimeout)
				require.Less(t, timeout, 10*time.Second)
			}
		}
		op = vote("k")
		op.Grace, op.Quorum, op.Timeout = time.Minute, 3, 30*time.Millisecond
		require.ErrorIs(t, m.Do(t.Context(), op), mux.ErrTimeout)
	}
	open()
	eventually(t, "the third has answered", func() bool { return m.Masters()[2].Owed == 0 })
	op := vote("k")
	op.Grace = time.Minute
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, mux.VerdictYes, op.Votes[2].Verdict)
}
