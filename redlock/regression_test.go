package redlock

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// hanging is how long what should come at once may take before a test gives up.
const hanging = 20 * time.Second

// opened returns a client whose masters are all up.
func opened(t *testing.T, addrs []string, observer *Observer) *Client {
	t.Helper()
	return openedWith(t, Config{Masters: addrs, Observer: observer})
}

func openedWith(t *testing.T, cfg Config) *Client {
	t.Helper()
	cfg.RoundTimeout, cfg.DialTimeout = 10*time.Second, 10*time.Second // a machine that is busy is no failure
	c, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	for i := range cfg.Masters {
		comesUp(t, c, i)
	}
	return c
}

func comesUp(t *testing.T, c *Client, i int) {
	t.Helper()
	require.Eventually(t, func() bool { return c.rounds.Masters()[i].Phase == mux.Up }, hanging, time.Millisecond)
}

// parked starts to wait for a key, and returns when the waiter has looked at it
// and sleeps.
func parked(t *testing.T, c *Client, key string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.NewMutex(key, 30*time.Second).Lock(t.Context()) }()
	require.Eventually(t, func() bool { return c.Stats().Waiting == 1 }, hanging, time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	return done
}

func comes(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(hanging):
		t.Fatal("the lock is free, and the waiter sleeps on")
	}
}

func command(t *testing.T, masters *redlocktest.Masters, i int, args ...string) {
	t.Helper()
	_, err := masters.Do(i, args...)
	require.NoError(t, err)
}

// A foreign key on a minority does not keep a waiter from a lock that is free on
// all others, whichever master that is: where nobody can tell, too.
func TestWaiterPassesAForeignKeyOnAnyMaster(t *testing.T) {
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

// Masters that can be read and not written to (no memory, no replicas, no disk)
// let the look say that the key is free, again and again.
func TestLockDoesNotHurryWhereSetsAreRefused(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	var rounds atomic.Int64
	c := opened(t, masters.Addrs(), &Observer{Round: func(context.Context, Round) { rounds.Add(1) }})
	for i := range 3 {
		command(t, masters, i, "CONFIG", "SET", "maxmemory", "1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorIs(t, c.NewMutex("k", 30*time.Second).Lock(ctx), ErrNoQuorum)
	require.Less(t, rounds.Load(), int64(100)) // with pauses of up to 200 ms it is about 20
}

// A Mutex that holds the lock by its clock is refused by itself, while the
// masters, which were flushed, say that the key is free.
func TestLockDoesNotHurryWhereItsOwnMutexHolds(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	c := opened(t, masters.Addrs(), nil)
	m := c.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	command(t, masters, 0, "FLUSHALL")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorIs(t, m.Lock(ctx), ErrHeld)
	require.Less(t, c.Stats().WokenHeld, uint64(100))
}

// Of two extends under way at once, the first finds that a quorum had lost the
// key, and gives it back. What the second sees then is what the first has set and
// is about to release: it does not make the lock valid again.
func TestExtendDoesNotReviveWhatAnotherFoundLost(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		token := m.Token()
		r.set(flush, 0, 1, 2)
		first, second := make(chan error), make(chan error)
		go func() { first <- m.Extend(t.Context()) }()
		synctest.Wait() // it is posted
		r.set(func(m *fakeMaster) { m.delay = 5 * time.Millisecond }, 0, 1, 2, 3, 4)
		go func() { second <- m.Extend(t.Context()) }()
		require.ErrorIs(t, <-first, ErrNotHeld)
		require.ErrorIs(t, <-second, ErrNotHeld)
		require.Zero(t, m.Remaining())
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.holders("k", token))
	})
}

// The time at which a handed-over lock was taken is not known: its lifetime
// counts from when we know of it.
func TestMaxLifetimeOfAHandedOverLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl, WithToken(taken(t, c).Token()), WithMaxLifetime(time.Minute))
		require.NoError(t, m.Extend(t.Context()))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		time.Sleep(50 * time.Second)
		require.NoError(t, held.Err())
		time.Sleep(20 * time.Second)
		require.ErrorIs(t, context.Cause(held), ErrLost)
	})
}

// closingRounds are closed while somebody looks at a key.
type closingRounds struct{ rounds }

func (r closingRounds) Masters() []mux.State {
	all := r.rounds.Masters()
	for i := range all {
		all[i].Server = conn.Server{Tracking: true}
	}
	return all
}

func (r closingRounds) Do(ctx context.Context, op *mux.Op) error {
	if op.Replies == 2 { // a look
		return mux.ErrClosed
	}
	return r.rounds.Do(ctx, op)
}

func (r closingRounds) Wait(ctx context.Context, op *mux.Op) error {
	if op.Command == nil { // the listener's
		return mux.ErrClosed
	}
	return r.rounds.Wait(ctx, op)
}

func (r closingRounds) Post(ops ...*mux.Op) {
	if ops[0].Command != nil {
		r.rounds.Post(ops...)
	}
}

func TestLockThatLooksWhileTheClientIsClosedSaysSo(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		c.rounds = closingRounds{r}
		err := c.NewMutex("k", ttl).Lock(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		require.NotErrorIs(t, err, ErrHeld)
	})
}

// An attempt that is not one of the line tells the line nothing: the masters have
// to tell what this client itself deletes, so tracking is without NOLOOP.
func TestWaiterLearnsOfAReleaseByAFailedTryLock(t *testing.T) {
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
	require.ErrorIs(t, <-failed, context.Canceled)
	masters.Resume(1)
	comes(t, done)
}

// A master that was down at the look can make up the majority later.
func TestWaiterLearnsOfAReleaseThatLeavesSilentMastersOnly(t *testing.T) {
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
	waiter.watches.noteRefused("k", waiter.now())
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
func TestWaiterDoesNotTrustAFreeMasterToTell(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	command(t, masters, 2, "ACL", "SETUSER", "default", "-client|tracking")
	c := opened(t, masters.Addrs(), nil)
	command(t, masters, 1, "SET", "k", "foreign")
	command(t, masters, 2, "SET", "k", "foreign")
	done := parked(t, c, "k")
	command(t, masters, 2, "DEL", "k")
	comes(t, done)
}

// The network has become slow since its round trips were measured.
func TestWaiterGetsALockWhenMastersHaveBecomeSlow(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	holder := opened(t, masters.Addrs(), nil)
	slow := &slowdown{to: masters.Addr(0)}
	waiter := opened(t, []string{slow.listen(t)}, nil)
	for range 50 {
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

// All masters are asked by a round in turn that succeeds.
func TestObserverIsToldHowManyAnAttemptInTurnHasAsked(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		masters := redlocktest.Start(t, n)
		asked := make(chan int, 1000)
		holder := opened(t, masters.Addrs(), nil)
		waiter := opened(t, masters.Addrs(), &Observer{Round: func(_ context.Context, r Round) {
			if r.Err == nil {
				asked <- r.Asked
			}
		}})
		m := holder.NewMutex("k", 30*time.Second)
		require.NoError(t, m.TryLock(t.Context()))
		done := parked(t, waiter, "k")
		require.NoError(t, m.Unlock(t.Context()))
		comes(t, done)
		require.Equal(t, n, <-asked)
	}
}

// The master that is asked first says no, and too few others are there: that is
// no quorum, though a key stands in the way as well.
func TestLockWithoutAQuorumDoesNotLookHeld(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs(), Durable: true}) // they may vote as soon as they are back
	for up := range 3 {
		key := "k" + strconv.Itoa(up)
		command(t, masters, up, "SET", key, "foreign")
		for i := range 3 {
			if i != up {
				masters.Kill(i)
				require.Eventually(t, func() bool { return c.rounds.Masters()[i].Phase == mux.Down }, hanging, time.Millisecond)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := c.NewMutex(key, 30*time.Second).Lock(ctx)
		cancel()
		require.ErrorIs(t, err, ErrNoQuorum)
		for i := range 3 {
			if i != up {
				masters.Restart(i)
				comesUp(t, c, i)
			}
		}
	}
}

// B has used only shorter TTLs, or none at all, when a master comes back that may have
// forgotten a longer lock.
func TestRestartedMasterIsBarredByTheFirstLongerTTL(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	was := c.rounds.Masters()[0].Server.RunID
	masters.Restart(0)
	require.Eventually(t, func() bool {
		s := c.rounds.Masters()[0]
		return s.Phase == mux.Up && s.Server.RunID != was
	}, hanging, time.Millisecond, "no lock is long enough to have been forgotten")
	command(t, masters, 2, "SET", "k", "foreign")
	m := c.NewMutex("k", 30*time.Second)
	require.Equal(t, mux.Up, c.rounds.Masters()[0].Phase, "a TTL that nobody has used costs nothing")
	var why *mux.QuarantineError
	require.ErrorAs(t, m.TryLock(t.Context()), &why)
	require.Equal(t, mux.Quarantined, c.rounds.Masters()[0].Phase)
}

// A recheck, of which one round hangs, must not take locks for lost that were renewed
// while it waited.
func TestRecheckSparesWhatOthersRenew(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs(), StallTime: 20 * time.Second})
	c.groups = true // as if one were a group's
	var kept []context.Context
	for i := range 10 {
		m := c.NewMutex("k"+strconv.Itoa(i), 6*time.Second, WithRoundTimeout(time.Second))
		require.NoError(t, m.TryLock(t.Context()))
		k, stop := m.KeepAlive(t.Context())
		defer stop()
		kept = append(kept, k)
	}
	slow := c.NewMutex("slow", 60*time.Second, WithRoundTimeout(4*time.Second))
	require.NoError(t, slow.TryLock(t.Context()))
	command(t, masters, 0, "SET", "slow", "foreign")
	masters.Pause(2)
	c.recheck()
	masters.Resume(2)
	for _, k := range kept {
		require.NoError(t, context.Cause(k))
	}
	require.Zero(t, slow.Remaining(), "one of three has it")
}

// A lock that was handed over is asked for again, too.
func TestRecheckKnowsLocksThatWereHandedOver(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	c.groups = true // as if one were a group's
	m := c.NewMutex("k", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	h := c.NewMutex("k", 30*time.Second, WithToken(m.Token()))
	require.NoError(t, h.Extend(t.Context()))
	c.holding.remove(m) // which must not be used any more
	command(t, masters, 0, "DEL", "k")
	command(t, masters, 1, "DEL", "k")
	c.recheck()
	require.Zero(t, h.Remaining())
}

func TestGuardListensToNobodyWhoMayHaveForgotten(t *testing.T) {
	const guarded, uses = time.Hour, time.Minute
	one := conn.Server{Endpoint: "a:1", RunID: "1", Uptime: 24 * time.Hour}
	silent := conn.Server{Endpoint: "a:1"}
	with := func(s conn.Server, change func(*conn.Server)) conn.Server { change(&s); return s }
	restarted := with(one, func(s *conn.Server) { s.RunID, s.Uptime = "2", 0 })
	durable := func(s *conn.Server) { s.Durable = true }
	of := func(s *conn.Server) { s.Group, s.ReplID, s.Reign = "g", "r", 24*time.Hour }
	for name, c := range map[string]struct {
		cfg         Config
		before, now conn.Server
		d           time.Duration
		doubt       bool
	}{
		"first":                        {Config{}, conn.Server{}, restarted, 0, false},
		"first, guarded":               {Config{RestartGuard: guarded}, conn.Server{}, restarted, guarded, false},
		"first, guarded, old":          {Config{RestartGuard: guarded}, conn.Server{}, one, 0, false},
		"first, guarded, half":         {Config{RestartGuard: guarded}, conn.Server{}, with(one, func(s *conn.Server) { s.Uptime = guarded / 2 }), guarded/2 + time.Second, false},
		"first, guarded, durable":      {Config{RestartGuard: guarded}, conn.Server{}, with(restarted, durable), 0, false},
		"first, guarded, says nothing": {Config{RestartGuard: guarded}, conn.Server{}, conn.Server{Endpoint: "a:1"}, guarded, false},
		"first, guarded, promoted": {Config{RestartGuard: guarded}, conn.Server{},
			with(with(one, of), func(s *conn.Server) { s.Reign = guarded / 4 }), guarded - guarded/4, false},
		"again":                                        {Config{}, one, one, 0, false},
		"restarted":                                    {Config{}, one, restarted, uses, true},
		"restarted, guarded":                           {Config{RestartGuard: guarded}, one, restarted, guarded, true},
		"restarted, durable":                           {Config{}, with(one, durable), with(restarted, durable), 0, false},
		"restarted, durable only now":                  {Config{}, one, with(restarted, durable), uses, true},
		"restarted, declared durable":                  {Config{Durable: true}, one, restarted, 0, false},
		"again, says nothing":                          {Config{}, silent, silent, uses, true},
		"again, says nothing any more":                 {Config{}, one, silent, uses, true},
		"again, says it now":                           {Config{}, silent, one, uses, true},
		"again, guarded, says nothing":                 {Config{RestartGuard: guarded}, silent, silent, guarded, true},
		"again, says nothing, but is declared durable": {Config{Durable: true}, silent, silent, 0, false},
		"again, says nothing, but that it is durable":  {Config{}, with(silent, durable), with(silent, durable), 0, false},
		"was a replica, as it has said": {Config{Durable: true}, with(one, func(s *conn.Server) { s.Role = "replica" }),
			with(one, func(s *conn.Server) { s.Role = "master" }), uses, true},
		"was a replica, as its id shows": {Config{Durable: true}, with(one, func(s *conn.Server) { s.ReplID = "r" }),
			with(one, func(s *conn.Server) { s.ReplID, s.ReplID2 = "s", "r" }), uses, true},
		"again, its id is known only now": {Config{}, one, with(one, func(s *conn.Server) { s.ReplID = "s" }), 0, false},
		"restarted, durable, with another id": {Config{}, with(with(one, durable), func(s *conn.Server) { s.ReplID = "r" }),
			with(with(restarted, durable), func(s *conn.Server) { s.ReplID = "s" }), 0, false},
		"replaced, however durable": {Config{Durable: true}, with(with(one, of), durable),
			with(with(one, of), func(s *conn.Server) { s.Endpoint, s.Durable = "b:1", true }), uses, true},
		"replaced, and back": {Config{Durable: true}, with(one, of), with(one, func(s *conn.Server) { of(s); s.ReplID = "s" }), uses, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(&c.cfg)
			g.use(uses)
			g.use(time.Second)
			d, why, doubt := g.quarantine(0, c.before, c.now)
			require.Equal(t, c.d, d)
			require.Equal(t, c.doubt, doubt)
			require.Equal(t, d > 0, why != "")
		})
	}
}

// An attempt that Close cuts short, and that fails therefore, leaves nothing behind.
func TestCloseLeavesNothingOfWhatItCutsShort(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	for round := range 5 {
		c := openedWith(t, Config{Masters: masters.Addrs()})
		if round == 4 { // what is frozen hears of it when it thaws
			masters.Pause(2)
		}
		var attempts sync.WaitGroup
		var mu sync.Mutex
		var refused []string
		begun := make(chan struct{}, 1)
		for g := range 8 {
			attempts.Go(func() {
				for n := 0; ; n++ {
					key := fmt.Sprintf("%d-%d-%d", round, g, n)
					if err := c.NewMutex(key, time.Hour).TryLock(context.Background()); err != nil {
						mu.Lock()
						refused = append(refused, key)
						mu.Unlock()
						return
					}
					if n > 10 {
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		<-begun
		require.NoError(t, c.Close())
		attempts.Wait()
		if round == 4 {
			masters.Resume(2)
		}
		require.Len(t, refused, 8)
		for _, key := range refused {
			for i := range 3 {
				require.Eventually(t, func() bool {
					n, err := masters.Do(i, "EXISTS", key)
					return err == nil && fmt.Sprint(n) == "0"
				}, hanging, time.Millisecond, "%s on master %d", key, i)
			}
		}
	}
}

// Another round has prolonged the lock while an Extend was under way, whose answer
// comes after the validity that it began with.
func TestSlowExtendTakesNothingAway(t *testing.T) {
	for _, renews := range []string{"KeepAlive", "Extend"} {
		t.Run(renews, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				time.Sleep(m.Remaining() - 40*time.Millisecond)
				r.set(func(m *fakeMaster) { m.delay = 10 * time.Millisecond }, all(3)...)
				held, stop := t.Context(), func() {}
				first := make(chan error, 1)
				if renews == "KeepAlive" {
					held, stop = m.KeepAlive(t.Context())
					first <- nil
				} else {
					go func() { first <- m.Extend(t.Context()) }()
				}
				defer stop()
				time.Sleep(5 * time.Millisecond)
				r.set(func(m *fakeMaster) { m.delay = 40 * time.Millisecond }, all(3)...)
				require.NoError(t, m.Extend(t.Context()))
				require.NoError(t, <-first)
				require.NoError(t, held.Err())
				require.Positive(t, m.Remaining())
				require.Equal(t, 3, r.holders("k", m.Token()))
			})
		})
	}
}

// A frozen master does what it finds in its buffers when it thaws, however late: here it
// sets keys again of a lock that was released and has expired since.
func TestThawedMasterIsToldOfAReleaseHoweverLateItIs(t *testing.T) {
	const ttl = 2 * time.Second
	masters := redlocktest.Start(t, 3)
	c := openedWith(t, Config{Masters: masters.Addrs()})
	m := c.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	masters.Pause(1)
	masters.Pause(2)
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	<-held.Done()
	for _, i := range []int{1, 2} {
		require.Eventually(t, func() bool { return c.rounds.Masters()[i].Phase != mux.Up }, hanging, time.Millisecond)
	}
	require.Error(t, m.Unlock(t.Context()))
	time.Sleep(ttl + 100*time.Millisecond)
	for _, i := range []int{1, 2} {
		masters.Resume(i)
		comesUp(t, c, i)
		require.Eventually(t, func() bool {
			s := c.rounds.Masters()[i]
			return s.Owed == 0 && s.Debts == 0
		}, hanging, time.Millisecond)
		n, err := masters.Do(i, "EXISTS", "k")
		require.NoError(t, err)
		require.Equal(t, "0", fmt.Sprint(n))
	}
}

// A release that masters refuse for a moment is not forgotten.
func TestReleaseThatIsRefusedForAMomentIsRepeated(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	m := c.NewMutex("k", time.Hour)
	require.NoError(t, m.TryLock(t.Context()))
	for i := range 3 {
		command(t, masters, i, "CONFIG", "SET", "min-replicas-to-write", "1")
	}
	require.ErrorIs(t, m.Unlock(t.Context()), ErrNoQuorum)
	require.Positive(t, c.rounds.Masters()[0].Debts)
	for i := range 3 {
		command(t, masters, i, "CONFIG", "SET", "min-replicas-to-write", "0")
		require.Eventually(t, func() bool {
			n, err := masters.Do(i, "EXISTS", "k")
			return err == nil && fmt.Sprint(n) == "0"
		}, hanging, time.Millisecond)
	}
}

// An Observer that panics, in a caller that recovers, is in nobody else's way.
func TestPanicOfAnObserverBlocksNobody(t *testing.T) {
	simulated(t, 3, Config{Observer: &Observer{WaitStart: func(context.Context, string) { panic("the user's") }}}, func(t *testing.T, c *Client, _ *fakeRounds) {
		taken(t, c)
		require.Panics(t, func() { c.NewMutex("k", ttl).Lock(t.Context()) })
		require.Zero(t, c.Stats().Waiting)
		require.Zero(t, c.lines.size())
	})
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		c, r := newFake(t, 3, Config{Observer: &Observer{Round: func(context.Context, Round) {
			once.Do(func() { panic("the user's") })
		}}})
		require.Panics(t, func() {
			c.Do(t.Context(), "k", ttl, func(context.Context) error { return nil })
		})
		time.Sleep(time.Millisecond)
		require.Zero(t, r.keys(), "Do has released what it had taken")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, c.NewMutex("k", ttl).Lock(ctx))
	})
}

// What never ends, or lasts for longer than a Duration can say.
func TestLongTimesDoNotOverflow(t *testing.T) {
	simulated(t, 3, Config{DriftFactor: 1e-9}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithMaxLifetime(conn.Forever))
		held, stop := m.KeepAlive(t.Context())
		defer stop()
		require.NoError(t, held.Err())
		require.ErrorContains(t, c.NewMutex("k", conn.Forever/time.Millisecond*time.Millisecond).TryLock(t.Context()), "hundred years")
		require.NoError(t, c.NewMutex("j", maxTTL).TryLock(t.Context()))
	})
	masters := redlocktest.Start(t, 1)
	command(t, masters, 0, "SET", "k", "another's", "PX", "15000000000000")
	c := openedWith(t, Config{Masters: masters.Addrs(), DialTimeout: conn.Forever})
	comes := parked(t, c, "k")
	require.Zero(t, c.Stats().WokenExpiry)
	h, err := c.Holders(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, conn.Forever, h[0].TTL)
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-comes, ErrClosed)
}

// A lock that a switch has put in doubt, and that is over before the masters could be
// asked again, is released.
func TestStaleSuccessIsReleased(t *testing.T) {
	simulated(t, 3, Config{DriftFactor: 0.5}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		c.rounds = &switchingRounds{r, c}
		now, looks := c.now, 0
		c.now = func() time.Duration {
			if looks++; looks == 2 { // before the recheck
				time.Sleep(ttl / 2)
			}
			return now()
		}
		require.ErrorIs(t, c.NewMutex("k", ttl, WithRoundTimeout(time.Minute)).TryLock(t.Context()), ErrNoQuorum)
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}

// switchingRounds has a group switch just after each round.
type switchingRounds struct {
	*fakeRounds
	c *Client
}

func (s *switchingRounds) Do(ctx context.Context, op *mux.Op) error {
	defer s.c.guard.switches.Add(1)
	return s.fakeRounds.Do(ctx, op)
}

// Of two TryLocks on one Mutex the first stands still until its lock is over and the
// second has taken the next one.
func TestLateSuccessSparesAYoungerLock(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl)
		now := c.now
		var once atomic.Bool
		c.now = func() time.Duration {
			at := now()
			if !once.Swap(true) {
				time.Sleep(ttl + 10*time.Millisecond)
			}
			return at
		}
		first := make(chan error, 1)
		go func() { first <- m.TryLock(context.Background()) }()
		time.Sleep(ttl + 5*time.Millisecond)
		require.NoError(t, m.TryLock(t.Context()))
		token := m.Token()
		require.ErrorIs(t, <-first, ErrExpired)
		require.Equal(t, token, m.Token())
		require.NoError(t, m.Unlock(t.Context()))
		time.Sleep(10 * time.Millisecond)
		require.Zero(t, r.keys())
	})
}

// A recheck whose answers were looked at too late does not revive what has been seen to
// be over.
func TestRecheckRevivesNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		c.groups = true
		m := taken(t, c)
		time.Sleep(m.Remaining() - 5*time.Millisecond)
		c.rounds = &lateRounds{fakeRounds: r, late: 50 * time.Millisecond}
		c.recheck()
		require.Zero(t, m.Remaining())
	})
}

// lateRounds has who waits first for a round stand still afterwards.
type lateRounds struct {
	*fakeRounds
	late time.Duration
	over atomic.Bool
}

func (l *lateRounds) Wait(ctx context.Context, op *mux.Op) error {
	if !l.over.Swap(true) {
		defer time.Sleep(l.late)
	}
	return l.fakeRounds.Wait(ctx, op)
}

// A value of any size under a key, and a key of any size, are in nobody's way.
func TestBigValuesAndKeysBreakNoConnection(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	for i := range 3 {
		command(t, masters, i, "SET", "big", strings.Repeat("v", 1<<20))
	}
	m := c.NewMutex("mine", 30*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	holders, err := c.Holders(t.Context(), "big")
	require.NoError(t, err)
	require.Len(t, holders[0].Token, 1024)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.NewMutex("big", 30*time.Second).Lock(ctx), ErrHeld)
	err = c.NewMutex(strings.Repeat("k", maxKey+1), 30*time.Second).Lock(t.Context())
	require.ErrorContains(t, err, "16384")
	require.Less(t, len(err.Error()), 300)
	longest := c.NewMutex(strings.Repeat("k", maxKey), 30*time.Second)
	require.NoError(t, longest.TryLock(t.Context()))
	require.NoError(t, longest.Unlock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	for _, s := range c.rounds.Masters() {
		require.EqualValues(t, 1, s.Connects)
	}
}

// A waiter that was cancelled knows that the lock is held, though it only looked.
func TestCancelledWaiterSaysThatItIsHeld(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	for i := range 3 {
		command(t, masters, i, "SET", "k", "another's")
	}
	known := func() bool {
		s := c.lines.shard("k")
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.lines["k"]
		return l != nil && l.failure != nil
	}
	for range 3 { // from the second on the key is known to be contended
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		for range cap(errs) {
			go func() { errs <- c.NewMutex("k", 30*time.Second).Lock(ctx) }()
		}
		require.Eventually(t, func() bool { return c.Stats().Waiting == 2 && known() }, hanging, time.Millisecond)
		cancel()
		for range cap(errs) {
			err := <-errs
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, ErrHeld)
		}
	}
}

// A Do that was given a token and could not take the lock leaves it to whom it belongs.
func TestDoReleasesNothingThatItHasNotTaken(t *testing.T) {
	for name, patience := range map[string]time.Duration{"held": 100 * time.Millisecond, "out of time": 0} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
				m := taken(t, c)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				require.Error(t, c.Do(ctx, m.Key(), ttl, func(context.Context) error { panic("not reached") }, WithToken(m.Token())))
				time.Sleep(10 * time.Millisecond)
				require.Equal(t, 3, r.holders("k", m.Token()))
			})
		})
	}
}

// Close waits for the attempts under way, and they do not wait for Close: an Observer that
// is called in one, as the context of that is another's KeepAlive, may try to take a lock.
func TestCloseAndAnAttemptDoNotWaitForEachOther(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		closed, lost := make(chan struct{}), make(chan error, 1)
		c.observe.Lost = func(context.Context, string, error) {
			go func() {
				c.Close()
				close(closed)
			}()
			for c.attempts.TryRLock() { // until it waits for the attempt
				c.attempts.RUnlock()
				runtime.Gosched()
			}
			lost <- c.NewMutex("other", ttl).TryLock(context.Background())
		}
		held, stop := taken(t, c).KeepAlive(t.Context())
		defer stop()
		c.rounds = &suspendedRounds{fakeRounds: r}
		require.Error(t, c.NewMutex("nested", ttl).TryLock(held))
		require.ErrorIs(t, <-lost, ErrClosed)
		<-closed
	})
}

// suspendedRounds has the machine suspended before an attempt.
type suspendedRounds struct {
	*fakeRounds
	once sync.Once
}

func (s *suspendedRounds) Do(ctx context.Context, op *mux.Op) error {
	s.once.Do(func() {
		s.mu.Lock()
		s.jump += 2 * ttl
		s.mu.Unlock()
	})
	return s.fakeRounds.Do(ctx, op)
}

// The KeepAlive of a lock that has run out is told so by the next attempt, outside of it.
func TestObserverIsCalledOutsideTheAttempt(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		free := false
		c.observe.Lost = func(context.Context, string, error) {
			if free = c.attempts.TryLock(); free {
				c.attempts.Unlock()
			}
		}
		m := taken(t, c)
		_, stop := m.KeepAlive(t.Context())
		defer stop()
		r.set(func(m *fakeMaster) { clear(m.keys) }, all(3)...)
		r.mu.Lock()
		r.jump += 2 * ttl
		r.mu.Unlock()
		require.NoError(t, m.TryLock(t.Context()))
		require.True(t, free)
	})
}

// An Extend whose caller stands still after the answers, until the lock is over or until
// others have extended it further.
func TestExtendThatLooksTooLate(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		time.Sleep(m.Remaining() - 20*time.Millisecond)
		now := c.now
		var looks atomic.Int64
		c.now = func() time.Duration {
			at := now()
			if looks.Add(1) == 2 { // after the answers
				time.Sleep(100 * time.Millisecond)
			}
			return at
		}
		require.ErrorIs(t, m.Extend(t.Context()), ErrExpired)
		require.Zero(t, m.Remaining())
	})
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl, WithRoundTimeout(10*ttl))
		require.NoError(t, m.TryLock(t.Context()))
		c.rounds = &lateRounds{fakeRounds: r, late: ttl + ttl/10}
		first := make(chan error, 1)
		go func() { first <- m.Extend(t.Context()) }()
		for range 5 {
			time.Sleep(ttl / 4)
			require.NoError(t, m.Extend(t.Context()))
		}
		require.NoError(t, <-first)
		require.Positive(t, m.Remaining())
	})
}

// Who leaves a line whose first was refused, and has looked since, is told the votes.
func TestFollowersKnowTheVotes(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	for i := range 3 {
		command(t, masters, i, "SET", "k", "another's")
	}
	first := parked(t, c, "k")
	ctx, cancel := context.WithCancel(t.Context())
	follower := make(chan error, 1)
	go func() { follower <- c.NewMutex("k", 30*time.Second).Lock(ctx) }()
	require.Eventually(t, func() bool { return c.Stats().Waiting == 2 }, hanging, time.Millisecond)
	cancel()
	var e *RoundError
	require.ErrorAs(t, <-follower, &e)
	require.ErrorIs(t, e, ErrHeld)
	require.Len(t, e.Votes, 3)
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-first, ErrClosed)
}
