package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What any lock of this kind must do, seen from outside, on real masters.

// A scene is real masters, a client of theirs, and a kind of locks.
type leadership struct {
	*testing.T
	kind
	n       int
	masters *redlocktest.Masters
	client  *redlock.Client
}

// newScene opens a client for all of them. The locks are plain.
func newScene(t *testing.T, masters *redlocktest.Masters) leadership {
	t.Helper()
	return leadership{t, kind{keys: []string{"k"}}, masters.N(), masters, openWith(t, masters, redlock.Config{})}
}

// A kind is a lock on "k" with options, and what it is on a master.
type kind struct {
	name    string
	opts    []redlock.Option
	keys    []string // it is in all of them or, if it has permits, in one
	permits int      // 0 without
	readers bool     // it excludes none of its like
	fenced  bool
	rivals  []rival // that it excludes besides
	stays   string  // a pattern in Lua of keys that stay on a master until their TTL has passed
}

// A rival is a lock that is of another kind, or on other keys.
type rival struct {
	key  string
	opts []redlock.Option
}

// kinds returns all kinds but the plain one, those with a fence apart, and a plain lock among readers.
func kinds() (unfenced, fenced, writer []kind) {
	type options = []redlock.Option
	keys, shared, fence := redlock.WithKeys("z", "a"), redlock.WithShared(), redlock.WithFence()
	onOne, onAll := []string{"k"}, []string{"a", "k", "z"}
	slot, slots := []string{"{k}:permit:1/1"}, []string{"{k}:permit:1/3", "{k}:permit:2/3", "{k}:permit:3/3"}
	sharing := []rival{ // a key
		{"a", nil}, {"k", nil}, {"z", nil},
		{"y", options{redlock.WithKeys("z")}},
		{"z", options{redlock.WithKeys("k", "a")}},
	}
	writers := []rival{{"z", options{redlock.WithKeys("k")}}, {"k", nil}}
	readers := []rival{{"k", options{shared}}}
	const mark, counter = "}:permits$", "}:fence$"

	unfenced = []kind{
		{name: "several keys", opts: options{keys}, keys: onAll, rivals: sharing},
		{name: "reader", opts: options{shared}, keys: onOne, readers: true, rivals: writers},
		{name: "one permit", opts: options{redlock.WithPermits(1)}, keys: slot, permits: 1, stays: mark},
		{name: "three permits", opts: options{redlock.WithPermits(3)}, keys: slots, permits: 3, stays: mark},
	}
	fenced = []kind{
		{name: "fence", opts: options{fence}, keys: onOne, rivals: writers},
		{name: "several keys with a fence", opts: options{keys, fence}, keys: onAll, rivals: sharing},
		{name: "reader with a fence", opts: options{shared, fence}, keys: onOne, readers: true, rivals: writers},
	}
	for i := range fenced {
		fenced[i].fenced, fenced[i].stays = true, counter
	}
	return unfenced, fenced, []kind{{name: "writer", keys: onOne, rivals: readers}}
}

const (
	long  = 30 * time.Second // a TTL that passes in no test
	short = 500 * time.Millisecond
)

var sizes = []int{1, 2, 3, 4, 5, 7}

// The scenarios that any lock must pass, on real masters: a plain one on all sizes, and other kinds on
// one. Those with a fence do so where their scripts differ, and a writer where it meets readers.
func TestScenarios(t *testing.T) {
	t.Parallel()
	unfenced, fenced, writer := kinds()
	both := slices.Concat(unfenced, fenced)
	all := slices.Concat(both, writer)
	for _, c := range []struct {
		name  string
		run   func(s leadership)
		n     []int
		kinds []kind // besides the plain one
		on    int    // masters
	}{
		{"taken exactly if the free masters are a majority", everySubset, []int{1, 2, 3, 4, 5}, both, 3},
		{"a second TryLock is held, at once", secondTryLock, sizes, all, 3},
		{"extend raises the PTTL on every master, and fails after expiry", extendRaises, sizes, both, 3},
		{"extend sets the key only where it is free", extendSetsWhereFree, []int{3, 5, 7}, both, 5},
		{"unlock of an expired lock spares the next holder", unlockExpired, sizes, unfenced, 3},
		{"unlock elsewhere with a token that was handed over", handOver, sizes, both, 3},
		{"DEL of a majority ends the holder's context", delMajority, sizes, both, 3},
		{"a TTL shortened from outside is repaired", ttlRepaired, sizes, unfenced, 3},
		{"10 lockers and all their hand-offs complete", handOffs, []int{3}, all, 3},
		{"a minority failing works", minorityFails, []int{3, 4, 5, 7}, all, 3},
		{"a majority hanging fails within the budget", majorityHangs, sizes, unfenced, 3},
		{"SCRIPT FLUSH between acquire and release", scriptFlush, sizes, both, 3},
		{"an attempt that is cancelled at any moment leaves no key", releaseRaces, []int{3}, unfenced, 3},
		{"a master that restarts is given the key back", restarted, []int{3, 5}, both, 3},
	} {
		for _, n := range c.n {
			if testing.Short() && (n%2 == 0 || n > 5) { // no transport and no server knows how many there are
				continue
			}
			if few := len(c.n) > 2 && (n < 3 || n > 5); few && !atFullScale {
				continue
			}
			t.Run(fmt.Sprintf("%s/N=%d", c.name, n), func(t *testing.T) {
				t.Parallel()
				c.run(newScene(t, redlock.Borrow(t, n)))
			})
		}
		if testing.Short() { // the plain lock sends what is sent on any transport
			continue
		}
		for _, kind := range c.kinds {
			t.Run(fmt.Sprintf("%s/%s/N=%d", c.name, kind.name, c.on), func(t *testing.T) {
				t.Parallel()
				s := newScene(t, redlock.Borrow(t, c.on))
				s.kind = kind
				c.run(s)
			})
		}
	}
}

func (s leadership) do(i int, args ...string) any {
	s.Helper()
	return redlock.Says(s, s.masters, i, args...)
}

// lock returns a Mutex of the kind.
func (s leadership) lock(ttl time.Duration, more ...redlock.Option) *redlock.Mutex {
	return s.client.NewMutex("k", ttl, slices.Concat(s.opts, more)...)
}

// taken takes the lock.
func (s leadership) taken(ttl time.Duration, more ...redlock.Option) *redlock.Mutex {
	s.Helper()
	m := s.lock(ttl, more...)
	require.NoError(s, m.Lock(s.Context()))
	return m
}

// takenUp takes what others can have beside the lock: the other permits, or two readers' locks.
func (s leadership) takenUp() (free func()) {
	s.Helper()
	others := s.permits - 1
	if s.readers {
		others = 2
	}
	var rest []*redlock.Mutex
	for range others {
		rest = append(rest, s.taken(long))
	}
	return func() {
		s.Helper()
		for _, m := range rest {
			require.NoError(s, m.Unlock(s.Context()))
		}
	}
}

// excluded returns those that the lock excludes.
func (s leadership) excluded() []rival {
	if s.readers {
		return s.rivals
	}
	return append([]rival{{"k", s.opts}}, s.rivals...)
}

func (r rival) lock(c *redlock.Client, ttl time.Duration) *redlock.Mutex {
	return c.NewMutex(r.key, ttl, r.opts...)
}

// keysOf returns the keys that a lock is in.
func (s leadership) keysOf(m *redlock.Mutex) []string {
	s.Helper()
	if s.permits == 0 {
		return s.keys
	}
	parts := strings.Split(m.Token(), ".") // that end with the slot, and how many there are
	require.Greater(s, len(parts), 2)
	key := "{k}:permit:" + strings.Join(parts[len(parts)-2:], "/")
	require.Contains(s, s.keys, key)
	return []string{key}
}

// has reports whether a master has the lock, in all its keys.
func (s leadership) has(i int, m *redlock.Mutex) bool {
	s.Helper()
	if s.readers {
		return s.do(i, "TYPE", "k") == "zset" && s.do(i, "ZSCORE", "k", m.Token()) != nil
	}
	for _, key := range s.keysOf(m) {
		if s.do(i, "GET", key) != m.Token() {
			return false
		}
	}
	return true
}

// left is how many milliseconds the lock has left on a master, in that of its keys that ends first.
func (s leadership) left(i int, m *redlock.Mutex) (ms int64) {
	s.Helper()
	ms = math.MaxInt64
	for _, key := range s.keysOf(m) {
		ms = min(ms, s.do(i, "PTTL", key).(int64))
	}
	if s.readers && ms >= 0 { // which are in the key for terms of their own
		const term = `local t = redis.call('TIME')
return (redis.call('ZSCORE', 'k', ARGV[1]) or 0) - t[1] * 1000 - math.floor(t[2] / 1000)`
		ms = min(ms, s.do(i, "EVAL", term, "0", m.Token()).(int64))
	}
	return ms
}

// another gives a master to another, who excludes the lock there. It returns the keys.
func (s leadership) another(i int) []string {
	s.Helper()
	keys := s.keys
	if s.permits == 0 { // one of the keys is enough
		keys = keys[i%len(keys):][:1]
	}
	for _, key := range keys {
		s.do(i, "SET", key, "another's")
	}
	return keys
}

// holds waits until n masters have the mutex's token, as stragglers come.
func (s leadership) holds(m *redlock.Mutex, n int) {
	s.Helper()
	require.Eventually(s, func() bool { return s.having(m) == n }, 20*time.Second, 50*time.Millisecond)
}

// having is how many masters have the mutex's token.
func (s leadership) having(m *redlock.Mutex) (n int) {
	for i := range s.n {
		if s.has(i, m) {
			n++
		}
	}
	return n
}

// size is how many keys a master has, but for those that stay.
func (s leadership) size(i int) int64 {
	s.Helper()
	if s.stays == "" {
		return s.do(i, "EVAL", lockKeys, "0").(int64)
	}
	const count = `local n = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key ~= '{}:since' and (not string.find(key, ARGV[1]) or redis.call('PTTL', key) < 0) then
    n = n + 1
  end
end
return n`
	return s.do(i, "EVAL", count, "0", s.stays).(int64)
}

// noKeys waits until no master has any key.
func (s leadership) noKeys() {
	s.Helper()
	require.Eventually(s, func() bool {
		for i := range s.n {
			if s.size(i) != 0 {
				return false
			}
		}
		return true
	}, 20*time.Second, 5*time.Millisecond)
}

// refused waits in vain for what the lock excludes, and requires that the error says why.
func (s leadership) refused(why string) {
	s.Helper()
	for _, r := range s.excluded() {
		redlock.Refused(s, r.lock(s.client, long), why)
	}
}

func (s leadership) majority() int { return s.n/2 + 1 }

// spare is how many masters can fail.
func (s leadership) spare() int { return s.n - s.majority() }

func everySubset(s leadership) {
	for mask := range 1 << s.n {
		free := 0
		want := make([]int64, s.n)
		for i := range s.n {
			deleteLocks(s, s.masters, i)
			if mask&(1<<i) != 0 {
				want[i] = int64(len(s.another(i)))
			} else {
				free++
			}
		}
		m := s.lock(long)
		err := m.TryLock(s.Context())
		if free >= s.majority() {
			require.NoError(s, err)
			s.holds(m, free)
			require.NoError(s, m.Unlock(s.Context()))
		} else {
			require.ErrorIs(s, err, redlock.ErrHeld)
		}
		for i := range s.n {
			require.Eventually(s, func() bool { return s.size(i) == want[i] }, 20*time.Second, 5*time.Millisecond)
		}
	}
}

func secondTryLock(s leadership) {
	m := s.taken(long)
	free := s.takenUp()
	for _, r := range s.excluded() {
		err := r.lock(s.client, long).TryLock(s.Context())
		require.ErrorIs(s, err, redlock.ErrHeld)
		var round *redlock.RoundError
		require.ErrorAs(s, err, &round)
		require.Equal(s, r.key, round.Key)
		require.Len(s, round.Votes, s.n)
	}
	require.ErrorIs(s, m.TryLock(s.Context()), redlock.ErrHeld)
	require.NoError(s, m.Unlock(s.Context()))
	free()
	s.noKeys()
}

func extendRaises(s leadership) {
	var m, heir *redlock.Mutex
	for tries, extended := 0, false; !extended; tries++ { // again if a busy machine has taken a whole TTL
		require.Less(s, tries, 20)
		m = s.taken(short)
		heir = s.lock(long, redlock.WithToken(m.Token()))
		err := heir.Extend(s.Context())
		if extended = err == nil && m.Remaining() > 0; !extended {
			heir.Unlock(s.Context())
		}
	}
	if s.fenced { // the first extend asks for the fence by a script of its own
		raised := 0
		for i := range s.n {
			if s.left(i, heir) > short.Milliseconds() {
				raised++
			}
		}
		require.GreaterOrEqual(s, raised, s.majority())
	}
	require.NoError(s, heir.Extend(s.Context()), "it gives the key to one where it was over by then")
	for i := range s.n {
		require.Eventually(s, func() bool {
			return s.left(i, heir) > short.Milliseconds()
		}, 20*time.Second, 5*time.Millisecond)
	}
	require.Greater(s, heir.Remaining(), short)
	require.Eventually(s, func() bool { return m.Remaining() == 0 }, 20*time.Second, 5*time.Millisecond)
	require.ErrorIs(s, m.Extend(s.Context()), redlock.ErrNotHeld)
	require.NoError(s, heir.Unlock(s.Context()))
}

func extendSetsWhereFree(s leadership) {
	m := s.taken(long)
	s.holds(m, s.n)
	redlock.Confirmed(s, m)
	anothers, free := s.another(0), s.n-1
	s.masters.Flush(s.n - 1)
	if s.spare() < 2 { // one at a time
		s.do(0, "SET", "k", m.Token())
		anothers, free = nil, s.n
	}
	require.Eventually(s, func() bool { // an extension sets the key where it was told in time that it is gone
		return assert.NoError(s, m.Extend(s.Context())) && s.having(m) == free
	}, 20*time.Second, 50*time.Millisecond)
	for _, key := range anothers {
		require.Equal(s, "another's", s.do(0, "GET", key))
	}
}

func unlockExpired(s leadership) {
	m := s.taken(100 * time.Millisecond)
	settled(s, s.client) // or one gets the key later, and the next holder is refused there
	s.noKeys()
	require.Zero(s, m.Remaining())
	next := s.taken(long)
	require.ErrorIs(s, m.Unlock(s.Context()), redlock.ErrNotHeld)
	s.holds(next, s.n)
	require.NoError(s, next.Unlock(s.Context()))
}

func handOver(s leadership) {
	m := s.taken(long)
	settled(s, s.client) // or the release can come first
	elsewhere := s
	elsewhere.client = openOn(s, s.masters, nil)
	heir := elsewhere.lock(long, redlock.WithToken(m.Token()))
	require.NoError(s, heir.Extend(s.Context()))
	require.Positive(s, heir.Remaining())
	require.NoError(s, heir.Unlock(s.Context()))
	s.noKeys()
	require.ErrorIs(s, m.Unlock(s.Context()), redlock.ErrNotHeld)
}

func (s leadership) lost(held context.Context) {
	s.Helper()
	conntest.Soon(s, "the loss is noticed", held.Done())
	require.ErrorIs(s, context.Cause(held), redlock.ErrLost)
	require.ErrorIs(s, held.Err(), context.Canceled)
}

// lostBy does harm until the loss is found: a renewal that comes in between repairs
// what is a minority at that moment.
func (s leadership) lostBy(held context.Context, harm func()) {
	s.Helper()
	begun := time.Now()
	for found := false; !found; {
		require.Less(s, time.Since(begun), 20*time.Second, "the loss is not noticed")
		harm()
		select {
		case <-held.Done():
			found = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.lost(held)
}

func delMajority(s leadership) {
	m := s.taken(4 * short)
	held, _ := m.KeepAlive(s.Context())
	s.lostBy(held, func() {
		for i := range s.majority() {
			keys := s.keysOf(m)
			s.do(i, "DEL", keys[i%len(keys)]) // one is enough
		}
	})
	require.ErrorIs(s, m.Unlock(s.Context()), redlock.ErrNotHeld)
	s.noKeys()
}

func ttlRepaired(s leadership) {
	const ttl, shortened = 6 * time.Second, 5 * time.Second
	s.client = openWith(s, s.masters, redlock.Config{StallTime: time.Minute}) // one that is starved is not reset
	m := s.taken(ttl)
	s.holds(m, s.n)
	held, stop := m.KeepAlive(s.Context())
	defer stop()
	for i := range s.n {
		for _, key := range s.keysOf(m) {
			s.do(i, "PEXPIRE", key, fmt.Sprint(shortened.Milliseconds()))
		}
	}
	for _, key := range s.keysOf(m) {
		s.do(0, "PERSIST", key)
	}
	for i := range s.n {
		require.Eventually(s, func() bool {
			left := s.left(i, m)
			return left > shortened.Milliseconds() && left <= ttl.Milliseconds() || held.Err() != nil
		}, 20*time.Second, 5*time.Millisecond)
	}
	require.NoError(s, context.Cause(held))
	require.NoError(s, m.Unlock(s.Context()))
}

func handOffs(s leadership) {
	const lockers = 10
	times := 30
	if redlock.Raced { // it is several times as slow
		times = 10
	}
	ctx, cancel := context.WithTimeout(s.Context(), 5*time.Minute)
	defer cancel()
	clients := []*redlock.Client{s.client, openOn(s, s.masters, nil), openOn(s, s.masters, nil)}
	most := int64(max(1, s.permits))
	if s.readers {
		most = lockers
	}
	var inside, others, done atomic.Int64
	var fence atomic.Uint64
	holding := func(ctx context.Context) error {
		if inside.Add(1) > most || others.Load() > 0 {
			return errors.New("too many are inside")
		}
		if now := redlock.FenceFrom(ctx); s.fenced && !s.readers && fence.Swap(now) >= now {
			return errors.New("the fence has not grown")
		}
		runtime.Gosched()
		inside.Add(-1)
		done.Add(1)
		return nil
	}
	excluded := func(context.Context) error {
		if others.Add(1); inside.Load() > 0 {
			return errors.New("another is inside")
		}
		runtime.Gosched()
		others.Add(-1)
		done.Add(1)
		return nil
	}
	var all sync.WaitGroup
	for i := range lockers {
		r, inside := rival{"k", s.opts}, holding
		if len(s.rivals) > 0 && i%2 == 1 {
			r, inside = s.rivals[i/2%len(s.rivals)], excluded
		}
		all.Go(func() {
			for range times {
				if err := clients[i%len(clients)].Do(ctx, r.key, long, inside, r.opts...); err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(s, lockers*times, done.Load())
	s.noKeys()
}

func minorityFails(s leadership) {
	for i := range s.spare() {
		if i%2 == 0 {
			s.masters.Kill(i)
		} else {
			s.masters.Pause(i)
		}
	}
	m := s.taken(long)
	require.NoError(s, m.Extend(s.Context()))
	free := s.takenUp()
	for _, r := range s.excluded() {
		require.ErrorIs(s, r.lock(s.client, long).TryLock(s.Context()), redlock.ErrHeld)
	}
	require.NoError(s, m.Unlock(s.Context()))
	free()
	for i := range s.spare() {
		if i%2 == 0 {
			s.masters.Restart(i)
		} else {
			s.masters.Resume(i)
		}
	}
	s.noKeys()
}

func majorityHangs(s leadership) {
	s.client = openWith(s, s.masters, redlock.Config{StallTime: time.Minute}) // so that none is known to hang
	for i := range s.spare() + 1 {
		s.masters.Pause(i)
	}
	m := redlock.Within(s.lock(long), 50*time.Millisecond)
	err := m.TryLock(s.Context())
	require.ErrorIs(s, err, redlock.ErrNoQuorum)
	require.NotErrorIs(s, err, context.DeadlineExceeded, "nobody but the round was out of time")
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Millisecond)
	defer cancel()
	err = s.lock(long).TryLock(ctx) // whose round may take far longer
	require.ErrorIs(s, err, context.DeadlineExceeded)
	require.NotErrorIs(s, err, redlock.ErrNoQuorum, "they were not late yet")
	for i := range s.spare() + 1 {
		s.masters.Resume(i)
	}
	s.noKeys()
	require.NoError(s, m.Lock(s.Context()))
}

func scriptFlush(s leadership) {
	m := s.taken(long)
	forget := func() {
		for i := range s.n {
			s.do(i, "SCRIPT", "FLUSH")
		}
	}
	forget()
	require.NoError(s, m.Extend(s.Context()))
	forget()
	names := s.keys
	if s.permits > 0 {
		names = []string{"k"}
	}
	for _, key := range names {
		holders, err := redlock.OnEach(s.client, s.Context(), key, s.opts...)
		require.NoError(s, err)
		require.Len(s, holders, s.n)
		require.Equal(s, m.Token(), holders[0].Token.Reveal())
		require.Greater(s, holders[0].TTL, long/2)
		require.Equal(s, m.Fence(), holders[0].Fence)
	}
	forget()
	require.NoError(s, m.Unlock(s.Context()))
	s.noKeys()
}

func releaseRaces(s leadership) {
	for i := range 500 {
		ctx, cancel := context.WithCancel(s.Context())
		m := s.client.NewMutex(fmt.Sprint(i), long, s.opts...)
		acquired := make(chan error, 1)
		go func() { acquired <- m.TryLock(ctx) }()
		for begun, d := time.Now(), rand.N(300*time.Microsecond); time.Since(begun) < d; {
			runtime.Gosched()
		}
		cancel()
		if conntest.Soon(s, "the attempt ends", acquired) == nil {
			require.NoError(s, m.Unlock(context.Background()))
		}
	}
	s.noKeys()
}

// It is given the key when its quarantine is over. Then a round confirms that, before another is restarted.
func restarted(s leadership) {
	m := s.taken(3 * time.Second)
	held, stop := m.KeepAlive(s.Context())
	defer stop()
	for i := range s.n { // each in turn: in the end nobody has kept it from the start
		redlock.Confirmed(s, m)
		s.masters.Restart(i)
		require.Eventually(s, func() bool { return s.has(i, m) }, 20*time.Second, 100*time.Millisecond)
		s.holds(m, s.n)
	}
	require.NoError(s, context.Cause(held))
	require.NoError(s, m.Unlock(s.Context()))
}

// Rule 4 while every processor is busy.
func TestContextEndsInTimeOnASaturatedProcessor(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	s := newScene(t, masters)
	m := s.taken(3 * time.Second) // other tests' servers may want the processors, too
	held, _ := m.KeepAlive(t.Context())
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	stop := make(chan struct{})
	var spinning sync.WaitGroup
	calm := sync.OnceFunc(func() {
		close(stop)
		spinning.Wait()
	})
	defer calm() // also if it fails: nothing else would get on
	for range 4 {
		spinning.Go(func() {
			for n := 0; ; n++ {
				if n%1000 == 0 {
					select {
					case <-stop:
						return
					default:
					}
				}
			}
		})
	}
	renewed := s.client.Stats().Renewals
	for s.client.Stats().Renewals < renewed+1 {
		valid := m.Remaining() > 0
		require.False(t, held.Err() == nil && !valid)
		require.NoError(t, context.Cause(held), "renewals get through")
		time.Sleep(time.Millisecond) // between two looks
	}
	for i := range 2 {
		masters.Pause(i)
	}
	for valid := true; held.Err() == nil; valid = m.Remaining() > 0 {
		require.True(t, valid)
		time.Sleep(time.Millisecond) // between two looks
	}
	calm()
	s.lost(held)
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	open := func(cfg redlock.Config) error {
		cfg.DialTimeout = cmp.Or(cfg.DialTimeout, busy)
		client, err := redlock.Open(t.Context(), cfg)
		if err == nil {
			client.Close()
		}
		return err
	}
	a := masters.Addrs()
	for want, cfg := range map[string]redlock.Config{
		"no masters":          {},
		"given twice":         {Masters: []string{a[0], a[1], a[0]}},
		"unknown scheme":      {Masters: []string{"http://" + a[0]}},
		"at most 64":          {Masters: make([]string, 65)},
		"owner":               {Masters: a, Owner: "with space"},
		"drift factor":        {Masters: a, DriftFactor: 1},
		"a negative duration": {Masters: a, RoundTimeout: -1},
		"too few masters":     {Masters: []string{a[0], "127.0.0.1:1", "127.0.0.1:2"}, DialTimeout: 50 * time.Millisecond},
		"the same server":     {Masters: []string{a[0], "redis://" + a[0] + "/1"}},
	} {
		err := open(cfg)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "redlock: ")
	}
	// With a third master Open may return before the second address is connected.
	for _, twice := range []string{a[0], "redis://" + a[0] + "/1"} {
		require.ErrorIs(t, open(redlock.Config{Masters: []string{a[0], twice}}), mux.ErrDuplicate)
	}
	require.NoError(t, open(redlock.Config{Masters: []string{a[0], a[1], "127.0.0.1:1"}}), "a minority that is down")

	err := open(redlock.Config{Masters: []string{a[0], "127.0.0.1:1", "127.0.0.1:2"}, DialTimeout: 3 * time.Second})
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	var round *redlock.RoundError
	require.ErrorAs(t, err, &round)
	require.Equal(t, "yes", round.Votes[0].Verdict)
	require.Equal(t, "failed", round.Votes[1].Verdict)
	require.Error(t, round.Votes[1].Err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = redlock.Open(ctx, redlock.Config{Masters: a})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "(0 yes, 0 no, 0 failed, 3 outstanding; 2 of 3 needed)")
	require.ErrorAs(t, err, &round)
	for _, v := range round.Votes {
		require.Equal(t, "pending", v.Verdict)
	}
}

// What we set is what other Redlock libraries set, and the other way round.
func TestForeignLocksAreRespected(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := newScene(t, masters)
	for i := range 2 {
		s.do(i, "SET", "k", "c2hvcnQgdG9rZW4=", "NX", "PX", "30000")
	}
	require.ErrorIs(t, s.client.NewMutex("k", long).TryLock(t.Context()), redlock.ErrHeld)
	s.refused("held by somebody without a name on 2 of 3 masters")
	for i := range 2 {
		s.do(i, "DEL", "k")
		s.do(i, "LPUSH", "k", "no lock at all")
	}
	err := s.client.NewMutex("k", long).TryLock(t.Context())
	require.ErrorIs(t, err, redlock.ErrHeld)
	holders, err := redlock.OnEach(s.client, t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, census.Unknown, holders[0].Token)
	require.Negative(t, holders[0].TTL)
	require.Empty(t, holders[2].Token)
	stranger := s.client.NewMutex("k", long, redlock.WithToken("x"))
	require.ErrorIs(t, stranger.Extend(t.Context()), redlock.ErrNotHeld)
	require.ErrorIs(t, stranger.Unlock(t.Context()), redlock.ErrNotHeld)
	for i := range 2 {
		s.do(i, "DEL", "k")
	}
	s.noKeys()
	m := s.taken(long)
	s.holds(m, 3)
	for i := range 3 {
		require.Nil(t, s.do(i, "SET", "k", "theirs", "NX", "PX", "30000"))
	}
	require.NoError(t, m.Unlock(t.Context()))
}
