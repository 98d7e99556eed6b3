package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// permitStatusJSON is what status --permits --json writes.
type permitStatusJSON struct {
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

func statusOfPermits(t *testing.T, env []string, n int) (exit int, s permitStatusJSON) {
	t.Helper()
	exit, stdout, _ := do(t, env, "status", "--json", "--permits", strconv.Itoa(n), "gpu")
	require.NoError(t, json.Unmarshal([]byte(stdout), &s))
	return exit, s
}

func TestStatusListsPermits(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	exit, stdout, _ := do(t, env, "status", "--permits", "2", "gpu")
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "gpu: 2 of 2 permits are free\n")
	require.NotContains(t, stdout, "HOLDER")

	a := take(t, masters, "a", "gpu", time.Minute, redlock.WithPermits(2))
	var s permitStatusJSON
	require.Eventually(t, func() bool { // the third vote may come late
		exit, s = statusOfPermits(t, env, 2)
		return s.Permits[0].Votes+s.Permits[1].Votes == 3
	}, patient, 5*time.Millisecond)
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
	}, patient, 5*time.Millisecond)
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
	masters, env := started(t, 3)
	ask(t, masters, 0, "SET", "{gpu}:permit:2/3", "somebody's", "PX", "3600000")
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
	masters, env := started(t, 3)
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
