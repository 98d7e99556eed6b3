//go:build unix

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Each run is a client of its own, which knew no master before it was restarted.
func TestMastersThatHaveForgottenALockDoNotGiveItAway(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3) // without persistence
	env := []string{inFleet(masters)}
	holder := begin(t, env, sh("echo holding; cat", "--ttl", "5m")...)
	holder.reads("holding")
	masters.Restart(0)
	masters.Restart(1)

	for _, wait := range []string{"0", "1s"} {
		status, stdout, stderr := do(t, env, guarded("echo ran", "--ttl", "5m", "--wait", wait)...)
		require.Equal(t, exitNoQuorum, status)
		require.Empty(t, stdout)
		require.Regexp(t, `it was started \d+s ago: it may have forgotten locks, and does not vote until \d`, stderr)
	}
	select {
	case <-holder.exited:
		t.Fatal("it runs no more")
	default:
	}
	holder.in.Close()
	require.Zero(t, holder.end())
}

func TestARunWaitsUntilMastersThatWereJustStartedMayVote(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	started := time.Now()
	status, stdout, stderr := do(t, []string{inFleet(masters)}, guarded("echo ran", "--ttl", "5s", "--wait", "1m")...)
	require.Zero(t, status)
	require.Equal(t, "ran\n", stdout)
	require.Greater(t, time.Since(started), 3*time.Second, "their age is known in whole seconds")
	require.Contains(t, stderr, "it may have forgotten locks")
	require.Equal(t, 1, strings.Count(stderr, "waiting for them for up to 1m"), "it says so once")
}

func TestTheGuardIsTheTTLUnlessItIsGiven(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	for _, test := range []struct {
		given       bool
		guard, want time.Duration
	}{
		{false, 0, ttl},
		{true, 0, 0},
		{true, ttl, ttl},
		{true, time.Hour, time.Hour},
	} {
		r := taker{ttl: ttl, restartGuard: test.guard}
		require.NoError(t, r.guard(test.given))
		require.Equal(t, test.want, r.restartGuard)
	}
	short := taker{ttl: ttl, restartGuard: ttl - 1}
	require.Error(t, short.guard(true))

	masters := redlocktest.Embedded(t, 1)
	status, _, _ := do(t, []string{inFleet(masters)}, guarded("", "-n", "--ttl", "1h")...)
	require.Equal(t, exitNoQuorum, status)
	status, _, _ = do(t, []string{inFleet(masters)}, guarded("", "-n", "--ttl", "1h", "--restart-guard", "0")...)
	require.Zero(t, status)
	_, help, _ := do(t, nil, "run", "--help")
	require.Contains(t, strings.Join(strings.Fields(help), " "), "(default: the --ttl)")
}

// A master that has restarted may have given the lock away already.
func TestALossIsNotCalledHarmlessAfterARestart(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{inFleet(masters)}, sh("echo holding; exec sleep 3600", "--ttl", "3s")...)
	s.reads("holding")
	masters.Restart(0)
	masters.Restart(1)
	require.Equal(t, exitLost, s.end())
	require.Contains(t, s.err.String(), "another may have held it at the same time")
	require.NotContains(t, s.err.String(), "nobody else")
}

func TestALossIsCalledHarmlessOnlyIfNothingWasForgotten(t *testing.T) {
	const nobody, another = "nobody else had it before that", "another may have held it"
	up := redlock.MasterStats{Address: "a", Phase: "up"}
	down := redlock.MasterStats{Address: "b", Phase: "down"}
	barred := redlock.MasterStats{Address: "c", Phase: "quarantined"}
	doubt := errors.Join(redlock.ErrLost, &mux.QuarantineError{Reason: "it was restarted"})
	for name, test := range map[string]struct {
		before, taken, since, end []redlock.MasterStats
		lost                      error
		still                     bool
		says                      string
		hides                     string
	}{
		"all were up":            {nil, all(up), nil, all(up), redlock.ErrLost, true, nobody + ": ", "forgotten"},
		"one is down":            {nil, all(up), all(down), all(up, down), redlock.ErrLost, true, nobody + ", unless a master that is not up has forgotten it", "another"},
		"one was restarted":      {nil, all(up), all(barred), all(up, down), redlock.ErrLost, true, another, nobody},
		"... and may vote again": {nil, all(up), all(barred, up), all(up), redlock.ErrLost, true, another, nobody},
		"a vote says so":         {nil, all(up), nil, all(up), doubt, true, another, nobody},
		"it had not voted":       {nil, all(up, barred), nil, all(up), redlock.ErrLost, true, another, nobody},
		"it was long ago":        {all(barred), all(up), nil, all(up), redlock.ErrLost, true, nobody, another},
		"it was over":            {nil, all(up), nil, all(up), redlock.ErrLost, false, another, nobody},
	} {
		t.Run(name, func(t *testing.T) {
			w := new(witness)
			for _, m := range test.before {
				w.master(m)
			}
			w.taken(test.taken)
			for _, m := range test.since {
				w.master(m)
			}
			text := w.aftermath(test.lost, test.still, test.end)
			require.Contains(t, text, test.says)
			require.NotContains(t, text, test.hides)
		})
	}
}

func all(masters ...redlock.MasterStats) []redlock.MasterStats { return masters }

// The witness of a round that a master in quarantine took part in needs no other word.
func TestVotesTellOfARestart(t *testing.T) {
	w := new(witness)
	w.taken(nil)
	w.round(redlock.Round{Op: "renew", Votes: []redlock.Vote{{Verdict: redlock.VerdictFailed, Err: fmt.Errorf("a: %w", &mux.QuarantineError{})}}})
	require.Contains(t, w.aftermath(redlock.ErrLost, true, nil), "another may have held it")
}
