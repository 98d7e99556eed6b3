package main

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// statusJSON is what status --json writes.
type statusJSON struct {
	Key, State, Token, Owner string
	LeftMS                   *int64 `json:"left_ms"`
	Votes, Answered, Quorum  int
	Fence                    uint64
	Readers                  []readerJSON
	Masters                  []struct {
		Master, Token, Owner, Error string
		LeftMS                      *int64 `json:"left_ms"`
		Fence                       uint64
		Readers                     []readerJSON
	}
}

type readerJSON struct {
	Token, Owner string
	LeftMS       *int64 `json:"left_ms"`
	Votes        int
}

func statusOfKey(t *testing.T, env []string, key string) (exit int, s statusJSON) {
	t.Helper()
	exit, stdout, _ := do(t, env, "status", "--json", key)
	require.NoError(t, json.Unmarshal([]byte(stdout), &s))
	return exit, s
}

func TestStatusTellsHolderAndTime(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	env := []string{inFleet(masters)}
	holder := begin(t, env, "run", atOnce, "--owner", "night-shift", "report", "--", binary, "run", atOnce, "other", "--", "cat")
	require.Eventually(t, func() bool {
		exit, _ := statusOfKey(t, env, "other")
		return exit == 0
	}, patient, time.Millisecond)

	var exit int
	var s statusJSON
	require.Eventually(t, func() bool { // one that was late gets the key by a renewal
		exit, s = statusOfKey(t, env, "report")
		return s.Votes == 5
	}, patient, time.Millisecond)
	require.Zero(t, exit)
	require.Equal(t, "report", s.Key)
	require.Equal(t, "held", s.State)
	require.Equal(t, "night-shift", s.Owner)
	require.Contains(t, s.Token, "night-shift/")
	require.NotNil(t, s.LeftMS)
	require.Positive(t, *s.LeftMS)
	require.LessOrEqual(t, *s.LeftMS, int64(10_000))
	require.Equal(t, 5, s.Answered)
	require.Equal(t, 3, s.Quorum)
	for i, m := range s.Masters {
		require.Equal(t, masters.Addr(i), m.Master)
		require.Equal(t, s.Token, m.Token)
		require.Equal(t, s.Owner, m.Owner)
	}

	exit, stdout, stderr := do(t, env, "status", "report")
	require.Zero(t, exit)
	require.Regexp(t, `^report is held by night-shift, on 5 of 5 masters, \d+\.\ds left\n`, stdout)
	require.Len(t, lines(stdout), 8)
	require.NotContains(t, stdout, s.Token, "who knows it can release the lock")
	require.Empty(t, stderr)
	requireReadable(t, stdout)

	exit, stdout, stderr = do(t, env, "status", "--quiet", "report")
	require.Zero(t, exit)
	require.Empty(t, stdout+stderr)

	holder.in.Close()
	require.Zero(t, holder.end())
	exit, s = statusOfKey(t, env, "report")
	require.Equal(t, exitNo, exit)
	require.Equal(t, "free", s.State)
	require.Empty(t, s.Owner)
	exit, stdout, stderr = do(t, env, "status", "report")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "report is free\n")
	require.Empty(t, stderr, "a free lock is no error")
}

func TestStatusWorksBelowAMajority(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	for i := range 3 {
		_, err := masters.Do(i, "SET", "k", "made-by-another-library")
		require.NoError(t, err)
	}
	masters.Kill(2)
	exit, s := statusOfKey(t, env, "k")
	require.Zero(t, exit, "two of three are enough")
	require.Equal(t, "held", s.State)
	require.Empty(t, s.Owner)
	require.Nil(t, s.LeftMS, "it does not expire")
	require.Contains(t, s.Masters[2].Error, "refused")

	masters.Kill(1)
	exit, stdout, stderr := do(t, env, "status", "k")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stdout, "without expiry")
	require.Contains(t, stdout, "refused")
	require.Contains(t, stderr, "1 of 3 masters answered; 2 are needed")
	require.Contains(t, stderr, "doctor")
	requireReadable(t, stdout)
}

func TestStatusSeesKeysThatAreNoLocks(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i := range 3 {
		_, err := masters.Do(i, "LPUSH", "k", "x")
		require.NoError(t, err)
	}
	exit, stdout, _ := do(t, []string{inFleet(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held by a key that is no lock, on 3 of 3 masters, without expiry")
	exit, _, stderr := do(t, []string{inFleet(masters)}, "run", atOnce, "-n", "k", "--", binary, "--version")
	require.Equal(t, exitHeld, exit)
	require.Contains(t, stderr, "by a key that is no lock, without expiry")
}

func TestStatusCutsNoWords(t *testing.T) {
	t.Parallel()
	long := "127.0.0.1:1,unix:///" + strings.Repeat("a-long-path/", 8) + "socket"
	exit, stdout, _ := do(t, nil, "status", "-m", long, "k")
	require.Equal(t, exitNoQuorum, exit)
	requireReadable(t, stdout)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "connect: no such file or directory")
	masters := redlocktest.Embedded(t, 1)
	owner := strings.Repeat("an-owner-of-", 10) + "128-byte"
	_, err := masters.Do(0, "SET", "k", owner+"/"+strings.Repeat("X", 27))
	require.NoError(t, err)
	exit, stdout, _ = do(t, []string{inFleet(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, strings.Join(strings.Fields(stdout), ""), "heldby"+owner+",")
	require.NotContains(t, stdout, "…")
	exit, _, stderr := do(t, nil, "status", "-m", "127.0.0.1:1", "k")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stderr, "0 of 1 master answered; 1 is needed")
}

// The token and the texts of a server are not ours: they can hold whatever a terminal obeys,
// and the line end with which a line in a log is forged.
func TestWhatIsNotOursDoesNothingToATerminal(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\x1b]0;title\x07\nredlock: all is well\x7f\u0080\u009b31m\u009f\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041 ü 界"
	masters := redlocktest.Embedded(t, 1)
	_, err := masters.Do(0, "SET", evil, evil+"/ABCDEFGHIJKLMNOPQRSTUVWXYZ0")
	require.NoError(t, err)
	env := []string{inFleet(masters)}
	_, stdout, stderr := do(t, env, "status", evil)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "is held by somebody who left no name")
	_, out, errs := do(t, env, "run", atOnce, "-n", evil, "--", binary, "--version")
	require.Contains(t, errs, "held by another")
	_, more, notes := do(t, env, "run", atOnce, "-v", evil+"2", "--", binary, "--version")
	_, object, _ := do(t, env, "status", "--json", evil)
	_, permits, _ := do(t, env, "status", "--json", "--permits", "2", evil)
	_, none, refusal := do(t, env, "release", "--token", "another", evil)
	texts := []string{stdout, stderr, out, errs, more, notes, object, permits, none, refusal}
	for _, flags := range [][]string{{"--watch"}, {"--watch", "--json"}} {
		s := begin(t, env, append(append([]string{"status"}, flags...), evil)...)
		s.reads("held")
		require.NoError(t, s.Process.Kill())
		s.end()
		texts = append(texts, s.out.String())
	}
	for _, text := range texts {
		for _, r := range text {
			require.True(t, r == '\n' || strconv.IsPrint(r), "%q in %q", r, text)
		}
		require.NotContains(t, text, "\nredlock: all is well")
	}
	for _, text := range []string{object, permits, texts[len(texts)-1]} {
		require.Contains(t, text, "ü 界", "it is not all escaped")
		var said struct{ Key string }
		require.NoError(t, json.Unmarshal([]byte(text), &said))
		require.Equal(t, evil, said.Key)
	}
}

func TestAFrozenMasterHoldsStatusUpForTheDialTimeoutOnly(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	masters.Pause(1)
	exit, stdout, _ := do(t, []string{inFleet(masters)}, "status", "--dial-timeout", "2s", "k")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "timeout")
}

func TestStandingOfALock(t *testing.T) {
	const second = time.Second
	a := func(ttl time.Duration) redlock.Holder { return redlock.Holder{Token: redlock.NewSecret("a"), TTL: ttl} }
	b := redlock.Holder{Token: redlock.NewSecret("b"), TTL: second}
	free1 := redlock.Holder{}
	down := redlock.Holder{Err: errors.New("down")}
	for name, test := range map[string]struct {
		holders []redlock.Holder
		state   state
		left    time.Duration
	}{
		"on all":                        {[]redlock.Holder{a(3 * second), a(second), a(2 * second)}, held, 2 * second},
		"on a majority":                 {[]redlock.Holder{a(3 * second), a(second), free1}, held, second},
		"without expiry on one":         {[]redlock.Holder{a(-1), a(second), a(2 * second)}, held, 2 * second},
		"without expiry on a majority":  {[]redlock.Holder{a(-1), a(-1), a(2 * second)}, held, -1},
		"on a minority":                 {[]redlock.Holder{a(second), free1, free1}, free, 0},
		"split":                         {[]redlock.Holder{a(second), b, free1, b, a(second)}, free, 0},
		"on a minority, and one down":   {[]redlock.Holder{a(second), down, free1}, unknown, 0},
		"on none, and a majority down":  {[]redlock.Holder{free1, down, down}, unknown, 0},
		"on none, and one down":         {[]redlock.Holder{free1, free1, down}, free, 0},
		"two of four":                   {[]redlock.Holder{a(second), a(second), free1, free1}, free, 0},
		"two of four, and one down":     {[]redlock.Holder{a(second), a(second), free1, down}, unknown, 0},
		"keys that are no locks":        {[]redlock.Holder{{Token: redlock.UnknownToken}, {Token: redlock.UnknownToken}, {Token: redlock.UnknownToken}}, held, 0},
		"the only master":               {[]redlock.Holder{a(second)}, held, second},
		"all down":                      {[]redlock.Holder{down, down, down}, unknown, 0},
		"one of five each, three down":  {[]redlock.Holder{a(second), b, down, down, down}, unknown, 0},
		"two of five, one of them down": {[]redlock.Holder{a(second), free1, free1, free1, down}, free, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStanding("k", answers(test.holders))
			require.Equal(t, test.state, s.state)
			require.Equal(t, test.left, s.left())
		})
	}
}
