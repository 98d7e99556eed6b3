package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

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
	}, patient, time.Millisecond)
	m := c.NewMutex(key, ttl, opts...)
	require.NoError(t, m.Lock(t.Context()))
	return m
}

func TestStatusListsReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	b := take(t, masters, "b", "k", time.Minute, redlock.WithShared())
	take(t, masters, "a", "k", time.Hour, redlock.WithShared())
	var exit int
	var s statusJSON
	require.Eventually(t, func() bool { // the third vote may come late
		exit, s = statusOfKey(t, env, "k")
		return len(s.Readers) == 2 && s.Readers[0].Votes == 3 && s.Readers[1].Votes == 3
	}, patient, time.Millisecond)
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
	_, err := masters.Do(1, "ZREM", "k", b.Token())
	require.NoError(t, err)
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

// What keeps the set of readers alive is the reader whose term ends last.
func TestStatusListsNoReaderWhoseTermHasEnded(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	env := []string{inFleet(masters)}
	dead := take(t, masters, "dead", "k", 2*time.Second, redlock.WithShared())
	take(t, masters, "alive", "k", time.Hour, redlock.WithShared())
	require.Eventually(t, func() bool {
		_, s := statusOfKey(t, env, "k")
		return len(s.Readers) == 1 && s.Readers[0].Owner == "alive"
	}, patient, time.Millisecond)
	score, err := masters.Do(0, "ZSCORE", "k", dead.Token())
	require.NoError(t, err)
	require.NotNil(t, score, "it is still there")
}

// A set that others have made is no lock, but no plain lock is set beside it.
func TestStatusTakesNoOtherSetForReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	_, err := masters.Do(0, "ZADD", "k", "17", "alice", "4", "bob")
	require.NoError(t, err)
	exit, stdout, _ := do(t, []string{inFleet(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held by a key that is no lock, on 1 of 1 master, without expiry")
}

func TestStatusSaysWhyItCannotListReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	take(t, masters, "a", "k", time.Hour, redlock.WithShared())
	for _, command := range []string{"time", "zrange"} {
		_, err := masters.Do(0, "ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-"+command)
		require.NoError(t, err)
		exit, stdout, _ := do(t, []string{inFleet(masters), "REDLOCK_USERNAME=narrow", "REDLOCK_PASSWORD=pw"}, "status", "k")
		require.Equal(t, exitNoQuorum, exit)
		require.Contains(t, stdout, strings.ToUpper(command)+": NOPERM")
	}
}

func TestAMasterNamesAThousandReaders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	const far = 1 << 42 // milliseconds since 1970: long after this
	set := []string{"ZADD", "k"}
	for i := range maxReaders + 1 {
		set = append(set, fmt.Sprint(far+int64(i)), fmt.Sprint("reader-", i))
	}
	_, err := masters.Do(0, set...)
	require.NoError(t, err)
	exit, stdout, _ := do(t, []string{inFleet(masters)}, "status", "k")
	require.Zero(t, exit)
	require.Contains(t, stdout, "k is held by at least 1000 readers, ")
}

// allotmentJSON is what status --permits --json writes.
type allotmentJSON struct {
	Key, State             string
	Free, Answered, Quorum int
	Permits                []struct {
		Permit, Votes       int
		State, Token, Owner string
		LeftMS              *int64 `json:"left_ms"`
	}
	Masters []struct {
		Master, Error string
		Taken         int
	}
}

func statusOfPermits(t *testing.T, env []string, n int) (exit int, s allotmentJSON) {
	t.Helper()
	exit, stdout, _ := do(t, env, "status", "--json", "--permits", strconv.Itoa(n), "gpu")
	require.NoError(t, json.Unmarshal([]byte(stdout), &s))
	return exit, s
}

func TestStatusListsPermits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	exit, stdout, _ := do(t, env, "status", "--permits", "2", "gpu")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "gpu: 2 of 2 permits are free\n")
	require.NotContains(t, stdout, "HOLDER")

	a := take(t, masters, "a", "gpu", time.Minute, redlock.WithPermits(2))
	var s allotmentJSON
	require.Eventually(t, func() bool { // the third vote may come late
		exit, s = statusOfPermits(t, env, 2)
		return s.Permits[0].Votes+s.Permits[1].Votes == 3
	}, patient, time.Millisecond)
	require.Equal(t, exitNo, exit)
	require.Equal(t, "gpu", s.Key)
	require.Equal(t, "free", s.State)
	require.Equal(t, 1, s.Free)
	ours, others := s.Permits[0], s.Permits[1]
	if ours.State == "free" {
		ours, others = others, ours
	}
	require.Equal(t, "held", ours.State)
	require.Equal(t, "a", ours.Owner)
	require.Equal(t, a.Token(), ours.Token)
	require.Positive(t, *ours.LeftMS)
	require.LessOrEqual(t, *ours.LeftMS, time.Minute.Milliseconds())
	require.Equal(t, "free", others.State)
	require.Empty(t, others.Token)
	require.Nil(t, others.LeftMS)
	for i, m := range s.Masters {
		require.Equal(t, masters.Addr(i), m.Master)
		require.Equal(t, 1, m.Taken)
	}
	exit, stdout, stderr := do(t, env, "status", "--permits", "2", "gpu")
	require.Equal(t, exitNo, exit)
	require.Empty(t, stderr)
	requireReadable(t, stdout)
	require.NotContains(t, stdout, a.Token())
	all := lines(stdout)
	require.Len(t, all, 9)
	require.Equal(t, "gpu: 1 of 2 permits is free", all[0])
	require.Regexp(t, `^PERMIT +MASTERS +LEFT +HOLDER$`, all[2])
	require.Regexp(t, fmt.Sprintf(`^%d +3 of 3 +\d+\.\ds left +a$`, ours.Permit), all[3])
	require.Regexp(t, ` +1 taken$`, all[8])

	take(t, masters, "b", "gpu", time.Hour, redlock.WithPermits(2))
	require.Eventually(t, func() bool {
		_, s = statusOfPermits(t, env, 2)
		return s.Permits[0].Votes == 3 && s.Permits[1].Votes == 3
	}, patient, time.Millisecond)
	masters.Kill(2)
	exit, stdout, _ = do(t, env, "status", "--permits", "2", "gpu")
	require.Zero(t, exit, "none is free")
	require.Regexp(t, `^gpu: none of 2 permits is free, the first to end is that of a, \d+\.\ds\s+left\n`, stdout)
	require.Contains(t, stdout, "refused")
	requireReadable(t, stdout)

	masters.Kill(1)
	exit, stdout, stderr = do(t, env, "status", "--permits", "2", "gpu")
	require.Equal(t, exitNoQuorum, exit)
	require.Contains(t, stdout, "gpu: unknown, 1 of 3 masters answered\n")
	require.Regexp(t, `(?m)^\d +1 of 3 .* a$`, stdout)
	require.Contains(t, stderr, "1 of 3 masters answered; 2 are needed")
}

// A permit that is on one master may be on one that is down, too: then it is held.
func TestStatusCountsPermitsThatAreFreeForSure(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	_, err := masters.Do(0, "SET", "{gpu}:permit:2/3", "somebody's", "PX", "3600000")
	require.NoError(t, err)
	exit, s := statusOfPermits(t, env, 3)
	require.Equal(t, exitNo, exit)
	require.Equal(t, 3, s.Free)
	masters.Kill(1)
	exit, stdout, _ := do(t, env, "status", "--permits", "3", "gpu")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "gpu: at least 2 of 3 permits are free\n")
	require.Regexp(t, `(?m)^2 +1 of 3 .* left  somebody who left no name$`, stdout)
}

// Of another number of permits each would seem to be free.
func TestStatusSaysHowManyPermitsThereAre(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	take(t, masters, "a", "gpu", time.Minute, redlock.WithPermits(4))
	status, stdout, stderr := do(t, env, "status", "--permits", "3", "gpu")
	require.Equal(t, exitUsage, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, `there are 4 permits of "gpu", and not 3`)

	status, stdout, _ = do(t, env, "status", "gpu")
	require.Equal(t, exitNo, status)
	require.Contains(t, stdout, "gpu is free\n", "as a lock with one holder")
	require.Contains(t, stdout, "There are 4 permits of it, too: see --permits 4.\n")
	requireReadable(t, stdout)
}

func TestStatusOfAsManyPermitsAsThereCanBe(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	take(t, masters, "a", "gpu", time.Minute, redlock.WithPermits(maxPermits))
	exit, s := statusOfPermits(t, env, maxPermits)
	require.Equal(t, exitNo, exit)
	require.Equal(t, maxPermits-1, s.Free)
	require.Len(t, s.Permits, maxPermits)
}
