//go:build unix

// Package secondtest tests that a store keeps what redlock.Second promises. It has what such tests need besides:
// servers that do not outlive the test, and a proxy that loses what passes.
package secondtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/internal/second"
)

// Patience is how long a test waits for what must happen.
const Patience = 60 * time.Second

var errOver = second.ErrOver

// A Second is a redlock.Second that can be closed.
type Second interface {
	redlock.Second
	Close() error
}

// A Store is how the tests use a store.
type Store struct {
	// Open returns a new Second with a session of its own, as another process has it. It is closed with the test.
	Open func(t testing.TB) Second
	// Queue returns how many entries there are in the queue of a key.
	Queue func(t testing.TB, key string) int
	// End has the store end all sessions.
	End func(t testing.TB)
	// Clear deletes all entries in the queue of a key, behind everybody's back.
	Clear func(t testing.TB, key string)
}

// Background returns a context that ends with the test, or when the test has hung.
func Background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Ended waits for the end of a lock's context, and returns its cause.
func Ended(t testing.TB, l redlock.SecondLock) error {
	t.Helper()
	conntest.Soon(t, "the end of the lock's context", l.Context().Done())
	return context.Cause(l.Context())
}

// AwaitQueue waits until n entries are in the queue of a key.
func (s Store) AwaitQueue(t testing.TB, key string, n int) {
	t.Helper()
	left := -1
	for deadline := time.Now().Add(Patience); left != n && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left = s.Queue(t, key)
	}
	require.Equal(t, n, left, "entries in the queue of %q", key)
}

// MustLock takes a lock.
func MustLock(t testing.TB, s redlock.Second, key string) redlock.SecondLock {
	t.Helper()
	l, err := s.Lock(Background(t), key)
	require.NoError(t, err)
	return l
}

// Run runs all tests that need no failure of a server.
func (s Store) Run(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"OneHolderAtATime":              s.oneHolderAtATime,
		"TryLockSaysHeld":               s.tryLockSaysHeld,
		"FirstComeFirstServed":          s.firstComeFirstServed,
		"UnlockFreesWhateverItsContext": s.unlockFreesWhateverItsContext,
		"CancelledWaiterLeavesNothing":  s.cancelledWaiterLeavesNothing,
		"KeysDoNotMeet":                 s.keysDoNotMeet,
		"CloseEndsAll":                  s.closeEndsAll,
		"EndedSessionIsReplaced":        s.endedSessionIsReplaced,
		"ManyCancelledAtRandom":         s.manyCancelledAtRandom,
		"DeletedEntryIsNoLock":          s.deletedEntryIsNoLock,
	} {
		t.Run(name, test)
	}
}

func (s Store) oneHolderAtATime(t *testing.T) {
	seconds := []Second{s.Open(t), s.Open(t)}
	var holders, last atomic.Int64
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for range 6 {
				l, err := seconds[i%2].Lock(Background(t), "all want it")
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				if before := last.Swap(int64(l.Fence())); before >= int64(l.Fence()) {
					t.Errorf("fence %d after %d", l.Fence(), before)
				}
				if err := l.Context().Err(); err != nil {
					t.Error(context.Cause(l.Context()))
				}
				holders.Add(-1)
				if err := l.Unlock(Background(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	s.AwaitQueue(t, "all want it", 0)
}

func (s Store) tryLockSaysHeld(t *testing.T) {
	a, b := s.Open(t), s.Open(t)
	l, err := a.TryLock(Background(t), "k")
	require.NoError(t, err)
	for _, second := range []Second{a, b} { // a goroutine excludes another of its process
		_, err := second.TryLock(Background(t), "k")
		require.ErrorIs(t, err, redlock.ErrHeld)
	}
	s.AwaitQueue(t, "k", 1)

	taken := make(chan redlock.SecondLock, 1)
	go func() {
		l, err := b.Lock(Background(t), "k")
		if err != nil {
			t.Error(err)
		}
		taken <- l
	}()
	s.AwaitQueue(t, "k", 2)
	require.NoError(t, l.Unlock(Background(t)))
	second := <-taken
	require.NotNil(t, second)
	require.Greater(t, second.Fence(), l.Fence())
	require.NoError(t, second.Unlock(Background(t)))

	third, err := a.TryLock(Background(t), "k")
	require.NoError(t, err)
	require.Greater(t, third.Fence(), second.Fence())
	require.NoError(t, third.Unlock(Background(t)))
	require.ErrorIs(t, third.Context().Err(), context.Canceled)
}

func (s Store) firstComeFirstServed(t *testing.T) {
	seconds := []Second{s.Open(t), s.Open(t)}
	first := MustLock(t, seconds[0], "queue")
	order := make(chan int, 6)
	var all sync.WaitGroup
	for i := range cap(order) {
		all.Go(func() {
			l, err := seconds[i%2].Lock(Background(t), "queue")
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			if err := l.Unlock(Background(t)); err != nil {
				t.Error(err)
			}
		})
		s.AwaitQueue(t, "queue", i+2)
	}
	require.NoError(t, first.Unlock(Background(t)))
	all.Wait()
	for i := range cap(order) {
		require.Equal(t, i, <-order)
	}
}

func (s Store) unlockFreesWhateverItsContext(t *testing.T) {
	a, b := s.Open(t), s.Open(t)
	l := MustLock(t, a, "k")
	over, cancel := context.WithCancel(Background(t))
	cancel()
	if err := l.Unlock(over); err != nil {
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, redlock.ErrNotHeld)
	}
	require.Error(t, l.Context().Err())
	require.NoError(t, MustLock(t, b, "k").Unlock(Background(t)))
	require.ErrorIs(t, l.Unlock(Background(t)), redlock.ErrNotHeld)
	s.AwaitQueue(t, "k", 0)
}

func (s Store) cancelledWaiterLeavesNothing(t *testing.T) {
	a, b := s.Open(t), s.Open(t)
	l := MustLock(t, a, "k")
	for range 3 {
		ctx, cancel := context.WithCancelCause(Background(t))
		failed := make(chan error, 1)
		go func() {
			_, err := b.Lock(ctx, "k")
			failed <- err
		}()
		s.AwaitQueue(t, "k", 2)
		why := errors.New("no need any more")
		cancel(why)
		err := <-failed
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, why)
		require.NotErrorIs(t, err, redlock.ErrHeld)
		s.AwaitQueue(t, "k", 1)
	}
	require.NoError(t, l.Context().Err())
	require.NoError(t, l.Unlock(Background(t)))
	s.AwaitQueue(t, "k", 0)
}

// keysDoNotMeet takes all locks at once, each of which must be free.
func (s Store) keysDoNotMeet(t *testing.T) {
	second := s.Open(t)
	keys := []string{
		"", "a", "a/", "a/b", "/", "/a", "//", ".", "..", "...", "./a", "a%2Fb", "a%", "%", "%2F", "%25", "a b", "A", "\x00",
		"a\x00b", "\xff\xfe", "é", "\x1f\u0080\ufffd", "lock-0000000001", "zookeeper", "_", "__lock__",
		strings.Repeat("x", 200), strings.Repeat("x", 1000), strings.Repeat("x", 1001), strings.Repeat("\x00/.", 16<<10/3),
	}
	var locks []redlock.SecondLock
	for _, key := range keys {
		l, err := second.TryLock(Background(t), key)
		require.NoError(t, err, "%.100q", key)
		locks = append(locks, l)
	}
	for i, key := range keys {
		_, err := second.TryLock(Background(t), key)
		require.ErrorIs(t, err, redlock.ErrHeld, "%.100q", key)
		require.Equal(t, 1, s.Queue(t, key), "%.100q", key)
		require.NoError(t, locks[i].Unlock(Background(t)), "%.100q", key)
		require.Equal(t, 0, s.Queue(t, key), "%.100q", key)
	}
}

func (s Store) closeEndsAll(t *testing.T) {
	a, b := s.Open(t), s.Open(t)
	held, other := MustLock(t, a, "k"), MustLock(t, a, "other")
	failed := make(chan error, 1)
	go func() {
		_, err := a.Lock(Background(t), "k")
		failed <- err
	}()
	s.AwaitQueue(t, "k", 2)
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-failed, redlock.ErrClosed)
	for _, l := range []redlock.SecondLock{held, other} {
		require.Error(t, l.Context().Err())
		require.ErrorIs(t, context.Cause(l.Context()), redlock.ErrClosed)
		require.ErrorIs(t, l.Unlock(Background(t)), redlock.ErrNotHeld)
	}
	_, err := a.TryLock(Background(t), "k")
	require.ErrorIs(t, err, redlock.ErrClosed)
	l, err := b.TryLock(Background(t), "k") // free at once, and not when a session has expired
	require.NoError(t, err)
	require.NoError(t, l.Unlock(Background(t)))
	require.NoError(t, a.Close())
	require.NoError(t, s.Open(t).Close()) // one that was never used
}

func (s Store) endedSessionIsReplaced(t *testing.T) {
	second := s.Open(t)
	one, two := MustLock(t, second, "one"), MustLock(t, second, "two")
	require.NoError(t, one.Context().Err())
	s.End(t)
	for _, l := range []redlock.SecondLock{one, two} {
		cause := Ended(t, l)
		require.ErrorIs(t, cause, errOver, "the store says so, before the session's time is over")
	}
	var again redlock.SecondLock
	require.Eventually(t, func() (ok bool) {
		var err error
		again, err = second.TryLock(Background(t), "one")
		return err == nil
	}, Patience, 10*time.Millisecond)
	require.Greater(t, again.Fence(), one.Fence())
	require.ErrorIs(t, one.Unlock(Background(t)), redlock.ErrNotHeld)
	require.NoError(t, again.Context().Err())
	require.NoError(t, again.Unlock(Background(t)))
	require.ErrorIs(t, two.Unlock(Background(t)), redlock.ErrNotHeld)
}

func (s Store) deletedEntryIsNoLock(t *testing.T) {
	a, b := s.Open(t), s.Open(t)
	l := MustLock(t, a, "k")
	failed := make(chan error, 1)
	go func() {
		_, err := b.Lock(Background(t), "k")
		failed <- err
	}()
	s.AwaitQueue(t, "k", 2)
	s.Clear(t, "k")
	err := <-failed
	require.Error(t, err)
	require.NotErrorIs(t, err, redlock.ErrHeld)
	require.ErrorIs(t, l.Unlock(Background(t)), redlock.ErrNotHeld)
	s.AwaitQueue(t, "k", 0)
}

func (s Store) manyCancelledAtRandom(t *testing.T) {
	seconds := []Second{s.Open(t), s.Open(t)}
	var holders atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for n := range 8 {
				ctx, cancel := context.WithTimeout(Background(t), time.Duration((i*37+n*11)%40)*time.Millisecond/4)
				l, err := seconds[i%2].Lock(ctx, "k")
				cancel()
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					continue
				}
				if holders.Add(1) != 1 {
					t.Error("two holders")
				}
				holders.Add(-1)
				if err := l.Unlock(Background(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	s.AwaitQueue(t, "k", 0)
}

// Takes are the ways to take a lock.
var Takes = map[string]func(redlock.Second) func(context.Context, string) (redlock.SecondLock, error){
	"TryLock": func(s redlock.Second) func(context.Context, string) (redlock.SecondLock, error) { return s.TryLock },
	"Lock":    func(s redlock.Second) func(context.Context, string) (redlock.SecondLock, error) { return s.Lock },
}

// CancelledAtEveryPoint cancels TryLock and Lock at each chunk that passes the proxy: before the chunk is carried, and it is
// carried when the call has returned. Nothing is left then.
func CancelledAtEveryPoint(t *testing.T, open Opener) {
	s, p, through := open(t)
	direct := s.Open(t)
	for _, fromServer := range []bool{false, true} {
		for name, take := range Takes {
			for n := 0; n < 200; n++ {
				key := fmt.Sprint(name, fromServer, n)
				// A new Second now and then, so that the opening of its session is cancelled, too.
				second := through(t)
				if n%2 == 1 {
					require.NoError(t, MustLock(t, second, "first").Unlock(Background(t)))
				}
				if name == "Lock" { // it has to wait
					l := MustLock(t, direct, key)
					time.AfterFunc(5*time.Millisecond, func() { l.Unlock(context.Background()) })
				}
				ctx, cancel := context.WithCancel(Background(t))
				returned := make(chan struct{})
				reached := p.Trap(n/2, fromServer, func() {
					cancel()
					select {
					case <-returned:
					case <-time.After(Patience):
						t.Error("it does not return when its context has ended")
					}
				})
				l, err := take(second)(ctx, key)
				close(returned)
				if err == nil {
					require.NoError(t, l.Unlock(Background(t)))
				} else {
					require.ErrorIs(t, err, context.Canceled)
				}
				s.AwaitQueue(t, key, 0)
				require.NoError(t, second.Close())
				cancel()
				if err == nil && !reached() {
					p.Trap(0, fromServer, nil)
					if n%2 == 1 {
						t.Log(name, "was cancelled at", n/2, "points")
						break
					}
				}
			}
		}
	}
}

// Watch has s wait for the key, and returns when it has had it.
func (s Store) Watch(t testing.TB, second redlock.Second, key string) (taken <-chan time.Time) {
	t.Helper()
	before := s.Queue(t, key)
	has := make(chan time.Time, 1)
	go func() {
		l, err := second.Lock(Background(t), key)
		now := time.Now()
		if err != nil {
			t.Error(err)
		} else {
			l.Unlock(context.Background())
		}
		has <- now
	}()
	s.AwaitQueue(t, key, before+1)
	return has
}

// Taken waits until who watches has had the lock, and returns when that was.
func Taken(t testing.TB, w <-chan time.Time) time.Time {
	t.Helper()
	return conntest.Soon(t, "the one who waits has the lock", w)
}
