package redlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/stretchr/testify/require"
)

// What a master can do in a round.
type ballot int

const (
	sayYes ballot = iota
	sayNo
	sayError
	late
	sayGone // extend only: it has lost the key
	ballots
)

func (b ballot) vote() mux.Vote {
	switch b {
	case sayYes:
		return mux.Vote{Verdict: mux.VerdictYes, Int: 1}
	case sayNo:
		return mux.Vote{Verdict: mux.VerdictNo}
	case sayError:
		return mux.Vote{Verdict: mux.VerdictFailed, Err: errFake}
	case sayGone:
		return mux.Vote{Verdict: mux.VerdictNo, Int: kind.Gone}
	}
	return mux.Vote{}
}

// everyBallot calls f with every combination of n masters' ballots below limit.
func everyBallot(n int, limit ballot, f func(votes []mux.Vote, count map[ballot]int)) {
	all := make([]ballot, n)
	votes := make([]mux.Vote, n)
	for {
		count := map[ballot]int{}
		for i, b := range all {
			votes[i] = b.vote()
			count[b]++
		}
		f(votes, count)
		i := 0
		for ; i < n && all[i] == limit-1; i++ {
			all[i] = 0
		}
		if i == n {
			return
		}
		all[i]++
	}
}

const (
	before = 99 * time.Millisecond // the end of the validity is at end
	end    = 100 * time.Millisecond
	after  = end
)

func TestAcquireIsDecidedByEveryCombinationOfVotes(t *testing.T) {
	sequential(t)
	t.Parallel()
	for n := 1; n <= 7; n++ {
		everyBallot(n, sayGone, func(votes []mux.Vote, is map[ballot]int) {
			name := fmt.Sprint(n, " ", is)
			tally := count(votes, mux.ErrTimeout)
			quorate := 2*is[sayYes] > n
			require.Equal(t, quorate, tally.acquired(before, end) == nil, name)
			if quorate {
				require.Equal(t, ErrExpired, tally.acquired(after, end), name)
				return
			}
			// Could those who answered have given the lock, had it been free?
			if 2*(is[sayYes]+is[sayNo]) > n {
				require.Equal(t, ErrHeld, tally.acquired(before, end), name)
			} else {
				require.Equal(t, ErrNoQuorum, tally.acquired(before, end), name)
			}
			require.Equal(t, tally.acquired(before, end), tally.acquired(after, end), name)
		})
	}
}

// An early decision must be the one that all votes together would give.
func TestEarlyDecisionsAreThoseOfAllVotes(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 6; n++ {
		everyBallot(n, late, func(votes []mux.Vote, is map[ballot]int) {
			// The votes come in order; the mux decides at the first k that do.
			part := make([]mux.Vote, n)
			decided := -1
			for k := range votes {
				part[k] = votes[k]
				yes, open := 0, n-k-1
				for _, v := range part[:k+1] {
					if v.Verdict == mux.VerdictYes {
						yes++
					}
				}
				if yes >= majority(n) || yes+open < majority(n) {
					decided = k
					break
				}
			}
			require.GreaterOrEqual(t, decided, 0)
			early, full := count(part, nil).acquired(before, end), count(votes, nil).acquired(before, end)
			require.Equal(t, full == nil, early == nil)
			if early == ErrNoQuorum { // what failures alone have decided, later votes do not change
				require.Equal(t, ErrNoQuorum, full)
			}
			require.Equal(t, count(votes, nil).released(false, false) == nil, count(part, nil).released(false, false) == nil)
			if count(part, nil).released(false, false) == ErrNotHeld {
				require.Equal(t, ErrNotHeld, count(votes, nil).released(false, false))
			}
		})
	}
}

func TestExtendIsDecidedByEveryCombinationOfVotes(t *testing.T) {
	sequential(t)
	t.Parallel()
	for n := 1; n <= 7; n++ {
		everyBallot(n, ballots, func(votes []mux.Vote, is map[ballot]int) {
			name := fmt.Sprint(n, " ", is)
			tally := count(votes, mux.ErrTimeout)
			got := tally.extended(before, end, end)
			mayHave := n - is[sayNo] - is[sayGone] // masters that may have the key
			switch {
			case 2*mayHave <= n:
				require.Equal(t, ErrNotHeld, got, name)
			case 2*is[sayYes] > n:
				require.NoError(t, got, name)
				require.Equal(t, ErrExpired, tally.extended(after, end, 2*end), name)
				require.Equal(t, ErrExpired, tally.extended(after, 2*end, end), "an expired lock must not be revived")
			default:
				require.Equal(t, ErrNoQuorum, got, name)
			}
		})
	}
}

func TestReleaseIsDecidedByEveryCombinationOfVotes(t *testing.T) {
	sequential(t)
	t.Parallel()
	for n := 1; n <= 7; n++ {
		everyBallot(n, sayGone, func(votes []mux.Vote, is map[ballot]int) {
			name := fmt.Sprint(n, " ", is)
			tally := count(votes, mux.ErrTimeout)
			require.Equal(t, ErrNotHeld, tally.released(false, true), name)
			require.Equal(t, ErrNotHeld, tally.released(true, true), name)
			switch {
			case 2*is[sayYes] > n:
				require.NoError(t, tally.released(false, false), name)
				require.NoError(t, tally.released(true, false), name)
			case 2*(n-is[sayNo]) <= n: // no quorum can have had it
				require.Equal(t, ErrNotHeld, tally.released(false, false), name)
			default:
				require.Equal(t, ErrNoQuorum, tally.released(false, false), name)
				require.Equal(t, ErrNotHeld, tally.released(true, false), name)
			}
		})
	}
}

func TestTwoQuorumsShareAMaster(t *testing.T) {
	for n := 1; n <= 64; n++ {
		require.Greater(t, 2*majority(n), n)
		require.LessOrEqual(t, majority(n), n)
		require.LessOrEqual(t, majority(n), n-(n-1)/2, "a minority may fail")
		// One of n was replaced, and is down for good: who does not know has a quorum of the others.
		if others := n - 1; majority(n) <= others {
			require.Greater(t, majority(n)+majority(n)-1, others, "and shares one with a quorum that has the new one")
		}
	}
}

func TestValidityIsTTLLessElapsedLessDrift(t *testing.T) {
	for _, c := range []struct{ ttl, drift time.Duration }{
		{10 * time.Second, 102 * time.Millisecond},
		{time.Second, 12 * time.Millisecond},
		{100 * time.Millisecond, 3 * time.Millisecond},
	} {
		term := newTerm(c.ttl, defaultDriftFactor)
		require.Equal(t, c.drift, term.drift)
		started, now := time.Hour, time.Hour+7*time.Millisecond
		require.Equal(t, c.ttl-7*time.Millisecond-c.drift, term.until(started)-now)
		require.Equal(t, started, term.started(term.until(started)))
	}
}

// What a round gives is counted from its start: that is when the first of the keys can have been set.
func TestValidityIsCountedFromTheStartOfEachRound(t *testing.T) {
	const delay = 3 * time.Millisecond
	for name, c := range map[string]struct {
		op   Op
		took time.Duration
		do   func(ctx context.Context, m *Mutex) error
	}{
		"TryLock": {OpLock, delay, func(ctx context.Context, m *Mutex) error { return m.TryLock(ctx) }},
		"Extend":  {OpExtend, delay, func(ctx context.Context, m *Mutex) error { return m.Extend(ctx) }},
		"KeepAlive": {OpRenew, delay, func(ctx context.Context, m *Mutex) error {
			held, stop := m.KeepAlive(ctx)
			defer stop()
			time.Sleep(ttl / 4) // a renewal comes in between
			return context.Cause(held)
		}},
		"recheck": {OpRecheck, delay, func(_ context.Context, m *Mutex) error {
			m.client.rechecker.recheck([]*hold{&m.hold})
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				m := client.NewMutex("k", ttl)
				if c.op != OpLock {
					require.NoError(t, m.TryLock(t.Context()))
					time.Sleep(ttl / 4)
				}
				var left []time.Duration
				client.events.hook(EventRound, func(round *Event) {
					if round.Op == c.op {
						left = append(left, m.Remaining())
					}
				})
				r.set(func(m *fakeMaster) { m.delay = delay }, all(3)...)
				require.NoError(t, c.do(t.Context(), m))
				synctest.Wait()
				require.Equal(t, []time.Duration{ttl - m.term.drift - c.took}, left)
			})
		})
	}
}
