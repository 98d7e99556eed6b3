//go:build unix

package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// fullPipe returns both ends of a pipe that nobody reads, and that is full, as that of a log collector that hangs, or of
// a pager that was left open.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	require.NoError(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond))) // of no use where it is full
	for err == nil {
		_, err = w.Write(make([]byte, 1<<16))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, w.SetWriteDeadline(time.Time{}))
	require.NoError(t, syscall.SetNonblock(int(w.Fd()), false)) // a writer blocks
	return r, w
}

// requirePid waits until a command has written its process id to a file.
func requirePid(t *testing.T, file string) string {
	t.Helper()
	var text []byte
	require.Eventually(t, func() bool {
		text, _ = os.ReadFile(file)
		return strings.HasSuffix(string(text), "\n")
	}, patient, 5*time.Millisecond)
	return string(text)
}

// What is said of the loss, or of the masters, is said of a command that has been ended.
func TestNobodyWhoReadsStderrKeepsALostCommandAtWork(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"run":         {"run"},
		"run -v":      {"run", "-v"},
		"run --grace": {"run", "--grace", "100ms"}, // for a command that ignores SIGTERM
		"lead":        {"lead"},
		"lead -v":     {"lead", "-v"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			pid := t.TempDir() + "/pid"
			trap := ""
			if len(flags) == 3 {
				trap = "trap '' TERM; "
			}
			_, full := fullPipe(t)
			s := beginTo(t, []string{mastersEnv(masters)}, new(output), full, append(flags, atOnce, "--ttl", "3s", "k", "--", "sh", "-c",
				trap+"exec >/dev/null 2>&1; echo $$ >"+pid+"; while :; do sleep 0.01; done")...)
			was := requirePid(t, pid)
			masters.Pause(0)
			masters.Pause(1)
			requireGone(t, was)
			masters.Resume(0)
			masters.Resume(1)
			if flags[0] == "run" {
				require.Equal(t, exitLost, s.end(), "it waits for the reader for a moment only")
				return
			}
			require.Eventually(t, func() bool { return requirePid(t, pid) != was }, patient, 5*time.Millisecond, "it leads again")
			require.Equal(t, 128+15, s.endBy(syscall.SIGTERM), "signals are served")
		})
	}
}

func TestNobodyWhoReadsKeepsAHolderFromItsEnd(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{true, false} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			_, full := fullPipe(t)
			s := beginTo(t, []string{mastersEnv(masters)}, full, full, "hold", atOnce, "--ttl", "3s", "-v", "k")
			requireRenewed(t, masters)
			if lost {
				s.lose(masters)
				require.Equal(t, exitLost, s.end())
			} else {
				require.Zero(t, s.endBy(syscall.SIGTERM))
			}
			requireFree(t, masters)
		})
	}
}

// requireRenewed waits until the lock is renewed: whoever has it knows that.
func requireRenewed(t *testing.T, masters *redlocktest.Masters) {
	t.Helper()
	left := int64(math.MaxInt64)
	require.Eventually(t, func() bool {
		v, err := masters.Do(0, "PTTL", "k")
		ms, ok := v.(int64)
		renewed := err == nil && ok && ms > left
		if ok && ms > 0 {
			left = ms
		}
		return renewed
	}, patient, 5*time.Millisecond)
}

// The lock can be over before the command begins: redlock, or its machine, stood still.
func TestNoCommandIsStartedWithoutItsLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	status, stdout, stderr := do(t, []string{mastersEnv(masters)}, sh("echo at work", "--max-lifetime", "1ns", "--ttl", "1m")...)
	require.Equal(t, exitLifetime, status)
	require.Contains(t, stderr, "was over before the command was started")
	require.Empty(t, stdout)
	requireFree(t, masters)
}

func TestWhatNobodyReadsIsBoundedAndCounted(t *testing.T) {
	r, full := fullPipe(t)
	real := os.Stderr
	os.Stderr = full
	defer func() { os.Stderr = real }()
	const more = 7
	for i := range 1 + mostWords + more { // the first is being written
		say(fmt.Sprintln("word", i))
		if i == 0 {
			require.Eventually(t, func() bool {
				speech.mu.Lock()
				defer speech.mu.Unlock()
				return len(speech.texts) == 0
			}, patient, time.Millisecond)
		}
	}
	began := time.Now()
	allSaid()
	require.GreaterOrEqual(t, time.Since(began), lastWords, "it is given a moment")
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(r)
		read <- string(text)
	}()
	speech.mu.Lock()
	done := speech.done
	speech.mu.Unlock()
	<-done
	full.Close()
	text := strings.TrimLeft(<-read, "\x00")
	want := "word 0\nredlock: 7 messages left out here, as nobody has read stderr\n"
	for i := 1 + more; i < 1+mostWords+more; i++ {
		want += "word " + strconv.Itoa(i) + "\n"
	}
	require.Equal(t, want, text)
}
