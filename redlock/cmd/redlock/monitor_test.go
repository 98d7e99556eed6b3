//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestVerboseTellsWhomItWaitsForAndWhatFails(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	holder := begin(t, env, sh("echo holding; cat", "--owner", "first")...).awaitStdout("holding")
	waiter := begin(t, env, sh("echo ran; cat", "--wait", "1h", "-v")...).awaitStderr(`waiting: "k" is held by another` + "\n  by first, ")
	holder.in.Close()
	require.Zero(t, holder.end())
	waiter.awaitStdout("ran")
	waiter.awaitStderr("k is ours, as redlock-run@")
	masters.Kill(2)
	waiter.awaitStderr(masters.Addr(2) + " is down: ")
	masters.Restart(2)
	waiter.awaitStderr(masters.Addr(2) + " is up again")
	waiter.in.Close()
	require.Zero(t, waiter.end())
	waiter.awaitStderr("k is released\n")
	require.NotContains(t, waiter.err.String(), "closed")
	require.Equal(t, 1, strings.Count(waiter.err.String(), "waiting: "))
	require.Equal(t, 1, strings.Count(waiter.err.String(), "is down"), "our own end is no failure")
	require.Equal(t, 1, strings.Count(waiter.err.String(), "is up again"))
}

// stderrOf returns what a func writes to stderr. No other test must run beside it.
func stderrOf(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	real := os.Stderr
	os.Stderr = w
	f()
	allSaid()
	os.Stderr = real
	require.NoError(t, w.Close())
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

// Renewals that fail are repeated again and again.
func TestVerboseSaysOnceThatRenewalsFail(t *testing.T) {
	const again = "\n  trying again for as long as it is valid\n"
	require.Equal(t, "redlock: the lock was not renewed: one"+again+"redlock: the lock is renewed again\n"+
		"redlock: the lock was not renewed: three"+again, stderrOf(t, func() {
		w := &monitor{verbose: true}
		for _, err := range []error{nil, errors.New("one"), errors.New("two"), nil, nil, errors.New("three")} {
			w.renewed(err)
		}
		new(monitor).renewed(errors.New("four"))
	}))
}

// Whoever was waited for is asked after, which takes its time.
func TestVerboseTellsOfNoWaitThatIsOver(t *testing.T) {
	require.Equal(t, "redlock: waiting: 2\n", stderrOf(t, func() {
		synctest.Test(t, func(*testing.T) {
			var n atomic.Int64
			w := &monitor{verbose: true}
			w.others = func() (what, who string) {
				number := fmt.Sprint(n.Add(1))
				time.Sleep(time.Second)
				return number, ""
			}
			w.waitStarts()
			time.Sleep(time.Millisecond)
			w.waitEnds()
			w.waitStarts()
			time.Sleep(time.Minute)
			w.waitEnds()
		})
	}))
}

func TestRunSaysWhichMasterCanNeverServeAndGoesOn(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	cluster := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	locked := redlocktest.Start(t, 1, redlocktest.WithArgs("--requirepass", "another-secret"))
	for name, test := range map[string]struct{ address, says string }{
		"a node of a cluster": {cluster.Addr(0), "or use independent masters"},
		"a wrong password":    {"redis://:my-secret@" + locked.Addr(0), "correct the username and password"},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, []string{beside(masters, test.address)}, sh("echo holding; cat", "--ttl", "3s")...).awaitStdout("holding")
			require.Eventually(t, func() bool { return goingOn(s.err.String()) == 1 }, patient, 5*time.Millisecond)
			s.in.Close()
			require.Zero(t, s.end())
			stderr := s.err.String()
			require.Equal(t, 1, goingOn(stderr), "it says so once")
			require.Contains(t, stderr, test.says)
			require.Contains(t, stderr, test.address[strings.LastIndexByte(test.address, '@')+1:])
			require.NotContains(t, stderr, "secret")
		})
	}
}

// goingOn counts the masters that a run says it goes on without.
func goingOn(stderr string) int { return strings.Count(stderr, "going on without it") }

func TestALossIsCalledHarmlessOnlyIfNothingWasForgotten(t *testing.T) {
	const nobody, another = "nobody else had it before that", "another may have held it"
	up := redlock.MasterStats{Addr: "a", Phase: "up"}
	down := redlock.MasterStats{Addr: "b", Phase: "down"}
	barred := redlock.MasterStats{Addr: "c", Phase: "quarantined"}
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
			w := new(monitor)
			for _, m := range test.before {
				w.master(m)
			}
			w.acquired(test.taken)
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

// The monitor of a round that a master in quarantine took part in needs no other word.
func TestVotesTellOfARestart(t *testing.T) {
	w := new(monitor)
	w.acquired(nil)
	w.round(&redlock.Event{Op: "renew", Votes: []redlock.Vote{{Verdict: "failed", Err: fmt.Errorf("a: %w", &mux.QuarantineError{})}}})
	require.Contains(t, w.aftermath(redlock.ErrLost, true, nil), "another may have held it")
}

// Somebody at a terminal is told whom the run waits for, if it waits for long enough to be wondered at.
func TestALongWaitIsExplainedAtATerminal(t *testing.T) {
	for what, c := range map[string]struct {
		watched bool
		waits   time.Duration
		told    bool
	}{
		"at a terminal":           {true, explainAfter, true},
		"at a terminal, not long": {true, explainAfter - 1, false},
		"of a script":             {false, time.Hour, false},
	} {
		t.Run(what, func(t *testing.T) {
			asked := 0
			said := stderrOf(t, func() {
				synctest.Test(t, func(t *testing.T) {
					w := &monitor{watched: c.watched}
					w.others = func() (string, string) { asked++; return "it is held", "by somebody" }
					w.waitStarts()
					time.Sleep(c.waits)
					if synctest.Wait(); c.told {
						time.Sleep(time.Hour) // it is said once
					}
					w.waitEnds()
					time.Sleep(time.Hour)
				})
			})
			require.Equal(t, c.told, asked == 1)
			require.Equal(t, c.told, strings.Contains(said, "waiting: it is held\n  by somebody"))
		})
	}
}
