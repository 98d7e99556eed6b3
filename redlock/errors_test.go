package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

func TestRoundErrorIsWhatWentWrong(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCause)
	noperm := &mux.ReplyError{Code: "NOPERM", Message: "NOPERM this user has no permissions"}
	e := &RoundError{
		Op: "lock", Key: "k", failure: failure{reason: ErrHeld},
		Votes: []Vote{{Addr: "a:1", Verdict: votedNo}, {Addr: "b:1", Verdict: voteFailed, Err: noperm}},
	}
	e.endedBy(ctx, ctx.Err())
	var err error = fmt.Errorf("wrapped: %w", e)
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, errCause)
	require.ErrorIs(t, err, noperm)
	for _, other := range []error{ErrNoQuorum, ErrExpired, ErrNotHeld, ErrLost, ErrClosed, context.DeadlineExceeded, nil} {
		require.NotErrorIs(t, err, other)
	}
	var round *RoundError
	require.ErrorAs(t, err, &round)
	require.Same(t, e, round)
	var reply *mux.ReplyError
	require.ErrorAs(t, err, &reply)
	require.Equal(t, "NOPERM", reply.Code)
	var refused *conn.RefusedError
	require.NotErrorAs(t, err, &refused)
}

// A master that could not be dialled in time is no caller who ran out of time.
func TestMastersContextErrorsAreNotTheCallers(t *testing.T) {
	timeout := fmt.Errorf("connect: %w", context.DeadlineExceeded)
	e := &RoundError{Op: "lock", Key: "k", failure: failure{reason: ErrNoQuorum}, Votes: []Vote{{Addr: "a:1", Verdict: voteFailed, Err: timeout}}}
	require.ErrorIs(t, e, ErrNoQuorum)
	require.NotErrorIs(t, e, context.DeadlineExceeded)
	require.ErrorIs(t, e, timeout)
}

func TestRoundErrorTellsTheWholeStory(t *testing.T) {
	for want, e := range map[string]*RoundError{
		`redlock: lock "k": held by another (1 yes, 2 no, 1 failed, 1 not waited for; 3 of 5 needed)` +
			`; held by svc-a@host-7:311 on 2 of 5 masters, 8.2 s left; c:1: connection refused`: {
			Op: "lock", Key: "k", failure: failure{reason: ErrHeld},
			Votes: []Vote{
				{Addr: "a:1", Verdict: votedYes},
				{Addr: "b:1", Verdict: votedNo},
				{Addr: "c:1", Verdict: voteFailed, Err: errFake},
				{Addr: "d:1", Verdict: votedNo},
				{Addr: "e:1", Verdict: votePending},
			},
			held: leading(said(5, Said{Token: NewSecret(svcA), TTL: 8249 * time.Millisecond}, Said{}, Said{Token: NewSecret(svcA), TTL: 8250 * time.Millisecond}, Said{}, Said{})).String(),
		},
		`redlock: lock "k": too few masters answered (0 yes, 0 no, 0 failed, 1 late; 1 of 1 needed); context deadline exceeded`: {
			Op: "lock", Key: "k", failure: failure{reason: ErrNoQuorum, cut: true, ended: context.DeadlineExceeded}, Votes: []Vote{{Addr: "a:1", Verdict: votePending}},
		},
		`redlock: lock "k": too few masters answered (0 yes, 0 no, 0 failed, 1 late; 1 of 1 needed); a:1: no answer within the round timeout of 20ms`: {
			Op: "lock", Key: "k", failure: failure{reason: ErrNoQuorum, cut: true, limit: 20 * time.Millisecond}, Votes: []Vote{{Addr: "a:1", Verdict: votePending}},
		},
		`redlock: lock "k": too few masters answered (0 yes, 0 no, 1 failed, 0 not waited for; 1 of 1 needed); a:1: master does not answer: connection reset`: {
			Op: "lock", Key: "k", failure: failure{reason: ErrNoQuorum}, Votes: []Vote{{Addr: "a:1", Verdict: voteFailed, Err: mux.ErrStalled}},
		},
		`redlock: lock "k": context deadline exceeded: the shop has closed (0 yes, 0 no, 0 failed, 1 outstanding; 1 of 1 needed)`: {
			Op: "lock", Key: "k", failure: failure{cut: true, ended: context.DeadlineExceeded, cause: errCause}, Votes: []Vote{{Addr: "a:1", Verdict: votePending}},
		},
		`redlock: lock "k": too few masters answered (0 yes, 0 no, 4 failed, 1 late; 3 of 5 needed)` +
			`; a:1, d:1: connect: refused; b:1, e:1: no answer within the round timeout of 20ms; c:1: connect: no route`: {
			Op: "lock", Key: "k", failure: failure{reason: ErrNoQuorum, cut: true, limit: 20 * time.Millisecond},
			Votes: []Vote{ // one cause is said once, whoever said it with its address
				{Addr: "a:1", Verdict: voteFailed, Err: &conn.Error{Addr: "a:1", Op: "connect", Err: errors.New("refused")}},
				{Addr: "b:1", Verdict: voteFailed, Err: lateError{20 * time.Millisecond}},
				{Addr: "c:1", Verdict: voteFailed, Err: &conn.Error{Addr: "c:1", Op: "connect", Err: errors.New("no route")}},
				{Addr: "d:1", Verdict: voteFailed, Err: errors.New("d:1: connect: refused")},
				{Addr: "e:1", Verdict: votePending},
			},
		},
		`redlock: lock "k": held by this Mutex already`: {Op: "lock", Key: "k", failure: failure{reason: ErrHeld, detail: heldByUs}, note: byThisMutex},
		`redlock: renew "k": lock lost: not held (0 yes, 1 no, 0 failed, 0 not waited for; 1 of 1 needed)`: {
			Op: "renew", Key: "k", failure: failure{reason: ErrLost, under: ErrNotHeld}, Votes: []Vote{{Addr: "a:1", Verdict: votedNo}},
		},
		`redlock: unlock "k": not held: not locked`: {Op: "unlock", Key: "k", failure: failure{reason: ErrNotHeld}, note: "not locked"},
		`redlock: open: too few masters answered (0 yes, 0 no, 1 failed, 0 not waited for; 1 of 1 needed); a:1: connect: refused`: {
			Op: "open", failure: failure{reason: ErrNoQuorum},
			Votes: []Vote{{Addr: "a:1", Verdict: voteFailed, Err: &conn.Error{Addr: "a:1", Op: "connect", Err: errors.New("refused")}}},
		},
	} {
		require.Equal(t, want, e.Error())
	}
}

// A master that is late has a limit in its error.
func TestALateVoteNamesItsLimit(t *testing.T) {
	simulated(t, 3, Config{RoundTimeout: 30 * time.Millisecond}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(freeze, 0, 1, 2)
		m := c.NewMutex("k", ttl)
		err := m.TryLock(t.Context())
		require.ErrorContains(t, err, "3 late; 2 of 3 needed)")
		require.ErrorContains(t, err, "; "+strings.Join(c.masters.all(), ", ")+": no answer within the round timeout of 30ms")
		_, err = c.Holders(t.Context(), "k")
		require.ErrorContains(t, err, "; "+strings.Join(c.masters.all(), ", ")+": no answer within the round timeout of 30ms")
	})
}

// What a configuration lacks is said without the names of the packages below.
func TestErrorsOfAConfigurationNameNoPackage(t *testing.T) {
	cfg := Config{Masters: []string{"a:1", "b:x"}}
	_, created := New(cfg)
	_, opened := Open(t.Context(), cfg)
	for who, err := range map[string]error{"new": created, "open": opened} {
		require.ErrorContains(t, err, "redlock: "+who+": master 2: address: ")
	}
	_, err := New(Config{Masters: []string{"a:1", "a:1"}})
	require.ErrorIs(t, err, mux.ErrDuplicate)
	require.ErrorContains(t, err, "redlock: new: the same server was given twice: a:1")
}

// Masters that refuse are not masters that are away.
func TestARefusalIsNotAnOutage(t *testing.T) {
	code := func(code string) error { return &mux.ReplyError{Code: code, Message: code + " no"} }
	failed := func(reason error, errs ...error) *RoundError {
		e := &RoundError{Op: opLock, Key: "k", failure: failure{reason: reason}}
		for _, err := range errs {
			v := Vote{Addr: "a:1", Verdict: voteFailed, Err: err}
			if err == nil {
				v.Verdict = votedNo
			}
			e.Votes = append(e.Votes, v)
		}
		return e
	}
	for _, code := range []error{code("NOPERM"), code("PERMITS"), code("OOM"), code("MISCONF"), fmt.Errorf("a:1: %w", &conn.RefusedError{Reason: "a replica"})} {
		e := failed(ErrNoQuorum, code, errFake, code)
		require.ErrorIs(t, e, ErrRefused)
		require.ErrorIs(t, e, ErrNoQuorum)
		require.Equal(t, "refused", Outcome(e))
		require.ErrorContains(t, e, `redlock: lock "k": too many masters refuse (`)
		lost := lostTo("k", ErrNoQuorum)
		lost.Votes = e.Votes
		require.ErrorIs(t, lost, ErrRefused)
		require.Equal(t, "lost", Outcome(lost))
		for _, e := range []*RoundError{failed(ErrNoQuorum, code, errFake, errFake), failed(ErrHeld, code, nil, nil), failed(ErrHeld, code, code, nil)} {
			require.NotErrorIs(t, e, ErrRefused)
			require.NotEqual(t, "refused", Outcome(e))
			require.NotContains(t, e.Error(), "too many masters refuse")
		}
	}
	for _, other := range []error{errFake, code("LOADING"), code("NOREPLICAS")} {
		require.NotErrorIs(t, failed(ErrNoQuorum, other, other, other), ErrRefused)
	}
}

func TestTryingAgainEndsWhereMostMastersRefuse(t *testing.T) {
	refused := fmt.Errorf("a:1: %w", &conn.RefusedError{Reason: "it is a replica"})
	noperm := &mux.ReplyError{Code: "NOPERM"}
	loading := &mux.ReplyError{Code: "LOADING"}
	failed := func(errs ...error) *RoundError {
		e := &RoundError{failure: failure{reason: ErrNoQuorum}}
		for _, err := range errs {
			e.Votes = append(e.Votes, Vote{Verdict: voteFailed, Err: err})
		}
		return e
	}
	require.True(t, failed(refused, noperm, errFake).final())
	require.False(t, failed(refused, loading, errFake).final())
	require.False(t, failed(loading, loading, loading).final())
	require.False(t, (&RoundError{failure: failure{reason: ErrHeld}}).final())
	require.True(t, (&RoundError{failure: failure{reason: ErrClosed}}).final())

	another := &mux.ReplyError{Code: "PERMITS"}
	require.False(t, failed(another, another, errFake).final(), "that comes to an end")
	require.True(t, failed(another, another, errFake).differs())
	require.True(t, failed(another, noperm, errFake).differs())
	require.True(t, failed(another, noperm, noperm).final())
	require.False(t, failed(another, errFake, errFake).differs(), "they may be back")
}
