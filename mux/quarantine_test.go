package mux_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// greetings records what Config.Keeper is told about one master.
type greetings struct {
	mu  sync.Mutex
	all [][2]conn.Server // before, now
}

func (g *greetings) keeper(of int) *keeper {
	return keeps(func(i int, before, now conn.Server) (time.Duration, string) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if i == of {
			g.all = append(g.all, [2]conn.Server{before, now})
		}
		return 0, ""
	})
}

func (g *greetings) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all)
}

// at returns the k-th greeting.
func (g *greetings) at(k int) (before, now conn.Server) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all[k][0], g.all[k][1]
}

// A master with a fixed place is made a replica, and says so to the next command. It is not
// asked until it is a master again, and then the hook is told that it was a replica.
func TestMasterThatWasAReplicaInBetweenIsKnownByIt(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var g greetings
	m := open(t, mux.Config{Masters: masters.Addrs(), Keeper: g.keeper(0)})
	waitUp(t, m, 3)
	host, port, _ := strings.Cut(masters.Addr(2), ":")
	says(t, masters, 0, "REPLICAOF", host, port)
	op := acquire("k", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, granted(op))
	var reply *mux.ReplyError
	require.ErrorAs(t, op.Votes[0].Err, &reply)
	require.Equal(t, "READONLY", reply.Code)
	eventually(t, "it is refused", func() bool { return m.Masters()[0].Phase == mux.Refused })
	require.ErrorIs(t, m.Masters()[0].Err, conn.ErrNotMaster)
	says(t, masters, 0, "REPLICAOF", "NO", "ONE")
	waitUp(t, m, 3)
	require.Equal(t, 2, g.count())
	before, now := g.at(1)
	require.Equal(t, "replica", before.Role)
	require.Equal(t, "master", now.Role)
	require.Equal(t, before.RunID, now.RunID)
	require.NotEqual(t, before.ReplID, now.ReplID)
}

// If nobody has asked the master while it was a replica, and its connection has lasted, the
// replication id tells at the next connect.
func TestReplicationIDTellsOfAReplicaInBetween(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var g greetings
	m := open(t, mux.Config{Masters: masters.Addrs(), Keeper: g.keeper(0)})
	waitUp(t, m, 3)
	host, port, _ := strings.Cut(masters.Addr(2), ":")
	for _, args := range [][]string{{"REPLICAOF", host, port}, {"REPLICAOF", "NO", "ONE"}, {"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"}} {
		says(t, masters, 0, args...)
	}
	eventually(t, "it is connected again", func() bool { return g.count() == 2 })
	before, now := g.at(1)
	require.Equal(t, before.RunID, now.RunID)
	require.Len(t, now.ReplID, 40)
	require.NotEqual(t, before.ReplID, now.ReplID)
}

// A server that does not tell a replication id is known to be a replica by what it says
// itself: in the answer to a command, in that to a script of Redis before 7, and in a
// handshake.
func TestReplicaInBetweenIsKnownByItsOwnWordAlone(t *testing.T) {
	t.Parallel()
	const wrapped = "ERR Error running script (call to f_10): @user_script:2: @user_script: 2: -READONLY You can't write against a read only replica."
	for name, said := range map[string]string{"a command": "READONLY You can't write against a read only replica.", "a script": wrapped} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			f := newFake(t, "a", func() script {
				return func([]string) (string, bool) {
					if asked.Add(1) == 1 {
						return "-" + said + "\r\n", true
					}
					return ":1\r\n", true
				}
			})
			var g greetings
			m := open(t, mux.Config{Masters: []string{f.addr()}, Keeper: g.keeper(0)})
			require.NoError(t, m.Do(t.Context(), vote("a")))
			eventually(t, "it is connected again", func() bool { return g.count() == 2 })
			before, _ := g.at(1)
			require.Equal(t, "replica", before.Role)
			require.Empty(t, before.ReplID)
		})
	}
	t.Run("a handshake", func(t *testing.T) {
		f := newFake(t, "a", steady(0))
		var g greetings
		m := open(t, mux.Config{Masters: []string{f.addr()}, Keeper: g.keeper(0)})
		f.setRole("replica")
		f.cut()
		eventually(t, "it is refused", func() bool { return m.Masters()[0].Phase == mux.Refused })
		f.setRole("master")
		eventually(t, "it is connected again", func() bool { return g.count() == 2 })
		before, _ := g.at(1)
		require.Equal(t, "replica", before.Role)
	})
}

// A quarantine counts from the connection for which it was asked, and not from the server's
// start.
func TestQuarantineCountsFromTheConnection(t *testing.T) {
	t.Parallel()
	const d = time.Hour
	f := newFake(t, "old", steady(0)) // it says that it was started 1000 s ago
	begun := time.Now()
	k := keeps(func(int, conn.Server, conn.Server) (time.Duration, string) { return d, "it may have forgotten" })
	m := open(t, mux.Config{Masters: []string{f.addr()}, Keeper: k})
	const inaccuracy = time.Minute // of two clocks that are read one after the other, at most
	lasts := func(d time.Duration) {
		t.Helper()
		var s mux.State
		eventually(t, "it is connected", func() bool { s = m.Masters()[0]; return s.Phase != mux.Down })
		require.Positive(t, s.Server.Uptime)
		var why *mux.QuarantineError
		require.ErrorAs(t, s.Err, &why)
		require.WithinRange(t, why.Until, begun.Add(d-inaccuracy), time.Now().Add(d))
	}
	lasts(d)
	begun = time.Now()
	f.cut()
	eventually(t, "it is connected again", func() bool { return m.Masters()[0].Connects == 2 })
	lasts(d)
	k.lasts(m, 0, 2*d)
	lasts(2 * d)
}

// A quarantine that has ended already is prolonged, becomes shorter than it was to be, and ends again.
func TestQuarantineIsExtended(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	masters := redlocktest.Start(t, 3)
	k := keeps(func(int, conn.Server, conn.Server) (time.Duration, string) { return 0, "it may have forgotten" })
	m := open(t, mux.Config{Masters: masters.Addrs(), Keeper: k})
	for i := range 3 {
		eventually(t, "all are up", func() bool { return m.Masters()[i].Phase == mux.Up })
	}
	k.lasts(m, 0, time.Hour)
	k.lasts(m, 0, time.Since(begun)+3*time.Second) // from when it was connected
	s := m.Masters()
	require.Equal(t, []mux.Phase{mux.Quarantined, mux.Up, mux.Up}, []mux.Phase{s[0].Phase, s[1].Phase, s[2].Phase})
	var why *mux.QuarantineError
	require.ErrorAs(t, s[0].Err, &why)
	require.Equal(t, "it may have forgotten", why.Reason)
	op := acquire("k", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	require.ErrorAs(t, op.Votes[0].Err, &why, "it does not vote")
	require.False(t, op.Asked.Has(0), "it is not even asked")
	eventually(t, "it votes again", func() bool { return m.Masters()[0].Phase == mux.Up })
}

// What time alone makes news, the Keeper is asked for then, though no master says anything.
func TestAKeeperIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFake(t, "a", steady(0))
	k := votesAtOnce()
	m := open(t, mux.Config{Masters: []string{f.addr()}, Keeper: k})
	waitUp(t, m, 1)
	for n := range 3 {
		k.stand(m, 0, mux.Standing{Again: clock.Now() + time.Hour})
		k.stand(m, 0, mux.Standing{Again: clock.Now() + 20*time.Millisecond})
		want := []mux.Phase{mux.Quarantined, mux.Up}[n%2]
		k.mu.Lock()
		k.stands[0], k.news = mux.Standing{}, true
		if want == mux.Quarantined {
			k.stands[0] = mux.Standing{Until: clock.Forever, Why: "it may have forgotten"}
		}
		k.mu.Unlock()
		eventually(t, "the Keeper is heeded", func() bool { return m.Masters()[0].Phase == want })
	}
	f.stop()
	eventually(t, "nobody is connected", func() bool { return m.Masters()[0].Phase == mux.Down })
	k.stand(m, 0, mux.Standing{Again: clock.Now() + 20*time.Millisecond})
	k.mu.Lock()
	k.news = true
	k.mu.Unlock()
	eventually(t, "the Keeper is asked", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return !k.news
	})
}

// The alarm's timer does not count the time for which a machine was suspended. Whoever drives finds that it is late.
func TestAQuarantineEndsInTimeThoughTheMachineWasSuspended(t *testing.T) {
	t.Parallel()
	k := votesAtOnce()
	m := open(t, mux.Config{Masters: []string{newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(1)).addr()}, Keeper: k})
	waitUp(t, m, 2)
	for range 2 {
		k.stand(m, 0, mux.Standing{Until: clock.Now() + 100*time.Millisecond, Why: "it may have forgotten"})
		mux.Suspend(m)
		eventually(t, "it votes again", func() bool {
			m.Do(t.Context(), vote("k"))
			return m.Masters()[0].Phase == mux.Up
		})
	}
}

// The Keeper is told when an answer was read, and not when the driver looked at the clock before: the process may have stood still.
func TestAKeeperIsToldWhenItsAnswerWasRead(t *testing.T) {
	t.Parallel()
	var read, before atomic.Int64 // the latest reading, and that of the answer
	k := votesAtOnce()
	k.heard = func(int, resp.Value) { before.Store(read.Load()) }
	f := newFake(t, "a", steady(0))
	m := open(t, mux.Config{Masters: []string{f.addr()}, Keeper: k, Conn: conn.Options{
		Wrap: func(_ string, rw io.ReadWriter) io.ReadWriter {
			return readsAfter{rw, func() { read.Store(int64(clock.Now())) }}
		}}})
	waitUp(t, m, 1)
	for range 3 {
		asked := clock.Now()
		k.stand(m, 0, mux.Standing{Ask: resp.AppendCommand(nil, "VOTE", "k"), Replies: 1})
		var at time.Duration
		eventually(t, "it is answered", func() bool {
			k.mu.Lock()
			defer k.mu.Unlock()
			at = k.answered
			return at > asked && before.Load() > int64(asked)
		})
		require.GreaterOrEqual(t, at, time.Duration(before.Load()))
	}
}

// A yes that the Keeper withholds does not count before it says so, also if the operation is under way by then. It counts for
// nothing if the master turns out to be in quarantine.
func TestAYesThatIsWithheld(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	for name, c := range map[string]struct {
		barred time.Duration // before
		then   mux.Standing
		won    bool
	}{
		"believed":                {0, mux.Standing{}, true},
		"quarantine":              {0, mux.Standing{Until: clock.Forever, Why: "it has forgotten"}, false},
		"quarantine and question": {0, mux.Standing{Until: clock.Forever, Why: "it has forgotten", Withheld: true}, false},
		"after a quarantine":      {20 * time.Millisecond, mux.Standing{}, true},
	} {
		k := votesAtOnce()
		m := open(t, mux.Config{Masters: masters.Addrs(), Keeper: k})
		waitUp(t, m, 1)
		k.stand(m, 0, mux.Standing{Until: clock.Now() + c.barred, Why: "it has forgotten", Withheld: true})
		waitUp(t, m, 1)
		op, done := acquire(name, "t"), make(chan error, 1)
		op.Keep = true
		go func() { done <- m.Do(t.Context(), op) }()
		eventually(t, "it is set", func() bool {
			v, err := masters.Do(0, "GET", name)
			return err == nil && v == "t"
		})
		refused := acquire(name, "another's")
		require.NoError(t, m.Do(t.Context(), refused), "its reply comes after the other's")
		require.Equal(t, mux.VerdictNo, refused.Votes[0].Verdict)
		require.Empty(t, done)
		k.stand(m, 0, c.then)
		<-done
		require.Equal(t, c.won, granted(op))
		if !c.won {
			var why *mux.QuarantineError
			require.ErrorAs(t, op.Votes[0].Err, &why)
			require.Zero(t, op.Votes[0].Reply, "it would say that the master has what it was asked for")
		}
	}
}

// Who waits in vain for a yes that is withheld learns that the master was there.
func TestAYesThatIsWithheldUntilTheTimeout(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	k := votesAtOnce()
	m := open(t, mux.Config{Masters: masters.Addrs(), Keeper: k})
	waitUp(t, m, 2)
	k.stand(m, 0, mux.Standing{Withheld: true})
	for i, waits := range []bool{true, false, true, false} {
		op, decided := acquire(fmt.Sprint("k", i), "t"), (chan error)(nil)
		op.Timeout = 50 * time.Millisecond
		if waits {
			require.ErrorIs(t, m.Do(t.Context(), op), mux.ErrTimeout)
		} else { // nobody drives, and no reply is owed
			op, decided = told(op)
			m.Post(op)
			require.ErrorIs(t, conntest.Soon(t, "the end", decided), mux.ErrTimeout)
		}
		require.ErrorContains(t, op.Votes[0].Err, "has not answered yet whether it may vote")
		require.Equal(t, mux.VerdictPending, op.Votes[0].Verdict)
		require.NoError(t, op.Votes[1].Err)
	}
}

// heldBack is a master that tells when it is asked, and says yes when it may.
func heldBack(t *testing.T) (*fakeMaster, <-chan struct{}, chan<- struct{}) {
	asked, answer := make(chan struct{}, 2), make(chan struct{})
	return newFake(t, "held back", func() script {
		return func([]string) (string, bool) {
			asked <- struct{}{}
			<-answer
			return "+OK\r\n", true
		}
	}), asked, answer
}

// A master comes into quarantine while it has a question: its yes may be to one who asked before it has forgotten, or after.
func TestAYesThatComesInQuarantineDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before mux.Standing
		won    bool
	}{
		"it has a vote":          {mux.Standing{}, false},
		"its yes is withheld":    {mux.Standing{Withheld: true}, false},
		"its quarantine is over": {mux.Standing{Withheld: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, asked, answer := heldBack(t)
			k := votesAtOnce()
			m := open(t, mux.Config{Masters: []string{f.addr()}, Keeper: k})
			waitUp(t, m, 1)
			k.stand(m, 0, c.before)
			op, done := acquire("k", "t"), make(chan error, 1)
			go func() { done <- m.Do(t.Context(), op) }()
			<-asked
			k.stand(m, 0, mux.Standing{Until: clock.Forever, Why: "it has forgotten"})
			if c.won {
				k.stand(m, 0, mux.Standing{})
			}
			close(answer)
			<-done
			require.Equal(t, c.won, granted(op))
			if !c.won {
				var why *mux.QuarantineError
				require.ErrorAs(t, op.Votes[0].Err, &why)
			}
		})
	}
}

// A master has said yes, and loses its keys before the operation is decided: its yes counts no more, whether it was withheld
// or not. One that it gives afterwards does.
func TestAYesFromBeforeALossDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]mux.Standing{"it counted": {}, "it was withheld": {Withheld: true}} {
		t.Run(name, func(t *testing.T) {
			masters := redlocktest.Start(t, 1)
			slow, asked, answer := heldBack(t)
			k := votesAtOnce()
			m := open(t, mux.Config{Masters: []string{masters.Addr(0), slow.addr()}, Keeper: k})
			waitUp(t, m, 2)
			for round, won := range []bool{false, false, true} {
				k.stand(m, 0, before)
				op, done := acquire("k", "t"), make(chan error, 1)
				op.Command, op.Keep = resp.AppendCommand(nil, "INCRBY", "k", "7"), true
				op.Verdict = func(v resp.Value) mux.Verdict {
					if v.IsError() {
						return mux.VerdictFailed
					}
					return mux.VerdictYes
				}
				go func() { done <- m.Do(t.Context(), op) }()
				<-asked
				refused := acquire("k", "another's")
				require.NoError(t, m.Do(t.Context(), refused), "its reply comes after the other's")
				require.Equal(t, mux.VerdictNo, refused.Votes[0].Verdict)
				k.stand(m, 0, mux.Standing{Forgot: !won})
				k.stand(m, 0, mux.Standing{})
				answer <- struct{}{}
				<-done
				<-asked
				answer <- struct{}{}
				require.Equal(t, won, granted(op), round)
				if !won {
					require.Zero(t, op.Votes[0].Int, "what it has lost")
					require.Zero(t, op.Votes[0].Reply.Kind())
				} else {
					require.EqualValues(t, 7, op.Votes[0].Int)
				}
				says(t, masters, 0, "DEL", "k")
			}
		})
	}
}

// An operation is won, and waits for the others' votes when a yes is lost: it has all of its time again for those that are left.
func TestAYesThatIsLostInTheGrace(t *testing.T) {
	t.Parallel()
	k := votesAtOnce()
	m, answers := ledBy(t, mux.Config{Keeper: k}, "a", "b", "c")
	op := vote("k")
	for seen := 0; seen < 2; { // also one that was used before
		op.Grace, op.Timeout = 200*time.Millisecond, patience
		done := make(chan error, 1)
		m.Post(op)
		go func() { done <- m.Wait(t.Context(), op) }()
		answers[0] <- saysYes
		answers[1] <- saysYes
		eventually(t, "both have answered", func() bool { return m.Masters()[0].Owed+m.Masters()[1].Owed == 0 })
		k.stand(m, 0, mux.Standing{Forgot: true})
		k.stand(m, 0, mux.Standing{})
		time.Sleep(2 * op.Grace)
		answers[2] <- saysYes
		require.NoError(t, conntest.Soon(t, "it is decided", done))
		eventually(t, "all have answered", func() bool { return m.Masters()[2].Owed == 0 })
		if op.Votes[0].Verdict == mux.VerdictYes {
			continue // on a busy machine it was decided before
		}
		require.True(t, granted(op))
		seen++
	}
}

// All masters have answered an operation whose votes are withheld, and another comes. It has its own votes when they are cast.
func TestWithheldVotesTakeNoOthers(t *testing.T) {
	t.Parallel()
	f, asked, answer := heldBack(t)
	k := votesAtOnce()
	m := open(t, mux.Config{Masters: []string{f.addr()}, Keeper: k})
	waitUp(t, m, 1)
	k.stand(m, 0, mux.Standing{Withheld: true})
	first, second, done := acquire("k", "t"), acquire("l", "t"), make(chan error, 2)
	go func() { done <- m.Do(t.Context(), first) }()
	<-asked
	answer <- struct{}{}
	eventually(t, "it has answered", func() bool { return m.Masters()[0].Owed == 0 })
	go func() { done <- m.Do(t.Context(), second) }()
	<-asked
	k.stand(m, 0, mux.Standing{})
	require.NoError(t, conntest.Soon(t, "the first is decided", done))
	answer <- struct{}{}
	require.NoError(t, conntest.Soon(t, "the second is decided", done))
	require.True(t, granted(first) && granted(second))
}
