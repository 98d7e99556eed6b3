//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestStatusOfSeveralKeys(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	a := begin(t, env, "hold", atOnce, "--owner", "me", "a")
	a.assigned("REDLOCK_TOKEN")
	status, stdout, _ := do(t, env, "status", "a", "b")
	require.Equal(t, exitNo, status, "one is free")
	require.Regexp(t, `(?s)^a is held by me, .*\n\nb is free\n`, stdout)
	requireReadable(t, stdout)
	status, _, _ = do(t, env, "status", "-q", "b", "a")
	require.Equal(t, exitNo, status)
	status, _, _ = do(t, env, "status", "-q", "a", "a")
	require.Zero(t, status, "all are held")

	status, stdout, _ = do(t, env, "status", "--json", "a", "b")
	require.Equal(t, exitNo, status)
	all := json.NewDecoder(strings.NewReader(stdout))
	for _, key := range []string{"a", "b"} {
		var s statusJSON
		require.NoError(t, all.Decode(&s))
		require.Equal(t, key, s.Key)
	}
	require.False(t, all.More())

	masters.Kill(0) // the other two are free, and have it
	masters.Kill(1)
	status, _, stderr := do(t, env, "status", "b", "a")
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, `1 of 3 masters answered; 2 are needed to tell who holds "b"`)
}

func TestStatusWatchTellsOfEachChange(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	w := begin(t, env, "status", "--watch", "a", "b").awaitStdout("  a: free\n")
	w.awaitStdout("  b: free\n")
	a := begin(t, env, "hold", atOnce, "--owner", "me:8080", "a")
	fence := a.assigned("REDLOCK_FENCE")
	w.awaitStdout("  a: held by me:8080, fence " + fence + "\n")
	w.out.clear()
	require.NoError(t, a.Process.Signal(syscall.SIGTERM))
	w.awaitStdout("  a: free\n")
	require.NotContains(t, w.out.String(), "b:", "nothing has changed")
	w.out.clear()
	masters.Pause(0)
	masters.Pause(1)
	ask(t, masters, 2, "SET", "b", "x", "PX", "1000") // which makes it ask
	w.awaitStdout("  b: unknown, ")
	masters.Resume(0)
	masters.Resume(1)
	w.endBy(syscall.SIGTERM)
}

// A job that is over has left its lock there: nobody is said to have taken it.
func TestStatusWatchTellsOfALockThatIsLeftThere(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	w, j := begin(t, env, "status", "--watch", "a").awaitStdout("  a: free\n"), begin(t, env, "status", "--watch", "--json", "a").awaitStdout("\n")
	job := []string{"run", atOnce, "--owner", "me", "--min-hold", "10h", "a", "--", "true"}
	status, _, stderr := do(t, env, job...)
	require.Zero(t, status, stderr)
	w.awaitStdout("  a: left by me, and nobody runs it, fence ")
	j.awaitStdout(`"lingers":true,"fence":`)
	require.NotRegexp(t, "(?s)left by.*held by", w.out.String())
}

func TestStatusWatchWritesJSON(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	masters.Kill(2)
	masters.Kill(1)
	w := begin(t, []string{mastersEnv(masters)}, "status", "--watch", "--json", "k").awaitStdout("\n")
	var s watchEvent
	require.NoError(t, json.Unmarshal([]byte(lines(w.out.String())[0]), &s))
	require.Equal(t, "k", s.Key)
	require.Equal(t, unknown, s.State)
	require.Contains(t, s.Error, "too few masters")
	require.WithinDuration(t, time.Now(), s.Time, patient)
	for i := range masters.N() {
		if i > 0 {
			masters.Restart(i)
		}
		ask(t, masters, i, "SET", "k", "by-another-library", "PX", "100000")
	}
	w.awaitStdout(`"state":"held"}` + "\n")
}

func TestWatchOfAKeyThatIsTooLongIsAMistake(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	status, _, stderr := do(t, []string{mastersEnv(masters)}, "status", "--watch", strings.Repeat("k", 17<<10))
	require.Equal(t, exitUsage, status)
	require.NotContains(t, stderr, "doctor")
}
