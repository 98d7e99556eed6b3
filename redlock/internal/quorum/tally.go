package quorum

import (
	"errors"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
)

// This file decides rounds: by pure functions of the votes, the TTL and an explicit now.

// A Term is a lock's TTL with its drift. The drift is a share of the TTL, as the masters' clocks may run faster than
// ours, and a constant, as Redis expires keys to the millisecond.
type Term struct{ TTL, Drift time.Duration }

const minDrift = 2 * time.Millisecond // the millisecond of Redis, and one to spare

// NewTerm is the term of a TTL, by the share of it that clocks may be off (Config.DriftFactor).
func NewTerm(ttl time.Duration, factor float64) Term {
	return Term{ttl, time.Duration(float64(ttl)*factor) + minDrift}
}

// Until returns the end of the validity that a round gives which began at started. All keys that the round has set
// are there until then. A key lives for the TTL from the moment at which its master got the command, which was
// after started. So the validity pays for the time of the round: at now, until-now = TTL - (now-started) - drift
// is left.
func (t Term) Until(started time.Duration) time.Duration { return started + t.TTL - t.Drift }

// Started is the inverse of Until: it returns when the round began.
func (t Term) Started(until time.Duration) time.Duration { return until - t.TTL + t.Drift }

// RenewAfter divides a TTL: a lock is renewed when a third of it has passed.
const RenewAfter = 3

// Due returns when a lock that is valid until then is to be renewed.
func (t Term) Due(until time.Duration) time.Duration { return t.Started(until) + t.TTL/RenewAfter }

// A Tally is a round's votes, counted.
type Tally struct {
	n      int // masters
	Yes    int
	No     int  // the key is another's, or not there
	Failed int  // did not answer, or answered with an error, or late
	Open   int  // not waited for: the round was decided without them, or its context had ended
	Cut    bool // its context, or Close, has ended it
}

// What a count can say of a round.
var (
	ErrHeld     = errors.New("redlock: held by another")
	ErrNoQuorum = errors.New("redlock: too few masters answered")
	ErrExpired  = errors.New("redlock: took longer than the lock is valid")
	ErrNotHeld  = errors.New("redlock: not held")
)

// ErrUndecided is the result of a round that its context, or Close, has ended before the masters had decided it. No
// user sees it: the round's error wraps that of the context, or ErrClosed.
var ErrUndecided = errors.New("redlock: not decided")

// Count counts votes. err is the mux's. If the round has timed out, the votes that had not come count as failed. If
// its context has ended, they are open: they could have been anything.
func Count(votes []mux.Vote, err error) Tally {
	late := err == mux.ErrTimeout
	t := Tally{n: len(votes), Cut: err != nil && !late}
	for i := range votes {
		switch v := &votes[i]; {
		case v.Verdict == mux.VerdictYes:
			t.Yes++
		case v.Verdict == mux.VerdictNo:
			t.No++
		case v.Verdict == mux.VerdictFailed || late:
			t.Failed++
		default:
			t.Open++
		}
	}
	return t
}

// Majority is the quorum of n masters. Two quorums always share a master.
func Majority(n int) int { return n/2 + 1 }

// Quorum is how many masters are a majority.
func (t Tally) Quorum() int { return Majority(t.n) }

// Spare returns how many of n masters can be missing while the others still make a quorum.
func Spare(n int) int { return n - Majority(n) }

func (t Tally) spare() int { return Spare(t.n) }

// Lost reports whether so many masters have not got the key that no quorum can have it.
func (t Tally) Lost() bool { return t.No > t.spare() }

// Acquired decides an acquire: it returns nil, or what went wrong.
func (t Tally) Acquired(now, until time.Duration) error {
	switch {
	case t.Yes >= t.Quorum() && now < until:
		return nil
	case t.Yes >= t.Quorum():
		return ErrExpired
	case t.Failed > t.spare():
		return ErrNoQuorum
	case t.undecided(t.Yes):
		return ErrUndecided
	}
	return ErrHeld // a master said no: otherwise the failures alone would have decided
}

// Extended decides an extend of a lock that is valid until limit.
func (t Tally) Extended(now, until, limit time.Duration) error {
	switch {
	case t.Lost():
		return ErrNotHeld
	case t.undecided(t.Yes):
		return ErrUndecided
	case t.Yes < t.Quorum():
		return ErrNoQuorum
	case now >= min(until, limit):
		return ErrExpired // an extend does not revive a lock
	}
	return nil
}

// Released decides a release. expired says that the lock's validity had ended before the release began, and gone
// that the lock was known to be lost. It also decides a round that asks whether a quorum still has the lock.
func (t Tally) Released(expired, gone bool) error {
	switch {
	case t.Yes >= t.Quorum() && !gone:
		return nil // a quorum still had it, so no other holder can have had it
	case t.Lost() || expired || gone:
		return ErrNotHeld
	case t.undecided(t.Yes):
		return ErrUndecided
	}
	return ErrNoQuorum
}

// Answered decides a round that only asks. Each answer counts as a yes.
func (t Tally) Answered() error {
	switch {
	case t.Yes >= t.Quorum():
		return nil
	case t.undecided(t.Yes):
		return ErrUndecided
	}
	return ErrNoQuorum
}

// undecided reports whether the round was cut short, and the open votes could have made a quorum together with the
// counting votes.
func (t Tally) undecided(counting int) bool {
	return t.Cut && counting < t.Quorum() && counting+t.Open >= t.Quorum()
}

// Those returns the masters whose vote is such.
func Those(votes []mux.Vote, is func(v *mux.Vote) bool) (all mux.Set) {
	for i := range votes {
		if is(&votes[i]) {
			all = all.With(i)
		}
	}
	return all
}

// AnsweredBy returns the masters that have answered.
func AnsweredBy(votes []mux.Vote) mux.Set {
	return Those(votes, func(v *mux.Vote) bool {
		_, refused := v.Err.(*mux.ReplyError)
		return refused || v.Err == mux.ErrUnexpected || v.Verdict == mux.VerdictYes || v.Verdict == mux.VerdictNo
	})
}

// SaidYes returns the masters whose vote is yes.
func SaidYes(votes []mux.Vote) mux.Set {
	return Those(votes, func(v *mux.Vote) bool { return v.Verdict == mux.VerdictYes })
}

// SaidNo returns the masters whose vote is no.
func SaidNo(votes []mux.Vote) mux.Set {
	return Those(votes, func(v *mux.Vote) bool { return v.Verdict == mux.VerdictNo })
}

// SaidGone returns the masters that have answered to an extend that the lock is gone, and that nothing is in its way.
func SaidGone(votes []mux.Vote) mux.Set {
	return Those(votes, func(v *mux.Vote) bool { return v.Verdict == mux.VerdictNo && v.Int == kind.Gone })
}

// Discount makes failed votes of the yes of suspect masters.
func Discount(votes []mux.Vote, suspect mux.Set) {
	for i := range votes {
		if v := &votes[i]; suspect.Has(i) && (v.Verdict == mux.VerdictYes || v.Verdict == mux.VerdictFailed && v.Int > 0) {
			v.Verdict, v.Err, v.Int = mux.VerdictFailed, mux.ErrSuspect, 0
		}
	}
}
