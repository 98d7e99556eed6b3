package redlock_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
	wire "github.com/tidwall/resp"
)

// A scriptedSentinel says that the master of the group g is at addr, and publishes what
// it is told to.
type scriptedSentinel struct {
	at string

	mu   sync.Mutex
	addr string
	subs []net.Conn
}

func newSentinel(t *testing.T, addr string) *scriptedSentinel {
	f := &scriptedSentinel{addr: addr}
	f.at = conntest.Listen(t, f.serve)
	return f
}

func bulks(all ...string) string {
	out := fmt.Sprintf("*%d\r\n", len(all))
	for _, s := range all {
		out += fmt.Sprintf("$%d\r\n%s\r\n", len(s), s)
	}
	return out
}

func (f *scriptedSentinel) serve(c net.Conn) {
	commands := wire.NewReader(c)
	for {
		v, _, err := commands.ReadValue()
		if err != nil {
			return
		}
		f.mu.Lock()
		switch v.Array()[0].String() {
		case "AUTH":
			fmt.Fprint(c, "+OK\r\n")
		case "SENTINEL":
			h, p, _ := net.SplitHostPort(f.addr)
			fmt.Fprint(c, bulks(h, p))
		case "SUBSCRIBE":
			f.subs = append(f.subs, c)
			fmt.Fprint(c, "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")
		}
		f.mu.Unlock()
	}
}

// says changes what it thinks, and publishes it if it is to.
func (f *scriptedSentinel) says(addr string, publish bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.addr
	f.addr = addr
	for _, c := range f.subs {
		if publish {
			fmt.Fprint(c, bulks("message", "+switch-master", "g "+strings.ReplaceAll(was+" "+addr, ":", " ")))
		}
	}
}

// cut ends the connections of those who listen.
func (f *scriptedSentinel) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.subs {
		c.Close()
	}
	f.subs = nil
}

func (f *scriptedSentinel) isFollowed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subs) > 0
}

const unreachable = "127.0.0.1:1"

// grouped opens a client of three masters, of which the first is a group's.
func grouped(t *testing.T, masters *redlocktest.Masters, sentinels []*scriptedSentinel, cfg redlock.Config) *redlock.Client {
	t.Helper()
	var names []string
	for _, s := range sentinels {
		names = append(names, s.at)
	}
	cfg.Masters = []string{"sentinel://" + strings.Join(names, ",") + "/g", masters.Addr(1), masters.Addr(2)}
	c := openUp(t, cfg)
	for _, s := range sentinels {
		require.Eventually(t, s.isFollowed, time.Minute, 5*time.Millisecond)
	}
	return c
}

// The group has switched to a master that we cannot reach, as two of three sentinels say,
// or all. The old one still says that it is a master: it must not vote. What one sentinel
// says alone moves nothing.
func TestReplacedMasterDoesNotVoteThoughItIsTheOnlyOneInReach(t *testing.T) {
	t.Parallel()
	for switched := 1; switched <= 3; switched++ {
		masters := redlocktest.Start(t, 3)
		old := masters.Addr(0)
		sentinels := []*scriptedSentinel{newSentinel(t, old), newSentinel(t, old), newSentinel(t, old)}
		checked := make(chan string, 100)
		c := grouped(t, masters, sentinels, redlock.Config{RoundTimeout: 5 * time.Second, Observers: onEvent(redlock.EventRound, func(r *redlock.Event) {
			if r.Op == "recheck" {
				checked <- r.Key
			}
		})})
		for _, key := range []string{"k", "j"} {
			redlock.Says(t, masters, 2, "SET", key, "foreign")
		}
		m := c.NewMutex("k", long)
		require.NoError(t, m.TryLock(t.Context()))
		for _, s := range sentinels[:switched] {
			s.says(unreachable, true)
		}
		if switched == 1 { // until the liar is lost, nobody has been heard to take it at its word
			sentinels[0].cut()
			require.Eventually(t, sentinels[0].isFollowed, time.Minute, 5*time.Millisecond)
			require.Positive(t, m.Remaining())
			redlock.Says(t, masters, 2, "DEL", "j")
			require.NoError(t, c.NewMutex("j", long).TryLock(t.Context()))
			require.Empty(t, checked)
			require.Equal(t, "up", phase(c, 0))
			continue
		}
		require.Equal(t, "k", conntest.Soon(t, "it is checked", checked), "at once, though there is no connection to the new master")
		require.Eventually(t, func() bool { return m.Remaining() == 0 }, time.Minute, 5*time.Millisecond)
		// For a while, as nothing says that it will never be taken.
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			require.Error(t, c.NewMutex("j", long).TryLock(t.Context()), "with the vote of a master that was replaced")
		}
	}
}

// There is no connection while the group switches to another master and back: what is
// then connected is the same server as before, and has forgotten what it held.
func TestMasterThatWasReplacedInBetweenIsInQuarantine(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	old := masters.Addr(0)
	s := newSentinel(t, old)
	c := grouped(t, masters, []*scriptedSentinel{s}, redlock.Config{})
	require.NoError(t, c.NewMutex("used", long).TryLock(t.Context()))
	s.says(unreachable, false)
	redlock.Says(t, masters, 0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	reaches(t, c, 0, "down")
	s.says(old, false)
	s.says(unreachable, true)
	s.says(old, true)
	reaches(t, c, 0, "quarantined")
}
