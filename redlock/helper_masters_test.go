package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// wakes counts why the waits of some clients end.
type wakes struct {
	mu sync.Mutex
	n  map[string]int
}

func (w *wakes) observer() []redlock.Observer {
	w.n = map[string]int{}
	return onEvent(behind.Wake, func(e *redlock.Event) {
		why := behind.OfEvent(e).Why
		w.mu.Lock()
		defer w.mu.Unlock()
		w.n[why]++
	})
}

func (w *wakes) count(why string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n[why]
}

// onEvent returns an Observer that is told of events of one kind.
func onEvent(kind redlock.EventKind, tell func(e *redlock.Event)) []redlock.Observer {
	return []redlock.Observer{func(_ context.Context, e *redlock.Event) {
		if e.Kind == kind {
			tell(e)
		}
	}}
}

func openOn(t testing.TB, masters *redlocktest.Masters, observer []redlock.Observer) *redlock.Client {
	t.Helper()
	return openWith(t, masters, redlock.Config{Observers: observer})
}

// started returns masters that were just started, and a client of theirs.
func started(t *testing.T, n int) (*redlocktest.Masters, *redlock.Client) {
	t.Helper()
	masters := redlocktest.Start(t, n)
	return masters, openOn(t, masters, nil)
}

// busy is how long a round or a dial may take in a test, and how long a master may be
// silent: a machine that is busy is no failure.
const busy = 10 * time.Second

// openWith returns a client for which all masters are up.
func openWith(t testing.TB, masters *redlocktest.Masters, cfg redlock.Config) *redlock.Client {
	t.Helper()
	cfg.Masters = masters.Addrs()
	cfg.RoundTimeout, cfg.DialTimeout = cmp.Or(cfg.RoundTimeout, busy), cmp.Or(cfg.DialTimeout, busy)
	cfg.StallTime = cmp.Or(cfg.StallTime, busy)
	c, err := redlock.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	allUp(t, c)
	return c
}

// openUp is openConfig of masters that all come up.
func openUp(t testing.TB, cfg redlock.Config) *redlock.Client {
	t.Helper()
	c := openConfig(t, cfg)
	allUp(t, c)
	return c
}

// allUp waits until all masters of some clients are up.
func allUp(t testing.TB, clients ...*redlock.Client) {
	t.Helper()
	for _, c := range clients {
		for i := range c.Stats().Masters {
			reaches(t, c, i, "up")
		}
	}
}

// settled waits until the masters have answered all that a client has asked. TryLock, Unlock
// and Extend return when a majority has; to the others whoever asks next, on a connection of
// its own, may come before.
func settled(t testing.TB, c *redlock.Client) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, m := range c.Stats().Masters {
			if behind.OfMaster(&m).Owed > 0 {
				return false
			}
		}
		return true
	}, time.Minute, 5*time.Millisecond)
}

// lockInBackground waits for a lock that another holds, and returns a channel that says when it has it.
func lockInBackground(t *testing.T, c *redlock.Client, key string) (*redlock.Mutex, <-chan error) {
	t.Helper()
	m := c.NewMutex(key, 30*time.Second)
	done := make(chan error, 1)
	waiting := c.Stats().Waiting
	go func() { done <- m.Lock(context.Background()) }()
	require.Eventually(t, func() bool { return c.Stats().Waiting > waiting }, 30*time.Second, 5*time.Millisecond)
	return m, done
}

// lockKeys is a script that counts the keys of a master, but for what it says of itself.
const lockKeys = "return redis.call('DBSIZE') - redis.call('EXISTS', '{}:since')"

// deleteLocks has a master lack all locks' keys, and no more. It may vote.
func deleteLocks(t testing.TB, masters *redlocktest.Masters, i int) {
	t.Helper()
	redlock.Says(t, masters, i, "EVAL", "for _, key in ipairs(redis.call('KEYS', '*')) do if key ~= '{}:since' then redis.call('DEL', key) end end", "0")
}

// openConfig returns a client that has come to each master, or has failed to once.
func openConfig(t testing.TB, cfg redlock.Config) *redlock.Client {
	t.Helper()
	cfg.RoundTimeout, cfg.DialTimeout = cmp.Or(cfg.RoundTimeout, busy), cmp.Or(cfg.DialTimeout, busy)
	c, err := redlock.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(c.Stats().Masters, func(m redlock.MasterStats) bool { return m.Phase == "dialing" })
	}, time.Minute, 5*time.Millisecond)
	return c
}

// A diary notes the phases that the masters of its client have been in. Some last for a moment, and nobody looks then.
type diary struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (d *diary) observer() []redlock.Observer {
	d.seen = map[string]bool{}
	return onEvent(redlock.EventMaster, func(e *redlock.Event) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.seen[e.Master.Addr+" "+e.Master.Phase] = true
	})
}

// awaits returns when the master has been in that phase.
func (d *diary) awaits(t testing.TB, addr, phase string) {
	t.Helper()
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.seen[addr+" "+phase]
	}, time.Minute, 5*time.Millisecond, "%s of %s", phase, addr)
}

// steals takes a lock that another keeps alive: that one may set its key again on a master that has
// forgotten it, until too many have.
func steals(t testing.TB, masters *redlocktest.Masters, m *redlock.Mutex) {
	t.Helper()
	require.Eventually(t, func() bool {
		for i := range masters.N() {
			deleteLocks(t, masters, i)
		}
		err := m.TryLock(t.Context())
		if !errors.Is(err, redlock.ErrHeld) {
			require.NoError(t, err)
		}
		return err == nil
	}, time.Minute, time.Millisecond)
}

// declared is what is said of masters that have been born long ago, and keep their memory in a restart: their witnesses
// are set back.
func declared(t *testing.T, masters *redlocktest.Masters, cfg redlock.Config) redlock.Config {
	t.Helper()
	cfg.Durable, cfg.RestartGuard = true, 24*time.Hour
	text := redlock.Says(t, masters, 0, "GET", "{}:since")
	if text != nil { // they are said to be already
		return cfg
	}
	first := openUp(t, redlock.Config{Masters: masters.Addrs()})
	used(t, first, time.Second)
	for i := range masters.N() {
		require.Eventually(t, func() bool {
			words := strings.Fields(fmt.Sprint(redlock.Says(t, masters, i, "GET", "{}:since")))
			if len(words) != 11 || !strings.Contains(words[10], "used") {
				return false
			}
			for _, at := range []int{4, 5, 8, 9} { // the master's clock and the client's
				moment, err := strconv.ParseInt(words[at], 10, 64)
				require.NoError(t, err)
				words[at] = fmt.Sprint(moment - (48 * time.Hour).Microseconds())
			}
			redlock.Says(t, masters, i, "SET", "{}:since", strings.Join(words, " "))
			return true
		}, time.Minute, 5*time.Millisecond)
	}
	require.NoError(t, first.Close())
	return cfg
}

func phase(c *redlock.Client, i int) string { return c.Stats().Masters[i].Phase }

func reaches(t testing.TB, c *redlock.Client, i int, want string) {
	t.Helper()
	require.Eventually(t, func() bool { return phase(c, i) == want }, time.Minute, 5*time.Millisecond, "%s", want)
}

// lockRights are those that a user of locks needs; see the package doc of conn.
var lockRights = strings.Join(rights.Rules("", rights.Lock, rights.Restarts), " ")

// startACL starts masters on which the user "locker", with the password "password", has the
// given rights.
func startACL(t *testing.T, n int, rights string) *redlocktest.Masters {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users.acl")
	text := "user default on nopass ~* +@all\nuser locker on >password resetkeys ~lock:* ~{}:since -@all " + rights + "\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return redlocktest.Start(t, n, redlocktest.WithArgs("--aclfile", file))
}

func acl(masters *redlocktest.Masters) redlock.Config {
	return redlock.Config{Masters: masters.Addrs(), Username: "locker", Password: redlock.NewSecret("password"), RoundTimeout: busy}
}

// used has a client use a TTL. On a busy machine that may be over before the masters have answered, or before the
// release is sent.
func used(t *testing.T, c *redlock.Client, ttl time.Duration) {
	t.Helper()
	m := c.NewMutex("lock:used", ttl)
	require.Eventually(t, func() bool {
		err := m.TryLock(t.Context())
		if !errors.Is(err, redlock.ErrExpired) {
			require.NoError(t, err)
		}
		return err == nil
	}, time.Minute, time.Millisecond)
	if err := m.Unlock(t.Context()); !errors.Is(err, redlock.ErrNotHeld) {
		require.NoError(t, err)
	}
}

// statsBehind returns the rest of the client's Stats.
func statsBehind(c *redlock.Client) *behind.Stats {
	s := c.Stats()
	return behind.OfStats(&s)
}
