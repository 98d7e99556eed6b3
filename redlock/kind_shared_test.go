package redlock

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// members waits until n masters have the reader's token, as stragglers come.
func members(t *testing.T, masters *redlocktest.Masters, m *Mutex, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		have := 0
		for i := range masters.N() {
			v, err := masters.Do(i, "ZSCORE", m.Key(), m.Token())
			if err == nil && v != nil {
				have++
			}
		}
		return have == n
	}, hanging, 5*time.Millisecond)
}

// noKeyOf waits until no master has the key.
func noKeyOf(t *testing.T, masters *redlocktest.Masters, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for i := range masters.N() {
			if v, err := masters.Do(i, "EXISTS", key); err != nil || v != int64(0) {
				return false
			}
		}
		return true
	}, hanging, 5*time.Millisecond)
}

const term30 = 30 * time.Second // a TTL that passes in no test

func TestReadersTogetherOneWriterAlone(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		masters := redlocktest.Start(t, n)
		a, b := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
		reader := func(c *Client) *Mutex { return c.NewMutex("k", term30, WithShared()) }
		one, two, writer := reader(a), reader(b), b.NewMutex("k", term30)
		require.NoError(t, one.TryLock(t.Context()))
		require.NoError(t, two.TryLock(t.Context()))
		require.ErrorIs(t, writer.TryLock(t.Context()), ErrHeld)
		require.NoError(t, one.Extend(t.Context()))
		members(t, masters, one, n)
		members(t, masters, two, n)
		require.NoError(t, one.Unlock(t.Context()))
		require.ErrorIs(t, writer.TryLock(t.Context()), ErrHeld, "one is left")
		members(t, masters, two, n)
		require.NoError(t, two.Unlock(t.Context()))
		noKeyOf(t, masters, "k")

		require.NoError(t, writer.TryLock(t.Context()))
		require.ErrorIs(t, one.TryLock(t.Context()), ErrHeld)
		require.NoError(t, writer.Extend(t.Context()))
		require.NoError(t, writer.Unlock(t.Context()))
		noKeyOf(t, masters, "k")
		require.NoError(t, one.TryLock(t.Context()))
		require.NoError(t, one.Unlock(t.Context()))
	}
}

// A reader that does not release its lock does not keep a writer out for longer than its
// term, though others do meanwhile.
func TestADeadReaderEndsWithItsOwnTTL(t *testing.T) {
	masters, c := started(t, 3)
	dead := c.NewMutex("k", 100*time.Millisecond, WithShared())
	require.NoError(t, dead.Lock(t.Context()))
	lives := c.NewMutex("k", term30, WithShared())
	require.NoError(t, lives.Lock(t.Context()))
	require.Eventually(t, func() bool { return dead.Remaining() == 0 }, hanging, 5*time.Millisecond)
	require.Eventually(t, func() bool { // on a busy machine the masters began later to count
		all, err := OnEach(c, t.Context(), "k", WithShared())
		return err == nil && len(all) == 3 && !slices.ContainsFunc(all, func(h Said) bool { return h.Token.Reveal() != lives.Token() })
	}, hanging, 5*time.Millisecond)
	require.ErrorIs(t, dead.Extend(t.Context()), ErrNotHeld)
	heir := c.NewMutex("k", term30, WithShared(), WithToken(dead.Token()))
	require.ErrorIs(t, heir.Extend(t.Context()), ErrNotHeld, "it is over, though the key is there")
	require.ErrorIs(t, dead.Unlock(t.Context()), ErrNotHeld)
	members(t, masters, lives, 3)
	require.NoError(t, lives.Unlock(t.Context()))
	noKeyOf(t, masters, "k")

	// It is the last of all, with a long one before it.
	require.NoError(t, lives.Lock(t.Context()))
	members(t, masters, lives, 3)
	require.NoError(t, dead.Lock(t.Context()))
	require.NoError(t, lives.Unlock(t.Context()))
	noKeyOf(t, masters, "k") // what is left ends with the short term
	require.ErrorIs(t, dead.Unlock(t.Context()), ErrNotHeld)
}

// Unlock does not take a reader whose term has ended for one that had the lock until then, though others
// keep the key, and its member, alive.
func TestUnlockOfAnExpiredReaderBesideOthers(t *testing.T) {
	masters, c := started(t, 3)
	lives := c.NewMutex("k", term30, WithShared())
	require.NoError(t, lives.Lock(t.Context()))
	m := c.NewMutex("k", 100*time.Millisecond, WithShared())
	require.NoError(t, m.Lock(t.Context()))
	members(t, masters, lives, 3)
	require.Eventually(t, func() bool {
		all, err := OnEach(c, t.Context(), "k", WithShared())
		return err == nil && len(all) == 3 && !slices.ContainsFunc(all, func(h Said) bool { return h.Token.Reveal() != lives.Token() })
	}, hanging, 5*time.Millisecond)
	members(t, masters, m, 3)
	require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
	alone := func() bool {
		for i := range 3 {
			if v, err := masters.Do(i, "ZCARD", "k"); err != nil || v != int64(1) {
				return false
			}
		}
		return true
	}
	require.Eventually(t, alone, hanging, 5*time.Millisecond, "it is taken out all the same")
	require.NoError(t, lives.Unlock(t.Context()))
	noKeyOf(t, masters, "k")
}

func TestUnlockOfAnExpiredReaderSparesTheWriter(t *testing.T) {
	masters, c := started(t, 3)
	m := c.NewMutex("k", 100*time.Millisecond, WithShared())
	require.NoError(t, m.Lock(t.Context()))
	noKeyOf(t, masters, "k")
	writer := c.NewMutex("k", term30)
	require.NoError(t, writer.Lock(t.Context()))
	require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
	require.NoError(t, writer.Extend(t.Context()))
	require.NoError(t, writer.Unlock(t.Context()))
}

// A server before Redis 5, or one that is set to replicate scripts as they did, refuses a reader,
// and says why.
func TestServersThatAreTooOldForReaders(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	if _, err := masters.Do(0, "CONFIG", "SET", "lua-replicate-commands", "no"); err != nil {
		t.Skip("this server replicates what a script does, and nothing else: ", err)
	}
	c := opened(t, masters.Addrs(), nil)
	m := c.NewMutex("k", term30, WithShared())
	for _, do := range []func(context.Context) error{m.TryLock, m.Lock} { // nor does Lock wait
		err := do(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorContains(t, err, "NOSHARED shared holders need Redis 5 or later")
	}
	require.NoError(t, c.NewMutex("k", term30).TryLock(t.Context()))
}

// A number with many zeros may be written as 2e+12, which is no time to PEXPIREAT.
func TestAReaderMayExpireAtARoundTime(t *testing.T) {
	masters, c := started(t, 1)
	Says(t, masters, 0, "ZADD", "k", "2000000000000.25", "another reader")
	m := c.NewMutex("k", term30, WithShared())
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	require.EqualValues(t, 1, Says(t, masters, 0, "ZCARD", "k"))
}

// A shelf is what a master has of a shared lock, as the scripts are to treat it. Times are in
// milliseconds.
type shelf struct {
	writer  string           // empty if none has the key
	ends    map[string]int64 // of the readers' terms
	expires int64            // the key, if there is one
	intent  int64            // of a writer, since when; 0 if there is none
}

const noEnd = 1 << 60

// at has the clock be at now.
func (s *shelf) at(now int64) {
	if s.taken() && now > s.expires {
		s.writer, s.ends = "", nil
	}
}

func (s *shelf) taken() bool { return s.writer != "" || len(s.ends) > 0 }

// others reports whether the set is no set of readers: those end with their last.
func (s *shelf) others(now int64) bool {
	last := int64(0)
	for _, end := range s.ends {
		last = max(last, end)
	}
	return len(s.ends) > 0 && last < now
}

func (s *shelf) dropEnded(now int64) {
	maps.DeleteFunc(s.ends, func(_ string, end int64) bool { return end < now })
}

func (s *shelf) keep(now int64) {
	last := int64(0)
	for _, end := range s.ends {
		last = max(last, end)
	}
	if last > 0 {
		s.expires = last
	}
	s.at(now)
}

func (s *shelf) add(token string, now, ttl int64) {
	if s.ends == nil {
		s.ends = map[string]int64{}
	}
	s.ends[token] = now + ttl
	s.keep(now)
}

func (s *shelf) acquire(token string, now, ttl, waited int64) int64 {
	s.at(now)
	if s.writer != "" || s.others(now) || s.intent != 0 && now-waited >= s.intent {
		return 0
	}
	if s.add(token, now, ttl); len(s.ends)%8 == 0 {
		s.dropEnded(now)
	}
	return 1
}

func (s *shelf) extend(token string, now, ttl int64) int64 {
	s.at(now)
	if s.writer != "" || s.others(now) {
		return 0
	}
	s.dropEnded(now)
	if _, there := s.ends[token]; !there {
		return kind.Gone
	}
	s.add(token, now, ttl)
	return 1
}

func (s *shelf) repair(token string, now, ttl int64) int64 {
	s.at(now)
	if s.others(now) {
		return 0
	}
	s.dropEnded(now)
	if _, there := s.ends[token]; there || s.writer != "" {
		return 0
	}
	s.add(token, now, ttl)
	return 1
}

func (s *shelf) release(token string, now int64) int64 {
	s.at(now)
	end, there := s.ends[token]
	if !there {
		return 0
	}
	delete(s.ends, token)
	if s.keep(now); end >= now {
		return 1
	}
	return 0
}

// write is SET NX PX of a writer.
func (s *shelf) write(token string, now, ttl int64) int64 {
	s.at(now)
	if s.taken() {
		return 0
	}
	s.writer, s.expires = token, now+ttl
	return 1
}

// The scripts do on a real master what the model's shelves do, whatever is asked in whatever order.
func TestScriptsOfReaders(t *testing.T) {
	sequential(t)
	t.Parallel()
	for name, start := range map[string]func(testing.TB, int, ...redlocktest.Option) *redlocktest.Masters{
		"a server": redlocktest.Start, "embedded": redlocktest.Embedded,
	} {
		t.Run(name, func(t *testing.T) {
			masters := start(t, 1)
			compareReadersScripts(t, masters, opened(t, masters.Addrs(), nil))
		})
	}
}

func compareReadersScripts(t *testing.T, masters *redlocktest.Masters, c *Client) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	do := Asker(t, masters)
	for n := range fewer(20) {
		key := fmt.Sprint("k", n)
		intent := "{" + key + "}:writer"
		var want shelf
		for step := range 100 {
			// No term ends by itself in this test.
			ttl := time.Duration(10+10*random.IntN(3)) * time.Minute
			s := &round.Spec{Traits: new(round.Traits), Key: key, Term: quorum.NewTerm(ttl, 0.01), Timeout: hanging, Kind: kind.NewShared(key)}
			k := c.round.Take()
			token := fmt.Sprint("token", random.IntN(12))
			now, ms := time.Now().UnixMilli(), ttl.Milliseconds()
			reply, verb := int64(-99), random.IntN(12)
			if random.IntN(4) == 0 { // then they are sent by text
				Says(t, masters, 0, "SCRIPT", "FLUSH")
			}
			switch verb {
			case 0, 1:
				waited := time.Duration(random.IntN(2)) * 2 * time.Hour
				k.Token, k.TTL, k.Waited = append(k.Token[:0], token...), s.Term.TTL, waited
				k.Request.Reset()
				s.Kind.Acquire(&k.Request, k.Grant(s))
				k.Prepare(s.Timeout)
				reply = want.acquire(token, now, ms, waited.Milliseconds())
			case 2, 3:
				if random.IntN(2) == 0 {
					k.Extend(s, []byte(token), 0, s.Term.TTL)
					reply = want.extend(token, now, ms)
				} else {
					k.Repair(s, []byte(token), 0, s.Term.TTL, 1)
					reply = want.repair(token, now, ms)
				}
			case 4, 5:
				k.Release(s, []byte(token))
				reply = want.release(token, now)
			case 6:
				k.Look(s, hanging)
				switch {
				case want.others(now):
				case want.writer == "" && want.intent == 0:
					reply = -2
				case want.writer == "":
					reply = -1
				}
			case 7: // a reader's term ends
				if _, there := want.ends[token]; there {
					do("ZADD", key, "XX", "1", token)
					want.ends[token] = 1
				}
			case 8:
				set := do("SET", key, token, "NX", "PX", strconv.FormatInt(ms, 10)) != nil
				require.Equal(t, want.write(token, now, ms) == 1, set)
			case 9:
				if want.writer != "" {
					do("DEL", key)
					want.writer = ""
				}
			case 10:
				if want.intent = 0; random.IntN(2) == 0 {
					want.intent = now - time.Hour.Milliseconds()
					do("SET", intent, fmt.Sprint(want.intent, " somebody"))
				} else {
					do("DEL", intent)
				}
			default:
				if want.taken() {
					if want.expires = now + 5*time.Minute.Milliseconds(); random.IntN(2) == 0 {
						want.expires = noEnd
						do("PERSIST", key)
					} else {
						do("PEXPIRE", key, "300000")
					}
				}
			}
			at := fmt.Sprintf("round %d, step %d, verb %d", n, step, verb)
			if verb <= 6 {
				require.NoError(t, c.round.Mux.Do(t.Context(), &k.Op), at)
				vote := k.Op.Votes[0]
				require.NoError(t, vote.Err, at)
				if reply == -99 { // another's key is there
					if reply = -1; want.expires != noEnd {
						reply = vote.Int
						require.InDelta(t, want.expires-now, vote.Int, 60_000, at)
					}
				}
				require.Equal(t, reply, vote.Int, at)
				require.Equal(t, reply == 1 || reply == -2 && verb == 6, vote.Verdict == mux.VerdictYes, at)
			}
			c.round.Put(k)
			switch kind := do("TYPE", key); {
			case want.writer != "":
				require.Equal(t, want.writer, do("GET", key), at)
			case len(want.ends) == 0:
				require.Equal(t, "none", kind, at)
				continue
			default:
				var there []string
				for _, v := range do("ZRANGE", key, "0", "-1").([]any) {
					there = append(there, v.(string))
				}
				require.ElementsMatch(t, slices.Collect(maps.Keys(want.ends)), there, at)
			}
			left := do("PTTL", key).(int64)
			if want.expires == noEnd {
				require.EqualValues(t, -1, left, at)
			} else {
				require.InDelta(t, want.expires-now, left, 60_000, at)
			}
		}
	}
}

// A repair that is under way when its reader is revoked does not set that again beside its tombstone.
func TestARevokedReaderIsNotSetAgain(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 1)
	key := kind.NewShared("k")
	s := &round.Spec{Traits: new(round.Traits), Key: "k", Term: quorum.NewTerm(term30, 0.01), Timeout: hanging, Kind: key}
	m, beside := c.NewMutex("k", term30, WithShared()), c.NewMutex("k", term30, WithShared())
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, beside.TryLock(t.Context()))
	c.Revoke(t.Context(), "k", why, WithShared(), WithToken(m.secretly())) // it has not let go
	k := c.round.Take()
	k.Repair(s, []byte(m.Token()), 0, term30, 1)
	require.NoError(t, c.round.Mux.Do(t.Context(), &k.Op))
	require.Equal(t, mux.VerdictNo, k.Op.Votes[0].Verdict)
	require.Equal(t, int64(2), Says(t, masters, 0, "ZCARD", "k"), "the other reader, and the tombstone")
}

func TestHoldersListsTheReaders(t *testing.T) {
	masters, c := started(t, 3)
	ask := func(opts ...Option) []Said {
		all, err := OnEach(c, t.Context(), "k", opts...)
		require.NoError(t, err)
		return all
	}
	for _, h := range ask(WithShared()) {
		require.Empty(t, h.Token)
	}
	want := map[string]time.Duration{}
	var readers []*Mutex
	for i := range 3 {
		m := c.NewMutex("k", term30*time.Duration(1+i), WithShared())
		require.NoError(t, m.TryLock(t.Context()))
		members(t, masters, m, 3)
		readers = append(readers, m)
		want[m.Token()] = term30 * time.Duration(1+i)
	}
	Says(t, masters, 0, "ZADD", "k", "1", "one whose term has ended")
	all := ask(WithShared())
	require.Len(t, all, 9)
	for i, h := range all {
		require.Equal(t, masters.Addr(i/3), h.Addr)
		require.Contains(t, want, h.Token.Reveal())
		require.LessOrEqual(t, h.TTL, want[h.Token.Reveal()])
		require.Greater(t, h.TTL, want[h.Token.Reveal()]-term30)
		require.NotEmpty(t, h.Owner())
	}
	plain := ask()
	require.Len(t, plain, 3)
	require.Equal(t, census.Unknown, plain[0].Token)
	for _, m := range readers {
		require.NoError(t, m.Unlock(t.Context()))
	}
	noKeyOf(t, masters, "k")

	const many, far = 1001, int64(1) << 42 // milliseconds since 1970: long after this
	set := []string{"ZADD", "k"}
	for i := range many {
		set = append(set, fmt.Sprint(far+int64(i)), fmt.Sprint("reader-", i))
	}
	Says(t, masters, 0, set...)
	Says(t, masters, 0, "PEXPIREAT", "k", fmt.Sprint(far+int64(many)))
	all = slices.DeleteFunc(ask(WithShared()), func(h Said) bool { return h.Token.IsZero() })
	require.Len(t, all, many-1)
	require.Equal(t, "reader-1", all[0].Token.Reveal(), "those whose terms end last")
	Says(t, masters, 0, "DEL", "k")

	writer := c.NewMutex("k", term30)
	require.NoError(t, writer.TryLock(t.Context()))
	require.Eventually(t, func() bool {
		all := ask(WithShared())
		token := NewSecret(writer.Token())
		return len(all) == 3 && all[0].Token == token && all[1].Token == token && all[2].Token == token
	}, hanging, 5*time.Millisecond)
}
