//go:build unix

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// says waits until the command has written text to stderr.
func (s *invocation) says(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.err.String(), text) }, patient, time.Millisecond,
		"%q in what the command says", text)
}

// A redlock in the command is to use the same masters, and nobody gives it our password.
func TestTheCommandKnowsTheMastersAndNoPassword(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithArgs("--requirepass", "sesame"))
	secret := "redis://:sesame@" + strings.Join(masters.Addrs(), ",redis://:sesame@")
	for name, env := range map[string][]string{
		"of the environment": {"REDLOCK_MASTERS=127.0.0.1:1", "REDLOCK_PASSWORD=sesame"},
		"of the URLs":        {"REDLOCK_MASTERS=" + secret},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"run", atOnce, "k", "--", "env"} // no shell, which would tidy up
			if env[0] == "REDLOCK_MASTERS=127.0.0.1:1" {
				args = slices.Insert(args, 1, "--masters", strings.Join(masters.Addrs(), ","))
			}
			status, stdout, stderr := do(t, env, args...)
			require.Zero(t, status, stderr)
			require.Contains(t, stdout, "REDLOCK_MASTERS="+strings.Join(masters.Addrs(), ",")+"\n")
			require.Equal(t, 1, strings.Count(stdout, "REDLOCK_MASTERS="))
			require.NotContains(t, stdout, "sesame")
			require.NotContains(t, stdout, "PASSWORD")
		})
	}
}

func TestTheMastersAreHandedOnWithTheirTLS(t *testing.T) {
	given := []string{"a", "redis://u:p@b/1", "rediss://c:1", "unix://u:p@/d", "sentinel://u:p@e,f/g"}
	require.Equal(t, "a:6379,redis://b:6379/1,rediss://c:1,unix:///d,sentinel://e:26379,f:26379/g", handedOn(given, conn.Options{}))
	require.Equal(t, "rediss://a:6379,rediss://b:6379/1,rediss://c:1,unix:///d,sentinels://e:26379,f:26379/g",
		handedOn(given, conn.Options{TLS: new(tls.Config)}))
}

// It can never have the lock while the command around it waits for it.
func TestARunWithinARunOnTheSameKeySaysWhoHoldsIt(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	for name, flags := range map[string]struct{ outer, inner []string }{
		"a lock":       {nil, []string{"k"}},
		"a key of two": {[]string{"--also", "l"}, []string{"l"}},
		"also":         {nil, []string{"--also", "k", "m"}},
		"a reader":     {[]string{"--shared"}, []string{"k"}},
	} {
		t.Run(name, func(t *testing.T) {
			inner := strings.Join(append([]string{binary, "run", atOnce}, flags.inner...), " ") + " -- echo ran"
			outer := begin(t, env, sh(strings.Replace(inner, "run ", "run --wait 1h ", 1), append([]string{"--ttl", "1s"}, flags.outer...)...)...)
			outer.says("waiting: ")
			outer.says("by the redlock that runs us: it is not free before that command has ended")
			require.NoError(t, outer.Process.Kill())
			outer.end()
			status, stdout, stderr := do(t, env, guarded(strings.Replace(inner, "run ", "run -n ", 1),
				append([]string{atOnce, "--wait", "1m"}, flags.outer...)...)...)
			require.Equal(t, exitHeld, status)
			require.Empty(t, stdout)
			require.Contains(t, stderr, "by the redlock that runs us")
		})
	}
	status, stdout, stderr := do(t, env, sh(binary+" run "+atOnce+" --shared k -- echo ran", "--shared")...)
	require.Zero(t, status, "readers do not exclude each other")
	require.Equal(t, "ran\n", stdout)
	require.Empty(t, stderr)
}

func TestVerboseTellsWhomItWaitsForAndWhatFails(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{inFleet(masters)}
	holder := begin(t, env, sh("echo holding; cat", "--owner", "first")...)
	holder.reads("holding")
	waiter := begin(t, env, sh("echo ran; cat", "--wait", "1h", "-v", "--ttl", "1s")...)
	waiter.says(`waiting: "k" is held by another` + "\n  by first, ")
	holder.in.Close()
	require.Zero(t, holder.end())
	waiter.reads("ran")
	waiter.says("k is ours, as redlock-run@")
	masters.Kill(2)
	waiter.says(masters.Addr(2) + " is down: ")
	masters.Restart(2)
	waiter.says(masters.Addr(2) + " is up again")
	waiter.in.Close()
	require.Zero(t, waiter.end())
	waiter.says("k is released\n")
	require.NotContains(t, waiter.err.String(), "closed")
	require.Equal(t, 1, strings.Count(waiter.err.String(), "waiting: "))
	require.Equal(t, 1, strings.Count(waiter.err.String(), "is down"), "our own end is no failure")
	require.Equal(t, 1, strings.Count(waiter.err.String(), "is up again"))
}

func TestVerboseTellsOfRenewalsThatFail(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := begin(t, []string{inFleet(masters)}, sh("echo holding; cat", "--ttl", "30s", "-v")...)
	s.reads("holding")
	masters.Pause(0)
	masters.Pause(1)
	s.says("the lock was not renewed: ")
	masters.Resume(0)
	masters.Resume(1)
	s.says("the lock is renewed again")
	s.in.Close()
	require.Zero(t, s.end())
	require.Equal(t, 1, strings.Count(s.err.String(), "the lock was not renewed"), "it is said once")
}

// stderrOf returns what a func writes to stderr. No other test must run beside it.
func stderrOf(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	real := os.Stderr
	os.Stderr = w
	f()
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
		w := &witness{verbose: true}
		for _, err := range []error{nil, errors.New("one"), errors.New("two"), nil, nil, errors.New("three")} {
			w.renewed(err)
		}
		new(witness).renewed(errors.New("four"))
	}))
}

// Whoever was waited for is asked after, which takes its time.
func TestVerboseTellsOfNoWaitThatIsOver(t *testing.T) {
	require.Equal(t, "redlock: waiting: 2\n", stderrOf(t, func() {
		synctest.Test(t, func(*testing.T) {
			var n atomic.Int64
			w := &witness{verbose: true}
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

func TestAReaderAmongOthersIsKnownAsTheParent(t *testing.T) {
	t.Setenv(tokenVariable, "ours")
	readers := []redlock.Holder{{Token: redlock.NewSecret("another's")}, {Token: redlock.NewSecret("ours")}}
	require.True(t, newStanding("k", []answer{{readers: readers}}).byParent())
	require.False(t, newStanding("k", []answer{{readers: readers[:1]}}).byParent())
	require.False(t, newStanding("k", []answer{{readers: readers}, {readers: readers[:1]}, {readers: readers[:1]}}).byParent(), "it is a rest of it")
	t.Setenv(tokenVariable, "")
	require.False(t, newStanding("k", []answer{{}}).byParent())
}
