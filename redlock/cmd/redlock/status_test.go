package main

import (
	"encoding/json"
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
	masters, env := started(t, 5)
	holder := begin(t, env, "run", atOnce, "--owner", "night-shift", "report", "--", binary, "run", atOnce, "other", "--", "cat")
	require.Eventually(t, func() bool {
		exit, _ := statusOfKey(t, env, "other")
		return exit == 0
	}, patient, 5*time.Millisecond)

	var exit int
	var s statusJSON
	require.Eventually(t, func() bool { // one that was late gets the key by a renewal
		exit, s = statusOfKey(t, env, "report")
		return s.Votes == 5
	}, patient, 5*time.Millisecond)
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
	require.Regexp(t, `^report is held by night-shift, on 5 of 5 masters, \d+\.\ds left\ntaken at 20\d\d-.*, as its fence says\n`, stdout)
	require.Len(t, lines(stdout), 9)
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
	masters, env := started(t, 3)
	onAll(t, masters, "SET", "k", "made-by-another-library")
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

func TestStatusCutsNoWords(t *testing.T) {
	t.Parallel()
	long := "127.0.0.1:1,unix:///" + strings.Repeat("a-long-path/", 8) + "socket"
	exit, stdout, _ := do(t, nil, "status", "-m", long, "k")
	require.Equal(t, exitNoQuorum, exit)
	requireReadable(t, stdout)
	require.Contains(t, strings.Join(strings.Fields(stdout), " "), "connect: no such file or directory")
	masters := redlocktest.Embedded(t, 1)
	owner := strings.Repeat("an-owner-of-", 10) + "128-byte"
	ask(t, masters, 0, "SET", "k", owner+"/"+strings.Repeat("X", 27))
	exit, stdout, _ = do(t, []string{mastersEnv(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, strings.Join(strings.Fields(stdout), ""), "heldby"+owner+",")
	require.NotContains(t, stdout, "…")
	exit, _, stderr := do(t, nil, "status", "-m", "127.0.0.1:1", "k")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stderr, "0 of 1 master answered; 1 is needed")
}

// client returns one that takes locks for status to see, on all masters.
func client(t *testing.T, masters *redlocktest.Masters, owner string) *redlock.Client {
	t.Helper()
	c, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), Owner: owner, DialTimeout: patient, RoundTimeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// take takes a lock when all masters are up. The last votes can come later.
func take(t *testing.T, masters *redlocktest.Masters, owner, key string, ttl time.Duration, opts ...redlock.Option) *redlock.Mutex {
	t.Helper()
	c := client(t, masters, owner)
	require.Eventually(t, func() bool {
		for _, m := range c.Stats().Masters {
			if m.Phase != "up" {
				return false
			}
		}
		return true
	}, patient, 5*time.Millisecond)
	m := c.NewMutex(key, ttl, opts...)
	require.NoError(t, m.Lock(t.Context()))
	return m
}

func TestStatusListsReaders(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	b := take(t, masters, "b", "k", time.Minute, redlock.WithShared())
	take(t, masters, "a", "k", time.Hour, redlock.WithShared())
	var exit int
	var s statusJSON
	require.Eventually(t, func() bool { // the third vote may come late
		exit, s = statusOfKey(t, env, "k")
		return len(s.Readers) == 2 && s.Readers[0].Votes == 3 && s.Readers[1].Votes == 3
	}, patient, 5*time.Millisecond)
	require.Zero(t, exit)
	require.Equal(t, "held", s.State)
	require.Empty(t, s.Token)
	require.Empty(t, s.Owner)
	require.Equal(t, 3, s.Votes)
	require.Greater(t, *s.LeftMS, time.Minute.Milliseconds(), "that of the last")
	require.Equal(t, []string{"a", "b"}, []string{s.Readers[0].Owner, s.Readers[1].Owner})
	require.Equal(t, b.Token(), s.Readers[1].Token)
	require.LessOrEqual(t, *s.Readers[1].LeftMS, time.Minute.Milliseconds(), "its own")
	require.Positive(t, *s.Readers[1].LeftMS)
	for _, m := range s.Masters {
		require.Len(t, m.Readers, 2)
		require.Empty(t, m.Token)
		require.Greater(t, *m.LeftMS, time.Minute.Milliseconds())
	}

	masters.Kill(2)
	ask(t, masters, 1, "ZREM", "k", b.Token())
	exit, stdout, stderr := do(t, env, "status", "k")
	require.Zero(t, exit)
	require.Empty(t, stderr)
	requireReadable(t, stdout)
	require.NotContains(t, stdout, b.Token())
	all := lines(stdout)
	require.Len(t, all, 10)
	require.Regexp(t, `^k is held by 1 reader, (59m\d+s|1h0m0s) left$`, all[0])
	require.Regexp(t, `^MASTERS +LEFT  READER$`, all[2])
	require.Regexp(t, `^2 of 3 .* left  a$`, all[3])
	require.Regexp(t, `^1 of 3 +\d+\.\ds left  b$`, all[4])
	require.Regexp(t, ` left  2 readers$`, all[7])
	require.Regexp(t, ` left  1 reader$`, all[8])
	require.Contains(t, all[9], "refused")

	masters.Kill(1)
	exit, stdout, stderr = do(t, env, "status", "k")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stdout, "k: unknown, 1 of 3 masters answered\n")
	require.Regexp(t, `(?m)^1 of 3 .* left  a$`, stdout)
	require.Contains(t, stderr, "1 of 3 masters answered; 2 are needed")
}
