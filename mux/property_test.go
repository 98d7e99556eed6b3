package mux_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// ballot is what a scripted master answers to an operation. It is a function of both, and the
// test computes it too, so the test sees a vote that was cast for another operation or by
// another master. The last digit is the verdict.
func ballot(op string, master int) int64 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", op, master)
	return int64(h.Sum32())
}

func verdictBallot(v resp.Value) mux.Verdict {
	n, ok := v.Int()
	switch {
	case !ok:
		return mux.VerdictFailed
	case n%10 < 6:
		return mux.VerdictYes
	}
	return mux.VerdictNo
}

// unruly answers VOTE with the ballot, but late, with an error, half, or not at
// all, and cuts the connection at times.
func unruly(master int, calm *atomic.Bool) func() script {
	return func() script {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), uint64(master)))
		return func(args []string) (string, bool) {
			reply := fmt.Sprintf(":%d\r\n", ballot(args[1], master))
			if calm.Load() {
				return reply, true
			}
			switch p := rnd.IntN(1000); {
			case p < 20: // everything behind it waits as well
				time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
			case p < 40:
				return fmt.Sprintf("-ERR %s %d\r\n", args[1], master), true
			case p < 43:
				return reply[:rnd.IntN(len(reply)+1)], false
			}
			return reply, true
		}
	}
}

// Whatever the masters do, no operation sees a vote that was not cast for it,
// and what is decided follows from the votes.
func TestNoVoteIsTakenForAnothersInAnUnrulyFleet(t *testing.T) {
	t.Parallel()
	const masters, callers = 5, 64
	each := conntest.Many(20, 200)
	var calm atomic.Bool
	var addrs []string
	for i := range masters {
		addrs = append(addrs, newFake(t, fmt.Sprint("unruly", i), unruly(i, &calm)).addr())
	}
	m := open(t, mux.Config{Masters: addrs, BusyPoll: busyPoll, StallTime: 50 * time.Millisecond, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})

	var won, lost, failed, timeouts, cancelled atomic.Int64
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), rand.Uint64()))
			op := &mux.Op{Verdict: verdictBallot, Timeout: time.Duration(1+rnd.IntN(20)) * time.Millisecond}
			if g == 0 {
				op.Timeout = patience
			}
			// On a busy machine nobody may win in time: one goes on until it has.
			for k := 0; k < each || g == 0 && won.Load() == 0; k++ {
				id := fmt.Sprintf("%d-%d", g, k)
				op.Command = resp.AppendCommand(op.Command[:0], "VOTE", id)
				op.All = rnd.IntN(10) == 0
				ctx, cancel := context.Background(), context.CancelFunc(func() {})
				if rnd.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rnd.IntN(2000))*time.Microsecond)
				}
				err := m.Do(ctx, op)
				cancel()
				checkVotes(t, op, id)
				yes, _, bad, pending := count(op)
				switch {
				case errors.Is(err, mux.ErrTimeout):
					timeouts.Add(1)
				case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
					cancelled.Add(1)
				case err != nil:
					t.Errorf("%s: %v", id, err)
				case granted(op):
					won.Add(1)
					if yes < 3 {
						t.Errorf("%s: won with %d yes", id, yes)
					}
				default:
					lost.Add(1)
					failed.Add(int64(bad))
					// Too few can be asked, or a quorum has become impossible.
					if yes >= 3 || yes+pending >= 3 && bad < 3 {
						t.Errorf("%s: lost with yes=%d failed=%d pending=%d", id, yes, bad, pending)
					}
				}
			}
		})
	}
	conntest.AllEnd(t, "all are decided", &wg)
	t.Logf("won %d, lost %d (%d failed votes), timeouts %d, cancelled %d", won.Load(), lost.Load(), failed.Load(), timeouts.Load(), cancelled.Load())
	require.Positive(t, won.Load())
	require.Positive(t, lost.Load())

	// And it heals: the same set of connections serves everybody again.
	calm.Store(true)
	waitUp(t, m, masters)
	op := &mux.Op{Verdict: verdictBallot, All: true}
	for k := range 100 {
		id := strconv.Itoa(k)
		op.Command = resp.AppendCommand(op.Command[:0], "VOTE", id)
		require.NoError(t, m.Do(t.Context(), op))
		checkVotes(t, op, id)
	}
}

func checkVotes(t *testing.T, op *mux.Op, id string) {
	t.Helper()
	for i, v := range op.Votes {
		var reply *mux.ReplyError
		switch {
		case v.Verdict == mux.VerdictYes || v.Verdict == mux.VerdictNo:
			if v.Int != ballot(id, i) {
				t.Errorf("%s: master %d's vote is %d, it cast %d", id, i, v.Int, ballot(id, i))
			}
		case v.Verdict == mux.VerdictFailed && errors.As(v.Err, &reply):
			if want := fmt.Sprintf("ERR %s %d", id, i); reply.Message != want {
				t.Errorf("%s: master %d's error is %q, it sent %q", id, i, reply.Message, want)
			}
		case v.Verdict == mux.VerdictFailed && v.Err == nil:
			t.Errorf("%s: master %d failed without a cause", id, i)
		}
	}
}
