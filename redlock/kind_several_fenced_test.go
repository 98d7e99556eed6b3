package redlock

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// severalCounters is the reference of the scripts with a fence: keys, and their counters.
type severalCounters struct {
	severalMaster
	f map[string]uint64
}

func (m severalCounters) most(keys []string) (f uint64) {
	for _, key := range keys {
		f = max(f, m.f[key])
	}
	return f
}

func (m severalCounters) write(keys []string, f uint64) {
	for _, key := range keys {
		m.f[key] = max(m.f[key], f)
	}
}

func (m severalCounters) ours(keys []string, token string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return m.severalMaster[key] != token })
}

func (m severalCounters) acquire(keys []string, token string, hint uint64) int64 {
	f := m.most(keys)
	if m.severalMaster.acquire(keys, token) == 0 {
		return -int64(f)
	}
	return m.countOn(keys, hint)
}

func (m severalCounters) countOn(keys []string, hint uint64) int64 {
	f := m.most(keys)
	if f > hint+2*uint64(round.FenceSkew.Microseconds()) { // nobody believes it, and it stays where it is
		return quorum.MaxFence
	}
	m.write(keys, max(f+1, hint))
	return int64(max(f+1, hint))
}

func (m severalCounters) extend(keys []string, token string, fence uint64) int64 {
	n := m.severalMaster.extend(keys, token)
	if n > 0 {
		m.write(keys, fence)
	}
	return n
}

func (m severalCounters) repair(keys []string, token string, fence uint64) int64 {
	n := m.severalMaster.repair(keys, token)
	if n > 0 {
		m.write(keys, fence)
	}
	return n
}

func (m severalCounters) adopt(keys []string, token string) int64 {
	if !m.ours(keys, token) {
		return -1
	}
	m.write(keys, m.most(keys))
	return int64(m.most(keys))
}

func (m severalCounters) pass(keys []string, token string, hint uint64) int64 {
	if !m.ours(keys, token) {
		return 0
	}
	return m.countOn(keys, hint)
}

func (m severalCounters) raise(keys []string, token string, fence uint64) int64 {
	if !m.ours(keys, token) {
		return 0
	}
	m.write(keys, fence)
	return int64(m.most(keys))
}

func TestScriptsOfSeveralFencedKeysDoWhatTheReferenceDoes(t *testing.T) {
	sequential(t)
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	do := Asker(t, masters)
	all := []string{"a", "b", "c"}
	for range fewer(30) {
		do("FLUSHALL")
		m := severalCounters{severalMaster{}, map[string]uint64{}}
		for step := range 60 {
			keys := slices.DeleteFunc(slices.Clone(all), func(string) bool { return rand.IntN(3) == 0 })
			if len(keys) < 2 {
				keys = all[1:]
			}
			token, key := []string{"one", "two"}[rand.IntN(2)], all[rand.IntN(3)]
			number := []uint64{1 << 40, uint64(rand.IntN(20))}[rand.IntN(2)] + uint64(step) + 1
			g := kind.Grant{Token: []byte(token), TTL: 20 * time.Second, Fence: number}
			f := kind.NewSeveralFenced(kind.NewSeveral(keys), g.TTL, &newHints().Counters)
			var r kind.Request
			var want int64
			switch rand.IntN(8) {
			case 0, 1:
				f.Acquire(&r, g)
				want = m.acquire(keys, token, number)
			case 2:
				if f.Extend(&r, g); rand.IntN(2) == 0 {
					want = m.extend(keys, token, number)
					break
				}
				r.Reset()
				f.Repair(&r, g)
				want = m.repair(keys, token, number)
			case 3:
				g.Fence = 0
				f.Extend(&r, g)
				want = m.adopt(keys, token)
			case 4:
				f.Raise(&r, g)
				want = m.raise(keys, token, number)
			case 5:
				f.Release(&r, g)
				want = m.release(keys, token)
			case 6:
				f.Pass(&r, g)
				want = m.pass(keys, token, number)
			case 7: // a lock on one of the keys alone has the same counter
				do("DEL", key, "{"+key+"}:fence")
				do("SET", "{"+key+"}:fence", fmt.Sprint(number))
				delete(m.severalMaster, key)
				m.f[key] = number
				continue
			}
			asked := words([]byte(cmp.Or(string(r.Fallback), string(r.Command)))) // a repair has no fallback
			require.Equal(t, want, do(asked...), "step %d: %q of %v", step, asked, m)
			for _, key := range all {
				got, _ := do("GET", key).(string)
				require.Equal(t, m.severalMaster[key], got)
				text, _ := do("GET", "{"+key+"}:fence").(string)
				n, _ := strconv.ParseUint(text, 10, 64)
				require.Equal(t, m.f[key], n, "the counter of %s", key)
			}
		}
	}
}

// A client that is handed a set gives each counter the greatest of them, and the life that an extend gives
// it. Or the next holder of a key could have a number that is no greater.
func TestAdoptMovesAllCounters(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	do := Asker(t, masters)
	keys := []string{"a", "b", "c"}
	f := kind.NewSeveralFenced(kind.NewSeveral(keys), 20*time.Second, &newHints().Counters)
	for i, key := range keys {
		do("SET", key, "mine", "PX", "1000000")
		do("SET", "{"+key+"}:fence", fmt.Sprint([]int{7, 9, 8}[i]), "PX", "1000000")
	}
	var r kind.Request
	f.Extend(&r, kind.Grant{Token: []byte("mine"), TTL: 20 * time.Second})
	require.EqualValues(t, 9, do(words(r.Fallback)...))
	for _, key := range keys {
		require.Equal(t, "9", do("GET", "{"+key+"}:fence"))
		require.Greater(t, do("PTTL", "{"+key+"}:fence"), int64(1_000_000))
		require.LessOrEqual(t, do("PTTL", key), int64(20_000))
	}
}
