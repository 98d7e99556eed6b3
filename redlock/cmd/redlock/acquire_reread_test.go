//go:build unix

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A masterFile is one that REDLOCK_MASTERS_FILE names.
type masterFile struct {
	t    *testing.T
	path string
}

func newMasterFile(t *testing.T, masters ...string) masterFile {
	f := masterFile{t, filepath.Join(t.TempDir(), "masters")}
	f.write(masters...)
	return f
}

func (f masterFile) write(masters ...string) {
	require.NoError(f.t, os.WriteFile(f.path, []byte("# the masters\n"+strings.Join(masters, "\n")+"\n"), 0o600))
}

func (f masterFile) env() []string { return []string{fileVariable + "=" + f.path} }

// outcome is in what a command says when it has read the file again, whatever came of it.
var outcome = regexp.MustCompile(`the list of masters|the place of|the masters stay`)

// hangup has the commands read the file again, and demands that each says that.
func (f masterFile) hangup(says string, all ...*invocation) {
	f.t.Helper()
	for _, s := range all {
		s.err.clear()
		require.NoError(f.t, s.Process.Signal(syscall.SIGHUP))
		awaitTrue(f.t, func() bool { return outcome.MatchString(s.err.String()) })
		s.saysSoon(says)
	}
}

// saysSoon demands that a command says what it should have said by now, but for the rest of a line.
func (s *invocation) saysSoon(text string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return strings.Contains(s.err.String(), text) }, 20*time.Second, 5*time.Millisecond, "%q", text)
}

// A master is killed and replaced by an empty one, while a command runs under a lock, and another run waits for it.
func TestRunTakesAChangedList(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	f := newMasterFile(t, masters.Addrs()[:3]...)
	s := begin(t, f.env(), sh(`trap 'echo hangup' HUP; echo ready; read line; echo "alive $REDLOCK_MASTERS"`, "--ttl", "3s")...).awaitStdout("ready")
	waiter := begin(t, f.env(), sh(`echo "mine $REDLOCK_MASTERS"`, "--ttl", "3s", "--wait", "forever", "-v")...).awaitStderr("waiting: ")
	masters.Kill(2)
	f.write(masters.Addr(3), masters.Addr(1), masters.Addr(0))
	f.hangup(masters.Addr(3)+" has the place of "+masters.Addr(2)+" now", s, waiter)
	waiter.saysSoon(masters.Addr(3) + " is quarantined")
	f.hangup("the list of masters is the same", waiter)
	require.Eventually(t, func() bool {
		return ask(t, masters, 3, "GET", "k") != nil
	}, patient, 5*time.Millisecond, "it votes at last, and a renewal gives it the lock")
	status, stdout, stderr := do(t, f.env(), "clients")
	require.Zero(t, status, stdout+stderr)
	require.Contains(t, stdout, "2 clients with a list of masters: all have yours")
	masters.Kill(0)
	_, err := s.in.Write([]byte("\n"))
	require.NoError(t, err)
	require.Zero(t, s.end())
	require.Contains(t, s.out.String(), "alive "+strings.Join(masters.Addrs()[:3], ","))
	require.NotContains(t, s.out.String(), "hangup")
	require.Zero(t, waiter.end())
	require.Contains(t, waiter.out.String(), "mine "+strings.Join([]string{masters.Addr(3), masters.Addr(1), masters.Addr(0)}, ","))
}

// The machine of a master is gone. The file says so, and it is replaced; before, nobody can tell.
func TestRunTakesTheWordOfTheList(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	f := newMasterFile(t, masters.Addrs()[:3]...)
	s := begin(t, f.env(), sh(`echo ready; read line`, "--ttl", "3s", "--dial-timeout", "500ms", "-v")...).awaitStdout("ready")
	gone := masters.Addr(2)
	masters.Kill(2)
	conntest.UnreachableAt(t, netip.MustParseAddrPort(gone))
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3))
	f.hangup("nobody can tell from here whether the old master is down", s)
	word := "shut down: " + gone
	s.saysSoon("with a line '" + word + "'")
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3), "shut down: "+masters.Addr(0))
	f.hangup(masters.Addr(0)+" is a master in "+f.path+", and was shut down for good, too", s)
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3), "shut down: http://x")
	f.hangup("master 4 in "+f.path, s)
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3), "  shut down: redis://:of-old@"+gone+" # in March")
	f.hangup(masters.Addr(3)+" has the place of "+gone+" now", s)
	f.hangup("the list of masters is the same", s)
	status, stdout, stderr := do(t, f.env(), "clients")
	require.Zero(t, status, stdout+stderr)
	require.Contains(t, stdout, "1 client with a list of masters")
	_, err := s.in.Write([]byte("\n"))
	require.NoError(t, err)
	require.Zero(t, s.end())
}

// The same with lead: neither who leads nor who waits is ended by the signal.
func TestLeadTakesAChangedList(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	f := newMasterFile(t, masters.Addrs()[:3]...)
	all := begins(t, 2, f.env(), leads(`echo "begun $REDLOCK_FENCE"; exec sleep 3600`, "--ttl", "3s", "-v"))
	leader, term := all.leader(t, 0)
	all[1-leader].awaitStderr("waiting: ")
	masters.Kill(2)
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3))
	f.hangup(masters.Addr(3)+" has the place of "+masters.Addr(2)+" now", all...)
	for _, s := range all {
		s.saysSoon(masters.Addr(3) + " is quarantined")
		s.awaitStderr(masters.Addr(3) + " is up again")
	}
	masters.Kill(0)
	require.NoError(t, all[leader].Process.Signal(syscall.SIGTERM))
	require.Equal(t, 128+15, all[leader].end())
	next, _ := all.leader(t, term)
	require.Equal(t, 1-leader, next)
}

// What cannot be done is said, and changes nothing. Neither does it end the command.
func TestAListThatCannotBeTakenIsRefused(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	f := newMasterFile(t, masters.Addrs()[:3]...)
	s := begin(t, f.env(), sh(`echo ready; read line`, "-v")...).awaitStdout("ready")
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3))
	f.hangup("still answers: shut it down for good first", s)
	f.write(masters.Addr(0), masters.Addr(3), masters.Addr(4))
	f.hangup("the list of masters has 2 newcomers, and lacks 2: only one at a time", s)
	f.write(masters.Addrs()[:4]...)
	f.hangup("the list of masters has 1 newcomer, and lacks 0", s)
	f.write(masters.Addr(0), masters.Addr(1), "http://x")
	f.hangup("master 3 in "+f.path, s)
	require.NoError(t, os.Remove(f.path))
	f.hangup("no such file", s)
	f.write(masters.Addrs()[:3]...)
	f.hangup("the list of masters is the same", s)
	masters.Kill(2)
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3)) // which has still the old one in its place
	f.hangup(masters.Addr(3)+" has the place of "+masters.Addr(2)+" now", s)
	_, err := s.in.Write([]byte("\n"))
	require.NoError(t, err)
	require.Zero(t, s.end())

	status, _, stderr := do(t, []string{fileVariable + "=-"}, "status", "k")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "cannot be stdin")
}

// A signal that comes before the masters are connected is not lost.
func TestAChangedListBeforeTheMastersAreConnected(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	f := newMasterFile(t, masters.Addrs()[:3]...)
	for _, i := range []int{1, 2} {
		masters.Kill(i)
	}
	s := begin(t, f.env(), sh(`read line`, "--wait", "forever")...).awaitStderr("waiting for them")
	f.write(masters.Addr(0), masters.Addr(1), masters.Addr(3))
	require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	masters.Restart(1)
	s.awaitStderr(masters.Addr(3) + " has the place of " + masters.Addr(2))
	_, err := s.in.Write([]byte("\n"))
	require.NoError(t, err)
	require.Zero(t, s.end())
}

// Without the variable, or if a flag says which masters there are, a signal is the command's affair.
func TestAHangupIsPassedOnWithoutTheVariable(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	f := newMasterFile(t, masters.Addrs()...)
	s := begin(t, f.env(), sh(`echo ready; exec sleep 3600`, "--masters-file", f.path)...).awaitStdout("ready")
	require.Equal(t, 128+1, s.endBy(syscall.SIGHUP))
}
