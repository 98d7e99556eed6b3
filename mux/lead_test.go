package mux_test

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
)

// led starts masters whose run ids are given, and answers a VOTE of each when it is told the answer; "" for never.
func led(t *testing.T, ids ...string) (m *mux.Mux, tell []chan string) {
	return ledBy(t, mux.Config{}, ids...)
}

// ledBy is led with a configuration.
func ledBy(t *testing.T, cfg mux.Config, ids ...string) (m *mux.Mux, tell []chan string) {
	for _, id := range ids {
		answers := make(chan string, 10)
		tell = append(tell, answers)
		cfg.Masters = append(cfg.Masters, newFake(t, id, func() script {
			return func([]string) (string, bool) { return <-answers, true }
		}).addr())
	}
	cfg.StallTime = time.Minute
	m = open(t, cfg)
	waitUp(t, m, len(ids))
	t.Cleanup(func() {
		for _, answers := range tell {
			close(answers)
		}
	})
	return m, tell
}

const (
	saysYes = ":1\r\n"
	saysNo  = ":0\r\n"
)

// The order of the masters is that of their run ids, wherever they stand in the list.
func TestLeadingIsTheLeastRunID(t *testing.T) {
	t.Parallel()
	m, _ := led(t, "b", "c", "a")
	require.Equal(t, 2, m.Leading(1<<3-1))
	require.Equal(t, 0, m.Leading(1<<2-1))
	require.Equal(t, 1, m.Leading(1<<1))
	require.Equal(t, -1, m.Leading(0))
}

// A refused operation waits for the first master's vote, and for the others' only if that is a yes.
func TestARefusedOperationWaitsForTheFirstMaster(t *testing.T) {
	t.Parallel()
	const first = 2
	for i, c := range []struct {
		first string
		waits bool // for the vote of the fifth
	}{{saysNo, false}, {saysYes, true}} {
		m, tell := led(t, "b", "c", "a", "d", "e")
		seen := false
		for range 50 { // a busy machine may be late
			op := vote("k")
			op.Verdict, op.Lead, op.Timeout = verdictOne, true, time.Minute
			m.Post(op)
			for _, other := range []int{0, 1, 3} {
				tell[other] <- saysNo
			}
			eventually(t, "the others have answered", func() bool { return m.Masters()[0].Owed+m.Masters()[1].Owed+m.Masters()[3].Owed == 0 })
			tell[first] <- c.first
			if c.waits {
				eventually(t, "the first has answered", func() bool { return m.Masters()[first].Owed == 0 })
			}
			done := make(chan error, 1)
			go func() { done <- m.Wait(t.Context(), op) }()
			if c.waits {
				tell[4] <- saysYes
			}
			require.NoError(t, conntest.Soon(t, fmt.Sprint("it is decided, case ", i), done))
			if !c.waits {
				tell[4] <- saysNo
			}
			eventually(t, "all have answered", func() bool { return m.Masters()[4].Owed == 0 })
			want := []mux.Verdict{mux.VerdictNo, mux.VerdictNo, mux.VerdictNo, mux.VerdictNo, mux.VerdictPending}
			if c.waits {
				want[first], want[4] = mux.VerdictYes, mux.VerdictYes
			}
			if seen = slices.Equal(want, verdicts(op)); seen {
				break
			}
		}
		require.True(t, seen, "case %d", i)
	}
}

// Each master is waited for as long as it needs: one that comes next may be farther away than the first, and than others
// that have not answered either, wherever these stand.
func TestARefusedOperationWaitsForAFarMasterThatIsNext(t *testing.T) {
	t.Parallel()
	const far, pending = 200 * time.Millisecond, 4
	for place := 1; place < pending; place++ {
		t.Run(fmt.Sprint(place), func(t *testing.T) {
			t.Parallel()
			asked, answer, hold := make(chan bool, 10), make(chan bool), make(chan bool)
			told := func(by <-chan bool, what string) script {
				return func(args []string) (string, bool) {
					if args[1] != "near" {
						asked <- true
						<-by
					}
					return what, true
				}
			}
			cfg := mux.Config{StallTime: time.Minute}
			for i := range 2*pending + 1 {
				f, say, d := &fakeMaster{id: strconv.Itoa(i)}, func([]string) (string, bool) { return saysNo, true }, time.Duration(0)
				switch {
				case i == 0:
					say = told(answer, saysYes)
				case i == place:
					say, d = func([]string) (string, bool) { return saysYes, true }, far
				case i < pending:
					say = told(hold, saysNo)
				}
				cfg.Masters = append(cfg.Masters, conntest.Listen(t, func(c net.Conn) {
					conntest.Answer(c, func(args []string) (string, bool) {
						time.Sleep(d)
						if reply, ok := f.handshake(args); ok {
							return reply, true
						}
						return say(args)
					})
				}))
			}
			m := open(t, cfg)
			waitUp(t, m, len(cfg.Masters))
			op := vote("near")
			op.All = true
			require.NoError(t, m.Do(t.Context(), op)) // so it is known how far they are
			op = vote("k")
			answered := func(from int) {
				eventually(t, "they have answered", func() bool {
					return !slices.ContainsFunc(m.Masters()[from:], func(s mux.State) bool { return s.Owed > 0 })
				})
			}
			do := func(timeout time.Duration, firstHangs bool) (far mux.Verdict) {
				op.Verdict, op.Lead, op.Timeout = verdictOne, true, timeout
				m.Post(op)
				for range pending - 1 {
					conntest.Soon(t, "it is asked", asked)
				}
				answered(pending)
				if !firstHangs {
					answer <- true
				}
				m.Wait(t.Context(), op)
				if firstHangs {
					answer <- true
				}
				for range pending - 2 {
					hold <- true
				}
				answered(0)
				return op.Votes[place].Verdict
			}
			for _, firstHangs := range []bool{false, true} {
				for timeout, want := range map[time.Duration]bool{ // never beyond the operation's own time
					time.Minute: true, far / 10: false, far / 2: false,
				} {
					seen := !want
					for k := 0; k < 20 && seen != want; k++ { // a busy machine may be late; and an Op that was used before
						seen = do(timeout, firstHangs) == mux.VerdictYes
					}
					require.Equal(t, want, seen, "%v %v", timeout, firstHangs)
				}
			}
		})
	}
}

// It waits for a few milliseconds. Of a master that owes a reply for longer, it does not wait at all.
func TestARefusedOperationWaitsForNoMasterThatHangs(t *testing.T) {
	t.Parallel()
	m, tell := led(t, "a", "b", "c")
	ask := func() (op *mux.Op) {
		op = vote("k")
		op.Verdict, op.Lead, op.Timeout = verdictOne, true, time.Minute
		tell[1] <- saysNo
		tell[2] <- saysNo
		require.NoError(t, m.Do(t.Context(), op))
		require.Equal(t, []mux.Verdict{mux.VerdictPending, mux.VerdictNo, mux.VerdictNo}, verdicts(op))
		return op
	}
	first := ask()
	require.GreaterOrEqual(t, first.Decided-first.Started, 5*time.Millisecond, "it may answer yet")
	least := time.Hour
	for begun := time.Now(); least >= 5*time.Millisecond && time.Since(begun) < time.Minute; {
		op := ask()
		least = min(least, op.Decided-op.Started)
	}
	require.Less(t, least, 5*time.Millisecond, "it hangs")
}

// A process that had no CPU while the answers came reads them all before it gives up, wherever the first master stands.
func TestARefusedOperationReadsWhatHasArrived(t *testing.T) {
	t.Parallel()
	for first := range 3 {
		var fakes []*fakeMaster
		var addrs []string
		answers := []string{saysNo, saysNo, saysNo}
		answers[first] = saysYes
		asked := make(chan int, 10)
		for i := range answers {
			id := "b"
			if i == first {
				id = "a"
			}
			f := newFake(t, id+strconv.Itoa(i), func() script {
				return func(args []string) (string, bool) {
					if args[1] == "near" {
						return saysYes, true
					}
					asked <- i
					return "", true
				}
			})
			fakes, addrs = append(fakes, f), append(addrs, f.addr())
		}
		m := open(t, mux.Config{Masters: addrs, StallTime: time.Minute})
		waitUp(t, m, len(fakes))
		require.Equal(t, first, m.Leading(1<<3-1))
		op := vote("k")
		for of := range fakes { // also an Op that was used before
			for range 100 { // what was late before does not make it patient
				near := vote("near")
				near.All = true
				require.NoError(t, m.Do(t.Context(), near))
			}
			before := vote("before")
			before.Only, before.Quorum = mux.Set(0).With(of), 1
			before.OnDecided = func(error) { // the process has no CPU while they answer
				for i, f := range fakes {
					if i != first {
						f.write(answers[i])
					}
				}
				fakes[first].write(answers[first])
				for clock.Now()-op.Started < 100*time.Millisecond {
				}
			}
			m.Post(before)
			op.Verdict, op.Lead, op.Timeout = verdictOne, true, time.Minute
			m.Post(op)
			done := make(chan error, 1)
			go func() { done <- m.Wait(t.Context(), op) }()
			for range 4 {
				conntest.Soon(t, "it is asked", asked)
			}
			fakes[of].send(t, saysYes)
			require.NoError(t, conntest.Soon(t, "it is decided", done))
			require.Equal(t, mux.VerdictYes, op.Votes[first].Verdict, "%d is first, and %d has answered", first, of)
		}
	}
}
