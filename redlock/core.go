package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

// A core is what all parts of a client share: how rounds are asked, the clock, who is to be notified, the statistics and
// the Observers. The parts are given the core, and not the Client.
type core struct {
	owner    string // in front of each token; empty for none
	masters  addresses
	round    round.Core
	now      func() time.Duration // clock.Now; all times are on its clock
	tracking tracking.Registry
	stats    stats
	events   events
	groups   bool          // sentinels say where a master is, so it can be replaced by another
	shut     chan struct{} // closed when no lock is to be taken any more
	closed   chan struct{} // closed by Close, after shut
}

// isShut reports whether no lock is to be taken any more: Shutdown or Close has begun.
func (c *core) isShut() bool {
	select {
	case <-c.shut:
		return true
	default:
		return false
	}
}

// pause waits for d, unless ctx ends, or over is closed: the error is the context's, or why.
func (c *core) pause(ctx context.Context, d time.Duration, over <-chan struct{}, why error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-over:
		return why
	case <-time.After(d):
		return nil
	}
}

// failure makes the error of a round. err is the mux's, and reason is what the votes say. If a context has ended
// the round, the caller adds that with blame.
func (c *core) failure(op string, key string, k *round.Call, err, reason error) *RoundError {
	e := unasked(op, key, reason, "")
	if e.cut = err != nil; err == mux.ErrTimeout {
		e.limit = k.Op.Timeout
	}
	if reason == quorum.ErrUndecided {
		e.reason = nil
	}
	if errors.Is(err, mux.ErrClosed) {
		e.reason = ErrClosed
		return e
	}
	k.ExplainRefusals()
	e.Votes = appendVotes(make([]Vote, 0, len(c.masters)), c.masters, k.Op.Votes, k.Token)
	if reason == ErrNotHeld {
		e.noteRevoked(k.Op.Votes, k.Token)
		e.noteNoLock(k.Op.Votes)
	}
	return e
}

// noteRevoked notes whether a master has the lock's tombstone. It notes that the lock is gone because it was revoked, if so
// many masters have it that nobody has a quorum without them. If fewer have it, the others may have lost the lock, and
// another may have had it. Or a majority has it, some of which say nothing now.
func (e *RoundError) noteRevoked(votes []mux.Vote, token []byte) {
	var reasons []string
	for i := range votes {
		v := &votes[i]
		if v.Verdict != mux.VerdictNo {
			continue
		}
		why, ok := kind.RevokedIn(v.Reply, token)
		if !ok {
			continue
		}
		e.tombstone = true
		reasons = append(reasons, why)
	}
	if len(reasons) > quorum.Spare(len(votes)) {
		e.under, e.WhyRevoked = ErrRevoked, census.MostSaid(reasons)
	}
}

// noteNoLock notes that another's key is in the lock's place, if so many masters say so that nobody has a quorum.
func (e *RoundError) noteNoLock(votes []mux.Vote) {
	others := quorum.Those(votes, func(v *mux.Vote) bool { return v.Verdict == mux.VerdictNo && kind.NoLockIn(v.Reply) })
	if others.Len() > quorum.Spare(len(votes)) {
		e.note = census.Holder{}.NoLock()
	}
}

// observeRound tells the Observers of a round. left is what is left of the lock's validity. e is the round's error;
// nil if it succeeded.
func (c *core) observeRound(ctx context.Context, op string, key string, k *round.Call, left time.Duration, e *RoundError) {
	ev := c.events.begin(ctx, EventRound, key)
	if ev == nil {
		return
	}
	ev.Op, ev.Took = op, k.Op.Decided-k.Op.Started
	more := &ev.more
	more.Asked, more.Started, more.Held, more.Failures = len(c.masters), k.Op.Started, k.Held, k.Failures
	more.TTL, more.Fence, more.Holders, more.Keys = k.About.TTL, k.Fence, k.About.Holders, k.About.Keys
	more.Token = append(more.Token, k.Token...)
	if more.Started != 0 {
		more.Boot = k.Op.Decided
	}
	if e == nil {
		ev.Votes, more.Validity = appendVotes(ev.Votes, c.masters, k.Op.Votes, k.Token), left
	} else if ev.Votes, ev.Err = append(ev.Votes, e.Votes...), e; op == opLock {
		more.Fence = 0 // it is a hint
	}
	c.events.end(ev)
}

// A teller is a core, as package held knows it: see held.Teller.
type teller struct{ *core }

func (t teller) Failure(op, key string, k *round.Call, err, reason error) held.Failure {
	return (*failed)(t.failure(op, key, k, err, reason))
}

func (t teller) Ended(key string, why held.End, last held.Failure, second error) error {
	switch why {
	case held.EndNotHeld:
		return lostTo(key, ErrNotHeld)
	case held.EndClosed:
		return lostTo(key, ErrClosed)
	case held.EndShutdown:
		return unasked(opRenew, key, ErrClosed, "")
	case held.EndLifetime:
		return unasked(opRenew, key, ErrMaxLifetime, "")
	case held.EndSecond:
		return lostTo(key, secondEnded{second})
	case held.EndRound:
		of := errorOf(last)
		e := lostTo(key, of.reason)
		if e.Votes = of.Votes; of.revoked() {
			e.under, e.WhyRevoked = ErrRevoked, of.WhyRevoked
		}
		return e
	}
	return unasked(opRenew, key, ErrLost, "its validity ended before a renewal was answered")
}

func (t teller) Round(ctx context.Context, op, key string, k *round.Call, left time.Duration, f held.Failure) {
	t.observeRound(ctx, op, key, k, left, errorOf(f))
}

func (t teller) Lost(ctx context.Context, key string, token *[]byte, why error) {
	if ev := t.events.begin(ctx, EventLost, key); ev != nil {
		if ev.Err = why; token != nil {
			ev.more.Token = append(ev.more.Token, *token...)
		}
		t.events.end(ev)
	}
}

func (t teller) HandedOver(ctx context.Context, key string, token []byte, fence uint64, left time.Duration) {
	if ev := t.events.begin(ctx, behind.HandedOver, key); ev != nil {
		ev.more.Token, ev.more.Fence, ev.more.Validity = append(ev.more.Token, token...), fence, left
		t.events.end(ev)
	}
}

func (t teller) LetGo(key string, token []byte, givenBack bool) {
	if ev := t.events.begin(context.Background(), behind.LetGo, key); ev != nil {
		ev.more.GivenBack, ev.more.Token = givenBack, append(ev.more.Token, token...)
		t.events.end(ev)
	}
}

func (t teller) Observed() bool { return t.events.observed() }

// A failed is a RoundError, as package held knows it: see held.Failure.
type failed RoundError

// errorOf returns the error of a round; nil if it has not failed.
func errorOf(f held.Failure) *RoundError {
	e, _ := f.(*failed)
	return (*RoundError)(e)
}

func (f *failed) Reason() error                        { return f.reason }
func (f *failed) Revoked() bool                        { return errorOf(f).revoked() }
func (f *failed) Entombed() bool                       { return f.tombstone || f.Revoked() }
func (f *failed) Note(text string)                     { f.note = text }
func (f *failed) Second(err error)                     { f.under = foreignError{err} }
func (f *failed) Blame(ctx context.Context, err error) { errorOf(f).blame(ctx, err) }
