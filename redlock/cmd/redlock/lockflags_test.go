//go:build unix

package main

import (
	"fmt"
	"regexp"
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

// alone is a script that fails if one of the names is taken by another script at the same time.
// After mkdir, only one of them has the directory.
func alone(dir string, names ...string) string {
	var enter, leave strings.Builder
	for _, name := range names {
		fmt.Fprintf(&enter, "mkdir %s/%s || exit 9; ", dir, name)
		fmt.Fprintf(&leave, "rmdir %s/%s; ", dir, name)
	}
	return enter.String() + "sleep 0.05; " + leave.String()
}

// beginAll starts the commands, times each, all at the same time.
func beginAll(t *testing.T, env []string, times int, commands ...[]string) (all []*invocation) {
	t.Helper()
	for range times {
		for _, c := range commands {
			all = append(all, begin(t, env, c...))
		}
	}
	return all
}

func requireAllSucceed(t *testing.T, all []*invocation) {
	t.Helper()
	for _, s := range all {
		require.Zero(t, s.end())
	}
}

// requireFreeOf waits until status says that the lock is free.
func requireFreeOf(t *testing.T, env []string, args ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, _, _ := do(t, env, append([]string{"status", "-q"}, args...)...)
		return status == exitNo
	}, patient, 5*time.Millisecond)
}

// requireRefused is for a run that others keep from running: it says what they hold, and who they
// are. A busy machine may not find that out in the second that a run takes for it.
func requireRefused(t *testing.T, env []string, says string, args ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, stdout, stderr := do(t, env, append(append([]string{"run", atOnce, "-n"}, args...), "--", "echo", "ran")...)
		return status == exitHeld && stdout == "" && regexp.MustCompile(says).MatchString(stderr)
	}, patient, 5*time.Millisecond)
}

func TestRunsOnOverlappingKeysNeverOverlap(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env, dir := []string{mastersEnv(masters)}, t.TempDir()
	requireAllSucceed(t, beginAll(t, env, 3,
		under("--also b", "a", alone(dir, "a", "b")),
		under("--also a", "b", alone(dir, "a", "b")),
		under("--also c --also b", "b", alone(dir, "b", "c")),
		under("", "c", alone(dir, "c")),
	))
	for _, key := range []string{"a", "b", "c"} {
		requireFreeOf(t, env, key)
	}
}

func TestARunTakesAllItsKeysOrNone(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{mastersEnv(masters)}
	holder := begin(t, env, "run", atOnce, "--owner", "first", "b", "--", "sh", "-c", "echo holding; cat")
	holder.awaitStdout("holding")
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
	masters := redlocktest.Start(t, 3)
	env := []string{mastersEnv(masters)}
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
		s := begin(t, env, under("-v --permits 2", "gpu", script)...)
		s.awaitStdout(" of gpu []\n")
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

// There are no more of them at a time than permits: no two have the same one.
func TestNoMoreRunThanThereArePermits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env, dir := []string{mastersEnv(masters)}, t.TempDir()
	all := beginAll(t, env, 12, under("--permits 3", "gpu", alone(dir, "$REDLOCK_PERMIT")+"echo permit $REDLOCK_PERMIT"))
	requireAllSucceed(t, all)
	for _, s := range all {
		require.Regexp(t, `^permit [1-3]\n$`, s.out.String())
	}
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

// A fence is asked of the library: whether readers have one is its decision.
func TestAReaderHasAFence(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	fences := []string{}
	for _, flags := range [][]string{{}, {"--shared"}, {}, {"--shared", "--fence"}, {}} {
		status, stdout, stderr := do(t, []string{mastersEnv(masters)}, sh("echo $REDLOCK_FENCE", flags...)...)
		require.Zero(t, status, stderr)
		require.Regexp(t, `^\d{16}\n$`, stdout)
		fences = append(fences, stdout)
	}
	require.IsIncreasing(t, fences, "a reader's is between those of the writers")
	status, stdout, _ := do(t, []string{mastersEnv(masters)}, sh("echo $REDLOCK_FENCE", "--shared", "--fence=false")...)
	require.Zero(t, status)
	require.Equal(t, "\n", stdout)
}

func TestALostLockOfAnyKindEndsTheCommand(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{"--also l", "--shared", "--permits 2"} {
		t.Run(flags, func(t *testing.T) {
			masters := redlocktest.Start(t, 3)
			s := begin(t, []string{mastersEnv(masters)}, under(flags+" --ttl 3s", "k", "echo holding; exec sleep 3600")...)
			s.awaitStdout("holding")
			// Once may not be enough: a renewal that gives the masters their keys again, and hears of it
			// too late, does not know that they were gone.
			require.Eventually(t, func() bool {
				for i := range masters.N() {
					masters.Flush(i)
				}
				select {
				case <-s.exited:
					return true
				default:
					return false
				}
			}, patient, 100*time.Millisecond)
			require.Equal(t, exitLost, s.end())
			require.Contains(t, s.err.String(), "the lock is lost")
		})
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
	status, _, _ = do(t, []string{mastersEnv(masters)}, guarded("", "-n", "--ttl", "1h", "--restart-guard", "0")...)
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

// Each run is a client of its own, which knew no master before it was restarted.
func TestMastersThatHaveForgottenALockDoNotGiveItAway(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3) // without persistence
	env := []string{mastersEnv(masters)}
	holder := begin(t, env, sh("echo holding; cat", "--ttl", "5m")...)
	holder.awaitStdout("holding")
	masters.Restart(0)
	masters.Restart(1)

	for _, wait := range []string{"0", "1s"} {
		status, stdout, stderr := do(t, env, guarded("echo ran", "--ttl", "5m", "--wait", wait)...)
		require.Equal(t, exitNoQuorum, status)
		require.Empty(t, stdout)
		require.Regexp(t, `nobody has known its process for long: .*: it may have forgotten locks, and does not vote until \d`, stderr)
	}
	select {
	case <-holder.exited:
		t.Fatal("it runs no more")
	default:
	}
	holder.in.Close()
	require.Zero(t, holder.end())
}
