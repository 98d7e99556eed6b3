package redlock

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A fencedShelf is a shelf with the counter beside it.
type fencedShelf struct {
	shelf
	f     uint64
	moved bool // a reader has moved it on since the last writer
}

// moveOn has a reader that is there move the counter on if it must.
func (s *fencedShelf) moveOn(first bool, hint uint64) {
	if first || !s.moved {
		s.f, s.moved = max(s.f+1, hint), true
	}
}

func (s *fencedShelf) acquire(token string, now, ttl, waited int64, hint uint64) int64 {
	if s.shelf.acquire(token, now, ttl, waited) == 0 {
		return -int64(s.f)
	}
	s.moveOn(len(s.ends) == 1, hint)
	return int64(s.f)
}

func (s *fencedShelf) extend(token string, now, ttl int64, fence uint64) int64 {
	return s.keepAbove(s.shelf.extend(token, now, ttl), fence)
}

func (s *fencedShelf) repair(token string, now, ttl int64, fence uint64) int64 {
	return s.keepAbove(s.shelf.repair(token, now, ttl), fence)
}

func (s *fencedShelf) keepAbove(reply int64, fence uint64) int64 {
	if reply > 0 {
		s.moveOn(false, 0)
		s.f = max(s.f, fence)
	}
	return reply
}

func (s *fencedShelf) adopt(token string, now, ttl int64) int64 {
	if s.shelf.extend(token, now, ttl) != 1 {
		return -1
	}
	s.moveOn(false, 0)
	return int64(s.f)
}

func (s *fencedShelf) raise(token string, now int64, fence uint64) int64 {
	s.at(now)
	if s.others(now) {
		return 0
	}
	s.dropEnded(now)
	if _, there := s.ends[token]; !there {
		return 0
	}
	s.f = max(s.f, fence)
	return int64(s.f)
}

// The scripts do on a real master what the model's shelves do, whatever is asked in whatever order.
func TestScriptsOfReadersWithAFence(t *testing.T) {
	sequential(t)
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	do := Asker(t, masters)
	today := uint64(time.Now().UnixMicro())
	for round := range fewer(20) {
		key := fmt.Sprint("k", round)
		counter, intent := "{"+key+"}:fence", "{"+key+"}:writer"
		var want fencedShelf
		for step := range 100 {
			ttl := time.Duration(10+10*random.IntN(3)) * time.Minute // no term ends by itself in this test
			now, ms := time.Now().UnixMilli(), ttl.Milliseconds()
			f := kind.NewSharedFenced(key, ttl, &newHints().Counters)
			token := fmt.Sprint("token", random.IntN(12))
			number := 1 + []uint64{today, uint64(random.IntN(200))}[random.IntN(2)]
			g := kind.Grant{Key: key, Token: []byte(token), TTL: ttl, Fence: number}
			var r kind.Request
			var reply int64
			verb := random.IntN(10)
			switch verb {
			case 0, 1:
				g.Waited = time.Duration(random.IntN(2)) * 2 * time.Hour
				f.Acquire(&r, g)
				reply = want.acquire(token, now, ms, g.Waited.Milliseconds(), number)
			case 2, 3:
				if random.IntN(2) == 0 {
					f.Extend(&r, g)
					reply = want.extend(token, now, ms, number)
				} else {
					f.Repair(&r, g)
					reply = want.repair(token, now, ms, number)
				}
			case 4:
				g.Fence = 0
				f.Extend(&r, g)
				reply = want.adopt(token, now, ms)
			case 5:
				f.Raise(&r, g)
				reply = want.raise(token, now, number)
			case 6:
				f.Release(&r, g)
				reply = want.release(token, now)
			case 7: // a reader's term ends
				if _, there := want.ends[token]; there {
					do("ZADD", key, "XX", "1", token)
					want.ends[token] = 1
				}
			case 8: // a writer comes, or goes
				if want.writer != "" {
					do("DEL", key)
					want.writer = ""
				} else {
					set := do("SET", key, token, "NX", "PX", strconv.FormatInt(ms, 10)) != nil
					require.Equal(t, want.write(token, now, ms) == 1, set)
					if set && random.IntN(2) == 0 { // with a fence
						want.f, want.moved = want.f+1, false
						do("SET", counter, fmt.Sprint(want.f))
					}
				}
			default:
				if want.intent = 0; random.IntN(2) == 0 {
					want.intent = now - time.Hour.Milliseconds()
					do("SET", intent, fmt.Sprint(want.intent, " somebody"))
				} else {
					do("DEL", intent)
				}
			}
			at := fmt.Sprintf("round %d, step %d, verb %d", round, step, verb)
			if verb <= 6 {
				wants := any(reply)
				if verb >= 2 && want.writer == "" && want.others(now) {
					wants = script.NoLock
				}
				require.Equal(t, wants, do(words([]byte(cmp.Or(string(r.Fallback), string(r.Command))))...), at)
			}
			text, _ := do("GET", counter).(string)
			n, _ := strconv.ParseUint(text, 10, 64)
			require.Equal(t, want.f, n, at)
			switch {
			case want.writer != "":
				require.Equal(t, want.writer, do("GET", key), at)
			case len(want.ends) == 0:
				require.Equal(t, "none", do("TYPE", key), at)
			default:
				require.EqualValues(t, len(want.ends), do("ZCARD", key), at)
			}
			if n > 0 && verb < 4 && reply > 0 {
				require.Greater(t, do("PTTL", counter), ms, "%s: the counter outlives the lock", at)
			}
		}
	}
}

// A reader's number lies between those of the writers before and after it, whatever the masters'
// counters were, and which majority each had.
func TestAReadersFenceIsBetweenTheWriters(t *testing.T) {
	masters, c := started(t, 3)
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	for i := range 3 { // nothing agrees
		Says(t, masters, i, "SET", "{k}:fence", fmt.Sprint(ahead+uint64(i*i)))
	}
	fences := make([]uint64, 0, 20)
	for i := range cap(fences) {
		away := rand.IntN(3)
		Says(t, masters, away, "SET", "k", "another's")
		m := c.NewMutex("k", time.Minute, WithFence())
		if i%2 == 1 {
			m = c.NewMutex("k", time.Minute, WithFence(), WithShared())
		}
		require.NoError(t, m.TryLock(t.Context()))
		fences = append(fences, m.Fence())
		if i%3 == 0 {
			require.NoError(t, m.Extend(t.Context()))
			require.Equal(t, fences[i], m.Fence())
		}
		require.NoError(t, m.Unlock(t.Context()))
		Says(t, masters, away, "DEL", "k")
		noKeyOf(t, masters, "k")
	}
	require.IsIncreasing(t, fences)
	require.NotZero(t, c.Stats().FenceRaised)
}

// A reader without a fence moves no counter on. So the next one with a fence does, whoever is there, and
// however it comes: a resource that has seen its number refuses the writer before it.
func TestAReadersFenceIsAboveTheWriterBeforeThoseWithoutOne(t *testing.T) {
	for name, start := range map[string]func(testing.TB, int, ...redlocktest.Option) *redlocktest.Masters{
		"a server": redlocktest.Start, "embedded": redlocktest.Embedded,
	} {
		masters := start(t, 3)
		c := opened(t, masters.Addrs(), nil)
		was := uint64(0)
		for _, how := range []string{"taken", "handed over", "set again"} {
			writer := c.NewMutex("k", term30, WithFence())
			require.NoError(t, writer.TryLock(t.Context()))
			require.Greater(t, writer.Fence(), was, name+how)
			was = writer.Fence()
			require.NoError(t, writer.Unlock(t.Context()))

			bare := c.NewMutex("k", term30, WithShared())
			require.NoError(t, bare.TryLock(t.Context()))
			members(t, masters, bare, 3)
			first := c.NewMutex("k", term30, WithShared(), WithFence())
			if how == "taken" {
				require.NoError(t, first.TryLock(t.Context()))
			} else {
				first = c.NewMutex("k", term30, WithShared(), WithFence(), WithToken(bare.Token()))
				require.NoError(t, first.Extend(t.Context()))
			}
			require.Greater(t, first.Fence(), was, name+how)
			if how == "set again" { // by an extend that was late, on masters that have had another writer meanwhile
				*hidden[uint64](&first.hold, "fence"), was = 1, was+1_000_000
				for i := range 3 {
					Says(t, masters, i, "SET", "{k}:fence", strconv.FormatUint(was, 10))
				}
				require.NoError(t, first.Extend(t.Context()))
			}
			next := c.NewMutex("k", term30, WithShared(), WithFence())
			require.NoError(t, next.TryLock(t.Context()))
			require.Greater(t, next.Fence(), was, name+how)
			if how != "set again" {
				require.Equal(t, first.Fence(), next.Fence(), name+how)
			}
			was = next.Fence()
			require.NoError(t, first.Unlock(t.Context()))
			require.NoError(t, next.Unlock(t.Context()))
			bare.Unlock(t.Context())
			noKeyOf(t, masters, "k")
		}
	}
}

// Readers that hold the lock together have the same number where the counters agree, in one round.
func TestReadersTogetherHaveOneFence(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	clients := []*Client{opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)}
	var all []*Mutex
	for i := range 6 {
		m := clients[i%2].NewMutex("k", time.Minute, WithFence(), WithShared())
		require.NoError(t, m.TryLock(t.Context()))
		members(t, masters, m, 3) // before the next reader comes
		all = append(all, m)
		require.Equal(t, all[0].Fence(), m.Fence())
	}
	for _, c := range clients {
		require.Zero(t, c.Stats().FenceRaised)
	}
	h := clients[1].NewMutex("k", time.Minute, WithFence(), WithShared(), WithToken(all[0].Token()))
	require.NoError(t, h.Extend(t.Context()))
	require.Equal(t, all[0].Fence(), h.Fence(), "handed over")
	for i := range 3 {
		Says(t, masters, i, "ZREM", "k", all[1].Token())
	}
	Says(t, masters, 0, "DEL", "{k}:fence")
	require.NoError(t, all[2].Extend(t.Context()))
	require.Equal(t, 3, remember(t, masters, "k", all[2].Fence()), "an extend carries the number")
	for i, m := range all {
		if err := m.Unlock(t.Context()); i == 1 {
			require.ErrorIs(t, err, ErrNotHeld)
		} else {
			require.NoError(t, err)
		}
	}
	noKeyOf(t, masters, "k")
	fence := all[0].Fence()
	require.NoError(t, clients[0].Do(t.Context(), "k", time.Minute, func(ctx context.Context) error {
		fence = FenceFrom(ctx)
		return nil
	}, WithFence(), WithShared()))
	require.NotZero(t, fence)
}
