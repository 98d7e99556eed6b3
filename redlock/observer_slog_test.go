package redlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// record is what a JSON handler has written.
type record map[string]any

func logged(t *testing.T, level slog.Level, f func(o Observer)) (all []record) {
	t.Helper()
	var b bytes.Buffer
	f(SlogObserver(slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{Level: level}))))
	for d := json.NewDecoder(&b); d.More(); {
		var r record
		require.NoError(t, d.Decode(&r))
		delete(r, "time")
		all = append(all, r)
	}
	return all
}

func TestSlogObserverLevels(t *testing.T) {
	ctx := t.Context()
	failed := func(op string, reason error) *RoundError { return unasked(op, "k", reason, "") }
	after := func(failures int, op string, err error) func(Observer) {
		return func(o Observer) {
			o(ctx, &Event{Kind: EventRound, Op: op, Key: "k", Err: err, more: behind.Event{Failures: failures}})
		}
	}
	round := func(op string, err error) func(Observer) { return after(0, op, err) }
	master := func(phase string, err error) func(Observer) {
		s := MasterStats{Addr: "a:1", Phase: phase}
		if err != nil {
			s.Err = err.Error()
		}
		return func(o Observer) { o(ctx, &Event{Kind: EventMaster, Master: &s}) }
	}
	for what, f := range map[string]struct {
		level slog.Level
		tell  func(Observer)
	}{
		"loss":                 {slog.LevelError, func(o Observer) { o(ctx, &Event{Kind: EventLost, Key: "k", Err: failed(opRenew, ErrLost)}) }},
		"unlock finds a loss":  {slog.LevelError, round(opUnlock, failed(opUnlock, ErrNotHeld))},
		"extend finds a loss":  {slog.LevelError, round(opExtend, failed(opExtend, ErrNotHeld))},
		"recheck finds a loss": {slog.LevelError, round(opRecheck, failed(opRecheck, ErrNotHeld))},
		"revoked":              {slog.LevelWarn, func(o Observer) { o(ctx, &Event{Kind: EventLost, Key: "k", Err: lostTo("k", ErrRevoked)}) }},
		"renewal finds a loss": {slog.LevelError, round(opRenew, failed(opRenew, ErrNotHeld))},
		"a loss that was told": {slog.LevelDebug, after(1, opUnlock, failed(opUnlock, ErrNotHeld))},
		"once more":            {slog.LevelDebug, after(1, opLock, failed(opLock, ErrNoQuorum))},
		"too late once more":   {slog.LevelDebug, after(2, opRenew, failed(opLock, ErrExpired))},
		"taken in the end":     {slog.LevelInfo, after(2, opLock, nil)},
		"held in the end":      {slog.LevelDebug, after(2, opLock, failed(opLock, ErrHeld))},
		"given up": {slog.LevelWarn, func(o Observer) {
			o(ctx, &Event{Kind: EventWaited, Key: "k", Took: time.Second, Err: failed(opLock, ErrNoQuorum)})
		}},
		"revokes nothing":         {slog.LevelDebug, round(opRevoke, failed(opRevoke, ErrNotHeld))},
		"lets go":                 {slog.LevelDebug, func(o Observer) { o(ctx, &Event{Kind: behind.LetGo, Key: "k"}) }},
		"no quorum":               {slog.LevelWarn, round(opLock, failed(opLock, ErrNoQuorum))},
		"no quorum for a renewal": {slog.LevelWarn, round(opRenew, failed(opRenew, ErrNoQuorum))},
		"too late":                {slog.LevelWarn, round(opLock, failed(opLock, ErrExpired))},
		"another error":           {slog.LevelWarn, round(opLock, errors.New("what is that"))},
		"taken":                   {slog.LevelDebug, round(opLock, nil)},
		"released":                {slog.LevelDebug, round(opUnlock, nil)},
		"held by another":         {slog.LevelDebug, round(opLock, failed(opLock, ErrHeld))},
		"cancelled":               {slog.LevelDebug, round(opLock, failed(opLock, nil).endedBy(ctx, context.Canceled))},
		"closed":                  {slog.LevelDebug, round(opLock, failed(opLock, ErrClosed))},
		"begin of a wait":         {slog.LevelDebug, func(o Observer) { o(ctx, &Event{Kind: behind.Wait, Key: "k"}) }},
		"wake":                    {slog.LevelDebug, func(o Observer) { o(ctx, &Event{Kind: behind.Wake, Key: "k", more: behind.Event{Why: wakeFree}}) }},
		"end of a wait":           {slog.LevelDebug, func(o Observer) { o(ctx, &Event{Kind: EventWaited, Key: "k", Took: time.Second, Err: nil}) }},
		"end of a wait in vain": {slog.LevelDebug, func(o Observer) {
			o(ctx, &Event{Kind: EventWaited, Key: "k", Took: time.Second, Err: failed(opLock, ErrHeld)})
		}},
		"up":              {slog.LevelInfo, master("up", nil)},
		"old credentials": {slog.LevelWarn, master("up", errors.New("no new password"))},
		"down":            {slog.LevelWarn, master("down", errors.New("refused"))},
		"stalled":         {slog.LevelWarn, master("stalled", mux.ErrStalled)},
		"refused":         {slog.LevelWarn, master("refused", ErrRefused)},
		"quarantined":     {slog.LevelWarn, master("quarantined", errors.New("restarted"))},
		"left by Close":   {slog.LevelInfo, master("down", mux.ErrClosed)},
	} {
		all := logged(t, f.level, f.tell)
		require.Len(t, all, 1, what)
		require.Equal(t, f.level.String(), all[0]["level"], what)
		require.Empty(t, logged(t, f.level+1, f.tell), what)
	}
}

func TestSlogObserverSaysWhatHasHappened(t *testing.T) {
	ctx := t.Context()
	noQuorum := unasked(opLock, "k", ErrNoQuorum, "")
	all := logged(t, slog.LevelDebug, func(o Observer) {
		o(ctx, &Event{Kind: EventRound, Op: opLock, Key: "k", Took: time.Millisecond, more: behind.Event{Validity: time.Second}})
		o(ctx, &Event{Kind: EventRound, Op: opUnlock, Key: "k", Took: time.Millisecond, more: behind.Event{Held: time.Minute}})
		o(ctx, &Event{Kind: EventRound, Op: opLock, Key: "k", Took: time.Millisecond, Err: noQuorum})
		o(ctx, &Event{Kind: EventRound, Op: opLock, Key: "k", Took: time.Millisecond, Err: noQuorum, more: behind.Event{Failures: 2}})
		o(ctx, &Event{Kind: behind.Wait, Key: "k"})
		o(ctx, &Event{Kind: behind.Wake, Key: "k", more: behind.Event{Why: wakeExpiry}})
		o(ctx, &Event{Kind: EventWaited, Key: "k", Took: time.Second, Err: noQuorum})
		o(ctx, &Event{Kind: EventLost, Key: "k", Err: lostTo("k", ErrNoQuorum)})
		o(ctx, &Event{Kind: EventMaster, Master: &MasterStats{Addr: "a:1", Phase: "down", Err: "conn: a:1: gone", Debts: 3}})
		o(ctx, &Event{Kind: EventMaster, Master: &MasterStats{Addr: "a:1", Phase: "down", Err: mux.ErrClosed.Error()}})
	})
	const ms, second, minute = float64(time.Millisecond), float64(time.Second), float64(time.Minute)
	require.Equal(t, []record{
		{"level": "DEBUG", "msg": "redlock: round", "op": "lock", "key": "k", "outcome": "ok", "took": ms, "validity": second},
		{"level": "DEBUG", "msg": "redlock: round", "op": "unlock", "key": "k", "outcome": "ok", "took": ms, "held": minute},
		{"level": "WARN", "msg": "redlock: round", "op": "lock", "key": "k", "outcome": "no_quorum", "took": ms, "error": noQuorum.Error()},
		{"level": "DEBUG", "msg": "redlock: round", "op": "lock", "key": "k", "outcome": "no_quorum", "took": ms, "failures": 2.0, "error": noQuorum.Error()},
		{"level": "DEBUG", "msg": "redlock: waits", "key": "k"},
		{"level": "DEBUG", "msg": "redlock: wakes", "key": "k", "why": "expiry"},
		{"level": "WARN", "msg": "redlock: waits no more", "key": "k", "outcome": "no_quorum", "waited": second, "error": noQuorum.Error()},
		{"level": "ERROR", "msg": "redlock: lost", "key": "k", "error": lostTo("k", ErrNoQuorum).Error()},
		{"level": "WARN", "msg": "redlock: master", "master": "a:1", "phase": "down", "debts": 3.0, "error": "a:1: gone"},
		{"level": "INFO", "msg": "redlock: master", "master": "a:1", "phase": "down", "debts": 0.0, "closed": true},
	}, all)
}

// simulatedLog runs f with a client whose Observer logs, and returns what f has it log at Info or above.
func simulatedLog(t *testing.T, f func(t *testing.T, c *Client, r *fakeRounds)) (all []record) {
	return logged(t, slog.LevelInfo, func(o Observer) { simulated(t, 3, Config{Observers: []Observer{o}}, f) })
}

func lines(all []record, level string, has ...string) (n int) {
	for _, r := range all {
		s := fmt.Sprint(r)
		if r["level"] == level && !slices.ContainsFunc(has, func(want string) bool { return !strings.Contains(s, want) }) {
			n++
		}
	}
	return n
}

// Of an outage the log has the first failure of each Lock and its end, and not each of their attempts.
func TestSlogObserverTellsOfAnOutageOnce(t *testing.T) {
	const waiters = 20
	for what, back := range map[string]bool{"the masters stay away": false, "the masters come back": true} {
		t.Run(what, func(t *testing.T) {
			attempts := 0
			all := simulatedLog(t, func(t *testing.T, c *Client, r *fakeRounds) {
				r.set(fail, all(3)...)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				var waiting sync.WaitGroup
				for i := range waiters {
					waiting.Go(func() { c.NewMutex(fmt.Sprint("k", i), time.Hour).Lock(ctx) })
				}
				if back {
					time.Sleep(9 * time.Second)
					r.set(restart, all(3)...)
				}
				waiting.Wait()
				attempts = int(c.Stats().NoQuorum)
			})
			require.Greater(t, attempts, 10*waiters)
			require.Equal(t, waiters, lines(all, "WARN", "redlock: round", "no_quorum"), "the first failure of each")
			if back {
				require.Equal(t, waiters, lines(all, "INFO", "redlock: round", "outcome:ok", "failures:"))
			} else {
				require.Equal(t, waiters, lines(all, "WARN", "redlock: waits no more", "no_quorum"))
			}
			require.Len(t, all, 2*waiters)
		})
	}
}

// Nor each renewal that fails.
func TestSlogObserverTellsOfFailingRenewalsOnce(t *testing.T) {
	all := simulatedLog(t, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		_, stop := m.KeepAlive(t.Context())
		defer stop()
		for outage := range uint64(2) {
			r.set(fail, all(3)...)
			for began := r.now(); c.Stats().RenewalsFailed < 3*(outage+1); time.Sleep(time.Millisecond) {
				require.Less(t, r.now()-began, ttl, "the lock has ended before there were three renewals")
			}
			r.set(func(m *fakeMaster) { m.down = nil }, all(3)...)
			time.Sleep(ttl)
		}
		require.NoError(t, m.Unlock(t.Context()))
	})
	require.Equal(t, 2, lines(all, "WARN", "op:renew", "no_quorum"))
	require.Equal(t, 2, lines(all, "INFO", "op:renew", "outcome:ok", "failures:"))
	require.Len(t, all, 4)
}

// A loss is one line, however many find it out.
func TestSlogObserverTellsOfALossOnce(t *testing.T) {
	lose := func(t *testing.T, r *fakeRounds) {
		time.Sleep(10 * time.Millisecond)
		r.set(flush, 0, 1, 2)
	}
	for what, f := range map[string]func(t *testing.T, c *Client, r *fakeRounds){
		"a renewal finds it, and Do releases": func(t *testing.T, c *Client, r *fakeRounds) {
			require.ErrorIs(t, c.Do(t.Context(), "k", ttl, func(ctx context.Context) error {
				lose(t, r)
				<-ctx.Done()
				return nil
			}), ErrLost)
		},
		"the release of Do finds it": func(t *testing.T, c *Client, r *fakeRounds) {
			require.ErrorIs(t, c.Do(t.Context(), "k", ttl, func(ctx context.Context) error { lose(t, r); return nil }), ErrLost)
		},
		"the validity ends": func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			held, stop := m.KeepAlive(t.Context())
			defer stop()
			r.suspend(time.Hour)
			<-held.Done()
			require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		},
		"Extend finds it, then Unlock": func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			lose(t, r)
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		},
		"Extend finds it under a KeepAlive, then Release": func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			_, stop := m.KeepAlive(t.Context())
			defer stop()
			lose(t, r)
			require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
			require.ErrorIs(t, m.Release(), ErrNotHeld)
			time.Sleep(time.Second)
		},
		"Unlock finds it, after a KeepAlive has stopped": func(t *testing.T, c *Client, r *fakeRounds) {
			m := taken(t, c)
			_, stop := m.KeepAlive(t.Context())
			stop()
			lose(t, r)
			require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		},
	} {
		t.Run(what, func(t *testing.T) {
			once := simulatedLog(t, f)
			require.Equal(t, 1, lines(once, "ERROR"), once)
			require.Len(t, once, 1)
			twice := simulatedLog(t, func(t *testing.T, c *Client, r *fakeRounds) { f(t, c, r); f(t, c, r) })
			require.Equal(t, 2, lines(twice, "ERROR"), "the next loss is another")
		})
	}
}

// Without a logger it is the default one, as it is when there is something to log.
func TestSlogObserverWithoutALogger(t *testing.T) {
	o := SlogObserver(nil)
	before := slog.Default()
	defer slog.SetDefault(before)
	var b bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	o(t.Context(), &Event{Kind: EventLost, Key: "k", Err: ErrLost})
	require.Contains(t, b.String(), "redlock: lost")
}

// Of a client with real masters, whose locks are taken, contended and lost: what is logged has no token.
func TestSlogObserverLogsNoToken(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	var log buffer
	o := SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	c := opened(t, masters.Addrs(), []Observer{o})
	m := c.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	token := m.Token()
	require.ErrorIs(t, c.NewMutex("k", 30*time.Second).TryLock(t.Context()), ErrHeld)
	for i := range 3 {
		Says(t, masters, i, "DEL", "k")
	}
	require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
	masters.Kill(0)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "phase=down") }, hanging, 5*time.Millisecond)
	require.NoError(t, c.Close())
	for _, want := range []string{"level=INFO msg=\"redlock: master\"", "outcome=ok", "outcome=held", "level=ERROR", "outcome=not_held",
		"level=INFO msg=\"redlock: master\" master=" + masters.Addr(1) + " phase=down"} {
		require.Contains(t, log.String(), want)
	}
	require.NotContains(t, log.String(), token)
}

// A buffer can be written to by several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestOutcomes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, "ok", Outcome(nil))
	for reason, want := range map[error]string{
		ErrHeld: "held", ErrNoQuorum: "no_quorum", ErrExpired: "expired", ErrNotHeld: "not_held", ErrLost: "lost",
		ErrMaxLifetime: "max_lifetime", ErrSecond: "second", ErrRefused: "refused", ErrClosed: "closed", errors.New("another"): "error", nil: "error",
	} {
		e := unasked(opLock, "k", reason, "")
		require.Equal(t, want, Outcome(e))
		require.Equal(t, want, Outcome(fmt.Errorf("wrapped: %w", e)))
		if reason == nil {
			want = "cancelled"
		}
		require.Equal(t, want, Outcome(e.endedBy(ctx, ctx.Err())))
	}
	require.Equal(t, "error", Outcome(context.Canceled))
	require.Equal(t, "lost", Outcome(lostTo("k", ErrNotHeld)))
	require.Equal(t, "lost", Outcome(lostTo("k", secondEnded{errFake})))

	noperm := &mux.ReplyError{Code: "NOPERM", Message: "NOPERM no permissions"}
	vote := func(err error) Vote { return Vote{Verdict: voteFailed, Err: err} }
	e := &RoundError{Op: opLock, failure: failure{reason: ErrNoQuorum}, Votes: []Vote{vote(noperm), vote(&conn.RefusedError{}), {Verdict: votedYes}}}
	require.Equal(t, "refused", Outcome(e), "no quorum before a right is given, or the configuration is changed")
	e.Votes[0] = vote(mux.ErrStalled)
	require.Equal(t, "no_quorum", Outcome(e), "it may pass")
}

// The words of a master's phase are those of the mux.
func TestEachPhaseHasAName(t *testing.T) {
	for p, want := range []string{"dialing", "up", "stalled", "down", "refused", "quarantined"} {
		require.Equal(t, want, masterStats(0, mux.State{Phase: mux.Phase(p)}).Phase)
	}
}

// A release says for how long the lock was held, and nothing else does.
func TestObserverIsToldHowLongALockWasHeld(t *testing.T) {
	var rounds []Event
	simulated(t, 3, Config{Observers: onEvent(EventRound, func(r *Event) { rounds = append(rounds, *r) })},
		func(t *testing.T, c *Client, r *fakeRounds) {
			for range 3 {
				m := taken(t, c)
				time.Sleep(time.Second)
				require.NoError(t, m.Extend(t.Context()))
				time.Sleep(time.Second)
				require.NoError(t, m.Unlock(t.Context()))
			}
			m := taken(t, c)
			other := c.NewMutex("k", ttl, WithToken(m.Token()))
			require.NoError(t, other.Unlock(t.Context()))
		})
	ends := 0
	for _, r := range rounds {
		switch {
		case r.Op == opUnlock && ends < 3:
			require.GreaterOrEqual(t, r.more.Held, 2*time.Second)
			require.Less(t, r.more.Held, 2*time.Second+100*time.Millisecond)
			ends++
		default:
			require.Zero(t, r.more.Held, r.Op)
		}
	}
	require.Equal(t, 3, ends)
}
