package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const reason = "deploy of version 2"

// A revocable is a lock that is revoked, and what must wait for it.
type revocable struct {
	holder, next, revoke []redlock.Option
}

var revocables = map[string]revocable{
	"plain":   {},
	"fenced":  {[]redlock.Option{redlock.WithFence()}, []redlock.Option{redlock.WithFence()}, nil},
	"several": {[]redlock.Option{redlock.WithKeys("lock:l")}, nil, nil},
	"several fenced": {[]redlock.Option{redlock.WithKeys("lock:l"), redlock.WithFence()},
		[]redlock.Option{redlock.WithKeys("lock:j"), redlock.WithFence()}, nil},
	"reader":        {[]redlock.Option{redlock.WithShared()}, nil, []redlock.Option{redlock.WithShared()}},
	"reader fenced": {[]redlock.Option{redlock.WithShared(), redlock.WithFence()}, []redlock.Option{redlock.WithFence()}, []redlock.Option{redlock.WithShared()}},
	"permit":        {[]redlock.Option{redlock.WithPermits(1)}, []redlock.Option{redlock.WithPermits(1)}, []redlock.Option{redlock.WithPermits(1)}},
}

// direct returns the addresses of masters behind their links.
func direct(t *testing.T, masters *redlocktest.Masters) (addrs []string) {
	t.Helper()
	for i := range masters.N() {
		port := redlock.Says(t, masters, i, "CONFIG", "GET", "port")
		addrs = append(addrs, net.JoinHostPort("127.0.0.1", port.([]any)[1].(string)))
	}
	return addrs
}

// From the revocation on, the holder's context has ended before anybody else has the lock: whoever is cut off, and
// whatever becomes of the masters.
func TestARevokedHolderIsOutBeforeTheNext(t *testing.T) {
	type scene struct {
		before, after func(t *testing.T, masters *redlocktest.Masters, m *redlock.Mutex)
		told          bool // the holder can learn of it, and lets go: the next one need not wait for the TTL
		few           bool // it is the same for all kinds
	}
	nothing := func(*testing.T, *redlocktest.Masters, *redlock.Mutex) {}
	cut := func(which ...int) func(*testing.T, *redlocktest.Masters, *redlock.Mutex) {
		return func(_ *testing.T, masters *redlocktest.Masters, _ *redlock.Mutex) {
			for _, i := range which {
				masters.Cut(i)
			}
		}
	}
	restart := func(which ...int) func(*testing.T, *redlocktest.Masters, *redlock.Mutex) {
		return func(_ *testing.T, masters *redlocktest.Masters, _ *redlock.Mutex) {
			for _, i := range which {
				masters.Kill(i)
				masters.Restart(i)
			}
		}
	}
	renew := func(t *testing.T, _ *redlocktest.Masters, m *redlock.Mutex) {
		require.NoError(t, m.Extend(t.Context()))
	}
	scenes := map[string]scene{
		"it is well":                                   {nothing, nothing, true, false},
		"it has just renewed":                          {renew, nothing, true, true},
		"it is cut off from a minority":                {cut(0), nothing, true, false},
		"it is cut off from a majority":                {cut(0, 1), nothing, false, true},
		"it is cut off":                                {cut(0, 1, 2), nothing, false, false},
		"it is cut off then":                           {nothing, cut(0, 1, 2), false, true},
		"a master forgets the revocation":              {nothing, restart(0), false, true},
		"a majority forgets the revocation":            {nothing, restart(0, 1), false, false},
		"a master forgets the lock before":             {restart(2), nothing, false, true},
		"it is cut off from a master, another forgets": {cut(0), restart(1), false, true},
	}
	for what, kind := range revocables {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for name, s := range scenes {
				if s.few && what != "plain" && what != "reader" {
					continue
				}
				t.Run(name, func(t *testing.T) {
					ttl, timeout := time.Minute, time.Second
					if !s.told {
						ttl, timeout = 2*time.Second, busy
					}
					masters := redlocktest.Start(t, 3, redlocktest.WithLinks())
					holder := openWith(t, masters, redlock.Config{RoundTimeout: timeout, Owner: "holder"})
					addrs := direct(t, masters)
					operator := openConfig(t, redlock.Config{Masters: addrs})
					others := openConfig(t, redlock.Config{Masters: addrs, RoundTimeout: busy})
					used(t, others, ttl) // so that a master that forgets has no vote for as long
					m := holder.NewMutex("lock:k", ttl, kind.holder...)
					require.NoError(t, m.Lock(t.Context()))
					settled(t, holder)
					held, stop := m.KeepAlive(t.Context())
					defer stop()
					s.before(t, masters, m)
					err := operator.Revoke(t.Context(), "lock:k", reason, kind.revoke...)
					if !s.told && errors.Is(err, redlock.ErrNotHeld) {
						return // the machine is so busy that the lock has ended
					}
					require.NoError(t, err)
					s.after(t, masters, m)
					type result struct {
						err   error
						over  bool
						fence uint64
					}
					next := others.NewMutex("lock:k", ttl, kind.next...)
					taken := make(chan result, 1)
					go func() {
						err := next.Lock(context.Background())
						taken <- result{err, held.Err() != nil, next.Fence()}
					}()
					if !s.told {
						r := conntest.Soon(t, "the next has it", taken)
						require.NoError(t, r.err)
						require.True(t, r.over, "the holder's context has ended before")
						require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
						return
					}
					require.Eventually(t, func() bool { return errors.Is(m.Extend(t.Context()), redlock.ErrNotHeld) }, time.Minute, time.Millisecond)
					conntest.Soon(t, "the holder is told", held.Done())
					require.ErrorIs(t, context.Cause(held), redlock.ErrRevoked)
					e, _ := errors.AsType[*redlock.RoundError](context.Cause(held))
					require.Equal(t, reason, e.WhyRevoked)
					require.Empty(t, taken, "it has not let go yet")
					fence := m.Fence()
					require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrRevoked)
					r := conntest.Soon(t, "the next has it", taken)
					require.NoError(t, r.err)
					require.True(t, r.fence > fence || fence == 0, "numbers go on")
				})
			}
		})
	}
}

// A holder that keeps its lock alive is told at once, long before a renewal is due: the masters notify of the tombstones.
// Readers are told when they renew.
func TestARevokedHolderIsToldAtOnce(t *testing.T) {
	t.Parallel()
	for what, k := range revocables {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			masters, holder := started(t, 3)
			for who, operator := range map[string]*redlock.Client{"another client": openOn(t, masters, nil), "its own client": holder} {
				ttl, keys := neverRenewed, 1
				switch what {
				case "reader", "reader fenced":
					ttl, keys = 3*time.Second, 0
				case "several", "several fenced":
					keys = 2
				}
				next := operator.NewMutex("lock:k", time.Minute, k.next...)
				err := holder.Do(t.Context(), "lock:k", ttl, func(ctx context.Context) error {
					if keys > 0 {
						promising(t, masters, keys)
					}
					require.NoError(t, operator.Revoke(t.Context(), "lock:k", reason, k.revoke...), who)
					conntest.Soon(t, "it is told", ctx.Done())
					err := context.Cause(ctx)
					require.ErrorIs(t, err, redlock.ErrRevoked, who)
					e, _ := errors.AsType[*redlock.RoundError](err)
					require.Equal(t, reason, e.WhyRevoked)
					if keys > 0 {
						require.ErrorIs(t, next.TryLock(t.Context()), redlock.ErrHeld, "it has not let go")
					}
					return nil
				}, k.holder...)
				require.ErrorIs(t, err, redlock.ErrRevoked)
				require.NoError(t, next.Lock(t.Context()))
				require.NoError(t, next.Unlock(t.Context()))
				on(t, masters, []int{0, 1, 2}, "FLUSHALL") // of several keys, the others, and the promises
			}
		})
	}
}

// All readers that hold a lock are revoked, or one of them; and so are permits. The others keep theirs.
func TestOneOfSeveralIsRevoked(t *testing.T) {
	for what, opt := range map[string]redlock.Option{"readers": redlock.WithShared(), "permits": redlock.WithPermits(3)} {
		t.Run(what, func(t *testing.T) {
			masters, c := started(t, 3)
			var all []*redlock.Mutex
			take := func() {
				m := c.NewMutex("lock:k", time.Minute, opt)
				require.NoError(t, m.Lock(t.Context()))
				all = append(all, m)
			}
			take()
			take()
			settled(t, c)
			require.NoError(t, c.Revoke(t.Context(), "lock:k", reason, opt, redlock.WithToken(all[1].Token())))
			require.NoError(t, all[0].Extend(t.Context()))
			require.ErrorIs(t, all[1].Extend(t.Context()), redlock.ErrRevoked)
			require.ErrorIs(t, all[1].Extend(t.Context()), redlock.ErrNotHeld)
			holders, err := redlock.OnEach(c, t.Context(), "lock:k", opt)
			require.NoError(t, err)
			revoked := 0
			for _, h := range holders {
				if h.Revoked {
					require.Equal(t, redlock.NewSecret(all[1].Token()), h.Token)
					revoked++
				}
			}
			require.Equal(t, 3, revoked)
			require.ErrorIs(t, all[1].Unlock(t.Context()), redlock.ErrRevoked)

			take()
			settled(t, c)
			require.NoError(t, c.Revoke(t.Context(), "lock:k", reason, opt))
			for _, i := range []int{0, 2} {
				require.ErrorIs(t, all[i].Extend(t.Context()), redlock.ErrRevoked)
				require.ErrorIs(t, all[i].Unlock(t.Context()), redlock.ErrRevoked)
			}
			require.ErrorIs(t, c.Revoke(t.Context(), "lock:k", reason, opt), redlock.ErrNotHeld)
			settled(t, c)
			for i := range 3 {
				keys := redlock.Says(t, masters, i, "EXISTS", "lock:k", "{lock:k}:permit:1/3", "{lock:k}:permit:2/3", "{lock:k}:permit:3/3")
				require.Zero(t, keys, "nothing is left")
			}
			require.NoError(t, c.NewMutex("lock:k", time.Minute).TryLock(t.Context()))
		})
	}
}

// One holder is named by a majority, and another by a master fewer, where the last one is silent: it may hold a permit, too. The
// first is revoked, and nobody is told that all were.
func TestOneWhoMayHoldAPermitIsToldOf(t *testing.T) {
	for name, first := range map[string]int{"the first is known": 0, "the second is known": 1} {
		t.Run(name, func(t *testing.T) {
			masters, c := started(t, 3)
			var all []*redlock.Mutex
			for range 2 {
				m := c.NewMutex("lock:k", time.Minute, redlock.WithPermits(2))
				require.NoError(t, m.Lock(t.Context()))
				all = append(all, m)
			}
			settled(t, c)
			known, other := all[first], all[1-first]
			for _, key := range []string{"{lock:k}:permit:1/2", "{lock:k}:permit:2/2"} {
				v := redlock.Says(t, masters, 0, "GET", key)
				if v == other.Token() {
					redlock.Says(t, masters, 0, "DEL", key)
				}
			}
			masters.Pause(2)
			err := c.Revoke(t.Context(), "lock:k", reason, redlock.WithPermits(2))
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
			require.ErrorContains(t, err, "1 of it revoked")
			require.ErrorIs(t, known.Extend(t.Context()), redlock.ErrRevoked)
			masters.Resume(2)
			require.Eventually(t, func() bool { return other.Extend(t.Context()) == nil }, time.Minute, 10*time.Millisecond, "it was not revoked")
			require.NoError(t, c.Revoke(t.Context(), "lock:k", reason, redlock.WithPermits(2)), "it is now")
			require.ErrorIs(t, other.Extend(t.Context()), redlock.ErrRevoked)
		})
	}
}

// A master names no more than so many readers: the others are not said to be revoked.
func TestRevokeOfTooManyReadersSaysSo(t *testing.T) {
	masters, c := started(t, 3)
	readers := func(n int) {
		for i := range masters.N() {
			redlock.Says(t, masters, i, "EVAL", `redis.call('DEL', KEYS[1])
for j = 1, ARGV[1] do redis.call('ZADD', KEYS[1], 9999999999999, 'svc-a/ABCDEFGHIJKLMNOPQRSTUVW' .. 1000 + j) end redis.call('PEXPIRE', KEYS[1], 600000)`, "1", "lock:k", fmt.Sprint(n))
		}
	}
	for range 2 {
		readers(1100)
		err := c.Revoke(t.Context(), "lock:k", reason, redlock.WithShared())
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.ErrorContains(t, err, "1000 of it revoked; more than 1000 readers may hold it")
		readers(900)
		require.NoError(t, c.Revoke(t.Context(), "lock:k", reason, redlock.WithShared()))
	}
}

// A set that was made to last for ever says nothing of its readers. One whom only one other master names may hold the lock: not all are
// said to be revoked.
func TestRevokeOfAReaderInASetThatDoesNotExpireSaysSo(t *testing.T) {
	masters, c := started(t, 3)
	var all []*redlock.Mutex
	for range 2 {
		m := c.NewMutex("lock:k", time.Minute, redlock.WithShared())
		require.NoError(t, m.Lock(t.Context()))
		all = append(all, m)
	}
	settled(t, c)
	redlock.Says(t, masters, 2, "ZREM", "lock:k", all[1].Token())
	redlock.Says(t, masters, 0, "PERSIST", "lock:k")
	for range 2 {
		err := c.Revoke(t.Context(), "lock:k", reason, redlock.WithShared())
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.ErrorContains(t, err, "1 of it revoked; the masters that answered do not know of all")
	}
	require.ErrorIs(t, all[0].Extend(t.Context()), redlock.ErrRevoked)
	settled(t, c)
	for i := range 2 { // the Extend has had the first one expire again
		redlock.Says(t, masters, i, "PERSIST", "lock:k")
	}
	require.ErrorIs(t, c.Revoke(t.Context(), "lock:k", reason, redlock.WithShared()), redlock.ErrNotHeld, "a majority says that it is no lock")
}

// revokedOf returns a Mutex whose lock has ended in stop, and why it has.
func revokedOf(t *testing.T, c *redlock.Client, stop func(ctx context.Context) error) (m *redlock.Mutex, why error) {
	m = c.NewMutex("lock:k", 3*time.Second, redlock.WithMinHold(time.Hour))
	require.NoError(t, m.TryLock(t.Context()))
	held, end := m.KeepAlive(t.Context())
	defer end()
	require.NoError(t, stop(held))
	return m, context.Cause(held)
}

// Who is revoked lets go of the lock, and leaves nothing there, though its work says that it is done.
func TestARevokedLockIsNotLeftThere(t *testing.T) {
	masters, c := started(t, 3)
	for name, work := range map[string]func(stop func(ctx context.Context) error) error{
		"Do": func(stop func(ctx context.Context) error) error {
			return c.Do(t.Context(), "lock:k", 3*time.Second, stop, redlock.WithMinHold(time.Hour))
		},
		"Acquire": func(stop func(ctx context.Context) error) error {
			held, release, err := c.Acquire(t.Context(), "lock:k", 3*time.Second, redlock.WithMinHold(time.Hour))
			require.NoError(t, err)
			require.NoError(t, stop(held))
			return release()
		},
		"a Do that only its release tells": func(stop func(ctx context.Context) error) error {
			ctx, cancel := context.WithCancel(t.Context())
			return c.Do(ctx, "lock:k", 3*time.Second, func(held context.Context) error {
				cancel()
				<-held.Done() // nobody renews it from here on
				return stop(held)
			}, redlock.WithMinHold(time.Hour))
		},
		"a Mutex that knows, and does not wait for its release": func(stop func(ctx context.Context) error) error {
			m, why := revokedOf(t, c, stop)
			require.ErrorIs(t, m.Release(), redlock.ErrNotHeld)
			return why
		},
		"a Mutex that takes the next lock": func(stop func(ctx context.Context) error) error {
			m, why := revokedOf(t, c, stop)
			for range 2 {
				require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrRevoked)
			}
			require.NoError(t, m.TryLock(t.Context()), "it has let go of the one that was revoked")
			require.NoError(t, m.Unlock(t.Context()))
			settled(t, c)
			for i := range masters.N() { // which its own least time has left
				redlock.Says(t, masters, i, "DEL", "lock:k")
			}
			return why
		},
	} {
		for range 2 {
			require.ErrorIs(t, work(func(ctx context.Context) error {
				settled(t, c)
				require.NoError(t, c.Revoke(t.Context(), "lock:k", reason), name)
				<-ctx.Done()
				return nil
			}), redlock.ErrRevoked, name)
			for i := range masters.N() {
				redlock.SoonSays(t, masters, i, int64(0), "EXISTS", "lock:k")
			}
		}
	}
}

// A lock that is only left there has nobody who could be told to stop.
func TestWhatIsLeftThereIsNotRevoked(t *testing.T) {
	masters, c := started(t, 3)
	for range 2 {
		m := c.NewMutex("lock:k", time.Minute, redlock.WithMinHold(30*time.Second))
		require.NoError(t, m.Lock(t.Context()))
		settled(t, c)
		require.NoError(t, m.Unlock(t.Context()))
		settled(t, c)
		err := c.Revoke(t.Context(), "lock:k", reason)
		require.ErrorIs(t, err, redlock.ErrNotHeld)
		require.ErrorContains(t, err, "only left there")
		for i := range masters.N() {
			redlock.Says(t, masters, i, "DEL", "lock:k")
		}
	}
}

// One of several permits is in a key that does not expire, be it the first or the last: this is said, and the others are revoked.
func TestAPermitThatDoesNotExpireIsToldOf(t *testing.T) {
	masters, c := started(t, 3)
	for endless := range 3 {
		key := fmt.Sprint("lock:", endless)
		all := map[int]*redlock.Mutex{}
		for range 3 {
			m := c.NewMutex(key, time.Minute, redlock.WithPermits(3))
			require.NoError(t, m.Lock(t.Context()))
			settled(t, c)
			for n := range 3 {
				if held, err := masters.Do(0, "GET", fmt.Sprintf("{%s}:permit:%d/3", key, n+1)); err == nil && held == m.Token() {
					all[n] = m
				}
			}
		}
		require.Len(t, all, 3)
		on(t, masters, []int{0, 1, 2}, "PERSIST", fmt.Sprintf("{%s}:permit:%d/3", key, endless+1))
		err := c.Revoke(t.Context(), key, reason, redlock.WithPermits(3))
		require.ErrorIs(t, err, redlock.ErrHeld)
		require.ErrorContains(t, err, "delete it")
		for n, m := range all {
			if n == endless {
				require.NoError(t, m.Extend(t.Context()))
			} else {
				require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrRevoked)
			}
		}
	}
}

// A reader's lock is not revoked unless readers are asked for.
func TestReadersAreNotRevokedUnasked(t *testing.T) {
	_, c := started(t, 3)
	m := c.NewMutex("lock:k", time.Minute, redlock.WithShared())
	require.NoError(t, m.TryLock(t.Context()))
	settled(t, c)
	err := c.Revoke(t.Context(), "lock:k", reason)
	require.ErrorIs(t, err, redlock.ErrNotHeld)
	require.ErrorContains(t, err, "WithShared")
	require.ErrorIs(t, c.Revoke(t.Context(), "lock:k", reason, redlock.WithToken(m.Token())), redlock.ErrNotHeld)
	require.NoError(t, m.Extend(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
}

// One key of a lock on several names them all. The holder deletes all of them when it lets go.
func TestOneOfSeveralKeysIsRevoked(t *testing.T) {
	masters, c := started(t, 3)
	m := c.NewMutex("lock:b", time.Minute, redlock.WithKeys("lock:a", "lock:c"))
	require.NoError(t, m.TryLock(t.Context()))
	settled(t, c)
	require.NoError(t, c.Revoke(t.Context(), "lock:c", reason))
	settled(t, c)
	before := redlock.Says(t, masters, 0, "PTTL", "lock:a")
	require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrRevoked)
	settled(t, c)
	require.LessOrEqual(t, redlock.Says(t, masters, 0, "PTTL", "lock:a"), before, "none of them is extended")
	for _, key := range []string{"lock:a", "lock:b", "lock:c"} {
		require.ErrorIs(t, c.NewMutex(key, time.Minute).TryLock(t.Context()), redlock.ErrHeld)
	}
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrRevoked)
	settled(t, c)
	for i := range 3 {
		require.Zero(t, redlock.Says(t, masters, i, "EXISTS", "lock:a", "lock:b", "lock:c"))
	}
}

// A tombstone lives for as long as the key would have, and the script refuses what is another's.
func TestATombstoneLivesAsItsKey(t *testing.T) {
	masters, c := started(t, 1)
	m := c.NewMutex("lock:k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	redlock.Says(t, masters, 0, "PEXPIRE", "lock:k", "20000")
	require.NoError(t, c.Revoke(t.Context(), "lock:k", reason))
	v := redlock.Says(t, masters, 0, "GET", "lock:k")
	require.Equal(t, "revoked:"+m.Token()+"\n"+reason, v)
	left := redlock.Says(t, masters, 0, "PTTL", "lock:k")
	require.Positive(t, left)
	require.LessOrEqual(t, left, int64(20000))
	another := c.NewMutex("lock:k", time.Minute, redlock.WithToken("another"))
	for _, err := range []error{another.Extend(t.Context()), another.Unlock(t.Context())} {
		require.ErrorIs(t, err, redlock.ErrNotHeld, "it is nobody else's")
		require.NotErrorIs(t, err, redlock.ErrRevoked)
	}
	require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrRevoked)
	same := redlock.Says(t, masters, 0, "GET", "lock:k")
	require.Equal(t, v, same)

	kept := c.NewMutex("lock:kept", time.Minute)
	require.NoError(t, kept.TryLock(t.Context()))
	require.ErrorIs(t, c.Revoke(t.Context(), "lock:kept", reason, redlock.WithToken("another")), redlock.ErrNotHeld)
	require.NoError(t, kept.Extend(t.Context()))

	// A key that does not expire is no Redlock's.
	redlock.Says(t, masters, 0, "SET", "lock:other", "somebody")
	require.ErrorIs(t, c.Revoke(t.Context(), "lock:other", reason), redlock.ErrHeld)
	same = redlock.Says(t, masters, 0, "GET", "lock:other")
	require.Equal(t, "somebody", same)

	redlock.Says(t, masters, 0, "SADD", "lock:set", "x")
	require.ErrorIs(t, c.Revoke(t.Context(), "lock:set", reason, redlock.WithToken("x")), redlock.ErrNotHeld)
	require.ErrorIs(t, c.Revoke(t.Context(), "lock:set", reason, redlock.WithToken("x"), redlock.WithShared()), redlock.ErrNotHeld)
}

// One master of three may say what it likes of a revocation.
func TestOneMasterDoesNotSayWhatARevocationIs(t *testing.T) {
	masters, c := started(t, 3)
	m := c.NewMutex("lock:k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	settled(t, c)
	require.NoError(t, c.Revoke(t.Context(), "lock:k", reason))
	settled(t, c)
	redlock.Says(t, masters, 0, "SET", "lock:k", "revoked:"+m.Token()+"\nlie", "KEEPTTL")
	for range 20 { // whichever answers last
		same := c.NewMutex("lock:k", time.Minute, redlock.WithToken(m.Token()))
		e, ok := errors.AsType[*redlock.RoundError](same.Extend(t.Context()))
		require.True(t, ok)
		require.ErrorIs(t, e, redlock.ErrRevoked)
		require.Contains(t, e.WhyRevoked, reason)
	}
	for l, err := range c.Locks(t.Context(), "lock:k") {
		require.NoError(t, err)
		require.Equal(t, reason, l.Holders[0].Reason)
	}

	set := func(key string, i int, more ...string) {
		redlock.Says(t, masters, i, append([]string{"SET", key, "x"}, more...)...)
	}
	set("lock:forever", 0)
	set("lock:forever", 1, "PX", "60000")
	err := c.Revoke(t.Context(), "lock:forever", reason, redlock.WithToken("x"))
	require.ErrorIs(t, err, redlock.ErrNotHeld, "a majority does not say that it lasts for ever")
	require.NotContains(t, err.Error(), "delete it")
	for i := range 3 {
		set("lock:endless", i)
	}
	err = c.Revoke(t.Context(), "lock:endless", reason, redlock.WithToken("x"))
	require.ErrorIs(t, err, redlock.ErrHeld)
	require.ErrorContains(t, err, "delete it")
}

// What a user of locks may do is enough for revoking them.
func TestRightsOfARevocation(t *testing.T) {
	masters := startACL(t, 3, lockRights)
	c := openConfig(t, acl(masters))
	m := c.NewMutex("lock:k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	settled(t, c)
	require.NoError(t, c.Revoke(t.Context(), "lock:k", reason))
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrRevoked)
}
