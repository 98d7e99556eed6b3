package redlock

import (
	"errors"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
)

// This file decides rounds: by pure functions of the votes, the TTL and an explicit now.

// A term is a lock's TTL with its drift. The drift is a share of the TTL, as the masters' clocks may run faster than
// ours, and a constant, as Redis expires keys to the millisecond.
type term struct{ ttl, drift time.Duration }

const minDrift = 2 * time.Millisecond // the millisecond of Redis, and one to spare

func newTerm(ttl time.Duration, factor float64) term {
	return term{ttl, time.Duration(float64(ttl)*factor) + minDrift}
}

// until returns the end of the validity that a round gives which began at started. All keys that the round has set
// are there until then. A key lives for the TTL from the moment at which its master got the command, which was
// after started. So the validity pays for the time of the round: at now, until-now = TTL - (now-started) - drift
// is left.
func (t term) until(started time.Duration) time.Duration { return started + t.ttl - t.drift }

// started is the inverse of until: it returns when the round began.
func (t term) started(until time.Duration) time.Duration { return until - t.ttl + t.drift }

const renewAfter = 3 // a lock is renewed after this part of its TTL

// due returns when a lock that is valid until then is to be renewed.
func (t term) due(until time.Duration) time.Duration { return t.started(until) + t.ttl/renewAfter }

// A tally is a round's votes, counted.
type tally struct {
	n      int // masters
	yes    int
	no     int  // the key is another's, or not there
	failed int  // did not answer, or answered with an error, or late
	open   int  // not waited for: the round was decided without them, or its context had ended
	cut    bool // its context, or Close, has ended it
}

// errUndecided is the result of a round that its context, or Close, has ended before the masters had decided it. No
// user sees it: the round's error wraps that of the context, or ErrClosed.
var errUndecided = errors.New("redlock: not decided")

// count counts votes. err is the mux's. If the round has timed out, the votes that had not come count as failed. If
// its context has ended, they are open: they could have been anything.
func count(votes []mux.Vote, err error) tally {
	late := err == mux.ErrTimeout
	t := tally{n: len(votes), cut: err != nil && !late}
	for i := range votes {
		switch v := &votes[i]; {
		case v.Verdict == VerdictYes:
			t.yes++
		case v.Verdict == VerdictNo:
			t.no++
		case v.Verdict == VerdictFailed || late:
			t.failed++
		default:
			t.open++
		}
	}
	return t
}

func (t tally) quorum() int { return majority(t.n) }

// spare returns how many masters can be missing while the others still make a quorum.
func (t tally) spare() int { return t.n - t.quorum() }

// lost reports whether so many masters have not got the key that no quorum can have it.
func (t tally) lost() bool { return t.no > t.spare() }

// acquired decides an acquire: it returns nil, or what went wrong.
func (t tally) acquired(now, until time.Duration) error {
	switch {
	case t.yes >= t.quorum() && now < until:
		return nil
	case t.yes >= t.quorum():
		return ErrExpired
	case t.failed > t.spare():
		return ErrNoQuorum
	case t.undecided(t.yes):
		return errUndecided
	}
	return ErrHeld // a master said no: otherwise the failures alone would have decided
}

// extended decides an extend of a lock that is valid until limit.
func (t tally) extended(now, until, limit time.Duration) error {
	switch {
	case t.lost():
		return ErrNotHeld
	case t.undecided(t.yes):
		return errUndecided
	case t.yes < t.quorum():
		return ErrNoQuorum
	case now >= min(until, limit):
		return ErrExpired // an extend does not revive a lock
	}
	return nil
}

// released decides a release. expired says that the lock's validity had ended before the release began, and gone
// that the lock was known to be lost. It also decides a round that asks whether a quorum still has the lock.
func (t tally) released(expired, gone bool) error {
	switch {
	case t.yes >= t.quorum() && !gone:
		return nil // a quorum still had it, so no other holder can have had it
	case t.lost() || expired || gone:
		return ErrNotHeld
	case t.undecided(t.yes):
		return errUndecided
	}
	return ErrNoQuorum
}

// answered decides a round that only asks. Each answer counts as a yes.
func (t tally) answered() error {
	switch {
	case t.yes >= t.quorum():
		return nil
	case t.undecided(t.yes):
		return errUndecided
	}
	return ErrNoQuorum
}

// undecided reports whether the round was cut short, and the open votes could have made a quorum together with the
// counting votes.
func (t tally) undecided(counting int) bool {
	return t.cut && counting < t.quorum() && counting+t.open >= t.quorum()
}

// answeredBy returns the masters that have answered.
func answeredBy(votes []mux.Vote) (all mux.Set) {
	for i := range votes {
		v := &votes[i]
		if _, refused := v.Err.(*mux.ReplyError); refused || v.Err == mux.ErrUnexpected || v.Verdict == VerdictYes || v.Verdict == VerdictNo {
			all = all.With(i)
		}
	}
	return all
}

// saidYes returns the masters whose vote is yes.
func saidYes(votes []mux.Vote) (all mux.Set) {
	for i := range votes {
		if votes[i].Verdict == VerdictYes {
			all = all.With(i)
		}
	}
	return all
}

// saidNo returns the masters whose vote is no.
func saidNo(votes []mux.Vote) (all mux.Set) {
	for i := range votes {
		if votes[i].Verdict == VerdictNo {
			all = all.With(i)
		}
	}
	return all
}

// saidGone returns the masters that have answered to an extend that the lock is gone, and that nothing is in its way.
func saidGone(votes []mux.Vote) (all mux.Set) {
	for i := range votes {
		if v := &votes[i]; v.Verdict == VerdictNo && v.Int == kind.Gone {
			all = all.With(i)
		}
	}
	return all
}

// discount makes failed votes of the yes of suspect masters.
func discount(votes []mux.Vote, suspect mux.Set) {
	for i := range votes {
		if v := &votes[i]; suspect.Has(i) && (v.Verdict == VerdictYes || v.Verdict == VerdictFailed && v.Int > 0) {
			v.Verdict, v.Err, v.Int = VerdictFailed, mux.ErrSuspect, 0
		}
	}
}
