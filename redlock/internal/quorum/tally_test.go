package quorum

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/stretchr/testify/require"
)

// What a master can do in a round.
type cast int

const (
	sayYes cast = iota
	sayNo
	sayError
	sayLate
	sayGone // extend only: it has lost the key
	casts
)

var (
	errDown       = errors.New("down")
	refusedAnswer = &mux.ReplyError{Code: "ERR"}
)

func (b cast) vote() mux.Vote {
	switch b {
	case sayYes:
		return mux.Vote{Verdict: mux.VerdictYes, Int: 1}
	case sayNo:
		return mux.Vote{Verdict: mux.VerdictNo}
	case sayError:
		return mux.Vote{Verdict: mux.VerdictFailed, Err: errDown}
	case sayGone:
		return mux.Vote{Verdict: mux.VerdictNo, Int: kind.Gone}
	}
	return mux.Vote{}
}

// everyBallot calls f with every combination of n masters' casts below limit.
func everyBallot(n int, limit cast, f func(votes []mux.Vote, count map[cast]int)) {
	all := make([]cast, n)
	votes := make([]mux.Vote, n)
	for {
		count := map[cast]int{}
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
	t.Parallel()
	for n := 1; n <= 7; n++ {
		everyBallot(n, sayGone, func(votes []mux.Vote, is map[cast]int) {
			name := fmt.Sprint(n, " ", is)
			tally := Count(votes, mux.ErrTimeout)
			quorate := 2*is[sayYes] > n
			require.Equal(t, quorate, tally.Acquired(before, end) == nil, name)
			if quorate {
				require.Equal(t, ErrExpired, tally.Acquired(after, end), name)
				return
			}
			// Could those who answered have given the lock, had it been free?
			if 2*(is[sayYes]+is[sayNo]) > n {
				require.Equal(t, ErrHeld, tally.Acquired(before, end), name)
			} else {
				require.Equal(t, ErrNoQuorum, tally.Acquired(before, end), name)
			}
			require.Equal(t, tally.Acquired(before, end), tally.Acquired(after, end), name)
		})
	}
}

// An early decision must be the one that all votes together would give.
func TestEarlyDecisionsAreThoseOfAllVotes(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 6; n++ {
		everyBallot(n, sayLate, func(votes []mux.Vote, is map[cast]int) {
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
				if yes >= Majority(n) || yes+open < Majority(n) {
					decided = k
					break
				}
			}
			require.GreaterOrEqual(t, decided, 0)
			early, full := Count(part, nil).Acquired(before, end), Count(votes, nil).Acquired(before, end)
			require.Equal(t, full == nil, early == nil)
			if early == ErrNoQuorum { // what failures alone have decided, later votes do not change
				require.Equal(t, ErrNoQuorum, full)
			}
			require.Equal(t, Count(votes, nil).Released(false, false) == nil, Count(part, nil).Released(false, false) == nil)
			if Count(part, nil).Released(false, false) == ErrNotHeld {
				require.Equal(t, ErrNotHeld, Count(votes, nil).Released(false, false))
			}
		})
	}
}

func TestExtendIsDecidedByEveryCombinationOfVotes(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 7; n++ {
		everyBallot(n, casts, func(votes []mux.Vote, is map[cast]int) {
			name := fmt.Sprint(n, " ", is)
			tally := Count(votes, mux.ErrTimeout)
			got := tally.Extended(before, end, end)
			mayHave := n - is[sayNo] - is[sayGone] // masters that may have the key
			switch {
			case 2*mayHave <= n:
				require.Equal(t, ErrNotHeld, got, name)
			case 2*is[sayYes] > n:
				require.NoError(t, got, name)
				require.Equal(t, ErrExpired, tally.Extended(after, end, 2*end), name)
				require.Equal(t, ErrExpired, tally.Extended(after, 2*end, end), "an expired lock must not be revived")
			default:
				require.Equal(t, ErrNoQuorum, got, name)
			}
		})
	}
}

func TestReleaseIsDecidedByEveryCombinationOfVotes(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 7; n++ {
		everyBallot(n, sayGone, func(votes []mux.Vote, is map[cast]int) {
			name := fmt.Sprint(n, " ", is)
			tally := Count(votes, mux.ErrTimeout)
			require.Equal(t, ErrNotHeld, tally.Released(false, true), name)
			require.Equal(t, ErrNotHeld, tally.Released(true, true), name)
			switch {
			case 2*is[sayYes] > n:
				require.NoError(t, tally.Released(false, false), name)
				require.NoError(t, tally.Released(true, false), name)
			case 2*(n-is[sayNo]) <= n: // no quorum can have had it
				require.Equal(t, ErrNotHeld, tally.Released(false, false), name)
			default:
				require.Equal(t, ErrNoQuorum, tally.Released(false, false), name)
				require.Equal(t, ErrNotHeld, tally.Released(true, false), name)
			}
		})
	}
}

func TestTwoQuorumsShareAMaster(t *testing.T) {
	for n := 1; n <= 64; n++ {
		require.Greater(t, 2*Majority(n), n)
		require.LessOrEqual(t, Majority(n), n)
		require.LessOrEqual(t, Majority(n), n-(n-1)/2, "a minority may fail")
		// One of n was replaced, and is down for good: who does not know has a quorum of the others.
		if others := n - 1; Majority(n) <= others {
			require.Greater(t, Majority(n)+Majority(n)-1, others, "and shares one with a quorum that has the new one")
		}
	}
}

func TestValidityIsTTLLessElapsedLessDrift(t *testing.T) {
	for _, c := range []struct{ ttl, drift time.Duration }{
		{10 * time.Second, 102 * time.Millisecond},
		{time.Second, 12 * time.Millisecond},
		{100 * time.Millisecond, 3 * time.Millisecond},
	} {
		term := NewTerm(c.ttl, 0.01)
		require.Equal(t, c.drift, term.Drift)
		started, now := time.Hour, time.Hour+7*time.Millisecond
		require.Equal(t, c.ttl-7*time.Millisecond-c.drift, term.Until(started)-now)
		require.Equal(t, started, term.Started(term.Until(started)))
	}
}

func TestALockIsRenewedAfterAThirdOfItsTTL(t *testing.T) {
	term := NewTerm(30*time.Second, 0.01)
	require.Equal(t, 15*time.Second, term.Due(term.Until(5*time.Second)))
}

// Who has answered, who has said what, and what is left of it if the master is suspect: neither its yes counts, nor what says
// that it has the lock and a counter that is not believed, but its no is a no, and what others say stands. A round that was
// cut short is undecided only while the open votes could have decided it.
func TestWhatMastersHaveSaid(t *testing.T) {
	answers := []struct {
		vote                    mux.Vote
		answered, yes, no, gone bool
		suspect                 mux.Vote // what is left of it if the master is suspect
	}{
		{vote: mux.Vote{Verdict: mux.VerdictYes, Int: 7}, answered: true, yes: true, suspect: mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrSuspect}},
		{vote: mux.Vote{Verdict: mux.VerdictNo, Int: 9}, answered: true, no: true, suspect: mux.Vote{Verdict: mux.VerdictNo, Int: 9}},
		{vote: mux.Vote{Verdict: mux.VerdictNo, Int: kind.Gone}, answered: true, no: true, gone: true, suspect: mux.Vote{Verdict: mux.VerdictNo, Int: kind.Gone}},
		{vote: mux.Vote{Verdict: mux.VerdictFailed, Int: kind.Gone, Err: errDown}, suspect: mux.Vote{Verdict: mux.VerdictFailed, Int: kind.Gone, Err: errDown}},
		{vote: mux.Vote{Verdict: mux.VerdictFailed, Int: 7, Err: errDown}, suspect: mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrSuspect}},
		{vote: mux.Vote{Verdict: mux.VerdictFailed, Int: 7}, suspect: mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrSuspect}},
		{vote: mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrTimeout}, suspect: mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrTimeout}},
		{vote: mux.Vote{Verdict: mux.VerdictFailed, Err: refusedAnswer}, answered: true, suspect: mux.Vote{Verdict: mux.VerdictFailed, Err: refusedAnswer}},
		{vote: mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrUnexpected}, answered: true, suspect: mux.Vote{Verdict: mux.VerdictFailed, Err: mux.ErrUnexpected}},
		{vote: mux.Vote{}, suspect: mux.Vote{}},
		{vote: mux.Vote{Int: 7}, suspect: mux.Vote{Int: 7}},
	}
	for first := range answers { // each in each place
		var votes, left, believed []mux.Vote
		var answered, yes, no, gone mux.Set
		for i := range answers {
			a := answers[(first+i)%len(answers)]
			votes, left, believed = append(votes, a.vote), append(left, a.suspect), append(believed, a.vote)
			for of, is := range map[*mux.Set]bool{&answered: a.answered, &yes: a.yes, &no: a.no, &gone: a.gone} {
				if is {
					*of = of.With(i)
				}
			}
		}
		require.Equal(t, answered, AnsweredBy(votes))
		require.Equal(t, yes, SaidYes(votes))
		require.Equal(t, no, SaidNo(votes))
		require.Equal(t, gone, SaidGone(votes))
		Discount(votes, 0)
		require.Equal(t, believed, votes)
		Discount(votes, mux.Set(0).With(first))
		believed[first] = left[first]
		require.Equal(t, believed, votes, "one of several")
		Discount(votes, mux.Set(1<<len(votes)-1))
		require.Equal(t, left, votes)
	}
	for n := 1; n <= 5; n++ {
		everyBallot(n, sayGone, func(votes []mux.Vote, is map[cast]int) {
			could := 2*(is[sayYes]+is[sayLate]) > n
			for cut, err := range map[bool]error{false: nil, true: errDown} {
				tally := Count(votes, err)
				want := ErrNoQuorum
				switch {
				case 2*is[sayYes] > n:
					want = nil
				case cut && could:
					want = ErrUndecided
				}
				require.Equal(t, want, tally.Answered(), "%d %v %v", n, is, cut)
			}
			require.NotEqual(t, ErrUndecided, Count(votes, mux.ErrTimeout).Answered(), "what has not come by then is no answer")
		})
	}
}
