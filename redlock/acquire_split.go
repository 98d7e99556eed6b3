package redlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// This file resolves splits. Contenders that begin at about the same time can each have the votes of some masters, and
// none a majority. If all gave up, nobody would have the lock, and nobody would know it. So the masters have an order
// that all clients have in common (mux.Mux.Leading), and the vote of the first that has answered decides:
//
//   - Who has been refused by the first gives up, and undoes its votes. If that refusal is old, whoever was faster there
//     may have given up since: then the first is asked once more before.
//   - Who has the vote of the first keeps all its votes, and asks those again that have refused it: the others undo theirs
//     meanwhile. It gives up if a quorum names one holder, after splitAsks questions, or after a round timeout.
//   - Who has no vote, or a quorum of them, has nothing to resolve.
//
// The validity counts from the attempt's beginning, and the keys that were set then last until its end. So a vote that is
// kept needs no second look: like the votes of a lock that is held, it counts for nobody else before that end, whatever
// becomes of its master. A question is a set that can be carried out late (internal/quorum/suspect.go). So only a master that has
// answered no is asked again, and no master owes two answers. Whose answer is missing in the end owes it.

const (
	splitAsks     = 7 // questions in an attempt, at the most
	minSplitPause = time.Millisecond

	// For how long an answer is waited for, if others may do without it. A busy machine is that late.
	splitPatience = 50 * time.Millisecond
)

// resolve goes on with an attempt that has met a split. The lock would be valid until then. It leaves in the call the
// votes of all that was asked, and returns the masters that owe an answer; and who holds the lock, if it ended because a
// quorum names one. The error is the mux's: that of the round that has met the split, unless a context, or Close, has ended a
// later one.
func (m *Mutex) resolve(ctx context.Context, k *round.Call, err error, until time.Duration) (owing mux.Set, holder holderSummary, _ error) {
	c, op := m.client, &k.Op
	needed := quorum.Majority(len(op.Votes))
	started, asked, timeout := op.Started, op.Asked, op.Timeout
	end := min(op.Decided+timeout, until)
	k.Kept = append(k.Kept[:0], op.Votes...)
	votes := k.Kept
	owing = asked &^ quorum.AnsweredBy(votes)
	patience := c.round.ShortTimeout(m.spec().Timeout, splitPatience)
	for i := range votes { // a master that is far gets the time that it needs
		if votes[i].Verdict == mux.VerdictNo {
			patience = max(patience, 2*votes[i].RTT)
		}
	}
	pause := max(c.round.Mux.RTT()/2, minSplitPause)
	for asks, retried := 0, false; asks < splitAsks; asks++ {
		again, keeps := quorum.SaidNo(votes), true
		need := needed - quorum.SaidYes(votes).Len()
		first := c.round.Mux.Leading(quorum.SaidYes(votes) | again)
		if votes[first].Verdict == mux.VerdictNo {
			old := c.now()-started-votes[first].RTT > c.round.ShortTimeout(m.spec().Timeout, round.MinShortTimeout)
			if retried || !old {
				break
			}
			again, need, keeps, retried = mux.Set(0).With(first), 1, false, true
		}
		if need <= 0 || again.Len() < need {
			break
		}
		if asks > 0 {
			if ended := c.pause(ctx, pause*3/4+rand.N(pause/2), c.closed, mux.ErrClosed); ended != nil {
				err = ended
				break
			}
			pause *= 2
		}
		left := end - c.now()
		if left <= 0 {
			break
		}
		if !keeps || again.Len() > need { // without the answers of all it would have to give up
			left = min(left, patience)
		}
		m.hintMost(k, votes)
		op.Only, op.Quorum, op.Thorough, op.Timeout = again, need, true, left
		ended := c.round.Mux.Do(ctx, op)
		open := op.Asked &^ quorum.AnsweredBy(op.Votes)
		owing |= open
		for i := range votes {
			if op.Asked.Has(i) || op.Votes[i].Verdict == mux.VerdictFailed {
				votes[i] = op.Votes[i]
				votes[i].RTT += op.Started - started
			}
		}
		if ended == mux.ErrTimeout {
			overdue(votes, open, lateError{timeout})
		} else if ended != nil {
			err = ended
			break
		}
		if keeps && quorum.SaidYes(votes).Len() < needed {
			// Fewer may name this attempt, and so may more, where a set came later than its answer was waited for.
			if named := m.holderNamed(ctx, k.Token, needed); named.votes >= needed && named.token.Reveal() != string(k.Token) {
				holder = named
				break
			}
		}
	}
	copy(op.Votes, votes)
	op.Started, op.Asked, op.Timeout = started, asked, timeout
	return owing, holder, err
}

// hintMost encodes the acquire of a numbered kind again, so that those that are asked again give the number that the
// others have given.
func (m *Mutex) hintMost(k *round.Call, votes []mux.Vote) {
	if m.spec().Numbers == nil {
		return
	}
	most := k.Fence
	for i := range votes {
		if v := &votes[i]; v.Verdict == mux.VerdictYes {
			most = max(most, uint64(v.Int))
		}
	}
	if most > k.Fence {
		k.Hint(m.spec(), most)
	}
}

// holderNamed returns whom most masters name as the holder of the lock, or of the slot that the token names.
func (m *Mutex) holderNamed(ctx context.Context, token []byte, needed int) holderSummary {
	c := m.client
	ctx, cancel := context.WithTimeout(ctx, c.round.ShortTimeout(m.spec().Timeout, round.MinShortTimeout))
	defer cancel()
	if m.spec().Slotted != nil {
		return c.inTheWay(ctx, 1, string(m.spec().Slotted.AppendKey(nil, token)))
	}
	return c.inTheWay(ctx, needed, m.spec().Names()...)
}

// overdue makes failed votes of those that have not come.
func overdue(votes []mux.Vote, of mux.Set, err error) {
	for i := range votes {
		if v := &votes[i]; of.Has(i) && v.Verdict == mux.VerdictPending {
			v.Verdict, v.Err = mux.VerdictFailed, err
		}
	}
}
