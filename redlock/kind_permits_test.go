package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// permitKeys is how many slots of a key are taken on a master.
func permitKeys(t *testing.T, masters *redlocktest.Masters, i int, key string, k int) (n int64) {
	t.Helper()
	args := []string{"EXISTS"}
	for slot := range k {
		args = append(args, fmt.Sprintf("{%s}:permit:%d/%d", key, slot+1, k))
	}
	return Says(t, masters, i, args...).(int64)
}

// takenPermits returns n Mutexes that hold a permit each.
func takenPermits(t *testing.T, c *Client, key string, k, n int, opts ...Option) (all []*Mutex) {
	t.Helper()
	for range n {
		m := c.NewMutex(key, 30*time.Second, append(opts, WithPermits(k))...)
		require.NoError(t, m.TryLock(t.Context()))
		all = append(all, m)
	}
	return all
}

func TestAsManyHoldersAsPermits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	clients := []*Client{opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)}
	for _, k := range []int{1, 2, 3, 7} {
		key := fmt.Sprint("k", k)
		var held []*Mutex
		for i := range k {
			held = append(held, takenPermits(t, clients[i%2], key, k, 1)...)
		}
		// An attempt at a slot that another's has not yet reached on every master can be in its way on the
		// last one. Extend repairs that.
		for i := range 3 {
			require.Eventually(t, func() bool {
				for _, m := range held {
					require.NoError(t, m.Extend(t.Context()))
				}
				return permitKeys(t, masters, i, key, k) == int64(k)
			}, hanging, 5*time.Millisecond)
		}
		next := clients[k%2].NewMutex(key, 30*time.Second, WithPermits(k))
		for slot := range k + 1 { // whichever it begins with, one that there is not included
			next.hold.SetNextSlot(slot)
			require.ErrorIs(t, next.TryLock(t.Context()), ErrHeld)
		}
		for _, m := range held {
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, next.TryLock(t.Context()), "whichever is free")
			require.NoError(t, next.Unlock(t.Context()))
		}
	}
}

// holdTogether has many take a permit, and counts them. It calls during while they do, once one has had it. Then k hold
// one at the same time, and no other does: how many of the many met is luck.
func holdTogether(t *testing.T, masters *redlocktest.Masters, k int, during func()) {
	each := bearable(30)
	var inside, most atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var last *Client // to be opened
	for range 3 {
		c, err := Open(t.Context(), Config{Masters: masters.Addrs(), RoundTimeout: 2 * time.Second, DialTimeout: hanging})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		last = c
		for g := range 4 {
			all.Go(func() {
				m := c.NewMutex("k", 30*time.Second, WithPermits(k))
				for range each {
					if g == 3 {
						for m.TryLock(ctx) != nil && ctx.Err() == nil { // also while a master is away
							time.Sleep(time.Millisecond) // before the next try
						}
					} else if err := m.Lock(ctx); err != nil {
						t.Error(err)
						return
					}
					if m.Remaining() == 0 {
						t.Error("it was not taken")
						return
					}
					now := inside.Add(1)
					for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
					}
					time.Sleep(time.Millisecond) // the work
					inside.Add(-1)
					if err := m.Unlock(context.Background()); err != nil && !errors.Is(err, ErrNoQuorum) {
						t.Error(err)
					}
				}
			})
		}
	}
	require.Eventually(t, func() bool { return most.Load() > 0 }, hanging, 5*time.Millisecond)
	during()
	all.Wait()
	require.LessOrEqual(t, most.Load(), int64(k), "holders at the same time")
	for range k {
		require.NoError(t, last.NewMutex("k", 30*time.Second, WithPermits(k)).Lock(ctx))
	}
	require.ErrorIs(t, last.NewMutex("k", 30*time.Second, WithPermits(k)).TryLock(ctx), ErrHeld)
}

func TestPermitsSurviveAMinority(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(m *redlocktest.Masters){
		"dead":   func(m *redlocktest.Masters) { m.Kill(1) },
		"hung":   func(m *redlocktest.Masters) { m.Pause(1) },
		"forgot": func(m *redlocktest.Masters) { m.Kill(1); m.Restart(1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			holdTogether(t, masters, 3, func() { harm(masters) })
		})
	}
}

// Another is faster at one slot after the other, each time after an attempt has looked and before it tries. It goes on
// with the next, and gives up after eight, though others are free.
func TestAnAttemptGoesOnWhenAnotherIsFaster(t *testing.T) {
	t.Parallel()
	const k = 20
	for lost, want := range map[int]error{1: nil, 8: nil, 9: ErrHeld} {
		masters, c := started(t, 3)
		m := c.NewMutex("k", 30*time.Second, WithPermits(k), WithOwner("slow"))
		real, tried := c.round.Mux, 0
		c.round.Mux = &askedRounds{Mux: real, asking: func(op *mux.Op) {
			if !strings.Contains(string(op.Command), "slow/") {
				return
			}
			for i := range masters.Addrs() {
				if tried < lost {
					Says(t, masters, i, "SET", fmt.Sprintf("{k}:permit:%d/%d", m.hold.NextSlot(), k), "another's")
				}
			}
			tried++
		}}
		err := m.TryLock(t.Context())
		c.round.Mux = real
		require.ErrorIs(t, err, want)
		require.Equal(t, min(lost+1, 1+8), tried)
	}
}

// askedRounds have a test do something before an operation is asked, and before it returns.
type askedRounds struct {
	round.Mux
	asking, answered func(op *mux.Op)
}

func (r *askedRounds) Do(ctx context.Context, op *mux.Op) error {
	r.Post(op)
	return r.Wait(ctx, op)
}

func (r *askedRounds) Post(ops ...*mux.Op) {
	if r.asking != nil {
		r.asking(ops[0])
	}
	r.Mux.Post(ops...)
}

func (r *askedRounds) Wait(ctx context.Context, op *mux.Op) error {
	if r.answered != nil {
		defer r.answered(op)
	}
	return r.Mux.Wait(ctx, op)
}

// What is kept beside a lock may be another's token, by whose means another could be released: no error
// quotes it.
func TestNoErrorQuotesWhatIsNoNumberOfPermits(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	another := c.NewMutex("another", time.Minute)
	require.NoError(t, another.TryLock(t.Context()))
	for _, text := range []string{another.Token(), "secret", "12345"} {
		for i := range 3 {
			Says(t, masters, i, "SET", "{k}:permits", text)
		}
		err := c.NewMutex("k", time.Minute, WithPermits(2)).TryLock(t.Context())
		require.ErrorContains(t, err, "PERMITS {k}:permits says no number, and not 2")
		require.NotContains(t, err.Error(), text[:4])
	}
}

// Those who do not agree on k: the second is refused, whoever that is, however it takes the lock, and
// for as long as the first holds it.
func TestAnotherNumberOfPermitsIsRefused(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i, k := range [][2]int{{3, 4}, {4, 3}, {1, 2}} {
		c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
		key := fmt.Sprint("k", i)
		refused := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, ErrNoQuorum)
			var reply *mux.ReplyError
			require.ErrorAs(t, err, &reply)
			require.Equal(t, "PERMITS", reply.Code)
			require.Contains(t, reply.Message, fmt.Sprintf("{%s}:permits says %d, and not %d", key, k[0], k[1]))
		}
		first := takenPermits(t, c, key, k[0], 1)[0]
		for i := range 3 { // or the second would leave its own on the last of them
			SoonSays(t, masters, i, fmt.Sprint(k[0]), "GET", "{"+key+"}:permits")
		}
		second := other.NewMutex(key, 30*time.Second, WithPermits(k[1]))
		refused(second.TryLock(t.Context()))
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, first.TryLock(t.Context()), "by a plain SET")
		refused(second.TryLock(t.Context()))

		for i := range 3 { // the mark has gone, and an extend sets it again
			Says(t, masters, i, "DEL", "{"+key+"}:permits")
		}
		require.NoError(t, first.Extend(t.Context()))
		refused(second.TryLock(t.Context()))
		require.NoError(t, first.Unlock(t.Context()))
	}
}

// A client with another number waits in Lock for as long as the masters know of the first one. It says so,
// is in the way of nobody, and leaves its number nowhere.
func TestALockWaitsUntilAnotherNumberIsGone(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	said := make(chan error, 9)
	c := opened(t, masters.Addrs(), nil)
	waited := make(chan error, 9)
	other := opened(t, masters.Addrs(), slices.Concat(
		onEvent(EventRound, func(r *Event) {
			if r.Op == opLock && r.Err != nil {
				said <- r.Err
			}
		}),
		onEvent(EventWaited, func(e *Event) { waited <- e.Err }),
	))
	var asked atomic.Int64
	other.round.Mux = &askedRounds{Mux: other.round.Mux, answered: func(*mux.Op) { asked.Add(1) }}
	first := takenPermits(t, c, "k", 2, 1)[0]
	for i := range 3 {
		SoonSays(t, masters, i, "2", "GET", "{k}:permits")
	}
	ctx, cancel := context.WithCancel(t.Context())
	m, done := other.NewMutex("k", term30, WithPermits(3)), make(chan error, 1)
	go func() { done <- m.Lock(ctx) }()
	require.ErrorContains(t, conntest.Soon(t, "the Observer is told", said), "{k}:permits says 2, and not 3")
	require.Eventually(t, func() bool { return other.Stats().Waiting == 1 }, hanging, 5*time.Millisecond)
	right := other.NewMutex("k", term30, WithPermits(2))
	require.NoError(t, right.Lock(t.Context()), "it waits for nobody with another number")
	require.NoError(t, right.Unlock(t.Context()))
	require.Eventually(t, func() bool { return other.Stats().EventsWaiting == 0 }, hanging, time.Millisecond)
	for len(waited) > 0 {
		require.NoError(t, <-waited, "of the right number")
	}

	require.Eventually(t, func() bool { return owed(c)+owed(other) == 0 }, hanging, 5*time.Millisecond)
	Says(t, masters, 0, "DEL", "{k}:permits")
	before := asked.Load()
	require.Eventually(t, func() bool { return asked.Load() >= before+2 }, hanging, 5*time.Millisecond)
	require.Zero(t, Says(t, masters, 0, "EXISTS", "{k}:permits"), "it only asks")
	require.Empty(t, done)
	cancel()
	err := conntest.Soon(t, "it gives up", done)
	require.ErrorIs(t, err, ErrNoQuorum)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "PERMITS {k}:permits says 2, and not 3")
	require.Equal(t, err, conntest.Soon(t, "the Observer is told", waited))

	has := locks(t, m)
	require.NoError(t, first.Unlock(t.Context()))
	for i := range 3 {
		Says(t, masters, i, "DEL", "{k}:permits")
	}
	comes(t, has)
	require.Positive(t, m.Remaining())
	require.NoError(t, conntest.Soon(t, "the Observer is told once", waited))
	require.Zero(t, other.Stats().Waiting)

	closing := opened(t, masters.Addrs(), nil)
	wrong := locks(t, closing.NewMutex("k", term30, WithPermits(2)))
	require.NoError(t, closing.Close())
	require.ErrorIs(t, conntest.Soon(t, "it is closed", wrong), ErrClosed)
}

// Others begin anew with their number each time that a waiter has seen that nobody has one. It waits on, and counts once.
func TestALockThatWaitsForItsNumberAgainCountsOnce(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	everywhere := func(args ...string) {
		for i := range masters.N() {
			_, err := masters.Do(i, args...)
			assert.NoError(t, err)
		}
	}
	tries := make(chan struct{}, 100)
	c.round.Mux = &askedRounds{Mux: c.round.Mux, asking: func(op *mux.Op) {
		switch command := string(op.Command); {
		case strings.Contains(command, "late/"):
			everywhere("SET", "{k}:permits", "2")
			tries <- struct{}{}
		case strings.Contains(command, "{k}:permits"):
			everywhere("DEL", "{k}:permits")
		}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.NewMutex("k", term30, WithPermits(3), WithOwner("late")).Lock(ctx) }()
	for range 6 {
		conntest.Soon(t, "it tries again", tries)
	}
	require.EqualValues(t, 1, c.Stats().Waiting)
	cancel()
	require.ErrorIs(t, conntest.Soon(t, "it gives up", done), context.Canceled)
	require.Zero(t, c.Stats().Waiting)
}

// A fleet changes its number of permits without a pause, in the three steps of docs/kinds.md. There are
// never more than the first number as long as one process runs that knows nothing of the second.
func TestPermitsAreChangedInThreeSteps(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for name, k := range map[string][2]int{"more": {2, 3}, "fewer": {3, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inside, most atomic.Int64
			work := func(context.Context) error {
				now := inside.Add(1)
				for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
				}
				time.Sleep(2 * time.Millisecond) // the work
				inside.Add(-1)
				return nil
			}
			old, next := WithPermits(k[0]), WithPermits(k[1])
			versions := []func(ctx context.Context, c *Client) error{
				func(ctx context.Context, c *Client) error { return c.Do(ctx, name, term30, work, old) },
				func(ctx context.Context, c *Client) error {
					return c.Do(ctx, name, term30, func(ctx context.Context) error {
						return c.Do(ctx, name+"/next", term30, work, next)
					}, old)
				},
				func(ctx context.Context, c *Client) error { return c.Do(ctx, name+"/next", term30, work, next) },
			}
			const processes, goroutines = 3, 2
			var turns [processes]atomic.Int64
			run := func(process, version int) (stop func()) {
				c := opened(t, masters.Addrs(), nil)
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				for range goroutines {
					running.Go(func() {
						for ctx.Err() == nil {
							if err := versions[version](ctx, c); err == nil {
								turns[process].Add(1)
							} else if ctx.Err() == nil {
								t.Error(err)
								return
							}
						}
					})
				}
				return func() {
					cancel()
					conntest.AllEnd(t, "it ends", &running)
				}
			}
			all := func() { // have their turns
				t.Helper()
				for i := range turns {
					before := turns[i].Load()
					require.Eventually(t, func() bool { return turns[i].Load() >= before+int64(bearable(6)) }, time.Minute, 5*time.Millisecond)
				}
			}
			var stops [processes]func()
			for i := range stops {
				stops[i] = run(i, 0)
			}
			for version := 1; version < len(versions); version++ {
				for i := range stops {
					all()
					stops[i]()
					stops[i] = run(i, version)
				}
				all()
				require.LessOrEqual(t, most.Swap(0), int64(k[version-1]))
			}
			require.Eventually(t, func() bool { return most.Load() == int64(k[1]) }, time.Minute, 5*time.Millisecond, "all are used")
			for _, stop := range stops {
				stop()
			}
			require.LessOrEqual(t, most.Load(), int64(k[1]))
		})
	}
}

// The mark lasts for as long as the longest of the locks, whoever else takes, extends, or hands one over.
func TestTheMarkOutlivesTheLongestLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	lasts := func(why string) {
		t.Helper()
		v := Says(t, masters, 0, "PTTL", "{k}:permits")
		require.Greater(t, time.Duration(v.(int64))*time.Millisecond, time.Hour, why)
	}
	long := c.NewMutex("k", time.Hour, WithPermits(2))
	require.NoError(t, long.TryLock(t.Context()))
	brief := other.NewMutex("k", 10*time.Second, WithPermits(2))
	require.NoError(t, brief.TryLock(t.Context()))
	lasts("it was taken for less")
	require.NoError(t, brief.Extend(t.Context()))
	lasts("it was extended for less")

	Says(t, masters, 0, "PEXPIRE", "{k}:permits", "100000") // as if time had passed
	heir := other.NewMutex("k", time.Hour, WithPermits(2), WithToken(long.Token()))
	require.NoError(t, heir.Extend(t.Context()))
	lasts("it was handed over")
	require.NoError(t, heir.Unlock(t.Context()))

	Says(t, masters, 0, "PEXPIRE", "{k}:permits", "100000")
	require.NoError(t, other.NewMutex("k", time.Hour, WithPermits(2)).TryLock(t.Context()))
	lasts("its client has taken it for less")
}

// The release of a slot that the waiter's lock has not is no reason to take that: its Mutex has another
// number of permits.
func TestAWaiterTakesNoSlotBeyondItsPermits(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	held := takenPermits(t, c, "k", 2, 2)
	waiter := c.NewMutex("k", 30*time.Second, WithPermits(2))
	done := locks(t, waiter)
	for slot := range 4 {
		token := fmt.Sprintf("another's.%d.4", slot+1)
		require.ErrorIs(t, c.NewMutex("k", 30*time.Second, WithPermits(4), WithToken(token)).Unlock(t.Context()), ErrNotHeld)
	}
	time.Sleep(50 * time.Millisecond) // nothing says that it will never take one
	require.Empty(t, done, "two hold it")
	require.NoError(t, held[1].Unlock(t.Context()))
	comes(t, done)
	require.NoError(t, waiter.Unlock(t.Context()))
	nobodys := c.NewMutex("l", 30*time.Second, WithPermits(3), WithToken(".1.3"))
	require.ErrorIs(t, nobodys.Extend(t.Context()), ErrNotHeld)
}

func TestWhatGoesNotWithPermits(t *testing.T) {
	t.Parallel()
	c, _ := newFake(t, 3, Config{})
	for want, opts := range map[string][]Option{
		"0 permits are not possible":                                      {WithPermits(0)},
		"-1 permits are not possible":                                     {WithPermits(-1)},
		"1001 permits are not possible":                                   {WithPermits(1001)},
		"500 permits on a key of 16000 bytes":                             {WithPermits(500)},
		"a lock with permits has no fence: WithPermits and WithFence":     {WithPermits(2), WithFence()},
		"a lock with permits has no fence: WithPermits and WithFence\x00": {WithFence(), WithPermits(2)},
		"WithPermits and WithKeys do not go together":                     {WithPermits(2), WithKeys("l")},
		"WithPermits and WithShared do not go together":                   {WithPermits(2), WithShared()},
		"WithShared and WithKeys do not go together":                      {WithShared(), WithKeys("l")},
	} {
		key := "k"
		if strings.HasPrefix(want, "500") {
			key = strings.Repeat("k", 16000)
		}
		require.ErrorContains(t, c.CheckMutex(key, time.Second, opts...), strings.TrimSuffix(want, "\x00"))
	}
	for _, token := range []string{"x", "x.1.4", "x.0.3", "x.4.3", "x.01.3"} {
		require.ErrorContains(t, c.CheckMutex("k", time.Second, WithPermits(3), WithToken(token)), "handed over", token)
	}
}

// A Mutex is one holder, also of a lock that several can have: of two attempts at the same time, that both have
// taken one, the first to know has it, and what the other has set is released.
func TestAMutexHoldsOnePermitOrIsOneReader(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for name, opt := range map[string]Option{"permits": WithPermits(8), "shared": WithShared()} {
		c := opened(t, masters.Addrs(), nil)
		m := c.NewMutex(name, time.Minute, opt, WithOwner("both"))
		taken, both, known := make(chan struct{}), make(chan struct{}), make(chan struct{})
		wait := func(what string, done <-chan struct{}) {
			select {
			case <-done:
			case <-time.After(hanging):
				t.Error(name, what)
			}
		}
		var won atomic.Int64
		c.round.Mux = &askedRounds{Mux: c.round.Mux, answered: func(op *mux.Op) {
			yes := 0
			for _, v := range op.Votes {
				if v.Verdict == mux.VerdictYes {
					yes++
				}
			}
			if !strings.Contains(string(op.Command), "both/") || yes < 2 {
				return
			}
			switch won.Add(1) {
			case 1:
				close(taken)
				wait("the second has not taken one", both)
			case 2:
				close(both)
				wait("the first does not return", known)
			}
		}}
		second := make(chan error, 1)
		go func() {
			wait("the first has not taken one", taken)
			second <- m.TryLock(t.Context())
		}()
		require.NoError(t, m.TryLock(t.Context()), name)
		token := m.Token()
		close(known)
		require.ErrorIs(t, <-second, ErrHeld, name)
		require.Equal(t, token, m.Token(), name)
		require.Eventually(t, func() bool {
			all, err := OnEach(c, t.Context(), name, opt)
			require.NoError(t, err)
			return !slices.ContainsFunc(all, func(h Said) bool { return h.Token.Reveal() != token })
		}, hanging, 5*time.Millisecond, "%s: nothing is left of the second", name)
		require.NoError(t, m.Unlock(t.Context()))
	}
}

// A Mutex that takes a permit, or a reader's lock, beside the one that was handed over to it has one.
func TestAMutexGivesBackWhatWasHandedOverToIt(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	for name, opt := range map[string]Option{"permits": WithPermits(4), "shared": WithShared()} {
		first := c.NewMutex(name, time.Minute, opt)
		require.NoError(t, first.TryLock(t.Context()))
		heir := c.NewMutex(name, time.Minute, opt, WithToken(first.Token()))
		require.NoError(t, heir.TryLock(t.Context()), name)
		require.NotEqual(t, first.Token(), heir.Token())
		require.Eventually(t, func() bool {
			all, err := OnEach(c, t.Context(), name, opt)
			require.NoError(t, err)
			return !slices.ContainsFunc(all, func(h Said) bool { return h.Token.Reveal() != heir.Token() })
		}, hanging, 5*time.Millisecond, name)
		require.NoError(t, heir.Unlock(t.Context()))
	}
}

func TestHoldersOfPermits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	const k = 4
	held := takenPermits(t, c, "k", k, 2)
	require.Eventually(t, func() bool {
		all, err := OnEach(other, t.Context(), "k", WithPermits(k))
		require.NoError(t, err)
		seen := map[string]int{}
		for _, h := range all {
			require.NoError(t, h.Err)
			if h.Token.IsZero() { // a SET that is late
				return false
			}
			seen[h.Token.Reveal()]++
			require.Positive(t, h.TTL)
			require.Equal(t, c.owner, h.Owner())
			_, slot, of := kind.CutSlot(h.Token.Reveal())
			require.Equal(t, []int{h.Permit, k}, []int{slot, of})
		}
		require.LessOrEqual(t, len(all), 3*2)
		return len(seen) == 2 && seen[held[0].Token()] == 3 && seen[held[1].Token()] == 3
	}, hanging, 5*time.Millisecond)

	_, err := other.Holders(t.Context(), "k", WithPermits(0))
	require.ErrorContains(t, err, "0 permits are not possible")

	takenPermits(t, c, "k", k, 1)
	soon := c.NewMutex("k", 20*time.Second, WithPermits(k))
	require.NoError(t, soon.TryLock(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = other.NewMutex("k", 30*time.Second, WithPermits(k)).Lock(ctx)
	var e *RoundError
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, ErrHeld)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	if e.HeldBy != "" { // it asks for a few milliseconds only
		require.Equal(t, c.owner, e.HeldBy)
		require.LessOrEqual(t, e.HeldFor, 20*time.Second, "the one that ends first")
	}
	masters.Pause(2)
	defer masters.Resume(2)
	ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	all, err := OnEach(other, ctx, "k", WithPermits(k))
	require.NoError(t, err)
	for _, h := range all {
		require.Equal(t, h.Addr == masters.Addr(2), h.Err != nil)
	}
	require.Equal(t, masters.Addr(2), all[len(all)-1].Addr)
}

// A permit that a minority of the masters has is held by nobody, and is not among those that are used.
func TestAPermitOfAMinorityIsNotUsed(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		masters, c := started(t, n)
		const k = 2
		held := takenPermits(t, c, "k", k, k)
		used := func() (n int) {
			require.Eventually(t, func() bool { // a busy machine may not answer in time
				info, err := c.Holders(t.Context(), "k", WithPermits(k))
				n = info.Used
				return err == nil && info.Held == (n == k)
			}, hanging, 5*time.Millisecond)
			return n
		}
		require.Eventually(t, func() bool { return used() == k }, hanging, 5*time.Millisecond)
		key := kind.NewPermits("k", 0, k).AppendKey(nil, []byte(held[1].Token()))
		for i := range n/2 + 1 {
			require.Equal(t, k, used(), "%d of %d masters have lost it", i, n)
			Says(t, masters, i, "DEL", string(key))
		}
		require.Equal(t, 1, used())
	}
}

// A plain lock on the same key, and whoever waits for it, is another thing.
func TestPermitsAreNotInTheWayOfAPlainLock(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	held := c.NewMutex("k", 30*time.Second)
	require.NoError(t, held.TryLock(t.Context()))
	waits := parked(t, c, "k")
	permits := takenPermits(t, c, "k", 2, 2)
	done := make(chan error, 1)
	go func() { done <- c.NewMutex("k", 30*time.Second, WithPermits(2)).Lock(t.Context()) }()
	require.Eventually(t, func() bool { return c.Stats().Waiting == 2 }, hanging, 5*time.Millisecond)
	require.NoError(t, permits[0].Unlock(t.Context()))
	comes(t, done)
	require.NoError(t, held.Unlock(t.Context()))
	comes(t, waits)
}

// Masters that cannot notify are polled.
func TestWhoWaitsForAPermitPollsWhereNoMasterCanNotify(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3) // without CLIENT TRACKING
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	held := takenPermits(t, c, "k", 3, 3)
	done := make(chan error, 1)
	go func() { done <- other.NewMutex("k", 30*time.Second, WithPermits(3)).Lock(t.Context()) }()
	require.Eventually(t, func() bool { return other.Stats().Waiting == 1 }, hanging, 5*time.Millisecond)
	require.NoError(t, held[1].Unlock(t.Context()))
	comes(t, done)
	require.Positive(t, other.Stats().more.WokenPoll)
}

// The most permits that are possible, on the longest key, can be read at once.
func TestManyPermits(t *testing.T) {
	t.Parallel()
	_, c := started(t, 3)
	key := "k"
	for kind.PermitsFit(key+"k", kind.MaxPermits) {
		key += "k"
	}
	m := c.NewMutex(key, 30*time.Second, WithPermits(kind.MaxPermits))
	require.NoError(t, m.TryLock(t.Context()))
	other := c.NewMutex(m.Key(), 30*time.Second, WithPermits(kind.MaxPermits))
	other.hold.SetNextSlot(m.hold.NextSlot() - 1)
	require.NoError(t, other.TryLock(t.Context()), "the other 999 are free")
	require.NotEqual(t, m.hold.NextSlot(), other.hold.NextSlot())
}
