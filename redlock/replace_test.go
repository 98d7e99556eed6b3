package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A fight is of some clients for two locks. It demands that no two have one at a time, and that fences grow, where there
// are some, and that no call fails that may not.
type fight struct {
	t       *testing.T
	opts    []redlock.Option
	mayFail func(err error, ran bool) bool     // it has run its function, or has not
	current [2]atomic.Pointer[context.Context] // of who was given the lock last and has not returned
	taken   [2]atomic.Int64
	wrong   sync.Map
	fences  [2]atomic.Uint64 // the greatest that was given
	over    context.CancelFunc
	running sync.WaitGroup
}

func newFight(t *testing.T, ttl time.Duration, clients ...*redlock.Client) *fight {
	f := &fight{t: t, opts: []redlock.Option{redlock.WithFence()}, mayFail: func(err error, ran bool) bool {
		return ran && errors.Is(err, redlock.ErrNoQuorum) // a release may meet one master that goes, and one that was late with its yes
	}}
	return f.begin(ttl, clients)
}

// contend is a fight for locks that failovers may take away.
func contend(t *testing.T, ttl time.Duration, clients ...*redlock.Client) *fight {
	return (&fight{t: t, mayFail: func(error, bool) bool { return true }}).begin(ttl, clients)
}

func (f *fight) begin(ttl time.Duration, clients []*redlock.Client) *fight {
	ctx, cancel := context.WithCancel(f.t.Context())
	f.over = cancel
	for _, c := range clients {
		for w := range 4 {
			key := w % 2
			f.running.Go(func() {
				for ctx.Err() == nil {
					ran := false
					err := c.Do(ctx, fmt.Sprint("k", key), ttl, func(in context.Context) error {
						ran = true
						f.inside(key, in)
						return nil
					}, f.opts...)
					if err != nil && ctx.Err() == nil && !f.mayFail(err, ran) {
						f.wrong.Store(err.Error(), true)
					}
				}
			})
		}
	}
	f.t.Cleanup(f.end)
	return f
}

// inside is where one may be at a time.
func (f *fight) inside(key int, in context.Context) {
	if was := f.current[key].Swap(&in); was != nil && in.Err() == nil && (*was).Err() == nil && in.Err() == nil {
		f.wrong.Store("two hold a valid lock", true)
	}
	fence := redlock.FenceFrom(in)
	if was := f.fences[key].Swap(fence); was >= fence && f.opts != nil {
		f.wrong.Store(fmt.Sprintf("fence %d after %d", fence, was), true)
	}
	f.taken[key].Add(1)
	time.Sleep(5 * time.Millisecond) // the work
	f.current[key].CompareAndSwap(&in, nil)
}

// goesOn waits until each lock was taken some more times.
func (f *fight) goesOn(when string) {
	f.t.Helper()
	for key := range f.taken {
		from := f.taken[key].Load()
		require.Eventually(f.t, func() bool { return f.taken[key].Load() > from+10 }, time.Minute, 5*time.Millisecond, when)
	}
}

func (f *fight) end() {
	f.over()
	f.running.Wait()
	f.wrong.Range(func(what, _ any) bool { f.t.Error(what); return true })
}

const fightTTL = 5 * time.Second

// The masters are told the new list though they know no HELLO.
func TestTheNewListIsToldWithoutHELLO(t *testing.T) {
	t.Parallel()
	masters := lacking(t, 4, "HELLO")
	c := openConfig(t, redlock.Config{Masters: masters.Addrs()[:3], StallTime: busy})
	masters.Kill(2)
	require.NoError(t, c.Replace(t.Context(), masters.Addr(2), masters.Addr(3)))
	toldList(t, masters)
}

// toldList awaits that masters 0, 1 and 3 know that these are a client's.
func toldList(t *testing.T, masters *redlocktest.Masters) {
	t.Helper()
	list := clientname.List([]string{masters.Addr(0), masters.Addr(1), masters.Addr(3)})
	for _, i := range []int{0, 1, 3} {
		require.Eventually(t, func() bool {
			return strings.Contains(redlock.Says(t, masters, i, "CLIENT", "LIST").(string), "/"+list)
		}, 20*time.Second, 5*time.Millisecond)
	}
}

// The masters are told the new list by a user who may do no more than the documentation says, and they refuse nothing.
func TestTheNewListIsToldWithTheDocumentedRights(t *testing.T) {
	t.Parallel()
	masters := startACL(t, 4, lockRights)
	if name, version := product(t, masters); name == "Redis" && olderThan(version, "6.2") {
		t.Skip("there a user needs a right to HELLO")
	}
	cfg := acl(masters)
	cfg.Masters, cfg.StallTime = masters.Addrs()[:3], busy
	c := openUp(t, cfg)
	masters.Kill(2)
	require.NoError(t, c.Replace(t.Context(), masters.Addr(2), masters.Addr(3)))
	toldList(t, masters)
	for _, i := range []int{0, 1, 3} {
		log := redlock.Says(t, masters, i, "ACL", "LOG")
		for _, entry := range log.([]any) {
			require.NotContains(t, strings.ToLower(fmt.Sprint(entry)), "setname")
			require.NotContains(t, strings.ToLower(fmt.Sprint(entry)), "hello")
		}
	}
}

// A master is killed for good while clients fight for locks and one is kept, and an empty newcomer gets its place,
// in one client after the other. No lock is lost, none is taken twice, and no call fails. The newcomer votes after
// the longest TTL.
func TestReplacedMasterUnderLoad(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	cfg := redlock.Config{Masters: masters.Addrs()[:3], RoundTimeout: 2 * time.Second, StallTime: busy, ClientName: "fighter"}
	var clients []*redlock.Client
	var phases [3]diary
	for i := range phases {
		cfg.Observers = phases[i].observer()
		clients = append(clients, openConfig(t, cfg))
	}
	kept, alive, f := keptInAFight(t, clients)
	masters.Kill(2)
	f.goesOn("while a master is gone")
	list := []string{masters.Addr(0), masters.Addr(1), masters.Addr(3)}
	for i, c := range clients {
		require.NoError(t, c.Replace(t.Context(), masters.Addr(2), masters.Addr(3)))
		phases[i].awaits(t, masters.Addr(3), "quarantined")
		require.Equal(t, masters.Addr(3), c.Stats().Masters[2].Addr)
		f.goesOn("while some have the old list")
	}
	for _, c := range clients {
		reaches(t, c, 2, "up")
	}
	f.goesOn("afterwards")
	require.NoError(t, context.Cause(alive))
	isGiven(t, masters, kept)
	masters.Kill(0)
	f.goesOn("by the newcomer's vote")
	f.end()
	require.NoError(t, context.Cause(alive))
	for _, i := range []int{1, 3} { // all have told their new list
		text := redlock.Says(t, masters, i, "CLIENT", "LIST")
		require.Equal(t, len(clients), strings.Count(text.(string), "/"+clientname.List(list)+"/fighter"), text)
	}
	require.Contains(t, fmt.Sprint(clients[0]), strings.Join(list, " "))
}

// The machine of a master is gone: nothing comes back from its address any more. The steps of docs/masters.md replace it
// all the same, when an operator has given his word, while a lock is kept and others are taken.
func TestAMasterWhoseMachineIsGoneIsReplaced(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	cfg := redlock.Config{Masters: masters.Addrs()[:3], RoundTimeout: 2 * time.Second, StallTime: busy, DialTimeout: time.Second}
	var clients []*redlock.Client
	for range 2 {
		clients = append(clients, openUp(t, cfg))
	}
	kept, alive, f := keptInAFight(t, clients)
	gone := masters.Addr(2)
	masters.Kill(2)
	conntest.UnreachableAt(t, netip.MustParseAddrPort(gone))
	starts, err := redlock.New(cfg) // and has never met it
	require.NoError(t, err)
	t.Cleanup(func() { starts.Close() })
	for _, c := range append(clients, starts) {
		err := c.Replace(t.Context(), gone, masters.Addr(3))
		require.ErrorIs(t, err, mux.ErrMayAnswer)
		require.ErrorContains(t, err, "redlock: replace: nobody can tell from here whether the old master is down: "+gone+": connect: ")
		require.Equal(t, gone, c.Stats().Masters[2].Addr)
		require.NoError(t, c.Replace(t.Context(), gone, masters.Addr(3), redlock.ShutDown()))
		require.Equal(t, masters.Addr(3), c.Stats().Masters[2].Addr)
		f.goesOn("while some have the old list")
	}
	for _, c := range clients {
		reaches(t, c, 2, "up")
	}
	isGiven(t, masters, kept)
	masters.Kill(0)
	f.goesOn("by the newcomer's vote")
	f.end()
	require.NoError(t, context.Cause(alive))
}

// keptInAFight has the first of some clients keep a lock while all of them fight for others.
func keptInAFight(t *testing.T, clients []*redlock.Client) (*redlock.Mutex, context.Context, *fight) {
	t.Helper()
	kept := clients[0].NewMutex("kept", fightTTL)
	require.NoError(t, kept.TryLock(t.Context()))
	redlock.Confirmed(t, kept)
	alive, stop := kept.KeepAlive(t.Context())
	t.Cleanup(stop)
	f := newFight(t, fightTTL, clients...)
	f.goesOn("at first")
	return kept, alive, f
}

// isGiven waits until a renewal has given the lock to the newcomer: before that, another master that ends takes it away.
func isGiven(t *testing.T, masters *redlocktest.Masters, kept *redlock.Mutex) {
	t.Helper()
	require.Eventually(t, func() bool {
		return redlock.Says(t, masters, 3, "GET", "kept") == kept.Token()
	}, time.Minute, 5*time.Millisecond)
}

// A frozen master is none that is down, also when its backlog is full, so that it takes no connections any more. Clients'
// own redials fill it.
func TestAFrozenMasterIsNotReplaced(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4, redlocktest.WithArgs("--tcp-backlog", "4"))
	cfg := redlock.Config{Masters: masters.Addrs()[:3], RoundTimeout: busy, DialTimeout: 500 * time.Millisecond}
	c, other := openConfig(t, cfg), openConfig(t, cfg)
	for _, of := range []*redlock.Client{c, other} {
		used(t, of, long)
		reaches(t, of, 2, "up")
	}
	masters.Pause(2)
	require.ErrorIs(t, c.Replace(t.Context(), masters.Addr(2), masters.Addr(3), redlock.ShutDown()), mux.ErrAnswers, "whatever one says")
	var err error
	require.Eventually(t, func() bool { // a busy machine may take a connection late
		k, dialed := net.DialTimeout("tcp", masters.Addr(2), 200*time.Millisecond)
		if dialed == nil {
			t.Cleanup(func() { k.Close() })
			return false
		}
		err = c.Replace(t.Context(), masters.Addr(2), masters.Addr(3))
		return !errors.Is(err, mux.ErrAnswers)
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, err, mux.ErrMayAnswer)
	masters.Resume(2)
	reaches(t, c, 2, "up")
	require.ErrorIs(t, c.Replace(t.Context(), masters.Addr(2), masters.Addr(3), redlock.ShutDown()), mux.ErrAnswers)
	require.NoError(t, c.NewMutex("k", long).TryLock(t.Context()))
}

// A client has never met the master that it replaces, and so has no reason of its own to mistrust the newcomer. But
// a lock of another client rests on the old one's vote.
func TestNewcomerVotesAfterTheLongestTTL(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	old := masters.Addrs()[:3]
	holder := openUp(t, redlock.Config{Masters: old, RoundTimeout: busy})
	redlock.Says(t, masters, 1, "SET", "k", "another")
	m := holder.NewMutex("k", 8*time.Second)
	require.NoError(t, m.TryLock(t.Context()))
	settled(t, holder)
	masters.Kill(2)
	redlock.Says(t, masters, 1, "DEL", "k")

	c := openConfig(t, redlock.Config{Masters: old, RoundTimeout: busy})
	require.NoError(t, c.Replace(t.Context(), masters.Addr(2), masters.Addr(3)))
	second := c.NewMutex("k", 8*time.Second)
	err := second.TryLock(t.Context())
	require.ErrorContains(t, err, "it has taken the place of "+masters.Addr(2))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, second.Lock(ctx))
	require.Zero(t, m.Remaining())
}

// A bad request is refused with an error that says why, and nothing has changed.
func TestReplaceRefusesABadRequest(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	c := openConfig(t, redlock.Config{Masters: masters.Addrs()[:3], RoundTimeout: busy})
	masters.Kill(2)
	masters.Kill(4)
	dead, spare := masters.Addr(2), masters.Addr(3)
	err := c.Replace(t.Context(), spare, masters.Addr(4))
	require.ErrorIs(t, err, mux.ErrNotMember)
	require.EqualError(t, err, "redlock: replace: not one of the masters: "+spare)
	require.ErrorIs(t, c.Replace(t.Context(), dead, masters.Addr(1)), mux.ErrDuplicate)
	err = c.Replace(t.Context(), masters.Addr(0), spare)
	require.ErrorIs(t, err, mux.ErrAnswers)
	require.EqualError(t, err, "redlock: replace: the old master still answers: shut it down for good first: "+masters.Addr(0))
	require.ErrorContains(t, c.Replace(t.Context(), dead, masters.Addr(4)), "redlock: replace: "+masters.Addr(4)+": connect: ")
	require.ErrorContains(t, c.Replace(t.Context(), dead, "sentinel://"+spare+"/g"), "fixed place")
	require.Equal(t, dead, c.Stats().Masters[2].Addr)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Replace(ended, dead, spare), context.Canceled)
	used(t, c, long)
	require.NoError(t, c.Replace(t.Context(), dead, "redis://default:secret@"+spare))
	require.NotContains(t, fmt.Sprint(c, c.Stats().Masters[2]), "secret")
	c.Close()
	err = c.Replace(t.Context(), spare, dead)
	require.ErrorIs(t, err, redlock.ErrClosed)
	require.EqualError(t, err, "redlock: replace: client is closed")
}

// loopback is a machine of its own, as far as clients can see.
type loopback netip.Addr

func (l loopback) Addr() netip.Addr            { return netip.Addr(l) }
func (l loopback) Do(start func() error) error { return start() }

// A name leads to another machine, because the one before is gone: the same, and no process calls Replace. That
// the masters persist every write changes nothing: the newcomer has never had the locks.
func TestNameThatLeadsElsewhereUnderLoad(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the loopback interface has one address")
	}
	set := conntest.Names(t)
	for _, durable := range []string{"no", "yes"} {
		t.Run("durable "+durable, func(t *testing.T) {
			t.Parallel() // with the other one: while Names is in force nobody else runs
			b, c := byte(rand.IntN(200)+20), byte(rand.IntN(250))
			var hosts []redlocktest.Host
			for i := range byte(4) {
				hosts = append(hosts, loopback(netip.AddrFrom4([4]byte{127, b, c, i + 1})))
			}
			masters := redlocktest.Start(t, 4, redlocktest.WithHosts(hosts...),
				redlocktest.WithArgs("--appendonly", durable, "--appendfsync", "always"))
			var list []string
			for i := range 3 {
				name := fmt.Sprintf("m%d.%s.test", i, durable)
				set(name, hosts[i].Addr())
				list = append(list, name+":6379")
			}
			cfg := redlock.Config{Masters: list, RoundTimeout: 2 * time.Second, StallTime: busy}
			var clients []*redlock.Client
			for range 3 {
				clients = append(clients, openUp(t, cfg))
			}
			_, alive, f := keptInAFight(t, clients)
			masters.Kill(2)
			f.goesOn("while a master is gone")
			set("m2."+durable+".test", hosts[3].Addr())
			for _, c := range clients {
				reaches(t, c, 2, "quarantined")
			}
			f.goesOn("while it has no vote")
			for _, c := range clients {
				reaches(t, c, 2, "up")
			}
			masters.Kill(0)
			f.goesOn("by the newcomer's vote")
			f.end()
			require.NoError(t, context.Cause(alive))
		})
	}
}
