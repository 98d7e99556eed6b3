package redlock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A master goes through all phases of one that can serve.
func TestObserverIsToldOfEachPhase(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	told := make(chan MasterStats, 1000)
	c := openedWith(t, Config{Masters: masters.Addrs(), StallTime: 200 * time.Millisecond, Observers: onEvent(EventMaster, func(e *Event) {
		m := *e.Master
		if m.Addr == masters.Addr(0) {
			told <- m
		}
	})})
	next := func(phase string) MasterStats {
		t.Helper()
		m := conntest.Soon(t, phase, told)
		require.Equal(t, phase, m.Phase, m.Err)
		return m
	}
	reaches := func(phase string) { // by way of other reasons for the phase before it
		t.Helper()
		for conntest.Soon(t, phase, told).Phase != phase {
		}
	}
	require.Empty(t, next("up").Err)
	masters.Pause(0)
	m := c.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	require.NotEmpty(t, next("stalled").Err)
	require.NoError(t, m.Unlock(t.Context()))
	require.NotZero(t, c.Stats().Masters[0].Debts)
	masters.Resume(0)
	reaches("up")
	masters.Kill(0)
	require.NotEmpty(t, next("down").Err)
	masters.Restart(0)
	reaches("quarantined")
	require.NoError(t, c.Close())
	reaches("down")
}

func TestObserverSeesTheWaiting(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprintf(format, args...))
	}
	observer := func(ctx context.Context, e *Event) {
		switch e.Kind {
		case EventRound:
			note("%s %v %d", e.Op, errors.Is(e.Err, ErrHeld), len(e.Votes))
		case behind.Wait:
			note("start %s", e.Key)
		case behind.Wake:
			note("wake %s", e.more.Why)
		case EventWaited:
			note("end %s %v %v", e.Key, e.Took.Round(100*time.Millisecond), e.Err)
		case EventLost:
			note("lost %s %v %v", e.Key, errors.Is(e.Err, ErrLost), ctx.Err())
		}
	}
	simulated(t, 3, Config{Observers: []Observer{observer}}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		done := make(chan error, 1)
		next := c.NewMutex("k", ttl)
		go func() { done <- next.Lock(t.Context()) }()
		time.Sleep(time.Second)
		require.NoError(t, m.Unlock(t.Context()))
		require.NoError(t, conntest.Soon(t, "the next one has it", done))
		held, _ := next.KeepAlive(t.Context())
		time.Sleep(10 * time.Millisecond)
		r.set(flush, 0, 1, 2)
		conntest.Soon(t, "the loss is noticed", held.Done())
		synctest.Wait()
	})
	polls := 0
	seen = slices.DeleteFunc(seen, func(s string) bool {
		if s == "wake poll" || s == "lock true 3" {
			polls++
			return true
		}
		return false
	})
	require.Greater(t, polls, 4)
	// The next one has the lock at once, without a round of its own.
	require.Equal(t, []string{
		"lock false 3", "start k", "wake released", "end k 1s <nil>", "unlock false 3",
		"renew false 3", "lost k true context canceled",
	}, seen)
}

// The Observer is told of no round that only asks: of Holders, of Watch, and of whoever waits, who looks at
// the key and at the queue.
func TestObserverIsToldOfNoQuestion(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	observer := onEvent(EventRound, func(r *Event) {
		mu.Lock()
		defer mu.Unlock()
		told[r.Op]++
	})
	simulated(t, 5, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		telling(c, r)
		next, _ := watched(t, c, "k")
		require.False(t, next().Held)
		m := taken(t, c)
		require.True(t, next().Held)
		_, err := c.Holders(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, m.Extend(t.Context()))

		p := newProcesses(t, r, m)
		waiter := p.join()
		waiter.events.inTests = observer[0]
		p.wait(0, t.Context())
		time.Sleep(time.Second)
		require.True(t, p.contends(0, "k"), "it has looked")
		p.release(1)
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string]int{"lock": 3, "extend": 1, "unlock": 2}, told, "the waiter was refused once")
	})
}

// What a client is told of a lock can be put together with what others are told of it, and nobody finds the token by it.
func TestObserverIsToldWhichLockItIs(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	type told struct {
		Event
		hash uint64
	}
	rounds := make(chan told, 100)
	observer := onEvent(EventRound, func(r *Event) {
		if r.more.Started != 0 {
			rounds <- told{*r, r.more.TokenHash()}
		}
	})
	next := func(op string) told {
		t.Helper()
		r := conntest.Soon(t, op, rounds)
		require.Equal(t, op, r.Op)
		return r
	}
	c := openedWith(t, Config{Masters: masters.Addrs(), Observers: observer, Prefix: "p:"})
	m := c.NewMutex("k", 30*time.Second, WithFence(), WithKeys("l"))
	before := clock.Now()
	require.NoError(t, m.TryLock(t.Context()))
	lock := next(opLock)
	sum := sha256.Sum256([]byte(m.Token()))
	require.Equal(t, binary.BigEndian.Uint64(sum[:]), lock.hash)
	require.Equal(t, 30*time.Second, lock.more.TTL)
	require.Equal(t, m.Fence(), lock.more.Fence)
	require.Equal(t, []string{"p:k", "p:l"}, lock.more.Keys)
	require.Equal(t, 1, lock.more.Holders)
	require.Greater(t, lock.more.Started, before)
	for _, text := range []string{fmt.Sprintf("%v", lock), fmt.Sprintf("%+v", lock.Event), fmt.Sprintf("%#v", &lock.Event)} {
		require.NotContains(t, text, m.Token())
		require.NotContains(t, text, fmt.Sprint([]byte(m.Token())))
	}
	require.NoError(t, m.Extend(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	for _, op := range []string{opExtend, opUnlock} {
		r := next(op)
		require.Equal(t, lock.hash, r.hash)
		require.Equal(t, lock.more.Fence, r.more.Fence)
		require.Equal(t, lock.more.Keys, r.more.Keys)
	}
	for holders, options := range map[int][]Option{0: {WithShared()}, 4: {WithPermits(4)}, 1: nil} {
		m := c.NewMutex("of many", 30*time.Second, options...)
		require.NoError(t, m.TryLock(t.Context()))
		r := next(opLock)
		require.Equal(t, holders, r.more.Holders)
		require.Nil(t, r.more.Keys)
		require.Zero(t, r.more.Fence)
		require.NoError(t, m.Release())
		require.Equal(t, r.hash, next(opUnlock).hash)
	}
	for i, s := range c.Stats().Masters {
		require.Len(t, s.more.RunID, 40)
		info := Says(t, masters, i, "INFO", "server")
		says := strings.Contains(fmt.Sprintf("%s", info), "server_time_usec") // from Redis 6.2 on
		require.Equal(t, says, s.more.Ahead != 0)
		require.Less(t, s.more.Ahead.Abs(), hanging)
	}
}

// The next holder has the lock by the same token.
func TestObserverIsToldOfAHandOver(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	taken, handed := make(chan uint64, 10), make(chan Event, 10)
	hashes := make(chan uint64, 10)
	c := opened(t, masters.Addrs(), slices.Concat(
		onEvent(EventRound, func(r *Event) {
			if r.Op == opLock && r.Err == nil {
				taken <- r.more.TokenHash()
			}
		}),
		onEvent(behind.HandedOver, func(h *Event) {
			hashes <- h.more.TokenHash()
			handed <- *h
		}),
	))
	first := c.NewMutex("k", 30*time.Second)
	require.NoError(t, first.TryLock(t.Context()))
	done := parked(t, c, "k")
	require.NoError(t, first.Unlock(t.Context()))
	comes(t, done)
	h := conntest.Soon(t, "the hand-over", handed)
	require.Equal(t, conntest.Soon(t, "the lock", taken), conntest.Soon(t, "the hash", hashes))
	require.Equal(t, "k", h.Key)
	require.Positive(t, h.more.Validity)
}

func TestTokenHashIsOfTheToken(t *testing.T) {
	t.Parallel()
	token := []byte("token 1")
	sum := sha256.Sum256(token)
	require.Equal(t, binary.BigEndian.Uint64(sum[:]), (&behind.Event{Token: token}).TokenHash())
	require.Zero(t, new(behind.Event).TokenHash())
}

// When a holder is said to let go, nobody else has the lock yet.
func TestObserverIsToldWhoLetsGoBeforeTheMasters(t *testing.T) {
	type told struct {
		Event
		hash  uint64
		taken error
	}
	var locked uint64
	var gone []told
	var other *Mutex
	observer := func(_ context.Context, e *Event) {
		switch {
		case e.Kind == EventRound && e.Op == opLock:
			locked = e.more.TokenHash()
		case e.Kind == behind.LetGo:
			gone = append(gone, told{*e, e.more.TokenHash(), other.TryLock(context.Background())})
		}
	}
	simulated(t, 3, Config{Observers: []Observer{observer}}, func(t *testing.T, c *Client, r *fakeRounds) {
		another, _ := another(t, r, Config{})
		other = another.NewMutex("k", ttl)
		m := c.NewMutex("k", ttl)
		for how, release := range map[string]func() error{
			"Unlock":         func() error { return m.Unlock(t.Context()) },
			"UnlockNow":      func() error { return m.UnlockNow(t.Context()) },
			"Release":        m.Release,
			"with KeepAlive": func() error { m.KeepAlive(t.Context()); return m.Unlock(t.Context()) },
		} {
			require.NoError(t, m.Lock(t.Context()))
			require.NoError(t, release(), how)
			require.Len(t, gone, 1, how)
			require.ErrorIs(t, gone[0].taken, ErrHeld, how)
			require.Equal(t, locked, gone[0].hash, how)
			require.Equal(t, "k", gone[0].Key)
			require.False(t, gone[0].more.GivenBack)
			gone = nil
			time.Sleep(time.Second)
		}
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		require.Empty(t, gone, "there was no lock")
	})
}

func TestObserverIsToldOfALockThatIsGivenBack(t *testing.T) {
	other := newOther(time.Millisecond)
	var locked, back []uint64
	observer := []Observer{func(_ context.Context, e *Event) {
		switch {
		case e.Kind == EventRound && e.Op == opLock && e.Err == nil:
			locked = append(locked, e.more.TokenHash())
		case e.Kind == behind.LetGo && e.more.GivenBack && e.Key == "k":
			back = append(back, e.more.TokenHash())
		}
	}}
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, _ *fakeRounds) {
		other.set(func(s *otherSystem) { s.down = errors.New("it is down") })
		require.ErrorIs(t, c.NewMutex("k", ttl, WithSecond(other)).TryLock(t.Context()), ErrSecond)
		require.Len(t, back, 1)
		m := taken(t, c)
		time.Sleep(2 * ttl)
		require.NoError(t, m.TryLock(t.Context()), "the one that has ended is given back")
		require.Len(t, back, 2)
		k := c.round.Take()
		k.Token = append(k.Token[:0], "of another attempt"...)
		require.True(t, c.held.Install(&m.hold, k, c.now()+2*ttl, c.now()))
		m.hold.Unpin()
		require.Len(t, back, 3, "the one that another attempt has replaced")
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		require.Equal(t, locked, back)

		first, heir := taken(t, c), c.NewMutex("k", ttl, WithToken("of another process"))
		given := make(chan error)
		go func() { given <- heir.Lock(t.Context()) }()
		synctest.Wait()
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, <-given)
		require.Len(t, back, 4, "the one that was known, when another was handed over")
		require.NoError(t, heir.Unlock(t.Context()))
	})
}

// A client can have several locks of one key.
func TestObserverIsToldWhichLockIsLost(t *testing.T) {
	other := newOther(time.Millisecond)
	var locked, lost uint64
	observer := []Observer{func(_ context.Context, e *Event) {
		switch {
		case e.Kind == EventRound && e.Op == opLock:
			locked = e.more.TokenHash()
		case e.Kind == EventLost:
			lost = e.more.TokenHash()
		}
	}}
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl, WithSecond(other))
		for how, lose := range map[string]func(){
			"it is gone":              func() { r.set(flush, 0, 1, 2) },
			"its validity ends":       func() { r.set(fail, 0, 1, 2) },
			"its second lock is lost": func() { other.expire("k") },
			"it is given back":        func() { other.expire("k"); m.TryLock(t.Context()) },
		} {
			require.NoError(t, m.TryLock(t.Context()))
			was := locked
			held, stop := m.KeepAlive(t.Context())
			lose()
			conntest.Soon(t, how, held.Done())
			synctest.Wait()
			require.Equal(t, was, lost, how)
			stop()
			r.set(restart, 0, 1, 2)
			m.Unlock(t.Context())
			time.Sleep(2 * ttl)
		}
	})
}

// A lock that was given back when its second lock was lost is not let go of again.
func TestObserverIsToldOnceWhoLetsGo(t *testing.T) {
	other := newOther(time.Millisecond)
	var told []bool
	observer := onEvent(behind.LetGo, func(l *Event) { told = append(told, l.more.GivenBack) })
	simulated(t, 3, Config{Observers: observer}, func(t *testing.T, c *Client, _ *fakeRounds) {
		m := c.NewMutex("k", ttl, WithSecond(other))
		loses := func() {
			require.NoError(t, m.TryLock(t.Context()))
			other.expire("k")
			time.Sleep(time.Second)
		}
		loses()
		require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld)
		loses()
		require.NoError(t, m.TryLock(t.Context()), "the one that was lost is given back")
		require.NoError(t, m.Unlock(t.Context()))
	})
	require.Equal(t, []bool{true, true, false}, told)
}

func TestObserverIsToldOfARevocation(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	rounds := make(chan Event, 10)
	var locked, revoked uint64
	c := opened(t, masters.Addrs(), onEvent(EventRound, func(r *Event) {
		switch r.Op {
		case opLock:
			locked = r.more.TokenHash()
		case opRevoke:
			revoked = r.more.TokenHash()
			rounds <- *r
		}
	}))
	m := c.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, c.Revoke(t.Context(), "k", "it is stuck"))
	r := <-rounds
	require.NoError(t, r.Err)
	require.Equal(t, locked, revoked)
	require.Equal(t, "k", r.Key)
	require.ErrorIs(t, m.Unlock(t.Context()), ErrRevoked)
	require.ErrorIs(t, c.Revoke(t.Context(), "k", "it is stuck", WithToken("none")), ErrNotHeld)
	require.ErrorIs(t, (<-rounds).Err, ErrNotHeld)
}
