package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// listed returns the locks that match a pattern, by key; those of permits have a % behind it. Each is there once. A busy
// machine is asked again.
func listed(t testing.TB, c *redlock.Client, pattern string) (all map[string]redlock.LockInfo) {
	t.Helper()
	var failed error
	require.Eventually(t, func() bool {
		all, failed = map[string]redlock.LockInfo{}, nil
		for lock, err := range c.Locks(context.Background(), pattern) {
			if err != nil {
				failed = err
				break
			}
			key := lock.Key
			if lock.Kind == "permits" {
				key += "%"
			}
			assert.NotContains(t, all, key, "it comes once")
			all[key] = lock
		}
		return !errors.Is(failed, mux.ErrTimeout)
	}, 5*time.Minute, time.Millisecond) // a list is many questions, one after the other
	require.NoError(t, failed)
	return all
}

func keysOf(all map[string]redlock.LockInfo) []string { return slices.Sorted(maps.Keys(all)) }

func take(t testing.TB, c *redlock.Client, key string, opts ...redlock.Option) *redlock.Mutex {
	t.Helper()
	m := c.NewMutex(key, time.Minute, opts...)
	require.NoError(t, m.TryLock(t.Context()))
	return m
}

func TestLocksOfAllKindsAreListed(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openWith(t, masters, redlock.Config{Owner: "svc-a"})
	plain := take(t, c, "lock:plain")
	fenced := take(t, c, "lock:fenced", redlock.WithFence(), redlock.WithOwner("web-3"))
	take(t, c, "lock:one", redlock.WithKeys("lock:two"))
	take(t, c, "lock:read", redlock.WithShared(), redlock.WithOwner("r1"))
	take(t, c, "lock:read", redlock.WithShared(), redlock.WithOwner("r2"))
	shelf := take(t, c, "lock:shelf", redlock.WithShared(), redlock.WithFence())
	pair := take(t, c, "lock:pair", redlock.WithKeys("lock:pear"), redlock.WithFence())
	take(t, c, "lock:gpu", redlock.WithPermits(3), redlock.WithOwner("g1"))
	take(t, c, "lock:gpu", redlock.WithPermits(3), redlock.WithOwner("g2"))
	take(t, c, "lock:gpu")
	take(t, c, "lock:idle", redlock.WithPermits(4)).Unlock(t.Context())
	take(t, c, "other")
	settled(t, c)
	// The counter of an earlier holder says nothing of one that has none, nor does one of a minority.
	for i := range 3 {
		redlock.Says(t, masters, i, "SET", "{lock:plain}:fence", fmt.Sprint(fenced.Fence()), "PX", "86430000")
	}
	redlock.Says(t, masters, 0, "SET", "{lock:fenced}:fence", fmt.Sprint(fenced.Fence()+10e6), "KEEPTTL")

	all := listed(t, c, "lock:*")
	require.Equal(t, []string{"lock:fenced", "lock:gpu", "lock:gpu%", "lock:one", "lock:pair", "lock:pear", "lock:plain", "lock:read", "lock:shelf", "lock:two"}, keysOf(all))
	p := all["lock:plain"]
	require.Equal(t, "plain", p.Kind)
	require.True(t, p.Held)
	require.Len(t, p.Holders, 1)
	h := p.Holders[0]
	require.Equal(t, plain.Token(), h.Token.Reveal())
	require.Equal(t, "svc-a", h.Owner)
	require.Equal(t, masters.Addrs(), h.Masters)
	require.True(t, h.Held)
	require.Positive(t, h.TTL)
	require.LessOrEqual(t, h.TTL, time.Minute)
	require.Equal(t, 3, p.Masters)
	require.Empty(t, p.Silent)
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", p, p, p), h.Token.Reveal(), "who knows it can release the lock")

	require.Equal(t, fenced.Fence(), all["lock:fenced"].Fence)
	require.Equal(t, shelf.Fence(), all["lock:shelf"].Fence)
	taken := map[string]uint64{"lock:fenced": fenced.Fence(), "lock:pair": pair.Fence(), "lock:pear": pair.Fence()}
	for key, l := range all { // a reader's fence is that of the last reader
		if taken[key] == 0 {
			require.Zero(t, l.Since, key)
			continue
		}
		require.Equal(t, time.UnixMicro(int64(taken[key])), l.Since, key)
		require.WithinDuration(t, time.Now(), l.Since, time.Minute)
	}
	require.Equal(t, "web-3", all["lock:fenced"].Holders[0].Owner)
	require.Equal(t, "plain", all["lock:gpu"].Kind, "it is another lock than its permits")
	read := all["lock:read"]
	require.Equal(t, "shared", read.Kind)
	require.Equal(t, 2, read.Readers)
	require.Equal(t, []string{"r1", "r2"}, []string{read.Holders[0].Owner, read.Holders[1].Owner})
	gpu := all["lock:gpu%"]
	require.Equal(t, 3, gpu.Permits)
	require.Equal(t, 2, gpu.Used)
	require.False(t, gpu.Held, "one is free")
	require.Len(t, gpu.Holders, 2)
	require.NotEqual(t, gpu.Holders[0].Permit, gpu.Holders[1].Permit)

	require.Len(t, listed(t, c, ""), 11)
	require.Equal(t, []string{"lock:one", "lock:two"}, keysOf(listed(t, c, "lock:[ot]*")))
	require.Equal(t, []string{"lock:gpu", "lock:gpu%"}, keysOf(listed(t, c, "lock:gpu")), "one key")
	require.Empty(t, listed(t, c, "lock:idle"))
	require.Empty(t, listed(t, c, "gpu"), "the whole key is to match")
}

// What is kept beside a lock is none, and what waits for a lock is listed with it, also if nobody holds it.
func TestWaitersAreListedInTheirOrder(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for kind, opts := range map[string][]redlock.Option{
		"plain": nil, "fenced": {redlock.WithFence()}, "permits": {redlock.WithPermits(1)},
	} {
		holder := take(t, c, kind, opts...)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		for i := range 3 {
			w := openWith(t, masters, redlock.Config{Owner: fmt.Sprint("w", i)})
			go func() { done <- w.NewMutex(kind, time.Minute, opts...).Lock(ctx) }()
			require.Eventually(t, func() bool { return line(t, c, kind).Waiting == i+1 }, time.Minute, 5*time.Millisecond)
		}
		l := line(t, c, kind)
		require.Len(t, l.Waiters, 3)
		for i, w := range l.Waiters {
			require.Equal(t, fmt.Sprint("w", i), w.Owner)
			require.False(t, w.Reader)
			require.GreaterOrEqual(t, w.Waited, time.Duration(0))
			if i > 0 {
				require.LessOrEqual(t, w.Waited, l.Waiters[i-1].Waited+time.Millisecond)
			}
		}
		require.Equal(t, 3, listedOne(t, c, kind+"*").Waiting)
		cancel()
		for range 3 {
			require.Error(t, <-done)
		}
		require.NoError(t, holder.Unlock(t.Context()))
	}
}

// line returns the row of a key that has waiters.
func line(t testing.TB, c *redlock.Client, key string) redlock.LockInfo {
	t.Helper()
	return listedOne(t, c, key)
}

func listedOne(t testing.TB, c *redlock.Client, pattern string) redlock.LockInfo {
	t.Helper()
	all := listed(t, c, pattern)
	require.Len(t, all, 1)
	return all[slices.Collect(maps.Keys(all))[0]]
}

// The mark of the rank that readers share is no waiter, and who died does not count.
func TestMarkOfTheReadersIsNoWaiter(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	command := func(args ...string) {
		t.Helper()
		redlock.Says(t, masters, 1, args...)
	}
	command("ZADD", "{k}:line", "1", "dead", "2", "w", "3", "r:", "3", "r:a", "3", "r:b")
	command("SET", "{k}:line:w:alive", "1500 svc-a", "PX", "3000")
	command("SET", "{k}:line:r:a:alive", "", "PX", "60000")
	command("SET", "{k}:line:r:b:alive", "20 \x1b[2J", "PX", "60000")
	l := listedOne(t, c, "k*")
	require.Empty(t, l.Kind)
	require.False(t, l.Held)
	require.Equal(t, 3, l.Waiting)
	require.Len(t, l.Waiters, 3)
	require.Equal(t, "svc-a", l.Waiters[0].Owner)
	require.GreaterOrEqual(t, l.Waiters[0].Waited, 1500*time.Millisecond)
	require.Less(t, l.Waiters[0].Waited, 4500*time.Millisecond)
	require.False(t, l.Waiters[0].Reader)
	require.True(t, l.Waiters[1].Reader)
	require.Empty(t, l.Waiters[1].Owner, "it has left no note")
	require.Empty(t, l.Waiters[2].Owner, "it is no owner")
	require.NotContains(t, fmt.Sprintf("%+v", l), "r:a")
}

// Keys of others are not listed, unless they look like locks, or are asked for.
func TestKeysOfOthers(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for i := range 3 {
		for _, args := range [][]string{
			{"SET", "redsync", "q83vEjRWeJCrze8SNFZ4kA==", "PX", "60000"},
			{"SET", "page", "<html>hello world, here is a page</html>", "PX", "60000"},
			{"SET", "short", "17", "PX", "60000"},
			{"SET", "lasting", "q83vEjRWeJCrze8SNFZ4kA=="},
			{"SET", "large", strings.Repeat("a", 100_000), "PX", "60000"},
			{"HSET", "hash", "a", "b"},
			{"RPUSH", "list", "a"},
			{"ZADD", "scores", "99999999999999", "a", "99999999999999", "b"},
			{"SET", "{job}:permits", "4"},
			{"SET", "{many}:permits", "100000"},
			{"SET", "{k}:fence", "17"},
			{"SET", "{k}:writer", "17 q83vEjRWeJCrze8SNFZ4kA=="},
			{"SET", strings.Repeat("l", 20_000), "q83vEjRWeJCrze8SNFZ4kA==", "PX", "60000"},
			{"SET", strings.Repeat("l", 100_000), "q83vEjRWeJCrze8SNFZ4kA==", "PX", "60000"},
		} {
			redlock.Says(t, masters, i, args...)
		}
	}
	all := listed(t, c, "*")
	require.Equal(t, []string{"redsync"}, keysOf(all))
	require.Equal(t, "foreign", all["redsync"].Kind)
	require.True(t, all["redsync"].Held)
	for _, key := range []string{"page", "short", "lasting", "large", "hash", "list", "scores"} {
		l := listedOne(t, c, key)
		require.Equal(t, "other", l.Kind, key)
		require.True(t, l.Held, key)
		for _, h := range l.Holders {
			require.Zero(t, h.Token, "it may be a secret of others")
		}
	}
	require.Empty(t, listed(t, c, "nothing"))
}

// Whatever a key is called, it is listed by its name.
func TestKeysWithAnyName(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	names := []string{"a\nb", "\x1b[2Jx", "<script>", "{", "}", "{a}", "{a}:x", "{b}:line:", "a b", "\xff\xfe", "*", "a*b", `a\b`, "[x]", "{{c}}", strings.Repeat("k", 16_384)}
	var want []string
	for _, name := range names {
		if c.CheckMutex(name, time.Minute) == nil {
			require.NoError(t, c.NewMutex(name, time.Minute).TryLock(t.Context()))
			want = append(want, name)
		}
	}
	require.Greater(t, len(want), 13)
	slices.Sort(want)
	require.Equal(t, want, keysOf(listed(t, c, "*")))
	require.Equal(t, []string{"*"}, keysOf(listed(t, c, `\*`)))
	require.Equal(t, []string{"*", "a*b"}, keysOf(listed(t, c, `*\**`)))
	require.Equal(t, []string{`a\b`}, keysOf(listed(t, c, `a\\b`)))
	require.Equal(t, []string{"[x]"}, keysOf(listed(t, c, `\[x]`)))
	for _, bad := range []string{"a[b", `a\`, "[", "[a-", `[\`, "{k}:line", strings.Repeat("k", 16_385), strings.Repeat("*", 40_000)} {
		n := 0
		for _, err := range c.Locks(t.Context(), bad) {
			n++
			require.Error(t, err)
			var e *redlock.RoundError
			require.False(t, errors.As(err, &e), bad)
		}
		require.Equal(t, 1, n, bad)
	}
}

// A lock that only some masters have is listed, whichever they are, and once.
func TestLocksOnAMinorityAreListed(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for set := range 7 {
		for i := range 3 {
			if (set+1)>>i&1 != 0 {
				redlock.Says(t, masters, i, "SET", fmt.Sprint("k", set+1), "q83vEjRWeJCrze8SNFZ4kA==", "PX", fmt.Sprint(60_000*(i+1)))
			}
		}
	}
	all := listed(t, c, "k*")
	require.Len(t, all, 7)
	for set := 1; set <= 7; set++ {
		l := all[fmt.Sprint("k", set)]
		votes := set&1 + set>>1&1 + set>>2&1
		require.Len(t, l.Holders, 1)
		require.Len(t, l.Holders[0].Masters, votes)
		require.Equal(t, votes >= 2, l.Held)
		require.Equal(t, l.Held, l.Holders[0].Held)
	}
	require.InDelta(t, 2*time.Minute, all["k7"].Holders[0].TTL, float64(time.Minute/2))
	require.InDelta(t, time.Minute, all["k3"].Holders[0].TTL, float64(time.Minute/2))
}

// What is missing is said at the end, with the reason.
func TestListWithoutSomeMasters(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]error{5: redlock.ErrIncomplete, 3: redlock.ErrNoQuorum} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, n)
			c := openWith(t, masters, redlock.Config{RoundTimeout: 2 * time.Second})
			const many = 1000
			held := map[string]bool{}
			for i := range many {
				take(t, c, fmt.Sprint("k", i))
				held[fmt.Sprint("k", i)] = true
			}
			settled(t, c)
			masters.Pause(0)
			masters.Kill(1)
			begun := time.Now()
			var last error
			for l, err := range c.Locks(t.Context(), "*") {
				require.NoError(t, last, "the error is the last")
				if last = err; err == nil {
					require.True(t, held[l.Key], l.Key)
					delete(held, l.Key)
					require.Contains(t, l.Silent, masters.Addr(0))
					require.Contains(t, l.Silent, masters.Addr(1))
					require.Len(t, l.Silent, 2)
					require.Equal(t, n == 5, l.Held)
				}
			}
			require.Empty(t, held)
			require.ErrorIs(t, last, want)
			var e *redlock.RoundError
			require.ErrorAs(t, last, &e)
			require.Len(t, e.Votes, n)
			require.Error(t, e.Votes[0].Err)
			require.Error(t, e.Votes[1].Err)
			require.Equal(t, "yes", e.Votes[2].Verdict)
			require.Contains(t, last.Error(), masters.Addr(0))
			t.Log(time.Since(begun), last)
		})
	}
}

// A master that is lost in the middle is missing from then on. What it has listed is not listed again.
func TestMasterThatIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	const many = 1000
	for i := range many {
		take(t, c, fmt.Sprint("k", i))
	}
	settled(t, c)
	seen := map[string]bool{}
	var last error
	for l, err := range c.Locks(t.Context(), "*") {
		if last = err; err != nil {
			continue
		}
		require.False(t, seen[l.Key])
		seen[l.Key] = true
		if len(seen) == many/2 {
			masters.Kill(0)
		}
	}
	require.Len(t, seen, many)
	require.ErrorIs(t, last, redlock.ErrIncomplete)
}

func TestListThatIsCutShort(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	for i := range 300 {
		take(t, c, fmt.Sprint("k", i))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("enough")
	n, last := 0, error(nil)
	for _, err := range c.Locks(ctx, "*") {
		if last = err; err == nil {
			if n++; n == 150 {
				cancel(why)
			}
		}
	}
	require.Less(t, n, 300)
	require.ErrorIs(t, last, context.Canceled)
	require.ErrorIs(t, last, why)
	require.NotErrorIs(t, last, redlock.ErrNoQuorum)

	n = 0
	for _, err := range c.Locks(t.Context(), "*") {
		require.NoError(t, err)
		if n++; n == 50 {
			break
		}
	}
	require.Equal(t, 50, n)
	for _, err := range c.Locks(t.Context(), "*") { // each range is a new list
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 350, n)

	require.NoError(t, c.Close())
	n = 0
	for _, err := range c.Locks(t.Context(), "*") {
		require.ErrorIs(t, err, redlock.ErrClosed)
		n++
	}
	require.Equal(t, 1, n)
}

// A renewal can set a key again on a master whose keys were looked through. The lock is held all the time, so it is
// listed.
func TestLockThatMovesBehindTheList(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	const many = 500
	set := func(i int, key string) {
		t.Helper()
		redlock.Says(t, masters, i, "SET", key, "svc-a/ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "PX", "600000")
	}
	for k := range many {
		set(0, fmt.Sprint("first", k))
	}
	set(1, "moves")
	set(2, "moves")
	n, moved := 0, 0
	for l, err := range c.Locks(t.Context(), "*") {
		require.NoError(t, err)
		if l.Key == "moves" {
			moved++
		} else if n++; n == many {
			set(0, "moves")
		}
	}
	require.Equal(t, many, n)
	require.Equal(t, 1, moved)
}

// However much the keys hold, one call keeps a master for a bounded number of commands.
func TestOneCallOfTheListIsShort(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	c := openWith(t, masters, redlock.Config{RoundTimeout: busy})
	const most = 500
	for what, fill := range map[string]struct {
		keys int
		key  string // what makes one of them
	}{
		"plain":   {2000, `redis.call('SET', 'k' .. i, 'svc-a/ABCDEFGHIJKLMNOPQRSTUVWXYZ0', 'PX', 600000)`},
		"waiters": {20, `for j = 1, 1000 do redis.call('ZADD', '{k' .. i .. '}:line', j, j) redis.call('SET', '{k' .. i .. '}:line:' .. j .. ':alive', '1 me', 'PX', 600000) end`},
		"dead":    {20, `for j = 1, 1000 do redis.call('ZADD', '{k' .. i .. '}:line', j, j) end`},
		"readers": {200, `for j = 1, 300 do redis.call('ZADD', 'k' .. i, 9999999999999, 'svc-a/ABCDEFGHIJKLMNOPQRSTUVW' .. 1000 + j) end redis.call('PEXPIRE', 'k' .. i, 600000)`},
		"permits": {10, `redis.call('SET', '{k' .. i .. '}:permits', '1000') for j = 1, 1000 do redis.call('SET', '{k' .. i .. '}:permit:' .. j .. '/1000', 'svc-a/ABCDEFGHIJKLMNOPQRSTUVWXYZ0.' .. j .. '.1000', 'PX', 600000) end`},
	} {
		redlock.Says(t, masters, 0, "FLUSHALL")
		for i := 1; i <= fill.keys; i += 10 { // not all at once: a busy machine would take long
			redlock.Says(t, masters, 0, "EVAL", `for i = ARGV[1], ARGV[1] + 9 do `+fill.key+` end`, "0", strconv.Itoa(i))
		}
		before := commands(t, masters)
		all := listed(t, c, "k*")
		after := commands(t, masters)
		calls := after["evalsha"] + after["eval"] - before["evalsha"] - before["eval"]
		inside := 0
		calls -= after["scan"] - before["scan"]
		for _, name := range []string{"getrange", "pttl", "get", "zcard", "zrange", "zscore", "zcount"} {
			inside += after[name] - before[name]
		}
		require.LessOrEqual(t, inside/calls, most, what)
		require.Greater(t, calls, 8, what)
		for _, l := range all {
			require.LessOrEqual(t, len(l.Waiters), 100)
			switch what {
			case "waiters":
				require.Equal(t, 1000, l.Waiting)
				require.Len(t, l.Waiters, 100)
			case "readers":
				require.Equal(t, 300, l.Readers)
				require.Len(t, l.Holders, 100)
			case "permits":
				require.Equal(t, 1000, l.Used)
				require.True(t, l.Held)
			}
		}
		t.Log(what, len(all), "locks,", calls, "calls,", inside, "commands")
	}
}

// commands returns how often a master was given each command.
func commands(t testing.TB, masters *redlocktest.Masters) map[string]int {
	t.Helper()
	v := redlock.Says(t, masters, 0, "INFO", "commandstats")
	n := map[string]int{}
	for _, m := range regexp.MustCompile(`cmdstat_(\w+):calls=(\d+)`).FindAllStringSubmatch(fmt.Sprint(v), -1) {
		n[m[1]], _ = strconv.Atoi(m[2])
	}
	return n
}

// Nothing goes on after a list that was left.
func TestListThatWasLeftLeavesNothing(t *testing.T) {
	_, c := started(t, 3)
	for i := range 300 {
		take(t, c, fmt.Sprint("k", i))
	}
	settled(t, c)
	before := runtime.NumGoroutine()
	for range 20 {
		for _, err := range c.Locks(t.Context(), "*") {
			require.NoError(t, err)
			break
		}
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, time.Minute, time.Millisecond) // that function runs in one
	for _, m := range c.Stats().Masters {
		require.Zero(t, behind.OfMaster(&m).Owed)
	}
}

// What one master remembers is no lock's fence, though the others are silent.
func TestFenceOfAMinorityIsNotListed(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	m := take(t, c, "lock:a", redlock.WithFence())
	settled(t, c)
	listed := func() (all []redlock.LockInfo) {
		for l, err := range c.Locks(t.Context(), "*") {
			if err == nil {
				all = append(all, l)
			}
		}
		return all
	}
	masters.Kill(2)
	all := listed()
	require.Len(t, all, 1)
	require.Equal(t, m.Fence(), all[0].Fence)
	masters.Kill(1)
	all = listed()
	require.Len(t, all, 1)
	require.Zero(t, all[0].Fence)
}

// The user of the documentation who may only look sees all, and what it may not read ends the list.
func TestRightsOfWhoLooksAtTheLocks(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	text, err := os.ReadFile("docs/masters.md")
	require.NoError(t, err)
	rights := regexp.MustCompile("(?s)ACL SETUSER viewer on >password (.*?)```").FindStringSubmatch(string(text))
	require.NotNil(t, rights)
	for i := range 3 {
		for user, rules := range map[string]string{"operator": rights[1], "half": strings.Replace(rights[1], "%R~*", "%R~lock:*", 1)} {
			if v, err := masters.Do(i, append([]string{"ACL", "SETUSER", user, "on", ">password"}, strings.Fields(rules)...)...); err != nil {
				t.Skip(v, err)
			}
		}
	}
	c := openWith(t, masters, redlock.Config{})
	take(t, c, "lock:a", redlock.WithFence())
	take(t, c, "lock:b", redlock.WithShared())
	take(t, c, "lock:c", redlock.WithPermits(2))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.NewMutex("lock:a", time.Minute).Lock(ctx) }()
	require.Eventually(t, func() bool { return listedOne(t, c, "lock:a").Waiting == 1 }, time.Minute, 5*time.Millisecond)
	settled(t, c)
	operator := openWith(t, masters, redlock.Config{Username: "operator", Password: redlock.NewSecret("password")})
	require.Equal(t, keysOf(listed(t, c, "*")), keysOf(listed(t, operator, "*")))
	l := listedOne(t, operator, "lock:a")
	require.Equal(t, 1, l.Waiting)
	require.NotZero(t, l.Fence)
	require.Len(t, l.Waiters, 1)
	require.Error(t, operator.NewMutex("lock:x", time.Minute).TryLock(t.Context()))

	half := openWith(t, masters, redlock.Config{Username: "half", Password: redlock.NewSecret("password")})
	n := 0
	for l, err := range half.Locks(t.Context(), "lock:[ab]") {
		require.NoError(t, err)
		require.Equal(t, -1, l.Waiting, "it may not read who waits")
		n++
	}
	require.Equal(t, 2, n)
	for other := range 3 { // one master that does not say it is enough
		for i := range 3 {
			rules := rights[1]
			if i == other {
				rules = strings.Replace(rules, "%R~*", "%R~lock:*", 1)
			}
			redlock.Says(t, masters, i, append([]string{"ACL", "SETUSER", "some", "reset", "on", ">password"}, strings.Fields(rules)...)...)
		}
		some := openWith(t, masters, redlock.Config{Username: "some", Password: redlock.NewSecret("password")})
		require.Equal(t, -1, listedOne(t, some, "lock:[b]").Waiting, other)
	}
	take(t, c, "another")
	settled(t, c)
	var last error
	for _, err := range half.Locks(t.Context(), "*") {
		last = err
	}
	require.ErrorIs(t, last, redlock.ErrNoQuorum)
	require.Contains(t, last.Error(), "key")
	cancel()
	<-done
}

// A list that lacks a right names it, once for all masters, and what it is for. So do the others who ask for holders.
func TestLocksNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	take(t, c, "lock:a")
	take(t, c, "lock:b", redlock.WithShared())
	settled(t, c)
	all := rights.Rules("", append(slices.Clone(rights.Locks), rights.Operators...)...)
	for i := range 3 {
		redlock.Says(t, masters, i, "HSET", "hash", "f", "v")
		all = slices.DeleteFunc(all, func(rule string) bool { // which this server does not know
			_, err := masters.Do(i, "ACL", "SETUSER", "probe", rule)
			return err != nil
		})
	}
	without := func(right string) *redlock.Client {
		for i := range 3 {
			redlock.Says(t, masters, i, append([]string{"ACL", "SETUSER", "no-" + right, "on", ">password", "~*", "-@all"}, append(slices.Clone(all), "-"+right)...)...)
		}
		return openWith(t, masters, redlock.Config{Username: "no-" + right, Password: redlock.NewSecret("password")})
	}
	refused := func(err error, right string) {
		t.Helper()
		require.ErrorIs(t, err, redlock.ErrRefused, right)
		require.Equal(t, 1, strings.Count(err.Error(), "the user lacks +"+right+", which is for "), "%v", err)
		require.Equal(t, 1, strings.Count(err.Error(), masters.Addrs()[2]), "%v", err)
		require.NotRegexp(t, "user_script|[0-9a-f]{40}", err.Error())
	}
	for _, right := range []string{"scan", "eval", "evalsha", "getrange", "pttl", "type", "time", "zrange"} {
		poor := without(right)
		var last error
		for _, err := range poor.Locks(t.Context(), "*") {
			last = err
		}
		if right == "eval" && last == nil { // a script that the master knows is called by its hash
			for i := range 3 {
				redlock.Says(t, masters, i, "SCRIPT", "FLUSH")
			}
			for _, err := range poor.Locks(t.Context(), "*") {
				last = err
			}
		}
		refused(last, right)
	}
	poor := without("eval")
	for _, err := range poor.Watch(t.Context(), "lock:a") {
		refused(err, "eval")
		break
	}
	poor = without("evalsha")
	_, err := poor.Holders(t.Context(), "lock:a")
	refused(err, "evalsha")
	refused(poor.Revoke(t.Context(), "lock:a", "it is to go"), "evalsha")
	refused(poor.Revoke(t.Context(), "lock:a", "it is to go", redlock.WithToken("token")), "evalsha")
	refused(poor.NewMutex("lock:x", time.Minute, redlock.WithFence()).TryLock(t.Context()), "evalsha")
	info, err := without("type").Holders(t.Context(), "hash")
	require.NoError(t, err)
	require.Equal(t, "a key that is no lock", behind.OfHolder(&info.Holders[0]).Other)
}

// A lock that was revoked is listed with its holder until that has let go.
func TestARevokedLockIsListed(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := openWith(t, masters, redlock.Config{Owner: "reports@web-3"})
	for name, test := range revocables {
		key := "lock:" + name
		m := c.NewMutex(key, time.Minute, test.holder...)
		require.NoError(t, m.TryLock(t.Context()), name)
		settled(t, c)
		before := listedOne(t, c, key)
		require.NoError(t, c.Revoke(t.Context(), key, reason, test.revoke...), name)
		settled(t, c)
		l := listedOne(t, c, key)
		require.Equal(t, before.Kind, l.Kind, name)
		require.True(t, l.Held, name)
		require.Len(t, l.Holders, 1, name)
		h := l.Holders[0]
		require.True(t, h.Revoked, name)
		require.Equal(t, reason, h.Reason, name)
		require.Equal(t, "reports@web-3", h.Owner, name)
		require.Equal(t, before.Holders[0].Token, h.Token, name)
		require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrRevoked, name)
	}
}
