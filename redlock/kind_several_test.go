package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// severalMaster is the reference for what a master does: the scripts and MSETEX are compared with
// it. A key that is not there is free. The model of several keys has such masters, too.
type severalMaster map[string]string

func (m severalMaster) acquire(keys []string, token string) int64 {
	for _, key := range keys {
		if m[key] != "" {
			return 0
		}
	}
	for _, key := range keys {
		m[key] = token
	}
	return 1
}

func (m severalMaster) extend(keys []string, token string) (n int64) {
	n = 1
	for _, key := range keys {
		switch v := m[key]; {
		case v == "":
			n = kind.Gone
		case v != token:
			return 0
		}
	}
	return n
}

func (m severalMaster) repair(keys []string, token string) (n int64) {
	if m.extend(keys, token) == 0 {
		return 0
	}
	for _, key := range keys {
		m[key] = token
	}
	return 1
}

func (m severalMaster) release(keys []string, token string) (n int64) {
	n = 1
	for _, key := range keys {
		if m[key] == token {
			delete(m, key)
		} else {
			n = 0
		}
	}
	return n
}

// look returns the PTTL's kind: -2, -1, or 0 for any time.
func (m severalMaster) look(keys []string, endless map[string]bool) (n int64) {
	n = -2
	for _, key := range keys {
		switch {
		case m[key] != "" && endless[key]:
			return -1
		case m[key] != "":
			n = 0
		}
	}
	return n
}

// strangers is the value of a key that holds no string.
const strangers = "(hash)"

// Whatever is on a master, the scripts do what the reference does, and so does MSETEX.
func TestScriptsOfSeveralKeysDoWhatTheReferenceDoes(t *testing.T) {
	sequential(t)
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	at, err := conn.ParseAddress(masters.Addr(0))
	require.NoError(t, err)
	c, err := conn.Dial(t.Context(), at, conn.Options{Probe: true, DialTimeout: hanging})
	require.NoError(t, err)
	native := c.Server().Commands&conn.MSetEx != 0
	require.NoError(t, c.Close())
	do := asker(t, masters)
	all := []string{"a", "b", "c"}
	tokens := []string{"one", "two", "three"}
	for range fewer(30) {
		do("FLUSHALL")
		m, endless := severalMaster{}, map[string]bool{}
		for step := range 60 {
			var keys []string
			for _, key := range all {
				if rand.IntN(3) > 0 {
					keys = append(keys, key)
				}
			}
			if len(keys) == 0 {
				keys = all[:1]
			}
			key, token := all[rand.IntN(3)], tokens[rand.IntN(3)]
			g := kind.Grant{Token: []byte(token), TTL: time.Hour}
			s := kind.NewSeveral(keys)
			var r kind.Request
			var want int64
			switch rand.IntN(8) {
			case 0, 1:
				s.Acquire(&r, g)
				if want = m.acquire(keys, token); want == 1 {
					for _, key := range keys {
						endless[key] = false
					}
				}
				if native && rand.IntN(2) == 0 {
					r.Command = r.Dialects[0].Command
				}
			case 2, 3:
				if rand.IntN(2) == 0 {
					s.Extend(&r, g)
					want = m.extend(keys, token)
				} else {
					s.Repair(&r, g)
					want = m.repair(keys, token)
				}
				if want > 0 {
					for _, key := range keys {
						endless[key] = false
					}
				}
			case 4:
				s.Release(&r, g)
				want = m.release(keys, token)
			case 5: // something foreign
				do("SET", key, token)
				m[key], endless[key] = token, true
				continue
			case 6:
				do("DEL", key)
				delete(m, key)
				if rand.IntN(2) == 0 {
					do("HSET", key, "f", "v")
					m[key], endless[key] = strangers, true
				}
				continue
			case 7:
				look := kind.SeveralLookScript.AppendText(nil, 0, keys...)
				n := do(words(look)...).(int64)
				require.Equal(t, m.look(keys, endless), min(n, 0), "step %d: look at %q: %d", step, keys, n)
				require.LessOrEqual(t, n, time.Hour.Milliseconds())
				continue
			}
			args := words(r.Command)
			if args[0] == "EVALSHA" {
				args = words(r.Fallback)
			}
			require.Equal(t, want, do(args...), "step %d: %q of %v", step, args, m)
			for _, key := range all {
				got := do("TYPE", key).(string)
				switch m[key] {
				case "":
					require.Equal(t, "none", got)
				case strangers:
					require.Equal(t, "hash", got)
				default:
					require.Equal(t, m[key], do("GET", key))
				}
				if left := do("PTTL", key).(int64); m[key] != "" && !endless[key] {
					require.Greater(t, left, time.Hour.Milliseconds()/2, "it expires when it should")
				} else {
					require.Negative(t, left)
				}
			}
		}
	}
}

// extendsUntilThere extends a lock until a master has the key again. It may take two rounds, as the master may answer late.
func extendsUntilThere(t *testing.T, m *Mutex, masters *redlocktest.Masters, i int, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.NoError(t, m.Extend(t.Context()))
		v, err := masters.Do(i, "EXISTS", key)
		return err == nil && v == int64(1)
	}, hanging, 5*time.Millisecond)
}

// holdsAll waits until each key has the token on each master; an empty token means that it is free.
func holdsAll(t *testing.T, masters *redlocktest.Masters, token string, keys ...string) {
	t.Helper()
	for i := range masters.Addrs() {
		for _, key := range keys {
			require.Eventually(t, func() bool {
				v, err := masters.Do(i, "GET", key)
				s, _ := v.(string)
				return err == nil && s == token
			}, hanging, 5*time.Millisecond, "%s on master %d", key, i)
		}
	}
}

func TestSeveralKeysAreOneLock(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	other := opened(t, masters.Addrs(), nil) // another process
	const long = 30 * time.Second
	// Each case has keys of its own.
	names := func(t *testing.T) (a, b, d string) { return t.Name() + "/a", t.Name() + "/b", t.Name() + "/d" }

	t.Run("all are taken and released", func(t *testing.T) {
		a, b, d := names(t)
		m := c.NewMutex(b, long, WithKeys(d, a, b), WithKeys(a))
		require.Equal(t, b, m.Key())
		require.NoError(t, m.TryLock(t.Context()))
		holdsAll(t, masters, m.Token(), a, b, d)
		require.NoError(t, m.Extend(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		holdsAll(t, masters, "", a, b, d)
	})
	t.Run("one key given twice is a plain lock", func(t *testing.T) {
		a, _, _ := names(t)
		m := c.NewMutex(a, long, WithKeys(a, a), WithFence())
		require.NoError(t, m.TryLock(t.Context()))
		require.NotZero(t, m.Fence())
		require.NoError(t, m.Unlock(t.Context()))
	})
	t.Run("a lock on any of the keys excludes it, and is excluded", func(t *testing.T) {
		a, b, d := names(t)
		set := c.NewMutex(a, long, WithKeys(b, d))
		for _, key := range []string{a, b, d} {
			one := other.NewMutex(key, long)
			require.NoError(t, one.TryLock(t.Context()))
			holdsAll(t, masters, one.Token(), key)
			require.ErrorIs(t, set.TryLock(t.Context()), ErrHeld)
			for _, free := range []string{a, b, d} {
				if free != key {
					holdsAll(t, masters, "", free)
				}
			}
			require.NoError(t, one.Unlock(t.Context()))
			holdsAll(t, masters, "", key)
			require.NoError(t, set.TryLock(t.Context()))
			holdsAll(t, masters, set.Token(), key)
			require.ErrorIs(t, one.TryLock(t.Context()), ErrHeld)
			require.ErrorIs(t, other.NewMutex(key, long, WithKeys("elsewhere")).TryLock(t.Context()), ErrHeld)
			require.NoError(t, set.Unlock(t.Context()))
			holdsAll(t, masters, "", a, b, d)
		}
	})
	t.Run("for every subset of masters where a key is taken", func(t *testing.T) {
		for taken := range 1 << 3 {
			a, b := fmt.Sprint(t.Name(), taken, "a"), fmt.Sprint(t.Name(), taken, "b")
			free := 0
			for i := range 3 {
				if taken>>i&1 == 1 {
					command(t, masters, i, "SET", []string{a, b}[i%2], "foreign") // not the same everywhere
				} else {
					free++
				}
			}
			m := c.NewMutex(a, long, WithKeys(b))
			if err := m.TryLock(t.Context()); free >= 2 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrHeld)
			}
		}
	})
	t.Run("one key that is lost on a minority is set again", func(t *testing.T) {
		a, b, d := names(t)
		m := c.NewMutex(a, long, WithKeys(b, d))
		require.NoError(t, m.TryLock(t.Context()))
		holdsAll(t, masters, m.Token(), a, b, d)
		command(t, masters, 1, "DEL", b)
		extendsUntilThere(t, m, masters, 1, b)
		holdsAll(t, masters, m.Token(), a, b, d)
		require.NoError(t, m.Unlock(t.Context()))
	})
	t.Run("one key that is lost on a majority is the lock lost", func(t *testing.T) {
		a, b, d := names(t)
		for what, ask := range map[string]func(m *Mutex) error{
			"Extend":  func(m *Mutex) error { return m.Extend(t.Context()) },
			"recheck": func(m *Mutex) error { c.rechecker.recheck([]*hold{&m.hold}); return ErrNotHeld },
		} {
			m := c.NewMutex(a, long, WithKeys(b, d))
			require.NoError(t, m.TryLock(t.Context()), what)
			holdsAll(t, masters, m.Token(), a, b, d)
			command(t, masters, 0, "DEL", d)
			command(t, masters, 1, "DEL", d)
			require.ErrorIs(t, ask(m), ErrNotHeld, what)
			require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld, what)
			holdsAll(t, masters, "", a, b, d)
		}
	})
	t.Run("another's key stays", func(t *testing.T) {
		a, b, d := names(t)
		m := c.NewMutex(a, long, WithKeys(b, d))
		require.NoError(t, m.TryLock(t.Context()))
		holdsAll(t, masters, m.Token(), a, b, d)
		for i := range 3 {
			command(t, masters, i, "SET", b, "another's")
		}
		require.ErrorIs(t, m.Extend(t.Context()), ErrNotHeld)
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		holdsAll(t, masters, "", a, d)
		holdsAll(t, masters, "another's", b)
	})
	t.Run("KeepAlive renews all, and ends with one", func(t *testing.T) {
		a, b, d := names(t)
		m := c.NewMutex(a, 900*time.Millisecond, WithKeys(b, d), WithRoundTimeout(long))
		require.NoError(t, m.TryLock(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		until := m.Until()
		require.Eventually(t, func() bool { return m.Until().After(until.Add(time.Millisecond)) }, hanging, 5*time.Millisecond)
		for i := range 3 {
			command(t, masters, i, "SET", b, "another's")
		}
		<-held.Done()
		require.ErrorIs(t, context.Cause(held), ErrLost)
		m.Unlock(t.Context())
	})
	t.Run("it is handed over", func(t *testing.T) {
		a, b, d := names(t)
		m := c.NewMutex(a, long, WithKeys(b, d))
		require.NoError(t, m.TryLock(t.Context()))
		holdsAll(t, masters, m.Token(), a, b, d)
		h := other.NewMutex(d, long, WithKeys(b, a), WithToken(m.Token()))
		require.NoError(t, h.Extend(t.Context()))
		require.NoError(t, h.Unlock(t.Context()))
		holdsAll(t, masters, "", a, b, d)
	})
	t.Run("masters that have forgotten its scripts are sent them", func(t *testing.T) {
		a, b, d := names(t)
		m := c.NewMutex(a, long, WithKeys(b, d))
		for _, do := range []func(context.Context) error{m.TryLock, m.Extend, m.Unlock} {
			for i := range 3 {
				command(t, masters, i, "SCRIPT", "FLUSH")
			}
			require.NoError(t, do(t.Context()))
		}
		holdsAll(t, masters, "", a, b, d)
	})
	t.Run("who waits is told when the last key is free", func(t *testing.T) {
		a, b, d := names(t)
		for _, last := range []string{a, b, d} {
			var held []*Mutex
			for _, key := range []string{a, b, d} {
				m := c.NewMutex(key, long)
				require.NoError(t, m.TryLock(t.Context()))
				holdsAll(t, masters, m.Token(), key)
				if held = append(held, m); key == last { // it is released last
					held = append(held[len(held)-1:], held[:len(held)-1]...)
				}
			}
			done := make(chan error, 1)
			set := other.NewMutex(a, long, WithKeys(b, d))
			go func() { done <- set.Lock(t.Context()) }()
			require.Eventually(t, func() bool { return other.Stats().Waiting == 1 }, hanging, 5*time.Millisecond)
			for _, m := range slices.Backward(held) {
				require.Empty(t, done)
				require.NoError(t, m.Unlock(t.Context()))
			}
			comes(t, done)
			require.NoError(t, set.Unlock(t.Context()))
			holdsAll(t, masters, "", a, b, d)
		}
	})
	t.Run("a wait that times out says who holds one of the keys", func(t *testing.T) {
		a, b, d := names(t)
		m := c.NewMutex(d, long)
		require.NoError(t, m.TryLock(t.Context()))
		holdsAll(t, masters, m.Token(), d)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := other.NewMutex(a, long, WithKeys(b, d), WithRoundTimeout(long)).Lock(ctx)
		require.ErrorIs(t, err, ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var e *RoundError
		require.ErrorAs(t, err, &e)
		require.Equal(t, a, e.Key)
		require.NoError(t, m.Unlock(t.Context()))
	})
}

func TestWhatIsWrongWithSeveralKeys(t *testing.T) {
	t.Parallel()
	c, _ := newFake(t, 3, Config{})
	many := make([]string, maxKeys)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	large := func(bytes int) []string {
		var keys []string
		for i := range bytes / maxKey {
			keys = append(keys, strings.Repeat(string(rune('a'+i)), maxKey))
		}
		return keys
	}
	for name, m := range map[string]*Mutex{
		"one of the keys is empty":                                     c.NewMutex("k", ttl, WithKeys("a", "")),
		"one of the keys has 16385 bytes, and 16384 are the most":      c.NewMutex("k", ttl, WithKeys(strings.Repeat("k", maxKey+1))),
		"there are 65 keys, and 64 are the most":                       c.NewMutex("k", ttl, WithKeys(many...)),
		"the keys have 262145 bytes together, and 262144 are the most": c.NewMutex("k", ttl, WithKeys(large(maxKeysTogether)...)),
		"a lock of this kind is of no other kind, too":                 c.NewMutex("k", ttl, WithKeys("a"), withHash),
	} {
		require.ErrorContains(t, m.TryLock(t.Context()), name)
		require.ErrorContains(t, m.Lock(t.Context()), name)
	}
	require.NotErrorIs(t, c.NewMutex("0", ttl, WithKeys(many...)).invalid, ErrHeld)
	require.NoError(t, c.NewMutex("0", ttl, WithKeys(many...)).invalid, "a key that is given twice is one")
	masters := redlocktest.Start(t, 1)
	real := opened(t, masters.Addrs(), nil)
	keys := large(maxKeysTogether)
	for _, m := range []*Mutex{real.NewMutex("0", ttl, WithKeys(many...)), real.NewMutex(keys[0], ttl, WithKeys(keys...))} {
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Extend(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
}

// Sets that overlap, in any order of their keys, and single locks on each, in several processes,
// taken by many goroutines: everybody has its turn, and no key has two holders.
func TestLocksOnKeysThatOverlap(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	clients := []*Client{opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)}
	sets := [][]string{{"a", "b"}, {"b", "a"}, {"b", "c"}, {"a"}, {"b"}, {"c"}}
	const each = 15
	var mu sync.Mutex
	holders := map[string]int{}
	hold := func(keys []string, n int) (err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range keys {
			if holders[key] += n; holders[key] > 1 {
				err = errors.New("two hold " + key)
			}
		}
		return err
	}
	var all sync.WaitGroup
	for i := range 2 * len(sets) {
		all.Go(func() {
			keys := sets[i/2]
			m := clients[i%2].NewMutex(keys[0], 30*time.Second, WithKeys(keys[1:]...))
			for range each {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				if err := hold(keys, 1); err != nil {
					t.Error(err)
				}
				hold(keys, -1)
				if err := m.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan error, 1)
	go func() { all.Wait(); done <- nil }()
	comes(t, done)
	for _, c := range clients {
		require.Zero(t, c.localQueues.size())
		require.Empty(t, c.subscriptions.byKey)
	}
	holdsAll(t, masters, "", "a", "b", "c")
}

// Those of one client that wait for sets and for single keys have them in the order in which they
// came: each after as many releases as those before it have made, though its keys are never free
// at the same moment by chance.
func TestNobodyStarvesThatWaitsForASet(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
		sets := [][]string{{"a"}, {"b"}, {"b", "a"}, {"a", "b"}, {"c", "b"}, {"c"}, {"a"}, {"b"}}
		var mu sync.Mutex
		releases := 0
		waiting := map[int]int{} // of each goroutine, the releases when it came
		holders := map[string]int{}
		worst, taken := 0, make([]int, len(sets))
		ctx, cancel := context.WithTimeout(t.Context(), bearably(20*time.Second))
		defer cancel()
		var all sync.WaitGroup
		for i, keys := range sets {
			all.Go(func() {
				m := c.NewMutex(keys[0], ttl, WithKeys(keys[1:]...))
				for {
					mu.Lock()
					waiting[i] = releases
					mu.Unlock()
					if m.Lock(ctx) != nil {
						return
					}
					mu.Lock()
					worst = max(worst, releases-waiting[i])
					taken[i]++
					for _, key := range keys {
						if holders[key]++; holders[key] > 1 {
							t.Errorf("two hold %s", key)
						}
					}
					mu.Unlock()
					time.Sleep(time.Duration(1+i) * time.Millisecond)
					mu.Lock()
					releases++
					for _, key := range keys {
						holders[key]--
					}
					mu.Unlock()
					if err := m.Unlock(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		for i, n := range taken {
			require.Greater(t, n, bearable(100), "%v has had its turn", sets[i])
		}
		// Those that share no key with those before it can be taken several times meanwhile.
		require.LessOrEqual(t, worst, 2*len(sets))
		time.Sleep(time.Second)
		require.Zero(t, c.localQueues.size())
		require.Zero(t, r.keys())
	})
}

// A set whose turn has come keeps its place while other keys of it are another process's.
func TestASetHasItsTurnAfterThoseBeforeIt(t *testing.T) {
	simulated(t, 3, Config{Handovers: -1}, func(t *testing.T, c *Client, r *fakeRounds) {
		other := newClient(Config{}, r, r.now)
		b := other.NewMutex("b", ttl)
		require.NoError(t, b.TryLock(t.Context()))
		order := make(chan string, 3)
		start := func(name string, keys ...string) {
			go func() {
				m := c.NewMutex(keys[0], ttl, WithKeys(keys[1:]...))
				if m.Lock(t.Context()) == nil {
					order <- name
					time.Sleep(10 * time.Millisecond)
					m.Unlock(t.Context())
				}
			}()
			synctest.Wait()
		}
		start("set", "b", "a")
		start("single", "a")
		time.Sleep(100 * time.Millisecond)
		require.Empty(t, order, "the single lock waits behind the set, though its key is free")
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- c.NewMutex("c", ttl, WithKeys("a")).Lock(ctx) }()
		synctest.Wait()
		start("last", "c")
		cancel() // who gives up frees its place
		require.ErrorIs(t, conntest.Soon(t, "it has given up", gone), context.Canceled)
		require.Equal(t, "last", conntest.Soon(t, "nobody is in its way", order))
		require.NoError(t, b.Unlock(t.Context()))
		require.Equal(t, "set", conntest.Soon(t, "it is the set's turn", order))
		require.Equal(t, "single", conntest.Soon(t, "it is the single lock's turn", order))
		time.Sleep(100 * time.Millisecond)
		require.Zero(t, c.localQueues.size())
		require.Zero(t, r.keys())
		require.NoError(t, c.Close())
	})
}

// What a server is asked that has MSETEX: few machines have one, to say that it obeys.
func TestSeveralKeysAreSetWithMSETEX(t *testing.T) {
	var r kind.Request
	kind.NewSeveral([]string{"a", "b"}).Acquire(&r, kind.Grant{Key: "b", Token: []byte("mine"), TTL: 10 * time.Second})
	require.Equal(t, conn.MSetEx, r.Dialects[0].Needs)
	require.Equal(t, []string{"MSETEX", "2", "a", "mine", "b", "mine", "NX", "PX", "10000"}, words(r.Dialects[0].Command))
	require.Zero(t, r.Dialects[1].Needs)
}

// A wait that is over leaves no watch of any key.
func TestNoSubscriptionOfSeveralKeysIsLeftBehind(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	require.NoError(t, c.NewMutex("c", time.Minute).TryLock(t.Context()))
	watched := func() int {
		c.subscriptions.mu.Lock()
		defer c.subscriptions.mu.Unlock()
		return len(c.subscriptions.byKey)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.NewMutex("a", time.Minute, WithKeys("b", "c")).Lock(ctx) }()
	require.Eventually(t, func() bool { return watched() == 3 }, hanging, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Zero(t, watched())
}

// A client that has looked at several keys is notified of the next change of any of them.
func TestMastersNotifyOfAChangeOfAnyKey(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	for i := range 3 {
		comesUp(t, c, i)
	}
	m := c.NewMutex("a", 30*time.Second, WithKeys("b", "d"))
	for _, text := range []bool{false, true} {
		for _, key := range m.names() {
			for i := range 3 {
				command(t, masters, i, "SET", key, "another's")
				if text {
					command(t, masters, i, "SCRIPT", "FLUSH")
				}
			}
			w := newSubscription(&c.core)
			told := sleeps(t, w)
			require.Eventually(t, func() bool { // what the keys' last changes told is heard first
				c.subscriptions.add(w, 1, c.subscriptions.quorum, m.names()...)
				p, err := c.subscriptions.look(t.Context(), &m.spec, w)
				return err == nil && p.willNotify && p.held && !p.free
			}, hanging, 20*time.Millisecond)
			for i := range 3 {
				command(t, masters, i, "DEL", key)
			}
			require.Eventually(t, func() bool { _, majority := c.subscriptions.free(w); return majority }, hanging, 5*time.Millisecond)
			<-told
			c.subscriptions.remove(m.names()...)
			require.Empty(t, c.subscriptions.byKey)
		}
	}
}
