package redlock

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

// hashed is a second kind, which proves that a kind is all there is to add: a hash with a field
// for the token, where plain has a string.
type hashed struct{}

var (
	hashedAcquire = hashedScript{script.New(`if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`)}

	hashedExtend = hashedScript{script.New(`local v = redis.pcall('HGET', KEYS[1], 'token')
if v == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return -2
end
return 0`)}

	hashedRelease = script.New(`if redis.pcall('HGET', KEYS[1], 'token') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`)
)

func (hashed) Acquire(r *kind.Request, g kind.Grant) { hashedAcquire.ask(r, g) }

func (hashed) Extend(r *kind.Request, g kind.Grant) { hashedExtend.ask(r, g) }

func (hashed) Repair(r *kind.Request, g kind.Grant) { hashedAcquire.ask(r, g) }

type hashedScript struct{ script.Script }

func (s hashedScript) ask(r *kind.Request, g kind.Grant) {
	r.Judge = kind.JudgeInt
	r.Call(s.Script, 2, func(dst []byte) []byte { return kind.AppendTokenTTL(dst, g) }, g.Key)
}

func (hashed) Release(r *kind.Request, g kind.Grant) {
	r.Judge = kind.JudgeInt
	r.Command = resp.AppendBulk(hashedRelease.AppendHash(r.Command, 1, g.Key), g.Token)
	r.Fallback = resp.AppendBulk(hashedRelease.AppendText(r.Fallback, 1, g.Key), g.Token)
}

func (hashed) Look(r *kind.Request, key string) { kind.Plain{}.Look(r, key) }

func withHash(o *options) { o.kind = hashed{} }

// All that is written once for all kinds serves a second one.
func TestASecondKind(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	other := opened(t, masters.Addrs(), nil) // another process
	types := func(t *testing.T, key, want string) {
		t.Helper()
		for i := range 3 { // the last may come after the decision
			require.Eventually(t, func() bool {
				v, err := masters.Do(i, "TYPE", key)
				return err == nil && v == want
			}, hanging, 5*time.Millisecond, "master %d", i)
		}
	}
	const long = 30 * time.Second
	fresh := func(t *testing.T, opts ...Option) *Mutex {
		return c.NewMutex(t.Name(), long, append(opts, withHash)...)
	}

	t.Run("it is taken and released", func(t *testing.T) {
		m := fresh(t)
		require.NoError(t, m.TryLock(t.Context()))
		types(t, t.Name(), "hash")
		require.NoError(t, m.Unlock(t.Context()))
		types(t, t.Name(), "none")
	})
	t.Run("it excludes its like, and plain locks", func(t *testing.T) {
		m := fresh(t)
		require.NoError(t, m.TryLock(t.Context()))
		require.ErrorIs(t, fresh(t).TryLock(t.Context()), ErrHeld)
		plain := other.NewMutex(t.Name(), long)
		require.ErrorIs(t, plain.TryLock(t.Context()), ErrHeld)
		require.NoError(t, m.Unlock(t.Context()))
		types(t, t.Name(), "none") // or a late release makes a master refuse
		require.NoError(t, plain.TryLock(t.Context()))
		require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld)
		types(t, t.Name(), "string")
	})
	t.Run("an attempt that fails is undone", func(t *testing.T) {
		for i := range 2 {
			command(t, masters, i, "SET", t.Name(), "foreign")
		}
		require.ErrorIs(t, fresh(t).TryLock(t.Context()), ErrHeld)
		require.Eventually(t, func() bool {
			v, err := masters.Do(2, "EXISTS", t.Name())
			return err == nil && v == int64(0)
		}, hanging, 5*time.Millisecond)
	})
	t.Run("who waits is told of its release", func(t *testing.T) {
		m := fresh(t)
		require.NoError(t, m.TryLock(t.Context()))
		told := other.Stats().WokenFree
		done := make(chan error, 1)
		next := other.NewMutex(t.Name(), long, withHash)
		go func() { done <- next.Lock(t.Context()) }()
		require.Eventually(t, func() bool { return other.Stats().Waiting == 1 }, hanging, 5*time.Millisecond)
		require.NoError(t, m.Unlock(t.Context()))
		comes(t, done)
		require.GreaterOrEqual(t, other.Stats().WokenFree, told)
		require.NoError(t, next.Unlock(t.Context()))
	})
	t.Run("Extend restores it", func(t *testing.T) {
		m := fresh(t)
		require.NoError(t, m.TryLock(t.Context()))
		types(t, t.Name(), "hash")
		command(t, masters, 1, "DEL", t.Name())
		require.Eventually(t, func() bool { // it may take two rounds, as a master may answer late
			require.NoError(t, m.Extend(t.Context()))
			v, err := masters.Do(1, "TYPE", t.Name())
			return err == nil && v == "hash"
		}, hanging, 5*time.Millisecond)
		require.NoError(t, m.Unlock(t.Context()))
	})
	t.Run("a loss is found", func(t *testing.T) {
		for name, ask := range map[string]func(m *Mutex) error{
			"Extend": func(m *Mutex) error { return m.Extend(t.Context()) },
			"recheck": func(m *Mutex) error {
				c.rechecker.recheck([]*hold{&m.hold})
				return ErrNotHeld
			},
		} {
			m := fresh(t)
			require.NoError(t, m.TryLock(t.Context()), name)
			types(t, t.Name(), "hash") // or a late acquire comes after the DEL
			for i := range 2 {
				command(t, masters, i, "DEL", t.Name())
			}
			require.ErrorIs(t, ask(m), ErrNotHeld, name)
			require.Zero(t, m.Remaining(), name)
			require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld, name)
		}
	})
	t.Run("KeepAlive renews it", func(t *testing.T) {
		m := c.NewMutex(t.Name(), 900*time.Millisecond, withHash, WithRoundTimeout(long))
		require.NoError(t, m.TryLock(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		until := m.Until()
		require.Eventually(t, func() bool { return m.Until().After(until.Add(time.Millisecond)) }, hanging, 5*time.Millisecond)
		require.NoError(t, held.Err())
		require.NoError(t, m.Unlock(context.Background()))
	})
	t.Run("masters that have forgotten its scripts are sent them", func(t *testing.T) {
		for range 3 {
			m := fresh(t)
			for _, do := range []func(context.Context) error{m.TryLock, m.Extend, m.Unlock} {
				for i := range 3 {
					command(t, masters, i, "SCRIPT", "FLUSH")
				}
				require.NoError(t, do(t.Context()))
			}
		}
		types(t, t.Name(), "none")
	})
	t.Run("waiters of many processes have it one after the other", func(t *testing.T) {
		const each = 20
		var n atomic.Int64
		done := make(chan error, 4)
		for i := range 4 {
			go func() {
				m := []*Client{c, other}[i%2].NewMutex(t.Name(), long, withHash)
				for range each {
					if err := m.Lock(t.Context()); err != nil {
						done <- err
						return
					}
					v, _ := masters.Do(0, "INCR", "n")
					if n.Add(1) != v { // another has been between the two
						done <- errors.New("two had the lock")
						return
					}
					m.Unlock(t.Context())
				}
				done <- nil
			}()
		}
		for range 4 {
			comes(t, done)
		}
		require.EqualValues(t, 4*each, n.Load())
	})
}

// A user without a right gets an error that says so, whatever the right and the kind of lock: never that
// another has the lock, or that it was lost.
func TestDeniedRightIsNoAnswer(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	grants := func(rights ...string) {
		t.Helper()
		for i := range 3 {
			args := append([]string{"ACL", "SETUSER", "u", "on", ">pw", "~*", "+@all"}, rights...)
			_, err := masters.Do(i, args...)
			require.NoError(t, err)
		}
	}
	grants()
	c := openedWith(t, Config{Masters: masters.Addrs(), Username: "u", Password: NewSecret("pw")})
	var commands []string
	for _, text := range script.Texts {
		for _, m := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(text, -1) {
			commands = append(commands, strings.ToLower(m[1]))
		}
	}
	slices.Sort(commands)
	commands = slices.Compact(commands)
	require.Subset(t, commands, []string{"get", "set", "pexpire", "zadd", "time"})

	told := func(t *testing.T, op string, err error) {
		t.Helper()
		if err == nil { // it needs no such right
			return
		}
		require.NotErrorIs(t, err, ErrHeld, op)
		require.NotErrorIs(t, err, ErrNotHeld, op)
		var reply *mux.ReplyError
		require.ErrorAs(t, err, &reply, op)
		require.Equal(t, "NOPERM", reply.Code, "%s: %s", op, err)
	}
	with := func(o *options) { o.more = []string{"lock:b"} }
	for name, opts := range map[string][]Option{
		"plain":          nil,
		"left":           {WithMinHold(time.Hour)},
		"fenced":         {WithFence()},
		"several":        {with},
		"several left":   {with, WithMinHold(time.Hour)},
		"several fenced": {with, WithFence()},
		"reader":         {WithShared()},
		"fenced reader":  {WithShared(), WithFence()},
		"permit":         {WithPermits(2)},
	} {
		for _, command := range commands {
			t.Run(name+" without "+command, func(t *testing.T) {
				for i := range 3 { // not what the masters are believed by
					_, err := masters.Do(i, "EVAL", "for _, key in ipairs(redis.call('KEYS', '*lock:*')) do redis.call('DEL', key) end", "0")
					require.NoError(t, err)
				}
				grants()
				m := c.NewMutex("lock:a", time.Minute, opts...)
				require.NoError(t, m.TryLock(t.Context()))
				given := c.NewMutex("lock:a", time.Minute, append(opts, WithToken(m.Token()))...)
				grants("-" + command)
				told(t, "Extend", m.Extend(t.Context()))
				told(t, "Extend of a lock that was handed over", given.Extend(t.Context()))
				holders, err := c.Holders(t.Context(), "lock:a", opts...)
				told(t, "Holders", err)
				for _, h := range holders {
					require.True(t, name == "reader" || name == "fenced reader" || h.Token != UnknownToken)
				}
				told(t, "Unlock", m.Unlock(t.Context()))
				told(t, "TryLock", c.NewMutex("lock:free", time.Minute, append(opts, func(o *options) {
					if o.more != nil {
						o.more = []string{"lock:free too"}
					}
				})...).TryLock(t.Context()))
			})
		}
	}
}
