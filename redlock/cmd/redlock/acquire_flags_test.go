//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// under is the command line of a shell script that is run under a lock of some kind.
func under(flags, key, script string) []string {
	return append(append([]string{"run", atOnce, "--wait", "1m"}, strings.Fields(flags)...), key, "--", "sh", "-c", script)
}

// requireFreeOf waits until status says that the lock is free.
func requireFreeOf(t *testing.T, env []string, args ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, _, _ := do(t, env, append([]string{"status", "-q"}, args...)...)
		return status == exitNo
	}, patient, 5*time.Millisecond)
}

func TestARunTakesAllItsKeysOrNone(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	holder := begin(t, env, "run", atOnce, "--owner", "first", "b", "--", "sh", "-c", "echo holding; cat").awaitStdout("holding")
	requireRefused(t, env, `"b" is held by another\n +by first, `, "--also", "b", "a")
	requireFreeOf(t, env, "a")
	holder.in.Close()
	require.Zero(t, holder.end())

	last := ""
	for _, command := range [][]string{
		under("", "b", "echo $REDLOCK_KEY $REDLOCK_FENCE"),
		under("-v --also b --also c --also a", "a", "echo $REDLOCK_KEY $REDLOCK_FENCE"),
		under("", "c", "echo $REDLOCK_KEY $REDLOCK_FENCE"),
	} {
		status, stdout, stderr := do(t, env, command...)
		require.Zero(t, status)
		key, fence, _ := strings.Cut(strings.TrimSpace(stdout), " ")
		require.Equal(t, command[len(command)-5], key)
		require.Len(t, fence, 16, "all have as many digits, so they compare as texts")
		require.Greater(t, fence, last, "that of each key is below it")
		last = fence
		if key == "a" {
			require.Contains(t, stderr, "a with b, c, a is released")
		}
	}
}

func TestReadersRunTogetherOrOneWriterAlone(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	var readers []*invocation
	for i := range 3 {
		readers = append(readers, begin(t, env, under("--shared -v --owner reader-"+fmt.Sprint(i), "k", "echo reading; cat")...))
	}
	for _, r := range readers {
		r.awaitStdout("reading\n")
	}
	requireRefused(t, env, `"k" is held by another\n +by 3 readers, \d+\.\ds left unless it is renewed`, "k")
	writer := begin(t, env, under("--owner writer", "k", "echo writing; cat")...)
	requireRefused(t, env, "a run without --shared waits for them, and goes first", "--shared", "k")
	for _, r := range readers {
		require.Empty(t, writer.out.String())
		r.in.Close()
		require.Zero(t, r.end())
		require.Contains(t, r.err.String(), "k, shared, is released")
	}
	writer.awaitStdout("writing")
	requireRefused(t, env, "by writer, ", "--shared", "k")
	reader := begin(t, env, under("--shared", "k", "echo reading")...)
	writer.in.Close()
	require.Zero(t, writer.end())
	require.Zero(t, reader.end())
	requireFreeOf(t, env, "k")
}

func TestAsManyRunAsThereArePermits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{mastersEnv(masters), "REDLOCK_FENCE=1", "REDLOCK_PERMIT=7"} // as if run stood in another run
	const script = `echo "permit $REDLOCK_PERMIT of $REDLOCK_KEY [$REDLOCK_FENCE]"; cat`
	const first, freed = "permit 1 of gpu []\n", "permit 2 of gpu []\n"
	holders := map[string]*invocation{}
	for range 2 {
		s := begin(t, env, under("-v --permits 2", "gpu", script)...).awaitStdout(" of gpu []\n")
		holders[s.out.String()] = s
	}
	require.Contains(t, holders, first)
	require.Contains(t, holders, freed)
	requireRefused(t, env, `none of 2 permits of "gpu" is free\n +the first to end is that of redlock-run@\S+, \d+\.\ds left unless it is renewed`,
		"--permits", "2", "gpu")
	waiter := begin(t, env, under("--permits 2", "gpu", script)...)
	holders[freed].in.Close()
	require.Zero(t, holders[freed].end())
	require.Contains(t, holders[freed].err.String(), "permit 2 of gpu is released")
	waiter.awaitStdout(freed)
	for _, s := range []*invocation{holders[first], waiter} {
		s.in.Close()
		require.Zero(t, s.end())
	}

	// A run within has what is its own.
	inner := begin(t, append(env, "BINARY="+binary), "run", atOnce, "--permits", "1", "outer", "--",
		"sh", "-c", `"$BINARY" run `+atOnce+` inner -- sh -c 'echo "[$REDLOCK_PERMIT] $REDLOCK_KEY"'`)
	require.Zero(t, inner.end())
	require.Equal(t, "[] inner\n", inner.out.String())
}

func TestARunWithAnotherNumberOfPermitsIsRefused(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1) // of more, some might not be connected yet, and the run would wait for them
	env := []string{mastersEnv(masters)}
	require.Zero(t, begin(t, env, under("--permits 2", "gpu", "exit 0")...).end())
	for _, wait := range []string{"0", "1s"} {
		status, stdout, stderr := do(t, env, under("--permits 3 -w "+wait, "gpu", "echo ran")...)
		require.Equal(t, exitUsage, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "{gpu}:permits says 2, and not 3")
		require.Contains(t, stderr, "everybody must give the same --permits")
		require.Equal(t, wait != "0", strings.Contains(stderr, "waiting for them"))
	}
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
		r := acquirer{ttl: ttl, restartGuard: test.guard}
		require.NoError(t, r.guard(test.given))
		require.Equal(t, test.want, r.restartGuard)
	}
	short := acquirer{ttl: ttl, restartGuard: ttl - 1}
	require.Error(t, short.guard(true))

	masters := redlocktest.Embedded(t, 1)
	status, _, _ := do(t, []string{mastersEnv(masters)}, guarded("", "-n", "--ttl", "1h")...)
	require.Equal(t, exitNoQuorum, status)
	status, _, _ = do(t, []string{mastersEnv(masters)}, guarded("", "--wait", "1m", "--ttl", "1h", "--restart-guard", "0")...)
	require.Zero(t, status)
	_, help, _ := do(t, nil, "run", "--help")
	require.Contains(t, strings.Join(strings.Fields(help), " "), "(default: the --ttl)")
}

// A new client would count the votes of masters that have forgotten the lock since.
func TestTheGuardCoversTheLeastHold(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	env := []string{mastersEnv(masters)}
	status, _, _ := do(t, env, guarded("", "-n", "--ttl", "1ms", "--min-hold", "1h", "--dial-timeout", "1m")...)
	require.Equal(t, exitUsage, status, "the TTL is too short")
	status, _, stderr := do(t, env, guarded("", "-n", "--ttl", "10ms", "--min-hold", "1h")...)
	require.Equal(t, exitNoQuorum, status)
	require.Contains(t, stderr, "may have forgotten locks")
	status, _, stderr = do(t, env, guarded("", "-n", "--min-hold", "1h", "--restart-guard", "1h")...)
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "--restart-guard 1h0m0s is too short for a --min-hold of 1h0m0s")
	for hold, guard := range map[time.Duration]time.Duration{0: 10 * time.Second, time.Second: 10 * time.Second, time.Hour: 61*time.Minute + 13*time.Second} {
		r := acquirer{ttl: 10 * time.Second, minHold: hold}
		require.NoError(t, r.guard(false))
		require.Equal(t, guard, r.restartGuard)
	}
}
