package redlock

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The lock is released just after a waiter has read the key, and the masters tell of it
// before the waiter has their answers, which say that it is held.
func TestChangeWhileAWaiterLooksIsNotLost(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		holder := taken(t, newClient(Config{}, r, r.now)) // another process
		masters := &toldRounds{fakeRounds: r, client: c}
		masters.looked = func() {
			masters.looked = nil
			require.NoError(t, holder.Unlock(context.Background()))
		}
		c.rounds = masters
		since := r.now()
		require.NoError(t, c.NewMutex("k", ttl).Lock(t.Context()))
		require.Nil(t, masters.looked, "it has not looked")
		require.Less(t, r.now()-since, 100*time.Millisecond, "it has slept until the key's TTL had passed")
	})
}

// Who comes to a key that was refused to somebody a moment ago waits in the queue first, where
// the masters can tell: those who have waited for longer are in front of it.
func TestContendedKeyIsLookedAtFirst(t *testing.T) {
	for name, c := range map[string]struct {
		contended, silent bool
		first             string
	}{
		"contended":                        {true, false, "enter"},
		"contended, and nobody can tell":   {true, true, "SET"},
		"not contended, as far as we know": {false, false, "SET"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				masters := &toldRounds{fakeRounds: r, client: client, silent: c.silent}
				client.rounds = masters
				if c.contended {
					client.subscriptions.noteRefused(client.now(), "k")
				}
				since := r.now()
				require.NoError(t, client.NewMutex("k", ttl).Lock(t.Context()))
				require.Equal(t, c.first, masters.asked)
				if c.first == "SET" {
					require.Equal(t, time.Millisecond, r.now()-since, "it has waited")
				}
			})
		})
	}
}

// A key that was contended while its holder had it is so when that releases it, however long ago it was. One that
// was contended only before is not.
func TestContendedKeyIsSoWhenItIsReleased(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for _, opts := range [][]Option{nil, {WithKeys("l")}} {
			for _, before := range []bool{true, false} {
				m := c.NewMutex("k", time.Hour, opts...)
				if before {
					c.subscriptions.noteRefused(c.now(), m.names()...)
					time.Sleep(time.Millisecond)
				}
				require.NoError(t, m.TryLock(t.Context()))
				if !before {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					require.ErrorIs(t, c.NewMutex("k", ttl).Lock(ctx), ErrHeld)
					cancel()
				}
				time.Sleep(contendedFor)
				require.False(t, c.subscriptions.contended(c.now(), m.names()...))
				require.NoError(t, m.Unlock(t.Context()))
				require.Equal(t, !before, c.subscriptions.contended(c.now(), "k"))
				time.Sleep(contendedFor)
			}
		}
	})
}

// A foreign key on a minority does not keep a waiter from a lock that is free on
// all others, whichever master that is: where nobody can tell, too.
func TestWaiterGetsPastAForeignKeyOnAnyMaster(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3) // without CLIENT TRACKING
	holder, waiter := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	for i := range 3 {
		key := "k" + strconv.Itoa(i)
		command(t, masters, i, "SET", key, "foreign")
		m := holder.NewMutex(key, 30*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		done := parked(t, waiter, key)
		require.NoError(t, m.Unlock(t.Context()))
		comes(t, done)
	}
}

// An attempt that is not one of the queue tells the queue nothing: the masters have
// to tell what this client itself deletes, so tracking is without NOLOOP.
func TestWaiterLearnsOfAReleaseByAFailedTryLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	c := opened(t, masters.Addrs(), nil)
	masters.Pause(1)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- c.NewMutex("k", 30*time.Second).TryLock(ctx) }()
	require.Eventually(t, func() bool {
		v, _ := masters.Do(0, "EXISTS", "k")
		return v == int64(1)
	}, hanging, time.Millisecond)
	done := parked(t, c, "k")
	cancel()
	require.ErrorIs(t, conntest.Soon(t, "the attempt returns", failed), context.Canceled)
	masters.Resume(1)
	comes(t, done)
}

// A master that was down at the look can make up the majority later.
func TestWaiterLearnsOfAReleaseThatLeavesSilentMastersOnly(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	holder := opened(t, masters.Addrs(), nil)
	waiter := openedWith(t, Config{Masters: masters.Addrs(), Durable: true}) // they may vote as soon as they are back
	m := holder.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	for i := range 4 {
		require.Eventually(t, func() bool {
			v, _ := masters.Do(i, "EXISTS", "k")
			return v == int64(1)
		}, hanging, time.Millisecond)
	}
	for _, i := range []int{2, 3} {
		masters.Kill(i)
		require.Eventually(t, func() bool { return waiter.rounds.Masters()[i].Phase == mux.Down }, hanging, time.Millisecond)
	}
	done := make(chan error, 1)
	var seen atomic.Bool
	waiter.observe.WaitStart = func(context.Context, string) { seen.Store(true) }
	// Refused by all four, the waiter would be woken by three of them.
	waiter.subscriptions.noteRefused(waiter.now(), "k")
	go func() { done <- waiter.NewMutex("k", 30*time.Second).Lock(t.Context()) }()
	require.Eventually(t, seen.Load, hanging, time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	m.Unlock(t.Context())
	time.Sleep(50 * time.Millisecond)
	masters.Restart(2)
	masters.Restart(3)
	comes(t, done)
}

// A master on which the key is free has nothing more to tell, and so cannot stand
// for one that cannot tell (no RESP3, no permission).
func TestWaiterDoesNotTrustAFreeMasterToNotify(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	command(t, masters, 2, "ACL", "SETUSER", "default", "-client") // CLIENT TRACKING; before Redis 7 only as a whole
	c := opened(t, masters.Addrs(), nil)
	command(t, masters, 1, "SET", "k", "foreign")
	command(t, masters, 2, "SET", "k", "foreign")
	done := parked(t, c, "k")
	command(t, masters, 2, "DEL", "k")
	comes(t, done)
}

// The network has become slow since its round trips were measured.
func TestWaiterGetsALockWhenMastersHaveBecomeSlow(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	holder := opened(t, masters.Addrs(), nil)
	slow := &slowdown{to: masters.Addr(0)}
	waiter := openedWith(t, Config{Masters: []string{slow.listen(t)}, StallTime: time.Minute})
	for range 20 {
		m := waiter.NewMutex("other", 30*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
	m := holder.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	slow.by.Store(int64(60 * time.Millisecond))
	done := parked(t, waiter, "k")
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, m.Unlock(t.Context()))
	comes(t, done)
}

// A slowdown is a proxy that holds back what a master answers.
type slowdown struct {
	to string
	by atomic.Int64
}

func (s *slowdown) listen(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", s.to)
			if err != nil {
				in.Close()
				continue
			}
			// From one TCPConn to the other it would splice through a pipe that
			// stays open until the garbage collector has been there twice.
			wg.Go(func() { io.Copy(out, struct{ io.Reader }{in}); out.Close() })
			type chunk struct {
				at    time.Time
				bytes []byte
			}
			chunks := make(chan chunk, 1024)
			wg.Go(func() {
				defer close(chunks)
				for {
					b := make([]byte, 4096)
					n, err := out.Read(b)
					if err != nil {
						return
					}
					chunks <- chunk{time.Now().Add(time.Duration(s.by.Load())), b[:n]}
				}
			})
			wg.Go(func() {
				for c := range chunks {
					time.Sleep(time.Until(c.at))
					in.Write(c.bytes)
				}
				in.Close()
			})
		}
	})
	return l.Addr().String()
}

// sleeps has the waiter of a watch sleep again and again, until the test ends. It returns what tells
// that it was woken since.
func sleeps(t *testing.T, w *subscription) <-chan struct{} {
	t.Helper()
	woken := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for w.sleep(ctx) == nil {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return woken
}

// Masters that are lost can be the last that are needed, as they tell nothing any more.
func TestWaiterIsNotifiedOfLostMasters(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	w := newSubscription(&c.core)
	c.subscriptions.add(w, 1, c.subscriptions.quorum, "k")
	defer c.subscriptions.remove("k")
	c.subscriptions.disconnected(0)
	require.False(t, c.subscriptions.takeNotified(w))
	c.subscriptions.disconnected(1)
	require.True(t, c.subscriptions.takeNotified(w))
}

// Whoever waits for a lock is told when a majority has changed its key, and of no other key.
func TestWaiterIsNotifiedOfItsKey(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	w := newSubscription(&c.core)
	c.subscriptions.add(w, 1, c.subscriptions.quorum, "k")
	defer c.subscriptions.remove("k")
	changed := func(master int, key string) {
		c.subscriptions.push(master, parse([]byte(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\n"+key+"\r\n")))
	}
	changed(0, "k")
	changed(1, "l")
	require.False(t, c.subscriptions.takeNotified(w))
	changed(1, "k")
	require.True(t, c.subscriptions.takeNotified(w))
}

// Whoever waits for a permit is told of each slot, and of no lock with another number of them.
func TestWaiterForAPermitIsNotifiedOfItsSlots(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	w := newSubscription(&c.core)
	c.subscriptions.add(w, 2, c.subscriptions.quorum, "{k}:permit:")
	defer c.subscriptions.remove("{k}:permit:")
	changed := func(slot string) {
		for master := range 2 {
			c.subscriptions.push(master, parse([]byte(">2\r\n$10\r\ninvalidate\r\n*1\r\n$14\r\n{k}:permit:"+slot+"\r\n")))
		}
	}
	changed("2/3")
	require.False(t, c.subscriptions.takeNotified(w))
	changed("2/2")
	require.True(t, c.subscriptions.takeNotified(w))
}

// Masters that can tell of changes may not tell that a key has expired: a waiter looks by itself then.
func TestWaiterLooksWhenTheTTLHasPassed(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, newClient(Config{}, r, r.now)) // and forgotten, by another process
		c.rounds = &toldRounds{fakeRounds: r, client: c, mum: true}
		since := r.now()
		require.NoError(t, c.NewMutex("k", ttl).Lock(t.Context()))
		require.Less(t, r.now()-since, ttl+2*lookInterval)
		require.EqualValues(t, 1, c.Stats().WokenExpiry)
	})
}
