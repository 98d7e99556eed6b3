//go:build unix

package main

import (
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// holds is a holder whose lock is not renewed while the test runs, and its token.
func holds(t *testing.T, env []string, args ...string) (s *invocation, token string) {
	t.Helper()
	s = begin(t, env, append([]string{"hold", atOnce, "--ttl", "1h"}, args...)...)
	return s, s.assigned("REDLOCK_TOKEN")
}

// loses ends a holder, which finds out that its lock is gone. A holder that the masters have told has ended already. One
// that too few masters answer in time, as the machine is busy, says so: the signal alone has ended it then.
func loses(t *testing.T, s *invocation) {
	t.Helper()
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		require.ErrorIs(t, err, os.ErrProcessDone)
	}
	if s.end() == 0 {
		require.Contains(t, s.err.String(), "too few masters answered")
		return
	}
	require.Equal(t, exitLost, s.ProcessState.ExitCode())
}

func TestAHolderThatNobodyAnswersSaysSo(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s, _ := holds(t, []string{mastersEnv(masters)}, "k")
	for i := range 3 {
		masters.Pause(i)
	}
	require.Zero(t, s.endBy(syscall.SIGTERM))
	require.Contains(t, s.err.String(), "too few masters answered")
}

func TestReleaseTakesALockByItsToken(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	s, token := holds(t, env, "--owner", "night-shift", "k")
	requireHeld(t, masters)
	status, stdout, stderr := do(t, env, "release", "--token", token+"x", "k")
	require.Equal(t, exitHeld, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, `"k" is held under another token`)
	require.Contains(t, stderr, "by night-shift, ")
	requireHeld(t, masters)

	r := begin(t, env, "release", "--token", "-", "k")
	_, err := r.in.Write([]byte(token + "\n"))
	require.NoError(t, err)
	r.in.Close()
	require.Zero(t, r.end())
	require.Regexp(t, `^k was taken from night-shift, 3[56]\d\ds left|^k was taken from night-shift, (1h0m0s|59m\d+s) left`, r.out.String())
	requireFree(t, masters)
	loses(t, s)

	status, _, stderr = do(t, env, "release", "--token", token, "k")
	require.Equal(t, exitNo, status)
	require.Contains(t, stderr, `"k" is free`)
}

func TestReleaseTakesReadersAndPermitsByTheirTokens(t *testing.T) {
	t.Parallel()
	_, env := started(t, 3)
	first, one := holds(t, env, "--shared", "--owner", "one", "r")
	_, _ = holds(t, env, "--shared", "--owner", "two", "r")
	status, stdout, stderr := do(t, env, "release", "--token", one, "r")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "r was taken from one, ")
	require.Eventually(t, func() bool { // the last master may be late
		exit, s := statusOfKey(t, env, "r")
		return exit == 0 && len(s.Readers) == 1 && s.Readers[0].Owner == "two"
	}, patient, 5*time.Millisecond)
	loses(t, first)

	third, three := holds(t, env, "--permits", "2", "--owner", "three", "p")
	status, _, stderr = do(t, env, "release", "--permits", "2", "--token", one, "p")
	require.Equal(t, exitNo, status)
	require.Contains(t, stderr, "no permit of")
	status, stdout, stderr = do(t, env, "release", "--permits", "2", "--token", three, "p")
	require.Zero(t, status, stderr)
	require.Regexp(t, `^p was taken from three \(permit [12]\)`, stdout)
	loses(t, third)
}

// A holder that keeps its lock alive repairs it on a master that has lost it. Masters that are slow lose it one after the
// other, so each time the holder still has it on the others. Here each master has it again before its answer is read.
func TestReleaseOutlastsAHolderThatRepairsItsLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for name, repairs := range map[string]int64{"twice": 2, "always": math.MaxInt64} {
		t.Run(name, func(t *testing.T) {
			onAll(t, masters, "SET", name, "token", "PX", "3600000")
			var fronts []string
			for i := range masters.N() {
				var done atomic.Int64
				fronts = append(fronts, conntest.Listen(t, func(c net.Conn) {
					master, err := net.Dial("tcp", masters.Addr(i))
					if err != nil {
						return
					}
					defer master.Close()
					go func() {
						_, _ = io.Copy(master, c)
						master.Close()
					}()
					for b := make([]byte, 1<<16); ; {
						n, err := master.Read(b)
						if err != nil {
							return
						}
						if done.Load() < repairs {
							if said, err := masters.Do(i, "SET", name, "token", "NX", "PX", "3600000"); err == nil && said != nil {
								done.Add(1)
							}
						}
						if _, err := c.Write(b[:n]); err != nil {
							return
						}
					}
				}))
			}
			status, _, stderr := do(t, []string{"REDLOCK_MASTERS=" + strings.Join(fronts, ",")}, "release", "--token", "token", name)
			if name == "always" {
				require.Equal(t, exitHeld, status)
				require.Contains(t, stderr, "'redlock revoke'")
				return
			}
			require.Zero(t, status, stderr)
			for i := range masters.N() {
				require.Zero(t, ask(t, masters, i, "EXISTS", name))
			}
		})
	}
}

// A master that answers, and refuses to delete the key, is not a holder that sets it again.
func TestAMasterThatRefusesToDeleteSetsNothingAgain(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	const token = "owner/0123456789"
	onAll(t, masters, "SET", "k", token, "PX", "3600000")
	ask(t, masters, 2, "CONFIG", "SET", "min-replicas-to-write", "1")
	status, stdout, stderr := do(t, env, "release", "--token", token, "k")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "k was taken from ")
	for i := range masters.N() {
		require.Equal(t, i == 2, ask(t, masters, i, "GET", "k") == token)
	}
}

// Who has agreed to take a lock away from one holder has not agreed to take it from the next one.
func TestTheNextHolderKeepsItsLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for _, force := range []bool{false, true} {
		r := releaser{target: target{token: "former"}, force: force}
		cmd := &cobra.Command{}
		r.given.register(cmd)
		require.NoError(t, cmd.ParseFlags([]string{"-m", strings.Join(masters.Addrs(), ",")}))
		require.NoError(t, r.read())
		for i := range masters.N() {
			ask(t, masters, i, "SET", "k", "next", "PX", "3600000")
		}
		require.NoError(t, r.keepAway(t.Context(), "k", nil))
		for i := range masters.N() {
			require.Equal(t, "next", ask(t, masters, i, "GET", "k"))
		}
	}
}

func TestReleaseAndRevokeWithoutAMajority(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	_, token := holds(t, env, "k")
	masters.Kill(0)
	masters.Kill(1)
	for _, args := range [][]string{{"revoke", "--reason", "why", "--token", token}, {"release", "--token", token}, {"release", "--token", "another"}} {
		status, _, _ := do(t, env, append(args, "k")...)
		require.Equal(t, exitNoQuorum, status)
	}
}

func TestForceIsForWhoeverCanAnswer(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	status, _, stderr := do(t, env, "release", "--force", "k")
	require.Equal(t, exitNo, status)
	require.Contains(t, stderr, `"k" is free`)
	_, _ = holds(t, env, "k")
	status, _, stderr = do(t, env, "release", "--force", "k")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "--force asks on a terminal")
	require.Contains(t, stderr, "--token")
	for _, args := range [][]string{{"release", "--force", "k"}, {"revoke", "--match", "*", "--reason", "why"}} {
		s := beginBy(t, env, "sh", append([]string{"-c", `exec "$0" "$@" </dev/null`, binary}, args...)...)
		require.Equal(t, exitUsage, s.end())
		require.Contains(t, s.err.String(), "asks on a terminal, and stdin is none", "/dev/null looks like one")
		require.NotContains(t, s.err.String(), "Type yes")
	}
	requireHeld(t, masters)
	_, _ = holds(t, env, "--shared", "r")
	status, _, stderr = do(t, env, "release", "--force", "r")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, `"r" is held by 1 reader`)
	onAll(t, masters, "RPUSH", "list", "x")
	status, _, stderr = do(t, env, "release", "--force", "list")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, `"list" is a key that is no lock (list)`)
}

func TestReleaseReadsOneThingFromStdin(t *testing.T) {
	t.Parallel()
	status, _, stderr := do(t, nil, "release", "--token", "-", "--masters-file", "-", "k")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "--token and --masters-file cannot both be stdin")
}

// A master that is slow to connect is not left with the key.
func TestReleaseReachesAMasterThatConnectsLate(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	onAll(t, masters, "SET", "k", "a token", "PX", "600000")
	masters.Pause(2)
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: time.Minute})
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.NewMutex("k", time.Minute, redlock.WithToken("a token")).Unlock(t.Context()))
	resumed := make(chan struct{})
	go func() {
		defer close(resumed)
		masters.Resume(2)
	}()
	deliver(t.Context(), client, time.Minute)
	client.Close()
	<-resumed
	require.EqualValues(t, 0, ask(t, masters, 2, "EXISTS", "k"))
}
