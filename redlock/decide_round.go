package redlock

import (
	"errors"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
)

// What decides is in this file: pure functions of the votes, the TTL and an
// explicit now.

// A term is a lock's TTL and the drift that is allowed for: the masters'
// clocks may run faster than ours by its share of the TTL, and Redis expires
// keys to the millisecond.
type term struct{ ttl, drift time.Duration }

func newTerm(ttl time.Duration, factor float64, least time.Duration) term {
	return term{ttl, time.Duration(float64(ttl)*factor) + least}
}

// until is the end of the validity that a round begun at started gives: all
// the keys it set are there until then. A key lives for the TTL from when its
// master got the command, which was after started. So time spent on the round
// is time lost: at now, until-now = TTL - (now-started) - drift is left.
func (t term) until(started time.Duration) time.Duration { return started + t.ttl - t.drift }

// started is the inverse of until.
func (t term) started(until time.Duration) time.Duration { return until - t.ttl + t.drift }

// A tally is a round's votes, counted.
type tally struct {
	n        int // masters
	yes      int
	no       int // the key is another's, or not there
	restored int // extend: the key was gone and has been set again
	failed   int // did not answer, or with an error, or late
	open     int // not waited for: it was decided without them, or its context had ended
	cut      bool
}

// errUndecided is what a round has come to that its context, or Close, has ended before
// the masters had decided it. It is nobody's fault, and no sentinel: the error is the
// context's.
var errUndecided = errors.New("redlock: not decided")

// count counts votes: err is what the mux returned. If the round has timed out, the votes
// that had not come are late, which is failed. If its context has ended, it is not known
// what they would have been.
func count(votes []mux.Vote, err error) tally {
	late := err == mux.ErrTimeout
	t := tally{n: len(votes), cut: err != nil && !late}
	for i := range votes {
		switch v := &votes[i]; {
		case v.Verdict == VerdictYes:
			t.yes++
		case v.Verdict == VerdictNo && v.Int == kind.Restored:
			t.restored++
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

// spare is how many masters can be missing without breaking a quorum.
func (t tally) spare() int { return t.n - t.quorum() }

// acquired decides an acquire: nil, or what went wrong.
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
	return ErrHeld // somebody said no, else failures alone had decided it
}

// extended decides an extend of a lock that is valid until limit. Masters that had lost the key
// and were given it again count, unless they and those where it is another's make it certain
// that no quorum had it any more: then somebody else may have held the lock in between.
func (t tally) extended(now, until, limit time.Duration) error {
	switch {
	case t.no+t.restored > t.spare():
		return ErrNotHeld
	case t.undecided(t.yes + t.restored):
		return errUndecided
	case t.yes+t.restored < t.quorum():
		return ErrNoQuorum
	case now >= min(until, limit):
		return ErrExpired // what has ended is not revived
	}
	return nil
}

// released decides a release of a lock whose validity had, or had not, ended
// before it began, and which was, or was not, known to be lost.
func (t tally) released(expired, gone bool) error {
	switch {
	case t.yes >= t.quorum() && !gone:
		return nil // a quorum still had it, so nobody else did
	case t.no > t.spare() || expired || gone:
		return ErrNotHeld
	case t.undecided(t.yes):
		return errUndecided
	}
	return ErrNoQuorum
}

// answered decides a round that only asks: an answer is a yes.
func (t tally) answered() error {
	switch {
	case t.yes >= t.quorum():
		return nil
	case t.undecided(t.yes):
		return errUndecided
	}
	return ErrNoQuorum
}

// undecided reports whether the round was cut short while the votes that were still to
// come could have made a quorum of those that count.
func (t tally) undecided(counting int) bool {
	return t.cut && counting < t.quorum() && counting+t.open >= t.quorum()
}

// milliseconds is what a master says of a TTL.
func milliseconds(n int64) time.Duration {
	if n > int64(clock.Forever/time.Millisecond) {
		return clock.Forever
	}
	return time.Duration(n) * time.Millisecond
}
