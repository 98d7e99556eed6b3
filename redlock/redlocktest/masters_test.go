package redlocktest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
)

const patience = 30 * time.Second

// eventually is require.Eventually without its goroutines, which would be
// counted as ours.
func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// forEachKind runs a test with every way of running masters.
func forEachKind(t *testing.T, test func(t *testing.T, start func(n int) *Masters)) {
	t.Run("real", func(t *testing.T) {
		test(t, func(n int) *Masters { return Start(t, n) })
	})
	t.Run("unix sockets", func(t *testing.T) {
		test(t, func(n int) *Masters { return Start(t, n, WithUnixSockets()) })
	})
	t.Run("embedded", func(t *testing.T) {
		test(t, func(n int) *Masters { return Embedded(t, n) })
	})
	forEachLinkedKind(t, test)
}

// forEachLinkedKind runs a test with every way of running masters behind links.
func forEachLinkedKind(t *testing.T, test func(t *testing.T, start func(n int) *Masters)) {
	t.Run("linked", func(t *testing.T) {
		test(t, func(n int) *Masters { return Start(t, n, WithLinks()) })
	})
	t.Run("embedded, linked", func(t *testing.T) {
		test(t, func(n int) *Masters { return Embedded(t, n, WithLinks()) })
	})
}

// needRedis skips or fails the test where Start would.
func needRedis(t *testing.T) { t.Helper(); Start(t, 0) }

// connect opens a connection to the address that users are given.
func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := dialAddr(addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func dialAddr(addr string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		return net.Dial("unix", path)
	}
	return net.Dial("tcp", addr)
}

func refuses(addr string) bool {
	c, err := dialAddr(addr)
	if err != nil {
		return true
	}
	c.Close()
	return false
}

// down reports whether who connects gets no answer but an end. A paused master would
// keep it waiting.
func down(addr string) bool {
	c, err := dialAddr(addr)
	if err != nil {
		return true
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
	_, err = c.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func ping(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
	require.NoError(t, err)
}

// replies returns what arrives within d, which is nothing from a paused master.
func replies(c net.Conn, d time.Duration) string {
	c.SetReadDeadline(time.Now().Add(d))
	buf := make([]byte, 64)
	n, _ := c.Read(buf)
	return string(buf[:n])
}

func TestMastersAreIndependent(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(3)
		require.Equal(t, 3, m.N())
		require.Len(t, m.Addrs(), 3)
		for i, addr := range m.Addrs() {
			require.Equal(t, addr, m.Addr(i))
			reply, err := m.Do(i, "SET", "key", fmt.Sprint(i), "NX")
			require.NoError(t, err)
			require.Equal(t, "OK", reply)
		}
		for i := range m.N() {
			reply, err := m.Do(i, "GET", "key")
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), reply)
		}
		m.Flush(1)
		reply, err := m.Do(1, "GET", "key")
		require.NoError(t, err)
		require.Nil(t, reply)
		reply, err = m.Do(2, "GET", "key")
		require.NoError(t, err)
		require.Equal(t, "2", reply)
	})
}

func TestDoReturnsGoValues(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		reply, err := m.Do(0, "INCR", "n")
		require.NoError(t, err)
		require.Equal(t, int64(1), reply)

		reply, err = m.Do(0, "EVAL", "return {1, 'two', {}, false, {err='ERR three'}}", "0")
		require.NoError(t, err)
		require.Len(t, reply, 5)
		require.Equal(t, []any{int64(1), "two", []any{}, nil}, reply.([]any)[:4])
		require.Equal(t, ReplyError("ERR three"), reply.([]any)[4])

		_, err = m.Do(0, "EVALSHA", strings.Repeat("0", 40), "0")
		var refused ReplyError
		require.ErrorAs(t, err, &refused)
		require.Contains(t, string(refused), "NOSCRIPT")

		reply, err = m.Do(0, "HELLO", "3")
		require.NoError(t, err)
		require.Contains(t, reply, "standalone")

		large := strings.Repeat("x", 1<<20)
		_, err = m.Do(0, "SET", "large", large)
		require.NoError(t, err)
		reply, err = m.Do(0, "GET", "large")
		require.NoError(t, err)
		require.Equal(t, large, reply)

		_, err = m.Do(0)
		require.Error(t, err)
	})
}

func TestDoFailsAtOnceWhereNobodyCanAnswer(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(2)
		fails := func(want error, said string) {
			t.Helper()
			_, err := m.Do(0, "PING")
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, "master 0 ("+m.Addr(0)+"): "+said)
			_, err = m.Do(1, "PING")
			require.NoError(t, err)
		}
		m.Pause(0)
		fails(ErrPaused, "it is paused")
		m.Resume(0)
		_, err := m.Do(0, "PING")
		require.NoError(t, err)
		m.Kill(0)
		fails(ErrDown, "it is down")
		m.Restart(0)
		_, err = m.Do(0, "PING")
		require.NoError(t, err)
		m.Pause(0)
		m.Kill(0)
		fails(ErrDown, "it is down")
		m.Restart(0)
		_, err = m.Do(0, "PING")
		require.NoError(t, err)
	})
}

func TestFlushSaysThatTheMasterIsPaused(t *testing.T) {
	t.Parallel()
	f := told(func(tb *fakeTB) {
		m := Embedded(tb, 1)
		m.Pause(0)
		m.Flush(0)
		t.Error("not reached")
	})
	require.Regexp(t, `^redlocktest: flush master 0 \(127\.0\.0\.1:\d+\): it is paused$`, f.fatal)
}

func TestDoAfterCloseSaysThatTheMasterIsDown(t *testing.T) {
	t.Parallel()
	m, err := RunEmbedded(1)
	require.NoError(t, err)
	m.Close()
	_, err = m.Do(0, "PING")
	require.ErrorIs(t, err, ErrDown)
}

func TestKeysExpireInRealTime(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		began := time.Now()
		_, err := m.Do(0, "SET", "key", "token", "PX", "50")
		require.NoError(t, err)
		eventually(t, func() bool {
			reply, err := m.Do(0, "GET", "key")
			require.NoError(t, err)
			return reply == nil
		}, "the key expires")
		require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
	})
}

func TestPausedMasterIsSilentUntilResumed(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(2)
		open := connect(t, m.Addr(0))
		ping(t, open)
		require.Equal(t, "+PONG\r\n", replies(open, patience))

		m.Pause(0)
		m.Pause(0)
		fresh := connect(t, m.Addr(0))
		ping(t, open)
		ping(t, fresh)
		require.Empty(t, replies(open, 20*time.Millisecond))
		require.Empty(t, replies(fresh, 20*time.Millisecond))
		_, err := m.Do(1, "PING")
		require.NoError(t, err, "the others go on")

		m.Resume(0)
		m.Resume(0)
		require.Equal(t, "+PONG\r\n", replies(open, patience))
		require.Equal(t, "+PONG\r\n", replies(fresh, patience))

		for range 20 {
			m.Pause(0)
			m.Resume(0)
		}
		_, err = m.Do(0, "PING")
		require.NoError(t, err)
	})
}

// A client does not read the end of a reply that is too large to lie between it and
// its master. Neither its master nor who handles that one waits for it.
func TestMasterIsPausedAndKilledInTheMiddleOfAReply(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("0123456789abcdef", 2<<20)
	reply := fmt.Appendf(nil, "$%d\r\n%s\r\n", len(value), value)
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		does := func(op func(int), what string) {
			t.Helper()
			done := make(chan struct{})
			go func() { defer close(done); op(0) }()
			select {
			case <-done:
			case <-time.After(patience):
				require.Fail(t, "it hangs: "+what)
			}
		}
		_, err := ask(m.masters[0], time.Now().Add(patience), "SET", "key", value) // longer than Do has
		require.NoError(t, err)
		get := func() (c net.Conn, first []byte) {
			c = connect(t, m.Addr(0))
			c.(interface{ SetReadBuffer(int) error }).SetReadBuffer(64 << 10) // systems give it tens of MB
			_, err := c.Write([]byte("*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n"))
			require.NoError(t, err)
			first = make([]byte, 1)
			c.SetReadDeadline(time.Now().Add(patience))
			_, err = io.ReadFull(c, first)
			require.NoError(t, err)
			return c, first
		}
		arrived := func(c net.Conn) (all []byte) {
			for {
				buf := make([]byte, 1<<20)
				c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				n, err := c.Read(buf)
				if all = append(all, buf[:n]...); err != nil {
					return all
				}
			}
		}

		c, got := get()
		does(m.Pause, "pause")
		got = append(got, arrived(c)...)
		require.Less(t, len(got), len(reply), "a paused master sends nothing more")
		does(m.Resume, "resume")
		rest := make([]byte, len(reply)-len(got))
		c.SetReadDeadline(time.Now().Add(patience))
		_, err = io.ReadFull(c, rest)
		require.NoError(t, err)
		require.True(t, bytes.Equal(reply[:len(got)], got) && bytes.Equal(reply[len(got):], rest), "the reply is whole")

		c, got = get()
		does(m.Pause, "pause")
		does(m.Kill, "kill")
		require.Less(t, len(got)+len(arrived(c)), len(reply), "nothing slips out")
		does(m.Restart, "restart")
	})
}

func TestPauseReturnsWhenTheProcessHasStopped(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	m := Start(t, 1)
	state := func() string {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID(0)))
		require.NoError(t, err)
		return strings.Fields(string(stat))[2]
	}
	for range 10 {
		m.Pause(0)
		require.Equal(t, "T", state())
		m.Resume(0)
		require.NotEqual(t, "T", state())
	}
}

func TestKilledMasterRefusesUntilRestarted(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(2)
		addr := m.Addr(0)
		_, err := m.Do(0, "SET", "key", "token")
		require.NoError(t, err)
		open := connect(t, addr)
		ping(t, open)
		require.NotEmpty(t, replies(open, patience))

		m.Kill(0)
		m.Kill(0)
		require.True(t, down(addr))
		require.Zero(t, m.PID(0))
		require.Empty(t, replies(open, patience))
		_, err = m.Do(0, "PING")
		require.Error(t, err)

		m.Restart(0)
		require.Equal(t, addr, m.Addr(0))
		require.False(t, down(addr))
		reply, err := m.Do(0, "GET", "key")
		require.NoError(t, err)
		require.Nil(t, reply, "its data is gone")

		_, err = m.Do(0, "SET", "key", "token")
		require.NoError(t, err)
		m.Restart(0)
		reply, err = m.Do(0, "GET", "key")
		require.NoError(t, err)
		require.Nil(t, reply, "a running one is killed first")
	})
}

func TestPausedMasterCanBeKilledAndRestarted(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		open := connect(t, m.Addr(0))
		m.Pause(0)
		ping(t, open)
		m.Kill(0)
		require.Empty(t, replies(open, patience), "nothing slips out")
		require.True(t, down(m.Addr(0)))

		m.Restart(0)
		m.Pause(0)
		m.Restart(0)
		_, err := m.Do(0, "PING")
		require.NoError(t, err)
	})
}

func TestRealMastersTakeArguments(t *testing.T) {
	t.Parallel()
	m := Start(t, 2, WithArgs("--requirepass", "secret"), WithArgs("--appendonly", "yes", "--appendfsync", "always"))
	open := connect(t, m.Addr(0))
	ping(t, open)
	require.Contains(t, replies(open, patience), "NOAUTH")

	_, err := m.Do(0, "SET", "key", "token")
	require.NoError(t, err)
	m.Restart(0)
	reply, err := m.Do(0, "GET", "key")
	require.NoError(t, err)
	require.Equal(t, "token", reply, "the append-only file wins over our default")
}

func TestRunReportsWhatRedisSays(t *testing.T) {
	t.Parallel()
	needRedis(t)
	m, err := Run(2, WithArgs("--no-such-directive", "1"))
	require.Nil(t, m)
	require.ErrorContains(t, err, "no-such-directive")
}

func TestRestartWaitsForATakenPort(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, int) *Masters{
		"real":     func(tb testing.TB, n int) *Masters { return Start(tb, n) },
		"embedded": func(tb testing.TB, n int) *Masters { return Embedded(tb, n) },
	} {
		t.Run(name, func(t *testing.T) {
			var m *Masters
			var thief net.Listener
			require.Eventually(t, func() bool { // another test may be the faster thief
				m = start(t, 1)
				m.Kill(0)
				l, err := net.Listen("tcp", m.Addr(0))
				thief = l
				return err == nil
			}, patience, time.Millisecond)
			time.AfterFunc(50*time.Millisecond, func() { thief.Close() })
			m.Restart(0)
			_, err := m.Do(0, "PING")
			require.NoError(t, err)
		})
	}
}

func TestMoreMastersThanPortsAreRefused(t *testing.T) {
	m, err := RunEmbedded(blockSize)
	require.Nil(t, m)
	require.ErrorContains(t, err, "all ports of this process are taken")
	m, err = RunEmbedded(blockSize / 2)
	require.NoError(t, err, "those of the failed run are free again")
	m.Close()
}

// A killed master comes back at its port. Masters that are started meanwhile have others.
func TestPortOfAKilledMasterIsItsOwn(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		m.Kill(0)
		for range 2 * blockSize { // each port of the block twice
			l, err := listen()
			require.NoError(t, err)
			addr := l.Addr().String()
			require.NoError(t, l.Close())
			require.NotEqual(t, m.masters[0].addr(), addr)
			giveBack(addr)
		}
		m.Restart(0)
	})
}

func TestTakenPortIsToldFromOtherFailures(t *testing.T) {
	t.Parallel()
	m := Start(t, 1)
	thief, err := listen()
	require.NoError(t, err)
	defer thief.Close()
	s := m.masters[0].(*server)
	require.NoError(t, s.kill())
	s.port = thief.Addr().(*net.TCPAddr).Port
	require.ErrorIs(t, s.start(), errPortTaken)
	require.False(t, s.process.Alive())
}

// A server that finds one port after the other taken has but the last.
func TestPortsThatOthersHaveAreGivenBack(t *testing.T) {
	if !unixSockets {
		t.Skip("no shell")
	}
	bin := filepath.Join(t.TempDir(), "server")
	require.NoError(t, processes.WriteProgram(bin, []byte("#!/bin/sh\necho Could not create server TCP listening socket\n")))
	g, err := processes.NewGroup("redlocktest")
	require.NoError(t, err)
	defer g.Close()
	holdBlock()
	before := len(block.taken)
	s := newServer(bin, 0, g, options{})
	require.ErrorIs(t, s.startAnywhere(), errPortTaken)
	require.Len(t, block.taken, before+1)
	releaseBlock([]string{s.addr()})
}

func TestMastersMayBeUsedConcurrently(t *testing.T) {
	t.Parallel()
	forEachKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(2)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 10 {
				m.Pause(0)
				m.Resume(0)
				m.Restart(0)
			}
		}()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
				m.Do(0, "INFO") // succeeds or not
				m.PID(0)
				_, err := m.Do(1, "PING")
				require.NoError(t, err)
			}
		}
		_, err := m.Do(0, "PING")
		require.NoError(t, err)
	})
}

// requireNothingLeft runs f twice: what the second run leaves behind, every one does.
func requireNothingLeft(t *testing.T, f func()) {
	t.Helper()
	descriptors := func() int {
		entries, _ := os.ReadDir("/proc/self/fd") // none elsewhere than on Linux
		return len(entries)
	}
	f() // opens what stays open for good, such as the runtime's poller
	goroutines, fds := runtime.NumGoroutine(), descriptors()
	f()
	eventually(t, func() bool {
		return runtime.NumGoroutine() <= goroutines && descriptors() <= fds
	}, "goroutines and descriptors are back")
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	for name, run := range map[string]func(int) (*Masters, error){
		"real":             func(n int) (*Masters, error) { return Run(n) },
		"unix sockets":     func(n int) (*Masters, error) { return Run(n, WithUnixSockets()) },
		"embedded":         func(n int) (*Masters, error) { return RunEmbedded(n) },
		"linked":           func(n int) (*Masters, error) { return Run(n, WithLinks()) },
		"embedded, linked": func(n int) (*Masters, error) { return RunEmbedded(n, WithLinks()) },
	} {
		t.Run(name, func(t *testing.T) {
			requireNothingLeft(t, func() {
				m, err := run(4)
				require.NoError(t, err)
				conns := make([]net.Conn, m.N())
				for i := range conns {
					conns[i], err = dialAddr(m.Addr(i))
					require.NoError(t, err)
					ping(t, conns[i])
				}
				m.Pause(0)
				m.Kill(1)
				m.Restart(2)
				m.Close()
				m.Close()
				for i, c := range conns {
					require.True(t, refuses(m.Addr(i)))
					c.Close()
				}
				if m.group != nil {
					require.NoDirExists(t, m.group.Dir)
				}
			})
		})
	}
}

func TestFailedRunLeavesNothingBehind(t *testing.T) {
	needRedis(t)
	tmp, err := os.MkdirTemp("", "t")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(tmp) })
	t.Setenv("TMPDIR", tmp)
	goroutines := runtime.NumGoroutine()

	_, err = Run(3, WithArgs("--no-such-directive", "1"))
	require.Error(t, err)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines }, "goroutines are back")
}

// fakeTB notes what a test would have been told.
type fakeTB struct {
	testing.TB
	fatal, skip string
	cleanups    []func()
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) Fatal(args ...any) { f.fatal = fmt.Sprint(args...); runtime.Goexit() }
func (f *fakeTB) Skip(args ...any)  { f.skip = fmt.Sprint(args...); runtime.Goexit() }

// told runs test with a fakeTB until it returns or is ended.
func told(test func(tb *fakeTB)) *fakeTB {
	f := &fakeTB{}
	done := make(chan struct{})
	go func() { defer close(done); test(f) }()
	<-done
	for _, fn := range f.cleanups {
		fn()
	}
	return f
}

func TestMissingRedisSkipsButFailsInCI(t *testing.T) {
	t.Setenv("REDLOCKTEST_SERVER", "")
	t.Setenv("PATH", t.TempDir())
	require.ErrorContains(t, Available(), "apt-get install redis-server")

	t.Setenv("CI", "")
	f := told(func(tb *fakeTB) { Start(tb, 1) })
	require.Contains(t, f.skip, "install")
	require.Empty(t, f.fatal)

	t.Setenv("CI", "true")
	f = told(func(tb *fakeTB) { Start(tb, 1) })
	require.Contains(t, f.fatal, "install")
	require.Empty(t, f.skip)

	_, err := Run(1)
	require.ErrorContains(t, err, "install")
	f = told(func(tb *fakeTB) { Embedded(tb, 1) })
	require.Empty(t, f.fatal+f.skip, "embedded masters need nothing")
}

func TestFailedOperationEndsTheTest(t *testing.T) {
	t.Parallel()
	var addr string
	f := told(func(tb *fakeTB) {
		m := Embedded(tb, 1)
		addr = m.Addr(0)
		m.Kill(0)
		m.Pause(0)
		t.Error("not reached")
	})
	require.Contains(t, f.fatal, "pause master 0 ("+addr+"): it is down")
	require.Len(t, f.cleanups, 1)

	m, err := RunEmbedded(1)
	require.NoError(t, err)
	defer m.Close()
	m.Kill(0)
	defer func() {
		err, _ := recover().(error)
		require.True(t, errors.Is(err, ErrDown))
	}()
	m.Resume(0)
	t.Error("not reached")
}
