package redlock_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

// What docs/coming-from.md and docs/coming-from-others.md say of other clients that share a key with us. Each of them is played
// here by the commands that it sends.

// theOnly starts one master, as older clients know no more than one. It returns a client of ours, and
// what sends a command as another client.
func theOnly(t *testing.T) (*redlock.Client, func(args ...string) any) {
	t.Helper()
	masters := redlocktest.Start(t, 1)
	return openOn(t, masters, nil), redlock.Asker(t, masters)
}

// onlyHolder is who holds "k" on the only master.
func onlyHolder(t *testing.T, c *redlock.Client) redlock.Said {
	t.Helper()
	holders, err := redlock.OnEach(c, t.Context(), "k")
	require.NoError(t, err)
	require.Len(t, holders, 1)
	return holders[0]
}

// goneFrom waits until the key has expired.
func goneFrom(t *testing.T, say func(args ...string) any) {
	t.Helper()
	require.Eventually(t, func() bool { return say("EXISTS", "k") == int64(0) }, time.Minute, 5*time.Millisecond)
}

// spares says that our Unlock reports the loss, and leaves the other's key as it is.
func spares(t *testing.T, m *redlock.Mutex, say func(args ...string) any, theirs string) {
	t.Helper()
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	require.Equal(t, theirs, say("GET", "k"))
}

// SETNX, and EXPIRE as a second command; DEL gives it back.
func TestComingFromTwoCommands(t *testing.T) {
	t.Parallel()

	t.Run("one that dies between the two stops everybody until somebody deletes the key", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		require.Equal(t, int64(1), say("SETNX", "k", "theirs"))
		require.ErrorIs(t, c.NewMutex("k", long).TryLock(t.Context()), redlock.ErrHeld)
		require.Negative(t, onlyHolder(t, c).TTL)

		m, locked := lockInBackground(t, c, "k")
		require.Equal(t, int64(1), say("DEL", "k"))
		require.NoError(t, conntest.Soon(t, "our waiter is told", locked))
		require.Equal(t, int64(0), say("SETNX", "k", "theirs"))
		require.NoError(t, m.Unlock(t.Context()))
	})

	t.Run("theirs with a TTL stops us until it has passed", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		require.Equal(t, int64(1), say("SETNX", "k", "theirs"))
		m, locked := lockInBackground(t, c, "k")
		require.Equal(t, int64(1), say("PEXPIRE", "k", "50"))
		require.NoError(t, conntest.Soon(t, "their key expires", locked))
		require.NoError(t, m.Unlock(t.Context()))
	})

	t.Run("an EXPIRE of the loser shortens ours, and two hold it", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		m := c.NewMutex("k", long)
		require.NoError(t, m.TryLock(t.Context()))
		require.Equal(t, int64(0), say("SETNX", "k", "theirs"))
		require.Equal(t, int64(1), say("PEXPIRE", "k", "1"))
		goneFrom(t, say)
		require.Equal(t, int64(1), say("SETNX", "k", "theirs"))
		require.Positive(t, m.Remaining(), "we cannot know yet")
		spares(t, m, say, "theirs")
	})

	t.Run("the next renewal sets our TTL right again", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		m := c.NewMutex("k", 3*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		require.Equal(t, int64(1), say("EXPIRE", "k", "1000"))
		require.Eventually(t, func() bool { return say("PTTL", "k").(int64) <= 3000 }, time.Minute, 5*time.Millisecond)
		require.NoError(t, held.Err())
		require.NoError(t, m.Unlock(t.Context()))
	})

	t.Run("a DEL that does not look takes ours away, and we say that it is lost", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		m := c.NewMutex("k", 3*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		require.Equal(t, int64(1), say("DEL", "k"))
		require.Equal(t, int64(1), say("SETNX", "k", "theirs"))
		conntest.Soon(t, "the loss is noticed", held.Done())
		require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
		spares(t, m, say, "theirs")
	})
}

// stamped tries to take "k" by SETNX, a time stamp and GETSET. now is the client's clock, and parse is how
// it reads a value that is no number.
func stamped(say func(args ...string) any, now, timeout int, parse func(string) (int, error)) (taken bool, err error) {
	mine := strconv.Itoa(now + timeout)
	if say("SETNX", "k", mine) == int64(1) {
		return true, nil
	}
	old, _ := say("GET", "k").(string)
	end, err := parse(old)
	if err != nil || end > now {
		return false, err
	}
	return say("GETSET", "k", mine) == old, nil
}

// asInC reads the number at the beginning, as atoi and many languages do: 0 if there is none.
func asInC(s string) (n int, _ error) {
	for _, c := range s {
		if c < '0' || c > '9' || n > 1e9 {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n, nil
}

// SETNX with a time stamp; whoever finds it past takes the key over by GETSET.
func TestComingFromTimestamps(t *testing.T) {
	t.Parallel()
	const now, timeout = 2_000_000_000, 60

	t.Run("one whose clock is ahead takes it from the holder", func(t *testing.T) {
		t.Parallel()
		_, say := theOnly(t)
		for _, clock := range []int{now, now + timeout + 1} { // in the same moment
			taken, err := stamped(say, clock, timeout, strconv.Atoi)
			require.NoError(t, err)
			require.True(t, taken)
		}
	})

	t.Run("one that comes too late moves the end of the winner", func(t *testing.T) {
		t.Parallel()
		_, say := theOnly(t)
		past := strconv.Itoa(now - 1)
		say("SETNX", "k", past)
		require.Equal(t, past, say("GETSET", "k", strconv.Itoa(now+timeout)), "the winner")
		require.NotEqual(t, past, say("GETSET", "k", strconv.Itoa(now+2*timeout)), "who has lost")
		require.Equal(t, strconv.Itoa(now+2*timeout), say("GET", "k"))
	})

	t.Run("theirs stops us for ever, also when its time is over", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		say("SETNX", "k", "1")
		require.ErrorIs(t, c.NewMutex("k", long).TryLock(t.Context()), redlock.ErrHeld)
		require.Negative(t, onlyHolder(t, c).TTL)
		require.Equal(t, "1", say("GET", "k"))
		m, locked := lockInBackground(t, c, "k")
		require.Equal(t, int64(1), say("DEL", "k"))
		require.NoError(t, conntest.Soon(t, "our waiter is told", locked))
		require.NoError(t, m.Unlock(t.Context()))
	})

	t.Run("ours has no time stamp, so they overwrite it at once, and it never expires", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		m := c.NewMutex("k", long)
		require.NoError(t, m.TryLock(t.Context()))
		taken, err := stamped(say, now, timeout, asInC)
		require.NoError(t, err)
		require.True(t, taken, "two hold it")
		require.Equal(t, int64(-1), say("PTTL", "k"))
		require.Positive(t, m.Remaining(), "we cannot know yet")
		require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNotHeld)
		spares(t, m, say, strconv.Itoa(now+timeout))
	})

	t.Run("while it is kept alive, we say that it is lost", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		err := c.Do(t.Context(), "k", 3*time.Second, func(ctx context.Context) error {
			taken, err := stamped(say, now, timeout, asInC)
			require.NoError(t, err)
			require.True(t, taken)
			conntest.Soon(t, "the loss is noticed", ctx.Done())
			return nil
		})
		require.ErrorIs(t, err, redlock.ErrLost)
		require.Equal(t, strconv.Itoa(now+timeout), say("GET", "k"))
	})

	t.Run("a client that takes no value but a number leaves ours alone", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		m := c.NewMutex("k", long)
		require.NoError(t, m.TryLock(t.Context()))
		taken, err := stamped(say, now, timeout, strconv.Atoi)
		require.Error(t, err)
		require.False(t, taken)
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// A stackExchange is one client of StackExchange.Redis. Before Redis 8.4 its LockExtend and LockRelease
// are transactions, which need a connection of their own.
type stackExchange struct {
	*testing.T
	conn net.Conn
	in   *resp.Reader
}

func newStackExchange(t *testing.T, c *redlock.Client) stackExchange {
	t.Helper()
	conn, err := net.Dial("tcp", c.Stats().Masters[0].Addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return stackExchange{t, conn, resp.NewReader(4096, resp.Limits{})}
}

// say returns the reply until the next one.
func (s stackExchange) say(args ...string) resp.Value {
	s.Helper()
	_, err := s.conn.Write(resp.AppendCommand(nil, args...))
	require.NoError(s, err)
	for {
		v, err := s.in.Next()
		if !errors.Is(err, resp.ErrNeedMore) {
			require.NoError(s, err)
			return v
		}
		n, err := s.conn.Read(s.in.Free(1))
		require.NoError(s, err)
		s.in.Advance(n)
	}
}

func (s stackExchange) lockTake(value string, ms int) bool {
	s.Helper()
	return s.say("SET", "k", value, "NX", "PX", strconv.Itoa(ms)).Is("OK")
}

func (s stackExchange) lockExtend(value string, ms int) bool {
	s.Helper()
	return s.ifEqual(value, "PEXPIRE", "k", strconv.Itoa(ms))
}

func (s stackExchange) lockRelease(value string) bool {
	s.Helper()
	return s.ifEqual(value, "DEL", "k")
}

func (s stackExchange) lockQuery() string {
	s.Helper()
	return string(s.say("GET", "k").Bytes())
}

// ifEqual runs a command in a transaction, on the condition that the key has a value.
func (s stackExchange) ifEqual(value string, args ...string) bool {
	s.Helper()
	require.True(s, s.say("WATCH", "k").Is("OK"))
	if s.lockQuery() != value {
		require.True(s, s.say("UNWATCH").Is("OK"))
		return false
	}
	require.True(s, s.say("MULTI").Is("OK"))
	require.True(s, s.say(args...).Is("QUEUED"))
	return !s.say("EXEC").IsNull()
}

func TestComingFromStackExchange(t *testing.T) {
	t.Parallel()

	t.Run("both exclude each other, and leave the other's key alone", func(t *testing.T) {
		t.Parallel()
		c, _ := theOnly(t)
		theirs, ours := newStackExchange(t, c), c.NewMutex("k", long)
		require.True(t, theirs.lockTake("theirs", 30_000))
		require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld)
		require.True(t, theirs.lockExtend("theirs", 60_000))
		require.Equal(t, "theirs", theirs.lockQuery())
		require.Equal(t, "theirs", onlyHolder(t, c).Token.Reveal(), "what LockQuery is here")
		require.Empty(t, onlyHolder(t, c).Owner(), "an owner is named by our tokens alone")

		waiter, locked := lockInBackground(t, c, "k")
		require.True(t, theirs.lockRelease("theirs"))
		require.NoError(t, conntest.Soon(t, "our waiter is told", locked))
		require.False(t, theirs.lockTake("theirs", 30_000))
		require.False(t, theirs.lockExtend("theirs", 1))
		require.False(t, theirs.lockRelease("theirs"))
		require.Equal(t, waiter.Token(), theirs.lockQuery())
		require.NoError(t, waiter.Unlock(t.Context()))
		require.True(t, theirs.lockTake("theirs", 30_000))
	})

	t.Run("theirs that ends while it works is ours, and its late calls change nothing", func(t *testing.T) {
		t.Parallel()
		c, _ := theOnly(t)
		theirs := newStackExchange(t, c)
		require.True(t, theirs.lockTake("theirs", 50))
		m := c.NewMutex("k", long)
		require.NoError(t, m.Lock(t.Context()))
		require.False(t, theirs.lockExtend("theirs", 30_000))
		require.False(t, theirs.lockRelease("theirs"))
		require.NoError(t, m.Unlock(t.Context()))
	})

	t.Run("a lock that it has taken goes on under its value here", func(t *testing.T) {
		t.Parallel()
		c, _ := theOnly(t)
		theirs := newStackExchange(t, c)
		require.True(t, theirs.lockTake("theirs", 30_000))
		m := c.NewMutex("k", long, redlock.WithToken("theirs"))
		require.NoError(t, m.Extend(t.Context()))
		require.Positive(t, m.Remaining())
		require.NoError(t, m.Unlock(t.Context()))
		require.Empty(t, theirs.lockQuery())
	})

	t.Run("whoever asks for ours can release it", func(t *testing.T) {
		t.Parallel()
		c, _ := theOnly(t)
		theirs, m := newStackExchange(t, c), c.NewMutex("k", long)
		require.NoError(t, m.TryLock(t.Context()))
		require.True(t, theirs.lockRelease(theirs.lockQuery()))
		require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
	})
}

// Clients that choose the value of a lock themselves: a host's name, a user, a constant.
func TestComingFromChosenValues(t *testing.T) {
	t.Parallel()

	t.Run("who is late releases the lock of the next that has chosen the same", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		first, second := newStackExchange(t, c), newStackExchange(t, c)
		require.True(t, first.lockTake("host-1", 1))
		goneFrom(t, say)
		require.True(t, second.lockTake("host-1", 30_000))
		require.True(t, first.lockExtend("host-1", 30_000), "it believes that it has held it all the time")
		require.True(t, first.lockRelease("host-1"))
		require.NoError(t, c.NewMutex("k", long).TryLock(t.Context()), "while the second one works")
	})

	t.Run("ours is a new one each time, also after a lock that was taken over", func(t *testing.T) {
		t.Parallel()
		c, say := theOnly(t)
		require.Equal(t, "OK", say("SET", "k", "host-1", "NX", "PX", "30000"))
		m := c.NewMutex("k", long, redlock.WithToken("host-1"))
		require.NoError(t, m.Unlock(t.Context()))
		seen := map[string]bool{"host-1": true}
		for range 3 {
			require.NoError(t, m.TryLock(t.Context()))
			require.False(t, seen[m.Token()], "a token for each attempt")
			seen[m.Token()] = true
			require.NoError(t, m.Unlock(t.Context()))
		}
	})
}

// Redisson keeps a lock as a hash, with a field for each thread that has it.
func TestComingFromRedisson(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	all := func(args ...string) {
		t.Helper()
		for i := range masters.N() {
			redlock.Says(t, masters, i, args...)
		}
	}
	all("HINCRBY", "k", "client:1", "1")
	all("PEXPIRE", "k", "30000")
	require.ErrorIs(t, c.NewMutex("k", long).TryLock(t.Context()), redlock.ErrHeld)
	holders, err := redlock.OnEach(c, t.Context(), "k")
	require.NoError(t, err)
	for _, h := range holders {
		require.Equal(t, census.Unknown, h.Token)
	}
	settled(t, c)
	for i := range masters.N() {
		v := redlock.Says(t, masters, i, "HGET", "k", "client:1")
		require.Equal(t, "1", v, "our releases, which follow a refusal, leave it alone")
	}

	m, locked := lockInBackground(t, c, "k")
	all("DEL", "k")
	require.NoError(t, conntest.Soon(t, "our waiter is told", locked))
	settled(t, c)
	for i := range 2 { // it may have had the lock before the last DEL
		for _, args := range [][]string{{"HEXISTS", "k", "client:1"}, {"HINCRBY", "k", "client:1", "1"}} {
			_, err := masters.Do(i, args...)
			require.ErrorContains(t, err, "WRONGTYPE", "ours is an error to it")
		}
	}
	require.NoError(t, m.Unlock(t.Context()))
}

// A client that knows one of three masters has one vote, so nothing is between it and us.
func TestComingFromOneOfTheMastersExcludesNobody(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	redlock.Says(t, masters, 0, "SET", "k", "theirs", "NX", "PX", "30000")
	m := c.NewMutex("k", long)
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	require.Equal(t, "theirs", redlock.Says(t, masters, 0, "GET", "k"))
}

// From one server to three masters, or from a lock that cannot share a key with us, in three versions: the
// second takes both locks. Each excludes the one next to it.
func TestComingFromAnotherLockInThreeVersions(t *testing.T) {
	t.Parallel()
	type work = func(context.Context) error
	type version = func(work) error
	once := redlock.WithWait(0)
	for name, first := range map[string]func(old *redlock.Client, say func(args ...string) any) version{
		"one server": func(old *redlock.Client, _ func(args ...string) any) version {
			return func(fn work) error { return old.Do(t.Context(), "k", long, fn, once) }
		},
		"a pattern with SETNX": func(_ *redlock.Client, say func(args ...string) any) version {
			return func(fn work) error {
				if say("SETNX", "old", "theirs") == int64(0) {
					return redlock.ErrHeld
				}
				defer say("DEL", "old")
				return fn(t.Context())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			old, say := theOnly(t)
			now := openOn(t, masters, nil)
			first := first(old, say)
			third := func(fn work) error { return now.Do(t.Context(), "k", long, fn, once) }
			second := func(fn work) error { return first(func(context.Context) error { return third(fn) }) }
			nothing := func(context.Context) error { return nil }
			for _, pair := range [][2]version{{first, first}, {first, second}, {second, second}, {second, third}, {third, third}} {
				for _, p := range [][2]version{pair, {pair[1], pair[0]}} {
					require.NoError(t, p[0](func(context.Context) error {
						require.ErrorIs(t, p[1](nothing), redlock.ErrHeld)
						return nil
					}))
					settled(t, old)
					settled(t, now)
				}
			}
			require.NoError(t, first(func(context.Context) error { return third(nothing) }),
				"so these two must not run beside each other")
		})
	}
}

// node-redlock takes several resources in one script, with one value.
func TestComingFromNodeRedlock(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	// each runs a script on all masters, with the keys "k" and "l". It returns how many have said 2.
	each := func(script string, args ...string) (n int) {
		t.Helper()
		for i := range masters.N() {
			v := redlock.Says(t, masters, i, append([]string{"EVAL", script, "2", "k", "l"}, args...)...)
			if v == int64(2) {
				n++
			}
		}
		return n
	}
	acquire := func() int {
		return each("if redis.call('EXISTS', unpack(KEYS)) > 0 then return 0 end "+
			"for _, k in ipairs(KEYS) do redis.call('SET', k, ARGV[1], 'PX', ARGV[2]) end return #KEYS", "theirs", "30000")
	}
	release := func() int {
		return each("local n = 0 for _, k in ipairs(KEYS) do "+
			"if redis.call('GET', k) == ARGV[1] then n = n + redis.call('DEL', k) end end return n", "theirs")
	}
	for _, key := range []string{"k", "l"} {
		for _, ours := range []*redlock.Mutex{c.NewMutex(key, long), c.NewMutex(key, long, redlock.WithKeys("m"))} {
			require.Equal(t, 3, acquire())
			require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld)
			settled(t, c)
			require.Equal(t, 3, release(), "we have left it alone")
			require.NoError(t, ours.TryLock(t.Context()))
			settled(t, c)
			require.Zero(t, acquire())
			require.Zero(t, release())
			require.NoError(t, ours.Unlock(t.Context()))
			settled(t, c)
		}
	}
}

// node-redlock tries again under the same value, and releases nothing in between.
func TestComingFromNodeRedlockItsOwnKeysAreInItsWay(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	say := func(i int, args ...string) any { return redlock.Says(t, masters, i, args...) }
	acquire := func() (yes int) {
		for i := range masters.N() {
			if say(i, "EVAL", "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1",
				"1", "k", "theirs", "30000") == int64(1) {
				yes++
			}
		}
		return yes
	}
	say(1, "SET", "k", "another")
	say(2, "SET", "k", "another")
	require.Equal(t, 1, acquire())
	say(1, "DEL", "k")
	require.Equal(t, 1, acquire(), "it has two keys by now, and counts the first as a no")
	require.Zero(t, acquire())
	require.ErrorIs(t, openOn(t, masters, nil).NewMutex("k", long).TryLock(t.Context()), redlock.ErrHeld)
	say(0, "DEL", "k") // as it does when it gives up
	say(1, "DEL", "k")
	require.Equal(t, 2, acquire())
}

// What reads the key by GET or GETRANGE before it sets it fails while our readers hold the lock, and leaves them alone.
func TestComingFromScriptsThatReadTheKey(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 1)
	reader := c.NewMutex("k", long, redlock.WithShared())
	require.NoError(t, reader.TryLock(t.Context()))
	for name, script := range map[string]string{
		"go-zero": "if redis.call('GET', KEYS[1]) == ARGV[1] then return 1 end return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 500)",
		"bsm": "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 500) then return 1 end " +
			"if redis.call('GETRANGE', KEYS[1], 0, 5) == ARGV[1] then return redis.call('SET', KEYS[1], ARGV[1], 'PX', 500) end",
	} {
		_, err := masters.Do(0, "EVAL", script, "1", "k", "theirs")
		require.ErrorContains(t, err, "WRONGTYPE", name)
	}
	require.NoError(t, reader.Extend(t.Context()))
	require.NoError(t, reader.Unlock(t.Context()))
}

// Redis::DistLock extends by SET XX, whatever the key holds.
func TestComingFromDistLock(t *testing.T) {
	t.Parallel()
	c, say := theOnly(t)
	m := c.NewMutex("k", long)
	require.NoError(t, m.TryLock(t.Context()))
	require.Equal(t, "OK", say("SET", "k", "theirs", "XX", "PX", "30000"))
	require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNotHeld)
	spares(t, m, say, "theirs")
}

// Symfony keeps a sorted set of tokens, and the times at which they end. A writer is one more member.
func TestComingFromSymfony(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 1)
	save := func() bool {
		v := redlock.Says(t, masters, 0, "EVAL", `
if redis.call("TYPE", KEYS[1]).ok == "string" then return 0 end
local now = redis.call("TIME")
now = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now)
if redis.call("ZCOUNT", KEYS[1], "-inf", "+inf") > 0 then return 0 end
redis.call("ZADD", KEYS[1], now + 30000, ARGV[1])
redis.call("ZADD", KEYS[1], now + 30000, "__write__")
redis.call("PEXPIREAT", KEYS[1], redis.call("ZREVRANGE", KEYS[1], 0, 0, "WITHSCORES")[2])
return 1`, "1", "k", "theirs")
		return v == int64(1)
	}
	for _, ours := range []*redlock.Mutex{c.NewMutex("k", long), c.NewMutex("k", long, redlock.WithShared())} {
		require.NoError(t, ours.TryLock(t.Context()))
		require.False(t, save(), "ours keeps its writer out")
		require.NoError(t, ours.Unlock(t.Context()))
		require.True(t, save())
		require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld)
		settled(t, c)
		v := redlock.Says(t, masters, 0, "ZREM", "k", "theirs", "__write__")
		require.Equal(t, int64(2), v, "we have left it alone")
	}
}
