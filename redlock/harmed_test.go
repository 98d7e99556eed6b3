//go:build linux

package redlock_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Masters whose disk is full or fails, that still load their files, or are busy: conn, mux and lock deal
// with it together.

// A harm is what is done to one master, and undone.
type harm struct {
	name  string
	args  []string             // of the masters
	opts  []redlocktest.Option // ... and what else they need
	do    func(h *harmed)
	undo  func(h *harmed)
	cause string // what the failed vote of the master says; "" if there is no answer
}

// harmed are masters of which the last is harmed.
type harmed struct {
	*testing.T
	masters *redlocktest.Masters
	running sync.WaitGroup // what is done to it
	durable bool           // ... and was declared to keep its memory
}

const victim = 2

func (h *harmed) ask(args ...string) string {
	h.Helper()
	return fmt.Sprint(redlock.Says(h, h.masters, victim, args...))
}

// start starts a command that keeps the master busy, and does not look at the reply.
func (h *harmed) start(args ...string) {
	h.running.Go(func() { h.masters.Do(victim, args...) })
}

// log returns the append-only file to which the master writes.
func (h *harmed) log() string {
	h.Helper()
	dir := fmt.Sprintf("/proc/%d/cwd/", h.masters.PID(victim))
	dir, err := filepath.EvalSymlinks(dir)
	require.NoError(h, err)
	for _, pattern := range []string{"appendonlydir/*.incr.aof", "appendonly.aof"} { // since Redis 7, and before
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err == nil && len(found) > 0 {
			return found[len(found)-1]
		}
	}
	require.Fail(h, "no append-only file", dir)
	return ""
}

// fill lets the disk have room for some bytes more of the append-only file: enough for a part of a
// command. Other files that it writes have less. It is the kernel that refuses to write more, as it does
// on a disk that is full: it writes what it can, and the next write fails.
func (h *harmed) fill() {
	h.Helper()
	file, err := os.Stat(h.log())
	require.NoError(h, err)
	h.limit(uint64(file.Size()) + 20)
}

func (h *harmed) limit(size uint64) {
	h.Helper()
	limit := unix.Rlimit{Cur: size, Max: unix.RLIM_INFINITY}
	require.NoError(h, unix.Prlimit(h.masters.PID(victim), unix.RLIMIT_FSIZE, &limit, nil))
}

// write writes a key that has no part in the test.
func (h *harmed) write() { h.masters.Do(victim, "SET", "beside", "it", "PX", "1") }

// refuses waits until the master refuses writes, as its file is not written. It learns of it when it writes.
func (h *harmed) refuses() {
	h.Helper()
	require.Eventually(h, func() bool {
		h.write()
		return strings.Contains(h.ask("INFO", "persistence"), "aof_last_write_status:err")
	}, time.Minute, 5*time.Millisecond)
}

func (h *harmed) ends() {
	h.Helper()
	require.Eventually(h, func() bool { return h.masters.PID(victim) == 0 }, time.Minute, 5*time.Millisecond)
}

func init() {
	// The servers inherit it. It would end those whose disk is full.
	signal.Ignore(syscall.SIGXFSZ)
}

var harms = []harm{
	{
		name: "its disk is full", args: []string{"--appendonly", "yes", "--appendfsync", "everysec"},
		do: func(h *harmed) {
			h.fill()
			h.refuses()
		},
		undo:  func(h *harmed) { h.limit(unix.RLIM_INFINITY) },
		cause: "MISCONF",
	},
	{
		// It writes a part of the command, and ends. Nothing was answered, so nothing is forgotten.
		name: "its disk is full, and it persists every write", args: []string{"--appendonly", "yes", "--appendfsync", "always"},
		do: func(h *harmed) {
			h.fill()
			h.write()
			h.ends()
		},
		undo:  func(h *harmed) { h.masters.Restart(victim) },
		cause: "refused", // the connection
	},
	{
		name: "its disk fails", args: []string{"--appendonly", "yes", "--appendfsync", "everysec"},
		opts: []redlocktest.Option{redlocktest.WithDisks()},
		do: func(h *harmed) {
			h.masters.FailSync(victim, true)
			h.refuses()
		},
		undo: func(h *harmed) {
			h.masters.FailSync(victim, false)
			// It has nothing to sync before it writes, and refuses writes before it has synced. It would be
			// freed by a key that expires.
			h.ask("CONFIG", "SET", "appendonly", "no")
			h.ask("CONFIG", "SET", "appendonly", "yes")
		},
		cause: "MISCONF",
	},
	{
		name: "its disk fails, and it persists every write", args: []string{"--appendonly", "yes", "--appendfsync", "always"},
		opts: []redlocktest.Option{redlocktest.WithDisks()},
		do: func(h *harmed) {
			h.masters.FailSync(victim, true)
			h.write()
			h.ends()
		},
		undo: func(h *harmed) {
			h.masters.FailSync(victim, false)
			h.masters.Restart(victim)
		},
		cause: "refused", // the connection
	},
	{
		name: "it was restarted and still loads", args: []string{"--appendonly", "yes", "--appendfsync", "always",
			"--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no"}, // microseconds
		do: func(h *harmed) {
			h.ask("EVAL", "for i = 1, 30 do redis.call('SET', 'filler:' .. i, string.rep('x', 2048)) end", "0")
			h.ask("BGREWRITEAOF") // what it has rewritten it serves while it loads
			require.Eventually(h, func() bool {
				said := h.ask("INFO", "persistence")
				return strings.Contains(said, "aof_rewrite_in_progress:0") && strings.Contains(said, "aof_rewrite_scheduled:0")
			}, time.Minute, 5*time.Millisecond)
			h.masters.Kill(victim)
			h.running.Go(func() { h.masters.Restart(victim) })
		},
		undo:  func(h *harmed) {},
		cause: "LOADING",
	},
	{
		name: "a script keeps it busy", args: []string{"--lua-time-limit", "1"},
		do: func(h *harmed) {
			h.start("EVAL", "while true do end", "0")
			require.Eventually(h, func() bool {
				_, err := h.masters.Do(victim, "PING")
				return err != nil && strings.Contains(err.Error(), "BUSY")
			}, time.Minute, 5*time.Millisecond)
		},
		undo:  func(h *harmed) { h.ask("SCRIPT", "KILL") },
		cause: "BUSY",
	},
	{
		name: "DEBUG SLEEP", args: []string{"--enable-debug-command", "local"},
		do:   func(h *harmed) { h.start("DEBUG", "SLEEP", "4") },
		undo: func(h *harmed) {},
	},
}

// harmable starts masters that can be harmed.
func harmable(t *testing.T, opts ...redlocktest.Option) *harmed {
	t.Helper()
	name, version := product(t, redlocktest.Start(t, 1))
	if name == "Redis" && olderThan(version, "7.0") {
		t.Skip("the server is too old to be harmed in this way")
	}
	return &harmed{T: t, masters: redlocktest.Start(t, 3, opts...)}
}

// open returns a client for which all masters are up, and whose patience is enough for any machine, but for
// masters that are silent for so long.
func (h *harmed) open(stall time.Duration) *redlock.Client {
	h.Helper()
	cfg := redlock.Config{Masters: h.masters.Addrs(), RoundTimeout: time.Minute, StallTime: stall, DialTimeout: time.Minute}
	if h.durable {
		cfg = declared(h.T, h.masters, cfg)
	}
	return openUp(h, cfg)
}

// A minority that cannot serve costs the others nothing: locks are taken, extended and released
// while it is harmed. It does not vote, and says why. When it is well again it votes,
// and has none of the keys that were released meanwhile.
func TestHarmedMinority(t *testing.T) {
	t.Parallel()
	for _, c := range harms {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const long = 10 * time.Minute // no key ends by itself
			h := harmable(t, append(c.opts, redlocktest.WithArgs(c.args...))...)
			h.durable = slices.Contains(c.args, "always") // it is restarted, and may have to wait if not
			defer h.running.Wait()
			client := h.open(time.Minute)
			before, meanwhile := client.NewMutex("before", long), client.NewMutex("meanwhile", long)
			require.NoError(t, before.TryLock(t.Context()))
			redlock.Confirmed(t, before)
			settled(t, client)
			require.Equal(t, before.Token(), h.ask("GET", "before"))

			c.do(h)
			// One yes, one no, and the harmed one.
			redlock.Says(t, h.masters, 1, "SET", "split", "another's")
			split := redlock.Within(client.NewMutex("split", long), 50*time.Millisecond)
			require.Eventually(t, func() bool { // it may be connecting again
				err := split.TryLock(t.Context())
				if err == nil { // it is not harmed yet
					split.Unlock(t.Context())
					return false
				}
				var round *redlock.RoundError
				if !errors.As(err, &round) {
					return false
				}
				vote := round.Votes[victim]
				if c.cause == "" {
					return vote.Verdict == "pending" && vote.Err == nil
				}
				return vote.Verdict == "failed" && vote.Err != nil && strings.Contains(vote.Err.Error(), c.cause)
			}, 20*time.Second, 5*time.Millisecond, "its vote does not say why it failed")

			require.NoError(t, before.Extend(t.Context()))
			require.NoError(t, meanwhile.TryLock(t.Context()))
			require.NoError(t, meanwhile.Extend(t.Context()))
			require.NoError(t, meanwhile.Unlock(t.Context()))
			require.NoError(t, before.Unlock(t.Context()))

			c.undo(h)
			h.running.Wait()
			reaches(t, client, victim, "up")
			require.Eventually(t, func() bool {
				return h.ask("EXISTS", "before", "meanwhile", "split") == "0"
			}, time.Minute, 5*time.Millisecond, "a key is left")
			require.Eventually(t, func() bool { // its vote is needed
				return client.NewMutex("split", long).TryLock(t.Context()) == nil
			}, time.Minute, 5*time.Millisecond)
		})
	}
}

// Masters that are killed in the middle of a rewrite have forgotten nothing, of what they were
// told before it and while it goes on. So they vote at once, and nobody else gets the lock.
func TestMastersThatRewriteTheirFilesForgetNothing(t *testing.T) {
	t.Parallel()
	const long = 10 * time.Minute
	h := harmable(t, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always",
		"--rdb-key-save-delay", "10000000")) // microseconds
	h.durable = true
	client := h.open(time.Second)
	before, meanwhile := client.NewMutex("before", long), client.NewMutex("meanwhile", long)
	require.NoError(t, before.TryLock(t.Context()))
	settled(t, client)
	rewriting := func(i int) bool {
		said, err := h.masters.Do(i, "INFO", "persistence")
		return err == nil && strings.Contains(said.(string), "aof_rewrite_in_progress:1")
	}
	for i := range 3 {
		redlock.Says(t, h.masters, i, "EVAL", "for i = 1, 30 do redis.call('SET', 'filler:' .. i, i) end", "0")
		redlock.Says(t, h.masters, i, "BGREWRITEAOF")
		require.Eventually(t, func() bool { return rewriting(i) }, time.Minute, 5*time.Millisecond)
	}
	require.NoError(t, before.Extend(t.Context()))
	require.NoError(t, meanwhile.TryLock(t.Context()))
	settled(t, client)
	for i := range 3 {
		require.True(t, rewriting(i))
		h.masters.Kill(i)
	}
	for i := range 3 {
		h.masters.Restart(i)
	}
	// The process that rewrites has inherited the connections. They do not break while it lives, and
	// nobody answers.
	for _, m := range []*redlock.Mutex{before, meanwhile} {
		other := client.NewMutex(m.Key(), long)
		require.Eventually(t, func() bool {
			err := other.TryLock(t.Context())
			return errors.Is(err, redlock.ErrHeld) && !errors.Is(err, redlock.ErrNoQuorum)
		}, time.Minute, 5*time.Millisecond)
		require.Eventually(t, func() bool { return m.Extend(t.Context()) == nil }, time.Minute, 5*time.Millisecond)
		require.Positive(t, m.Remaining())
		require.Eventually(t, func() bool { return m.Unlock(t.Context()) == nil }, time.Minute, 5*time.Millisecond)
	}
}

// A file that lacks its end is loaded without it. The master has forgotten a lock, and does not vote.
func TestMasterWithATruncatedFileDoesNotVote(t *testing.T) {
	t.Parallel()
	const long = 10 * time.Minute
	h := harmable(t, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "everysec"))
	client := h.open(time.Minute)
	before, m := client.NewMutex("before", long), client.NewMutex("k", long)
	require.NoError(t, before.TryLock(t.Context()))
	settled(t, client)
	require.NoError(t, m.TryLock(t.Context()))
	settled(t, client)
	log := h.log()
	require.Eventually(t, func() bool { // a write waits for an fsync that goes on
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), m.Token())
	}, time.Minute, 5*time.Millisecond)
	h.masters.Kill(victim)
	reaches(t, client, victim, "down")
	file, err := os.Stat(log)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(log, file.Size()-1))
	h.masters.Restart(victim)
	reaches(t, client, victim, "quarantined")
	require.Equal(t, before.Token(), h.ask("GET", "before"))
	require.Equal(t, "0", h.ask("EXISTS", "k"))

	redlock.Says(t, h.masters, 1, "DEL", "k") // so that two masters of three would give it away
	err = client.NewMutex("k", long).TryLock(t.Context())
	var quarantined *mux.QuarantineError
	require.ErrorAs(t, err, &quarantined)
}

// A master that persists every write, and cannot, ends before it answers. So nobody counts its vote,
// whether it has what it wrote when it comes back, or not. All that it answered before it has.
func TestWhatIsNotPersistedIsNoVote(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"what it wrote is there": false, "what it wrote is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const long = 10 * time.Minute // no key ends by itself
			h := harmable(t, redlocktest.WithDisks(), redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
			h.durable = true
			client, another := h.open(time.Minute), h.open(time.Minute)
			before, m := client.NewMutex("before", long), client.NewMutex("k", long)
			require.NoError(t, before.TryLock(t.Context()))
			redlock.Confirmed(t, before)
			settled(t, client)
			log := h.log()
			answered, err := os.Stat(log)
			require.NoError(t, err)

			h.masters.FailSync(victim, true)
			redlock.Says(t, h.masters, 1, "SET", "k", "another's") // so that the vote of the victim is needed
			var round *redlock.RoundError
			require.ErrorAs(t, m.TryLock(t.Context()), &round)
			require.Equal(t, "no", round.Votes[1].Verdict)
			require.Equal(t, "failed", round.Votes[victim].Verdict)
			require.Zero(t, m.Remaining())
			h.ends()
			written, err := os.ReadFile(log)
			require.NoError(t, err)
			require.Contains(t, string(written[answered.Size():]), "\r\nk\r\n", "it has written, and not synced")
			if lost {
				require.NoError(t, os.Truncate(log, answered.Size()))
			}

			h.masters.FailSync(victim, false)
			h.masters.Restart(victim)
			reaches(t, client, victim, "up")
			reaches(t, another, victim, "up")
			redlock.Says(t, h.masters, 1, "DEL", "before", "k") // so that two masters of three would give both away
			require.ErrorIs(t, another.NewMutex("before", long).TryLock(t.Context()), redlock.ErrHeld)
			require.NoError(t, before.Extend(t.Context()))
			require.Eventually(t, func() bool { // the release of what was not taken may be under way
				return another.NewMutex("k", long).TryLock(t.Context()) == nil
			}, time.Minute, 5*time.Millisecond)
			require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNotHeld)
		})
	}
}
