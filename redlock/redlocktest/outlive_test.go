//go:build unix

package redlocktest

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// victim, if set in the environment, turns the test binary into a process that
// starts masters and then dies in the way it names.
const victim = "REDLOCKTEST_VICTIM"

func TestMain(m *testing.M) {
	if death := os.Getenv(victim); death != "" {
		die(death)
	}
	// The tests mostly wait, for processes and for time to pass, so more of them run at
	// once than there are cores. A -parallel on the command line comes later and wins.
	flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

func die(death string) {
	// The masters must not depend on the thread that started them either.
	started := make(chan *Masters)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		m, err := Run(3)
		if err != nil {
			panic(err)
		}
		started <- m
	}()
	m := <-started
	m.Pause(0)
	m.Kill(2)
	m.Restart(2)
	for i := range m.N() {
		if m.PID(i) == 0 {
			panic("a master died with the thread that started it")
		}
	}
	// Whoever is started in the background of a shell ignores interrupts.
	if signal.Ignored(os.Interrupt) {
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt)
		go func() { <-interrupted; os.Exit(2) }()
	}
	fmt.Println(m.group.Dir)
	fmt.Println(strings.Join(m.Addrs(), " "))
	bufio.NewReader(os.Stdin).ReadString('\n')
	switch death {
	case "panic":
		panic("on purpose")
	case "exit":
		os.Exit(3)
	}
	select {}
}

func TestServersDieWithTheProcess(t *testing.T) {
	t.Parallel()
	needRedis(t)
	signals := map[string]syscall.Signal{
		"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT, "terminated": syscall.SIGTERM, "timed out": syscall.SIGQUIT,
	}
	for _, death := range []string{"killed", "interrupted", "terminated", "timed out", "panic", "exit"} {
		t.Run(death, func(t *testing.T) {
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), victim+"="+death)
			stdin, err := child.StdinPipe()
			require.NoError(t, err)
			stdout, err := child.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, child.Start())
			t.Cleanup(func() { child.Process.Kill(); child.Wait() })

			lines := bufio.NewScanner(stdout)
			require.True(t, lines.Scan(), "the child starts its masters")
			dir := lines.Text()
			require.True(t, lines.Scan())
			addrs := strings.Fields(lines.Text())
			require.Len(t, addrs, 3)
			require.DirExists(t, dir)
			for _, addr := range addrs {
				require.False(t, refuses(addr))
			}

			if sig, ok := signals[death]; ok {
				require.NoError(t, child.Process.Signal(sig))
			} else {
				fmt.Fprintln(stdin)
			}
			eventually(t, func() bool {
				_, err := os.Stat(dir)
				gone := os.IsNotExist(err)
				for _, addr := range addrs {
					gone = gone && refuses(addr)
				}
				return gone
			}, "the servers and their files are gone")
		})
	}
}

func TestLongTemporaryDirectoryStillHoldsSockets(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()+"/"+strings.Repeat("x", 100))
	m := Start(t, 1, WithUnixSockets())
	_, err := m.Do(0, "PING")
	require.NoError(t, err)
}
