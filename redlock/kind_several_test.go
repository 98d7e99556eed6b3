package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/script"
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
	do := Asker(t, masters)
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
			got := do(args...)
			if got == script.NoLock {
				got = int64(0)
				require.True(t, slices.ContainsFunc(keys, func(key string) bool { return m[key] == strangers }))
			}
			require.Equal(t, want, got, "step %d: %q of %v", step, args, m)
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
	for name, err := range map[string]error{
		"one of the keys is empty":                                     c.CheckMutex("k", ttl, WithKeys("a", "")),
		"one of the keys has 16385 bytes, and 16384 are the most":      c.CheckMutex("k", ttl, WithKeys(strings.Repeat("k", maxKey+1))),
		"there are 65 keys, and 64 are the most":                       c.CheckMutex("k", ttl, WithKeys(many...)),
		"the keys have 262145 bytes together, and 262144 are the most": c.CheckMutex("k", ttl, WithKeys(large(maxKeysTogether)...)),
	} {
		require.ErrorContains(t, err, name)
	}
	require.NoError(t, c.CheckMutex("0", ttl, WithKeys(many...)), "a key that is given twice is one")
	_, real := started(t, 1)
	keys := large(maxKeysTogether)
	for _, m := range []*Mutex{real.NewMutex("0", ttl, WithKeys(many...)), real.NewMutex(keys[0], ttl, WithKeys(keys...))} {
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Extend(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
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
		require.Zero(t, c.localQueues.Size())
		require.Zero(t, r.keys())
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

// A client that has looked at several keys is notified of the next change of any of them.
func TestMastersNotifyOfAChangeOfAnyKey(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	m := c.NewMutex("a", 30*time.Second, WithKeys("b", "d"))
	for _, text := range []bool{false, true} {
		for _, key := range m.spec().Names() {
			for i := range 3 {
				Says(t, masters, i, "SET", key, "another's")
				if text {
					Says(t, masters, i, "SCRIPT", "FLUSH")
				}
			}
			w := line.NewWaiter(&c.line)
			told := sleeps(t, w)
			require.Eventually(t, func() bool { // what the keys' last changes told is heard first
				c.looks.Listen(w, m.spec())
				p, err := c.looks.Look(t.Context(), m.spec(), w)
				return err == nil && p.WillNotify && p.Held && !p.Free
			}, hanging, 20*time.Millisecond)
			for i := range 3 {
				Says(t, masters, i, "DEL", key)
			}
			require.Eventually(t, func() bool { _, majority := c.looks.Free(w); return majority }, hanging, 5*time.Millisecond)
			<-told
			w.End()
			require.Empty(t, c.tracking.Keys())
		}
	}
}
