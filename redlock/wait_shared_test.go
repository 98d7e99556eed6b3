package redlock

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// locks starts to wait for a lock.
func locks(t *testing.T, m *Mutex) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	waiting := m.client.Stats().Waiting
	go func() { done <- m.Lock(t.Context()) }()
	require.Eventually(t, func() bool { return m.client.Stats().Waiting > waiting }, hanging, 5*time.Millisecond)
	return done
}

// intents counts the masters on which a writer has left its intent.
func intents(t *testing.T, masters *redlocktest.Masters, key string) (n int) {
	t.Helper()
	for i := range masters.N() {
		n += int(Says(t, masters, i, "EXISTS", kind.IntentKey(key)).(int64))
	}
	return n
}

// lasts has an intent last for ever, if it is neither left again nor taken away.
func lasts(t *testing.T, masters *redlocktest.Masters, key string) {
	t.Helper()
	for i := range masters.N() {
		Says(t, masters, i, "PERSIST", kind.IntentKey(key))
	}
}

// A writer that waits for readers keeps new ones out. Those that are there may stay, and renew. When
// it has given up, the way is free.
func TestAWritersIntentKeepsNewReadersOut(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	there := c.NewMutex("k", term30, WithShared())
	require.NoError(t, there.Lock(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- other.NewMutex("k", term30).Lock(ctx) }()
	late := c.NewMutex("k", term30, WithShared())
	require.Eventually(t, func() bool { // a reader that comes and goes has the writer see that
		if late.TryLock(t.Context()) == nil {
			late.Unlock(t.Context())
		}
		return intents(t, masters, "k") == 3
	}, hanging, 10*time.Millisecond)
	require.ErrorIs(t, late.TryLock(t.Context()), ErrHeld)
	require.NoError(t, there.Extend(t.Context()))
	time.Sleep(kind.IntentLife + 500*time.Millisecond) // it would end meanwhile, on real masters
	require.Equal(t, 3, intents(t, masters, "k"), "it is left again")
	lasts(t, masters, "k")
	cancel()
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	require.Eventually(t, func() bool { return intents(t, masters, "k") == 0 }, hanging, 5*time.Millisecond)
	require.NoError(t, late.TryLock(t.Context()))
}

// A writer that gives up while nobody knows yet whether its intent is there takes it away, too.
func TestAWriterTakesAwayAnIntentThatWasNotAnswered(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	there := c.NewMutex("k", term30, WithShared())
	require.NoError(t, there.Lock(t.Context()))
	members(t, masters, there, 3)
	ctx, cancel := context.WithCancel(t.Context())
	other.round.Mux = &unansweredRounds{Mux: other.round.Mux, asked: func(ctx context.Context) context.Context {
		cancel()
		return ctx
	}}
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- other.NewMutex("k", term30).Lock(ctx) }()
	late := c.NewMutex("k", term30, WithShared())
	require.Eventually(t, func() bool {
		if late.TryLock(t.Context()) == nil {
			late.Unlock(t.Context())
		}
		return len(gaveUp) > 0
	}, hanging, 10*time.Millisecond)
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	for i := range 3 {
		masters.Do(i, "PERSIST", kind.IntentKey("k")) // it lasts, if it is not taken away
	}
	require.Eventually(t, func() bool { return intents(t, masters, "k") == 0 }, hanging, 5*time.Millisecond)
}

// So does one whose intent was set by a master that nobody has waited for, as the others had no readers.
func TestAWriterTakesAwayAnIntentThatCameLate(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	late := (queueMasterOf(t, c, "k") + 1) % 3
	writes := func(token string) {
		for i := range 3 {
			if i != late {
				Says(t, masters, i, "SET", "k", token)
			}
		}
	}
	Says(t, masters, late, "ZADD", "k", "9999999999999", "a reader")
	writes("a writer")
	ctx, cancel := context.WithCancel(t.Context())
	decided := make(chan error, 1)
	other.round.Mux = &lateIntent{other.round.Mux, func(err error) {
		decided <- err
		cancel()
	}, func() { masters.Pause(late) }}
	gaveUp := make(chan error, 1)
	go func() { gaveUp <- other.NewMutex("k", term30).Lock(ctx) }()
	for n := 0; len(gaveUp) == 0; n++ { // each change has it look
		writes(fmt.Sprint("writer ", n))
		time.Sleep(10 * time.Millisecond) // before the next change
	}
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	require.NoError(t, <-decided, "the two that have no readers have decided it")
	masters.Resume(late)
	after := other.NewMutex("after", term30)
	require.NoError(t, after.Lock(t.Context()))
	require.Eventually(t, func() bool { // then that master has done all that came before
		v, err := masters.Do(late, "EXISTS", "after")
		return err == nil && v == int64(1)
	}, hanging, 5*time.Millisecond)
	require.Zero(t, intents(t, masters, "k"))
}

// lateIntent has a master stop before a writer leaves its intent. The writer waits for the others,
// however long they take.
type lateIntent struct {
	round.Mux
	decided func(error)
	stop    func()
}

func (r *lateIntent) Post(ops ...*mux.Op) {
	if asks(ops[0], kind.IntendScript) {
		r.stop()
		ops[0].Timeout = hanging
	}
	r.Mux.Post(ops...)
}

func (r *lateIntent) Wait(ctx context.Context, op *mux.Op) error {
	err := r.Mux.Wait(ctx, op)
	if asks(op, kind.IntendScript) {
		r.decided(err)
	}
	return err
}

// panicOfALock has a writer wait, and tells what its Lock panics with.
func panicOfALock(t *testing.T, c *Client) <-chan any {
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		c.NewMutex("k", term30).Lock(t.Context())
	}()
	return panicked
}

// extendUntil extends a reader's lock until a condition holds. Each extend has a writer that waits try, and look.
func extendUntil(t *testing.T, there *Mutex, holds func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.NoError(t, there.Extend(t.Context()))
		return holds()
	}, hanging, 10*time.Millisecond)
}

// So does one that a context's panic takes out of its Lock.
func TestAWriterThatPanicsTakesItsIntentAway(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	var armed atomic.Bool
	c := opened(t, masters.Addrs(), nil)
	other := opened(t, masters.Addrs(), nil)
	other.events.hook(behind.Wake, func(*Event) {
		if armed.Load() {
			panic("the user's")
		}
	})
	there := c.NewMutex("k", term30, WithShared())
	require.NoError(t, there.Lock(t.Context()))
	panicked := panicOfALock(t, other)
	extendUntil(t, there, func() bool { return intents(t, masters, "k") == 3 })
	armed.Store(true)
	extendUntil(t, there, func() bool { return len(panicked) > 0 })
	require.Equal(t, "the user's", <-panicked)
	for i := range 3 {
		masters.Do(i, "PERSIST", kind.IntentKey("k")) // it lasts, if it is not taken away
	}
	require.Eventually(t, func() bool { return intents(t, masters, "k") == 0 }, hanging, 5*time.Millisecond)
}

// A caller's context may panic while the intent is under way.
func TestAWriterWhoseContextPanicsTakesItsIntentAway(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	var f fuse // it panics as soon as it is used
	rounds := &unansweredRounds{Mux: other.round.Mux, asked: func(ctx context.Context) context.Context { return brittle{ctx, &f} }}
	other.round.Mux = rounds
	there := c.NewMutex("k", term30, WithShared())
	require.NoError(t, there.Lock(t.Context()))
	panicked := panicOfALock(t, other)
	extendUntil(t, there, func() bool { return len(panicked) > 0 })
	require.Equal(t, "the caller's", <-panicked)
	require.True(t, rounds.withdrawn.Load())
}

// unansweredRounds wait with another context for the answers to an intent.
type unansweredRounds struct {
	round.Mux
	asked     func(ctx context.Context) context.Context
	withdrawn atomic.Bool
}

func (r *unansweredRounds) Wait(ctx context.Context, op *mux.Op) error {
	if asks(op, kind.IntendScript) {
		ctx = r.asked(ctx)
	}
	return r.Mux.Wait(ctx, op)
}

func (r *unansweredRounds) Send(op *mux.Op) {
	r.withdrawn.Store(r.withdrawn.Load() || asks(op, kind.WithdrawScript))
	r.Mux.Send(op)
}

// A reader that waits for a writer's turn is notified that the writer has given up.
func TestAReaderIsNotifiedThatAnIntentHasGone(t *testing.T) {
	masters, c := started(t, 3)
	for i := range 3 {
		Says(t, masters, i, "SET", kind.IntentKey("k"), "1 a writer", "PX", "300000")
	}
	m, w := c.NewMutex("k", term30, WithShared()), line.NewWaiter(&c.line)
	defer w.End()
	told := sleeps(t, w)
	require.Eventually(t, func() bool { // a look is brief, and a busy machine may not answer it
		c.looks.Listen(w, m.spec())
		p, err := c.looks.Look(t.Context(), m.spec(), w)
		require.NoError(t, err)
		require.False(t, p.Free)
		return p.WillNotify
	}, hanging, 5*time.Millisecond)
	for i := range 3 {
		Says(t, masters, i, "DEL", kind.IntentKey("k"))
	}
	select {
	case <-told:
	case <-time.After(hanging):
		t.Fatal("nobody has told")
	}
}

// An intent is its writer's: another neither has it live on nor takes it away.
func TestAWriterLeavesAnothersIntentAlone(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	do := Asker(t, masters)
	for _, k := range []kind.Intending{kind.Plain{}, kind.NewSeveral([]string{"j", "k"})} {
		intend := func(token string) any {
			var r kind.Request
			k.Intend(&r, "k", []byte(token))
			return do(words(r.Fallback)...)
		}
		withdraw := func(token string) any {
			var r kind.Request
			k.Withdraw(&r, "k", []byte(token))
			return do(words(r.Fallback)...)
		}
		require.EqualValues(t, 0, intend("one"), "nobody reads")
		require.EqualValues(t, 0, do("EXISTS", kind.IntentKey("k")))
		do("ZADD", "k", "9999999999999", "a reader")
		require.EqualValues(t, 1, intend("one"))
		do("PEXPIRE", kind.IntentKey("k"), "100000")
		require.EqualValues(t, 1, intend("two"), "one intent is good for both")
		require.Greater(t, do("PTTL", kind.IntentKey("k")), int64(50_000))
		require.EqualValues(t, 0, withdraw("two"))
		require.EqualValues(t, 1, intend("one"))
		require.LessOrEqual(t, do("PTTL", kind.IntentKey("k")), kind.IntentLife.Milliseconds())
		require.EqualValues(t, 1, withdraw("one"))
		require.EqualValues(t, 0, do("EXISTS", kind.IntentKey("k")))
		do("DEL", "k")
	}
}

// masterNow returns the time of a master, in milliseconds since 1970.
func masterNow(t *testing.T, masters *redlocktest.Masters, i int) (ms int64) {
	t.Helper()
	v := Says(t, masters, i, "TIME")
	for j, unit := range []int64{1_000_000, 1} {
		n, err := strconv.ParseInt(v.([]any)[j].(string), 10, 64)
		require.NoError(t, err)
		ms += n * unit
	}
	return ms / 1000
}

// The intent of a writer that has died ends in its time, though the master's clock was set back then.
func TestAClockThatIsSetBackDoesNotProlongAnIntent(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithClocks())
	c := opened(t, masters.Addrs(), nil)
	m, w := c.NewMutex("k", term30, WithShared()), line.NewWaiter(&c.line)
	for _, fenced := range []bool{false, true} {
		if fenced {
			m = c.NewMutex("k", term30, WithShared(), WithFence())
		}
		since := masterNow(t, masters, 0) - time.Hour.Milliseconds() // it has waited for so long
		Says(t, masters, 0, "SET", kind.IntentKey("k"), fmt.Sprint(since, " a writer"), "PX", fmt.Sprint(kind.IntentLife.Milliseconds()))
		masters.Jump(0, -10*time.Minute)
		var p line.LookResult
		require.Eventually(t, func() (told bool) { // a look is brief, and a busy machine may not answer it
			c.looks.Listen(w, m.spec())
			var err error
			p, err = c.looks.Look(t.Context(), m.spec(), w)
			require.NoError(t, err)
			return p.WillNotify
		}, hanging, 5*time.Millisecond)
		w.End()
		require.False(t, p.Free)
		require.LessOrEqual(t, p.At, c.now()+kind.IntentLife+line.ExpirySlack, "nobody sleeps for longer than that")
		require.ErrorIs(t, m.TryLock(t.Context()), ErrHeld)
		require.LessOrEqual(t, Says(t, masters, 0, "PTTL", kind.IntentKey("k")), kind.IntentLife.Milliseconds())
		comes(t, locks(t, m))
		require.NoError(t, m.Unlock(t.Context()))
	}
}

// A reader that died about when the clock was set back keeps a writer out for less than twice its term. One
// that lives has its own, whole: its validity is shorter.
func TestAClockThatIsSetBackDoesNotProlongADeadReader(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithClocks())
	c, dies := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	ends := func(m *Mutex) time.Duration {
		at, err := strconv.ParseFloat(Says(t, masters, 0, "ZSCORE", "k", m.Token()).(string), 64)
		require.NoError(t, err)
		return time.Duration(int64(at)-masterNow(t, masters, 0)) * time.Millisecond
	}
	intend := func() {
		var r kind.Request
		kind.Plain{}.Intend(&r, "k", []byte("a writer"))
		Says(t, masters, 0, words(r.Fallback)...)
	}
	for _, fenced := range []bool{false, true} {
		opts := []Option{WithShared()}
		if fenced {
			opts = append(opts, WithFence())
		}
		for _, extended := range []bool{false, true} {
			dead, lives := dies.NewMutex("k", 2*time.Minute, opts...), c.NewMutex("k", 20*time.Minute, opts...)
			for _, m := range []*Mutex{dead, lives} {
				require.NoError(t, m.TryLock(t.Context()))
				if extended {
					require.NoError(t, m.Extend(t.Context()))
				}
			}
			intend()
			require.LessOrEqual(t, ends(dead), 2*time.Minute)
			require.LessOrEqual(t, ends(lives), 20*time.Minute, "nothing is prolonged")
			require.GreaterOrEqual(t, ends(lives), lives.Remaining())

			masters.Jump(0, -10*time.Hour)
			intend()
			for _, m := range []*Mutex{lives, dead} {
				require.GreaterOrEqual(t, ends(m), m.Remaining())
				require.Less(t, ends(m), 2*m.spec().Term.TTL)
			}
			require.Less(t, Says(t, masters, 0, "PTTL", "k"), (40 * time.Minute).Milliseconds())
			require.NoError(t, lives.Unlock(t.Context()))
			Says(t, masters, 0, "DEL", "k")
			require.ErrorIs(t, dead.Unlock(t.Context()), ErrNotHeld)
			Says(t, masters, 0, "DEL", kind.IntentKey("k"))
		}
	}

	dead := dies.NewMutex("k", 2*time.Second, WithShared())
	require.NoError(t, dead.TryLock(t.Context()))
	masters.Jump(0, -time.Hour)
	require.NoError(t, dies.round.Mux.Close())
	m := c.NewMutex("k", term30)
	comes(t, locks(t, m))
	require.NoError(t, m.Unlock(t.Context()))
}

// An intent from before the master's clock was set back keeps no reader out. So it is left anew, by its
// writer or another.
func TestAClockThatIsSetBackDoesNotVoidAnIntent(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithClocks())
	c := opened(t, masters.Addrs(), nil)
	late := c.NewMutex("k", term30, WithShared())
	for _, k := range []kind.Intending{kind.Plain{}, kind.NewSeveral([]string{"j", "k"})} {
		Says(t, masters, 0, "ZADD", "k", "9999999999999", "a reader")
		for _, writer := range []string{"one", "one", "two"} {
			masters.Jump(0, -10*time.Minute)
			var r kind.Request
			k.Intend(&r, "k", []byte(writer))
			Says(t, masters, 0, words(r.Fallback)...)
			intent := Says(t, masters, 0, "GET", kind.IntentKey("k"))
			var since int64
			var token string
			_, err := fmt.Sscan(intent.(string), &since, &token)
			require.NoError(t, err)
			require.Equal(t, writer, token)
			require.LessOrEqual(t, since, masterNow(t, masters, 0))
			require.ErrorIs(t, late.TryLock(t.Context()), ErrHeld)
		}
		Says(t, masters, 0, "DEL", "k", kind.IntentKey("k"))
	}
}

// The intent goes when its writer has the lock.
func TestAWriterTakesItsIntentAway(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c, other := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	there := c.NewMutex("k", term30, WithShared())
	require.NoError(t, there.Lock(t.Context()))
	writer := other.NewMutex("k", term30)
	done := locks(t, writer)
	late := c.NewMutex("k", term30, WithShared())
	require.Eventually(t, func() bool {
		if late.TryLock(t.Context()) == nil {
			late.Unlock(t.Context())
		}
		return intents(t, masters, "k") == 3
	}, hanging, 10*time.Millisecond)
	behind := locks(t, late)
	lasts(t, masters, "k")
	require.NoError(t, there.Unlock(t.Context()))
	comes(t, done)
	require.Eventually(t, func() bool { return intents(t, masters, "k") == 0 }, hanging, 5*time.Millisecond)
	require.Empty(t, behind)
	require.NoError(t, writer.Unlock(t.Context()))
	comes(t, behind)
}

// A reader that waited when a writer left its intent does not wait for that.
func TestAReaderLetsOneWriterGoFirst(t *testing.T) {
	masters, c := started(t, 3)
	there := c.NewMutex("k", term30, WithShared())
	require.NoError(t, there.Lock(t.Context()))
	for i := range 3 {
		since := Says(t, masters, i, "TIME").([]any)[0].(string) + "000 a writer"
		Says(t, masters, i, "SET", kind.IntentKey("k"), since)
	}
	m := c.NewMutex("k", term30, WithShared())
	require.NotNil(t, (&attempt{mutex: m}).take(t.Context()))
	require.Nil(t, (&attempt{mutex: m, waited: time.Hour}).take(t.Context()))
}
